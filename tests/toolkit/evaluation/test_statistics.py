"""Statistics over questions: paired tests, comparisons of runs, effects and repeats.

scipy and statsmodels are imported inside the tests that need them: their import takes a second.
"""

import json
import math
import warnings
from dataclasses import replace
from fractions import Fraction
from itertools import product
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.benchmarks import SmallBenchmark
from support.needs import SOAK, cases

from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.agent_run import evaluate_run_folder
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge
from soundingline.toolkit.evaluation.comparison import (
    baselines_of,
    compare,
    factor_labels,
    shown_factors,
    systems_of,
)
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun, load_run
from soundingline.toolkit.evaluation.judge import ImportedVerdicts, ModelVerdict
from soundingline.toolkit.evaluation.statistics import (
    TESTS,
    Replication,
    equal_ties,
    factorial_effects,
    holm,
    judged_components,
    paired_test,
    questions_needed,
    replication,
    smallest_difference,
    variance_components,
)
from soundingline.toolkit.runs.manifest import make_manifest
from soundingline.toolkit.runs.run_folder import RunFolder
from soundingline.toolkit.trajectory import Answer, Trajectory

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


def test_the_t_test_of_equivalence_is_that_of_statsmodels():
    from statsmodels.stats.weightstats import ttost_paired

    for margin in (0.5, 2.0, 3.0):
        row = paired_test(named(DRUG_2), named(DRUG_1), test="t", margin=margin)
        expected = ttost_paired(np.array(DRUG_2), np.array(DRUG_1), -margin, margin)[0]
        assert row.p_equivalence == pytest.approx(expected)


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
    from scipy import stats

    rng = np.random.default_rng(6)
    differences = rng.normal(0.15, 1, 120)
    row = paired_test(named(list(differences)), named([0.0] * 120), resamples=20000)
    reference = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=20000, rng=1
    ).pvalue
    assert row.p == pytest.approx(reference, abs=0.02)
    assert row.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.02)


def test_the_interval_is_near_students_on_normal_differences():
    from scipy import stats

    differences = np.random.default_rng(8).normal(0.2, 1, 400)
    row = paired_test(named(list(differences)), named([0.0] * 400))
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
    assert row.low == row.high == row.difference or len(set(differences)) > 1


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


@pytest.mark.parametrize("test", ["randomisation", "t"])
def test_the_seed_fixes_a_row_whatever_the_order_of_the_questions(test):
    rng = np.random.default_rng(21)
    a, b = named(list(rng.random(60))), named(list(rng.random(60)))
    row = paired_test(a, b, test=test)
    assert paired_test(a, b, test=test, seed=4).low != row.low
    for _ in range(3):
        mixed = list(a)
        rng.shuffle(mixed)
        assert paired_test({q: a[q] for q in mixed}, b, test=test) == row


def test_intervals_of_thirds_are_those_of_whole_numbers():
    # Sums of whole numbers are exact.
    whole = [1, 2, 0, 0, -1, 1, 2, 0, 1, -2, 1, 0]
    thirds = paired_test(named([n / 3 for n in whole]), named([0.0] * 12))
    exact = paired_test(named([float(n) for n in whole]), named([0.0] * 12))
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
    from scipy import integrate, stats

    needed = questions_needed(differences_of_effect(effect), alpha=alpha, power=power)

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

    if effect < 0.01:  # The noncentral t is not exact at such sizes, and the normal limit is.
        z = NormalDist()
        questions = ((z.inv_cdf(1 - alpha / 2) + z.inv_cdf(power)) / effect) ** 2
        assert needed == pytest.approx(questions, rel=1e-4)
    else:
        assert power_of(needed) >= power - 1e-6
        assert needed == 2 or power_of(needed - 1) < power + 1e-6


@given(
    st.lists(st.floats(0.001, 1000), min_size=1, max_size=8),
    st.floats(-18, 0),
    st.sampled_from(["randomisation", "t"]),
)
@example([0.5, 0.25], -11.0, "randomisation")
@example([0.5, 0.25], -9.0, "randomisation")
@settings(deadline=None, max_examples=cases(60))
def test_wins_and_losses_that_nearly_cancel_are_compared_like_others(sizes, exponent, test):
    # Each win is answered by a loss that is smaller by one part in 10^-exponent.
    wins = {f"win {n}": size for n, size in enumerate(sizes)}
    losses = {f"loss {n}": -size * (1 - 10**exponent) for n, size in enumerate(sizes)}
    values = {**wins, **losses}
    zeros = dict.fromkeys(values, 0.0)
    row = paired_test(values, zeros, test=test, resamples=99)
    assert 0 <= row.p <= 1
    assert row.low <= row.high and abs(row.difference) <= max(sizes)
    # Above a 10^-10th it is far above what counts as rounding, a 10^-12th of the largest.
    assert exponent <= -10 if row.questions_needed is None else row.questions_needed >= 2


