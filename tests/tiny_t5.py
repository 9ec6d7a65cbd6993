"""A monoT5 of a few thousand parameters, made on the spot: random weights, and T5's own tokenizer
class with a vocabulary of whole words and single characters."""

from __future__ import annotations

WORDS = (
    *("Query", "Document", "Relevant", "true", "false"),
    *("the", "old", "mill", "stands", "by", "river", "who", "built", "stone", "bridge", "in"),
)
SPACE = "▁"


def tokenizer(words=WORDS):
    """Each of the words is one token, all other words one token a character."""
    from transformers import T5Tokenizer

    characters = [chr(number) for number in range(33, 127)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SPACE, -8.0)]
    pieces += [(each, -10.0) for each in characters]
    pieces += [(f"{SPACE}{each}", -5.0) for each in dict.fromkeys(words) if len(each) > 1]
    return T5Tokenizer(vocab=pieces, extra_ids=0)


def configuration(vocabulary, **changed):
    from transformers import T5Config

    sizes = {
        "vocab_size": vocabulary,
        "d_model": 32,
        "d_kv": 12,
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "n_positions": 512,
        "decoder_start_token_id": 0,
        # Large, so that layers matter beside the residual stream.
        "initializer_factor": 2.0,
    }
    return T5Config(**{**sizes, **changed})


def save_t5(folder, seed=0, words=WORDS, own=True, **changed):
    """A checkpoint with random weights, norms' too, and (`own`) its tokenizer. Scores differ from
    text to text, by some tenths."""
    import torch
    from transformers import T5ForConditionalGeneration

    tokens = tokenizer(words)
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(configuration(len(tokens), **changed))
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
