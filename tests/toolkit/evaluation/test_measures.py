"""The measures of rankings and of lists of documents, by hand, and those of agents' runs, by hand
and by the published evaluator's description."""

import json
import math
import random
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.assertions import refused
from support.benchmarks import SmallBenchmark
from support.needs import cases
from support.runs import answer, browsecomp, said, search, thought, trajectory

from soundingline.toolkit.data import StatedFact, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.agent_run import evaluate_run, final_ranking, query_measures
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge
from soundingline.toolkit.evaluation.branches import branch_measures, searches_of
from soundingline.toolkit.evaluation.evaluation import average_repeats, evaluate_ranking
from soundingline.toolkit.evaluation.funnel import (
    LABELS,
    STEP_MEASURES,
    STEPS,
    StepRecord,
    conditional_shares,
    decomposed_difference,
    evidence_funnel,
    exposure_curves,
    needed_texts,
    step_measures,
)
from soundingline.toolkit.evaluation.published import (
    rms_calibration_error,
)
from soundingline.toolkit.evaluation.retrieval import (
    LIST_MEASURES,
    answer_coverage,
    documents,
    measure_rankings,
)
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import Turn, Usage
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.queries import has_operator
from soundingline.toolkit.report.measures import NEITHER, look_up_measure
from soundingline.toolkit.search.answers import parse_answer
from soundingline.toolkit.trajectory import (
    FORCED_STATUSES,
    TIERS,
    Answer,
    Exposure,
    RecordedCall,
    Trajectory,
)

JUDGED = {"1": {"a": 1, "b": 0, "c": 2}, "2": {"x": 1}, "3": {"n": 0}}