def test_no_difference_needs_no_questions_and_one_without_spread_a_handful():
    assert questions_needed([0.1, -0.1, 0.3, -0.3]) is None
    assert questions_needed([0.25] * 8) == 4
    row = paired_test(named([1.25] * 8), named([1.0] * 8), test="t")
    assert (row.low, row.high, row.p) == (0.25, 0.25, 0.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=cases(100, 10))
def test_holm_is_that_of_statsmodels(p_values):
    from statsmodels.stats.multitest import multipletests

    expected = multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(list(expected), abs=1e-15)


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (named(DRUG_1), named(DRUG_2), {"test": "wilcoxon"}, "randomisation, t"),
        ({"1": 0, "2": 0, "3": 1}, {"3": 0, "4": 0}, {}, "3 and 2 questions and share 1"),
        ({"1": 0.0}, {"1": 1.0}, {}, "1 questions"),
        ({"1": 0.5, "7": float("nan")}, {"1": 0.5, "7": 0.5}, {}, "question '7'"),
        ({"1": 0.5, "7": 0.5}, {"1": 0.5, "7": float("inf")}, {}, "question '7'"),
        ({"1": 0.5, "7": -float("inf")}, {"1": 0.5, "7": 0.5}, {}, "question '7'"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(a, b, options, message):
    refused(message, paired_test, a, b, **options)


# Comparisons of runs: pairs, families, and what must not be compared.


def run_of(name, benchmark="b", **measures):
    return EvaluatedRun(
        name=name, per_question=measures, manifest={"fingerprints": {"benchmark": benchmark}}
    )


def drawn_values(shift, seed=0):
    drawn = np.random.default_rng(seed).normal(shift, 1, 40)
    return {f"q{number}": float(value) for number, value in enumerate(drawn)}


RUNS = [
    run_of("base", AP=drawn_values(0, 1), RR=drawn_values(0, 2)),
    run_of("good", AP=drawn_values(0.6, 3), RR=drawn_values(0.3, 4)),
    run_of("same", AP=drawn_values(0, 1), RR=drawn_values(0.1, 5)),
]


def test_each_run_is_compared_with_the_baseline():
    rows = compare(RUNS, ["AP", "RR"], "base")
    expected = [(measure, name, "base") for measure in ("AP", "RR") for name in ("good", "same")]
    assert [(row.measure, row.a, row.b) for row in rows] == expected
    assert rows[0].difference == pytest.approx(rows[0].mean_a - rows[0].mean_b)
    assert rows[0].difference > 0 and rows[0].low < rows[0].difference < rows[0].high
    assert rows[1].ties == 40 and rows[1].p == 1 and rows[1].questions_needed is None


def test_without_a_baseline_all_pairs_are_compared():
    rows = compare(RUNS, ["AP"])
    expected = [("good", "base"), ("same", "base"), ("same", "good")]
    assert [(row.a, row.b) for row in rows] == expected


@pytest.mark.parametrize("family", ["measure", "all"])
def test_holm_runs_over_the_family_that_is_named(family):
    from statsmodels.stats.multitest import multipletests

    rows = compare(RUNS, ["AP", "RR"], family=family)
    p = [row.p for row in rows]
    families = [p] if family == "all" else [p[:3], p[3:]]
    expected = [each for part in families for each in multipletests(part, method="holm")[1]]
    assert [row.p_holm for row in rows] == pytest.approx(expected)
    assert expected != p


def test_a_row_does_not_depend_on_the_other_runs():
    alone, together = compare(RUNS[:2], ["AP"])[0], compare(RUNS, ["AP"])[0]
    assert alone._replace(p_holm=0) == together._replace(p_holm=0)
    direct = paired_test(RUNS[1].per_question["AP"], RUNS[0].per_question["AP"])
    assert (alone.low, alone.high, alone.p) == (direct.low, direct.high, direct.p)


RECORDED = {f"q{n}": 1.0 for n in range(6)}


@pytest.mark.parametrize("measure", ["seconds", "usage_dollars"])
def test_effort_is_compared_over_the_questions_for_which_both_runs_know_it(measure):
    one = run_of("one", completion=RECORDED, **{measure: {f"q{n}": 2.0 + n for n in range(5)}})
    two = run_of("two", completion=RECORDED, **{measure: {f"q{n}": 4.0 for n in range(1, 6)}})
    (row,) = compare([one, two], [measure])
    assert (row.n, row.mean_a, row.mean_b) == (4, 4.0, pytest.approx((3 + 4 + 5 + 6) / 4))
    assert (row.wins, row.ties, row.losses) == (1, 1, 2)


ELSEWHERE = run_of("elsewhere", "c", AP=drawn_values(0))
OTHER = run_of("other", AP={**{f"q{n}": 0.0 for n in range(10)}, "z": 1.0})
ONE = run_of("one", tool_calls=RECORDED, usage_dollars={f"q{n}": 2.0 for n in range(4)})
TWO = run_of("two", tool_calls=RECORDED, usage_dollars={"q3": 1.0, "q4": 1.0})


@pytest.mark.parametrize(
    ("runs", "arguments", "error", "message"),
    [
        (RUNS, {"measures": ["nDCG@10"]}, InputError, "AP, RR"),
        (RUNS, {"measures": ["ap"]}, InputError, r"did you mean AP\?"),
        (RUNS, {"baseline": "bass"}, InputError, r"base, good, same.*did you mean base\?"),
        (RUNS, {"family": "friends"}, InputError, "measure, all"),
        (RUNS, {"measure": ["AP"]}, TypeError, r"no argument 'measure'.*did you mean m"),
        ([RUNS[0], RUNS[0]], {}, InputError, "one name"),
        ([RUNS[0], ELSEWHERE], {}, InputError, "different benchmarks"),
        ([RUNS[0], OTHER], {}, InputError, r"other \(11 q.*base \(40 .* share 10 on AP"),
        (
            [ONE, TWO],
            {"measures": ["usage_dollars"]},
            InputError,
            "known of 2 questions of the run two, of 4 of one, and",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_is_valid(runs, arguments, error, message):
    with pytest.raises(error, match=message):
        compare(runs, **arguments)


def test_without_measures_those_of_the_command_are_compared_that_all_runs_have():
    assert {row.measure for row in compare(RUNS)} == {"AP"}
    assert list(compare(RUNS)) == list(compare(RUNS, ["AP"]))
    assert compare([run_of("a", RR=drawn_values(0)), run_of("b", RR=drawn_values(1))]) == []


def test_comparisons_and_runs_are_frames_and_tables():
    compared = compare(RUNS, ["AP", "RR"], "base")
    frame = compared.to_frame()
    assert list(frame["a"]) == ["good", "same", "good", "same"]
    assert frame.loc[0, "p_holm"] == compared[0].p_holm and len(frame) == 4
    assert "<td>good</td>" in compared._repr_html_()
    assert list(compare([], []).to_frame().columns) == list(frame.columns)
    run = EvaluatedRun(
        name="<b>",
        metrics={"AP": 0.51234, "ECE": 0.25, "accuracy": 0.5},
        denominators={"AP": 2, "ECE": 1, "accuracy": 2},
        per_question={"AP": {"q1": 0.5, "q2": 0.52468}, "dollars": {"q2": 0.1}},
        counts={"questions": 2, "failed": 1},
        manifest={"config": {"agent": {"_target_": "agents.KeywordAgent"}}},
    )
    assert run.to_frame().to_dict("index") == {
        "AP": {"value": 0.51234, "n": 2},
        "ECE": {"value": 0.25, "n": 1},
        "accuracy": {"value": 0.5, "n": 2},
    }
    by_question = run.to_frame(per_question=True)
    assert by_question["AP"].to_dict() == {"q1": 0.5, "q2": 0.52468}
    assert np.isnan(by_question.loc["q1", "dollars"])
    html = run._repr_html_()
    assert "&lt;b&gt;: 2 questions, 1 failed" in html and "<td>0.5123</td>" in html
    assert "Simulated reader: it" in html
    assert "Simulated reader: it" in compare([run], [])._repr_html_()
    read = replace(run, name="read", manifest={})
    assert "Simulated reader in 1 of 2 runs: it" in compare([run, read], [])._repr_html_()
    assert "Simulated reader" not in read._repr_html_()
    assert "Simulated reader" not in replace(run, metrics={"AP": 0.51234})._repr_html_()
    assert repr(run) == "<EvaluatedRun <b>: AP 0.5123, ECE 0.25, accuracy 0.5>"


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (
            [{"unit": "maxp", "rm3": "none", "k": "5"}, {"unit": "maxp", "rm3": "on", "k": "5"}],
            ["rm3=none", "on"],
        ),
        (
            [{"tool.full": "True", "rm3": "none", "llm.k1": "0.9"}, {"rm3": "on"}],
            ["full=True · none · k1=0.9", "on"],
        ),
        ([{"unit": "maxp"}, {"rm3": "on"}, {}], ["maxp", "on", "—"]),
        ([{"unit": "maxp"}, {"unit": "maxp"}], ["run 0", "run 1"]),
        ([{"unit": "maxp"}, {"unit": "document"}, {"unit": "maxp"}], ["run 0", "run 1", "run 2"]),
    ],
)
def test_a_run_is_labelled_by_what_varies_or_by_its_name_where_that_is_not_clear(rows, labels):
    runs = [EvaluatedRun(name=f"run {place}", factors=row) for place, row in enumerate(rows)]
    assert factor_labels(runs) == labels
    assert factor_labels(runs[:1], []) == ["—"], "no factor is asked for"


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        ({"benchmark.path": "data/a"}, {"benchmark": "beir", "benchmark.path": "data/a"}),
        ({"benchmark.name": "a", "benchmark.path": "data/a"}, {"benchmark": "a"}),
        ({"benchmark.name": "a", "benchmark.dataset": "a"}, {"benchmark": "a"}),
        (
            {"benchmark.name": "a", "benchmark.path": "data/b"},
            {"benchmark": "a", "benchmark.path": "data/b"},
        ),
    ],
)
def test_the_name_of_a_benchmark_is_shown_for_its_option_and_a_path_that_ends_in_it(own, shown):
    given = {"benchmark": "beir", "unit": "maxp", **own}
    assert shown_factors(given) == {"unit": "maxp", **shown}
    assert len(given) == 2 + len(own), "the argument stays"


