"""Choosing a point of the grid on some questions and reporting it on others.

The best point's mean on the questions that chose it is too high, because it is a maximum over
noise. The optimism says by how much: the mean that choosing on the reported questions themselves
would have claimed, minus the mean that the point chosen on other questions reaches there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import (
    Grid,
    GridPoint,
    MeasureTable,
    distance,
    point_settings,
)
from soundingline.toolkit.evaluation.statistics import (
    Paired,
    equal_ties,
    holm,
    paired_differences,
    paired_test,
    t_test,
)

Values = NDArray[np.float64]

ALPHA = 0.05  # of the plateau of points that do not differ significantly from the chosen one


@dataclass(frozen=True)
class HeldOut:
    """A choice on `selecting` questions that is reported on `reported` others."""

    chosen: int  # the number of the best point on the selecting questions
    best: int  # the number of the best point on the reported questions
    selected: float  # the mean of `chosen` on the selecting questions
    chosen_value: float  # the means of both points on the reported questions
    best_value: float
    selecting: int
    reported: int

    @property
    def optimism(self) -> float:
        """`best_value` - `chosen_value`, 0 or more."""
        return max(0.0, self.best_value - self.chosen_value)


@dataclass(frozen=True)
class CrossValidated:
    """A choice on one set of questions by cross-validation."""

    chosen: int  # the number of the best point on all questions
    selected: float  # the mean of `chosen` on all questions
    values: Sequence[float]  # of each question at the point that is chosen without its fold
    folds: Sequence[int]  # the number of the point chosen without each fold
    members: Sequence[Sequence[int]]  # the rows of the questions of each fold

    def fold_parameters(
        self, qids: Sequence[str], points: Sequence[GridPoint]
    ) -> list[dict[str, Any]]:
        """The parameters of each fold and its `questions`, whose ids are the rows' `qids`."""
        return [
            {**point_settings(points[number]), "questions": [qids[row] for row in rows]}
            for number, rows in zip(self.folds, self.members, strict=True)
        ]

    @property
    def questions(self) -> int:
        """The number of questions."""
        return len(self.values)

    @property
    def value(self) -> float:
        """The mean of `values`."""
        return float(np.mean(self.values))

    @property
    def optimism(self) -> float:
        """`selected` - `value`."""
        return self.selected - self.value


@dataclass(frozen=True)
class Plateau:
    """The points whose difference to the best one is not significant."""

    best: int  # the number of the point that all others were tested against
    p_holm: NDArray[np.float64]  # [points], after Holm's correction; 1 for `best` itself
    inside: NDArray[np.bool_]  # [points], whether the difference is not significant at `ALPHA`


def best_point(values: Values, points: Sequence[GridPoint]) -> int:
    """The number of the point with the highest mean over the questions; see `ordered_points`."""
    return ordered_points(values, points)[0]


def ordered_points(values: Values, points: Sequence[GridPoint]) -> list[int]:
    """The numbers of the points by their means over the questions, best first.

    Args:
        values: float64 [questions, points].
        points: the settings of each column. Ties, including means that differ only by rounding, go
            to the point nearest to the default (`grid.distance`), then to the first.
    """
    means = equal_ties(values.mean(axis=0))
    return sorted(range(len(means)), key=lambda at: (-means[at], distance(points[at]), at))


def held_out(selecting: Values, reported: Values, points: Sequence[GridPoint]) -> HeldOut:
    """Choose on one split and report on another; both are float64 [questions, points]."""
    chosen, best = best_point(selecting, points), best_point(reported, points)
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
    values: Values, points: Sequence[GridPoint], *, folds: int = 5, seed: int = 0
) -> CrossValidated:
    """k-fold cross-validation: each fold is measured at the point that is best on the other folds.

    Args:
        values: float64 [questions, points].
        points: the settings of each column.
        folds: 2 to the number of questions; the sizes of folds differ by at most one question.
        seed: of the assignment of questions to folds.
    """
    if not 2 <= folds <= len(values):
        raise InputError(
            f"{folds} folds of {len(values)} questions",
            valid=f"2 to {len(values)} folds",
            do="set tuning.folds, or take more questions",
        )
    order = np.random.default_rng(seed).permutation(len(values))
    out, chosen = np.empty(len(values)), []
    members = [np.sort(test) for test in np.array_split(order, folds)]
    for test in members:
        point = best_point(values[np.setdiff1d(order, test)], points)
        out[test] = values[test, point]
        chosen.append(point)
    best = best_point(values, points)
    rows = [test.tolist() for test in members]
    return CrossValidated(best, float(values[:, best].mean()), tuple(out.tolist()), chosen, rows)


def plateau(values: Values, best: int) -> Plateau:
    """Compare every point of `values` [questions, points] with the point `best` by paired t-tests
    with Holm's correction, at the level 0.05.

    A plateau does not prove that its points are equal: with few questions it is wide.
    """
    if len(values) < 2:
        raise InputError(
            f"{len(values)} question cannot distinguish any two points",
            valid="two or more questions",
        )
    p = t_test(*paired_differences(values, values[:, [best]]))
    others = [point for point in range(len(p)) if point != best]
    corrected = np.ones(len(p))
    corrected[others] = holm(p[others].tolist())
    return Plateau(best, corrected, corrected > ALPHA)


