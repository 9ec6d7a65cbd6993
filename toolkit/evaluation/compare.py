"""Verdicts: which differences between evaluated runs are more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from toolkit.errors import InputError
from toolkit.evaluation.cells import Cell
from toolkit.evaluation.statistics import Paired, holm, paired

FAMILIES = ("measure", "all")


class Verdict(NamedTuple):
    """One paired comparison of the cells `a` and `b` on one measure: `a` minus `b`.

    The other fields are those of `statistics.Paired`, and `p_holm`, the p value after Holm's
    correction over the family that the comparison belongs to.
    """

    measure: str
    a: str
    b: str
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    n: int
    needed: int | None
    wins: int
    losses: int
    ties: int


def compare(
    cells: Sequence[Cell],
    measures: Sequence[str],
    baseline: str | None = None,
    *,
    test: str = "randomisation",
    interval: str = "percentile",
    family: str = "measure",
    resamples: int = 9999,
    seed: int = 0,
) -> list[Verdict]:
    """Every cell against the cell named `baseline`; without one, all pairs (the later against the
    earlier). Rows are ordered by measure, then by pair.

    - `family`: what Holm's correction runs over: the comparisons on one `measure` (default, as in
      `pt.Experiment`) or `all` of this call.
    - `test`, `interval`, `resamples`, `seed`: see `statistics.paired`. Each comparison starts from
      the same seed, so that adding a cell does not change the others' intervals.
    - A measure of effort is taken over the questions that both runs recorded and of which both know
      it (money and tokens may be unknown): `n` says how many these are, and the means of the row
      are over them.

    `InputError` for cells of different benchmarks or questions (telling how many they share), for
    names that are unknown or not unique, for a measure that a cell lacks, and for one that two
    cells share on fewer than two questions.
    """
    if family not in FAMILIES:
        raise InputError(f"the family is {family!r}", valid=", ".join(FAMILIES))
    pairs = _pairs(cells, baseline)
    for a, b in pairs:
        _check_comparable(a, b)
    rows = [
        (measure, a.name, b.name, _paired(a, b, measure, test, interval, resamples, seed))
        for measure in measures
        for a, b in pairs
    ]
    adjusted = _adjusted([(measure, row.p) for measure, _, _, row in rows], family)
    return [
        _verdict(measure, a, b, row, p_holm)
        for (measure, a, b, row), p_holm in zip(rows, adjusted, strict=True)
    ]


def _pairs(cells: Sequence[Cell], baseline: str | None) -> list[tuple[Cell, Cell]]:
    by_name = {cell.name: cell for cell in cells}
    if len(by_name) < len(cells):
        raise InputError("two of the runs to compare have one name", do="name each run once")
    if baseline is None:
        return [(later, earlier) for earlier, later in combinations(cells, 2)]
    if baseline not in by_name:
        raise InputError(f"the baseline is {baseline!r}", valid=", ".join(by_name))
    return [(cell, by_name[baseline]) for cell in cells if cell.name != baseline]


def _check_comparable(a: Cell, b: Cell) -> None:
    one, other = (cell.manifest.get("fingerprints", {}).get("benchmark") for cell in (a, b))
    if one != other:
        raise InputError(
            f"the runs {a.name} and {b.name} are of different benchmarks ({one} and {other})",
            valid="runs over one benchmark with one content",
            do="run both again over the same benchmark",
        )


def _paired(
    a: Cell, b: Cell, measure: str, test: str, interval: str, resamples: int, seed: int
) -> Paired:
    first, second = _values(a, measure), _values(b, measure)
    if first.keys() != second.keys():
        _check_questions(a, b, measure)
        shared = [qid for qid in first if qid in second]
        if len(shared) < 2:
            raise InputError(
                f"{measure} is known of {len(first)} questions of the run {a.name}, of "
                f"{len(second)} of {b.name}, and of {len(shared)} of both",
                valid="two questions or more",
                do="leave that measure out, or run both with known prices and usage",
            )
        first = {qid: first[qid] for qid in shared}
        second = {qid: second[qid] for qid in shared}
    return paired(first, second, test=test, interval=interval, resamples=resamples, seed=seed)


def _values(cell: Cell, measure: str) -> Mapping[str, float]:
    if measure not in cell.per_question:
        raise InputError(
            f"the run {cell.name} has no measure {measure!r} by question",
            valid=", ".join(cell.per_question) or "none",
            do="evaluate it again with that measure; money and tokens are left out where they are "
            "known of no question",
        )
    return cell.per_question[measure]


def _check_questions(a: Cell, b: Cell, measure: str) -> None:
    """Differing questions of one measure are well only where the runs' questions are the same:
    then each lacks what it did not record."""
    one, other = _questions(a), _questions(b)
    if one != other:
        raise InputError(
            f"the runs {a.name} ({len(one)} questions) and {b.name} ({len(other)} questions) "
            f"share {len(one & other)} on {measure}",
            valid="runs over the same questions",
            do="run or evaluate both over the same split and limit",
        )


def _questions(cell: Cell) -> set[str]:
    return {qid for values in cell.per_question.values() for qid in values}


def _adjusted(p_values: Sequence[tuple[str, float]], family: str) -> list[float]:
    members: dict[str, list[int]] = {}
    for index, (measure, _) in enumerate(p_values):
        members.setdefault(measure if family == "measure" else "", []).append(index)
    adjusted = [1.0] * len(p_values)
    for indexes in members.values():
        for index, p in zip(indexes, holm([p_values[at][1] for at in indexes]), strict=True):
            adjusted[index] = p
    return adjusted


def _verdict(measure: str, a: str, b: str, row: Paired, p_holm: float) -> Verdict:
    return Verdict(measure=measure, a=a, b=b, p_holm=p_holm, **row._asdict())
