"""Statistics over questions: paired tests, bootstrap intervals, sample sizes, variance components,
and the agreement of two judges.

scipy and statsmodels are imported inside the functions that need them: their import takes a second.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.errors import InputError

Values = NDArray[np.float64]
TESTS = ("randomisation", "t")
# Values whose difference is below this share of the larger one differ only by rounding. A measure
# is a sum or mean of at most a few thousand terms, each rounded to 1e-16, so its error stays below
# 1e-12. Real differences of a measure on one question are far larger: the smallest step of AP over
# 1000 ranks is about 1e-9, and the price of a token is more than 1e-9 of the cost of a question.
ROUNDING = 1e-12
_BATCH_NUMBERS = 4_000_000  # numbers of 8 bytes that one batch of bootstrap samples holds
_FLIPS_AT_ONCE = 512
_LARGEST_EFFECT = 3.0  # in standard deviations; beyond, a handful of questions is enough
# Below this effect, Student's t is normal to within one question of 78,000, and scipy's noncentral
# t is less exact, then not computed at all.
_SMALL_EFFECT = 0.01


@dataclass(frozen=True)
class Paired:
    """A paired comparison of `a` with `b`. Values that differ only by rounding (`ROUNDING`) are
    ties.

    `low` and `high` are the bootstrap interval of the difference, and `p` is that of the two-sided
    test of no difference. `p_equivalence` is the larger p value of two one-sided tests (Schuirmann,
    1987) of a difference of at least the margin in either direction; None without a margin. `wins`,
    `losses` and `ties` count the questions on which `a` is higher, lower and equal.

    Example:
        >>> a, b = {"q1": 0.5, "q2": 0.9, "q3": 0.4}, {"q1": 0.3, "q2": 0.9, "q3": 0.1}
        >>> paired = paired_test(a, b)
        >>> (paired.n, paired.wins, paired.ties, round(paired.difference, 3))
        (3, 2, 1, 0.167)
    """

    mean_a: float
    mean_b: float
    difference: float  # mean_a - mean_b
    low: float
    high: float
    p: float
    n: int  # questions
    questions_needed: int | None  # for a significant difference of this size; None without one
    wins: int
    losses: int
    ties: int
    p_equivalence: float | None = None


def paired_test(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    test: str = "randomisation",
    resamples: int = 9999,
    seed: int = 0,
    margin: float | None = None,
) -> Paired:
    """Compare two systems over the same questions, whose order has no influence. The interval is
    the 95 % percentile bootstrap interval over questions.

    Args:
        a, b: the value of each question, by its id.
        test: `randomisation` flips the signs of the differences (Smucker, Allan and Carterette,
            2007; exact if there are at most `resamples` assignments of signs to the differences
            that are not 0); `t` is Student's paired t-test.
        resamples, seed: of the randomisation test and of the bootstrap.
        margin: the smallest difference that matters, in the unit of the values. None: equivalence
            is not tested.

    Raises:
        InputError: for unknown options, different questions, fewer than two questions, values that
            are not finite, and a margin that is not above 0.

    Example:
        >>> row = paired_test({"q1": 0.5, "q2": 0.9, "q3": 0.4}, {"q1": 0.3, "q2": 0.9, "q3": 0.1})
        >>> (row.n, row.wins, row.ties, round(row.difference, 3))
        (3, 2, 1, 0.167)
    """
    if test not in TESTS:
        raise InputError(f"the test is {test!r}", valid=", ".join(TESTS))
    if margin is not None and not margin > 0:
        raise InputError(f"the margin is {margin}", valid="a difference above 0, or none")
    shared = len(a.keys() & b.keys())
    if a.keys() != b.keys():
        raise InputError(
            f"the two sides have {len(a)} and {len(b)} questions and share {shared}",
            valid="the same questions on both sides",
            do="run both over the same split",
        )
    if shared < 2:
        raise InputError(f"a paired comparison over {shared} questions", valid="two or more")
    qids = sorted(a)
    first = np.array([a[qid] for qid in qids], dtype=float)
    second = np.array([b[qid] for qid in qids], dtype=float)
    if (bad := np.flatnonzero(~np.isfinite(first + second))).size:
        qid = qids[bad[0]]
        raise InputError(
            f"question {qid!r} has the values {a[qid]} and {b[qid]}",
            valid="finite numbers",
            do="evaluate both sides again",
        )
    differences, errors = paired_differences(first, second)
    (result,) = _tests_of_means(differences[:, None], errors[:, None], test, resamples, seed)
    needed = questions_needed(differences) if result.mean else None
    return Paired(
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=result.mean,
        low=result.low,
        high=result.high,
        p=result.p,
        n=shared,
        questions_needed=needed,
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
        ties=int((differences == 0).sum()),
        p_equivalence=None
        if margin is None
        else _equivalence(differences, errors, margin, test, resamples, seed),
    )


class _TestOfMean(NamedTuple):
    """A mean over questions, its interval, and the p value of the test that it is 0."""

    mean: float
    low: float
    high: float
    p: float


def _tests_of_means(
    values: Values, errors: Values, test: str, resamples: int, seed: int
) -> list[_TestOfMean]:
    """Test each column of `values` [questions, columns], whose rounding errors are `errors` of the
    same shape. Columns share the sampled questions, and have the results that each has alone."""
    means = values.mean(axis=0)
    means = np.where(np.abs(means) <= errors.mean(axis=0), 0.0, means)
    p = np.ones(len(means))
    varied = np.flatnonzero(values.any(axis=0))
    if test == "t" and len(varied):
        p[varied] = t_test(values[:, varied], errors[:, varied])
    else:
        for column in varied:
            one_sided = _randomisation(values[:, column], errors[:, column], resamples, seed)
            p[column] = min(1.0, 2 * min(one_sided))
    low, high = means.copy(), means.copy()
    spread = np.flatnonzero(~_is_constant(values, errors))
    if len(spread):
        low[spread], high[spread] = _bootstrap(
            values[:, spread], errors[:, spread], means[spread], resamples, seed
        )
    return [_TestOfMean(*map(float, row)) for row in zip(means, low, high, p, strict=True)]


def _equivalence(
    differences: Values, errors: Values, margin: float, test: str, resamples: int, seed: int
) -> float:
    """The larger p value of two one-sided tests: that the mean difference is at most `-margin`, and
    that it is at least `margin`."""
    if test == "t":
        from scipy import stats

        if _is_constant(differences, errors):
            return float(abs(differences.mean()) >= margin)
        above = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
        below = stats.ttest_1samp(differences, margin, alternative="less").pvalue
        return max(float(above), float(below))
    return max(
        _randomisation(differences + margin, errors, resamples, seed)[1],
        _randomisation(differences - margin, errors, resamples, seed)[0],
    )


def paired_differences(a: Values, b: Values) -> tuple[Values, Values]:
    """`a` - `b`, and the rounding error of each difference (`ROUNDING` of the larger value). A
    difference within its error is 0."""
    differences, errors = a - b, ROUNDING * np.maximum(np.abs(a), np.abs(b))
    return np.where(np.abs(differences) <= errors, 0.0, differences), errors


def equal_ties(values: Sequence[float] | Values) -> Values:
    """The values, where those that differ only by rounding (`ROUNDING` of the largest) are made
    equal, so that they can be compared and sorted."""
    array = np.asarray(values, dtype=float)
    if not len(array):
        return array
    order = np.argsort(array, kind="stable")
    ascending = array[order]
    new = np.diff(ascending, prepend=-np.inf) > ROUNDING * np.abs(array).max()
    result = np.empty_like(array)
    result[order] = ascending[new][np.cumsum(new) - 1]
    return result


def t_test(differences: Values, errors: Values) -> Values:
    """p values of Student's paired t-test, one for each column of [questions, comparisons]. Both
    arguments are those of `paired_differences`."""
    from scipy import stats

    # The statistic of equal differences is infinite, because they have no spread.
    constant = _is_constant(differences, errors)
    p = np.where(np.abs(differences.mean(axis=0)) <= errors.mean(axis=0), 1.0, 0.0)
    if not constant.all():
        p[~constant] = stats.ttest_1samp(differences[:, ~constant], 0, axis=0).pvalue
    return p


def _is_constant(differences: Values, errors: Values) -> Any:
    """Whether the differences (of each column) are equal but for rounding."""
    return np.ptp(differences, axis=0) <= 2 * errors.max(axis=0)


def _randomisation(
    differences: Values, errors: Values, resamples: int, seed: int
) -> tuple[float, float]:
    """The one-sided p values of the sign-flip test: that the mean is at most, and at least, as
    large as that of random signs."""
    # scipy's permutation_test compares sums relative to the observed one. If the summands nearly
    # cancel out, their rounding is larger than that.
    # A tie changes no sum, so that the test is exact where few questions differ.
    untied = differences[differences != 0]
    exact = 2 ** len(untied) <= resamples
    differences = untied if exact else differences
    questions = len(differences)
    total = 2**questions if exact else resamples
    observed, error = differences.sum(), errors.sum()
    rng = np.random.default_rng(seed)
    low = high = 0
    for first in range(0, total, _FLIPS_AT_ONCE):
        rows = np.arange(first, min(first + _FLIPS_AT_ONCE, total))
        if exact:
            flips = (rows[:, None] >> np.arange(questions)) & 1
        else:
            flips = rng.integers(0, 2, (len(rows), questions), dtype=np.int8)
        sums = (2.0 * flips - 1.0) @ differences
        low += int((sums <= observed + error).sum())
        high += int((sums >= observed - error).sum())
    # All assignments include the observed one; a sample does not, and it counts as one more.
    extra = 0 if exact else 1
    return (low + extra) / (total + extra), (high + extra) / (total + extra)


def _bootstrap(
    differences: Values, errors: Values, means: Values, resamples: int, seed: int
) -> tuple[Values, Values]:
    """The 95 % intervals of the means of the columns of [questions, columns]."""
    from scipy import stats

    bounds = stats.bootstrap(
        ((differences - means).T,),
        np.mean,
        confidence_level=0.95,
        n_resamples=resamples,
        batch=max(1, _BATCH_NUMBERS // differences.size),
        method="percentile",
        axis=-1,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    error = errors.mean(axis=0)
    low, high = (np.where(np.abs(bound) <= error, 0.0, bound) + means for bound in bounds)
    return low, high


def questions_needed(
    differences: Sequence[float] | Values, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """The number of questions that a two-sided paired t-test at the level `alpha` needs to detect a
    difference with the probability `power`; None if the mean difference is 0 but for rounding.

    The mean and the standard deviation of the observed differences are taken for the true ones. A
    mean above three standard deviations counts as three (4 questions by default).

    Example:
        >>> questions_needed([0.2, 0.0, 0.3, -0.1])  # an effect of 0.55 standard deviations
        29
    """
    values = np.asarray(differences, dtype=float)
    mean, spread = abs(float(values.mean())), float(values.std(ddof=1))
    if mean <= ROUNDING * float(np.abs(values).max()):
        return None
    effect = mean / spread if spread * _LARGEST_EFFECT > mean else _LARGEST_EFFECT
    # The normal approximation with Guenther's (1981) correction for Student's t.
    critical, beyond = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    estimate = math.ceil(((critical + beyond) / effect) ** 2 + critical**2 / 2)
    if effect < _SMALL_EFFECT:
        return estimate

    # The solver of statsmodels fails where a few questions are enough.
    candidates = range(2, 2 * estimate + 10)
    return candidates[bisect_left(candidates, power, key=lambda n: _power(effect, n, alpha))]


def _power(effect: float, questions: int, alpha: float) -> float:
    """The power of a two-sided paired t-test, for an effect in standard deviations."""
    from scipy import stats

    freedom, shift = questions - 1, effect * math.sqrt(questions)
    t = stats.t.isf(alpha / 2, freedom)
    # The tail against the effect may be too small for scipy, which then gives NaN; statsmodels
    # adds that NaN to the power.
    against = np.nan_to_num(stats.nct.cdf(-t, freedom, shift))
    return float(stats.nct.sf(t, freedom, shift) + against)


def smallest_difference(
    questions: int, deviation: float, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The smallest mean difference that a two-sided paired t-test over so many questions, two or
    more, detects at the level `alpha` with the probability `power`.

    Args:
        deviation: the standard deviation of a question's difference. That of two answers, right (1)
            or wrong (0), of which a share s differs between the systems, is about the root of s.

    Example:
        >>> round(smallest_difference(830, 0.5), 3)
        0.049
    """
    from scipy.optimize import brentq

    def missing(effect: float) -> float:
        return _power(effect, questions, alpha) - power

    largest = 100.0
    while missing(largest) < 0:  # few questions need an effect of many standard deviations
        largest *= 10
    return deviation * float(brentq(missing, 0.0, largest))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values of one family of tests after Holm's (1979) step-down correction, in the order of
    the argument.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    # statsmodels' `multipletests` runs the garbage collector each time, which takes long.
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    left = len(values) - np.arange(len(values))  # hypotheses that are not yet rejected
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * left), 1.0)
    return [float(p) for p in adjusted]


