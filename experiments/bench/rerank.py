"""`python -m experiments.bench.rerank`: pairs a second of our monoT5 and of pyterrier_t5's.

Arguments: `--pairs` (default 1000), `--shape base|3b|tiny` (default base on a CPU, 3b on a GPU),
`--device`, `--exact` (pairs whose float32 scores are compared with single-pair ones, default 100),
`--collection` (a folder in the BEIR layout; default ../shared/data/wikimix), `--write` (put the
tables into docs/benchmarks.md).

Weights are random, of the shape of a published monoT5; speed does not depend on their values. All
systems load one checkpoint and take turns on the same requests, so that noise hits all. The
reference runs at its default (4 pairs a batch) and at its best batch size, which is looked for
first. Order is compared per query, against float32.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table
from scipy.stats import kendalltau

from experiments.bench.measure import machine
from experiments.bench.page import setup_text, table_text, write_section
from experiments.bench.rerank_data import SHAPES, Request, encoder_flops, save_random, workload
from pipelines.neural.devices import choose_device
from pipelines.rerank.base import Pair
from pipelines.rerank.monot5 import MonoT5Scorer
from toolkit.console import Console, tell
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.progress import track

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "transformers", "pyterrier-t5")
SIZES = (1, 2, 4, 8, 16, 32, 64)
DEFAULT = 4
ROUNDS = 4
TOP = 5
System = Callable[[Sequence[Pair]], list[float]]
Rows = list[list[str]]
HEAD = ["system", "pairs/s", "times its best", "times its default", "GFLOP/s", "share of peak"]
ORDER_HEAD = ["scores", "Kendall tau", f"top {TOP} shared", "largest difference"]


def ours(folder: Path, dtype: str, device: str) -> MonoT5Scorer:
    return MonoT5Scorer(str(folder), dtype=dtype, device=device)


def request_by_request(score: System, size: int) -> System:
    """`score`, given `size` pairs a call: what one agent alone asks for."""

    def scored(pairs: Sequence[Pair]) -> list[float]:
        parts = [score(pairs[start : start + size]) for start in range(0, len(pairs), size)]
        return [each for part in parts for each in part]

    return scored


def reference(folder: Path, device: str) -> Callable[[int], System]:
    """pyterrier_t5 on one loaded model, by batch size."""
    kind = require("pyterrier_t5").MonoT5ReRanker
    loaded = kind(tok_model=str(folder), model=str(folder), device=device, verbose=False)

    def system(size: int) -> System:
        def scored(pairs: Sequence[Pair]) -> list[float]:
            loaded.batch_size = size
            frame = pd.DataFrame(pairs, columns=["query", "text"])
            frame = frame.assign(qid="q", docno=[str(row) for row in range(len(frame))])
            found = loaded(frame).set_index("docno")["score"]
            return [float(score) for score in found[frame["docno"]]]

        return scored

    return system


def best_size(by_size: Callable[[int], System], pairs: Sequence[Pair]) -> tuple[int, Rows]:
    """The reference's fastest batch size on the first pairs, and the speed at each."""
    speeds = dict.fromkeys(SIZES, 0.0)

    def try_all(sizes: Sequence[int]) -> None:
        for size in track(sizes, "batch sizes of the reference", len(sizes)):
            speeds[size] = max(speeds[size], len(pairs) / _seconds(by_size(size), pairs))

    try_all(SIZES)
    # The fastest once more, and the better time counts: a disturbance must not choose the size.
    try_all(sorted(SIZES, key=lambda size: -speeds[size])[:3])
    best = max(speeds, key=lambda size: speeds[size])
    return best, [[str(size), f"{speed:.2f}"] for size, speed in speeds.items()]


