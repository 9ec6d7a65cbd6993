"""Checkpoints of a few thousand parameters, made on the spot: random weights, and tokenizers of the
classes that published models have."""

from collections import Counter
from pathlib import Path


class Canary:
    """Unpickled, it makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def write_tokenizer(path):
    """Byte-level BPE with a truncation and a padding of its own, which counting must ignore."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the king of the harbour", "king number harbour"] * 20, trainer)
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(length=40)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


T5_WORDS = (
    *("Query", "Document", "Relevant", "true", "false"),
    *("the", "old", "mill", "stands", "by", "river", "who", "built", "stone", "bridge", "in"),
)
SPACE = "▁"


def t5_tokenizer(words=T5_WORDS):
    """Each of the words is one token, all other words one token a character."""
    from transformers import T5Tokenizer

    characters = [chr(number) for number in range(33, 127)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SPACE, -8.0)]
    pieces += [(each, -10.0) for each in characters]
    pieces += [(f"{SPACE}{each}", -5.0) for each in dict.fromkeys(words) if len(each) > 1]
    return T5Tokenizer(vocab=pieces, extra_ids=0)


def save_t5(folder, seed=0, words=T5_WORDS, own=True, **changed):
    """A checkpoint with random weights, norms' too, and (`own`) its tokenizer. Scores differ from
    text to text, by some tenths."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    tokens = t5_tokenizer(words)
    torch.manual_seed(seed)
    sizes = {
        **{"d_model": 32, "d_kv": 12, "d_ff": 48, "num_heads": 4, "n_positions": 512},
        **{"num_layers": 2, "num_decoder_layers": 3, "decoder_start_token_id": 0},
        "initializer_factor": 2.0,  # large, so that layers matter next to the residual stream
    }
    config = T5Config(vocab_size=len(tokens), **{**sizes, **changed})
    model = T5ForConditionalGeneration(config)
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
        if "EncDecAttention.q" in name or "EncDecAttention.k" in name:
            torch.nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        # Of the first token of the answer, which starts the residual stream, and of the answers:
        # small, so that they do not decide alone.
        model.shared.weight[[0, *(tokens(each).input_ids[0] for each in ("true", "false"))]] *= 0.3
    model.save_pretrained(folder)
    if own:
        tokens.save_pretrained(folder)
    return folder


def t5_scores(folder, pairs, dtype="float32"):
    """monoT5's scores by transformers' whole model, one pair at a time, ids put together by hand;
    prompts are cut to 512 tokens."""
    import torch
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    network = T5ForConditionalGeneration.from_pretrained(str(folder), dtype=dtype).eval()
    true, false = (tokenizer.convert_tokens_to_ids(f"{SPACE}{word}") for word in ("true", "false"))
    scores = []
    for pair in pairs:
        words = tokenizer.tokenize(f"Query: {pair.query} Document: {pair.text}")
        end = [f"{SPACE}Relevant", ":", "</s>"]
        ids = tokenizer.convert_tokens_to_ids([*words[: 512 - len(end)], *end])
        with torch.no_grad():
            logits = network(
                input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0]])
            ).logits[0, 0]
        scores.append(float(torch.log_softmax(logits[[true, false]].float(), dim=0)[0]))
    return scores


MOST_WORDS = 8000
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
    return [word for word, _ in Counter(words).most_common(MOST_WORDS) if len(word) > 1]


def save_network(folder, network, tokenizer):
    """Save a checkpoint; the folder as text."""
    return str(_saved(folder, network, tokenizer))


def _saved(folder, network, tokenizer):
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LLAMA_WORDS = ("query", "document", "the", "old", "mill", "stands", "by", "river", "who", "built")
TARGETS = ["q_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"]


def llama_tokenizer(words=LLAMA_WORDS):
    """Llama's own class: `▁word` is one token, any other character one or its bytes."""
    from transformers import LlamaTokenizer

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256)), SPACE]
    pieces += [chr(number) for number in range(33, 127)]
    merges = []
    for word in words:
        grown = SPACE
        for letter in word:
            merges.append((grown, letter))
            grown += letter
            pieces.append(grown)
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return LlamaTokenizer(vocab=vocabulary, merges=list(dict.fromkeys(merges)), add_bos_token=True)


def _llama(kind, words, **changed):
    """A Llama with random weights for a tokenizer."""
    import transformers

    sizes = {
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024},
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "initializer_range": 0.3},
    }
    config = transformers.LlamaConfig(vocab_size=len(words), **{**sizes, **changed})
    return getattr(transformers, kind)(config)


def save_rankllama(folder, seed=0, words=LLAMA_WORDS, **changed):
    """A complete checkpoint with one output, and its tokenizer."""
    import torch

    tokenizer = llama_tokenizer(words)
    torch.manual_seed(seed)
    model = _llama("LlamaForSequenceClassification", tokenizer, num_labels=1, **changed)
    torch.nn.init.normal_(model.score.weight)
    return _saved(folder, model.eval(), tokenizer)


def save_base(folder, seed=0):
    """A language model, as Llama-2 is published: without an output for scores."""
    import torch

    tokenizer = llama_tokenizer()
    torch.manual_seed(seed)
    return _saved(folder, _llama("LlamaForCausalLM", tokenizer).eval(), tokenizer)


def save_rankllama_adapter(folder, base, seed=1, head=True):
    """A random LoRA adapter with its output, as RankLLaMA is published. Returns the adapted model.
    Without `head`, one that lacks the output."""
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    lora = LoraConfig(
        task_type=TaskType.SEQ_CLS if head else TaskType.FEATURE_EXTRACTION,
        r=4,
        lora_alpha=16,
        target_modules=TARGETS,
    )
    adapted = get_peft_model(model, lora)
    for name, weight in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.eval().save_pretrained(folder)
    return adapted