def test_values_are_those_of_the_definitions():
    # Ranking b, a, z, c with relevant a (grade 1) and c (grade 2).
    values = measure_rankings(
        {"1": ["b", "a", "z", "c"]}, JUDGED, ("AP", "P@4", "R@2", "RR", "nDCG@4")
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
        ({"1": ["a"], "2": [], "9": ["x"]}, JUDGED, {"1": 1 / 2, "2": 0.0, "3": 0.0}),
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


# Bpref of a ranking b, a, x, where a is relevant: 1 - min(n, R) / min(R, N), and the judged b above
# it makes n = 1 (trec_eval's m_bpref.c). P@1 of infAP at rank 2 is 1 / 2, with nothing sampled.
@pytest.mark.parametrize("spam", [-1, -2, -100, -(10**20)])
def test_a_grade_below_0_is_judged_and_counts_as_grade_0(spam):
    judged = {"mixed": {"a": 1, "b": spam, "c": spam}, "spam": {"a": spam, "b": spam}}
    rankings = {qid: ["b", "a", "x"] for qid in judged}
    measures = ("AP", "RR", "P@3", "R@3", "nDCG@3", "Bpref", "infAP", "Judged@3", "F1@3")
    values = measure_rankings(rankings, judged, measures)
    mixed = (1 / 2, 1 / 2, 1 / 3, 1, 1 / math.log2(3), 0, 1 / 2, 2 / 3, 2 / 4)
    for name, value in zip(measures, mixed, strict=True):
        assert values[name]["mixed"] == pytest.approx(value, abs=1e-5), name
    nothing = {name: values[name]["spam"] for name in measures}
    assert nothing == {**dict.fromkeys(measures, 0), "Judged@3": 2 / 3}


def test_the_judged_share_of_the_first_ten_is_measured_where_some_documents_are_not_relevant():
    topics = [Topic("1", "?")]
    grades = {"a": 1, "b": 0}
    row = Trajectory("1", "?", "completed", tiers={"opened": ("a", "b", "x", "y")})
    for judged, expected in ((grades, 2 / 4), ({"a": 1}, None)):
        benchmark = SmallBenchmark(topics, qrels={"evidence": {"1": judged}})
        measured = evaluate_run([row], benchmark, measures=("AP",))
        assert measured.metrics.get("Judged@10") == expected
    assert look_up_measure("Judged@10").better == NEITHER


@pytest.mark.parametrize("grade", [10**6 + 1, 2 * 10**9, 10**10, 10**20])
def test_a_grade_for_which_trec_eval_has_no_memory_is_refused(grade):
    with pytest.raises(
        InputError, match=f"'d' has the grade {grade} for question 'q'.*at most 1,000,000"
    ):
        measure_rankings({"q": ["d"]}, {"q": {"d": grade}})
    values = measure_rankings({"q": ["c", "d"]}, {"q": {"c": 1, "d": 10**6}}, ["nDCG@2", "AP"])
    ideal = 10**6 + 1 / math.log2(3)
    assert values["nDCG@2"]["q"] == pytest.approx((1 + 10**6 / math.log2(3)) / ideal)
    assert values["AP"]["q"] == 1


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval.pl needs perl")
def test_grades_above_those_of_gdeval_are_refused_in_one_line():
    with pytest.raises(InputError, match=r"ERR@20 .*grades up to 4"):
        measure_rankings({"q": ["d"]}, {"q": {"d": 5}}, ["AP", "ERR@20"])


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
    refused(r"nDCG@10", measure_rankings, {}, JUDGED, ("AP", name))


def test_ranking_means_are_over_judged_questions_and_the_others_are_counted():
    rankings = {"1": ["a"], "4": ["a"]}
    topics = [Topic(qid, "?") for qid in ("1", "2", "4", "5")]
    evaluation = evaluate_ranking(rankings, JUDGED, ("RR",), topics)
    assert evaluation.metrics == {"RR": 0.5}
    assert evaluation.denominators == {"RR": 2}
    assert evaluation.counts == {"questions": 4, "answered": 2, "failed": 0, "unjudged": 2}
    assert evaluation.funnel == {} and evaluation.curves == {}


# Questions that ask for documents.

TARGETS = {"one": {"a", "b"}, "two": {"x"}, "empty": set(), "lost": {"z"}}
CHECKLISTS = {"one": ["r1", "r2"], "two": ["r1"]}
SATISFACTION = {"one": {"c": (True, False), "d": (False, False)}}
LISTED = [Topic(qid, qid) for qid in TARGETS]
LISTED_EVIDENCE = {qid: dict.fromkeys(docids, 1) for qid, docids in TARGETS.items() if docids}


def listing(qid, *documents):
    tiers = {"surfaced": ("b", "q"), "opened": ("q",)}
    return Trajectory(qid, qid, "completed", answer=Answer(documents=documents), tiers=tiers)


def evaluated_lists(*trajectories, corpus="abcdxz"):
    benchmark = SmallBenchmark(
        LISTED,
        {"evidence": LISTED_EVIDENCE},
        docids=corpus,
        sets=True,
        checklists=CHECKLISTS,
        satisfaction=SATISFACTION,
    )
    return evaluate_run(trajectories, benchmark, measures=("AP",))


LISTS = (listing("one", "a", "c", "ghost", "b"), listing("two"), listing("empty", "a"))


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
    assert set(LIST_MEASURES) <= set(evaluated_lists(*LISTS).metrics) and len(LIST_MEASURES) == 20
    others = evaluate_run(
        LISTS, SmallBenchmark(LISTED, {"evidence": LISTED_EVIDENCE}), measures=["AP"]
    )
    assert not set(LIST_MEASURES) & set(others.metrics)


def test_the_list_of_the_answer_is_the_ranking_and_nothing_follows_it():
    values = evaluated_lists(*LISTS).per_question
    assert values["P@5"]["one"] == pytest.approx(2 / 5)
    assert values["R@1"]["one"] == 0.5 and values["R@5"]["one"] == 1.0
    gain = 1 + 1 / math.log2(5)
    assert values["nDCG@5"]["one"] == pytest.approx(gain / (1 + 1 / math.log2(3)))
    assert final_ranking(listing("one", "a%p3", "a", "c")) == ["a", "c"]
    assert final_ranking(listing("one")) == ["q", "b"], "what the agent showed interest in"
    many = [f"d{number}" for number in range(1001)]
    assert final_ranking(listing("one", *many)) == many[:1000], "as deep as runs of TREC"


def test_a_question_without_targets_is_counted_and_has_no_recall():
    evaluation = evaluated_lists(*LISTS)
    for measure in ("R@20", "F1@20"):
        assert set(evaluation.per_question[measure]) == {"one", "two", "lost"}
    counts = {"without_targets": 1, "asking_for_documents": 4, "answered": 2}
    assert counts.items() <= evaluation.counts.items()
    assert evaluation.denominators["F1@20"] == 3


def test_hallucinated_sources_are_ids_that_the_corpus_lacks():
    evaluation = evaluated_lists(*LISTS)
    # `two` listed nothing: its tiers hold b, and q, which no corpus has.
    expected = {"one": 0.25, "two": 0.5, "empty": 0.0}
    assert evaluation.per_question["hallucination_rate"] == expected
    assert evaluation.per_question["documents_returned"]["one"] == 4


def test_checklist_satisfaction_is_of_what_was_returned():
    values = evaluated_lists(*LISTS).per_question
    # a meets all as a target, c half, a ghost nothing, b all; shorter lists are not filled up.
    assert values["checklist@1"] == {"one": 1.0}
    assert values["checklist@5"]["one"] == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert evaluated_lists().per_question["checklist@5"] == {"one": 0.0}


def test_repeats_count_questions_once():
    both = average_repeats(
        [evaluated_lists(*LISTS), evaluated_lists(replace(LISTS[0], answer=Answer()))]
    )
    assert both.counts["without_targets"] == 1
    assert both.per_question["F1@5"]["one"] == pytest.approx((4 / 7 + 2 / 7) / 2)


def test_funnels_and_curves_of_repeats_are_means_of_zeros_and_of_steps():
    funnels = ({"opened": {"macro": 0.5}}, {"opened": {"macro": 0.25}, "abstract": {"macro": 1.0}})
    curves = ([(1, 0.0), (3, 0.5)], [(1, 0.2), (2, 0.4), (4, 1.0)])
    both = average_repeats(
        [
            replace(evaluated_lists(), funnel={"gold": funnel}, curves={"tokens": curve})
            for funnel, curve in zip(funnels, curves, strict=True)
        ]
    )
    assert both.funnel == {"gold": {"opened": {"macro": 0.375}, "abstract": {"macro": 0.5}}}
    means = [(1, (0 + 0.2) / 2), (2, (0 + 0.4) / 2), (3, (0.5 + 0.4) / 2), (4, (0.5 + 1) / 2)]
    assert both.curves["tokens"] == [(x, pytest.approx(mean)) for x, mean in means]


# The measures of agents' runs.


# Four questions: right, wrong, failed and never run.
TOPICS = [Topic(qid, f"question {qid}") for qid in ("right", "wrong", "broken", "missing")]
EVIDENCE = {"right": {"a": 1, "b": 1}, "wrong": {"x": 1}, "broken": {"y": 1}, "missing": {"z": 1}}
ANSWERS = {qid: ["Ada Lovelace", "Ada"] for qid in EVIDENCE}
BENCHMARK = SmallBenchmark(TOPICS, {"evidence": EVIDENCE, "gold": {"right": {"b": 1}}}, ANSWERS)


def tiers(*docids):
    return dict(zip(TIERS, map(tuple, docids), strict=True))


RIGHT = Trajectory(
    "right",
    "question right",
    "completed",
    answer=Answer("[a] [a%p2] [k]", "It is Ada Lovelace.", 80.0, ("a", "a%p2", "k")),
    messages=({"role": "assistant", "content": "[a] [a%p2] [k] It is Ada Lovelace. 80 %"},),
    calls=(
        RecordedCall("search", {}, "...", tokens=100, ranking=("a%p1", "k%p0", "b%p0", "m")),
        RecordedCall("search", {}, "no such", error="empty query", tokens=5),
        RecordedCall("read_document", {}, "...", tokens=50),
    ),
    tiers=tiers("akbm", "ak", "k", "a"),
    exposures=(
        Exposure(1, "previewed", "a", 1, 100),
        Exposure(1, "previewed", "k", 2, 100),
        Exposure(3, "opened", "k", 2, 155),
    ),
    usage={"dollars": 0.5},
    seconds=2.0,
)
WRONG = Trajectory(
    "wrong",
    "question wrong",
    "steered",
    answer=Answer("", "Ada's mother or Byron", 60.0),
    messages=({"role": "assistant", "content": "Ada's mother or Byron"},),
    # A tool of one's own: its ranking says that it searched.
    calls=(RecordedCall("find", {}, "...", tokens=40, ranking=("n",)),),
    tiers=tiers("n", "n", "", ""),
    exposures=(Exposure(1, "previewed", "n", 1, 40),),
    usage={"dollars": 0.25},
    seconds=4.0,
)
BROKEN = Trajectory(
    "broken",
    "question broken",
    "failed",
    answer=Answer("[y]", "Ada", 100.0, ("y",)),
    calls=(RecordedCall("search", {}, "...", tokens=10, ranking=("y",)),),
    tiers=tiers("y", "y", "y", "y"),
    exposures=(Exposure(1, "opened", "y", 1, 10),),
    seconds=6.0,
    traceback="Traceback ...",
)


def evaluated(*trajectories, **options):
    return evaluate_run(trajectories, BENCHMARK, **options)


@pytest.fixture(scope="module")
def evaluation():
    return evaluated(RIGHT, WRONG, BROKEN, judge=ExactAnswerJudge(), measures=("AP", "P@2", "RR"))


# Quality is over all questions, where failed and missing ones count as 0; effort is over the three
# recorded trajectories, the failed one included.
@pytest.mark.parametrize(
    ("measure", "value", "over"),
    [
        # `Ada's mother` is `adas mother` to SQuAD, so that neither accepted answer is in it.
        ("accuracy", 1 / 4, 4),
        # it is ada lovelace (4 tokens) against ada lovelace (2): 2 * 2 / 6.
        ("answer_f1", (4 / 6) / 4, 4),
        ("completion", 1 / 4, 4),
        ("recall_surfaced", 1 / 4, 4),
        ("recall_previewed", 0.5 / 4, 4),
        ("recall_opened", 0, 4),
        ("recall_cited", 0.5 / 4, 4),
        # Cited: a (twice, once as a passage) and k; relevant: a and b.
        ("citation_precision", 0.5 / 4, 4),
        ("citation_recall", 0.5 / 4, 4),
        ("AP", ((1 + 2 / 3) / 2) / 4, 4),
        ("P@2", (1 / 2) / 4, 4),
        ("RR", 1 / 4, 4),
        # Of ended questions with a confidence: 80 % and right, 60 % and wrong: |.7 - .5|.
        ("calibration_error", 20, 2),
        ("accuracy_published", 1 / 3, 3),
        ("search_calls", 3 / 3, 3),
        ("read_calls", 1 / 3, 3),
        ("tool_calls", 5 / 3, 3),
        ("tool_errors", 1 / 3, 3),
        ("documents_exposed", (2 + 1 + 1) / 3, 3),
        ("tokens_exposed", (155 + 40 + 10) / 3, 3),
        ("seconds", 4, 3),
        ("usage_dollars", 0.75 / 3, 3),
    ],
)
def test_measures_have_two_denominators(evaluation, measure, value, over):
    assert evaluation.metrics[measure] == pytest.approx(value)
    assert evaluation.denominators[measure] == over


@pytest.mark.parametrize("status", ["completed", "steered", *FORCED_STATUSES])
def test_forced_answers_count_in_a_measure_of_their_own_where_the_study_has_none(status):
    judge, forced = ExactAnswerJudge(), status in FORCED_STATUSES
    rows = replace(RIGHT, status=status), WRONG
    counted = evaluated(*rows, judge=judge)
    assert counted.metrics["accuracy"] == 1 / 4
    assert "accuracy_with_forced" not in counted.metrics
    separate = evaluated(*rows, judge=judge, forced_answers=False)
    assert separate.metrics["accuracy"] == (0 if forced else 1 / 4)
    assert bool(separate.metrics["answer_f1"]) is not forced
    assert separate.metrics["accuracy_with_forced"] == 1 / 4
    assert separate.denominators["accuracy_with_forced"] == 4
    # Of forced answers, only the wrong one with 60 % is left.
    assert separate.metrics["calibration_error"] == pytest.approx(60 if forced else 20)
    assert separate.metrics["recall_cited"] == counted.metrics["recall_cited"] > 0


def test_a_hit_without_an_excerpt_is_listed_and_not_previewed(evaluation):
    """Pi-Serini previews every listed hit (`previewedDocids` of tool_handlers.ts at bbab25d)."""
    assert "recall_listed" not in evaluation.metrics, "no call for a further page"
    refused = replace(WRONG, calls=(RecordedCall("read_search_results", {}, "", error="blocked"),))
    assert "recall_listed" not in evaluated(RIGHT, refused, BROKEN).metrics
    search, *others = RIGHT.calls
    listing = RecordedCall("read_search_results", {"search_id": "s1"}, "...", shown=("b%p0", "m"))
    read = RecordedCall("read_document", {}, "...", shown=("x",))
    calls = (replace(search, shown=("a%p1", "k%p0")), listing, read, *others)
    wrong = replace(WRONG, calls=(*WRONG.calls, read))
    measured = evaluated(replace(RIGHT, calls=calls), wrong, BROKEN)
    assert measured.per_question["recall_previewed"]["right"] == 1 / 2
    assert measured.per_question["recall_listed"] == {
        "right": 1.0,
        "wrong": 0.0,
        "broken": 0.0,
        "missing": 0.0,
    }


def test_the_final_ranking_is_cited_opened_previewed_surfaced():
    assert final_ranking(RIGHT) == ["a", "k", "b", "m"]
    assert final_ranking(BROKEN) == ["y"]
    assert final_ranking(RIGHT, depth=2) == ["a", "k"]


def test_counts_have_every_status_and_the_missing_questions(evaluation):
    assert evaluation.rankings == {"right": ["a", "k", "b", "m"], "wrong": ["n"]}
    none = ("unjudged", "without_accepted_answer", "no_call", "reminded", "no_format")
    none += ("without_verdict", "timed_out", "out_of_turns", "out_of_context", "out_of_money")
    once = ("missing", "completed", "steered", "failed", "repeated", "refused", "refused_other")
    several = {"questions": 4, "recorded": 3, "answered": 2, "calls": 5}
    several["left_out_not_in_evidence"] = 4  # the benchmark has no documents
    assert evaluation.counts == {**dict.fromkeys(none, 0), **dict.fromkeys(once, 1), **several}


def test_refusals_are_counted_by_code_and_ends_by_reason():
    calls = [
        *(RecordedCall("search", {"reason": r}, "", error="missing_argument") for r in ("a", "b")),
        RecordedCall("google", {}, "", error="unknown_tool"),
        RecordedCall("search", {}, "..."),
    ]
    tried = replace(RIGHT, status="out_of_turns", reason="turns", calls=calls)
    cut = replace(BROKEN, reason="truncated", calls=calls[:1])
    counts = evaluated(tried, WRONG, cut).counts
    assert {name: count for name, count in counts.items() if name.startswith("ended_")} == {
        "ended_truncated": 1,
        "ended_turns": 1,
    }
    assert counts["calls"] == 4 + 1 + 1
    # Of the four, three are the same search, whatever its reason.
    assert counts["repeated"] == 2
    assert {name: count for name, count in counts.items() if name.startswith("refused")} == {
        "refused": 4,
        "refused_missing_argument": 3,
        "refused_unknown_tool": 1,
    }


def test_verdicts_are_of_ended_questions_and_name_the_judge(evaluation):
    verdicts = [(row.qid, row.correct) for row in evaluation.verdicts]
    assert verdicts == [("right", True), ("wrong", False)]
    never = ExactAnswerJudge()
    never.verdict = lambda *given: ExactAnswerJudge().verdict(*given)._replace(correct=False)
    assert evaluated(RIGHT, judge=never).metrics["accuracy"] == 0
    assert evaluated(RIGHT).verdicts[0].settings == ExactAnswerJudge().fingerprint


def test_questions_without_judgements_or_answers_are_left_out_and_counted():
    judged = {"evidence": {"right": {"a": 1}, "elsewhere": {"q": 1}}}
    benchmark = SmallBenchmark(TOPICS, judged, {"right": ["Ada"], "wrong": []})
    partly = evaluate_run([RIGHT], benchmark)
    assert partly.per_question["recall_surfaced"] == {"right": 1}
    assert list(partly.per_question["accuracy"]) == ["right"]
    assert partly.counts["unjudged"] == 3 and partly.counts["without_accepted_answer"] == 3
    assert partly.metrics["completion"] == 1 / 4
    bare = evaluate_run([RIGHT], SmallBenchmark(TOPICS))
    assert {"accuracy", "AP", "recall_surfaced", "calibration_error"}.isdisjoint(bare.metrics)
    assert bare.metrics["tool_calls"] == 3
    assert bare.funnel == {} and bare.curves == {}


def test_a_run_without_any_trajectory_is_all_zero():
    empty = evaluated()
    zeros = [empty.metrics[name] for name in ("accuracy", "completion", "recall_surfaced")]
    assert zeros == [0, 0, 0] and empty.counts["missing"] == 4
    assert "tool_calls" not in empty.metrics


def test_an_absent_confidence_is_full_confidence_only_in_the_published_variant():
    topics = [Topic(f"{number:03}", "?") for number in range(200)]
    said = ({"role": "assistant", "content": "an answer"},)
    answers = [Answer(exact="Ada", confidence=50.0)] * 100 + [Answer(exact="no idea")] * 100
    rows = [
        Trajectory(topic.qid, "?", "completed", answer=answer, messages=said)
        for topic, answer in zip(topics, answers, strict=True)
    ]
    benchmark = SmallBenchmark(topics, answers={topic.qid: ["Ada"] for topic in topics})
    evaluation = evaluate_run(rows, benchmark)
    assert evaluation.metrics["calibration_error"] == pytest.approx(50)
    assert evaluation.denominators["calibration_error"] == 100
    # First bin: gap .5 over 100 of 200. Last bin, full confidence and all wrong: dropped.
    assert evaluation.metrics["calibration_error_published"] == pytest.approx(100 * 0.125**0.5)
    # Bins of equal confidence are by id: one of right answers and one of wrong ones.
    rows = [replace(row, answer=replace(row.answer, confidence=50.0)) for row in rows]
    for mixed in (rows, rows[::-1], [*rows[::2], *rows[1::2]]):
        error = evaluate_run(mixed, benchmark).metrics["calibration_error"]
        assert error == pytest.approx(50)


@pytest.mark.parametrize(
    ("rows", "topics", "message"),
    [
        ([RIGHT], TOPICS[1:], "1 of 1 trajectories, such as that of question 'right'"),
        ([RIGHT, RIGHT], TOPICS, "'right' has 2 trajectories"),
    ],
)
def test_trajectories_of_another_split_or_of_one_question_are_refused(rows, topics, message):
    refused(message, lambda: evaluate_run(rows, SmallBenchmark(topics)))


COUNTED, SILENT = Usage(input=100, cached=0, output=10), Usage()
PRICE = Price(input=10_000.0, output=100_000.0)  # a reply of 100 and 10 tokens costs $2


def metered(qid, *requests):
    """A question whose usage a ledger counted: role, the server's counts, and the price."""
    ledger = Ledger()
    for role, usage, price in requests:
        with ledger.request(role, qid, price) as entry:
            entry.reply(Turn(text="x", usage=usage))
    return replace(RIGHT, qid=qid, usage=ledger.usage(qid))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (  # nothing unknown counts as 0
            {
                "right": [("agent", COUNTED, PRICE)],
                "wrong": [("agent", COUNTED, UNKNOWN)],
                "broken": [("agent", SILENT, PRICE)],
            },
            {
                "usage_dollars": {"right": 2.0},
                "usage_agent_dollars": {"right": 2.0},
                "usage_input_tokens": {"right": 100.0, "wrong": 100.0},
                "usage_output_tokens": {"right": 10.0, "wrong": 10.0},
                "usage_calls": {"right": 1.0, "wrong": 1.0, "broken": 1.0},
            },
        ),
        (  # the cost of a question is known if that of every reply is
            {
                "right": [("agent", COUNTED, PRICE), ("rewriter", COUNTED, UNKNOWN)],
                "wrong": [("agent", COUNTED, PRICE), ("rewriter", COUNTED, PRICE)],
                "broken": [],  # without requests, which cost nothing
                "missing": [("agent", COUNTED, PRICE)],
            },
            {
                "usage_dollars": {"wrong": 4.0, "broken": 0.0, "missing": 2.0},
                "usage_agent_dollars": {"right": 2.0, "wrong": 2.0, "broken": 0.0, "missing": 2.0},
                "usage_rewriter_dollars": {"wrong": 2.0, "broken": 0.0, "missing": 0.0},
            },
        ),
        (  # what is known of no question is no measure
            {"right": [("agent", SILENT, UNKNOWN)]},
            {"usage_dollars": None, "usage_input_tokens": None, "usage_unpriced": {"right": 1.0}},
        ),
    ],
)
def test_money_and_tokens_are_means_over_the_questions_whose_amount_is_known(rows, expected):
    result = evaluated(*(metered(qid, *requests) for qid, requests in rows.items()))
    for measure, values in expected.items():
        assert result.per_question.get(measure) == values, measure
        mean = values and sum(values.values()) / len(values)
        assert result.metrics.get(measure) == mean
        assert result.denominators.get(measure) == (values and len(values))


