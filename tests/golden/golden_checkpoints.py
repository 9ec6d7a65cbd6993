"""Tiny checkpoints with random weights, made on the spot, whose vocabulary is that of the stored
world. With these seeds scores are far apart where their order is stored."""

from __future__ import annotations

import json
import re
from collections import Counter
from unittest.mock import patch

from golden_store import DATA


def frequent_words(most=400):
    """The most frequent words of the documents."""
    rows = (DATA / "world" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    text = " ".join(json.loads(row)["text"] for row in rows)
    counts = Counter(re.findall(r"[A-Za-z]+", text))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:most])


def t5(folder):
    from support import checkpoints

    return checkpoints.save_t5(folder, words=(*checkpoints.T5_WORDS, *frequent_words()), seed=2)


def doc2query(folder):
    """As many layers on both sides: transformers counts the encoder's where it caches the
    decoder's."""
    from support import checkpoints

    words = (*checkpoints.T5_WORDS, *frequent_words())
    return checkpoints.save_t5(folder, words=words, seed=4, num_decoder_layers=2)


def splade(folder):
    from support import checkpoints

    return checkpoints.write_splade(folder, words=frequent_words(), kind="distilbert", seed=7)


def dense(folder):
    from support import checkpoints

    with patch.object(checkpoints, "EMBEDDER_WORDS", _lower()):
        return checkpoints.save_sentence_model(folder, seed=1)


def colbert(folder):
    from support import checkpoints

    with patch.object(checkpoints, "EMBEDDER_WORDS", _lower()):
        return checkpoints.save_multi_vector(folder, seed=1)


def cross_encoder(folder):
    import torch
    from support import checkpoints
    from transformers import BertConfig, BertForSequenceClassification

    with patch.object(checkpoints, "EMBEDDER_WORDS", _lower()):
        words = checkpoints.whole_word_tokenizer(("[Q]", "[D]"))
    words.model_max_length = 128
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
        num_labels=1,
    )
    model = BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    model.eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def rankllama(folder):
    from support import checkpoints

    words = checkpoints.llama_tokenizer((*checkpoints.LLAMA_WORDS, *_lower()[:200]))
    with patch.object(checkpoints, "llama_tokenizer", lambda: words):
        return checkpoints.save_rankllama(folder, seed=5)


def _lower():
    return tuple(dict.fromkeys(word.lower() for word in frequent_words()))


CHECKPOINTS = {
    "t5": t5,
    "doc2query": doc2query,
    "splade": splade,
    "dense": dense,
    "colbert": colbert,
    "cross_encoder": cross_encoder,
    "rankllama": rankllama,
}
