"""`python -m experiments.bench.splade`: speed of impact search on passages that look like SPLADE's.

Arguments: `--documents` (default 100000), `--seed`, `--write` (put the tables into
docs/benchmarks.md). The passages are drawn (see `splade_corpus`); they and the indexes are kept in
bench-data/ for the next run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.table import Table
from scipy import sparse

from experiments.bench.measure import bandwidth, in_own_process
from experiments.bench.page import setup_text, table_text, write_section
from experiments.bench.rivals import rival, silenced
from experiments.bench.splade_corpus import (
    SIZES,
    VOCABULARY,
    Query,
    draw_queries,
    encoding,
    term,
)
from pipelines.learned.impact_scoring import scaled
from pipelines.learned.impacts import ImpactIndex
from pipelines.learned.shards import Shards
from toolkit.console import Console, tell
from toolkit.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
DEPTH, COMPARED, CHECKED = 1000, 100, 20
FORMS = {"x100": 100.0, "exact": None}
BUILD_HEAD = ("build from shards", "seconds", "postings/s", "peak MiB", "index MiB", "bytes each")
SEARCH_HEAD = ("search, ms: median (p95)", *(f"{size} terms" for size in SIZES))
Q = TypeVar("Q")
Queries = Mapping[int, Sequence[Query]]
Rows = list[list[str]]


class BruteForce:
    """Every passage scored by one product of scipy's, then sorted."""

    def __init__(self, index: ImpactIndex) -> None:
        arrays = index._arrays
        kind = np.float32 if index.scale is None else np.int64
        values: Any = arrays.frequencies.astype(kind)
        values[arrays.large_positions] = arrays.large_values
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


class Times(NamedTuple):
    """Milliseconds a query."""

    median: float
    p95: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.p95:.2f})"


def timed(search: Callable[[Q], Any], queries: Sequence[Q], rounds: int = 3) -> Times:
    for query in queries[:10]:
        search(query)
    seconds = []
    for query in [*queries] * rounds:
        start = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - start)
    return Times(*(1000 * np.percentile(seconds, (50, 95))).tolist())


def engine_rows(name: str, index: ImpactIndex, queries: Queries) -> Rows:
    """An index's own search: its time, what reading the postings alone would take, and brute
    force, which must rank the same."""
    brute = BruteForce(index)
    for size in SIZES:
        check_same_ranking(index, brute, queries[size][:CHECKED])
    speed = bandwidth()
    found = [timed(partial(index.search, depth=DEPTH), queries[size]) for size in SIZES]
    floors = [1000 * _bytes_read(index, queries[size]) / speed for size in SIZES]
    slow = [timed(brute.search, queries[size][:10], rounds=1) for size in SIZES]
    above = [each.median / floor for each, floor in zip(found, floors, strict=True)]
    return [
        [f"ours, {name}", *map(str, found)],
        [f"its postings at {speed / 1e9:.1f} GB/s", *(f"{floor:.2f}" for floor in floors)],
        ["times that", *(f"{each:.1f}" for each in above)],
        ["scipy brute force", *map(str, slow)],
    ]


def _bytes_read(index: ImpactIndex, queries: Sequence[Query]) -> float:
    """Bytes of the postings of a median query."""
    each = 4 + index._arrays.frequencies.itemsize
    return each * float(np.median([_postings(index, query) for query in queries]))


def _postings(index: ImpactIndex, query: Query) -> int:
    return sum(map(index.document_frequency, query))


def transformer_rows(index: ImpactIndex, encoded: Shards, path: Path, queries: Queries) -> Rows:
    """Ours and PISA's as PyTerrier transformers, one query a call; PISA's index is made at `path`
    if it is not there."""
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
        theirs = [timed(pisa, frames[size]) for size in SIZES]
    own = [timed(ours, frames[size]) for size in SIZES]
    return [
        ["transformer: ours, x100", *map(str, own)],
        ["transformer: PISA (quantized, maxscore)", *map(str, theirs)],
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
        seconds, peak = in_own_process(build, encoded.folder, path, scale)
        postings = ImpactIndex.open(path).manifest["counts"]["postings"]
        size = sum(file.stat().st_size for file in path.iterdir())
        rate = f"{postings / seconds / 1e6:.1f} M"
        sizes = f"{size / 2**20:,.0f}", f"{size / postings:.2f}"
        rows.append([f"ours, {name}", f"{seconds:.1f}", rate, f"{peak:,.0f}", *sizes])
    return rows


def told(encoded: Shards, index: ImpactIndex, queries: Queries) -> str:
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
        f"vocabulary of {VOCABULARY:,}; {counts['postings']:,} postings, of which "
        f"{counts['large_impacts'] / counts['postings']:.1%} hold more than 255; the most frequent "
        f"term is in {most / documents:.0%} of the passages. Queries of {SIZES[0]}, {SIZES[1]} and "
        f"{SIZES[2]} terms share {overlaps} of them with a passage on average. Depth {DEPTH}, one "
        f"thread. The first {COMPARED} are brute force's, scores included, on {CHECKED} queries of "
        "each size."
    )


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its two tables."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.splade")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    options = parser.parse_args(arguments)
    if options.documents < 1000:
        raise InputError(f"documents={options.documents}", valid="1000 or more")
    folder = ROOT / "bench-data" / f"splade-{options.documents}-{options.seed}"
    encoded = encoding(folder / "shards", options.documents, options.seed)
    builds = build_rows(encoded, folder)
    queries = draw_queries(encoded, options.seed)
    indexes = {name: ImpactIndex.open(folder / name) for name in FORMS}
    searches: Rows = []
    for name, index in indexes.items():
        searches += engine_rows(name, index, queries)
    searches += transformer_rows(indexes["x100"], encoded, folder / "pisa", queries)
    facts = told(encoded, indexes["x100"], queries)
    console = Console()
    for head, rows in ((SEARCH_HEAD, searches), (BUILD_HEAD, builds)):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(facts)
    if options.write:
        command = f"{parser.prog} --documents {options.documents} --seed {options.seed} --write"
        tables = [table_text(SEARCH_HEAD, searches), table_text(BUILD_HEAD, builds)]
        write_section("splade", "Impact search", [setup_text(command), facts, *tables])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        tell(str(error))
        sys.exit(2)