def searched(*rewrites, question="Who wrote it?"):
    """One search for each pair of the agent's query and what a rewriter made of it."""
    notes = [{"rewrite": {"raw": raw, "rewritten": text}} for raw, text in rewrites]
    calls = tuple(RecordedCall("search", {}, "...", notes=row) for row in notes)
    return Trajectory("right", question, "completed", calls=calls)


@pytest.mark.parametrize(
    ("trajectory", "guesses"),
    [
        (searched(("author", "Who is Ada, the author?"), ("poet", "Who is the poet?")), 1),
        (searched(("author", "notes of Ada"), ("poet", "poems of Ada Lovelace")), 2),
        (searched(("author", "notes of Ada"), ("writer", "notes of Ada")), 1),  # one text
        (searched(("notes by Ada", "What notes did Ada write?")), 0),  # the agent knew it
        (searched(("author", "notes of Ada"), question="Did Ada write it?"), 0),
        (searched(("author", "the Adage")), 0),  # no whole word
    ],
)
def test_rewritten_queries_count_where_the_answer_is_the_rewriters(trajectory, guesses):
    assert evaluated(trajectory).per_question["rewrites_with_answer"] == {"right": guesses}


def test_without_a_rewritten_query_nothing_is_counted(evaluation):
    assert "rewrites_with_answer" not in evaluation.per_question
    second = RecordedCall("search", {}, "", notes={"rewrite": {"raw": "a", "rewritten": "b"}})
    rewritten = replace(WRONG, calls=(*WRONG.calls, second))
    # The mean is over the questions that have a rewritten search.
    assert evaluated(RIGHT, rewritten).denominators["rewrites_with_answer"] == 1


