"""Tuning two parameters on questions that are not reported on: grid, ranks, measures, choice.

Knows nothing of how a cell ranks: it is given ranks of judged documents.
"""

from toolkit.evaluation.tuning.choice import (
    CrossValidated,
    HeldOut,
    best_cell,
    cross_validated,
    held_out,
    nested,
)
from toolkit.evaluation.tuning.grid import DEFAULT_CELL, Grid, named
from toolkit.evaluation.tuning.measures import MeasureTable, measure_table
from toolkit.evaluation.tuning.plateau import Plateau, plateau
from toolkit.evaluation.tuning.ranks import RankTable
from toolkit.evaluation.tuning.study import Study, study

__all__ = [
    "DEFAULT_CELL",
    "CrossValidated",
    "Grid",
    "HeldOut",
    "MeasureTable",
    "Plateau",
    "RankTable",
    "Study",
    "best_cell",
    "cross_validated",
    "held_out",
    "measure_table",
    "named",
    "nested",
    "plateau",
    "study",
]
