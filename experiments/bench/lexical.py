"""`python -m soundingline.experiments.bench.lexical`: speed of the lexical engine beside other
engines'.

Arguments: `--documents` (default 100000), `--peers` (0 leaves the other engines out), `--seed`,
`--write` (put the table into docs/benchmarks.md). Corpus and indexes are kept in bench-data/ for
the next run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from soundingline.experiments.bench.building import build_ours
from soundingline.experiments.bench.corpus import corpus_file
from soundingline.experiments.bench.harness import (
    DATA,
    LIMITS,
    Arguments,
    Section,
    Table,
    bandwidth,
    latencies,
    report,
    run,
)
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.errors import InputError

K1, B, DEPTH = 0.9, 0.4, 1000
QUERIES = {8: 100, 60: 50}
_ROUNDS = 5
Rows = list[list[str]]


def draw_queries(index: LexicalIndex, matrix: Any, seed: int) -> dict[int, list[list[str]]]:
    """Queries of distinct terms, each drawn from one document in proportion to its frequencies."""
    chance = np.random.default_rng(seed)
    rows = matrix.tocsr()
    enough = np.flatnonzero(np.diff(rows.indptr) >= max(QUERIES))
    if not len(enough):
        raise InputError("no document has enough terms for a query", do="take more documents")
    queries: dict[int, list[list[str]]] = {}
    for size, count in QUERIES.items():
        queries[size] = []
        for number in chance.choice(enough, count):
            entries = slice(rows.indptr[number], rows.indptr[number + 1])
            share = rows.data[entries] / rows.data[entries].sum()
            terms = chance.choice(rows.indices[entries], size, replace=False, p=share)
            queries[size].append([index.vocabulary[int(term)] for term in terms])
    return queries


def search_rows(folder: Path, index: LexicalIndex, seed: int, *, peers: bool) -> Rows:
    """Median milliseconds a query: the engines' own calls, then the transformers'."""
    from soundingline.experiments.bench import (
        rivals,  # here, so that a build alone does not need them
    )

    matrix = rivals.frequencies(index)
    queries = draw_queries(index, matrix, seed)
    engines = {
        "ours": partial(index.search, k1=K1, b=B, depth=DEPTH),
    }
    for backend in ("numba", "numpy") if peers else ():
        retriever = rivals.bm25s_engine(index, matrix, K1, B, backend)
        engines[f"bm25s ({backend})"] = partial(_bm25s, retriever, min(DEPTH, len(index)))
    check_same_ranking(engines, [query for size in QUERIES for query in queries[size]])
    transformers: dict[str, Any] = {
        "ours": index.bm25(k1=K1, b=B, depth=DEPTH),
        "ours, with RM3 feedback": index.bm25(k1=K1, b=B, depth=DEPTH).rm3(),
    }
    if peers:
        pisa = rivals.pisa_same_tokens(index, matrix, folder / "pisa-same-tokens", K1, B, DEPTH)
        transformers["PISA (maxscore)"] = pisa
    rows = _timed_rows("engine", engines, queries)
    frames = {size: [_frame([query]) for query in queries[size]] for size in QUERIES}
    rows += _timed_rows("transformer, one query a call", transformers, frames)
    rows += _batch_rows(transformers, queries)
    return [*rows, *_floor_rows(index, queries)]


def _bm25s(retriever: Any, depth: int, query: Sequence[str]) -> Any:
    return retriever.retrieve([list(query)], k=depth, n_threads=0, show_progress=False)


def _frame(queries: Sequence[Sequence[str]]) -> pd.DataFrame:
    rows = [
        {"qid": str(number), "query": " ".join(query), "query_toks": dict.fromkeys(query, 1.0)}
        for number, query in enumerate(queries)
    ]
    return pd.DataFrame(rows)


def check_same_ranking(engines: dict[str, Any], queries: Sequence[list[str]]) -> None:
    """`RuntimeError` where another engine computes another score. Ours counts a document's length
    with four significant bits, which changes a score by less than a tenth."""
    others = [name for name in engines if name.startswith("bm25s")]
    for query in queries:
        _, ours = engines["ours"](query)
        for name in others:
            theirs = engines[name](query).scores[0][: len(ours)]
            if not np.allclose(ours, theirs, rtol=0.1):
                raise RuntimeError(f"{name} and our engine score {query} differently")


def _timed_rows(level: str, systems: dict[str, Any], queries: dict[int, list[Any]]) -> Rows:
    times = [latencies(systems, queries[size], _ROUNDS) for size in QUERIES]
    return [[level, name, *(str(time[name]) for time in times)] for name in systems]


def _batch_rows(systems: dict[str, Any], queries: dict[int, list[list[str]]]) -> Rows:
    times = [latencies(systems, [_frame(queries[size])], _ROUNDS) for size in QUERIES]
    rows = []
    for name in systems:
        pairs = zip(times, QUERIES, strict=True)
        cells = [f"{time[name].median / len(queries[size]):.2f}" for time, size in pairs]
        rows.append(["transformer, all queries in one call", name, *cells])
    return rows


def _floor_rows(index: LexicalIndex, queries: dict[int, list[list[str]]]) -> Rows:
    """The time that reading the postings of a query from memory takes, six bytes each."""
    speed = bandwidth()
    row = []
    for size in QUERIES:
        read = [6 * index.document_frequency(query).sum() for query in queries[size]]
        row.append(f"{1000 * float(np.median(read)) / speed:.2f}")
    return [["floor", f"bytes of all postings at {speed / 1e9:.1f} GB/s", *row]]


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    from soundingline.experiments.bench import rivals

    parser = Arguments("lexical", documents=(100_000, 1000), peers=(1, 0), seed=(7, 0))
    options = parser.read(arguments)
    corpus = corpus_file(DATA, options.documents, options.seed)
    folder = corpus.parent
    if not (folder / "ours").exists():
        build_ours(corpus, folder / "ours")
    index = LexicalIndex.open(folder / "ours")
    rows = search_rows(folder, index, options.seed, peers=options.peers > 0)
    counts = index.statistics
    intro = (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens, {counts.terms:,} terms, "
        f"{counts.postings:,} postings. BM25 k1={K1}, b={B}, depth {DEPTH}; one thread; medians of "
        f"{_ROUNDS} rounds in turns (lowest–highest round), load {os.getloadavg()[0]:.1f}."
    )
    table = Table(["level", "system", *(f"{size} terms, ms" for size in QUERIES)], rows)
    section = Section(
        "lexical" if options.peers else "lexical-alone",
        "Lexical engine" if options.peers else "Lexical engine, without the others",
        parser.command(options),
        [intro, table],
        packages=rivals.installed("numba", "bm25s", "pyterrier-pisa"),
        limits=f"{LIMITS}, short passages, or a cold disk",
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
