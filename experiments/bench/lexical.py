"""`python -m experiments.bench.lexical`: speed of the lexical engine beside bm25s and PISA.

Arguments: `--documents` (default 100000), `--build-documents` (default the same; builds are
compared on a world of this size), `--seed`, `--write` (put the tables into docs/benchmarks.md).
Corpus and indexes are kept in bench-data/ for the next run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from experiments.bench.corpus import corpus_file, units
from experiments.bench.measure import bandwidth, in_own_process, medians
from experiments.bench.page import setup_text, table_text, write_section
from pipelines.lexical import LexicalIndex
from toolkit.console import Console, tell
from toolkit.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
K1, B, DEPTH = 0.9, 0.4, 1000
QUERIES = {8: 100, 60: 50}
Rows = list[list[str]]


def build_ours(corpus: Path, path: Path, processes: int) -> None:
    """The index of the raw text, as any user builds it."""
    LexicalIndex.build(units(corpus), path, processes=processes, memory_mb=1024)


def draw_queries(index: LexicalIndex, matrix: Any, seed: int) -> dict[int, list[list[str]]]:
    """Queries of distinct terms, each drawn from one document in proportion to its frequencies."""
    chance = np.random.default_rng(seed)
    rows = matrix.tocsr()
    enough = np.flatnonzero(np.diff(rows.indptr) >= max(QUERIES))
    if not len(enough):
        raise InputError("no document has enough terms for a query", do="take more documents")
    drawn: dict[int, list[list[str]]] = {}
    for size, count in QUERIES.items():
        drawn[size] = []
        for number in chance.choice(enough, count):
            entries = slice(rows.indptr[number], rows.indptr[number + 1])
            share = rows.data[entries] / rows.data[entries].sum()
            terms = chance.choice(rows.indices[entries], size, replace=False, p=share)
            drawn[size].append([index.vocabulary[int(term)] for term in terms])
    return drawn


def search_rows(folder: Path, index: LexicalIndex, seed: int) -> Rows:
    """Median milliseconds a query: the engines' own calls, then the transformers'."""
    from experiments.bench import rivals  # here, so that a build alone does not need them

    matrix = rivals.frequencies(index)
    queries = draw_queries(index, matrix, seed)
    engines = {
        "ours": partial(index.search, k1=K1, b=B, depth=DEPTH),
        "ours, exact lengths": partial(index.search, k1=K1, b=B, depth=DEPTH, lengths="exact"),
    }
    for backend in ("numba", "numpy"):
        retriever = rivals.bm25s_engine(index, matrix, K1, B, backend)
        engines[f"bm25s ({backend})"] = partial(_bm25s, retriever, min(DEPTH, len(index)))
    check_same_ranking(engines, [query for size in QUERIES for query in queries[size]])
    same = folder / "pisa-same-tokens"
    transformers = {
        "ours": index.bm25(k1=K1, b=B, depth=DEPTH),
        "PISA (maxscore)": rivals.pisa_same_tokens(index, matrix, same, K1, B, DEPTH),
    }
    rows = _timed_rows("engine", engines, queries)
    frames = {size: [_frame([query]) for query in queries[size]] for size in QUERIES}
    rows += _timed_rows("transformer, one query a call", transformers, frames)
    rows += _batch_rows(transformers, queries)
    return [*rows, _floor_row(index, queries)]


def _bm25s(retriever: Any, depth: int, query: Sequence[str]) -> Any:
    return retriever.retrieve([list(query)], k=depth, n_threads=0, show_progress=False)


def _frame(queries: Sequence[Sequence[str]]) -> pd.DataFrame:
    rows = [
        {"qid": str(number), "query": " ".join(query), "query_toks": dict.fromkeys(query, 1.0)}
        for number, query in enumerate(queries)
    ]
    return pd.DataFrame(rows)


def check_same_ranking(engines: dict[str, Any], queries: Sequence[list[str]]) -> None:
    """Times of engines that compute different things would say nothing."""
    for query in queries:
        _, ours = engines["ours, exact lengths"](query)
        for name in ("bm25s (numba)", "bm25s (numpy)"):
            theirs = engines[name](query).scores[0][: len(ours)]
            if not np.allclose(ours, theirs, rtol=1e-4):
                raise RuntimeError(f"{name} and our engine score {query} differently")


def _timed_rows(level: str, systems: dict[str, Any], queries: dict[int, list[Any]]) -> Rows:
    times = {size: medians(systems, queries[size]) for size in QUERIES}
    return [[level, name, *(f"{times[size][name]:.2f}" for size in QUERIES)] for name in systems]


def _batch_rows(systems: dict[str, Any], queries: dict[int, list[list[str]]]) -> Rows:
    rows = []
    for name, system in systems.items():
        cells = []
        for size in QUERIES:
            whole = medians({name: system}, [_frame(queries[size])])[name]
            cells.append(f"{whole / len(queries[size]):.2f}")
        rows.append(["transformer, all queries in one call", name, *cells])
    return rows


def _floor_row(index: LexicalIndex, queries: dict[int, list[list[str]]]) -> list[str]:
    """The time that reading the query's postings from memory takes, five bytes each."""
    speed = bandwidth()
    cells = []
    for size in QUERIES:
        postings = [index.document_frequency(query).sum() for query in queries[size]]
        cells.append(f"{1000 * 5 * float(np.median(postings)) / speed:.2f}")
    return ["floor", f"bytes of the postings at {speed / 1e9:.1f} GB/s", *cells]


