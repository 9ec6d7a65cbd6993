"""Comparisons of runs: pairs, families, and what must not be compared."""

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.comparison import compare
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.statistics import paired_test


def run_of(name, benchmark="b", **measures):
    return EvaluatedRun(
        name=name, per_question=measures, manifest={"fingerprints": {"benchmark": benchmark}}
    )


def values(shift, seed=0):
    drawn = np.random.default_rng(seed).normal(shift, 1, 40)
    return {f"q{number}": float(value) for number, value in enumerate(drawn)}


RUNS = [
    run_of("base", AP=values(0, 1), RR=values(0, 2)),
    run_of("good", AP=values(0.6, 3), RR=values(0.3, 4)),
    run_of("same", AP=values(0, 1), RR=values(0.1, 5)),
]


def test_each_run_is_compared_with_the_baseline():
    rows = compare(RUNS, ["AP", "RR"], "base")
    assert [(row.measure, row.a, row.b) for row in rows] == [
        ("AP", "good", "base"),
        ("AP", "same", "base"),
        ("RR", "good", "base"),
        ("RR", "same", "base"),
    ]
    assert rows[0].difference == pytest.approx(rows[0].mean_a - rows[0].mean_b)
    assert rows[0].difference > 0 and rows[0].low < rows[0].difference < rows[0].high
    assert rows[1].ties == 40 and rows[1].p == 1 and rows[1].questions_needed is None


def test_without_a_baseline_all_pairs_are_compared():
    rows = compare(RUNS, ["AP"])
    assert [(row.a, row.b) for row in rows] == [
        ("good", "base"),
        ("same", "base"),
        ("same", "good"),
    ]


@pytest.mark.parametrize("family", ["measure", "all"])
def test_holm_runs_over_the_family_that_is_named(family):
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


ELSEWHERE = run_of("elsewhere", "c", AP=values(0))
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
    assert compare([run_of("a", RR=values(0)), run_of("b", RR=values(1))]) == []


def test_comparisons_and_runs_are_frames_and_tables():
    compared = compare(RUNS, ["AP", "RR"], "base")
    frame = compared.to_frame()
    assert list(frame["a"]) == ["good", "same", "good", "same"]
    assert frame.loc[0, "p_holm"] == compared[0].p_holm and len(frame) == 4
    assert "<td>good</td>" in compared._repr_html_()
    assert list(compare([], []).to_frame().columns) == list(frame.columns)
    run = EvaluatedRun(
        name="<b>",
        metrics={"AP": 0.51234, "ECE": 0.25},
        denominators={"AP": 2, "ECE": 1},
        per_question={"AP": {"q1": 0.5, "q2": 0.52468}, "dollars": {"q2": 0.1}},
        counts={"questions": 2, "failed": 1},
        manifest={"config": {"agent": {"reader": "simulated"}}},
    )
    assert run.to_frame().to_dict("index") == {
        "AP": {"value": 0.51234, "n": 2},
        "ECE": {"value": 0.25, "n": 1},
    }
    by_question = run.to_frame(per_question=True)
    assert by_question["AP"].to_dict() == {"q1": 0.5, "q2": 0.52468}
    assert np.isnan(by_question.loc["q1", "dollars"])
    html = run._repr_html_()
    assert "&lt;b&gt;: 2 questions, 1 failed" in html and "<td>0.5123</td>" in html
    assert "Simulated reader" in html and "Simulated reader" in compare([run], [])._repr_html_()
    assert repr(run) == "<EvaluatedRun <b>: AP 0.5123, ECE 0.25>"