# The evidence funnel and the exposure curves.

GRADES = {
    "1": {"a": 1, "b": 2, "c": 1, "z": 0},
    "2": {"x": 1},
    "3": {"y": 1, "w": 1},
    "4": {"n": 0},
}
ONE = Trajectory(
    "1",
    "?",
    "completed",
    tiers=tiers("akblmc", "akb", "a", ""),
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
    tiers=tiers("x", "qx", "qx", "x"),
    exposures=(Exposure(1, "opened", "q", 1, 40), Exposure(2, "opened", "x", 10, 1000)),
)


def test_each_tier_has_macro_and_micro_recall_and_mean_documents_over_all_questions():
    # Question 3 has no trajectory and counts 0; question 4 has no relevant document.
    judged = {"evidence": GRADES, "gold": {"1": {"c": 1}}, "none": {}}
    funnel = evidence_funnel([ONE, TWO], judged)
    assert list(funnel) == ["evidence", "gold"]
    expected = {
        "surfaced": ((1 + 1 + 0) / 3, 4 / 6, (6 + 1 + 0) / 3),
        "previewed": ((2 / 3 + 1) / 3, 3 / 6, 5 / 3),
        "opened": ((1 / 3 + 1) / 3, 2 / 6, 3 / 3),
        "cited": (1 / 3, 1 / 6, 1 / 3),
    }
    for tier, values in expected.items():
        row = dict(zip(("macro", "micro", "documents"), values, strict=True))
        assert funnel["evidence"][tier] == pytest.approx(row), tier
    assert funnel["gold"]["surfaced"] == {"macro": 1, "micro": 1, "documents": 6}
    assert funnel["gold"]["previewed"]["macro"] == 0


def test_curves_are_steps_averaged_over_all_questions_that_hold_their_last_value():
    curves = exposure_curves([ONE, TWO], GRADES, points=500)
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


def test_a_curve_has_few_ascending_points_and_ends_at_the_recall_of_what_was_shown():
    funnel = evidence_funnel([ONE, TWO], {"evidence": GRADES})
    curves = exposure_curves([ONE, TWO], GRADES, points=12)
    for points in (curves["documents"], curves["tokens"]):
        assert len(points) <= 12 and points == sorted(points) and points[0][0] == 1
        recalls = [recall for _, recall in points]
        assert recalls == sorted(recalls)
        assert recalls[-1] == pytest.approx(funnel["evidence"]["previewed"]["macro"])
    assert exposure_curves([], GRADES) == {"documents": [(1, 0)], "tokens": [(1, 0)]}


