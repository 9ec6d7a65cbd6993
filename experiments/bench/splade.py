"""`python -m soundingline.experiments.bench.splade`: speed of impact search on passages that look
like SPLADE's.

Arguments: `--documents` (default 100000), `--seed`, `--write` (put the tables into
docs/benchmarks.md). The passages are drawn (see `splade_corpus`); they and the indexes are kept in
bench-data/ for the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from soundingline.experiments.bench.harness import (
    DATA,
    Arguments,
    Latency,
    Section,
    Table,
    bandwidth,
    in_own_process,
    latencies,
    report,
    run,
    size_mb,
)
from soundingline.experiments.bench.rivals import rival, silenced
from soundingline.experiments.bench.splade_corpus import (
    SIZES,
    VOCABULARY,
    Query,
    draw_queries,
    encoding,
    term,
)
from soundingline.pipelines.learned.encoding import Shards
from soundingline.pipelines.learned.impacts import ImpactIndex, scaled

DEPTH, COMPARED, CHECKED, ROUNDS = 1000, 100, 20, 5
FORMS = {"x100": 100.0, "exact": None}
BUILD_HEAD = ("build from shards", "seconds", "postings/s", "peak MiB", "index MiB", "bytes each")
SEARCH_HEAD = ("search, ms: median (p95)", *(f"{size} terms" for size in SIZES))
Queries = Mapping[int, Sequence[Query]]
Rows = list[list[str]]


class BruteForce:
    """Every passage scored by one product of scipy's, then sorted."""

    def __init__(self, index: ImpactIndex) -> None:
        arrays = index._arrays
        kind = np.float32 if index.scale is None else np.int64
        values: Any = arrays.frequencies.astype(kind)
        shape = (len(index), VOCABULARY)
        by_term = sparse.csc_array((values, arrays.documents, arrays.offsets), shape=shape)
        self._matrix: Any = by_term.tocsr()

    def search(self, query: Query) -> tuple[NDArray[Any], NDArray[Any]]:
        vector = np.zeros(VOCABULARY, self._matrix.dtype)
        for name, weight in query.items():
            vector[int(name[1:])] = weight
        sums = self._matrix @ vector
        best = np.argsort(-sums, kind="stable")[:COMPARED]
        best = best[sums[best] > 0]
        return best, sums[best]


def check_same_ranking(index: ImpactIndex, brute: BruteForce, queries: Sequence[Query]) -> None:
    """Times of a search that finds something else would say nothing."""
    for query in queries:
        documents, scores = index.search(query, COMPARED)
        expected, sums = brute.search(query)
        if documents.tolist() != expected.tolist() or scores.tolist() != sums.tolist():
            raise RuntimeError(f"impact search and brute force rank {query} differently")


def shown(times: Sequence[Latency]) -> list[str]:
    """`median (95th percentile)` of each."""
    return [f"{time.median:.2f} ({time.p95:.2f})" for time in times]


def engine_rows(name: str, index: ImpactIndex, queries: Queries) -> Rows:
    """An index's own search: its time, what reading the postings alone would take, and brute
    force, which must rank the same."""
    brute = BruteForce(index)
    for size in SIZES:
        check_same_ranking(index, brute, queries[size][:CHECKED])
    speed = bandwidth()
    search = {"ours": partial(index.search, depth=DEPTH)}
    times = [latencies(search, queries[size], ROUNDS)["ours"] for size in SIZES]
    floors = [1000 * _bytes_read(index, queries[size]) / speed for size in SIZES]
    product = {"brute": brute.search}
    slow = [latencies(product, queries[size][:10], rounds=1)["brute"] for size in SIZES]
    ratios = [time.median / floor for time, floor in zip(times, floors, strict=True)]
    return [
        [f"ours, {name}", *shown(times)],
        [f"its postings at {speed / 1e9:.1f} GB/s", *(f"{floor:.2f}" for floor in floors)],
        ["times that", *(f"{ratio:.1f}" for ratio in ratios)],
        ["scipy brute force", *shown(slow)],
    ]


def _bytes_read(index: ImpactIndex, queries: Sequence[Query]) -> float:
    """Bytes of the postings of a median query."""
    bytes_of_posting = 4 + index._arrays.frequencies.itemsize
    return bytes_of_posting * float(np.median([_postings(index, query) for query in queries]))


def _postings(index: ImpactIndex, query: Query) -> int:
    return sum(map(index.document_frequency, query))