@pytest.mark.parametrize(
    ("benchmarks", "labels"),
    [
        ([("nq", {}), (None, {"benchmark": "beir"})], ["nq", "beir"]),
        ([("nq", {}), (None, {})], ["nq", "content of 1"]),
        ([("nq", {"benchmark.limit": limit}) for limit in "59"], ["nq 5", "nq 9"]),
        ([("nq", {"llm": model}) for model in "ab"], ["nq (content of 0)", "nq (content of 1)"]),
    ],
)
def test_benchmarks_are_labelled_by_their_names_and_what_differs(benchmarks, labels):
    runs = [
        EvaluatedRun(
            name=str(place),
            factors=factors,
            manifest={
                "fingerprints": {"benchmark": f"content of {place}, in full"},
                "config": {"benchmark": {"name": name} if name else None},
            },
        )
        for place, (name, factors) in enumerate(benchmarks)
    ]
    systems = systems_of(runs)
    assert systems and systems.benchmarks == labels


def test_the_baseline_of_another_benchmark_is_its_run_of_the_system_or_one_with_its_factors():
    def run(benchmark, name, retriever, prompt="p"):
        prints = {"benchmark": benchmark, "retriever": retriever, "prompt": prompt}
        return EvaluatedRun(
            name=name,
            factors={"benchmark": benchmark, "benchmark.limit": "9", "retriever": retriever},
            manifest={"fingerprints": prints, "config": {"retriever": {}, "benchmark": {}}},
        )

    runs = [
        run("a", "twin", "bm25"),
        run("a", "base", "bm25"),
        run("b", "another prompt", "bm25", "q"),
        run("b", "another retriever", "splade"),
        run("b", "another run of the system", "bm25"),
        run("b", "a third run of the system", "bm25"),
        run("c", "a retriever more", "splade"),
        run("c", "the first prompt", "bm25", "q"),
        run("c", "the second prompt", "bm25", "r"),
        run("d", "nothing alike", "splade"),
    ]
    systems = systems_of(runs)
    assert systems
    assert systems.of("base").runs.keys() == {"a", "b"} and systems.of("unknown") is None
    found = baselines_of(runs, "base", systems)
    assert found == ["base", "a third run of the system", "the first prompt"]
    assert baselines_of(runs, "base", None) == ["base", "another prompt", "the first prompt"]


