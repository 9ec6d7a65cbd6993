"""Paired statistics against published and independently computed values."""

from fractions import Fraction
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from statsmodels.stats.multitest import multipletests
from support.needs import cases

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.statistics import (
    equal_ties,
    holm,
    paired_test,
    questions_needed,
)

# Student's sleep data (Student, 1908): extra hours of sleep under two drugs, ten patients.
# Published: mean difference 1.58, t = 4.0621 on 9 degrees of freedom, p = 0.002833.
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def named(values):
    return {str(number): value for number, value in enumerate(values)}


def test_students_sleep_data_gives_the_published_t_test():
    row = paired_test(named(DRUG_2), named(DRUG_1), test="t")
    assert row.difference == pytest.approx(1.58)
    assert row.p == pytest.approx(0.002833, abs=5e-7)
    assert (row.mean_a, row.mean_b) == pytest.approx((2.33, 0.75))
    assert (row.n, row.wins, row.losses, row.ties) == (10, 9, 0, 1)


def test_the_randomisation_test_is_exact_on_few_questions():
    # Nine of ten differences are positive and none negative, so that of the 2^10 sign
    # assignments only those that flip nothing but the zero are as extreme: 2 x 2 / 1024.
    assert paired_test(named(DRUG_2), named(DRUG_1)).p == pytest.approx(4 / 1024)


def test_ties_leave_the_randomisation_test_exact():
    # Two of the 2^3 assignments of signs to the three questions that differ are as extreme.
    ties = [0.0] * 100
    assert paired_test(named([*ties, 0.1, 0.2, 0.3]), named([*ties, 0.0, 0.0, 0.0])).p == 2 / 8
    assert paired_test(named([*ties, 0.1]), named([*ties, 0.0])).p == 1.0


def test_the_drawn_randomisation_test_agrees_with_scipys_own_on_many_questions():
    rng = np.random.default_rng(6)
    differences = rng.normal(0.15, 1, 120)
    row = paired_test(named(list(differences)), named([0.0] * 120), resamples=20000)
    reference = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=20000, rng=1
    ).pvalue
    assert row.p == pytest.approx(reference, abs=0.02)
    assert row.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.02)


@pytest.mark.parametrize("interval", ["percentile", "BCa"])
def test_the_interval_is_near_students_on_normal_differences(interval):
    differences = np.random.default_rng(8).normal(0.2, 1, 400)
    row = paired_test(named(list(differences)), named([0.0] * 400), interval=interval)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (row.low, row.high) == pytest.approx((low, high), abs=0.01)
    assert row.low < row.difference < row.high


def test_the_sides_mirror_each_other_and_questions_are_matched_by_id():
    one = paired_test(named(DRUG_2), named(DRUG_1))
    other = paired_test(named(DRUG_1), named(DRUG_2))
    assert one.difference == -other.difference and one.p == other.p
    assert (one.wins, one.losses) == (other.losses, other.wins)
    row = paired_test({"x": 1.0, "y": 0.0, "z": 0.5}, {"z": 0.5, "y": 0.0, "x": 1.0})
    assert (row.ties, row.p, row.low, row.high, row.questions_needed) == (3, 1.0, 0.0, 0.0, None)


# Values of measures as fractions, which have no rounding: shares of so many documents.
SHARES = st.sampled_from([Fraction(count, of) for of in (1, 3, 7, 10) for count in range(of + 1)])


def floats(values, by_sums):
    """The values in floating point; `by_sums`: each as a sum of its unit fractions, which rounds
    otherwise (a third of 3 x 0.1 is not 0.1)."""

    def rounded(value):
        unit = 1 / value.denominator
        return sum(unit for _ in range(value.numerator)) if by_sums else float(value)

    return named([rounded(value) for value in values])


