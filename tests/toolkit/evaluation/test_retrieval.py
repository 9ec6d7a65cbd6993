"""Measures of rankings: every judged question counts, and ties cannot reorder what was shown."""

from __future__ import annotations

import math
import shutil
from contextlib import suppress

import ir_measures
import pytest

from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.evaluation import evaluate_ranking
from soundingline.toolkit.evaluation.retrieval import (
    documents,
    measure_rankings,
    parse_measures,
)

JUDGEMENTS = {"1": {"a": 1, "b": 0, "c": 2}, "2": {"x": 1}, "3": {"n": 0}}


def test_values_are_those_of_the_definitions():
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


def test_a_judged_question_without_results_counts_zero_and_an_unjudged_one_not_at_all():
    values = measure_rankings({"1": ["a"], "2": [], "9": ["x"]}, JUDGEMENTS, ("AP", "nDCG@10"))
    assert list(values["AP"]) == ["1", "2", "3"]
    assert values["AP"]["2"] == 0 and values["nDCG@10"]["3"] == 0


def test_no_ranking_at_all_gives_zeros():
    assert measure_rankings({}, {"1": {"a": 1}}, ("AP", "RR@10")) == {
        "AP": {"1": 0.0},
        "RR@10": {"1": 0.0},
    }


def test_no_judgements_give_no_values():
    assert measure_rankings({"1": ["a"]}, {}, ("AP",)) == {"AP": {}}


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


@pytest.mark.parametrize("cutoff", ["", "@20"])
def test_every_measure_of_ir_measures_is_computed_or_refused_in_one_line(cutoff):
    computed = []
    for name in sorted(ir_measures.measures.registry):
        with suppress(InputError):
            computed += parse_measures([f"{name}{cutoff}"])
    assert len(computed) >= 10


@pytest.mark.parametrize(
    "name", ["foo", "P@x", "", "P", "nDCG(rel=2)@10", "alpha_nDCG@10", "AP; AP"]
)
def test_a_measure_that_cannot_be_computed_is_refused_with_valid_ones(name):
    with pytest.raises(InputError, match=r"nDCG@10"):
        measure_rankings({}, JUDGEMENTS, ("AP", name))


def test_ranking_means_are_over_judged_questions_and_counts_tell_the_rest():
    rankings = {"1": ["a"], "4": ["a"]}
    topics = [Topic(qid, "?") for qid in ("1", "2", "4", "5")]
    evaluation = evaluate_ranking(rankings, JUDGEMENTS, ("RR",), topics)
    assert evaluation.metrics == {"RR": 0.5}
    assert evaluation.denominators == {"RR": 2}
    assert evaluation.counts == {"questions": 4, "answered": 2, "failed": 0, "unjudged": 2}
    assert evaluation.funnel == {} and evaluation.curves == {}