def test_the_funnel_has_the_recall_of_each_layer():
    exposures = (
        Exposure(1, "previewed", "a", 1, 10, "metadata"),
        Exposure(1, "previewed", "n", 2, 10, "metadata"),
        Exposure(2, "opened", "a", 2, 40, "abstract"),
    )
    shown = (("metadata", 10), ("abstract", 20), ("abstract", 10))  # one of them twice
    calls = tuple(
        RecordedCall("read", {}, "", tokens=tokens, notes={"layer": layer})
        for layer, tokens in shown
    )
    trajectory = Trajectory("q", "q", "completed", calls=calls, exposures=exposures)
    judged = {"evidence": {"q": {"a": 1, "b": 1}, "other": {"c": 1}}}
    funnel = evidence_funnel([trajectory], judged)["evidence"]
    assert funnel["metadata"] == {"macro": 0.25, "micro": 1 / 3, "documents": 1.0, "tokens": 5.0}
    assert funnel["abstract"] == {"macro": 0.25, "micro": 1 / 3, "documents": 0.5, "tokens": 15.0}
    assert "text" not in funnel


def test_curves_never_exceed_one():
    # In floating point, 49 times 1/49 is less than 1, and some other sums are more.
    for count in range(1, 30):
        docids = [f"d{n}" for n in range(count)]
        rows = [Exposure(1, "opened", docid, n, n) for n, docid in enumerate(docids, start=1)]
        questions = [Trajectory(str(q), "?", "completed", exposures=tuple(rows)) for q in range(7)]
        evidence = {str(q): dict.fromkeys(docids, 1) for q in range(7)}
        curves = exposure_curves(questions, evidence)
        for points in (curves["documents"], curves["tokens"]):
            assert max(recall for _, recall in points) <= 1
            assert points[-1][1] == pytest.approx(1)


# The steps from the evidence to a right answer.

PAGES = {
    "kow": "Brel\nIts mayor was Anna Kow. It had 1,998 people in May. Then 44 left.",
    "lind": "Ostvik\nNobody knows who Bo Lind was.",
}
ASKED = [Topic(qid, f"Who is {qid}?") for qid in ("mayor", "count", "polar", "named", "lost")]
ASKED_ANSWERS = {
    "mayor": ["Anna Kow", "Kow"],
    "count": ["1998"],
    "polar": ["yes"],
    "named": ["Named"],
    "lost": ["Cleo"],
}
ASKED_EVIDENCE = {topic.qid: {"kow": 1, "lind": 0} for topic in ASKED}


def page_of(docid, text, *, tool="read_document"):
    lines = text.count("\n") + 1
    output = f"[docid={docid} lines 1-{lines} of {lines}]\n{text}\nEnd of the document."
    return RecordedCall(tool, {"docid": docid}, output, shown=(docid,))


def hits_of(query, **excerpts):
    blocks = [f"{n}. docid={d} score=1.0\n   {t}" for n, (d, t) in enumerate(excerpts.items(), 1)]
    output = "\n".join([f'[search_id=s1 ranks 1-2 of 2 query="{query}"]', *blocks])
    return RecordedCall("search", {"query": query}, output, ranking=[*excerpts], shown=[*excerpts])


def asked(qid, *calls, exact="", status="completed", **seen):
    answer = Answer(exact=exact)
    tiers = {tier: tuple(docids.split()) for tier, docids in seen.items()}
    return Trajectory(qid, "?", status, answer=answer, calls=calls, tiers=tiers)


def needed(texts=lambda docids: [(docid, PAGES[docid]) for docid in docids], facts=None):
    return needed_texts(ASKED, ASKED_ANSWERS, ASKED_EVIDENCE, facts or {}, texts)


def test_questions_for_which_no_answer_can_be_shown_are_left_out_and_counted_by_reason():
    found = needed()
    assert sorted(found.qids) == ["count", "mayor"]
    assert found.left_out == {"yes_no": 1, "in_question": 1, "not_in_evidence": 1}
    nothing = needed(texts=lambda _: [])
    assert nothing.qids == [] and nothing.left_out["not_in_evidence"] == 3


@pytest.mark.parametrize(
    ("qid", "call", "shown"),
    [
        ("mayor", page_of("kow", "ANNA Kow, of course"), True),
        ("mayor", hits_of("mayor", lind="fog", kow="…was anna kow. It…"), True),
        ("mayor", hits_of("mayor", kow="fog", lind="Anna Kow"), False),  # not the evidence
        ("mayor", hits_of("Anna Kow", kow="fog"), False),  # the agent's own words
        ("mayor", page_of("kow", "Anna Kowalska"), False),
        ("mayor", page_of("kow", "Anna\nKow"), True),
        ("mayor", replace(page_of("kow", "Anna Kow"), error="unknown_docid"), False),
        ("count", hits_of("q", kow="1998"), False),  # a number needs its sentence
        ("count", hits_of("q", kow="in May. It had 1,998 people in May. Then"), True),
        ("count", hits_of("q", kow="It had 1,998 people in"), False),
        ("polar", page_of("kow", PAGES["kow"]), False),
    ],
)
def test_an_answer_is_shown_if_its_tokens_are_in_shown_characters_of_the_evidence(qid, call, shown):
    assert needed().are_shown(asked(qid, call)) is shown


def test_a_question_with_known_facts_needs_all_of_them_from_whatever_document():
    facts = [StatedFact("Brel", ("Brel has a mayor",)), StatedFact("Kow", (), ("Born in 1951",))]
    found = needed(facts={"mayor": facts, "polar": facts, "other": facts})
    assert sorted(found.qids) == ["count", "mayor", "polar"] and found.left_out["yes_no"] == 0
    first, second = page_of("x", "Brel has a mayor."), page_of("y", "Born in 1951.")
    titled = replace(second, output=second.output.replace("1]\n", "1] Kow\n"))
    for calls, shown in ([first], False), ([first, second], False), ([titled, first], True):
        assert found.are_shown(asked("mayor", *calls)) is shown


LABELLED = {
    "not_surfaced": asked("mayor", exact="Bo", surfaced="lind"),
    "not_previewed": asked("mayor", surfaced="kow", previewed="lind", opened="lind"),
    "not_opened": asked("mayor", hits_of("q", kow="fog"), surfaced="kow", previewed="kow"),
    "not_shown": asked("mayor", page_of("kow", "fog"), exact="Bo", opened="kow"),
    "no_answer": asked("mayor", page_of("kow", "Anna Kow"), exact="Unknown.", opened="kow"),
    "wrong": asked("mayor", page_of("kow", "Anna Kow"), exact="Bo", opened="kow"),
    "right_unsupported": asked("mayor", surfaced="kow", previewed="kow", exact="Anna Kow"),
    "failed": asked("mayor", page_of("kow", "Kow"), exact="Kow", status="failed", opened="kow"),
    "right": asked("mayor", hits_of("q", kow="Anna Kow"), exact="Kow", previewed="kow"),
}


class PagesBenchmark(SmallBenchmark):
    def document_texts(self, docids):
        return ((docid, PAGES[docid]) for docid in docids if docid in PAGES)


@pytest.mark.parametrize("label", LABELS)
def test_each_question_has_one_label_and_the_steps_that_it_passed(label):
    benchmark = PagesBenchmark(ASKED, {"evidence": ASKED_EVIDENCE}, ASKED_ANSWERS)
    evaluation = evaluate_run([LABELLED[label]], benchmark)
    values = {name: row["mayor"] for name, row in evaluation.per_question.items() if "mayor" in row}
    assert [name for name in LABELS if values[f"label_{name}"]] == [label]
    passed = {
        "not_surfaced": 0, "not_previewed": 1, "not_opened": 2, "not_shown": 3, "no_answer": 4,
        "wrong": 4, "right_unsupported": 2, "failed": 0, "right": 5,
    }[label]  # fmt: skip
    assert [values[name] for name in STEP_MEASURES] == [1.0] * passed + [0.0] * (5 - passed)
    # The question without a trajectory, and those that are left out.
    assert evaluation.per_question["label_failed"]["count"] == 1
    assert evaluation.denominators["answer_shown"] == 2
    left_out = {n: c for n, c in evaluation.counts.items() if n.startswith("left_out")}
    assert left_out == {f"left_out_{n}": 1 for n in ("yes_no", "in_question", "not_in_evidence")}