@dataclass(frozen=True)
class TuningResult:
    """The results of a tuning.

    Attributes:
        grid: the points to choose from.
        objective: the measure whose choice is the tuning's.
        method: `held_out` or `kfold`.
        selecting, reported: the tables of the questions that choose and of those that are reported;
            the same object if one split is cross-validated. Their first `len(grid)` points are
            those of the grid. The others are references, which are measured but never chosen.
        choices: the choice of each measure.
        plateaus: the plateau around each measure's chosen point, on the questions that chose it.
        gains: measure -> reference -> the choice compared with it on the reported questions. After
            cross-validation, each question is measured at the point chosen without its fold.
    """

    grid: Grid
    objective: str
    method: str
    selecting: MeasureTable
    reported: MeasureTable
    choices: Mapping[str, HeldOut | CrossValidated]
    plateaus: Mapping[str, Plateau]
    gains: Mapping[str, Mapping[GridPoint, Paired]]

    @property
    def points(self) -> Sequence[GridPoint]:
        """The points of the grid, then the references."""
        return self.reported.points

    def chosen(self) -> GridPoint:
        """The point that the objective chooses."""
        return self.points[self.choices[self.objective].chosen]

    def fold_parameters(self) -> list[dict[str, Any]]:
        """After cross-validation, the parameters that the objective chose for the questions of each
        fold, and these questions' ids as `questions`; none after a choice on a split."""
        choice = self.choices[self.objective]
        if isinstance(choice, HeldOut):
            return []
        return choice.fold_parameters(sorted(self.selecting.qids), self.points)

    def means(self, measure: str, *, selecting: bool = False) -> NDArray[np.float64]:
        """The mean of a measure at every point of the grid."""
        table = self.selecting if selecting else self.reported
        return np.asarray(table.of(measure).mean(axis=0)[: len(self.grid)])

    def summary(self) -> dict[str, Any]:
        """The choices as plain values, as in `tuning.json`."""
        grid = {name: getattr(self.grid, name) for name in self.grid.names}
        return {
            "objective": self.objective,
            "method": self.method,
            "grid": {"name": self.grid.name, **grid},
            "questions": {
                "selecting": len(self.selecting.qids),
                "reported": len(self.reported.qids),
            },
            **({"folds": folds} if (folds := self.fold_parameters()) else {}),
            "measures": {measure: self._summary(measure) for measure in self.choices},
        }

    def _summary(self, measure: str) -> dict[str, Any]:
        gains = {
            " ".join(f"{name}={value:g}" for name, value in point_settings(point).items()): gain
            for point, gain in self.gains[measure].items()
        }
        choice, plateau = self.choices[measure], self.plateaus[measure]
        plain = dict(vars(choice))
        for name in {"chosen", "best"} & plain.keys():
            plain[name] = point_settings(self.points[plain[name]])
        if isinstance(choice, CrossValidated):
            del plain["values"], plain["members"]
            plain["value"], plain["questions"] = choice.value, choice.questions
            plain["folds"] = [point_settings(self.points[number]) for number in choice.folds]
        return {
            **plain,
            "optimism": choice.optimism,
            "plateau": int(plateau.inside.sum()),
            "plateau_alpha": ALPHA,
            "gains": {name: vars(gain) for name, gain in gains.items()},
        }


def tune(
    grid: Grid,
    objective: str,
    selecting: MeasureTable,
    reported: MeasureTable,
    *,
    references: Sequence[GridPoint],
    folds: int | None = None,
    seed: int = 0,
) -> TuningResult:
    """Choose a point by every measure of the tables.

    Args:
        grid: the points to choose from, which are the first points of both tables.
        objective: the measure whose choice is the tuning's.
        selecting, reported: the measures of the questions that choose and of those reported.
        references: points of the tables that the chosen point is compared with.
        folds: None to choose on `selecting` and report on `reported`; the number of folds to
            cross-validate, with one table for both.
        seed: of the folds and of the tests.

    Raises:
        InputError: for an objective that is missing from the tables, and for impossible folds.
    """
    selecting.of(objective)
    choices: dict[str, HeldOut | CrossValidated] = {}
    plateaus, gains = {}, {}
    for name in selecting.measures:
        # In the order of the ids, so that folds do not depend on the order of the questions.
        qids = sorted(selecting.qids)
        values = selecting.of(name, qids)[:, : len(grid)]
        choice: HeldOut | CrossValidated
        if folds is None:
            choice = held_out(values, reported.of(name)[:, : len(grid)], grid.points)
            chosen = reported.by_question(name, choice.chosen)
        else:
            choice = cross_validated(values, grid.points, folds=folds, seed=seed)
            chosen = dict(zip(qids, choice.values, strict=True))
        choices[name] = choice
        plateaus[name] = plateau(values, choice.chosen)
        gains[name] = {
            point: paired_test(
                chosen, reported.by_question(name, reported.points.index(point)), seed=seed
            )
            for point in references
        }
    method = "held_out" if folds is None else "kfold"
    return TuningResult(grid, objective, method, selecting, reported, choices, plateaus, gains)
