"""Grids of BM25 settings, the ranks of judged documents at each point, and measures from these
ranks. This module does not rank: it receives ranks, and ir_measures computes every measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.data import Qrels
from soundingline.toolkit.errors import InputError, check_number
from soundingline.toolkit.evaluation.retrieval import (
    calculate,
    measured_grades,
    parse_measures,
)
from soundingline.toolkit.files import atomic_file

NAMES = ("k1", "b", "weight", "tau")
DEFAULT_POINT = (0.9, 0.4)
DEFAULT_ENRICHMENT = (0.5, 0.05)  # weight and tau, which SIRA uses for every data set
GridPoint = tuple[float, ...]
"""(k1, b), or (k1, b, weight, tau): the first numbers of `NAMES`."""
Axis = str | float | Sequence[float]
_LARGEST = 100_000  # points of a grid
_BATCH = 2_000_000  # rows of the rankings that are in memory at once
_SETS = ("R", "P", "Success")  # measures for which only the set within the cutoff counts

# Grades of the judged documents and their ranks, both ordered by grade, then rank.
JudgedRanks = tuple[tuple[int, ...], tuple[int, ...]]


class Grid:
    """All points (k1, b), or (k1, b, weight, tau), of some axes.

    Args:
        k1, b: axes of BM25; k1 is 0 or more, b is from 0 to 1. An axis is a number, a list of
            numbers, or `start:stop:step` with both ends included. Steps are decimal, so `0:1:0.1`
            has 11 values and contains exactly 0.3.
        name: the grid's name in tables.
        weight, tau: axes of a query enrichment: the weight of its expansion (0 or more) and the
            limit of its filters (above 0, at most 1). None for a grid without enrichment, and for
            the enrichment's own value (see `enriched`).

    Raises:
        InputError: for an empty axis, a step that is not above 0, and values out of range.

    Example:
        >>> Grid("0:1:0.5", 0.4).points
        [(0.0, 0.4), (0.5, 0.4), (1.0, 0.4)]
    """

    def __init__(
        self,
        k1: Axis,
        b: Axis,
        name: str = "grid",
        weight: Axis | None = None,
        tau: Axis | None = None,
    ) -> None:
        self.name = name
        self.k1 = _axis("k1", k1, math.inf)
        self.b = _axis("b", b, 1.0)
        self.weight = () if weight is None else _axis("weight", weight, math.inf)
        self.tau = () if tau is None else _axis("tau", tau, 1.0)
        if 0.0 in self.tau:
            raise InputError("the grid has tau=0", valid="above 0, at most 1 (no limit)")
        if len(self) > _LARGEST:
            raise InputError(f"the grid has {len(self):,} points", valid=f"at most {_LARGEST:,}")

    def enriched(self, weight: float, tau: float) -> Grid:
        """The grid for an enrichment. Its `weight` and `tau` are the only values of these axes if
        the grid has none."""
        return Grid(self.k1, self.b, self.name, self.weight or [weight], self.tau or [tau])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a point's numbers."""
        return NAMES if self.weight and self.tau else NAMES[:2]

    @property
    def points(self) -> list[GridPoint]:
        """All points. From the slowest to the fastest axis: tau, weight, k1, b."""
        planes = product(self.planes, self.k1, self.b)
        return [(k1, b, *plane) for plane, k1, b in planes]

    @property
    def planes(self) -> list[GridPoint]:
        """The (weight, tau) of each plane of (k1, b) in order; one empty tuple without an
        enrichment."""
        return [(weight, tau) for tau, weight in product(self.tau, self.weight)] or [()]

    def __len__(self) -> int:
        return len(self.k1) * len(self.b) * max(1, len(self.weight)) * max(1, len(self.tau))

    def __repr__(self) -> str:
        axes = {name: len(getattr(self, name)) for name in NAMES if getattr(self, name)}
        shown = " x ".join(f"{count} {name}" for name, count in axes.items())
        return f"Grid({self.name!r}, {shown})"


def _axis(name: str, axis: Axis, largest: float) -> tuple[float, ...]:
    values: Sequence[Any]
    if isinstance(axis, str):
        values = _range(name, axis)
    else:
        values = axis if isinstance(axis, Sequence) else [axis]
    if not values:
        raise InputError(f"the grid's {name} is empty", valid="one value or more")
    for value in values:
        check_number(f"the grid's {name}", value, le=largest)
    return tuple(sorted(set(map(float, values))))


def _range(name: str, text: str) -> list[float]:
    try:
        start, stop, step = map(Decimal, text.split(":"))
        count = int((stop - start) / step) + 1 if stop >= start else 0
        valid = step > 0 and count <= _LARGEST
    except (ValueError, ArithmeticError):
        valid = False
    if not valid:
        raise InputError(
            f"the grid's {name} is {text!r}",
            valid=f"start:stop:step of at most {_LARGEST:,} values, such as 0:32:1, or [0.9,1.2]",
        )
    return [float(start + step * number) for number in range(count)]


