"""`python -m soundingline.experiments.bench.tuning`: the whole (k1, b) grid in one pass, beside a
search a cell.

Arguments: `--documents` (default 100000), `--questions` (100), `--rounds` in which the systems take
turns (5), `--cells` measured one by one in a round (4), `--seed`, `--write` (put the table into
docs/benchmarks.md). A round is one pass of the grid, and each question once in each of the round's
cells; the time of 363 cells is that of the measured ones times 363 over their number. Anserini is
measured where `make anserini` has installed it; neither the start of its virtual machine nor a
first cell to warm it up is counted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.experiments.bench.corpus import corpus_file, units
from soundingline.experiments.bench.harness import (
    DATA,
    Arguments,
    Section,
    Table,
    report,
    run,
    spread,
    take_turns,
)
from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.console import Console, track
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import Grid, RankTable, measure_table
from soundingline.toolkit.evaluation.retrieval import measure_rankings

GRID = Grid("0:32:1", "0:1:0.1", "pi_serini")
PAIRS = [(k1, b) for k1, b in GRID.points]
TERMS, DEPTH, JUDGED, BROWSECOMP = 60, 1000, 6, 830
MEASURES = ("nDCG@10", "AP", "R@1000")
HEAD = ("system", "cells a round", "s, all cells", "ms a question", "ms a search", "times slower")


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
    numbers = set(rng.choice(among, min(3 * count, among), replace=False).tolist())
    questions: list[Question] = []
    reading = track(islice(units(corpus), max(numbers) + 1), "drawing questions", max(numbers) + 1)
    for number, unit in enumerate(reading):
        if number not in numbers or len(questions) == count:
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
        hits, _ = index.search(terms, depth=DEPTH)
        others = index.docnos.take(rng.choice(hits, min(JUDGED, len(hits)), replace=False))
        docids = dict.fromkeys([unit.unit_id, *others.tolist()])
        text = " ".join(words[term] for term in terms)
        questions.append(Question(text, terms, list(docids)[:JUDGED]))
    if len(questions) < count:
        raise InputError(
            f"only {len(questions)} documents are long enough", do="take more documents"
        )
    return questions


def whole_grid(
    index: LexicalIndex, questions: Sequence[Question], threads: int
) -> Callable[[object], dict[str, NDArray[np.int32]]]:
    """Ranks the judged documents of all questions in all cells, from terms to ranks."""
    queries = [JudgedQuery(str(n), q.terms, q.docids) for n, q in enumerate(questions)]

    def rank(cells: object) -> dict[str, NDArray[np.int32]]:
        return dict(GridBM25(index, PAIRS).ranks(queries, threads))

    return rank


def ours(
    index: LexicalIndex, questions: Sequence[Question], pool: ThreadPoolExecutor
) -> Callable[[Sequence[int]], list[list[tuple[Any, Any]]]]:
    """Ranks all questions in some cells, spread over the threads of the pool."""

    def rank(cells: Sequence[int]) -> list[list[tuple[Any, Any]]]:
        rankings = []
        for k1, b in (PAIRS[cell] for cell in cells):
            search = partial(index.search, k1=k1, b=b, depth=DEPTH)
            rankings.append(list(pool.map(search, [question.terms for question in questions])))
        return rankings

    return rank


def check_same(
    index: LexicalIndex,
    questions: Sequence[Question],
    ranks: dict[str, NDArray[np.int32]],
    single: dict[int, list[tuple[Any, Any]]],
) -> None:
    """Times of systems that compute different things would say nothing: measures must be equal,
    scores within 1e-5."""
    judged = {str(n): dict.fromkeys(q.docids, 1) for n, q in enumerate(questions)}
    docids = {qid: list(judged[qid]) for qid in judged}
    rank_table = RankTable(PAIRS, docids, {qid: ranks[qid] for qid in judged})
    table = measure_table(rank_table, judged, MEASURES)
    for cell, hits in single.items():
        rankings = {
            str(n): index.docnos.take(numbers).tolist() for n, (numbers, _) in enumerate(hits)
        }
        expected = measure_rankings(rankings, judged, MEASURES)
        for measure in MEASURES:
            ours = dict(zip(table.qids, table.of(measure)[:, cell].tolist(), strict=True))
            if ours != expected[measure]:
                raise RuntimeError(f"{measure} differs between grid and single run of {cell}")
    grid = GridBM25(index, PAIRS)
    for number, question in enumerate(questions[:10]):
        scores = grid.scores(JudgedQuery("", question.terms, question.docids))
        for cell, hits in single.items():
            alone = dict(zip(index.docnos.take(hits[number][0]), hits[number][1], strict=True))
            for row, docid in enumerate(question.docids):
                if docid in alone and not np.isclose(scores[row, cell], alone[docid], rtol=1e-5):
                    raise RuntimeError(f"scores of {docid} differ in cell {cell}")


def anserini(
    folder: Path, corpus: Path, questions: Sequence[Question], threads: int
) -> Callable[[Sequence[int]], Any] | None:
    """Ranks all questions in some cells by Anserini's `SimpleSearcher`; None where it is not
    installed."""
    from soundingline.pipelines.engines.anserini import AnseriniEngine

    engine = AnseriniEngine(document_vectors=False)
    path = folder / "anserini"
    texts = [question.text for question in questions]
    try:
        if not path.exists():
            engine.build(units(corpus), path, corpus_fingerprint=folder.name)
        index = engine.open(path, corpus_fingerprint=folder.name)
        index.search(texts[:1], DEPTH, {"k1": 1.0, "b": 0.5}, threads)
    except InputError as error:
        Console(stderr=True).print(f"Anserini is left out: {error}", highlight=False)
        return None

    def rank(cells: Sequence[int]) -> Any:
        for k1, b in (PAIRS[cell] for cell in cells):
            index.search(list(texts), DEPTH, {"k1": k1, "b": b}, threads)

    return rank


def rows_of(
    seconds: Mapping[str, Sequence[float]], cells: Mapping[str, int], questions: int
) -> list[list[str]]:
    """One row a system. `seconds` of its rounds, those of the first system being the measure of the
    others round by round, and how many `cells` it took in each."""
    first = next(iter(seconds.values()))
    rows = []
    for name, rounds in seconds.items():
        share = len(GRID) / cells[name]
        of_all = [share * each for each in rounds]
        searches = [1000 * each / cells[name] / questions for each in rounds]
        rows.append(
            [
                name,
                f"{cells[name]}",
                spread(of_all),
                spread([1000 * each / questions for each in of_all]),
                "—" if share == 1 else spread(searches, 2),
                spread([each / grid for each, grid in zip(of_all, first, strict=True)]),
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
    drawn = rng.choice(len(GRID), (options.rounds, options.cells), replace=False).tolist()
    threads = options.threads
    alone = f"cell by cell ({threads} threads)"
    grid, ours_alone = f"grid ({threads} threads)", f"ours, {alone}"
    systems: dict[str, Callable[[Any], Any]] = {
        grid: whole_grid(index, questions, threads),
        "grid (1 thread)": whole_grid(index, questions, 1),
    }
    cells = dict.fromkeys(systems, len(GRID))
    with ThreadPoolExecutor(threads) as pool:
        systems[ours_alone] = ours(index, questions, pool)
        if (java := anserini(folder, corpus, questions, threads)) is not None:
            systems[f"Anserini, {alone}"] = java
        turns = take_turns(systems, [[of_round] for of_round in drawn], drawn[:1], "rounds")
    single = {
        cell: ranking
        for of_round, rankings in zip(drawn, turns[ours_alone].results, strict=True)
        for cell, ranking in zip(of_round, rankings, strict=True)
    }
    check_same(index, questions, turns[grid].results[0], single)
    seconds = {name: turn.seconds for name, turn in turns.items()}
    for name in systems:
        cells.setdefault(name, options.cells)
    rows = rows_of(seconds, cells, len(questions))
    many = list(islice((q for _ in range(BROWSECOMP) for q in questions), BROWSECOMP))
    browsecomp = take_turns({grid: whole_grid(index, many, threads)}, [[None]])
    return index, rows, browsecomp[grid].seconds[0]


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = Arguments(
        "tuning",
        documents=(100_000, 1000),
        questions=(100, 1),
        rounds=(5, 1),
        cells=(4, 1),
        threads=(os.cpu_count() or 1, 1),
        seed=(7, 0),
    )
    options = parser.read(arguments)
    if options.rounds * options.cells > len(GRID):
        raise InputError(
            f"rounds={options.rounds} of cells={options.cells}", valid=f"{len(GRID)} cells at most"
        )
    corpus = corpus_file(DATA, options.documents, options.seed)
    index, rows, browsecomp = measure(corpus, options)
    counts = index.statistics
    intro = (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens; {options.questions} "
        f"questions of {TERMS} distinct terms, {JUDGED} judged documents each, depth {DEPTH}. "
        f"Medians of {options.rounds} rounds in turns (least–most), load {os.getloadavg()[0]:.1f}. "
        f"Cells measured one by one are drawn at random, others in each round; their time is taken "
        f"times {len(GRID)} over their number. The virtual machine's start and a first round are "
        "not counted. In every cell measured, measures of the grid and of our single run are "
        "equal, and scores within 1e-5."
    )
    browsecomp_text = (
        f"{BROWSECOMP} such questions in {len(GRID)} cells: {browsecomp:.1f} s, "
        f"{options.threads} threads."
    )
    parts: list[str | Table] = [intro, Table(HEAD, rows), browsecomp_text]
    report(Section("tuning", "Tuning", parser.command(options), parts), write=options.write)


if __name__ == "__main__":
    run(main)
