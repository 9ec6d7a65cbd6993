"""Measures of rankings and of lists of documents, by hand."""

import math
import shutil
from dataclasses import replace

import pytest
from support.benchmarks import SmallBenchmark

from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.agent_run import evaluate_run, final_ranking
from soundingline.toolkit.evaluation.evaluation import average_repeats, evaluate_ranking
from soundingline.toolkit.evaluation.retrieval import (
    LIST_MEASURES,
    documents,
    measure_rankings,
)
from soundingline.toolkit.trajectory import Answer, Trajectory

QRELS = {"1": {"a": 1, "b": 0, "c": 2}, "2": {"x": 1}, "3": {"n": 0}}


def test_values_are_those_of_the_definitions():
    # Ranking b, a, z, c with relevant a (grade 1) and c (grade 2).
    values = measure_rankings(
        {"1": ["b", "a", "z", "c"]}, QRELS, ("AP", "P@4", "R@2", "RR", "nDCG@4")
    )
    assert values["AP"]["1"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert values["P@4"]["1"] == pytest.approx(0.5)
    assert values["R@2"]["1"] == pytest.approx(0.5)
    assert values["RR"]["1"] == pytest.approx(0.5)
    gained = 1 / math.log2(3) + 2 / math.log2(5)
    assert values["nDCG@4"]["1"] == pytest.approx(gained / (2 + 1 / math.log2(3)))


@pytest.mark.parametrize(
    ("rankings", "qrels", "expected"),
    [
        ({"1": ["a"], "2": [], "9": ["x"]}, QRELS, {"1": 1 / 2, "2": 0.0, "3": 0.0}),
        ({}, {"1": {"a": 1}}, {"1": 0.0}),
        ({"1": ["a"]}, {}, {}),
    ],
)
def test_judged_questions_without_results_count_zero_and_unjudged_ones_not_at_all(
    rankings, qrels, expected
):
    assert measure_rankings(rankings, qrels, ("AP",)) == {"AP": expected}


def test_documents_are_evaluated_in_the_order_that_was_shown():
    # trec_eval breaks ties by docid, descending: it would put z first and give RR 1/2.
    rankings = {"1": ["a", "z"]}
    assert evaluate_ranking(rankings, {"1": {"a": 1}}, ("RR",)).metrics == {"RR": 1.0}
    assert evaluate_ranking(rankings, {"1": {"z": 1}}, ("RR",)).metrics == {"RR": 0.5}


def test_passages_count_as_their_document_once_at_the_best_rank():
    assert documents(["d2%p4", "d1%p0", "d2%p0", "d3"]) == ["d2", "d1", "d3"]
    rankings = {"1": [f"d{n}%p{p}" for n in (1, 2) for p in range(3)]}
    evaluation = evaluate_ranking(rankings, {"1": {"d2": 1}}, ("RR", "P@2"))
    assert evaluation.metrics == {"RR": 0.5, "P@2": 0.5}


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval.pl needs perl")
def test_a_provider_that_reads_numbers_only_measures_any_ids():
    # Ranking b, a, z, c; gdeval.pl computes ERR with grades up to 4 (Chapelle et al., 2009).
    ids = {"b": "b 1", "a": "a/2", "z": "ü", "c": "c"}
    judged = {"first question": {ids["a"]: 1, ids["b"]: 0, ids["c"]: 2}}
    values = measure_rankings({"first question": list(ids.values())}, judged, ["ERR@20", "P@4"])
    stops = 1 / 16  # at the second rank, where the grade is 1
    expected = stops / 2 + (1 - stops) * (3 / 16) / 4
    assert values["ERR@20"]["first question"] == pytest.approx(expected, abs=5e-6)
    assert values["P@4"]["first question"] == 0.5


@pytest.mark.parametrize(
    "name",
    ["foo", "P@x", "P@5.5", "nDCG@0", "F1@0", "", "P", "nDCG(rel=2)@10", "alpha_nDCG@10", "AP; AP"],
)
def test_a_measure_that_cannot_be_computed_is_refused_with_valid_ones(name):
    with pytest.raises(InputError, match=r"nDCG@10"):
        measure_rankings({}, QRELS, ("AP", name))


def test_ranking_means_are_over_judged_questions_and_the_others_are_counted():
    rankings = {"1": ["a"], "4": ["a"]}
    topics = [Topic(qid, "?") for qid in ("1", "2", "4", "5")]
    evaluation = evaluate_ranking(rankings, QRELS, ("RR",), topics)
    assert evaluation.metrics == {"RR": 0.5}
    assert evaluation.denominators == {"RR": 2}
    assert evaluation.counts == {"questions": 4, "answered": 2, "failed": 0, "unjudged": 2}
    assert evaluation.funnel == {} and evaluation.curves == {}


# Questions that ask for documents.

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


LISTS = (trajectory("one", "a", "c", "ghost", "b"), trajectory("two"), trajectory("empty", "a"))


@pytest.mark.parametrize(
    ("hits", "length", "relevant", "cutoff"), [(5, 12, 8, 10), (1, 1, 2, 5), (0, 5, 1, 5)]
)
def test_f1_is_the_harmonic_mean_of_a_questions_precision_and_recall(
    hits, length, relevant, cutoff
):
    """A list that is shorter than the cutoff has wrong empty places."""
    ranking = [f"t{n}" if n < hits else f"n{n}" for n in range(length)]
    judged = {"q": {f"t{number}": 1 for number in range(relevant)}}
    names = [f"{name}@{cutoff}" for name in ("P", "R", "F1")]
    values = measure_rankings({"q": ranking}, judged, names)
    precision, recall, f1 = (values[name]["q"] for name in names)
    assert (precision, recall) == pytest.approx((hits / cutoff, hits / relevant))
    assert f1 == pytest.approx(2 * precision * recall / (precision + recall) if hits else 0.0)


def test_f1_without_a_hit_or_a_ranking_is_zero_and_counts_graded_documents_as_relevant():
    judged = {"none": {"a": 1}, "miss": {"a": 1, "n": 0}, "graded": {"a": 3}}
    values = measure_rankings({"miss": ["n"], "graded": ["a"]}, judged, ("F1@1",))
    assert values["F1@1"] == {"none": 0.0, "miss": 0.0, "graded": 1.0}


def test_a_benchmark_that_asks_for_documents_has_the_set_measures_at_every_cutoff():
    assert set(LIST_MEASURES) <= set(evaluated(*LISTS).metrics) and len(LIST_MEASURES) == 20
    others = evaluate_run(LISTS, SmallBenchmark(TOPICS, {"evidence": EVIDENCE}), measures=["AP"])
    assert not set(LIST_MEASURES) & set(others.metrics)


def test_the_list_of_the_answer_is_the_ranking_and_nothing_follows_it():
    values = evaluated(*LISTS).per_question
    assert values["P@5"]["one"] == pytest.approx(2 / 5)
    assert values["R@1"]["one"] == 0.5 and values["R@5"]["one"] == 1.0
    gain = 1 + 1 / math.log2(5)
    assert values["nDCG@5"]["one"] == pytest.approx(gain / (1 + 1 / math.log2(3)))
    assert final_ranking(trajectory("one", "a%p3", "a", "c")) == ["a", "c"]
    assert final_ranking(trajectory("one")) == ["q", "b"], "what the agent showed interest in"


def test_a_question_without_targets_is_counted_and_has_no_recall():
    evaluation = evaluated(*LISTS)
    for measure in ("R@20", "F1@20"):
        assert set(evaluation.per_question[measure]) == {"one", "two", "lost"}
    counts = {"without_targets": 1, "asking_for_documents": 4, "answered": 2}
    assert counts.items() <= evaluation.counts.items()
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
