"""Which cells the questions cannot tell from the best one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.evaluation.statistics import TESTS, holm

_NOISE = 1e-12
_FLIPS_AT_ONCE = 512


class Plateau(NamedTuple):
    """`best` is the cell that all others were tested against, `p_holm` float64 [cells] the p values
    after Holm's correction over them (1 for the best itself), `inside` bool [cells] the cells whose
    difference is not resolved at `alpha`."""

    best: int
    p_holm: NDArray[np.float64]
    inside: NDArray[np.bool_]
    test: str
    alpha: float


def plateau(
    values: NDArray[np.float64],
    best: int,
    *,
    test: str = "t",
    alpha: float = 0.05,
    resamples: int = 9999,
    seed: int = 0,
) -> Plateau:
    """Test every cell of `values` [questions, cells] against the cell `best`, paired by question.

    `test` is `t` (Student's) or `randomisation` (signs of the differences flipped at random, the
    same flips for all cells; exact where 2^n is at most `resamples`). A plateau is no proof that
    its cells are equal: with few questions it is wide.
    """
    if test not in TESTS:
        raise InputError(f"tuning.test={test}", valid=", ".join(TESTS))
    if not 0 < alpha < 1:
        raise InputError(f"tuning.alpha={alpha}", valid="above 0 and below 1", do="try 0.05")
    if len(values) < 2:
        raise InputError(
            f"{len(values)} question cannot distinguish any two cells",
            valid="two or more questions",
        )
    differences = values - values[:, [best]]
    p = p_values(differences, test=test, resamples=resamples, seed=seed)
    others = [cell for cell in range(len(p)) if cell != best]
    corrected = np.ones(len(p))
    corrected[others] = holm(p[others].tolist())
    return Plateau(best, corrected, corrected > alpha, test, alpha)


def p_values(
    differences: NDArray[np.float64], *, test: str, resamples: int = 9999, seed: int = 0
) -> NDArray[np.float64]:
    """Two-sided p values of no difference, one a column of [questions, comparisons]; those of
    `statistics.paired`, for many comparisons at once."""
    p = np.ones(differences.shape[1])
    not_all_zero = differences.any(axis=0)
    if not_all_zero.any():
        function = _t if test == "t" else _randomisation
        p[not_all_zero] = function(differences[:, not_all_zero], resamples, seed)
    return p


def _t(differences: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    from scipy import stats

    spread = np.ptp(differences, axis=0)
    constant = spread <= _NOISE * np.abs(differences).max(axis=0)
    p = np.zeros(differences.shape[1])
    if not constant.all():
        p[~constant] = stats.ttest_1samp(differences[:, ~constant], 0, axis=0).pvalue
    return p


def _randomisation(
    differences: NDArray[np.float64], resamples: int, seed: int
) -> NDArray[np.float64]:
    questions = len(differences)
    exact = 2**questions <= resamples
    observed = differences.sum(axis=0)
    noise = _NOISE * np.abs(differences).sum(axis=0)
    low = np.zeros(differences.shape[1], np.int64)
    high = low.copy()
    rng = np.random.default_rng(seed)
    for flips in _flips(questions, 2**questions if exact else resamples, rng, exact=exact):
        sums = flips @ differences
        low += (sums <= observed + noise).sum(axis=0)
        high += (sums >= observed - noise).sum(axis=0)
    # The observed signs are one of the flips where all are taken, and count as one where not.
    extra = 0 if exact else 1
    total = 2**questions if exact else resamples + 1
    return np.minimum(1.0, 2 * (np.minimum(low, high) + extra) / total)


def _flips(questions: int, count: int, rng: np.random.Generator, *, exact: bool) -> Any:
    for first in range(0, count, _FLIPS_AT_ONCE):
        rows = np.arange(first, min(first + _FLIPS_AT_ONCE, count))
        if exact:
            bits = (rows[:, None] >> np.arange(questions)) & 1
        else:
            bits = rng.integers(0, 2, (len(rows), questions), dtype=np.int8)
        yield 2.0 * bits - 1.0