class VarianceComponents(NamedTuple):
    """The variance of a measure between questions and within them, by the one-way random-effects
    analysis of variance: the value of repeat j of question i is mu + a_i + e_ij (Searle, Casella
    and McCulloch, Variance Components, 1992, chapter 3).

    `share` is the share of e in the total variance, 1 - ICC(1) (Shrout and Fleiss, 1979); None if
    nothing varies.
    """

    within: float  # the standard deviation of e
    between: float  # the standard deviation of a
    share: float | None
    questions: int
    repeats: float  # the mean number of values of a question


def variance_components(values: Mapping[str, Sequence[float]]) -> VarianceComponents | None:
    """The variance components of question -> its value in each repeat.

    None for fewer than two questions, and if no question has two values. A negative estimate of the
    variance between questions is 0, and so is a deviation that rounding explains (`ROUNDING` of the
    largest value).
    """
    rows = [row for row in values.values() if len(row)]
    sizes = np.array([len(row) for row in rows])
    total, questions = int(sizes.sum()), len(rows)
    if questions < 2 or total == questions:
        return None
    flat = np.fromiter(chain.from_iterable(rows), dtype=float, count=total)
    averages = np.add.reduceat(flat, np.cumsum(sizes) - sizes) / sizes
    grand = float(np.average(averages, weights=sizes))
    within = float(((flat - np.repeat(averages, sizes)) ** 2).sum()) / (total - questions)
    between = float((sizes * (averages - grand) ** 2).sum()) / (questions - 1)
    size = (total - float((sizes**2).sum()) / total) / (questions - 1)
    between = max(0.0, (between - within) / size)
    rounding = (ROUNDING * float(np.abs(flat).max())) ** 2
    within, between = (value if value > rounding else 0.0 for value in (within, between))
    variance = within + between
    return VarianceComponents(
        within=math.sqrt(within),
        between=math.sqrt(between),
        share=within / variance if variance > 0 else None,
        questions=questions,
        repeats=total / questions,
    )