def random_cell(generator, questions):
    """Records of independent steps, which are not nested; in some cells a step is never passed."""
    chances = generator.choice([0.0, 0.2, 0.5, 0.9, 1.0], size=7)
    rows = generator.random((questions, 7)) < chances
    return {str(n): StepRecord(*map(bool, row)) for n, row in enumerate(rows)}


def means(values):
    return {name: float(np.mean([*row.values()])) for name, row in values.items()}


def test_the_terms_of_random_cells_sum_to_the_difference_in_accuracy():
    generator = np.random.default_rng(11)
    for _ in range(cases(10_000, 300)):
        qids = [str(n) for n in range(int(generator.integers(1, 12)))]
        records = [random_cell(generator, len(qids)) for _ in range(2)]
        cells = [step_measures(each) for each in records]
        accuracy = [
            np.mean([record.right and not record.failed for record in each.values()])
            for each in records
        ]
        for each, cell in zip(records, cells, strict=True):
            labels = [sum(cell[f"label_{label}"][qid] for label in LABELS) for qid in qids]
            assert labels == [1] * len(qids)
            shares = [means(cell)[name] for name in STEP_MEASURES]
            assert shares == sorted(shares, reverse=True)
            nested = [all(record[:5]) and not record.failed for record in each.values()]
            assert shares[-1] == pytest.approx(np.mean(nested))
        terms, opposite = (
            [term.value for term in decomposed_difference(*pair, samples=0).values()]
            for pair in (cells, cells[::-1])
        )
        assert len(terms) == len(STEPS) + 2
        assert abs(sum(terms[:-1]) - (accuracy[0] - accuracy[1])) < 1e-12
        assert abs(terms[-1] - (accuracy[0] - accuracy[1])) < 1e-12
        assert np.allclose(terms, [-term for term in opposite], rtol=0, atol=1e-12)


def cell(**chances):
    """Measures of 20 questions of which so many passed each step."""
    numbers = [*chances.values()]
    records = {
        str(n): StepRecord(*(n < number for number in numbers[:4]), n < numbers[4])
        for n in range(20)
    }
    return step_measures(records)


def test_a_change_of_one_conditional_share_is_the_term_of_that_step_alone():
    low = cell(surfaced=10, previewed=10, opened=10, shown=5, right=5)
    high = cell(surfaced=20, previewed=20, opened=20, shown=10, right=10)
    terms = decomposed_difference(high, low)
    assert terms["surfaced"].value == pytest.approx((1 - 0.5) * 0.5)
    assert [terms[name].value for name in STEPS[1:]] == [0] * 4
    assert terms["difference"].value == pytest.approx(0.25) == terms["surfaced"].value
    assert terms["surfaced"].low < 0.25 < terms["surfaced"].high
    # By hand, with two changes: c = (.5, 1, 1, .5, 1) and (1, 1, 1, .2, 1).
    other = cell(surfaced=20, previewed=20, opened=20, shown=4, right=4)
    terms = decomposed_difference(other, low)
    assert terms["surfaced"].value == pytest.approx(0.5 * (0.5 + 0.2) / 2)
    assert terms["answer_shown"].value == pytest.approx(-0.3 * (1 + 0.5) / 2)
    shares = conditional_shares(other)
    assert [shares[name].value for name in STEPS] == pytest.approx([1, 1, 1, 0.2, 1])
    assert shares["answer_shown"].low < 0.2 < shares["answer_shown"].high
    # No question passes the first step: the later steps have no share of their own, and no term.
    terms = decomposed_difference(high, cell(surfaced=0, previewed=0, opened=0, shown=0, right=0))
    assert [terms[name].value for name in STEPS] == pytest.approx([0.5, 0, 0, 0, 0])
    refused("share no question", decomposed_difference, low, {})


# Answer coverage.

TEXTS = {f"d{number}": f"Title {number}\nnothing of use" for number in range(20)}
TEXTS["kow"] = "Brel\nIts mayor is ANNA  Kow, since 1,998."
TEXTS["kowal"] = "Brel\nAnna Kowalska was no mayor. Yes."


def coverage(ranking, *accepted):
    reads = []

    def texts(docids):
        reads.extend(docids)
        return ((docid, TEXTS[docid]) for docid in docids if docid in TEXTS)

    rankings, answers = {"q": ranking, "again": ranking}, {"q": accepted, "again": accepted}
    values = answer_coverage(rankings, answers, texts)
    assert sorted(reads) == sorted(set(ranking[:10])), "each of the first ten is read once"
    return values["AnswerCoverage@5"]["q"], values["AnswerCoverage@10"]["q"]


@pytest.mark.parametrize(
    ("place", "expected"), [(1, (1, 1)), (5, (1, 1)), (6, (0, 1)), (10, (0, 1)), (11, (0, 0))]
)
def test_an_answer_counts_where_one_of_the_first_documents_holds_it(place, expected):
    ranking = [f"d{number}" for number in range(15)]
    ranking.insert(place - 1, "kow")
    assert coverage(ranking, "Bo Lind", "the Anna Kow!") == expected


@pytest.mark.parametrize(
    ("docids", "answer", "held"),
    [
        (["kow"], "anna kow", True),
        (["kow"], "1998", True),
        (["kow"], "Brel", True),  # titles count
        (["gone", "kow"], "Anna Kow", True),  # a document that the corpus lacks
        (["kowal"], "Anna Kow", False),
        (["kow"], "Kow Anna", False),
    ],
)
def test_texts_and_answers_are_normalised_alike_and_answers_are_whole_words(docids, answer, held):
    assert coverage(docids, answer) == (held, held)


def test_every_question_with_an_answer_that_can_be_held_is_in_the_mean():
    accepted = {"a": ["Anna Kow"], "b": ["Anna Kow"], "c": ["yes"], "d": [], "e": ["yes", "Brel"]}
    rankings = {"a": ["kow"], "c": ["kowal"], "e": ["kow"]}
    values = answer_coverage(rankings, accepted, lambda _: [("kow", TEXTS["kow"])])
    assert values["AnswerCoverage@5"] == {"a": 1.0, "b": 0.0, "e": 1.0}
    assert answer_coverage(rankings, {"c": ["yes"], "d": []}, None) == {}


@pytest.mark.parametrize(
    ("confidences", "correct", "bin_size", "error"),
    [
        # One bin: mean confidence 60 %, one of four right.
        ([30, 50, 70, 90], [True, False, False, False], 100, 35),
        # Sorted: (10, wrong) (20, right) | (80, right) (90, wrong) (100, right). Squares of the
        # gaps |.15 - .5| and |.9 - 2/3|, by the sizes of the bins.
        (
            [90, 10, 100, 80, 20],
            [False, False, True, True, True],
            2,
            100 * ((2 * 0.35**2 + 3 * (0.9 - 2 / 3) ** 2) / 5) ** 0.5,
        ),
        ([50] * 4, [True, False, True, False], 100, 0),
        ([100, 100, 0], [True, True, False], 1, 0),
        # But for rounding, ties, which keep their order: bins of (right, wrong) and (right, wrong).
        ([0.1 + 0.2, 0.3] * 2, [True, False] * 2, 2, 100 * (0.5 - 0.003)),
    ],
)
def test_the_calibration_error_is_that_of_bins(confidences, correct, bin_size, error):
    assert rms_calibration_error(confidences, correct, bin_size) == pytest.approx(error)