END, BEGIN, STOP = "<|endoftext|>", "<s>", "</s>"
QWEN_PREFIX = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[Q]", "[D]")
_TEXT = "the old mill stands by river who built a query passage document is of town bridge . ,"
EMBEDDER_WORDS = tuple(_TEXT.split())


def save_qwen(folder, seed=0):
    """Qwen3 without a head, and a byte-level tokenizer that ends each text with its end token."""
    import torch
    from transformers import Qwen3Config, Qwen3Model

    words = byte_tokenizer((END,), f"$A {END}")
    config = Qwen3Config(vocab_size=len(words), head_dim=8, num_key_value_heads=2, **_sizes())
    torch.manual_seed(seed)
    return _saved(folder, Qwen3Model(config).eval(), words)


def save_llama(folder, seed=0):
    """Llama with its head, and a tokenizer that begins each text and does not end it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = byte_tokenizer((BEGIN, STOP), f"{BEGIN} $A", bos_token=BEGIN, eos_token=STOP)
    config = LlamaConfig(
        vocab_size=len(words), bos_token_id=0, eos_token_id=1, num_key_value_heads=2, **_sizes()
    )
    torch.manual_seed(seed)
    return _saved(folder, LlamaForCausalLM(config).eval(), words)


def save_embedder_adapter(folder, base, seed=1):
    """A random LoRA adapter of the Llama's body; it has no tokenizer, as RepLLaMA has none."""
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModel

    torch.manual_seed(seed)
    lora = LoraConfig(
        task_type=TaskType.FEATURE_EXTRACTION,
        r=2,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj"],
    )
    adapted = get_peft_model(AutoModel.from_pretrained(base), lora)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.eval().save_pretrained(folder)
    return folder


def save_bert(folder, seed=0, markers=("[Q]", "[D]"), words=EMBEDDER_WORDS):
    """BERT without a head, and a tokenizer of complete words."""
    import torch
    from transformers import BertConfig, BertModel

    words = whole_word_tokenizer(markers, words)
    config = BertConfig(vocab_size=len(words), **_sizes(), type_vocab_size=2)
    torch.manual_seed(seed)
    return _saved(folder, BertModel(config, add_pooling_layer=False).eval(), words)


def save_sentence_model(folder, seed=0, words=EMBEDDER_WORDS):
    """A sentence-transformers checkpoint: mean pooling, and prompts of its own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    body = Transformer(str(save_bert(folder / "body", seed, words=words)), max_seq_length=64)
    model = SentenceTransformer(
        modules=[body, Pooling(body.get_embedding_dimension(), "mean")],
        prompts={"query": "query ", "document": "passage "},
        device="cpu",
    )
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


def save_multi_vector(folder, seed=0, dimensions=16, words=EMBEDDER_WORDS):
    """A multi-vector checkpoint as ColBERT is: markers, queries filled with masks to 12 tokens,
    punctuation of documents left out, vectors of length 1."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    body = Transformer(
        str(save_bert(folder / "body", seed, words=words)),
        document_length=48,
        query_expansion={"strategy": "fixed", "length": 12, "attend": False},
    )
    torch.manual_seed(seed)
    down = Dense(
        body.get_embedding_dimension(),
        dimensions,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )
    model = MultiVectorEncoder(
        modules=[
            body,
            down,
            MultiVectorMask(skiplist_words=[".", ","]),
            Normalize(module_input_name="token_embeddings"),
        ],
        prompts={"query": "[Q] ", "document": "[D] "},
        device="cpu",
    )
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


def _sizes():
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
    }


def byte_tokenizer(special, template, **named):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*special, *letters))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    made.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, vocabulary[token]) for token in special]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, **(named or {"pad_token": END}))


def whole_word_tokenizer(markers, words=EMBEDDER_WORDS):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = (*BERT[:-2], *markers)
    vocabulary = {token: number for number, token in enumerate((*special, *words))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


SPLADE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPLADE_WORDS = tuple(
    f"{onset}{vowel}{end}" for onset in "bdfgklmnprst" for vowel in "aeiou" for end in ("n", "ra")
)
SPLADE_PIECES = ("##s", "##ing", ",", ".")
SPLADE_POSITIONS = 64


def write_splade(folder, *, kind="bert", seed=0, words=SPLADE_WORDS):
    """Save a BERT or DistilBERT with its masked-language-model head, or a DistilBERT without one
    (`encoder`), and a WordPiece tokenizer of `words`. Logits are spread enough that about half of
    the weights are 0."""
    import torch
    import transformers

    terms = [*SPLADE_SPECIAL, *words, *SPLADE_PIECES]
    tokenizer = transformers.BertTokenizer(vocab={term: n for n, term in enumerate(terms)})
    torch.manual_seed(seed)
    layers = {"vocab_size": len(terms), "max_position_embeddings": SPLADE_POSITIONS}
    if kind == "bert":
        size = {"hidden_size": 16, "intermediate_size": 32}
        heads = {"num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.BertConfig(**layers, **size, **heads)
        model = transformers.BertForMaskedLM(config)
    else:
        size = {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2}
        model = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**layers, **size))
        model = model.distilbert if kind == "encoder" else model
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1:
                value.normal_(0.0, 0.3)
            elif "norm" not in name.lower():
                value.normal_(0.0, 0.5)
    folder.mkdir(parents=True, exist_ok=True)
    return _saved(folder, model, tokenizer)