# Effects of a factorial sweep: estimates by hand, errors by an independent computation.


UNITS, DEPTHS = ("document", "passage", "maxp"), ("5", "50")
QUESTIONS = 40


@pytest.fixture(scope="module")
def cells():
    chance = np.random.default_rng(5)
    ease = chance.normal(0, 1, QUESTIONS)
    runs = []
    for unit, depth in product(UNITS, DEPTHS):
        values = UNITS.index(unit) * 0.3 + DEPTHS.index(depth) * 0.2 + ease
        values = values + (0.5 if (unit, depth) == ("maxp", "50") else 0)
        values = values + chance.normal(0, 0.4, QUESTIONS)
        runs.append(
            ({"unit": unit, "depth": depth}, {f"q{n}": v for n, v in enumerate(values.tolist())})
        )
    return runs


def test_effects_are_deviations_of_means(cells):
    by_cell = {(c["unit"], c["depth"]): np.mean(list(row.values())) for c, row in cells}
    table = np.array([[by_cell[unit, depth] for unit in UNITS] for depth in DEPTHS])
    units, depths = table.mean(axis=0) - table.mean(), table.mean(axis=1) - table.mean()
    rest = table - table.mean() - units - depths[:, None]
    expected = {
        **{(unit,): value for unit, value in zip(UNITS, units, strict=True)},
        **{(depth,): value for depth, value in zip(DEPTHS, depths, strict=True)},
        **{(d, u): rest[y, x] for y, d in enumerate(DEPTHS) for x, u in enumerate(UNITS)},
    }
    result = {effect.levels: effect.estimate for effect in factorial_effects(cells)}
    assert result == pytest.approx(expected, abs=1e-6)


