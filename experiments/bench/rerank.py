"""`python -m soundingline.experiments.bench.rerank`: pairs a second of our monoT5 and of
pyterrier_t5's.

Arguments: `--pairs` (default 1000), `--shape base|small|3b|tiny` (default base on a CPU, 3b on a
GPU), `--device`, `--clock wall|processor`, `--exact` (pairs whose float32 scores are compared with
single-pair ones, default 100), `--threads` (default 0: torch's own), `--collection` (a folder in
the BEIR layout; default ../shared/data/wikimix), `--write` (put the tables into
docs/benchmarks.md).

Weights are random, of the shape of a published monoT5; speed does not depend on their values. All
systems load one checkpoint and take turns on the same requests, so that noise hits all. Ours, the
reference at its default (4 pairs a batch) and at its best batch size, which is looked for first,
and plain T5 on batches by length run in both precisions. Ratios are taken within a precision, on
the pairs of each turn: their median, least and most. Order is compared per query, against float32.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from soundingline.experiments.bench.harness import (
    DATA,
    Arguments,
    Section,
    Table,
    device_name,
    load,
    matmul_peak,
    report,
    run,
    spread,
    take_turns,
)
from soundingline.experiments.bench.rerank_data import (
    SHAPES,
    Request,
    data_root,
    encoder_flops,
    save_random,
    workload,
)
from soundingline.pipelines.models import choose_device, in_batches
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.optional import import_optional

_PACKAGES = ("torch", "transformers", "pyterrier-t5")
SIZES = (1, 2, 4, 8, 16, 32, 64)
DEFAULT = 4
ROUNDS = 5
TOP = 5
DTYPES = ("bfloat16", "float32")
System = Callable[[Sequence[Pair]], list[float]]
Clock = Callable[[], float] | None
# Processor seconds do not change with what else a machine does, where one thread computes.
CLOCKS: dict[str, Clock] = {"wall": None, "processor": time.process_time}
Rows = list[list[str]]
# Every ratio is to a system of the same precision.
HEAD = [
    "system",
    "pairs/s",
    "times pyterrier_t5's best",
    "times its default",
    "times T5 by length",
    "GFLOP/s",
    "share of peak",
]
ORDER_HEAD = ["scores", "Kendall tau", f"top {TOP} shared", "largest difference"]


def ours(folder: Path, dtype: str, device: str) -> MonoT5:
    return MonoT5(str(folder), dtype=dtype, device=device)


def request_by_request(score: System, size: int) -> System:
    """`score`, given `size` pairs a call: what one agent alone asks for."""

    def scored(pairs: Sequence[Pair]) -> list[float]:
        scores: list[float] = []
        for start in range(0, len(pairs), size):
            scores += score(pairs[start : start + size])
        return scores

    return scored


def reference(folder: Path, device: str, dtype: str = "float32") -> Callable[[int], System]:
    """pyterrier_t5 on one loaded model, by batch size."""
    MonoT5ReRanker = import_optional("pyterrier_t5").MonoT5ReRanker
    reranker = MonoT5ReRanker(
        tok_model=str(folder), model=str(folder), device=device, verbose=False
    )
    reranker.model.to(getattr(import_optional("torch"), dtype))

    def system(size: int) -> System:
        def scored(pairs: Sequence[Pair]) -> list[float]:
            reranker.batch_size = size
            frame = pd.DataFrame(pairs, columns=["query", "text"])
            frame = frame.assign(qid="q", docno=[str(row) for row in range(len(frame))])
            scores = reranker(frame).set_index("docno")["score"]
            return [float(score) for score in scores[frame["docno"]]]

        return scored

    return system


def plain(folder: Path, dtype: str, device: str) -> System:
    """transformers' T5 as it is, one decoder step, on our prompts: by length, in batches of the
    tokens that ours takes, padded behind and masked."""
    torch, transformers = import_optional("torch"), import_optional("transformers")
    model = transformers.T5ForConditionalGeneration.from_pretrained(
        folder, dtype=getattr(torch, dtype)
    )
    model.to(device).eval()
    ours_too = ours(folder, dtype, device)
    answers, pad = list(ours_too._prompts.answers), torch.nn.utils.rnn.pad_sequence

    def batch(prompts: Sequence[Sequence[int]]) -> list[float]:
        rows = [torch.tensor(ids, device=device) for ids in prompts]
        with torch.inference_mode():
            logits = model(
                input_ids=pad(rows, batch_first=True),
                attention_mask=pad([torch.ones_like(row) for row in rows], batch_first=True),
                decoder_input_ids=torch.zeros((len(rows), 1), dtype=torch.long, device=device),
                use_cache=False,
            ).logits[:, 0, answers]
        scores: list[float] = logits.float().log_softmax(-1)[:, 0].tolist()
        return scores

    def scored(pairs: Sequence[Pair]) -> list[float]:
        ids = [prompt.ids for prompt in ours_too._prompts.encode(pairs)]
        return in_batches(batch, ids, list(map(len, ids)), ours_too.placement.batch_tokens)

    return scored


def best_size(
    by_size: Callable[[int], System], pairs: Sequence[Pair], clock: Clock = None
) -> tuple[int, Rows]:
    """The reference's fastest batch size on the first pairs, and the speed at each."""
    speeds = dict.fromkeys(SIZES, 0.0)

    def try_all(sizes: Sequence[int]) -> None:
        systems = {str(size): by_size(size) for size in sizes}
        for name, turns in take_turns(systems, [[pairs]], clock=clock).items():
            speeds[int(name)] = max(speeds[int(name)], len(pairs) / turns.seconds[0])

    try_all(SIZES)
    # The fastest once more, and the better time counts: a disturbance must not choose the size.
    try_all(sorted(SIZES, key=lambda size: -speeds[size])[:3])
    best = max(speeds, key=lambda size: speeds[size])
    return best, [[str(size), f"{speed:.2f}"] for size, speed in speeds.items()]