def judged_components(
    values: Mapping[str, Sequence[Sequence[float]]],
) -> tuple[VarianceComponents, float] | None:
    """The variance components of values that several judges gave, and the standard deviation of a
    judge's value around the mean over judges.

    The design is nested: the value that judge k gives to repeat j of question i is
    mu + a_i + e_ij + g_ijk (Searle, Casella and McCulloch, 1992, chapter 3). `within` is the
    deviation of e, without the part that the judges bring, and `share` its share in the variance of
    all three.

    Args:
        values: question -> repeat -> the value of each judge, of as many judges everywhere.

    Returns:
        None where `variance_components` of the means over judges is None, and for one judge.

    Example:
        >>> components, judge = judged_components({"q1": [[0, 1], [1, 1]], "q2": [[0, 0], [0, 0]]})
        >>> round(components.within, 3), round(judge, 3)
        (0.0, 0.354)
    """
    judged = [np.asarray(row, dtype=float) for row in values.values()]
    components = variance_components({qid: np.mean(row, axis=1) for qid, row in values.items()})
    judges = judged[0].shape[1] if judged else 1
    if components is None or judges < 2:
        return None
    answers = np.concatenate(judged)
    judge = float(answers.var(axis=1, ddof=1).mean())
    within = max(0.0, components.within**2 - judge / judges)
    total = within + components.between**2 + judge
    share = within / total if total > 0 else None
    return components._replace(within=math.sqrt(within), share=share), math.sqrt(judge)