def test_the_published_calibration_keeps_dropped_answers_in_its_total_and_is_0_below_one_bin():
    confidences, correct = [50.0] * 100 + [100.0] * 100, [False] * 100 + [True] * 100
    error = rms_calibration_error(confidences, correct, published=True)
    assert error == pytest.approx(100 * (0.25 * 100 / 200) ** 0.5)
    assert rms_calibration_error([50.0] * 99, [True] * 99, published=True) == 0
    with pytest.raises(ValueError, match="at least one"):
        rms_calibration_error([], [])


def followed(*queries, exact="", question="Which harbour town has a lighthouse from 1902?"):
    """Searches of a question; the first output shows the names Brel and Oster, and a tide."""
    first = "Brel and Oster are towns. The Tide is high: a tide."
    pages = [first, *["Brel, Oster."] * len(queries)]
    calls = [
        RecordedCall("search", {"reason": "r", "query": query}, f'Results for "{query}". {page}')
        for query, page in zip(queries, pages, strict=False)
    ]
    return Trajectory("q", question, "completed", answer=Answer(exact=exact), calls=calls)


@pytest.mark.parametrize(
    ("trajectory", "candidates", "abandoned", "returns"),
    [
        # No output precedes the first query, and `tide` is no name: it has a small initial too.
        (followed("brel", "harbour tide", "lighthouse from 1902"), 0, 0, 0),
        # Two branches; that of Brel is given up, and the last search has the question's terms.
        (followed("harbour", "Brel past", "brel port", "Oster town", "town lighthouse"), 3, 2, 1),
        # The branch of Oster ends in the answer, and no search follows that of Brel.
        (followed("harbour", "oster", "brel", exact="Oster"), 2, 0, 0),
        # Brel is taken up again: no branch is abandoned but the one in between.
        (followed("harbour", "brel", "oster", "harbour town", "brel mayor"), 3, 1, 1),
        # A query with a new word that is no name is no return to the question.
        (followed("harbour", "brel", "harbour festival"), 1, 1, 0),
    ],
)
def test_branches_are_counted_as_by_hand(trajectory, candidates, abandoned, returns):
    counted = branch_measures(trajectory, searches_of(trajectory))
    assert counted == {
        "candidate_searches": candidates,
        "branches_abandoned": abandoned,
        "returns_to_question": returns,
    }


def test_refused_searches_are_in_no_branch_and_no_search_has_no_measure():
    refused = RecordedCall("search", {"query": "brel"}, "Brel", error="empty")
    only = replace(followed("harbour", "harbour"), calls=[refused])
    assert branch_measures(only, searches_of(only)) == {}
    assert query_measures(only.question, searches_of(only)) == {}
    after = replace(followed("a"), calls=[refused, *followed("brel").calls])
    counted = branch_measures(after, searches_of(after))
    assert counted["candidate_searches"] == 0  # what a refused call shows is no name


def test_the_query_log_is_as_by_hand():
    """The terms of the question are harbour, town, lighthouse and 1902."""
    calls = [
        RecordedCall("search", {"query": "harbour lighthouse 1902"}, "Brel and Oster are towns."),
        RecordedCall("search", {"query": "Lamm Vesk"}, "Lamm, Vesk", error="empty"),
        RecordedCall("search", {"query": '"harbour town" Brel -Oster Lamm'}, "Lamm is a village."),
        RecordedCall("locate", {"requirement": "Lamm or Kow"}, "Lamm"),
        RecordedCall("search", {"query": '"Harbour town"  brel -oster lamm'}, "Lamm is a village."),
        RecordedCall("read_document", {"query": "Kow"}, "The mayor was Vesk."),
        RecordedCall(
            "other", {"user_query": "brel lamm"}, "", ranking=["d1"], notes={"query": "Kow"}
        ),
        RecordedCall("search", {"user_query": "brel lamm Vesk OR site:a.org"}, ""),
        RecordedCall("search", {"query": "who is it"}, ""),
    ]
    # The queries are called a to f. An output holds Lamm only after b has searched for it.
    every = {
        "words": (3 + 5 + 5 + 2 + 5 + 3) / 6,
        "quoted": 2 / 6,  # b, c
        "operators": 3 / 6,  # b, c, e
        "from_question": (1 + 2 / 5 + 2 / 5 + 0 + 0) / 5,  # f has function words alone
        "from_shown": (0 + 2 / 5 + 2 / 5 + 1 / 2 + 2 / 5) / 5,  # Brel, Oster; Vesk
        "from_neither": (0 + 1 / 5 + 1 / 5 + 1 / 2 + 3 / 5) / 5,  # Lamm; site, org
        "repeated": 1 / 5,  # c
        "added": 1 / 5,  # e
        "dropped": 1 / 5,  # d
        "exchanged": 1 / 5,  # b
        "new": 1 / 5,  # f
    }
    first = {"words": 3, "quoted": 0, "operators": 0}
    first |= {"from_question": 1, "from_shown": 0, "from_neither": 0}
    second = {"words": 5, "quoted": 1, "operators": 1, "repeated": 0}
    second |= {"from_question": 2 / 5, "from_shown": 2 / 5, "from_neither": 1 / 5}
    second |= {"added": 0, "dropped": 0, "exchanged": 1, "new": 0}
    later = {"words": 15 / 4, "quoted": 1 / 4, "operators": 2 / 4, "repeated": 1 / 4}
    later |= {"from_question": 0.4 / 3, "from_shown": 1.3 / 3, "from_neither": 1.3 / 3}
    later |= {"added": 1 / 4, "dropped": 1 / 4, "exchanged": 0, "new": 1 / 4}
    turns = {"": every, "_first": first, "_second": second, "_later": later}
    expected = {f"query_{name}{turn}": v for turn, row in turns.items() for name, v in row.items()}
    asked = replace(followed(), calls=calls)
    values = query_measures(asked.question, searches_of(asked))
    assert values == pytest.approx({"text_queries": 6, **expected})
    # An output that is JSON counts by its texts, whose line breaks and accents are escapes there.
    document = {"docid": "d1", "snippet": "The mayor\nVesk of Öster"}
    shown = [
        RecordedCall("search", {"query": "mayor"}, json.dumps([document], indent=2), shown=["d1"]),
        RecordedCall("search", {"query": "Vesk Öster"}, ""),
    ]
    log = query_measures("Who?", searches_of(Trajectory("q", "Who?", "completed", calls=shown)))
    assert (log["query_from_shown_second"], log["query_from_neither_second"]) == (1, 0)
    evaluation = evaluate_run(
        [replace(asked, qid="right"), Trajectory("wrong", "", "completed")], BENCHMARK
    )
    assert evaluation.per_question["query_from_shown"] == {"right": values["query_from_shown"]}
    assert evaluation.denominators["text_queries"] == 1
    for name in values:
        assert look_up_measure(name).definition, name


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("mill -river", True),
        ('mill -"old weir"', True),
        ("+mill river", True),
        ("mill OR weir", True),
        ("(site:a.org OR intitle:mill)", True),
        ("mill or weir and not a dam", False),
        ("well-known mill 1900-1910", False),
        ("a website: mill+weir mill/site:a", False),
        ('"tide mill"', False),
        ("ORegon ANDes", False),
    ],
)
def test_operators_stand_alone_or_before_a_word(query, expected):
    assert has_operator(query) == expected


