"""Choosing a cell on some questions and reporting it on others.

The value of the best cell on the questions that chose it is too high, because it is a maximum over
noise. Optimism is how much: what choosing on the reported questions themselves would have claimed,
less what the cell chosen elsewhere reaches there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.evaluation.tuning.grid import distance
from toolkit.evaluation.tuning.ranks import GridPoint

# Means that are equal but for the rounding of their sums are equal.
_EQUAL = 1e-12
Values = NDArray[np.float64]


class HeldOut(NamedTuple):
    """`chosen` is the best cell on the selecting questions, `best` that on the reported ones (both
    cell numbers); the values are means on the reported questions, but for `selected`, the chosen
    cell's on the selecting ones. `optimism` is `best_value` - `chosen_value`, 0 or more."""

    chosen: int
    best: int
    selected: float
    chosen_value: float
    best_value: float
    selecting: int
    reported: int

    @property
    def optimism(self) -> float:
        return self.best_value - self.chosen_value


class CrossValidated(NamedTuple):
    """`chosen` is the best cell on all questions, `selected` its mean there. `value` is the mean
    over all questions, each in the cell chosen without its fold. `folds` has each fold's cell and
    `objectives` what chose it. `optimism` is `selected` - `value`."""

    chosen: int
    selected: float
    value: float
    folds: Sequence[int]
    objectives: Sequence[str]
    questions: int

    @property
    def optimism(self) -> float:
        return self.selected - self.value


def best_cell(values: Values, cells: Sequence[GridPoint]) -> int:
    """The cell of the highest mean over the questions (rows). Ties go to the cell nearest the
    default (see `grid.distance`), then to the first."""
    means = values.mean(axis=0)
    ties = np.flatnonzero(means >= means.max() - _EQUAL).tolist()
    return int(min(ties, key=lambda cell: (distance(cells[cell]), cell)))


def held_out(selecting: Values, reported: Values, cells: Sequence[GridPoint]) -> HeldOut:
    """Choose on one split and report on another; both are [questions, cells]."""
    chosen, best = best_cell(selecting, cells), best_cell(reported, cells)
    return HeldOut(
        chosen=chosen,
        best=best,
        selected=float(selecting[:, chosen].mean()),
        chosen_value=float(reported[:, chosen].mean()),
        best_value=float(reported[:, best].mean()),
        selecting=len(selecting),
        reported=len(reported),
    )


def cross_validated(
    values: Values, cells: Sequence[GridPoint], *, folds: int = 5, seed: int = 0
) -> CrossValidated:
    """k-fold: each fold's questions in the cell that is best on the other folds."""
    return nested({"": values}, "", cells, folds=folds, seed=seed)


def nested(
    table: Mapping[str, Values],
    objective: str,
    cells: Sequence[GridPoint],
    *,
    folds: int = 5,
    seed: int = 0,
) -> CrossValidated:
    """Nested cross-validation: what to choose by is itself chosen without the fold.

    A cell chosen by another measure than the objective may serve the objective better on new
    questions (Yilmaz & Robertson, 2010). `table` has the values [questions, cells] of every measure
    to choose by, the objective among them. Within the other folds, an inner cross-validation of
    k - 1 folds tells which measure's choice has the highest objective (ties: the objective, then
    their order); that measure then chooses the cell.
    """
    values = table[objective]
    if not 2 <= folds <= len(values):
        raise InputError(
            f"{folds} folds of {len(values)} questions",
            valid=f"2 to {len(values)} folds",
            do="set tuning.folds, or take more questions",
        )
    out = np.empty(len(values))
    chosen, names = [], []
    for train, test in _folds(len(values), folds, np.random.default_rng(seed)):
        name = _surrogate(table, objective, cells, train, max(folds - 1, 2), seed)
        cell = best_cell(table[name][train], cells)
        out[test] = values[test, cell]
        chosen.append(cell)
        names.append(name)
    best = best_cell(values, cells)
    return CrossValidated(
        best, float(values[:, best].mean()), float(out.mean()), chosen, names, len(values)
    )


def _surrogate(
    table: Mapping[str, Values],
    objective: str,
    cells: Sequence[GridPoint],
    train: NDArray[np.intp],
    folds: int,
    seed: int,
) -> str:
    if len(table) == 1 or len(train) < 2:
        return objective
    reached = {}
    for name in (objective, *(name for name in table if name != objective)):
        # The same inner folds for every measure, so that only the measure tells them apart.
        inner = _folds(len(train), min(folds, len(train)), np.random.default_rng(seed))
        reached[name] = sum(
            table[objective][train[test], best_cell(table[name][train[training]], cells)].sum()
            for training, test in inner
        )
    best = max(reached.values())
    return next(name for name, value in reached.items() if value >= best - _EQUAL * len(train))


def _folds(
    count: int, folds: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Questions to train and to test on, of each fold; sizes differ by one at most."""
    order = rng.permutation(count)
    for test in np.array_split(order, folds):
        yield np.sort(np.setdiff1d(order, test)), np.sort(test)
