"""Encoders of a few thousand random parameters, made on the spot: like Qwen3-Embedding, like
RepLLaMA (a Llama and an adapter), a sentence-transformers checkpoint, and a multi-vector one."""

from __future__ import annotations

END, BEGIN, STOP = "<|endoftext|>", "<s>", "</s>"
QWEN_PREFIX = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[Q]", "[D]")
_TEXT = "the old mill stands by river who built a query passage document is of town bridge . ,"
WORDS = tuple(_TEXT.split())


def save_qwen(folder, seed=0):
    """Qwen3 without a head, and a byte-level tokenizer that ends each text with its end token."""
    import torch
    from transformers import Qwen3Config, Qwen3Model

    words = _bytes((END,), f"$A {END}")
    config = Qwen3Config(vocab_size=len(words), head_dim=8, num_key_value_heads=2, **_sizes())
    torch.manual_seed(seed)
    Qwen3Model(config).eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_llama(folder, seed=0):
    """Llama with its head, and a tokenizer that begins each text and does not end it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = _bytes((BEGIN, STOP), f"{BEGIN} $A", bos_token=BEGIN, eos_token=STOP)
    config = LlamaConfig(
        vocab_size=len(words), bos_token_id=0, eos_token_id=1, num_key_value_heads=2, **_sizes()
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_adapter(folder, base, seed=1):
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


def save_bert(folder, seed=0, markers=("[Q]", "[D]")):
    """BERT without a head, and a tokenizer of whole words."""
    import torch
    from transformers import BertConfig, BertModel

    words = _words(markers)
    config = BertConfig(vocab_size=len(words), **_sizes(), type_vocab_size=2)
    torch.manual_seed(seed)
    BertModel(config, add_pooling_layer=False).eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_sentence_model(folder, seed=0):
    """A sentence-transformers checkpoint: mean pooling, and prompts of its own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    body = Transformer(str(save_bert(folder / "body", seed)), max_seq_length=64)
    model = SentenceTransformer(
        modules=[body, Pooling(body.get_embedding_dimension(), "mean")],
        prompts={"query": "query ", "document": "passage "},
        device="cpu",
    )
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


def save_multi_vector(folder, seed=0, dimensions=16):
    """A multi-vector checkpoint as ColBERT is: markers, queries filled with masks to 12 tokens,
    punctuation of documents left out, vectors of length 1."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    body = Transformer(
        str(save_bert(folder / "body", seed)),
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


def _bytes(special, template, **named):
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


def _words(markers):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = (*BERT[:-2], *markers)
    vocabulary = {token: number for number, token in enumerate((*special, *WORDS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)
