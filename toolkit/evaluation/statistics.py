"""Paired comparison of two systems over the same questions. scipy computes.

It is imported where it is called: it takes a second, and who only reads or writes evaluations does
not need it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError

TESTS = ("randomisation", "t")
INTERVALS = ("percentile", "BCa")
# Resampling in parts of so many numbers, of 8 bytes each, bounds memory.
_BATCH_CELLS = 4_000_000
# Differences that are equal but for the rounding of their sums are equal.
_NOISE = 1e-12
# In standard deviations. Beyond, a handful of questions is enough.
_LARGEST = 3.0
# Below, Student's t is normal to within one question of 78,000, and its noncentral distribution is
# computed with a larger error, then not at all.
_SMALL = 0.01


class Paired(NamedTuple):
    """`a` against `b`: `difference` is mean(a) - mean(b), `low`..`high` its interval, `p` that of
    a two-sided test of no difference. `needed` is the number of questions that would resolve the
    difference, None where there is none. `wins` counts questions where `a` is higher."""

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    n: int
    needed: int | None
    wins: int
    losses: int
    ties: int


def paired(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    test: str = "randomisation",
    interval: str = "percentile",
    confidence: float = 0.95,
    resamples: int = 9999,
    seed: int = 0,
    alpha: float = 0.05,
    power: float = 0.8,
) -> Paired:
    """Compare two maps of question to value over the same questions.

    - `test`: `randomisation` flips the signs of the differences (Smucker, Allan, Carterette, 2007;
      exact where 2^n is at most `resamples`), `t` is Student's paired test.
    - `interval`: bootstrap over questions at level `confidence`, `percentile` or `BCa`.
    - `needed`: see `questions_needed`, at `alpha` and `power`.

    `InputError` for unknown options, for maps of different questions, for values that are not
    finite, and below two questions.
    """
    _check(a, b, test, interval)
    first = np.array([a[qid] for qid in a], dtype=float)
    second = np.array([b[qid] for qid in a], dtype=float)
    differences = first - second
    rng = np.random.default_rng(seed)
    low, high = _interval(differences, interval, confidence, resamples, rng)
    return Paired(
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        p=_p_value(differences, test, resamples, rng),
        n=len(differences),
        needed=questions_needed(differences, alpha=alpha, power=power),
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
        ties=int((differences == 0).sum()),
    )


def questions_needed(
    differences: Sequence[float] | NDArray[np.float64], *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Questions that a two-sided paired t-test at `alpha` needs to find a difference of the size
    seen, with the spread seen, with probability `power`. None where the mean difference is 0 but
    for rounding.
    Differences above three standard deviations are taken for three (4 questions by default)."""
    values = np.asarray(differences, dtype=float)
    mean, spread = abs(float(values.mean())), float(values.std(ddof=1))
    if mean <= _NOISE * float(np.abs(values).max()):
        return None
    effect = mean / spread if spread * _LARGEST > mean else _LARGEST
    estimate = math.ceil(_normal_questions(effect, alpha, power))
    if effect < _SMALL:
        return estimate
    # statsmodels' own solver fails where a few questions are enough.
    candidates = range(2, 2 * estimate + 10)
    return candidates[bisect_left(candidates, power, key=lambda n: _power(effect, n, alpha))]


def _power(effect: float, questions: int, alpha: float) -> float:
    """Power of the two-sided paired t-test. The side against the effect counts nothing where it is
    too small for scipy, which gives NaN there (and so does statsmodels, which adds the two)."""
    from scipy import stats

    freedom, shift = questions - 1, effect * math.sqrt(questions)
    critical = stats.t.isf(alpha / 2, freedom)
    against = stats.nct.cdf(-critical, freedom, shift)
    return float(stats.nct.sf(critical, freedom, shift) + np.nan_to_num(against))


def _normal_questions(effect: float, alpha: float, power: float) -> float:
    """Questions needed for a small effect, by the normal approximation with Guenther's (1981)
    correction for Student's t."""
    critical, beyond = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    return ((critical + beyond) / effect) ** 2 + critical**2 / 2


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down adjustment over one family of tests, in the order given."""
    # statsmodels' `multipletests` collects all garbage of the process each time, which takes long.
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    left = len(values) - np.arange(len(values))  # hypotheses that are not yet rejected
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * left), 1.0)
    return [float(p) for p in adjusted]


def _check(a: Mapping[str, float], b: Mapping[str, float], test: str, interval: str) -> None:
    if test not in TESTS:
        raise InputError(f"the test is {test!r}", valid=", ".join(TESTS))
    if interval not in INTERVALS:
        raise InputError(f"the interval is {interval!r}", valid=", ".join(INTERVALS))
    if a.keys() != b.keys():
        raise InputError(
            f"the two sides have {len(a)} and {len(b)} questions and share "
            f"{len(a.keys() & b.keys())}",
            valid="the same questions on both sides",
            do="run both over the same split",
        )
    if len(a) < 2:
        raise InputError(
            f"a paired comparison over {len(a)} questions says nothing", valid="two or more"
        )
    for qid in a:
        if not (math.isfinite(a[qid]) and math.isfinite(b[qid])):
            raise InputError(
                f"question {qid!r} has the values {a[qid]} and {b[qid]}",
                valid="finite numbers",
                do="evaluate both sides again",
            )


def _interval(
    differences: NDArray[np.float64],
    method: str,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    from scipy import stats

    if _constant(differences):
        return float(differences[0]), float(differences[0])
    by_name: Any = method
    result = stats.bootstrap(
        (differences,),
        _mean,
        confidence_level=confidence,
        n_resamples=resamples,
        batch=_batch(differences),
        method=by_name,
        rng=rng,
    ).confidence_interval
    return float(result.low), float(result.high)


def _p_value(
    differences: NDArray[np.float64], test: str, resamples: int, rng: np.random.Generator
) -> float:
    from scipy import stats

    if not differences.any():
        return 1.0
    if test == "t":
        # Equal differences have no spread: the statistic is infinite.
        return 0.0 if _constant(differences) else float(stats.ttest_1samp(differences, 0).pvalue)
    if 2 ** len(differences) <= resamples:
        return float(
            stats.permutation_test(
                (differences,), _mean, permutation_type="samples", n_resamples=resamples
            ).pvalue
        )

    def flipped(size: tuple[int, ...]) -> NDArray[np.float64]:
        return differences * (2.0 * rng.integers(0, 2, size, dtype=np.int8) - 1.0)

    # The same test as permutation_test's, whose own drawing of signs is slower.
    return float(
        stats.monte_carlo_test(
            differences, flipped, _mean, n_resamples=resamples, batch=_batch(differences)
        ).pvalue
    )


def _mean(values: NDArray[np.float64], axis: int = -1) -> Any:
    return np.mean(values, axis=axis)


def _constant(differences: NDArray[np.float64]) -> bool:
    return bool(np.ptp(differences) <= _NOISE * np.abs(differences).max())


def _batch(differences: NDArray[np.float64]) -> int:
    return max(1, _BATCH_CELLS // len(differences))
