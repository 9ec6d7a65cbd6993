"""Measures of answers that are lists of documents, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from small_benchmark import SmallBenchmark

from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation.agent_run import evaluate_run, final_ranking
from soundingline.toolkit.evaluation.evaluation import average_repeats
from soundingline.toolkit.evaluation.retrieval import (
    LIST_MEASURES,
    measure_rankings,
    parse_measures,
)
from soundingline.toolkit.trajectory import Answer, Trajectory

TARGETS = {"one": {"a", "b"}, "two": {"x"}, "empty": set(), "lost": {"z"}}
CHECKLISTS = {"one": ["r1", "r2"], "two": ["r1"]}
SATISFACTION = {"one": {"c": (True, False), "d": (False, False)}}
TOPICS = [Topic(qid, qid) for qid in TARGETS]
EVIDENCE = {qid: dict.fromkeys(docids, 1) for qid, docids in TARGETS.items() if docids}


def trajectory(qid, *documents):
    tiers = {"surfaced": ("b", "q"), "opened": ("q",)}
    return Trajectory(qid, qid, "completed", answer=Answer(documents=documents), tiers=tiers)


def evaluated(*trajectories, corpus="abcdxz"):
    benchmark = SmallBenchmark(
        TOPICS,
        {"evidence": EVIDENCE},
        docids=corpus,
        sets=True,
        checklists=CHECKLISTS,
        satisfaction=SATISFACTION,
    )
    return evaluate_run(trajectories, benchmark, measures=("AP",))


LISTS = (
    trajectory("one", "a", "c", "ghost", "b"),
    trajectory("two"),
    trajectory("empty", "a"),
)


def test_f1_is_the_harmonic_mean_of_a_questions_precision_and_recall():
    """Five of eight targets in ten results: P 0.5, R 0.625."""
    judged = {"q": {f"t{number}": 1 for number in range(8)}}
    ranking = {"q": [f"t{n}" if n < 5 else f"n{n}" for n in range(10)] + ["t5", "t6"]}
    values = measure_rankings(ranking, judged, ("P@10", "R@10", "F1@10"))
    assert values["P@10"]["q"] == 0.5
    assert values["R@10"]["q"] == 0.625
    assert values["F1@10"]["q"] == pytest.approx(2 * 0.5 * 0.625 / 1.125)


def test_a_list_shorter_than_the_cutoff_has_wrong_empty_places():
    values = measure_rankings({"q": ["a"]}, {"q": {"a": 1, "b": 1}}, ("P@5", "R@5", "F1@5"))
    assert values["P@5"]["q"] == pytest.approx(0.2)
    assert values["R@5"]["q"] == pytest.approx(0.5)
    assert values["F1@5"]["q"] == pytest.approx(2 * 0.2 * 0.5 / 0.7)


def test_f1_without_a_hit_or_a_ranking_is_zero_and_counts_graded_documents_as_relevant():
    judged = {"none": {"a": 1}, "miss": {"a": 1, "n": 0}, "graded": {"a": 3}}
    values = measure_rankings({"miss": ["n"], "graded": ["a"]}, judged, ("F1@1",))
    assert values["F1@1"] == {"none": 0.0, "miss": 0.0, "graded": 1.0}


def test_f1_stands_beside_other_measures_by_name():
    assert [str(measure) for measure in parse_measures(["F1@20", "nDCG@20"])] == [
        "F1@20",
        "nDCG@20",
    ]


def test_a_benchmark_that_asks_for_documents_has_the_set_measures_at_every_cutoff():
    metrics = evaluated(*LISTS).metrics
    assert set(LIST_MEASURES) <= set(metrics)
    assert len(LIST_MEASURES) == 20
    others = evaluate_run(
        LISTS, SmallBenchmark(TOPICS, {"evidence": EVIDENCE}), measures=["AP"]
    ).metrics
    assert not set(LIST_MEASURES) & set(others)


def test_the_list_of_the_answer_is_the_ranking_and_nothing_follows_it():
    values = evaluated(*LISTS).per_question
    assert values["P@5"]["one"] == pytest.approx(2 / 5)
    assert values["R@1"]["one"] == 0.5 and values["R@5"]["one"] == 1.0
    gain = 1 + 1 / math.log2(5)
    assert values["nDCG@5"]["one"] == pytest.approx(gain / (1 + 1 / math.log2(3)))
    assert final_ranking(trajectory("one", "a%p3", "a", "c")) == ["a", "c"]


def test_an_answer_without_a_list_is_ranked_by_what_the_agent_showed_interest_in():
    assert final_ranking(trajectory("one")) == ["q", "b"]


def test_a_question_without_targets_is_counted_and_has_no_recall():
    evaluation = evaluated(*LISTS)
    assert set(evaluation.per_question["R@20"]) == {"one", "two", "lost"}
    assert set(evaluation.per_question["F1@20"]) == {"one", "two", "lost"}
    assert evaluation.counts["without_targets"] == 1
    assert evaluation.counts["asking_for_documents"] == 4
    assert evaluation.denominators["F1@20"] == 3


def test_hallucinated_sources_are_ids_that_the_corpus_lacks():
    evaluation = evaluated(*LISTS)
    # `two` listed nothing: its tiers hold b, and q, which no corpus has.
    expected = {"one": 0.25, "two": 0.5, "empty": 0.0}
    assert evaluation.per_question["hallucination_rate"] == expected
    assert evaluation.per_question["documents_returned"]["one"] == 4


def test_checklist_satisfaction_is_of_what_was_returned():
    values = evaluated(*LISTS).per_question
    # a meets all as a target, c half, a ghost nothing, b all; shorter lists are not filled up.
    assert values["checklist@1"] == {"one": 1.0}
    assert values["checklist@5"]["one"] == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert evaluated().per_question["checklist@5"] == {"one": 0.0}


def test_repeats_count_questions_once():
    both = average_repeats([evaluated(*LISTS), evaluated(replace(LISTS[0], answer=Answer()))])
    assert both.counts["without_targets"] == 1
    assert both.per_question["F1@5"]["one"] == pytest.approx((4 / 7 + 2 / 7) / 2)


def test_a_list_counts_as_an_answer():
    assert evaluated(*LISTS).counts["answered"] == 2