def point_settings(point: GridPoint) -> dict[str, float]:
    """The numbers of a point by their names."""
    return dict(zip(NAMES, point, strict=False))


def distance(point: GridPoint) -> float:
    """The Euclidean distance of a point from the default in (k1 / (1 + k1), b), and in
    (weight / (1 + weight), tau) if it has these.

    k1 / (1 + k1) is the share of its weight that a term of frequency 1 loses in a document of
    average length. Like b, it is between 0 and 1, and a step of k1 counts less the higher k1 is.
    """
    saturating = {"k1", "weight"}
    default = (*DEFAULT_POINT, *DEFAULT_ENRICHMENT)[: len(point)]
    scaled = [
        [v / (1 + v) if name in saturating else v for name, v in point_settings(settings).items()]
        for settings in (point, default)
    ]
    return math.dist(*scaled)


@dataclass(frozen=True)
class RankTable:
    """The ranks of judged documents: question -> int32 [its judged documents (`docids`), points],
    from 1, and 0 for a document that the ranking does not contain.
    """

    points: Sequence[GridPoint]
    docids: Mapping[str, Sequence[str]]
    ranks: Mapping[str, NDArray[np.int32]]

    def save(self, path: Path) -> None:
        """Write one .npz file, atomically and without pickle."""
        qids = sorted(self.ranks)  # threads add them in any order
        parts = [self.ranks[qid] for qid in qids]
        _save(
            path,
            points=_point_array(self.points),
            qids=np.array(qids, dtype=np.str_),
            counts=np.array([len(self.docids[qid]) for qid in qids], dtype=np.int64),
            docids=np.array([d for qid in qids for d in self.docids[qid]], dtype=np.str_),
            ranks=np.concatenate([np.empty((0, len(self.points)), np.int32), *parts]),
        )

    @classmethod
    def load(cls, path: Path) -> RankTable:
        """Read a file that `save` wrote; `InputError` for a damaged one."""
        names = ("points", "qids", "counts", "docids", "ranks")
        # The archive has a checksum of each array (zip's CRC-32).
        try:
            with np.load(path, allow_pickle=False) as stored:
                data = {name: stored[name] for name in names}
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds over damaged bytes
            raise InputError(
                f"cannot read {path}: {error}", do="move it away and tune again"
            ) from error
        qids, ends = data["qids"].tolist(), np.cumsum(data["counts"])[:-1]
        docids = (part.tolist() for part in np.split(data["docids"], ends))
        rows = np.split(data["ranks"], ends)
        return cls(
            [tuple(point) for point in data["points"].tolist()],
            dict(zip(qids, docids, strict=False)),
            dict(zip(qids, rows, strict=False)),
        )

    @classmethod
    def joined(cls, tables: Sequence[RankTable]) -> RankTable:
        """One table of the questions of several tables; `InputError` if their points differ."""
        first, *rest = tables
        if any(list(table.points) != list(first.points) for table in rest):
            raise InputError(
                "the rank tables have different points", do="delete them and tune again"
            )
        docids = {qid: names for table in tables for qid, names in table.docids.items()}
        ranks = {qid: rows for table in tables for qid, rows in table.ranks.items()}
        return cls(first.points, docids, ranks)


@dataclass(frozen=True)
class MeasureTable:
    """The value of each measure for each question at each point, float64."""

    measures: Sequence[str]
    qids: Sequence[str]
    points: Sequence[GridPoint]
    values: NDArray[np.float64]

    def of(self, measure: str, qids: Sequence[str] | None = None) -> NDArray[np.float64]:
        """The values [questions, points] of one measure, of all questions or of `qids`;
        `InputError` for a measure that is missing from the table."""
        if measure not in self.measures:
            valid = ", ".join(self.measures)
            raise InputError(f"the table has no measure {measure!r}", valid=valid)
        values = self.values[list(self.measures).index(measure)]
        if qids is None:
            return values
        rows = {qid: row for row, qid in enumerate(self.qids)}
        return values[[rows[qid] for qid in qids]]

    def by_question(self, measure: str, point: int) -> dict[str, float]:
        """The value of each question at the point with this number."""
        return dict(zip(self.qids, self.of(measure)[:, point].tolist(), strict=True))

    def save(self, path: Path) -> None:
        """Write one .npz file, atomically: `measures`, `qids`, `points` [points, 2 or 4] and
        `values`."""
        _save(
            path,
            measures=np.array(self.measures, dtype=np.str_),
            qids=np.array(self.qids, dtype=np.str_),
            points=_point_array(self.points),
            values=self.values,
        )