def time_and_scores(
    systems: dict[str, System],
    pairs: Sequence[Pair],
    warm_up: int = DEFAULT,
    clock: Clock = None,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each system in each of `ROUNDS` turns, which share the pairs, and its scores. Each
    sees the first `warm_up` pairs before."""
    size = -(-len(pairs) // ROUNDS)
    rounds = [[pairs[start : start + size]] for start in range(0, len(pairs), size)]
    turns = take_turns(systems, rounds, [pairs[:warm_up]], "rounds", clock)
    seconds = {name: turn.seconds for name, turn in turns.items()}
    scores = {name: list(chain.from_iterable(turn.results)) for name, turn in turns.items()}
    return seconds, scores


def order_rows(
    exact: Sequence[float], others: Mapping[str, Sequence[float]], sizes: Sequence[int]
) -> Rows:
    """How the order within each query agrees with that of the exact scores; means over queries."""
    ends = np.cumsum(sizes)[:-1]
    rows = []
    for name, scores in others.items():
        taus, shared = [], []
        by_query = np.split(np.array(scores), ends), np.split(np.array(exact), ends)
        for approximate, true in zip(*by_query, strict=True):
            taus.append(kendalltau(approximate, true).statistic)
            shared.append(len(_top(approximate) & _top(true)) / min(TOP, len(true)))
        largest = float(np.abs(np.array(scores) - np.array(exact)).max())
        rows.append([name, f"{np.mean(taus):.3f}", f"{np.mean(shared):.3f}", f"{largest:.1e}"])
    return rows


def _top(scores: np.ndarray) -> set[int]:
    return set(np.argsort(-scores, kind="stable")[:TOP].tolist())


def matmul_peaks(device: str) -> dict[str, float]:
    return {dtype: matmul_peak(device, dtype) for dtype in ("bfloat16", "float32")}


def name_of(size: int, best: int, dtype: str) -> str:
    """The reference at a batch size, of which `best` is its best."""
    what = {DEFAULT: "default", best: "its best"} if best != DEFAULT else {best: "default and best"}
    return f"pyterrier_t5, {dtype}, {size} pairs a batch ({what[size]})"


def plain_name(dtype: str) -> str:
    return f"T5ForConditionalGeneration, {dtype}, batches by length"


def speed_rows(
    seconds: Mapping[str, Sequence[float]],
    pairs: int,
    flops: float,
    peaks: dict[str, float],
    rivals: Mapping[str, Sequence[str]],
) -> Rows:
    """One row a system, then the floors. `seconds`: of each turn. `rivals`: by precision, the names
    of the reference at its best and at its default, and of T5 by length."""
    rows = []
    for name, turns in seconds.items():
        dtype, taken = dtype_of(name), sum(turns)
        ratios = [
            [theirs / own for theirs, own in zip(seconds[rival], turns, strict=True)]
            for rival in rivals[dtype]
        ]
        rows.append(
            [
                name,
                f"{pairs / taken:,.2f}",
                *(spread(ratio, 2) for ratio in ratios),
                f"{flops / taken / 1e9:,.0f}",
                f"{flops / taken / peaks[dtype]:.0%}",
            ]
        )
    for dtype, peak in peaks.items():
        floor = [f"{pairs * peak / flops:,.2f}", "", "", "", f"{peak / 1e9:,.0f}", "100%"]
        rows.append([f"floor: a large product, {dtype}", *floor])
    return rows


def dtype_of(name: str) -> str:
    return "bfloat16" if "bfloat16" in name else "float32"


def measure(
    requests: Sequence[Request],
    folder: Path,
    shape: str,
    device: str,
    exact: int,
    clock: Clock = None,
) -> tuple[str, list[Table]]:
    """A line on what the float32 scores differ by, and the tables."""
    pairs = [Pair(request.query, text) for request in requests for text in request.texts]
    references = {dtype: reference(folder, device, dtype) for dtype in DTYPES}
    measured = {
        dtype: best_size(by_size, pairs[: max(SIZES)], clock)
        for dtype, by_size in references.items()
    }
    fast, full = ours(folder, "bfloat16", device), ours(folder, "float32", device)
    alone = f"ours, bfloat16, {len(requests[0].texts)} pairs a call"
    systems: dict[str, System] = {
        "ours, bfloat16": fast.score,
        alone: request_by_request(fast.score, len(requests[0].texts)),
        "ours, float32": full.score,
        **{plain_name(dtype): plain(folder, dtype, device) for dtype in DTYPES},
        **{
            name_of(batch, measured[dtype][0], dtype): references[dtype](batch)
            for dtype in DTYPES
            for batch in (DEFAULT, measured[dtype][0])
        },
    }
    # A GPU's libraries choose a kernel when they first see a shape.
    warm_up = DEFAULT if device == "cpu" else len(pairs) // ROUNDS
    before = matmul_peaks(device)
    seconds, scores = time_and_scores(systems, pairs, warm_up, clock)
    # The machine's speed changes with what else it does: the better of before and after.
    peaks = {name: max(peak, before[name]) for name, peak in matmul_peaks(device).items()}
    lengths = [len(prompt.ids) for prompt in full._prompts.encode(pairs)]
    flops = encoder_flops(shape, lengths)
    rivals = {
        dtype: (name_of(size, size, dtype), name_of(DEFAULT, size, dtype), plain_name(dtype))
        for dtype, (size, _) in measured.items()
    }
    speeds = speed_rows(seconds, len(pairs), flops, peaks, rivals)
    single = references["float32"](1)(pairs[:exact])
    off = float(np.abs(np.array(single) - np.array(scores["ours, float32"][: len(single)])).max())
    compared = scores.keys() - {alone, "ours, float32"}
    others = {name: values for name, values in scores.items() if name in compared}
    counts = [len(request.texts) for request in requests]
    order = order_rows(scores["ours, float32"], others, counts)
    summary = (
        f"{len(pairs)} pairs, {np.mean(lengths):.0f} tokens a prompt (median "
        f"{np.median(lengths):.0f}, largest {max(lengths)}). Our float32 scores differ from "
        f"pyterrier_t5's single-pair scores by at most {off:.1e} on {len(single)} pairs."
    )
    tables = [
        Table(HEAD, speeds),
        Table(ORDER_HEAD, order),
        Table(
            ["pairs a batch", *(f"pyterrier_t5's pairs/s, {dtype}" for dtype in DTYPES)],
            [
                [row[0], *(rows[number][1] for _, rows in measured.values())]
                for number, row in enumerate(measured["float32"][1])
            ],
        ),
    ]
    return summary, tables


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its tables."""
    parser = Arguments("rerank", pairs=(1000, 1), exact=(100, 1), threads=(0, 0))
    parser.add_argument("--shape", choices=list(SHAPES))
    parser.add_argument("--device")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--collection", type=Path, default=data_root() / "wikimix")
    options = parser.read(arguments)
    if options.threads:
        import_optional("torch").set_num_threads(options.threads)
    device = str(choose_device(options.device))
    shape = options.shape or ("base" if device == "cpu" else "3b")
    requests, tokenizer = workload(DATA, options.collection, options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), shape, tokenizer)
        clock = CLOCKS[options.clock]
        summary, tables = measure(requests, Path(folder), shape, device, options.exact, clock)
    remark = f"Random weights of monoT5-{shape}'s shape."
    if clock:
        remark += f" Seconds are those of the processor. {load()}"
    kind = "CPU" if device == "cpu" else "GPU"
    section = Section(
        f"rerank-{kind.lower()}",
        f"Re-ranking on a {kind}",
        parser.command(options, f"--shape {shape}", f"--clock {options.clock}"),
        [f"{remark} {summary}", *tables],
        _PACKAGES,
        device_name(device),
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