def test_effects_of_two_levels_are_those_of_an_analysis_of_variance_of_repeated_measures(cells):
    """In a balanced design with two levels a factor, the F tests that allow each question its own
    reaction to each factor are t tests of the contrasts by question."""
    from statsmodels.stats.anova import AnovaRM

    runs = [run for run in cells if run[0]["unit"] != UNITS[2]]
    rows = [{**cell, "qid": qid, "value": v} for cell, row in runs for qid, v in row.items()]
    table = AnovaRM(pd.DataFrame(rows), "value", "qid", within=["depth", "unit"]).fit().anova_table
    effects = {effect.factors: effect.p for effect in factorial_effects(runs, test="t")}
    assert {":".join(factors): p for factors, p in effects.items()} == pytest.approx(
        table["Pr > F"].to_dict(), rel=1e-6
    )


def null_design(chance, variance, *, questions=100, levels=(3, 2), binary=False):
    """A factorial design without an effect. Questions differ, and what else varies is `variance`:
    nothing but the single value, the reaction of a question to each factor, or the three runs of a
    question in a cell."""
    ease = chance.normal(0, 1, questions)
    reactions = [chance.normal(0, 0.5, (questions, count)) for count in levels]
    runs = []
    for cell in product(*map(range, levels)):
        values = ease + chance.normal(0, 0.4, questions)
        if variance == "question and factor":
            values += sum(part[:, level] for part, level in zip(reactions, cell, strict=True))
        elif variance == "run":
            values += chance.normal(0, 0.7, (3, questions)).mean(axis=0)
        values = (values > 0).astype(float) if binary else values
        factors = {f"factor {place}": str(level) for place, level in enumerate(cell)}
        runs.append((factors, {f"q{n}": value for n, value in enumerate(values.tolist())}))
    return runs


TRIALS = cases(2000, 100)
# Three standard errors of a rate over few trials, of which each has several independent effects.
TOLERANCE = 0.0 if TRIALS == 2000 else 0.03


@pytest.mark.slow
@pytest.mark.parametrize("questions", [37, 200])
def test_the_smallest_difference_is_found_as_often_as_its_power_says(questions):
    from statsmodels.stats.power import TTestPower

    chance, deviation, found = np.random.default_rng(6), 0.3, []
    power = float(TTestPower().power(1 / 3, questions, 0.05))
    difference = smallest_difference(questions, deviation, power=power)
    assert difference == pytest.approx(deviation / 3)
    for _ in range(TRIALS):
        row = dict(enumerate(chance.normal(difference, deviation, questions).tolist()))
        found.append(paired_test(row, dict.fromkeys(row, 0.0), resamples=199).p <= 0.05)
    assert np.mean(found) == pytest.approx(power, abs=0.05 + 2 * TOLERANCE)