def _point_array(points: Sequence[GridPoint]) -> NDArray[np.float64]:
    return np.array(points, dtype=np.float64).reshape(len(points), len(points[0]) if points else 2)


def _save(path: Path, **arrays: NDArray[Any]) -> None:
    with atomic_file(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def measure_table(table: RankTable, qrels: Qrels, measures: Sequence[str]) -> MeasureTable:
    """Compute measures at all points from the ranks of judged documents, with the values of the
    full rankings.

    `qrels` has the questions to measure with all their documents in the table. `InputError` for an
    unknown measure, and for one that depends on the number of retrieved documents (such as `SetP`
    or `NumRet`), which ranks of judged documents do not determine.
    """
    parsed = parse_measures(measures)
    # A measure of ranks alone does not change if unjudged documents are appended.
    longer = {"1": 2.0, **{f"2{number}": -float(number) for number in range(20)}}
    for measure, name in zip(parsed, measures, strict=True):
        short, long = (
            ir_measures.calc_aggregate([measure], {"1": {"1": 1}}, {"1": run})[measure]
            for run in ({"1": 2.0}, longer)
        )
        if short != long:
            raise InputError(
                f"{name!r} depends on how many documents are retrieved, not on ranks alone",
                valid="AP, RR, nDCG, R, P, Success and others of ranks",
                do="choose one of these as an objective",
            )
    qids = list(qrels)
    graded = {qid: measured_grades(qid, qrels[qid]) for qid in qids}
    grades = {
        qid: np.array([graded[qid][docid] for docid in table.docids[qid]], dtype=np.int64)
        for qid in qids
    }
    values = np.zeros((len(measures), len(qids), len(table.points)))
    for row, measure in enumerate(parsed):
        # Points, and questions with equal grades, share most rankings: each is measured once.
        rankings: dict[JudgedRanks, int] = {}
        numbers = [_numbered(table.ranks[qid], grades[qid], measure, rankings) for qid in qids]
        of_rankings = np.array(list(_values(measure, list(rankings))), dtype=np.float64)
        for column, number in enumerate(numbers):
            values[row, column] = of_rankings[number]
    return MeasureTable(list(measures), qids, list(table.points), values)


def _numbered(
    ranks: NDArray[np.int32],
    grades: NDArray[np.int64],
    measure: Any,
    rankings: dict[JudgedRanks, int],
) -> NDArray[np.int64]:
    """The number of each point in `rankings`; one for rankings that are equal to the measure."""
    order = np.argsort(-grades, kind="stable")
    grades, ranks = grades[order], ranks[order]
    if (cutoff := measure.params.get("cutoff")) is not None:
        ranks = np.where(ranks <= cutoff, ranks, 0)
        if measure.NAME in _SETS:
            retrieved = ranks > 0
            ranks = np.where(retrieved, np.cumsum(retrieved, axis=0, dtype=np.int32), 0)
    # Documents of one grade are interchangeable: their ranks in ascending order name the ranking.
    for grade in np.unique(grades):
        rows = grades == grade
        ranks[rows] = np.sort(ranks[rows], axis=0)
    distinct, inverse = np.unique(ranks, axis=1, return_inverse=True)
    by_grade = tuple(grades.tolist())
    numbers = [
        rankings.setdefault((by_grade, tuple(column)), len(rankings))
        for column in distinct.T.tolist()
    ]
    return np.array(numbers, dtype=np.int64)[inverse.reshape(-1)]


def _values(measure: Any, rankings: Sequence[JudgedRanks]) -> Iterator[float]:
    """The value of the measure for each ranking. Batches bound the rows that are in memory."""
    rows = np.cumsum([1 + max(ranks, default=0) for _, ranks in rankings])
    numbered = zip(rankings, (rows // _BATCH).tolist(), strict=True)
    for _, group in groupby(numbered, key=itemgetter(1)):
        qrels: dict[str, dict[str, int]] = {}
        run: dict[str, dict[str, float]] = {}
        for number, ((grades, ranks), _) in enumerate(group):
            judged = [f"d{position}" for position in range(len(grades))]
            qrels[str(number)] = dict(zip(judged, grades, strict=True))
            if length := max(ranks, default=0):
                names, scores = _unjudged(1 << length.bit_length())
                names = names[:length]  # of others, at the ranks between
                for name, rank in zip(judged, ranks, strict=True):
                    if rank:
                        names[rank - 1] = name
                run[str(number)] = dict(zip(names, scores, strict=False))
        values = {row.query_id: row.value for row in calculate([measure], qrels, run)}
        yield from (float(values[qid]) for qid in qrels)


@cache
def _unjudged(count: int) -> tuple[list[str], list[float]]:
    return [f"f{rank}" for rank in range(count)], [-float(rank) for rank in range(1, count + 1)]
