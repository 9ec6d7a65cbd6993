"""The encoding benchmark on a few documents and a tiny encoder."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import tiny_embedder

from soundingline.experiments.bench import encode, harness
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
# Not imported here: that takes seconds in each worker of the suite.
pytestmark = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)


@pytest.fixture
def benchmark(tmp_path, beir, monkeypatch):
    """Runs the benchmark with a tiny encoder on few documents; gives the page that it writes."""
    monkeypatch.setattr(harness, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(encode, "SIZES", dict.fromkeys(encode.SIZES, (2,)))
    monkeypatch.setattr(encode, "matmul_peak", lambda device, dtype: 1e9)
    model = tiny_embedder.save_sentence_model(tmp_path / "models")
    small = ["--documents", "8", "--rounds", "1", "--model", str(model), "--collection", str(beir)]

    def run(*arguments):
        encode.main([*small, *arguments, "--write"])
        return (tmp_path / "benchmarks.md").read_text()

    return run


def test_the_benchmark_writes_its_section(benchmark, tmp_path):
    text = benchmark("--threads", "1")
    assert "<!-- bench:encode -->" in text and str(tmp_path) not in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ours, float32")]
    assert len(rows) == 2  # dense and SPLADE
    for row in rows:
        assert float(row[-1].rstrip(" |")) > 0.99999


def test_ratios_are_within_a_precision_and_of_processor_seconds():
    turns = {
        "library": [encode.Turn(9.0, 4.0), encode.Turn(5.0, 2.0), encode.Turn(7.0, 3.0)],
        "ours": [encode.Turn(2.0, 1.0), encode.Turn(8.0, 2.0), encode.Turn(4.0, 1.5)],
    }
    vectors = np.array([[3.0, 4.0], [1.0, 0.0]])
    results = {"library": vectors, "ours": np.array([[6.0, 8.0], [1.0, 1.0]])}
    rival = {"library": "library", "ours": "library"}
    peaks = {"library": 2e9, "ours": 4e9}
    rows = encode.rows(turns, results, rival, 12, 3e9, peaks)
    assert rows[0] == ["library", "1.7 (1.3 to 2.4)", "4.0", "1.00", "1 (50%)", "1.00000"]
    assert rows[1] == ["ours", "3.0 (1.5 to 6.0)", "8.0", "2.00", "2 (50%)", f"{2**-0.5:.5f}"]


def test_a_decoder_with_random_weights_is_encoded_by_both(benchmark):
    text = benchmark("--shape", "tiny")
    assert "<!-- bench:encode-tiny -->" in text and "--shape tiny --write`" in text
    (row,) = [line.split(" | ") for line in text.splitlines() if line.startswith("| ours, float32")]
    assert float(row[-1].rstrip(" |")) > 0.99999


def test_work_is_that_of_linear_layers_and_attention():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3}
    network = BertModel(BertConfig(vocab_size=9, num_attention_heads=2, **sizes))
    # A layer: four products of 8 by 8, two of 8 by 16; scores and sums of 8 numbers a pair.
    layer = [2 * n * (4 * 64 + 2 * 128) + 4 * 8 * n * n for n in (5, 2)]
    assert encode.flops(network, [5, 2]) == 3 * sum(layer)


def test_a_missing_collection_is_told(tmp_path):
    with pytest.raises(InputError, match="there is no collection"):
        encode.texts_of(tmp_path / "none", 8)
