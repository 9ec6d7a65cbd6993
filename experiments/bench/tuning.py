"""`python -m experiments.bench.tuning`: the whole (k1, b) grid in one pass, beside a search a cell.

Arguments: `--documents` (default 100000), `--questions` (100), `--cells` measured one by one (20),
`--seed`, `--write` (put the table into docs/benchmarks.md). Each system answers each question once
in each cell that is measured; the time of 363 cells is that of the measured ones times 363 over
their number. Anserini is measured where `make anserini` has installed it; neither the start of its
virtual machine nor a first round to warm it up is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from experiments.bench.corpus import corpus_file, units
from experiments.bench.page import setup_text, table_text, write_section
from pipelines.lexical import LexicalIndex
from pipelines.lexical.grid import GridBM25, JudgedQuery
from toolkit.console import Console, tell
from toolkit.errors import InputError
from toolkit.evaluation.retrieval import measure_rankings
from toolkit.evaluation.tuning import Grid, RankTable, measure_table
from toolkit.progress import track

ROOT = Path(__file__).resolve().parents[2]
GRID = Grid("0:32:1", "0:1:0.1", "pi_serini")
TERMS, DEPTH, JUDGED, BROWSECOMP = 60, 1000, 6, 830
MEASURES = ("nDCG@10", "AP", "R@1000")
HEAD = ("system", "cells measured", "s, all cells", "ms a question", "ms a search", "times slower")


class Question(NamedTuple):
    """Words of one document, and the documents that count as judged."""

    text: str
    terms: list[str]
    docids: list[str]


def draw_questions(
    index: LexicalIndex, corpus: Path, count: int, rng: np.random.Generator
) -> list[Question]:
    """Words of `TERMS` distinct terms, drawn from one document each in proportion to their
    frequencies; judged are that document and others of the default's first 1000."""
    among = min(len(index), 100 * count)  # of the first ones, so that not all has to be read
    wanted = set(rng.choice(among, min(3 * count, among), replace=False).tolist())
    questions: list[Question] = []
    reading = track(islice(units(corpus), max(wanted) + 1), "drawing questions", max(wanted) + 1)
    for number, unit in enumerate(reading):
        if number not in wanted or len(questions) == count:
            continue
        words: dict[str, str] = {}
        counts: dict[str, int] = {}
        for word in index.analyzer.words(unit.contents):
            term = index.analyzer.term(word)
            if term is not None:
                words.setdefault(term, word)
                counts[term] = counts.get(term, 0) + 1
        if len(counts) < TERMS:
            continue
        share = np.array(list(counts.values())) / sum(counts.values())
        terms = rng.choice(list(counts), TERMS, replace=False, p=share).tolist()
        found, _ = index.search(terms, depth=DEPTH)
        others = index.docnos.take(rng.choice(found, min(JUDGED, len(found)), replace=False))
        docids = dict.fromkeys([unit.unit_id, *others.tolist()])
        text = " ".join(words[term] for term in terms)
        questions.append(Question(text, terms, list(docids)[:JUDGED]))
    if len(questions) < count:
        raise InputError(
            f"only {len(questions)} documents are long enough", do="take more documents"
        )
    return questions


def grid_seconds(
    index: LexicalIndex, questions: Sequence[Question], threads: int
) -> tuple[float, dict[str, NDArray[np.int32]]]:
    """Time of all cells and questions, from terms to ranks, and the ranks."""
    asked = [JudgedQuery(str(n), q.terms, q.docids) for n, q in enumerate(questions)]
    dict(GridBM25(index, GRID.cells).ranks(asked[:2], threads))  # compiles
    started = time.perf_counter()
    found = dict(GridBM25(index, GRID.cells).ranks(asked, threads))
    return time.perf_counter() - started, found


def ours_seconds(
    index: LexicalIndex, questions: Sequence[Question], cells: Sequence[int], threads: int
) -> tuple[float, dict[int, list[tuple[Any, Any]]]]:
    """Time of each cell alone, questions spread over the threads, and the rankings."""
    found = {}

    def search(question: Question, k1: float, b: float) -> tuple[Any, Any]:
        return index.search(question.terms, k1, b, DEPTH)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda q: search(q, 1.0, 0.5), questions))
        started = time.perf_counter()
        for cell in track(cells, "our engine, cell by cell", len(cells)):
            k1, b = GRID.cells[cell]
            found[cell] = list(
                pool.map(lambda q, k1=k1, b=b: search(q, k1, b), questions)  # type: ignore[misc]
            )
        return time.perf_counter() - started, found


def check_same(
    index: LexicalIndex,
    questions: Sequence[Question],
    ranks: dict[str, NDArray[np.int32]],
    single: dict[int, list[tuple[Any, Any]]],
) -> None:
    """Times of systems that compute different things would say nothing: measures must be equal,
    scores within 1e-5."""
    judged = {str(n): dict.fromkeys(q.docids, 1) for n, q in enumerate(questions)}
    kept = {qid: ranks[qid] for qid in judged}
    table = measure_table(
        RankTable(GRID.cells, {qid: list(judged[qid]) for qid in judged}, kept), judged, MEASURES
    )
    for cell, found in single.items():
        rankings = {
            str(n): index.docnos.take(numbers).tolist() for n, (numbers, _) in enumerate(found)
        }
        expected = measure_rankings(rankings, judged, MEASURES)
        for measure in MEASURES:
            ours = dict(zip(table.qids, table.of(measure)[:, cell].tolist(), strict=True))
            if ours != expected[measure]:
                raise RuntimeError(f"{measure} differs between grid and single run of {cell}")
    grid = GridBM25(index, GRID.cells)
    for number, question in enumerate(questions[:10]):
        scores = grid.scores(JudgedQuery("", question.terms, question.docids))
        for cell, found in single.items():
            alone = dict(zip(index.docnos.take(found[number][0]), found[number][1], strict=True))
            for row, docid in enumerate(question.docids):
                if docid in alone and not np.isclose(scores[row, cell], alone[docid], rtol=1e-5):
                    raise RuntimeError(f"scores of {docid} differ in cell {cell}")


