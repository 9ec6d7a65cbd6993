"""One tuning as a whole: tables, and for each measure the choice and its plateau."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.evaluation.statistics import Paired, paired
from toolkit.evaluation.tuning.choice import (
    CrossValidated,
    HeldOut,
    cross_validated,
    held_out,
    nested,
)
from toolkit.evaluation.tuning.grid import Grid, named
from toolkit.evaluation.tuning.measures import MeasureTable
from toolkit.evaluation.tuning.plateau import Plateau, plateau
from toolkit.evaluation.tuning.ranks import GridPoint

METHODS = ("held_out", "kfold", "nested")


@dataclass(frozen=True)
class Study:
    """A tuning's numbers.

    - `selecting`, `reported`: tables of the questions that choose and of those that are reported;
      one and the same object where one split is cross-validated. Their first `len(grid)` cells are
      the grid's; more are references, which are measured but never chosen.
    - `choices`, `plateaus`: by measure; plateaus are around the chosen cell, on the questions that
      chose it.
    - `gains`: by measure and reference cell, the chosen cell against it on the reported questions.
      After cross-validation the chosen cell has seen these questions: gains are then too high.
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
    def cells(self) -> Sequence[GridPoint]:
        return self.reported.cells

    def chosen(self, measure: str | None = None) -> GridPoint:
        """The cell that a measure chooses; by default the objective."""
        return self.cells[self.choices[measure or self.objective].chosen]

    def means(self, measure: str, *, selecting: bool = False) -> NDArray[np.float64]:
        """Mean of a measure in every cell of the grid."""
        table = self.selecting if selecting else self.reported
        return np.asarray(table.of(measure).mean(axis=0)[: len(self.grid)])

    def summary(self) -> dict[str, Any]:
        """The choices as plain values, for tuning.json."""
        return {
            "objective": self.objective,
            "method": self.method,
            "grid": {
                "name": self.grid.name,
                **{name: getattr(self.grid, name) for name in self.grid.names},
            },
            "questions": {
                "selecting": len(self.selecting.qids),
                "reported": len(self.reported.qids),
            },
            "measures": {measure: self._summary(measure) for measure in self.choices},
        }

    def _summary(self, measure: str) -> dict[str, Any]:
        choice, plateau = self.choices[measure], self.plateaus[measure]
        plain = {key: _named(self.cells, key, value) for key, value in choice._asdict().items()}
        return {
            **plain,
            "optimism": choice.optimism,
            "plateau": int(plateau.inside.sum()),
            "plateau_test": plateau.test,
            "plateau_alpha": plateau.alpha,
            "gains": {
                " ".join(f"{name}={value:g}" for name, value in named(cell).items()): row._asdict()
                for cell, row in self.gains[measure].items()
            },
        }


def study(
    grid: Grid,
    objective: str,
    selecting: MeasureTable,
    reported: MeasureTable,
    *,
    references: Sequence[GridPoint],
    method: str = "held_out",
    folds: int = 5,
    seed: int = 0,
    test: str = "t",
    alpha: float = 0.05,
) -> Study:
    """Choose by every measure of the tables. `method` is `held_out`, or where both tables are the
    same questions `kfold` or `nested` (which chooses for the objective by any of the measures)."""
    if method not in METHODS:
        raise InputError(f"tuning.method={method}", valid=", ".join(METHODS))
    selecting.of(objective)
    count = len(grid)
    choices: dict[str, HeldOut | CrossValidated] = {}
    plateaus, gains = {}, {}
    inner = {name: selecting.of(name)[:, :count] for name in selecting.measures}
    for name in selecting.measures:
        values, other = inner[name], reported.of(name)[:, :count]
        if method == "held_out":
            choices[name] = held_out(values, other, grid.cells)
        elif method == "nested" and name == objective:
            choices[name] = nested(inner, name, grid.cells, folds=folds, seed=seed)
        else:
            choices[name] = cross_validated(values, grid.cells, folds=folds, seed=seed)
        plateaus[name] = plateau(values, choices[name].chosen, test=test, alpha=alpha, seed=seed)
        gains[name] = _gains(reported, name, choices[name].chosen, references, seed)
    return Study(grid, objective, method, selecting, reported, choices, plateaus, gains)


def _gains(
    table: MeasureTable, measure: str, chosen: int, references: Sequence[GridPoint], seed: int
) -> dict[GridPoint, Paired]:
    values = table.of(measure)
    columns = {cell: list(table.cells).index(cell) for cell in references}
    ours = dict(zip(table.qids, values[:, chosen].tolist(), strict=True))
    return {
        cell: paired(
            ours, dict(zip(table.qids, values[:, column].tolist(), strict=True)), seed=seed
        )
        for cell, column in columns.items()
    }


def _named(cells: Sequence[GridPoint], key: str, value: Any) -> Any:
    """Cell numbers as their settings."""
    if key in ("chosen", "best"):
        return named(cells[value])
    if key == "folds":
        return [named(cells[cell]) for cell in value]
    return value