def exact_p(differences):
    """The two-sided p value over all assignments of signs, without rounding."""
    observed = sum(differences)
    sums = [
        sum(sign * d for sign, d in zip(signs, differences, strict=True))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    low = sum(one <= observed for one in sums)
    high = sum(one >= observed for one in sums)
    return min(Fraction(1), Fraction(2 * min(low, high), len(sums)))


@given(st.lists(st.tuples(SHARES, SHARES), min_size=2, max_size=7), st.booleans())
@example([(Fraction(3, 10), Fraction(0)), (Fraction(0), Fraction(3, 10))], True)
@example([(Fraction(1, 3), Fraction(0)), (Fraction(0), Fraction(1, 7))] * 2, True)
@settings(deadline=None, max_examples=cases(300))
def test_rounding_changes_neither_ties_nor_exact_p_values(pairs, by_sums):
    a, b = ([pair[side] for pair in pairs] for side in (0, 1))
    differences = [one - other for one, other in pairs]
    row = paired_test(floats(a, by_sums), floats(b, not by_sums))
    assert row.wins == sum(d > 0 for d in differences)
    assert row.losses == sum(d < 0 for d in differences)
    assert row.ties == sum(d == 0 for d in differences)
    assert row.p == float(exact_p(differences))
    assert (row.difference == 0) == (sum(differences) == 0) == (row.questions_needed is None)
    if len(set(differences)) == 1:
        assert row.low == row.high == row.difference


def test_sums_that_are_equal_but_for_rounding_are_ties_of_the_permutation_test():
    # scipy's test takes means for equal that differ by 1e-14 of the observed one. The differences
    # of values around 1000 are off by more than that.
    for tenths in ([5, -2, 3, 2, -5, -1], [-3, -2, 2, 1, 0, -2], [-1, -2, 4, -3, -3, 2, 1]):
        differences = [Fraction(n, 10**4) for n in tenths]
        a = named([float(1000 + d) for d in differences])
        row = paired_test(a, named([1000.0] * len(tenths)))
        assert row.p == float(exact_p(differences))


@pytest.mark.parametrize("test", ["randomisation", "t"])
def test_values_that_are_equal_but_for_rounding_are_no_difference(test):
    row = paired_test(named([0.1 + 0.2] * 20), named([0.3] * 20), test=test)
    assert (row.wins, row.losses, row.ties) == (0, 0, 20)
    assert (row.difference, row.low, row.high, row.p) == (0.0, 0.0, 0.0, 1.0)
    assert row.questions_needed is None
    mixed = paired_test(named([0.1 + 0.2, 0.9] * 10), named([0.3, 0.8] * 10), test=test)
    exact = paired_test(named([0.0, 0.1] * 10), named([0.0, 0.0] * 10), test=test)
    assert (mixed.wins, mixed.ties) == (10, 10)
    assert mixed.p == pytest.approx(exact.p)


def test_equal_differences_of_values_that_round_otherwise_have_no_spread():
    a = named([0.1 * n + 0.1 for n in range(9)])
    row = paired_test(a, named([0.1 * n for n in range(9)]), test="t")
    assert row.p == 0.0 and row.low == row.high == pytest.approx(0.1)


@pytest.mark.parametrize("interval", ["percentile", "BCa"])
@pytest.mark.parametrize("test", ["randomisation", "t"])
def test_the_seed_fixes_a_row_whatever_the_order_of_the_questions(test, interval):
    rng = np.random.default_rng(21)
    a, b = named(list(rng.random(60))), named(list(rng.random(60)))
    row = paired_test(a, b, test=test, interval=interval)
    assert paired_test(a, b, test=test, interval=interval, seed=4).low != row.low
    for _ in range(3):
        mixed = list(a)
        rng.shuffle(mixed)
        assert paired_test({q: a[q] for q in mixed}, b, test=test, interval=interval) == row


@pytest.mark.parametrize("interval", ["percentile", "BCa"])
def test_intervals_of_thirds_are_those_of_whole_numbers(interval):
    # Sums of whole numbers are exact. BCa counts the resamples whose mean is the observed one.
    whole = [1, 2, 0, 0, -1, 1, 2, 0, 1, -2, 1, 0]
    thirds = paired_test(named([n / 3 for n in whole]), named([0.0] * 12), interval=interval)
    exact = paired_test(named([float(n) for n in whole]), named([0.0] * 12), interval=interval)
    assert (3 * thirds.low, 3 * thirds.high) == pytest.approx((exact.low, exact.high), rel=1e-9)
    assert thirds.p == exact.p


def test_values_that_differ_by_rounding_alone_are_settled_to_one():
    assert equal_ties([0.3, 0.1 + 0.2, 0.5, 0.1 + 0.2]).tolist() == [0.3, 0.3, 0.5, 0.3]
    assert equal_ties([]).tolist() == []
    assert equal_ties([0.0, -0.0, 1e-300]).tolist() == [0.0, 0.0, 1e-300]
    assert equal_ties([1.0, 1.0 + 1e-9]).tolist() == [1.0, 1.0 + 1e-9]


def differences_of_effect(effect):
    """Two values with a standard deviation of 1 around the effect."""
    return [effect - 0.5**0.5, effect + 0.5**0.5]


@pytest.mark.parametrize(("effect", "needed"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_questions_needed_are_gpowers_for_cohens_effects(effect, needed):
    # G*Power 3.1, t tests, matched pairs, two tails, alpha .05, power .80.
    assert questions_needed(differences_of_effect(effect)) == needed


@given(st.floats(1e-11, 2.5), st.floats(0.001, 0.2), st.floats(0.5, 0.99))
@example(1e-10, 0.05, 0.8)
@example(0.00999, 0.05, 0.8)
@settings(deadline=None, max_examples=cases(60))
def test_questions_needed_have_the_power_and_one_less_has_not(effect, alpha, power):
    needed = questions_needed(differences_of_effect(effect), alpha=alpha, power=power)
    if effect < 0.01:  # The noncentral t is not exact at such sizes, and the normal limit is.
        z = NormalDist()
        questions = ((z.inv_cdf(1 - alpha / 2) + z.inv_cdf(power)) / effect) ** 2
        assert needed == pytest.approx(questions, rel=1e-4)
        return

    def power_of(questions):
        # Over the spreads that may be estimated; not by the noncentral t of the code.
        critical = stats.t.isf(alpha / 2, questions - 1)
        shift = effect * questions**0.5
        spread = stats.chi(questions - 1, scale=(questions - 1) ** -0.5)
        bounds = spread.ppf(1e-13), spread.isf(1e-13)

        def result(s):
            both = stats.norm.sf(critical * s - shift) + stats.norm.cdf(-critical * s - shift)
            return float(both * spread.pdf(s))

        return float(integrate.quad(result, *bounds, epsabs=1e-10, limit=200)[0])

    assert power_of(needed) >= power - 1e-6
    assert needed == 2 or power_of(needed - 1) < power + 1e-6


@given(
    st.lists(st.floats(0.001, 1000), min_size=1, max_size=8),
    st.floats(-18, 0),
    st.sampled_from(["randomisation", "t"]),
    st.sampled_from(["percentile", "BCa"]),
)
@example([0.5, 0.25], -11.0, "randomisation", "percentile")
@settings(deadline=None, max_examples=cases(60))
def test_wins_and_losses_that_nearly_cancel_are_compared_like_others(
    sizes, exponent, test, interval
):
    # Each win is answered by a loss that is smaller by one part in 10^-exponent.
    wins = {f"win {n}": size for n, size in enumerate(sizes)}
    losses = {f"loss {n}": -size * (1 - 10**exponent) for n, size in enumerate(sizes)}
    values = {**wins, **losses}
    zeros = dict.fromkeys(values, 0.0)
    row = paired_test(values, zeros, test=test, interval=interval, resamples=99)
    assert 0 <= row.p <= 1
    assert row.low <= row.high and abs(row.difference) <= max(sizes)
    assert row.questions_needed is None or row.questions_needed >= 2
    if exponent > -10:  # Far above what counts as rounding, a 10^-12th of the largest.
        assert row.questions_needed is not None


def test_no_difference_needs_no_questions_and_one_without_spread_a_handful():
    assert questions_needed([0.1, -0.1, 0.3, -0.3]) is None
    assert questions_needed([0.25] * 8) == 4
    row = paired_test(named([1.25] * 8), named([1.0] * 8), test="t")
    assert (row.low, row.high, row.p) == (0.25, 0.25, 0.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=cases(100, 10))
def test_holm_is_that_of_statsmodels(p_values):
    expected = multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(list(expected), abs=1e-15)


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (named(DRUG_1), named(DRUG_2), {"test": "wilcoxon"}, "randomisation, t"),
        (named(DRUG_1), named(DRUG_2), {"interval": "x"}, "BCa"),
        ({"1": 0, "2": 0, "3": 1}, {"3": 0, "4": 0}, {}, "3 and 2 questions and share 1"),
        ({"1": 0.0}, {"1": 1.0}, {}, "1 questions"),
        ({"1": 0.5, "7": float("nan")}, {"1": 0.5, "7": 0.5}, {}, "question '7'"),
        ({"1": 0.5, "7": 0.5}, {"1": 0.5, "7": float("inf")}, {}, "question '7'"),
        ({"1": 0.5, "7": -float("inf")}, {"1": 0.5, "7": 0.5}, {}, "question '7'"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(a, b, options, message):
    with pytest.raises(InputError, match=message):
        paired_test(a, b, **options)
