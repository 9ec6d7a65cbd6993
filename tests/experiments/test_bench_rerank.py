"""The re-ranking benchmark on a collection of its own and the tiny shape."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tiny_t5

from soundingline.experiments.bench import harness, rerank, rerank_data
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
# Not imported here: that takes a second in each worker of the suite.
pytestmark = pytest.mark.skipif(
    find_spec("pyterrier_t5") is None, reason="pyterrier-t5 is not installed"
)


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    chance = np.random.default_rng(0)
    words = [f"{a}{b}{c}" for a in "bdg" for b in "aeiou" for c in "lmnrs"]
    folder = tmp_path_factory.mktemp("data") / "few"
    (folder / "qrels").mkdir(parents=True)
    texts = [" ".join(chance.choice(words, 5 + number % 60)) + "." for number in range(200)]
    corpus = [{"_id": f"d{n}", "title": "mill", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(texts[n].split()[:4])} for n in range(20)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = "\n".join(map(json.dumps, rows))
        (folder / f"{name}.jsonl").write_text(lines + "\n")
    judged = "".join(f"q{n}\td{n}\t1\n" for n in range(20))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def test_requests_hold_the_pairs_asked_for_and_are_made_once(tmp_path, collection):
    requests, tokenizer = rerank_data.workload(tmp_path, collection, 70)
    assert sum(len(each.texts) for each in requests) == 70
    assert max(len(each.texts) for each in requests) <= 50
    assert len({each.query for each in requests}) == len(requests)
    assert all(text.startswith("mill\n") for each in requests for text in each.texts)
    opened = transformers.T5Tokenizer.from_pretrained(tokenizer)
    ids = opened(requests[0].texts[0]).input_ids
    assert opened.unk_token_id not in ids
    assert opened("true").input_ids[0] != opened("false").input_ids[0]
    assert rerank_data.workload(tmp_path, Path("gone") / "few", 70)[0] == requests
    with pytest.raises(InputError, match="there is no collection"):
        rerank_data.workload(tmp_path, tmp_path / "other", 70)


def test_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    config = tiny_t5.configuration(100, **rerank_data.SHAPES["tiny"])
    encoder = transformers.T5ForConditionalGeneration(config).encoder
    encoder.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        for length in (30, 50):
            encoder(torch.ones((1, length), dtype=torch.long))
    assert rerank_data.encoder_flops("tiny", [30, 50]) == counted.get_total_flops()


def test_the_fastest_batch_size_is_found(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])

    def by_size(size):
        def scored(pairs):
            clock[0] += 1 + abs(size - 16)
            return [0.0] * len(pairs)

        return scored

    best, rows = rerank.best_size(by_size, [Pair("", "")] * 64)
    assert best == 16
    assert rows[rerank.SIZES.index(16)] == ["16", "64.00"]
    assert rows[0] == ["1", "4.00"]


def test_systems_take_turns_over_all_pairs():
    pairs = [Pair("q", str(number)) for number in range(10)]
    calls = []

    def system(name):
        def scored(request):
            calls.append((name, len(request)))
            return [float(pair.text) for pair in request]

        return scored

    systems = {"a": system("a"), "b": rerank.request_by_request(system("b"), 2)}
    seconds, scores = rerank.time_and_scores(systems, pairs)
    assert scores == {"a": [*map(float, range(10))], "b": [*map(float, range(10))]}
    timed = calls[3:]
    assert [size for name, size in timed if name == "a"] == [2, 2, 2, 2, 2]
    assert [name for name, _ in timed[:4]] == ["a", "b", "a", "b"]
    assert [len(turns) for turns in seconds.values()] == [5, 5]


def test_order_is_compared_within_each_query():
    exact = [4.0, 3.0, 2.0, 1.0, 30.0, 20.0]
    swapped = [3.0, 4.0, 2.0, 1.0, 2.0, 1.0]
    rows = rerank.order_rows(exact, {"same": exact, "swapped": swapped}, [4, 2])
    # One of six pairs is out of order in the first query, none in the second.
    assert rows[0] == ["same", "1.000", "1.000", "0.0e+00"]
    assert rows[1] == ["swapped", f"{(4 / 6 + 1) / 2:.3f}", "1.000", "2.8e+01"]


def test_speed_is_told_in_multiples_of_the_reference_and_of_the_peak():
    names = {
        dtype: (f"best, {dtype}", f"default, {dtype}", f"plain, {dtype}") for dtype in rerank.DTYPES
    }
    times = {"bfloat16": (4.0, 6.0, 1.5), "float32": (8.0, 12.0, 10.0)}
    seconds = {"ours, bfloat16": [0.2, 0.3, 0.5], "ours, float32": [1.0, 2.0, 2.0]}
    for dtype, rivals in names.items():
        for rival, turn in zip(rivals, times[dtype], strict=True):
            seconds[rival] = [turn / 4, turn / 4, turn / 2]
    peaks = {"bfloat16": 1e10, "float32": 2.5e9}
    rows = rerank.speed_rows(seconds, 100, 5e9, peaks, names)
    ratios = "4.00 (3.33–5.00)", "6.00 (5.00–7.50)", "1.50 (1.25–1.88)"
    assert rows[0] == ["ours, bfloat16", "100.00", *ratios, "5", "50%"]
    ratios = "2.00 (1.00–2.00)", "3.00 (1.50–3.00)", "2.50 (1.25–2.50)"
    assert rows[1] == ["ours, float32", "20.00", *ratios, "1", "40%"]
    ratios = "1.00 (1.00–1.00)", "1.50 (1.50–1.50)", "0.38 (0.38–0.38)"
    assert rows[2] == ["best, bfloat16", "25.00", *ratios, "1", "12%"]
    assert rows[8] == ["floor: a large product, bfloat16", "200.00", "", "", "", "10", "100%"]


def test_a_default_that_is_best_is_one_system():
    prefix = "pyterrier_t5, float32,"
    assert rerank.name_of(4, 4, "float32") == f"{prefix} 4 pairs a batch (default and best)"
    assert rerank.name_of(4, 16, "float32") == f"{prefix} 4 pairs a batch (default)"
    assert rerank.name_of(16, 16, "float32") == f"{prefix} 16 pairs a batch (its best)"


def test_the_whole_benchmark_writes_its_section(
    tmp_path,
    collection,
    monkeypatch,
    capsys,
):
    torch.set_num_threads(2)
    monkeypatch.setattr(rerank, "DATA", tmp_path)
    monkeypatch.setattr(rerank, "SIZES", (1, 4))
    monkeypatch.setattr(rerank, "matmul_peak", lambda device, dtype: 1e9)
    page = tmp_path / "benchmarks.md"
    monkeypatch.setattr(harness, "PAGE", page)
    arguments = ["--pairs", "60", "--exact", "9", "--shape", "tiny", "--device", "cpu"]
    rerank.main([*arguments, "--threads", "1", "--collection", str(collection), "--write"])
    text = page.read_text()
    assert "--threads 1 " in text and ", 1 threads," in text
    assert "<!-- bench:rerank-cpu -->" in text
    assert "60 pairs" in text and "on 9 pairs" in text
    off = float(text.split("by at most ")[1].split()[0])
    assert off < 1e-4
    assert str(tmp_path) not in text
    systems = (
        "| ours, bfloat16 |",
        "| ours, float32 |",
        "best) |",
        "| T5ForConditionalGeneration,",
    )
    for row in (*systems, "pyterrier_t5, bfloat16, 4 pairs a batch (default"):
        assert row in text
    assert "Kendall tau" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["pairs", "exact"])
def test_numbers_of_pairs_are_checked(name):
    with pytest.raises(InputError, match=f"{name}=0"):
        rerank.main([f"--{name}", "0"])
