"""A SPLADE checkpoint of a few thousand random parameters, made on the spot."""

from __future__ import annotations

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(
    f"{onset}{vowel}{end}" for onset in "bdfgklmnprst" for vowel in "aeiou" for end in ("n", "ra")
)
PIECES = ("##s", "##ing", ",", ".")
POSITIONS = 64


def write_splade(folder, *, kind="bert", seed=0, words=WORDS):
    """Save a BERT or DistilBERT with its masked-language-model head, or a DistilBERT without one
    (`encoder`), and a WordPiece tokenizer of `words`. Logits are spread enough that about half of
    the weights are 0."""
    import torch
    import transformers

    terms = [*SPECIAL, *words, *PIECES]
    tokenizer = transformers.BertTokenizer(vocab={term: n for n, term in enumerate(terms)})
    torch.manual_seed(seed)
    model = _MODELS[kind](len(terms))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1:
                value.normal_(0.0, 0.3)
            elif "norm" not in name.lower():
                value.normal_(0.0, 0.5)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _bert(vocabulary):
    import transformers

    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=POSITIONS,
        )
    )


def _distilbert(vocabulary):
    import transformers

    return transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(
            vocab_size=vocabulary,
            dim=16,
            n_layers=2,
            n_heads=2,
            hidden_dim=32,
            max_position_embeddings=POSITIONS,
        )
    )


def _encoder(vocabulary):
    return _distilbert(vocabulary).distilbert


_MODELS = {"bert": _bert, "distilbert": _distilbert, "encoder": _encoder}
