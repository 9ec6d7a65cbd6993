"""`python -m soundingline.experiments.bench.vectors`: exact search over vectors, ours and others'.

Arguments: `--documents` (default 100000), `--dimensions` (384), `--depth` (1000), `--rounds` (5),
`--seed`, `--device` (of torch; default: a GPU where there is one), `--write` (put the table into
docs/benchmarks.md). Vectors are random, of length 1; each query lies near one of them. FAISS and
pyterrier_dr are measured where they are installed. The systems take turns, with all cores, and
must agree on the best 100 of each query.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soundingline.experiments.bench.harness import (
    LIMITS,
    Arguments,
    Section,
    Table,
    bandwidth,
    report,
    run,
    spread,
    take_turns,
    unit,
)
from soundingline.experiments.bench.rivals import installed
from soundingline.pipelines.learned.vectors import DocumentVectors, NumpySearch, TorchSearch
from soundingline.pipelines.models import choose_device

BATCHES = {1: 32, 16: 4, 64: 2}  # queries a call, and calls a round
COMPARED = 100
_CLOSE = 1e-5  # a difference of scores that rounding makes
Matrix = NDArray[np.float32]
System = Callable[[Matrix], Any]
"""Queries [queries, dimensions] -> numbers of the best documents [queries, depth]."""


def draw(documents: int, dimensions: int, seed: int) -> tuple[Matrix, Matrix]:
    """Documents, and the queries of a round."""
    chance = np.random.default_rng(seed)
    vectors = unit(chance.standard_normal((documents, dimensions), np.float32))
    count = max(size * calls for size, calls in BATCHES.items())
    near = vectors[chance.integers(0, documents, count)]
    noise = chance.standard_normal((count, dimensions), np.float32) / np.float32(dimensions**0.5)
    return vectors, unit(near + noise)


def ours(search: NumpySearch | TorchSearch, depth: int) -> System:
    def best(queries: Matrix) -> Any:
        return [ranking.numbers for ranking in search(list(queries), depth)]

    return best


def faiss_flat(vectors: Matrix, depth: int) -> System:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda queries: index.search(queries, depth)[1]


def pyterrier_dr(vectors: Matrix, depth: int, folder: Path) -> System:
    """Its own brute force with numpy, over a FlexIndex; a call is a frame of queries."""
    from pyterrier_dr import FlexIndex

    index = FlexIndex(str(folder / "flex"), verbose=False)
    rows = ({"docno": str(number), "doc_vec": row} for number, row in enumerate(vectors))
    index.indexer().index(rows)
    retriever = index.np_retriever(num_results=depth)

    def best(queries: Matrix) -> Any:
        qids = [str(number) for number in range(len(queries))]
        ranked = retriever(pd.DataFrame({"qid": qids, "query_vec": list(queries)}))
        return [ranked.docid[ranked.qid == qid].to_numpy() for qid in qids]

    return best


def systems(vectors: Matrix, depth: int, device: Any, folder: Path) -> dict[str, System]:
    documents = DocumentVectors(vectors)
    named = {
        "ours, numpy": ours(NumpySearch(documents), depth),
        f"ours, torch on {device.type}": ours(TorchSearch(documents, device), depth),
    }
    if find_spec("faiss"):
        named["FAISS IndexFlatIP"] = faiss_flat(vectors, depth)
    if find_spec("pyterrier_dr"):
        named["pyterrier_dr, numpy"] = pyterrier_dr(vectors, depth, folder)
    return named


def check_same(named: dict[str, System], vectors: Matrix, queries: Matrix) -> None:
    """Times of systems that find different documents would say nothing. Where two differ, their
    scores must be equal but for rounding."""
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    for name, system in named.items():
        for row, numbers in zip(scores, system(queries), strict=True):
            best = np.sort(row)[::-1][:COMPARED]
            if not np.allclose(row[np.asarray(numbers)[:COMPARED]], best, rtol=0, atol=_CLOSE):
                raise RuntimeError(f"{name} does not find the best documents")


def measure(
    vectors: Matrix, queries: Matrix, rounds: int, named: dict[str, System]
) -> dict[int, dict[str, list[float]]]:
    """Milliseconds a query in each round, by queries a call and by system."""
    milliseconds: dict[int, dict[str, list[float]]] = {}
    for size, calls in BATCHES.items():
        batches = [queries[start : start + size] for start in range(0, size * calls, size)]
        turns = take_turns(named, [batches] * rounds, batches[:1], f"{size} a call")
        milliseconds[size] = {
            name: (1000 / size * np.reshape(turn.seconds, (rounds, calls)).mean(axis=1)).tolist()
            for name, turn in turns.items()
        }
    return milliseconds


def rows_of(milliseconds: dict[int, dict[str, list[float]]]) -> list[list[str]]:
    """One row a system: its time, and how often ours by numpy would fit into that, by round."""
    first, *others = next(iter(milliseconds.values()))
    rows = []
    for name in (first, *others):
        row = [name]
        for by_system in milliseconds.values():
            times = by_system[name]
            pairs = zip(times, by_system[first], strict=True)
            row += [spread(times, 2), spread([theirs / our for theirs, our in pairs], 2)]
        rows.append(row)
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = Arguments(
        "vectors",
        documents=(100_000, 1000),
        dimensions=(384, 8),
        depth=(1000, COMPARED),
        rounds=(5, 1),
        seed=(7, 0),
    )
    parser.add_argument("--device")
    options = parser.read(arguments)
    device = choose_device(options.device)
    vectors, queries = draw(options.documents, options.dimensions, options.seed)
    with TemporaryDirectory() as folder:
        named = systems(vectors, options.depth, device, Path(folder))
        check_same(named, vectors, queries[: max(BATCHES)])
        milliseconds = measure(vectors, queries, options.rounds, named)
    speed = bandwidth()
    head = ["system"]
    for size in BATCHES:
        head += [f"{size} a call, ms a query", "times ours"]
    floor = [1000 * vectors.nbytes / speed / size for size in BATCHES]
    rows = rows_of(milliseconds)
    rows.append([f"floor: reading the vectors at {speed / 1e9:.1f} GB/s"])
    rows[-1] += [cell for each in floor for cell in (f"{each:.2f}", "")]
    intro = (
        f"{options.documents:,} vectors of {options.dimensions} dimensions in float32, depth "
        f"{options.depth}; all cores. Medians of {options.rounds} rounds in turns (least–most), "
        f"load {os.getloadavg()[0]:.1f}. All find the same best {COMPARED}, but for differences of "
        f"scores below {_CLOSE:g}."
    )
    section = Section(
        "vectors",
        "Exact search over vectors",
        parser.command(options, *([f"--device {options.device}"] if options.device else [])),
        [intro, Table(head, rows)],
        installed("numpy", "torch", "numba", "faiss-cpu", "faiss-gpu", "pyterrier-dr"),
        limits=f"{LIMITS}, many processes, vectors that do not fit into memory, or approximate "
        "search, which is faster and loses documents",
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
