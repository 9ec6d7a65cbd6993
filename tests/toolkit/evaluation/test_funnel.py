"""The evidence funnel and the exposure curves, by hand."""

from __future__ import annotations

import pytest

from soundingline.toolkit.evaluation.funnel import (
    evidence_funnel,
    exposure_curves,
    relevant_documents,
)
from soundingline.toolkit.trajectory import Exposure, ToolCall, Trajectory

EVIDENCE = {
    "1": {"a": 1, "b": 2, "c": 1, "z": 0},
    "2": {"x": 1},
    "3": {"y": 1, "w": 1},
    "4": {"n": 0},
}
ONE = Trajectory(
    "1",
    "?",
    "completed",
    tiers={
        "surfaced": ("a", "k", "b", "l", "m", "c"),
        "previewed": ("a", "k", "b"),
        "opened": ("a",),
        "cited": (),
    },
    exposures=(
        Exposure(1, "previewed", "a", 1, 100),
        Exposure(1, "previewed", "k", 2, 100),
        Exposure(2, "opened", "a", 2, 500),
        Exposure(3, "previewed", "b", 3, 600),
        Exposure(3, "cited", "a", 3, 600),
    ),
)
TWO = Trajectory(
    "2",
    "?",
    "completed",
    tiers={"surfaced": ("x",), "previewed": ("q", "x"), "opened": ("q", "x"), "cited": ("x",)},
    exposures=(
        Exposure(1, "opened", "q", 1, 40),
        Exposure(2, "opened", "x", 10, 1000),
    ),
)


def test_each_tier_has_macro_and_micro_recall_and_mean_documents_over_all_questions():
    # Question 3 has no trajectory and counts 0; question 4 has no relevant document.
    funnel = evidence_funnel([ONE, TWO], {"evidence": EVIDENCE})["evidence"]
    assert list(funnel) == ["surfaced", "previewed", "opened", "cited"]
    assert funnel["surfaced"] == pytest.approx(
        {"macro": (1 + 1 + 0) / 3, "micro": 4 / 6, "documents": (6 + 1 + 0) / 3}
    )
    assert funnel["previewed"] == pytest.approx(
        {"macro": (2 / 3 + 1) / 3, "micro": 3 / 6, "documents": 5 / 3}
    )
    assert funnel["opened"] == pytest.approx(
        {"macro": (1 / 3 + 1) / 3, "micro": 2 / 6, "documents": 3 / 3}
    )
    assert funnel["cited"] == pytest.approx({"macro": 1 / 3, "micro": 1 / 6, "documents": 1 / 3})


def test_every_judged_tier_has_its_own_denominator():
    funnel = evidence_funnel([ONE], {"evidence": EVIDENCE, "gold": {"1": {"c": 1}}, "none": {}})
    assert list(funnel) == ["evidence", "gold"]
    assert funnel["gold"]["surfaced"] == {"macro": 1, "micro": 1, "documents": 6}
    assert funnel["gold"]["previewed"]["macro"] == 0


def test_questions_without_a_relevant_document_are_left_out():
    assert list(relevant_documents(EVIDENCE)) == ["1", "2", "3"]


def test_curves_are_steps_averaged_over_all_questions_that_hold_their_last_value():
    curves = exposure_curves([ONE, TWO], EVIDENCE, points=500)
    by_documents = dict(curves["documents"])
    # Question 1 reaches 1/3 at one document and 2/3 at three; question 2 reaches 1 at ten.
    assert by_documents[1] == pytest.approx((1 / 3) / 3)
    assert by_documents[2] == pytest.approx((1 / 3) / 3)
    assert by_documents[3] == by_documents[9] == pytest.approx((2 / 3) / 3)
    assert by_documents[10] == pytest.approx((2 / 3 + 1) / 3)
    by_tokens = dict(curves["tokens"])
    assert by_tokens[99] == 0
    # An opened document counts from its first showing, which was the preview.
    assert by_tokens[100] == pytest.approx((1 / 3) / 3)
    assert max(by_tokens) == 1000 and by_tokens[1000] == pytest.approx((2 / 3 + 1) / 3)


def test_a_curve_has_few_ascending_points_and_ends_at_the_largest_exposure():
    points = exposure_curves([ONE, TWO], EVIDENCE, points=12)["tokens"]
    assert len(points) <= 12
    assert points == sorted(points) and points[0][0] == 1 and points[-1][0] == 1000
    recalls = [recall for _, recall in points]
    assert recalls == sorted(recalls)


def test_the_end_of_the_curve_is_the_recall_of_what_was_shown():
    curves = exposure_curves([ONE, TWO], EVIDENCE)
    shown = evidence_funnel([ONE, TWO], {"evidence": EVIDENCE})["evidence"]["previewed"]["macro"]
    assert curves["documents"][-1][1] == pytest.approx(shown)
    assert curves["tokens"][-1][1] == pytest.approx(shown)


def test_nothing_shown_is_a_point_at_zero():
    assert exposure_curves([], EVIDENCE) == {"documents": [(1, 0)], "tokens": [(1, 0)]}


def test_the_funnel_tells_what_was_judged_from_which_layer():
    exposures = (
        Exposure(1, "previewed", "a", 1, 10, "metadata"),
        Exposure(1, "previewed", "n", 2, 10, "metadata"),
        Exposure(2, "opened", "a", 2, 40, "abstract"),
    )
    calls = (
        ToolCall("search", {}, "", tokens=10, notes={"layer": "metadata"}),
        ToolCall("read", {}, "", tokens=20, notes={"layer": "abstract"}),
        ToolCall("read", {}, "", tokens=10, notes={"layer": "abstract"}),  # the same once more
    )
    trajectory = Trajectory("q", "q", "completed", calls=calls, exposures=exposures)
    judged = {"evidence": {"q": {"a": 1, "b": 1}, "other": {"c": 1}}}
    funnel = evidence_funnel([trajectory], judged)["evidence"]
    assert funnel["metadata"] == {"macro": 0.25, "micro": 1 / 3, "documents": 1.0, "tokens": 5.0}
    assert funnel["abstract"] == {"macro": 0.25, "micro": 1 / 3, "documents": 0.5, "tokens": 15.0}
    assert "text" not in funnel


def test_curves_never_exceed_one():
    # In floating point, 49 times 1/49 is less than 1, and some other sums are more.
    for documents in range(1, 30):
        docids = [f"d{n}" for n in range(documents)]
        rows = [Exposure(1, "opened", docid, n, n) for n, docid in enumerate(docids, start=1)]
        questions = [Trajectory(str(q), "?", "completed", exposures=tuple(rows)) for q in range(7)]
        evidence = {str(q): dict.fromkeys(docids, 1) for q in range(7)}
        for points in exposure_curves(questions, evidence).values():
            assert max(recall for _, recall in points) <= 1
            assert points[-1][1] == pytest.approx(1)
