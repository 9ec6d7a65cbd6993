"""An encoding tokenizes each text once, whatever the kind of its model."""

from __future__ import annotations

from collections import Counter

import pytest
import tiny_embedder
import tiny_splade

transformers = pytest.importorskip("transformers")

from soundingline.pipelines.learned.colbert_encoder import ColbertEncoder  # noqa: E402
from soundingline.pipelines.learned.dense_encoder import DenseEncoder  # noqa: E402
from soundingline.pipelines.learned.encoding import encode_corpus  # noqa: E402
from soundingline.pipelines.learned.splade_model import SpladeEncoder  # noqa: E402
from soundingline.toolkit.data import Unit  # noqa: E402

EXACT = {"dtype": "float32", "device": "cpu"}


def encoder(kind, folder):
    if kind == "sentence":
        return DenseEncoder(str(tiny_embedder.save_sentence_model(folder)), **EXACT)
    if kind == "pooled":
        return DenseEncoder(str(tiny_embedder.save_bert(folder)), pooling="mean", **EXACT)
    if kind == "colbert":
        return ColbertEncoder(str(tiny_embedder.save_multi_vector(folder)), **EXACT)
    return SpladeEncoder(str(tiny_splade.write_splade(folder / "splade")), max_length=64, **EXACT)


@pytest.mark.parametrize("kind", ["sentence", "pooled", "colbert", "splade"])
def test_each_text_is_tokenized_once(kind, tmp_path, monkeypatch):
    made = encoder(kind, tmp_path)
    made.lengths([""])
    texts = Counter()
    base = transformers.PreTrainedTokenizerBase
    call = base.__call__

    def counted(self, text, *more, **others):
        texts.update([text] if isinstance(text, str) else text)
        return call(self, text, *more, **others)

    monkeypatch.setattr(base, "__call__", counted)
    units = [Unit(f"d{n}", "", f"the old mill {'by the river ' * n}") for n in range(12)]
    encode_corpus(units, made, tmp_path / "work", corpus_fingerprint="c")
    read = [text for text in texts.elements() if "mill" in text]
    assert len(read) == len(set(read)) == len(units)
