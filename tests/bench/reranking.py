"""monoT5: ours against pyterrier_t5's re-ranker on the same checkpoint and requests."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from data import rerank_requests
from harness import Table, benchmark, interleaved, load, median_range, product_peak
from scipy.stats import kendalltau

from soundingline.pipelines.models import choose_device
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.optional import import_optional

# Of castorini/monot5-base-msmarco, -small- and -3b-; `tiny` is for trying the benchmark.
SHAPES = {
    "base": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "small": {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "3b": {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32},
    "tiny": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
}
SIZES, DTYPES, TOP = (1, 4, 16, 64), ("bfloat16", "float32"), 5


@benchmark(
    "Re-ranking",
    packages=("torch", "transformers", "pyterrier-t5"),
    pairs=(1000, 24),
    exact=(100, 8),
    rounds=(5, 3),
    threads=(1, 1),
    options={"shape": {"choices": list(SHAPES)}, "device": {}},
)
def rerank(options):
    """Pairs a second of random weights in a published shape. pyterrier_t5 runs at its default of
    four pairs a batch and at its best size. Our float32 scores of --exact pairs are compared with
    the reference's scores of single pairs, and orders within a query with our float32's."""
    import_optional("torch").set_num_threads(options.threads)
    device = str(choose_device(options.device))
    shape = options.shape or ("base" if device == "cpu" else "3b")
    requests, tokenizer = rerank_requests(options.pairs)
    pairs = [Pair(query, text) for query, texts in requests for text in texts]
    clock = time.process_time if device == "cpu" else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        _save(folder, shape, tokenizer)
        systems, references = {}, {}
        for dtype in DTYPES:
            ours = MonoT5(folder, dtype=dtype, device=device)
            reference = references[dtype] = _reference(folder, device, dtype)
            tried = {size: partial(reference, size=size) for size in SIZES}
            seconds, _ = interleaved(tried, [[pairs[: max(SIZES)]]] * 2, clock=clock)
            best = min(SIZES, key=lambda size: min(seconds[size]))
            systems[f"ours, {dtype}"] = ours.score
            for size in {4, best}:
                systems[f"pyterrier_t5, {dtype}, {size} pairs a batch"] = tried[size]
        size = -(-len(pairs) // options.rounds)
        rounds = [[pairs[start : start + size]] for start in range(0, len(pairs), size)]
        seconds, results = interleaved(systems, rounds, [pairs[:4]], clock)
        single = references["float32"](pairs[: options.exact], size=1)
    scores = {name: np.concatenate(of) for name, of in results.items()}
    exact = scores["ours, float32"]
    largest = np.abs(np.array(single) - exact[: len(single)]).max()
    ends = np.cumsum([len(texts) for _, texts in requests])[:-1]
    rows = []
    for name, taken in seconds.items():
        dtype = next(dtype for dtype in DTYPES if dtype in name)
        default = seconds[f"pyterrier_t5, {dtype}, 4 pairs a batch"]
        ratio = [theirs / own for theirs, own in zip(default, taken, strict=True)]
        taus = [
            kendalltau(a, b).statistic
            for a, b in zip(np.split(scores[name], ends), np.split(exact, ends), strict=True)
        ]
        row = [name, f"{len(pairs) / sum(taken):,.2f}", median_range(ratio, 2)]
        rows.append([*row, f"{np.mean(taus):.3f}"])
    peaks = ", ".join(f"{dtype} {product_peak(device, dtype) / 1e9:,.0f}" for dtype in DTYPES)
    yield (
        f"Random weights of monoT5-{shape}'s shape, {len(pairs)} pairs on {device}, "
        f"{options.threads} threads; seconds of the processor on a CPU. A large product reaches "
        f"{peaks} GFLOP/s. Our float32 scores differ from pyterrier_t5's scores of single pairs by "
        f"at most {largest:.1e} on {len(single)} pairs. {load()}"
    )
    head = ["system", "pairs/s", "times pyterrier_t5's default", "Kendall tau to our float32"]
    yield Table(head, rows)


def _save(folder, shape, tokenizer):
    torch, transformers = import_optional("torch"), import_optional("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=32_128, n_positions=512, decoder_start_token_id=0, **SHAPES[shape]
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    transformers.T5Tokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def _reference(folder, device, dtype):
    """pyterrier_t5's re-ranker as a function of pairs and batch size."""
    reranker = import_optional("pyterrier_t5").MonoT5ReRanker(
        tok_model=str(Path(folder)), model=str(Path(folder)), device=device, verbose=False
    )
    reranker.model.to(getattr(import_optional("torch"), dtype))

    def scored(pairs, size):
        reranker.batch_size = size
        frame = pd.DataFrame(list(pairs), columns=["query", "text"])
        frame = frame.assign(qid="q", docno=[str(row) for row in range(len(frame))])
        scores = reranker(frame).set_index("docno")["score"]
        return [float(score) for score in scores[frame["docno"]]]

    return scored