def anserini_seconds(
    folder: Path, corpus: Path, questions: Sequence[Question], cells: Sequence[int], threads: int
) -> float | None:
    """Time of each cell alone by Anserini's `SimpleSearcher`; None where it is not installed."""
    from pipelines.engines.anserini import AnseriniEngine

    engine = AnseriniEngine(document_vectors=False)
    path = folder / "anserini"
    texts = [question.text for question in questions]
    try:
        if not path.exists():
            engine.build(units(corpus), path, corpus_fingerprint=folder.name)
        index = engine.open(path, corpus_fingerprint=folder.name)
        index.search(list(texts), DEPTH, {"k1": 1.0, "b": 0.5}, threads)
    except InputError as error:
        Console(stderr=True).print(f"Anserini is left out: {error}", highlight=False)
        return None
    started = time.perf_counter()
    for cell in track(cells, "Anserini, cell by cell", len(cells)):
        k1, b = GRID.cells[cell]
        index.search(list(texts), DEPTH, {"k1": k1, "b": b}, threads)
    return time.perf_counter() - started


def rows_of(seconds: dict[str, tuple[int, float]], questions: int, whole: float) -> list[list[str]]:
    """One row a system; `seconds` holds the number of cells measured and their time."""
    rows = []
    for name, (cells, measured) in seconds.items():
        all_cells = measured * len(GRID) / cells
        single = "—" if cells == len(GRID) else f"{1000 * measured / cells / questions:.2f}"
        rows.append(
            [
                name,
                f"{cells}",
                f"{all_cells:,.1f}",
                f"{1000 * all_cells / questions:,.1f}",
                single,
                f"{all_cells / whole:,.1f}",
            ]
        )
    return rows


def measure(
    corpus: Path, options: argparse.Namespace
) -> tuple[LexicalIndex, list[list[str]], float]:
    """The table's rows, and the seconds that `BROWSECOMP` such questions take."""
    folder = corpus.parent
    if not (folder / "ours").exists():
        LexicalIndex.build(units(corpus), folder / "ours")
    index = LexicalIndex.open(folder / "ours")
    rng = np.random.default_rng(options.seed)
    questions = draw_questions(index, corpus, options.questions, rng)
    cells = sorted(rng.choice(len(GRID), options.cells, replace=False).tolist())
    threads = options.threads
    whole, ranks = grid_seconds(index, questions, threads)
    alone, _ = grid_seconds(index, questions, 1)
    single, rankings = ours_seconds(index, questions, cells, threads)
    check_same(index, questions, ranks, rankings)
    seconds = {
        f"grid ({threads} threads)": (len(GRID), whole),
        "grid (1 thread)": (len(GRID), alone),
        f"ours, cell by cell ({threads} threads)": (len(cells), single),
    }
    java = anserini_seconds(folder, corpus, questions, cells, threads)
    if java is not None:
        seconds[f"Anserini, cell by cell ({threads} threads)"] = (len(cells), java)
    many = list(islice((q for _ in range(BROWSECOMP) for q in questions), BROWSECOMP))
    browsecomp, _ = grid_seconds(index, many, threads)
    return index, rows_of(seconds, len(questions), whole), browsecomp


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.tuning")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    options = parser.parse_args(arguments)
    for name, least in (("documents", 1000), ("questions", 1), ("cells", 1), ("threads", 1)):
        if getattr(options, name) < least:
            raise InputError(f"{name}={getattr(options, name)}", valid=f"{least} or more")
    corpus = corpus_file(ROOT / "bench-data", options.documents, options.seed)
    index, rows, browsecomp = measure(corpus, options)
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    counts = index.statistics
    said = (
        f"{BROWSECOMP} such questions in {len(GRID)} cells: {browsecomp:.1f} s, "
        f"{options.threads} threads."
    )
    console.print(said, highlight=False)
    if options.write:
        intro = (
            f"{counts.documents:,} documents, {counts.tokens:,} tokens; {options.questions} "
            f"questions of {TERMS} distinct terms, {JUDGED} judged documents each, depth {DEPTH}. "
            f"Cells measured one by one are drawn at random; their time is taken times {len(GRID)} "
            "over their number. The virtual machine's start and a first round are not counted. In "
            "every cell measured, measures of the grid and of our single run are equal, and scores "
            "within 1e-5."
        )
        command = f"{parser.prog} --documents {options.documents} --seed {options.seed} --write"
        paragraphs = [setup_text(command), intro, table_text(HEAD, rows), said]
        write_section("tuning", "Tuning", paragraphs)


if __name__ == "__main__":
    try:
        main([f"--{item}" if "=" in item else item for item in sys.argv[1:]])
    except InputError as error:
        tell(str(error))
        sys.exit(2)