# Of the variance of a question's value in one run, the share that another run of the same system
# would not repeat, where no repeats are known. Two runs with an accuracy of 0.5 then differ by up
# to 3.4 points over 830 questions and by up to 10 points over 100, in 95 of 100 cases.
RUN_SHARE = 0.5


class Replication(NamedTuple):
    """The difference of two results of one system over the same questions, and its 95 % interval.

    Example:
        >>> Replication(0.02, -0.01, 0.05).verdict
        'consistent'
    """

    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`consistent` if the interval holds 0, else `differs`."""
        return "consistent" if self.low <= 0 <= self.high else "differs"


def replication(
    values: Mapping[str, Sequence[float]],
    published: float,
    questions: int | None = None,
    *,
    sampled: bool = True,
    rounding: float = 0.0,
) -> Replication | None:
    """Our mean minus a published one, whose values by question are unknown, with a 95 % interval.

    The interval has the run-to-run variance of both means: that of our repeats, else `RUN_SHARE` of
    the variance of a question's value. The sampling of questions is not part of it where both means
    are over the same questions; if ours are a sample of theirs, it is that of a finite population
    (Cochran, Sampling Techniques, 1977, section 2.6).

    Args:
        values: question -> its value in each of our repeats.
        published: the mean of one run.
        questions: the number of its questions; None for ours.
        sampled: whether two runs may differ, as those with a language model do.
        rounding: half a unit of the last digit of the published mean.

    Returns:
        None for fewer than two questions.

    Example:
        >>> right = {f"q{n}": [float(n % 2)] for n in range(830)}
        >>> row = replication(right, 0.54)
        >>> (round(row.low, 3), round(row.high, 3), row.verdict)
        (-0.074, -0.006, 'differs')
    """
    from scipy import stats

    rows = [row for row in values.values() if len(row)]
    if (count := len(rows)) < 2:
        return None
    means = np.array([np.mean(row) for row in rows])
    size, theirs = sum(map(len, rows)), max(questions or count, count)
    if components := variance_components(values):
        within, between, freedom = components.within**2, components.between**2, size - count
    else:
        single = float(means.var(ddof=1))
        within, between, freedom = RUN_SHARE * single, (1 - RUN_SHARE) * single, count - 1
    if not sampled:
        within, between = 0.0, within + between
    variance = within * (1 / size + 1 / theirs) + between * (1 / count - 1 / theirs)
    width = float(stats.t.ppf(0.975, freedom)) * math.sqrt(variance) + rounding
    difference = float(means.mean()) - published
    return Replication(difference, difference - width, difference + width)


class Agreement(NamedTuple):
    """The agreement of two judges over the `n` answers that both judged.

    `raw` is the share of equal verdicts. `kappa` is Cohen's (1960): None if both judges gave every
    answer the same verdict, and 0 if one of them did; `low` and `high` are its 95 % interval, None
    if it cannot be estimated. `correct_a` is the share of answers that judge `a` finds correct, and
    `only_a` are the answers that only `a` finds correct.
    """

    n: int
    raw: float
    kappa: float | None
    low: float | None
    high: float | None
    correct_a: float
    correct_b: float
    only_a: Sequence[str]
    only_b: Sequence[str]


def agreement(
    a: Mapping[str, bool], b: Mapping[str, bool], questions: Mapping[str, str] | None = None
) -> Agreement:
    """The agreement of two judges, by whether each finds an answer (by its name) correct.

    If a question (`questions`, by answer) has several answers, which are not independent of each
    other, the interval of kappa is that of the jackknife over questions; otherwise it is that of
    its large-sample error. `InputError` if the judges have no answer in common.
    """
    from statsmodels.stats.inter_rater import cohens_kappa

    shared = sorted(a.keys() & b.keys())
    if not shared:
        raise InputError("the two judges have no answer in common", do="judge the same run twice")
    n, table = len(shared), _verdict_counts(shared, a, b)
    (neither, only_b), (only_a, both) = table.tolist()
    kappa = low = high = None
    if n not in (neither, both):
        kappa = 0.0
        if table.any(axis=0).all() and table.any(axis=1).all():
            result = cohens_kappa(table)
            kappa, low, high = float(result.kappa), float(result.kappa_low), float(result.kappa_upp)
            answers: dict[str, list[str]] = {}
            for name in shared:
                answers.setdefault((questions or {}).get(name, name), []).append(name)
            if len(answers) < n:  # the jackknife leaves out one question at a time
                tables = [table - _verdict_counts(names, a, b) for names in answers.values()]
                low = high = None
                if not any(counts.sum() in (0, counts[0, 0], counts[1, 1]) for counts in tables):
                    kappas = [
                        float(cohens_kappa(counts, return_results=False)) for counts in tables
                    ]
                    error = math.sqrt((len(kappas) - 1) * float(np.var(kappas)))
                    width = NormalDist().inv_cdf(0.975) * error
                    low, high = kappa - width, kappa + width
    return Agreement(
        n=n,
        raw=(neither + both) / n,
        kappa=kappa,
        low=low,
        high=high,
        correct_a=(only_a + both) / n,
        correct_b=(only_b + both) / n,
        only_a=tuple(name for name in shared if a[name] and not b[name]),
        only_b=tuple(name for name in shared if b[name] and not a[name]),
    )


def _verdict_counts(names: Sequence[str], a: Mapping[str, bool], b: Mapping[str, bool]) -> Any:
    """How many answers `a` (row) and `b` (column) find wrong (0) and correct (1)."""
    return np.bincount([2 * a[name] + b[name] for name in names], minlength=4).reshape(2, 2)


# Effects of the factors of a factorial sweep, estimated over questions.


@dataclass(frozen=True)
class Effect:
    """An effect of one or two factors.

    `levels` names a level of each of `factors`. A main effect is the mean of the level minus the
    mean over all levels of its factor. A two-way interaction is what a pair of levels has beyond
    the sum of their main effects. `low` and `high` are the bootstrap interval over questions, `p`
    is that of the test of no effect, without a correction for the number of effects.
    """

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    estimate: float
    low: float
    high: float
    p: float


def factorial_effects(
    runs: Sequence[tuple[Mapping[str, str], Mapping[str, float]]],
    *,
    test: str = "randomisation",
    resamples: int = 9999,
) -> list[Effect]:
    """Main effects and two-way interactions of a full factorial design.

    An effect is a contrast of the cells: each question has a value of it, and the estimate is the
    mean over questions. The test and the interval are those of a paired comparison, over these
    values. Questions may therefore react differently to a factor; a model with a random intercept
    alone assumes that they do not, and takes that variance for an effect (Barr et al., Random
    effects structure for confirmatory hypothesis testing, 2013).

    Args:
        runs: for each combination of levels, the level of each factor, and the value of each
            question: with repeats, the mean over them. The variance of repeats is then a part of
            the variance over questions, so that the interval counts it once (Davison and Hinkley,
            Bootstrap Methods and their Application, 1997, section 3.8). The questions that all
            combinations have count.
        test, resamples: see `paired_test`.

    Returns:
        The main effects of all levels, then the interactions of all pairs of levels.

    Example:
        >>> means = [("a", "5", 0.0), ("a", "9", 1.0), ("b", "5", 2.0), ("b", "9", 3.5)]
        >>> cells = [({"unit": u, "depth": d}, {"q1": x, "q2": x + 1}) for u, d, x in means]
        >>> [round(effect.estimate, 3) for effect in factorial_effects(cells)[:2]]
        [-0.625, 0.625]
    """
    names = sorted(runs[0][0])
    levels = {name: sorted({factors[name] for factors, _ in runs}) for name in names}
    cells = {tuple(factors[name] for name in names): values for factors, values in runs}
    shared = sorted(set.intersection(*map(set, cells.values())))
    table = np.array([[row[qid] for row in cells.values()] for qid in shared], dtype=float)
    effects = [
        (factors, chosen)
        for factors in [(name,) for name in levels] + list(combinations(levels, 2))
        for chosen in product(*(levels[name] for name in factors))
    ]
    contrasts = np.array([_contrast(levels, list(cells), *effect) for effect in effects]).T
    errors = ROUNDING * np.abs(table).max(axis=1, keepdims=True) * np.abs(contrasts).sum(axis=0)
    by_question = table @ contrasts
    by_question[np.abs(by_question) <= errors] = 0.0
    tested = _tests_of_means(by_question, errors, test, resamples, seed=0)
    return [
        Effect(factors, chosen, *row)
        for (factors, chosen), row in zip(effects, tested, strict=True)
    ]


def _contrast(
    levels: Mapping[str, Sequence[str]],
    cells: Sequence[tuple[str, ...]],
    factors: tuple[str, ...],
    chosen: tuple[str, ...],
) -> Values:
    """The weight of each cell in an effect: the product of the deviations of its factors' levels
    from their means, averaged over the levels of all other factors."""
    weights = np.full(len(cells), 1.0 / len(cells))
    for name, level in zip(factors, chosen, strict=True):
        position = list(levels).index(name)
        has = np.array([cell[position] == level for cell in cells], dtype=float)
        weights *= len(levels[name]) * has - 1.0
    return weights
