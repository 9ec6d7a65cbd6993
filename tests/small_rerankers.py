"""Small re-rankers with random weights: a T5 and a BERT with the vocabulary of given texts."""

from __future__ import annotations

from collections import Counter

WORDS = 8000
T5_SHAPE = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 1, "num_heads": 4}
# A BERT compares query and text in its second layer only.
BERT_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_CHARACTERS = tuple(map(chr, range(33, 127)))
_PROMPT = ("query", "document", "relevant", "true", "false")
_MAX_LENGTH = 512


def small_t5(texts, seed=0):
    """A T5 with random weights, and a tokenizer of T5's kind: the most frequent words of `texts`
    in small letters are a token each, other words one a character."""
    import tokenizers
    import torch
    import transformers

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -8.0)]
    pieces += [(character, -10.0) for character in _CHARACTERS]
    frequent = _frequent(word for text in texts for word in text.lower().split())
    pieces += [(f"▁{word}", -5.0) for word in dict.fromkeys((*_PROMPT, *frequent))]
    backend = transformers.T5Tokenizer(vocab=pieces, extra_ids=0).backend_tokenizer
    backend.normalizer = tokenizers.normalizers.Lowercase()
    # T5's own class would be loaded with T5's own normalizer.
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        n_positions=_MAX_LENGTH,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        initializer_factor=0.5,
        **T5_SHAPE,
    )
    return transformers.T5ForConditionalGeneration(config), tokenizer


def small_bert(texts, seed=0):
    """A BERT with random weights and one label, and a tokenizer of BERT's kind, with a vocabulary
    as that of `small_t5`."""
    import torch
    import transformers

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    small = dict.fromkeys(character.lower() for character in _CHARACTERS)
    pieces = [*special, *small, *(f"##{character}" for character in small)]
    backend = transformers.BertTokenizer(vocab=_numbered(pieces)).backend_tokenizer
    words = (
        word
        for text in texts
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(text)
        )
    )
    tokenizer = transformers.BertTokenizer(
        vocab=_numbered([*pieces, *_frequent(words)]), model_max_length=_MAX_LENGTH
    )
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=_MAX_LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        # BERT's own 0.02 is for wide layers: these would learn nothing for long.
        initializer_range=0.2,
        num_labels=1,
        **BERT_SHAPE,
    )
    return transformers.BertForSequenceClassification(config), tokenizer


def _numbered(pieces):
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def _frequent(words):
    return [word for word, _ in Counter(words).most_common(WORDS) if len(word) > 1]


def save(folder, network, tokenizer):
    """Save a checkpoint; the folder as text."""
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