def take_turns(
    systems: dict[str, System], pairs: Sequence[Pair], warm_up: int = DEFAULT
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Seconds of each system over all pairs, in `ROUNDS` turns, and its scores. Each sees the first
    `warm_up` pairs before."""
    seconds = dict.fromkeys(systems, 0.0)
    scores: dict[str, list[float]] = {name: [] for name in systems}
    size = -(-len(pairs) // ROUNDS)
    starts = range(0, len(pairs), size)
    for score in systems.values():
        score(pairs[:warm_up])
    for start in track(starts, "rounds", len(starts)):
        for name, score in systems.items():
            began = time.perf_counter()
            scores[name] += score(pairs[start : start + size])
            seconds[name] += time.perf_counter() - began
    return seconds, scores


def _seconds(score: System, pairs: Sequence[Pair]) -> float:
    began = time.perf_counter()
    score(pairs)
    return time.perf_counter() - began


def order_rows(
    exact: Sequence[float], others: Mapping[str, Sequence[float]], sizes: Sequence[int]
) -> Rows:
    """How the order within each query agrees with that of the exact scores; means over queries."""
    ends = np.cumsum(sizes)[:-1]
    rows = []
    for name, scores in others.items():
        taus, shared = [], []
        for mine, true in zip(
            np.split(np.array(scores), ends), np.split(np.array(exact), ends), strict=True
        ):
            taus.append(kendalltau(mine, true).statistic)
            tops = [set(np.argsort(-each, kind="stable")[:TOP].tolist()) for each in (mine, true)]
            shared.append(len(tops[0] & tops[1]) / min(TOP, len(mine)))
        largest = float(np.abs(np.array(scores) - np.array(exact)).max())
        rows.append([name, f"{np.mean(taus):.3f}", f"{np.mean(shared):.3f}", f"{largest:.1e}"])
    return rows


def matmul_peak(device: str, dtype: str) -> float:
    """FLOP a second of a large square product, best of some."""
    torch = require("torch")
    side = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(side, side, device=device, dtype=getattr(torch, dtype)) for _ in "ab")
    best = float("inf")
    for _ in range(12):
        began = time.perf_counter()
        a @ b
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return float(2 * side**3 / best)


def matmul_peaks(device: str) -> dict[str, float]:
    return {dtype: matmul_peak(device, dtype) for dtype in ("bfloat16", "float32")}


def name_of(size: int, best: int) -> str:
    """The reference at a batch size, of which `best` is its best."""
    what = {DEFAULT: "default", best: "its best"} if best != DEFAULT else {best: "default and best"}
    return f"pyterrier_t5, {size} pairs a batch ({what[size]})"


def speed_rows(
    seconds: dict[str, float],
    pairs: int,
    flops: float,
    peaks: dict[str, float],
    reference: tuple[str, str],
) -> Rows:
    """One row a system, then the floors. `reference` names its default and its best."""
    default, best = reference
    rows = []
    for name, took in seconds.items():
        peak = peaks["bfloat16" if "bfloat16" in name else "float32"]
        times = [seconds[best] / took, seconds[default] / took]
        rows.append(
            [
                name,
                f"{pairs / took:,.2f}",
                *(f"{each:.2f}" for each in times),
                f"{flops / took / 1e9:,.0f}",
                f"{flops / took / peak:.0%}",
            ]
        )
    for dtype, peak in peaks.items():
        floor = [f"{pairs * peak / flops:,.2f}", "", "", f"{peak / 1e9:,.0f}", "100%"]
        rows.append([f"floor: a large product, {dtype}", *floor])
    return rows


def measure(
    requests: Sequence[Request], folder: Path, shape: str, device: str, exact: int
) -> tuple[list[tuple[list[str], Rows]], str]:
    """The tables, and a line on what the float32 scores differ by."""
    pairs = [Pair(request.query, text) for request in requests for text in request.texts]
    by_size = reference(folder, device)
    size, sizes = best_size(by_size, pairs[: max(SIZES)])
    fast, full = ours(folder, "bfloat16", device), ours(folder, "float32", device)
    alone = f"ours, bfloat16, {len(requests[0].texts)} pairs a call"
    systems: dict[str, System] = {
        "ours, bfloat16": fast.score,
        alone: request_by_request(fast.score, len(requests[0].texts)),
        "ours, float32": full.score,
        **{name_of(each, size): by_size(each) for each in (DEFAULT, size)},
    }
    # A GPU's libraries choose a kernel when they first see a shape.
    warm_up = DEFAULT if device == "cpu" else len(pairs) // ROUNDS
    before = matmul_peaks(device)
    seconds, scores = take_turns(systems, pairs, warm_up)
    # The machine's speed changes with what else it does: the better of before and after.
    peaks = {name: max(peak, before[name]) for name, peak in matmul_peaks(device).items()}
    lengths = [len(prompt.ids) for prompt in full._prompts.encode(pairs)]
    flops = encoder_flops(shape, lengths)
    named = name_of(DEFAULT, size), name_of(size, size)
    speeds = speed_rows(seconds, len(pairs), flops, peaks, named)
    single = by_size(1)(pairs[:exact])
    off = float(np.abs(np.array(single) - np.array(scores["ours, float32"][: len(single)])).max())
    others = {name: each for name, each in scores.items() if name not in (alone, "ours, float32")}
    counts = [len(request.texts) for request in requests]
    order = order_rows(scores["ours, float32"], others, counts)
    said = (
        f"{len(pairs)} pairs, {np.mean(lengths):.0f} tokens a prompt (median "
        f"{np.median(lengths):.0f}, largest {max(lengths)}). Our float32 scores differ from "
        f"pyterrier_t5's single-pair scores by at most {off:.1e} on {len(single)} pairs."
    )
    tables = [
        (HEAD, speeds),
        (ORDER_HEAD, order),
        (["pairs a batch", "pyterrier_t5's pairs/s"], sizes),
    ]
    return tables, said


def device_name(device: str) -> str:
    if device == "cpu":
        return f"{machine()}, {require('torch').get_num_threads()} threads"
    return f"{require('torch').cuda.get_device_name(device)}, {machine()}"


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.rerank")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--exact", type=int, default=100)
    parser.add_argument("--shape", choices=list(SHAPES))
    parser.add_argument("--device")
    parser.add_argument("--collection", type=Path, default=_data_root() / "wikimix")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    options = parser.parse_args(arguments)
    for name in ("pairs", "exact"):
        if getattr(options, name) < 1:
            raise InputError(f"{name}={getattr(options, name)}", valid="1 or more")
    device = str(choose_device(options.device))
    shape = options.shape or ("base" if device == "cpu" else "3b")
    requests, tokenizer = workload(ROOT / "bench-data", options.collection, options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), shape, tokenizer)
        tables, said = measure(requests, Path(folder), shape, device, options.exact)
    console = Console()
    for head, rows in tables:
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(said, highlight=False)
    if options.write:
        command = f"{parser.prog} --pairs {options.pairs} --exact {options.exact} --shape {shape}"
        setup = setup_text(f"{command} --write", _PACKAGES, device_name(device))
        setup += f" Random weights of monoT5-{shape}'s shape."
        texts = [table_text(head, rows) for head, rows in tables]
        kind = "cpu" if device == "cpu" else "gpu"
        title = "Re-ranking on a CPU" if kind == "cpu" else "Re-ranking on a GPU"
        write_section(f"rerank-{kind}", title, [setup, said, *texts])


def _data_root() -> Path:
    return Path(os.environ.get("SOUNDINGLINE_DATA", ROOT.parent / "shared" / "data"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        tell(str(error))
        sys.exit(2)
