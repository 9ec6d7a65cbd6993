"""Tiny checkpoints with random weights, made on the spot, whose vocabulary is that of the stored
world. With these seeds scores are far apart where their order is stored."""

import json
import re
from collections import Counter

from golden_store import DATA


def _words(lower=True):
    """The 400 most frequent words of the documents."""
    rows = (DATA / "world" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    text = " ".join(json.loads(row)["text"] for row in rows)
    counts = Counter(re.findall(r"[A-Za-z]+", text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:400]
    return tuple(dict.fromkeys(word.lower() for word in frequent)) if lower else tuple(frequent)


def cross_encoder(folder):
    import torch
    from support import checkpoints
    from transformers import BertConfig, BertForSequenceClassification

    words = checkpoints.whole_word_tokenizer(("[Q]", "[D]"), _words())
    words.model_max_length = 128
    torch.manual_seed(3)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    size |= {"num_attention_heads": 4, "initializer_range": 0.3, "num_labels": 1}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), **size))
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    return checkpoints.save_network(folder, model.eval(), words)


def make(name, folder):
    """Save the checkpoint of this name; where it is."""
    from support import checkpoints

    if name == "cross_encoder":
        return cross_encoder(folder)
    cased = _words(lower=False)
    t5 = {"words": (*checkpoints.T5_WORDS, *cased)}
    llama = (*checkpoints.LLAMA_WORDS, *_words()[:200])
    save, settings = {
        "t5": (checkpoints.save_t5, {**t5, "seed": 2}),
        # As many layers on both sides: transformers counts the encoder's where it caches the
        # decoder's.
        "doc2query": (checkpoints.save_t5, {**t5, "seed": 4, "num_decoder_layers": 2}),
        "splade": (
            checkpoints.write_splade,
            {"words": cased, "kind": "distilbert", "seed": 7},
        ),
        "dense": (checkpoints.save_sentence_model, {"words": _words(), "seed": 1}),
        "colbert": (checkpoints.save_multi_vector, {"words": _words(), "seed": 1}),
        "rankllama": (checkpoints.save_rankllama, {"words": llama, "seed": 5}),
    }[name]
    return save(folder, **settings)


CHECKPOINTS = ("t5", "doc2query", "splade", "dense", "colbert", "cross_encoder", "rankllama")