def build_rows(folder: Path, corpus: Path) -> Rows:
    """Builds from raw text: seconds, indexed tokens a second, peak memory, size."""
    from experiments.bench import rivals

    ours, pisa = folder / "ours", folder / "pisa"
    builds = [
        ("ours, 2 processes", build_ours, ours, 2),
        ("ours, 1 process", build_ours, ours, 1),
        ("PISA, 2 threads", rivals.build_pisa, pisa, 2),
    ]
    rows = []
    for name, build, path, count in builds:
        seconds, peak_mb = in_own_process(build, corpus, path, count)
        rate = LexicalIndex.open(ours).statistics.tokens / seconds / 1e6
        size = _size(path) / 2**20
        rows.append([name, f"{seconds:.1f}", f"{rate:.2f} M", f"{peak_mb:,.0f}", f"{size:,.0f}"])
        Console(stderr=True).print(", ".join(rows[-1]), highlight=False)
    return rows


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its two tables."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.lexical")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--build-documents", type=int, default=None)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    options = parser.parse_args(arguments)
    built = options.build_documents or options.documents
    if min(built, options.documents) < 1000:
        raise InputError(f"documents={min(built, options.documents)}", valid="1000 or more")
    small = corpus_file(ROOT / "bench-data", built, options.seed)
    builds = build_rows(small.parent, small)
    corpus = corpus_file(ROOT / "bench-data", options.documents, options.seed)
    folder = corpus.parent
    if not (folder / "ours").exists():
        build_ours(corpus, folder / "ours", 2)
    index = LexicalIndex.open(folder / "ours")
    searches = search_rows(folder, index, options.seed)
    build_head = [
        f"build from raw text, {built:,} documents",
        "seconds",
        "tokens/s",
        "peak MiB",
        "index MiB",
    ]
    search_head = ["level", "system", *(f"{size} terms, ms" for size in QUERIES)]
    console = Console()
    for head, rows in ((build_head, builds), (search_head, searches)):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if options.write:
        counts = index.statistics
        intro = (
            f"{counts.documents:,} documents, {counts.tokens:,} tokens, {counts.terms:,} terms, "
            f"{counts.postings:,} postings. "
            f"BM25 k1={K1}, b={B}, depth {DEPTH}; medians, one thread."
        )
        command = (
            f"{parser.prog} --documents {options.documents} --build-documents {built} "
            f"--seed {options.seed} --write"
        )
        tables = [table_text(search_head, searches), table_text(build_head, builds)]
        write_section("lexical", "Lexical engine", [setup_text(command), intro, *tables])


if __name__ == "__main__":
    try:
        main([f"--{item}" if "=" in item else item for item in sys.argv[1:]])
    except InputError as error:
        tell(str(error))
        sys.exit(2)