def transformer_rows(index: ImpactIndex, encoded: Shards, path: Path, queries: Queries) -> Rows:
    """Ours and PISA's as PyTerrier transformers, in turns, one query a call; PISA's index is made
    at `path` if it is not there."""
    frames = {
        size: [pd.DataFrame({"qid": ["q"], "query_toks": [dict(query)]}) for query in queries[size]]
        for size in SIZES
    }
    ours: Any = index.retriever(depth=DEPTH)
    pisa = _pisa(encoded, path)
    with silenced():
        for frame in frames[SIZES[0]][:CHECKED]:
            if pisa(frame)["score"].tolist() != ours(frame)["score"].tolist():
                raise RuntimeError("impact search and PISA score differently")
        times = [latencies({"ours": ours, "PISA": pisa}, frames[size], ROUNDS) for size in SIZES]
    return [
        ["transformer: ours, x100", *shown([time["ours"] for time in times])],
        ["transformer: PISA (quantized, maxscore)", *shown([time["PISA"] for time in times])],
    ]


def _pisa(encoded: Shards, path: Path) -> Any:
    def index() -> Any:
        return rival("pyterrier_pisa").PisaIndex(
            str(path), text_field="toks", stemmer="none", stops="none"
        )

    with silenced():
        if not (path / "pt_meta.json").exists():
            index().toks_indexer(mode="overwrite", scale=1.0).index(_token_rows(encoded))
        return index().quantized(
            num_results=DEPTH,
            query_algorithm="maxscore",
            query_weighted=True,
            toks_scale=1.0,
            threads=1,
        )


def _token_rows(encoded: Shards) -> Iterator[dict[str, Any]]:
    for shard in encoded:
        for name, array in zip(shard.unit_ids, shard.arrays(), strict=True):
            pairs = zip(array["term"].tolist(), scaled(array["weight"], 100).tolist(), strict=True)
            yield {"docno": name, "toks": {term(number): n for number, n in pairs if n}}


def build(encoded: Path, path: Path, scale: float | None) -> None:
    vocabulary = [term(number) for number in range(VOCABULARY)]
    ImpactIndex.build(Shards(encoded), vocabulary, path, scale=scale)


def build_rows(encoded: Shards, folder: Path) -> Rows:
    """Builds from shards in a process of its own: seconds, postings a second, memory, size."""
    rows = []
    for name, scale in FORMS.items():
        path = folder / name
        seconds, peak, _ = in_own_process(build, encoded.folder, path, scale)
        postings = ImpactIndex.open(path).manifest["counts"]["postings"]
        size = size_mb(path)
        rate = f"{postings / seconds / 1e6:.1f} M"
        sizes = f"{size:,.0f}", f"{size * 2**20 / postings:.2f}"
        rows.append([f"ours, {name}", f"{seconds:.1f}", rate, f"{peak:,.0f}", *sizes])
    return rows


def described(encoded: Shards, index: ImpactIndex, queries: Queries) -> str:
    """What was searched."""
    counts = index.manifest["counts"]
    documents = len(index)
    most = max(index.document_frequency(term(number)) for number in range(VOCABULARY))
    overlaps = ", ".join(
        f"{np.mean([_postings(index, query) for query in queries[size]]) / documents:.1f}"
        for size in SIZES
    )
    return (
        f"{documents:,} drawn passages of {encoded.counts['rows'] / documents:.0f} terms, from a "
        f"vocabulary of {VOCABULARY:,}; {counts['postings']:,} postings; the most frequent "
        f"term is in {most / documents:.0%} of the passages. Queries of {SIZES[0]}, {SIZES[1]} and "
        f"{SIZES[2]} terms share {overlaps} of them with a passage on average. Depth {DEPTH}, one "
        f"thread; {ROUNDS} rounds, in which ours and PISA take turns. The first {COMPARED} are "
        f"brute force's, scores included, on {CHECKED} queries of each size."
    )


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its two tables."""
    parser = Arguments("splade", documents=(100_000, 1000), seed=(7, 0))
    options = parser.read(arguments)
    folder = DATA / f"splade-{options.documents}-{options.seed}"
    encoded = encoding(folder / "shards", options.documents, options.seed)
    builds = build_rows(encoded, folder)
    queries = draw_queries(encoded, options.seed)
    indexes = {name: ImpactIndex.open(folder / name) for name in FORMS}
    searches: Rows = []
    for name, index in indexes.items():
        searches += engine_rows(name, index, queries)
    searches += transformer_rows(indexes["x100"], encoded, folder / "pisa", queries)
    facts = described(encoded, indexes["x100"], queries)
    parts: list[str | Table] = [facts, Table(SEARCH_HEAD, searches), Table(BUILD_HEAD, builds)]
    section = Section(
        "splade",
        "Impact search",
        parser.command(options),
        parts,
        packages=("numba", "pyterrier-pisa"),
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