def test_the_smallest_difference_of_two_questions_is_many_deviations():
    """Of two questions, t has one degree of freedom: a Cauchy distribution."""
    from scipy.stats import nct, t

    found = smallest_difference(2, 0.5, alpha=0.05 / 17)
    assert nct.sf(t.isf(0.025 / 17, 1), 1, found / 0.5 * 2**0.5) == pytest.approx(0.8, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("variance", ["question", "question and factor", "run"])
def test_tests_and_intervals_of_effects_hold_their_level(variance):
    chance, rejected, covered = np.random.default_rng(1), [], []
    for _ in range(TRIALS):
        effects = factorial_effects(null_design(chance, variance), resamples=999)
        rejected.append([effect.p <= 0.05 for effect in effects])
        covered.append([effect.low <= 0 <= effect.high for effect in effects])
    assert 0.035 - TOLERANCE <= np.mean(rejected) <= 0.065 + TOLERANCE
    assert 0.93 - TOLERANCE <= np.mean(covered) <= 0.97 + TOLERANCE


@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="a second opinion of minutes: make test-soak")
def test_a_mixed_model_with_random_slopes_comes_to_the_same_conclusions():
    """Barr et al. (2013) recommend it; a random intercept alone rejects too often. The rates are
    those of docs/results.md."""
    import statsmodels.formula.api as smf
    from statsmodels.tools.sm_exceptions import ConvergenceWarning

    chance, ours, theirs, intercepts = np.random.default_rng(4), [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(50):
            runs = null_design(chance, "question and factor", levels=(2, 2))
            rows = [{**cell, "qid": qid, "v": v} for cell, row in runs for qid, v in row.items()]
            table = pd.DataFrame(rows).rename(columns={"factor 0": "a", "factor 1": "b"})
            coded = table.assign(**{f: 2.0 * (table[f] == "1") - 1 for f in "ab"})
            model = smf.mixedlm("v ~ a * b", coded, groups="qid", re_formula="~ a + b")
            simple = smf.mixedlm("v ~ a * b", coded, groups="qid").fit()
            fitted = model.fit()
            if fitted.converged:
                effects = factorial_effects(runs, resamples=999)
                ours.append(next(each.p for each in effects if each.factors == ("factor 0",)))
                theirs.append(fitted.pvalues["a"])
                intercepts.append(simple.pvalues["a"])
    assert len(ours) == 50
    rates = [float(np.mean(np.array(p) <= 0.05)) for p in (ours, theirs, intercepts)]
    assert rates == pytest.approx([0.04, 0.0, 0.06], abs=0.021)
    agreement = np.mean((np.array(ours) <= 0.05) == (np.array(theirs) <= 0.05))
    assert agreement >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("binary", [False, True])
def test_a_corrected_family_of_effects_holds_its_level(binary):
    chance, rejected = np.random.default_rng(2), []
    for _ in range(TRIALS):
        runs = null_design(chance, "question and factor", binary=binary)
        effects = factorial_effects(runs, resamples=999)
        rejected.append(min(holm([effect.p for effect in effects])) <= 0.05)
    assert 0 < np.mean(rejected) <= 0.065 + 2 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("binary", [False, True])
def test_equivalence_is_concluded_at_its_margin_no_more_often_than_its_level(test, binary):
    """At a true difference of exactly the margin, 5 % of the trials find it smaller."""
    chance, margin, found = np.random.default_rng(3), 0.05 if binary else 0.1, []
    questions = 400 if binary else 100  # 100 are too few to find anything smaller than .05
    for _ in range(TRIALS):
        if binary:  # b is right on .5, a on .55
            b = chance.random(questions) < 0.5
            a = np.where(chance.random(questions) < 0.2, ~b | (chance.random(questions) < 0.5), b)
        else:
            b = chance.normal(0, 1, questions)
            a = b + chance.normal(margin, 0.3, questions)
        sides = [dict(enumerate(side.astype(float).tolist())) for side in (a, b)]
        paired = paired_test(*sides, test=test, margin=margin, resamples=499)
        found.append(paired.p_equivalence <= 0.05)
    assert 0 < np.mean(found) <= 0.065 + 2 * TOLERANCE


def test_questions_that_never_differ_have_no_effect():
    runs = [({"unit": unit}, {"q1": 1.0, "q2": 0.0}) for unit in UNITS]
    effects = [(effect.estimate, effect.p) for effect in factorial_effects(runs)]
    assert effects == [(pytest.approx(0, abs=1e-12), 1)] * len(effects) != []


@pytest.mark.parametrize(
    ("shift", "spread", "conclusion"),
    [(0.3, 0.1, "different"), (0.01, 0.1, "equivalent"), (0.01, 1.0, "undecided")],
)
def test_a_margin_distinguishes_equivalent_from_undecided(shift, spread, conclusion):
    chance = np.random.default_rng(4)
    base = chance.normal(0, 1, 60)
    sides = {"new": base + chance.normal(shift, spread, 60), "old": base}
    runs = [EvaluatedRun(name=n, per_question={"AP": named(v.tolist())}) for n, v in sides.items()]
    (row,) = compare(runs, ["AP"], "old", margin=0.1)
    assert row.conclusion() == conclusion
    (without,) = compare(runs, ["AP"], "old")
    assert (without.conclusion(), without.p_equivalence) == ("", None)
    assert without == row._replace(p_equivalence=None, p_equivalence_holm=None)


def test_a_margin_is_of_the_first_measure():
    values = {"a": (0.5, 0.6, 0.7), "b": (0.4, 0.6, 0.5)}
    runs = [
        EvaluatedRun(name=name, per_question={"AP": named(row), "RR": named(row)})
        for name, row in values.items()
    ]
    first, second = compare(runs, ["RR", "AP"], margin=0.2)
    assert (first.measure, second.measure) == ("RR", "AP")
    assert first.p_equivalence_holm is not None and second.p_equivalence_holm is None
    refused("margin is 0", compare, runs, ["AP"], margin=0)


# Repeats of questions: the question is the unit of the statistics.


@pytest.mark.parametrize(
    ("repeats", "shape", "total"),
    [(3, (2.0, 2.0), 200), (3, (0.5, 0.2), 200), (1, (0.5, 0.5), 200), (3, (2.0, 2.0), 400)],
    ids=["repeats", "hard and easy questions", "the stated share", "a sample of the questions"],
)
def test_another_run_of_the_same_system_is_consistent_in_95_of_100_cases(repeats, shape, total):
    """Each question has a probability of a right answer. Half of the variance of Beta(1/2, 1/2)
    questions is that of runs, which is the share that is assumed without repeats."""
    rng, trials, covered, paired = np.random.default_rng(7), cases(2000, 300), 0, 0
    for _ in range(trials):
        chances = rng.beta(*shape, total)
        theirs = rng.binomial(1, chances)
        ours = {f"q{n}": rng.binomial(1, chances[n], repeats) for n in range(200)}
        row = replication(ours, theirs.mean(), total)
        covered += row.verdict == "consistent"
        if total == 200:
            means = {qid: float(row.mean()) for qid, row in ours.items()}
            same = paired_test(means, named_as("q", theirs), test="t", resamples=199)
            paired += Replication(same.difference, same.low, same.high).verdict == "consistent"
    error = 0.01 + 3 * math.sqrt(
        0.95 * 0.05 / trials
    )  # answers are right or wrong, so that means have steps
    assert covered / trials == pytest.approx(0.95, abs=error)
    assert total > 200 or paired / trials == pytest.approx(0.95, abs=error)


def named_as(letter, values):
    return {f"{letter}{number}": float(value) for number, value in enumerate(values)}


def test_a_replication_has_the_noise_that_is_stated_and_none_without_a_model():
    """The figures of the default, and of a difference that only rounding may explain."""
    for questions, points in ((830, 0.034), (100, 0.098)):
        right = named_as("q", [n % 2 for n in range(questions)])
        values = {qid: [value] for qid, value in right.items()}
        row = replication(values, 0.5)
        assert row.high == pytest.approx(points, rel=0.02) and row.difference == 0
        assert replication(values, 0.5 + points * 1.05).verdict == "differs"
        assert replication(values, 0.51, sampled=False).verdict == "differs"
        assert replication(values, 0.51, sampled=False, rounding=0.011).verdict == "consistent"
    assert replication({"q": [1.0]}, 0.5) is None


@pytest.mark.parametrize("judges", [2, 3])
def test_the_variance_of_judges_is_split_from_that_of_runs_and_questions(judges):
    """Normal deviations of known sizes are found again, and a judge's is not taken for a run's."""
    rng, (question, run, judge) = np.random.default_rng(3), (0.8, 0.5, 0.3)
    shape = (4000, 3, judges)
    values = rng.normal(0, question, shape[0])[:, None, None]
    values = values + rng.normal(0, run, shape[:2])[:, :, None] + rng.normal(0, judge, shape)
    parts, found = judged_components({f"q{n}": row for n, row in enumerate(values)})
    assert (parts.between, parts.within, found) == pytest.approx((question, run, judge), rel=0.04)
    assert parts.share == pytest.approx(0.25 / (0.64 + 0.25 + 0.09), rel=0.05)
    # Equal verdicts leave what there is without judges.
    equal = {f"q{n}": np.repeat(row[:, :1], 2, axis=1) for n, row in enumerate(values)}
    parts, none = judged_components(equal)
    alone = variance_components({qid: row[:, 0] for qid, row in equal.items()})
    assert none == 0 and parts == pytest.approx(alone)
    assert judged_components({qid: row[:, :1] for qid, row in equal.items()}) is None


@pytest.mark.parametrize("sizes", [[4, 4, 4, 4, 4], [2, 5, 1, 3, 7]], ids=["balanced", "unequal"])
def test_components_are_those_of_a_one_way_analysis_of_variance(sizes):
    from scipy import stats

    random = np.random.default_rng(3)
    groups = [random.normal(random.normal(0, 2), 1, size).tolist() for size in sizes]
    result = variance_components({f"q{place}": row for place, row in enumerate(groups)})
    total = sum(sizes)
    pooled = sum((len(row) - 1) * np.var(row, ddof=1) for row in groups if len(row) > 1)
    mean_square = pooled / (total - len(sizes))
    assert result.within == pytest.approx(math.sqrt(mean_square))
    # F is the ratio of the mean squares, and scipy's own.
    size = (total - sum(size**2 for size in sizes) / total) / (len(sizes) - 1)
    ratio = stats.f_oneway(*groups).statistic
    assert result.between**2 == pytest.approx((ratio - 1) * mean_square / size)
    assert result.share == pytest.approx(result.within**2 / (result.within**2 + result.between**2))
    assert (result.questions, result.repeats) == (5, pytest.approx(total / 5))


@pytest.mark.parametrize(
    ("values", "components"),
    [
        ({"a": [1.0, 1.0], "b": [1.0, 1.0]}, (0.0, 0.0, None, 2, 2.0)),
        # The mean of three times 0.1 is not 0.1 in floating point, and 0.1 + 0.2 is not 0.3.
        ({"a": [0.1] * 3, "b": [0.1] * 3}, (0.0, 0.0, None, 2, 3.0)),
        ({"a": [0.3, 0.3], "b": [0.1 + 0.2] * 2}, (0.0, 0.0, None, 2, 2.0)),
        ({"a": [0.0, 1.0], "b": [1.0, 0.0]}, (0.5**0.5, 0.0, 1.0, 2, 2.0)),
        ({"a": [0.0], "b": [1.0]}, None),
        ({"a": [0.0, 1.0]}, None),
    ],
)
def test_what_does_not_vary_has_no_share_and_single_values_have_no_components(values, components):
    assert variance_components(values) == components


TOPICS = [Topic(f"q{n}", "?") for n in range(4)]
BENCHMARK = SmallBenchmark(
    TOPICS,
    {"evidence": {topic.qid: {"d": 1} for topic in TOPICS}},
    {topic.qid: ["Ada"] for topic in TOPICS},
)


def trajectory(qid, right, rank, status="completed"):
    docids = [*(f"x{place}" for place in range(rank - 1)), "d"]
    answer = Answer(exact="Ada" if right else "Bob", confidence=80.0)
    tiers = {"surfaced": docids, "previewed": docids[:1], "opened": (), "cited": ()}
    return Trajectory(qid, "?", status, answer=answer, tiers=tiers)


def recorded(path, rights, rank=2):
    """A run whose answer to question i in repeat j is right where `rights[j, i]`."""
    folder = RunFolder(path)
    with folder.writing(make_manifest({}, {"benchmark": "b"}, {"run": path.name})):
        for number, row in enumerate(rights, start=1):
            for topic, right in zip(TOPICS, row, strict=True):
                folder.repeat(number).write(trajectory(topic.qid, bool(right), rank))
    return folder


def evaluated(folder):
    judges = [ExactAnswerJudge() for _ in folder.repeats()]
    return evaluate_run_folder(folder, BENCHMARK, judges, ("AP",), state=folder.state())


RIGHTS = np.array([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=bool)
REPEATS = ("", "#repeat2")  # what follows the id of a question


def test_a_question_counts_once_with_the_mean_of_its_repeats(tmp_path):
    run = evaluated(recorded(tmp_path / "a", RIGHTS))
    assert run.per_question["accuracy"] == pytest.approx(
        {"q0": 1.0, "q1": 2 / 3, "q2": 2 / 3, "q3": 0.0}
    )
    assert run.metrics["accuracy"] == pytest.approx(7 / 12)
    assert run.repeats["accuracy"]["q1"] == [0.0, 1.0, 1.0]
    assert run.counts["questions"] == 4 and run.counts["completed"] == 12
    assert run.counts["repeats"] == 3
    # Every answer claims 80 %: the distance to the share that is right, of each repeat.
    distances = np.abs(100 * RIGHTS.mean(axis=1) - 80)
    assert run.metrics["calibration_error"] == pytest.approx(distances.mean())
    assert load_run(tmp_path / "a") == run


def test_a_test_between_runs_is_over_questions_and_not_over_repeats(tmp_path):
    from scipy import stats

    others = ~RIGHTS[:2]
    one, other = recorded(tmp_path / "a", RIGHTS), recorded(tmp_path / "b", others)
    (verdict,) = compare([evaluated(one), evaluated(other)], ["accuracy"], test="t")
    expected = stats.ttest_rel(others.mean(axis=0), RIGHTS.mean(axis=0))
    assert verdict.n == 4
    assert verdict.p == pytest.approx(expected.pvalue)


def test_a_missing_repeat_of_a_question_counts_as_wrong(tmp_path):
    folder = recorded(tmp_path / "a", RIGHTS)
    (folder.path / "repeats" / "3" / "queries" / "q0.json").unlink()
    run = evaluated(folder)
    assert run.per_question["accuracy"]["q0"] == pytest.approx(2 / 3)
    assert run.counts["missing"] == 1


def test_an_evaluation_records_what_each_judge_of_the_run_said(tmp_path):
    folder = recorded(tmp_path / "a", RIGHTS[:2])
    model_says = [("q0", False, ""), ("q1", True, ""), ("q2", False, "failed")]
    rows = [ModelVerdict(qid, correct, error=error) for qid, correct, error in model_says]
    for part, verdicts in zip(folder.repeats(), (rows, rows[:1]), strict=True):
        ImportedVerdicts.write(part.path, "a model@1234", verdicts)
    evaluated(folder)
    path = folder.path / "evaluation" / "judges.json"
    by_rule = {f"q{n}{end}": bool(RIGHTS[i, n]) for i, end in enumerate(REPEATS) for n in range(4)}
    imported = {"q0": False, "q1": True, "q0#repeat2": False}
    assert json.loads(path.read_text()) == {
        "trajectories": folder.state(),
        "judges": {
            ExactAnswerJudge.name: {"model": "", "verdicts": by_rule},
            "llm-imported": {"model": "a model", "verdicts": imported},
        },
    }
    for part in folder.repeats():
        (part.path / ImportedVerdicts.path).unlink()
    evaluated(folder)
    assert not path.exists(), "there is the exact rule alone"


def test_a_run_without_repeats_has_no_files_of_them(tmp_path):
    once = recorded(tmp_path / "a", RIGHTS[:1])
    run = evaluated(once)
    assert not (once.path / "repeats").exists()
    assert not (once.path / "evaluation" / "repeats.json").exists()
    assert "repeats" not in run.counts and not run.repeats
    # The same trajectories as the first of several repeats are found as they were.
    several = recorded(tmp_path / "b", RIGHTS)
    assert several.statuses() == once.statuses() and several.state() != once.state()


def test_a_new_repeat_makes_an_evaluation_outdated(tmp_path):
    folder = recorded(tmp_path / "a", RIGHTS[:2])
    evaluated(folder)
    with folder.writing(make_manifest({}, {"benchmark": "b"}, {"run": "a"})):
        folder.repeat(3).write(trajectory("q0", True, 1))
    refused("trajectories that are there now", load_run, folder.path)
    told = json.loads((folder.path / "evaluation" / "repeats.json").read_text())
    assert set(told) == {"values", "variance"}