def test_yes_no_questions_are_counted_with_the_more_frequent_answer():
    answers = {**ANSWERS, "right": ["Yes", "yes."], "wrong": ["No"], "broken": ["yes"]}
    benchmark = SmallBenchmark(TOPICS, {"evidence": EVIDENCE}, answers)
    counts = evaluate_run([], benchmark).counts
    assert (counts["yes_no"], counts["yes_no_by_chance"]) == (3, 2)
    assert "yes_no" not in evaluate_run([], BENCHMARK).counts


# The published evaluator's arithmetic, written again from its description. `theirs` reads files, as
# that evaluator does; ours reads trajectories. The two share no code.


def run_file(qid, reply, retrieved=(), *, status="completed", searches=1, last=True):
    result = [search("words", retrieved)]
    result += [reply] if reply else []
    result += [] if last else [thought("afterthought")]
    counts = {"search": searches, "get_document": 3}
    return browsecomp(qid, result, status=status, tool_call_counts=counts)


def theirs(files, answers, qrels):
    """By the description: recall over a set, calibration without its last bin and 0 below 100,
    citations by regular expression, accuracy over the files found."""
    correct, confidence, recalls, precisions, cited_recalls = 0, [], [], [], []
    for file in files:
        qid, result = file["query_id"], file["result"]
        positives = qrels.get(qid, [])
        if positives:
            hits = sum(1 for docid in positives if docid in set(file["retrieved_docids"]))
            recalls.append(hits / len(positives))
        last = result[-1] if result else {"type": ""}
        response = last["output"] if last["type"] == "output_text" else ""
        if file["status"] != "completed" or response == "":
            continue
        parsed = parse_answer(response, ())
        judge = ExactAnswerJudge()
        right = judge.verdict(qid, parsed, [answers[qid]]).correct
        correct += right
        stated = 100.0 if parsed.confidence is None else parsed.confidence
        confidence.append((stated / 100, right))
        cited = set()
        for brackets in (r"\[([^\[\]]*?)\]", r"【([^【】]*?)】"):
            for text in re.findall(brackets, response):
                cited |= set(re.findall(r"\d+", text))
        if cited:
            both = cited & set(positives)
            precisions.append(len(both) / len(cited))
            cited_recalls.append(len(both) / len(positives) if positives else 0.0)
    return {
        "accuracy_published": correct / len(files),
        "recall_published": sum(recalls) / len(recalls),
        "calibration_error_published": 100 * dropped_bin(confidence),
        "citation_precision_published": mean(precisions),
        "citation_recall_published": mean(cited_recalls),
        "search_calls_published": sum(f["tool_call_counts"]["search"] for f in files) / len(files),
    }


def dropped_bin(rows):
    if len(rows) < 100:
        return 0.0
    ordered = sorted(rows, key=lambda row: row[0])
    edges = [(i * 100, (i + 1) * 100) for i in range(len(ordered) // 100)]
    edges[-1] = (edges[-1][0], len(ordered))
    total = 0.0
    for low, high in edges[:-1]:  # the last one is never added
        inside = ordered[low:high]
        gap = mean([c for c, _ in inside]) - mean([float(r) for _, r in inside])
        total += len(inside) / len(ordered) * gap**2
    return math.sqrt(total)


def mean(values):
    return sum(values) / len(values) if values else 0.0


def ours(files, answers, qrels):
    rows = [trajectory(dict(f), "?") for f in files]
    benchmark = SmallBenchmark(
        [Topic(qid, "?") for qid in answers],
        {"evidence": {q: dict.fromkeys(docids, 1) for q, docids in qrels.items()}},
        {qid: [text] for qid, text in answers.items()},
    )
    return evaluate_run(rows, benchmark).metrics


PAPER_ANSWERS = {str(n): "Ada" for n in range(1, 6)}
QRELS = {"1": ["12", "3"], "2": ["7"], "3": ["8", "9"], "4": ["5"]}
CASES = {
    "right_and_cited": [run_file("1", answer("Ada", citing="[12]"), ["12", "40"])],
    "a_passage_counts_as_two": [run_file("1", answer("Ada", citing="[12_3]"), ["12"])],
    "lists_and_lenticular_brackets": [run_file("1", answer("Ada", citing="[12, 40] 【3†L5】"), [])],
    "incomplete_with_a_right_answer": [run_file("2", answer("Ada"), ["7"], status="incomplete")],
    "no_last_output_text": [run_file("3", answer("Ada", citing="[8]"), ["8"], last=False)],
    "empty": [run_file("3", None, ["9", "8"])],
    "files_found_and_not_questions": [
        run_file("1", answer("Ada"), ["12"]),
        run_file("2", answer("Grace", "100%", "[7]"), ["7", "3"], searches=4),
    ],
    "without_judgements": [
        run_file("5", said("Explanation: see [12]\nExact Answer: Ada"), ["12"]),
        run_file("4", answer("Ada")),
    ],
}


@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_paper_cases_give_the_published_figures(files):
    expected = theirs(files, PAPER_ANSWERS, QRELS)
    metrics = ours(files, PAPER_ANSWERS, QRELS)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_an_answer_that_states_no_confidence_counts_with_all():
    """Of two bins of a hundred wrong answers the first counts, with a distance of one."""
    answers = {str(n): "Ada" for n in range(200)}
    files = [run_file(qid, said("Explanation: x\nExact Answer: Grace")) for qid in answers]
    error = ours(files, answers, {})["calibration_error_published"]
    assert error == pytest.approx(100 * math.sqrt(100 / 200))
    assert theirs(files, answers, {"0": ["7"]})["calibration_error_published"] == error


def test_the_values_of_a_paper_case_by_hand():
    files = CASES["files_found_and_not_questions"]
    metrics = ours(files, PAPER_ANSWERS, QRELS)
    assert metrics["accuracy_published"] == 1 / 2
    assert metrics["accuracy"] == 1 / 5
    assert metrics["recall_published"] == pytest.approx((1 / 2 + 1) / 2)
    assert metrics["recall_previewed"] == pytest.approx((1 / 2 + 1) / 4)
    assert metrics["search_calls_published"] == 2.5
    assert metrics["search_calls"] == 1  # what the file records, whatever it counts
    assert metrics["citation_precision_published"] == 1
    assert metrics["calibration_error_published"] == 0


@pytest.mark.parametrize("count", [99, 100, 130, 250, 399])
def test_many_random_files_give_the_published_figures(count):
    rng = random.Random(count)
    ids = [str(n) for n in range(60)]
    answers = {str(n): "Ada" for n in range(count)}
    qrels = {qid: rng.sample(ids, rng.randint(1, 5)) for qid in answers}
    files = [
        run_file(
            qid,
            answer(rng.choice(["Ada", "Grace"]), citing=f"[{rng.choice(ids)}, {rng.choice(ids)}]"),
            rng.sample(ids, rng.randint(0, 20)),
            status=rng.choice(["completed"] * 9 + ["incomplete"]),
            searches=rng.randint(0, 30),
        )
        for qid in answers
    ]
    for file in files:  # confidences without ties, as their sort is not stable
        file["result"][-1]["output"] += f"\nConfidence: {rng.random() * 100:.4f}%"
    expected = theirs(files, answers, qrels)
    metrics = ours(files, answers, qrels)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_all_wrong_at_full_confidence_is_published_as_no_error():
    answers = {str(n): "Ada" for n in range(830)}
    sure = [run_file(qid, answer("Grace", "100%"), ["1"]) for qid in list(answers)[:130]]
    unsure = [run_file(qid, answer("Grace", "0%"), ["1"]) for qid in list(answers)[130:]]
    metrics = ours([*sure, *unsure], answers, {"0": ["1"]})
    assert metrics["calibration_error_published"] == 0
    assert metrics["calibration_error"] == pytest.approx(100 * math.sqrt(130 / 830))
