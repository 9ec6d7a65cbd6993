"""Measures of rankings: every judged question counts, and ties cannot reorder what was shown."""

from __future__ import annotations

import math

import pytest

from toolkit.contracts import Topic
from toolkit.errors import InputError
from toolkit.evaluation.evaluations import evaluate_ranking
from toolkit.evaluation.retrieval import RunRow, documents, measure_rankings, rankings_of

JUDGEMENTS = {"1": {"a": 1, "b": 0, "c": 2}, "2": {"x": 1}, "3": {"n": 0}}


def test_values_are_those_of_the_definitions() -> None:
    # Ranking b, a, z, c with relevant a (grade 1) and c (grade 2).
    values = measure_rankings(
        {"1": ["b", "a", "z", "c"]}, JUDGEMENTS, ("AP", "P@4", "R@2", "RR", "nDCG@4")
    )
    assert values["AP"]["1"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert values["P@4"]["1"] == pytest.approx(0.5)
    assert values["R@2"]["1"] == pytest.approx(0.5)
    assert values["RR"]["1"] == pytest.approx(0.5)
    gained = 1 / math.log2(3) + 2 / math.log2(5)
    assert values["nDCG@4"]["1"] == pytest.approx(gained / (2 + 1 / math.log2(3)))


def test_a_judged_question_without_results_counts_zero_and_an_unjudged_one_not_at_all() -> None:
    values = measure_rankings({"1": ["a"], "2": [], "9": ["x"]}, JUDGEMENTS, ("AP", "nDCG@10"))
    assert list(values["AP"]) == ["1", "2", "3"]
    assert values["AP"]["2"] == 0 and values["nDCG@10"]["3"] == 0


def test_no_ranking_at_all_gives_zeros() -> None:
    assert measure_rankings({}, {"1": {"a": 1}}, ("AP", "RR@10")) == {
        "AP": {"1": 0.0},
        "RR@10": {"1": 0.0},
    }


def test_no_judgements_give_no_values() -> None:
    assert measure_rankings({"1": ["a"]}, {}, ("AP",)) == {"AP": {}}


def test_tied_scores_are_evaluated_in_the_order_of_their_ranks() -> None:
    # trec_eval breaks ties by docid, descending: it would put z first and give RR 1/2.
    rows = [RunRow("1", "a", 0, 7.0), RunRow("1", "z", 1, 7.0)]
    assert evaluate_ranking(rows, {"1": {"a": 1}}, ("RR",)).metrics == {"RR": 1.0}
    assert evaluate_ranking(rows, {"1": {"z": 1}}, ("RR",)).metrics == {"RR": 0.5}


def test_rows_are_ordered_by_rank_whatever_their_order_and_scores() -> None:
    rows = [RunRow("1", "b", 2, 9.0), RunRow("2", "x", 1), RunRow("1", "a", 1, 1.0)]
    assert rankings_of(rows) == {"1": ["a", "b"], "2": ["x"]}


def test_passages_count_as_their_document_once_at_the_best_rank() -> None:
    assert documents(["d2%p4", "d1%p0", "d2%p0", "d3"]) == ["d2", "d1", "d3"]
    rows = [RunRow("1", f"d{n}%p{p}", 10 * n + p) for n in (1, 2) for p in range(3)]
    evaluation = evaluate_ranking(rows, {"1": {"d2": 1}}, ("RR", "P@2"))
    assert evaluation.metrics == {"RR": 0.5, "P@2": 0.5}


@pytest.mark.parametrize(
    "name", ["foo", "P@x", "", "P", "nDCG(rel=2)@10", "alpha_nDCG@10", "AP; AP"]
)
def test_a_measure_that_cannot_be_computed_is_refused_with_valid_ones(name: str) -> None:
    with pytest.raises(InputError, match=r"nDCG@10"):
        measure_rankings({}, JUDGEMENTS, ("AP", name))


def test_ranking_means_are_over_judged_questions_and_counts_tell_the_rest() -> None:
    rows = [RunRow("1", "a", 1), RunRow("4", "a", 1)]
    topics = [Topic(qid, "?") for qid in ("1", "2", "4", "5")]
    evaluation = evaluate_ranking(rows, JUDGEMENTS, ("RR",), topics)
    assert evaluation.metrics == {"RR": 0.5}
    assert evaluation.denominators == {"RR": 2}
    assert evaluation.counts == {"questions": 4, "answered": 2, "failed": 0, "unjudged": 2}
    assert evaluation.funnel == {} and evaluation.curves == {}
