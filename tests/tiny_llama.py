"""A RankLLaMA of a few thousand parameters, made on the spot: random weights, a tokenizer of whole
words, single bytes for the rest, and `<s>`, `</s>` as Llama's has them."""

from __future__ import annotations

WORDS = ("query", "document", "the", "old", "mill", "stands", "by", "river", "who", "built")
BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPACE = "▁"
TARGETS = ["q_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"]


def tokenizer(words=WORDS):
    """Llama's own class: `▁word` is one token, any other character one or its bytes."""
    from transformers import LlamaTokenizer

    pieces = [UNKNOWN, BEGIN, END, *(f"<0x{number:02X}>" for number in range(256)), SPACE]
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


def configuration(vocabulary, **changed):
    from transformers import LlamaConfig

    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    return LlamaConfig(**{**sizes, **changed})


def save_rankllama(folder, seed=0, **changed):
    """A whole checkpoint with one output, and its tokenizer."""
    import torch
    from transformers import LlamaForSequenceClassification

    words = tokenizer()
    torch.manual_seed(seed)
    model = LlamaForSequenceClassification(configuration(len(words), num_labels=1, **changed))
    torch.nn.init.normal_(model.score.weight)
    model.eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_base(folder, seed=0):
    """A language model, as Llama-2 is published: without an output for scores."""
    import torch
    from transformers import LlamaForCausalLM

    words = tokenizer()
    torch.manual_seed(seed)
    LlamaForCausalLM(configuration(len(words))).eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_adapter(folder, base, seed=1, head=True):
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
