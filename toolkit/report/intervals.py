"""The uncertainty of one cell's mean, for the table of cells. Comparisons have their own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from toolkit.evaluation.cells import Cell


def mean_interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float] | None:
    """Interval of the mean over questions; None for fewer than two values.

    Wilson's score interval where every value is 0 or 1 (Wilson, 1927), else Student's t, cut to
    0..1 where the values lie there.
    """
    array = np.asarray(list(values), dtype=float)
    if len(array) < 2 or not np.isfinite(array).all():
        return None
    from scipy import stats  # here, because a command's start would wait for it

    if np.isin(array, (0.0, 1.0)).all():
        found = stats.binomtest(int(array.sum()), len(array)).proportion_ci(level, "wilson")
        return float(found.low), float(found.high)
    half = float(stats.t.ppf(0.5 + level / 2, len(array) - 1) * stats.sem(array))
    low, high = float(array.mean()) - half, float(array.mean()) + half
    if array.min() >= 0 and array.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high


def cell_interval(cell: Cell, measure: str) -> tuple[float, float] | None:
    """The interval of a cell's metric, None unless the metric is the mean of its questions."""
    values = list(cell.per_question.get(measure, {}).values())
    if not values or measure not in cell.metrics:
        return None
    if not np.isclose(np.mean(values), cell.metrics[measure], rtol=1e-3, atol=1e-4):
        return None
    return mean_interval(values)
