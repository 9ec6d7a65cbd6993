"""From ranks of judged documents to measures of every cell, computed by ir_measures itself.

A ranking is handed over as its judged documents at their ranks and nameless ones between them.
Equal rankings are handed over once: cells, and questions with equal grades, share most of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.evaluation.retrieval import parse_measures
from toolkit.evaluation.tuning.ranks import (
    GridPoint,
    RankTable,
    cell_array,
    load_arrays,
    save_arrays,
)

_BATCH = 2_000_000  # rows of pseudo rankings in memory at once
_WITHIN = ("R", "P", "Success")  # only tell which documents stand within the cutoff
_TINY = "a", "b"

# Grades of the judged documents, and their ranks; both ordered by grade, then rank.
JudgedRanks = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class MeasureTable:
    """`values` is float64 [measures, questions, cells]."""

    measures: Sequence[str]
    qids: Sequence[str]
    cells: Sequence[GridPoint]
    values: NDArray[np.float64]

    def of(self, measure: str, qids: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Values [questions, cells] of one measure, of all questions or those given; `InputError`
        for a measure that the table lacks."""
        if measure not in self.measures:
            raise InputError(
                f"the table has no measure {measure!r}", valid=", ".join(self.measures)
            )
        values = self.values[list(self.measures).index(measure)]
        if qids is None:
            return values
        positions = {qid: position for position, qid in enumerate(self.qids)}
        return values[[positions[qid] for qid in qids]]

    def save(self, path: Path) -> None:
        """Write one .npz file: `measures`, `qids`, `cells` [cells, 2 or 4], `values`."""
        save_arrays(
            path,
            measures=np.array(self.measures, dtype=np.str_),
            qids=np.array(self.qids, dtype=np.str_),
            cells=cell_array(self.cells),
            values=self.values,
        )

    @classmethod
    def load(cls, path: Path) -> MeasureTable:
        data = load_arrays(path, ("measures", "qids", "cells", "values"))
        cells = [tuple(cell) for cell in data["cells"].tolist()]
        return cls(data["measures"].tolist(), data["qids"].tolist(), cells, data["values"])


def measure_table(
    table: RankTable,
    judgements: Mapping[str, Mapping[str, int]],
    measures: Sequence[str],
) -> MeasureTable:
    """All measures of all cells and questions of `table`, equal to those of the cells' rankings.

    `judgements`: qid -> docid -> grade; must hold the questions of the table, which must hold their
    documents. `InputError` for an unknown measure, and for one that depends on how many documents
    a ranking holds (such as `SetP` or `NumRet`), which ranks cannot tell.
    """
    parsed = parse_measures(measures)
    for measure, name in zip(parsed, measures, strict=True):
        check_by_rank(measure, name)
    qids = list(table.ranks)
    values = np.zeros((len(measures), len(qids), len(table.cells)))
    for row, measure in enumerate(parsed):
        rankings: dict[JudgedRanks, int] = {}
        positions = [
            _places(table.ranks[qid], _grades(table, judgements, qid), measure, rankings)
            for qid in qids
        ]
        column_values = np.array(list(_values(measure, list(rankings))), dtype=np.float64)
        for column, position in enumerate(positions):
            values[row, column] = column_values[position]
    return MeasureTable(list(measures), qids, list(table.cells), values)


def check_by_rank(measure: Any, name: str) -> None:
    """`InputError` for a measure that changes when unjudged documents are added at the end."""
    document, other = _TINY
    qrels = {document: {document: 1}}
    longer = {document: 2.0, **{f"{other}{position}": -float(position) for position in range(20)}}
    values = {
        ir_measures.calc_aggregate([measure], qrels, {document: run})[measure]
        for run in ({document: 2.0}, longer)
    }
    if len(values) > 1:
        raise InputError(
            f"{name!r} depends on how many documents are retrieved, not on ranks alone",
            valid="AP, RR, nDCG, R, P, Success and others of ranks",
            do="choose one of these as an objective",
        )


def _grades(
    table: RankTable, judgements: Mapping[str, Mapping[str, int]], qid: str
) -> NDArray[np.int64]:
    return np.array([judgements[qid][docid] for docid in table.docids[qid]], dtype=np.int64)


def _places(
    ranks: NDArray[np.int32],
    grades: NDArray[np.int64],
    measure: Any,
    rankings: dict[JudgedRanks, int],
) -> NDArray[np.int64]:
    """For each cell the number of its ranking, as far as the measure sees it, in `rankings`."""
    order = np.argsort(-grades, kind="stable")
    seen = _seen(ranks[order], measure)
    # Documents of one grade are alike: their ranks in ascending order name the ranking.
    for grade in np.unique(grades):
        rows = grades[order] == grade
        seen[rows] = np.sort(seen[rows], axis=0)
    distinct, inverse = np.unique(seen, axis=1, return_inverse=True)
    grades_in_order = tuple(grades[order].tolist())
    numbers = [
        rankings.setdefault((grades_in_order, tuple(column)), len(rankings))
        for column in distinct.T.tolist()
    ]
    return np.array(numbers, dtype=np.int64)[inverse.reshape(-1)]


def _seen(ranks: NDArray[np.int32], measure: Any) -> NDArray[np.int32]:
    """Ranks as the measure tells them apart: none beyond its cutoff."""
    cutoff = measure.params.get("cutoff")
    if cutoff is None:
        return ranks.copy()
    seen = np.where(ranks <= cutoff, ranks, 0)
    if measure.NAME in _WITHIN:
        present = seen > 0
        seen = np.where(present, np.cumsum(present, axis=0, dtype=np.int32), 0)
    return seen.astype(np.int32)


def _values(measure: Any, rankings: Sequence[JudgedRanks]) -> Iterator[float]:
    for batch in _batches(rankings):
        qrels, run = {}, {}
        for number, (grades, ranks) in enumerate(batch):
            qid = str(number)
            qrels[qid] = {f"d{position}": grade for position, grade in enumerate(grades)}
            if any(ranks):
                run[qid] = _ranking(ranks)
        values = {row.query_id: row.value for row in ir_measures.iter_calc([measure], qrels, run)}
        yield from (float(values[str(number)]) for number in range(len(batch)))


def _ranking(ranks: tuple[int, ...]) -> dict[str, float]:
    """Scores of the judged documents at their ranks and of others at the ranks between."""
    length = max(ranks)
    names, scores = _others(1 << length.bit_length())
    names = names[:length]
    for position, rank in enumerate(ranks):
        if rank:
            names[rank - 1] = f"d{position}"
    return dict(zip(names, scores, strict=False))


@cache
def _others(count: int) -> tuple[list[str], list[float]]:
    return [f"f{rank}" for rank in range(count)], [-float(rank) for rank in range(1, count + 1)]


def _batches(rankings: Sequence[JudgedRanks]) -> Iterator[list[JudgedRanks]]:
    batch: list[JudgedRanks] = []
    rows = 0
    for ranking in rankings:
        batch.append(ranking)
        rows += 1 + max(ranking[1], default=0)
        if rows >= _BATCH:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch
