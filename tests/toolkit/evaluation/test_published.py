"""The published evaluator's arithmetic, written again from its description, on cases on paper.

`theirs` reads files, as that evaluator does; ours reads trajectories. The two share no code.
"""

import json
import math
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from support.benchmarks import SmallBenchmark
from support.runs import trajectory

from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation import ExactAnswerJudge, evaluate_run
from soundingline.toolkit.search.answers import parse_answer

File = Mapping[str, Any]


def item(kind, output, tool=None):
    arguments = None if tool is None else json.dumps({"query": "words"})
    return {"type": kind, "tool_name": tool, "arguments": arguments, "output": output}


def case(qid, response, retrieved=(), *, status="completed", searches=1, last=True):
    hits = json.dumps([{"docid": docid, "snippet": "text"} for docid in retrieved])
    result = [item("tool_call", hits, "search")]
    result += [item("output_text", response)] if response else []
    result += [] if last else [item("reasoning", ["afterthought"])]
    return {
        "query_id": qid,
        "tool_call_counts": {"search": searches, "get_document": 3},
        "status": status,
        "retrieved_docids": list(retrieved),
        "result": result,
    }


def said(exact, confidence="80%", citing=""):
    line = "" if confidence is None else f"\nConfidence: {confidence}"
    return f"Explanation: see {citing}\nExact Answer: {exact}{line}"


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


ANSWERS = {str(n): "Ada" for n in range(1, 6)}
QRELS = {"1": ["12", "3"], "2": ["7"], "3": ["8", "9"], "4": ["5"]}
CASES = {
    "right_and_cited": [case("1", said("Ada", citing="[12]"), ["12", "40"])],
    "a_passage_counts_as_two": [case("1", said("Ada", citing="[12_3]"), ["12"])],
    "lists_and_lenticular_brackets": [case("1", said("Ada", citing="[12, 40] 【3†L5】"), [])],
    "incomplete_with_a_right_answer": [case("2", said("Ada"), ["7"], status="incomplete")],
    "no_last_output_text": [case("3", said("Ada", citing="[8]"), ["8"], last=False)],
    "empty": [case("3", "", ["9", "8"])],
    "files_found_and_not_questions": [
        case("1", said("Ada"), ["12"]),
        case("2", said("Grace", "100%", "[7]"), ["7", "3"], searches=4),
    ],
    "without_judgements": [case("5", said("Ada", None, "[12]"), ["12"]), case("4", said("Ada"))],
}


@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_paper_cases_give_the_published_figures(files):
    expected = theirs(files, ANSWERS, QRELS)
    metrics = ours(files, ANSWERS, QRELS)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_the_values_of_a_paper_case_by_hand():
    files = CASES["files_found_and_not_questions"]
    metrics = ours(files, ANSWERS, QRELS)
    assert metrics["accuracy_published"] == 1 / 2
    assert metrics["accuracy"] == 1 / 5
    assert metrics["recall_published"] == pytest.approx((1 / 2 + 1) / 2)
    assert metrics["recall_previewed"] == pytest.approx((1 / 2 + 1) / 4)
    assert metrics["search_calls_published"] == 2.5
    assert metrics["search_calls"] == 1  # what the file records, whatever it counts
    assert metrics["citation_precision_published"] == 1
    assert metrics["calibration_error_published"] == 0


@pytest.mark.parametrize(
    ("calls", "searches"),
    [({"grep": 3, "read_search_results": 4, "read_document": 2}, 3), ({"grep": 1, "search": 2}, 3)],
)
def test_calls_that_search_by_patterns_are_searches(calls, searches):
    file = {**case("1", said("Ada")), "tool_call_counts": dict(calls)}
    assert ours([file], ANSWERS, QRELS)["search_calls_published"] == searches


@pytest.mark.parametrize("count", [99, 100, 130, 250, 399])
def test_many_random_files_give_the_published_figures(count):
    rng = random.Random(count)
    ids = [str(n) for n in range(60)]
    answers = {str(n): "Ada" for n in range(count)}
    qrels = {qid: rng.sample(ids, rng.randint(1, 5)) for qid in answers}
    files = [
        case(
            qid,
            said(rng.choice(["Ada", "Grace"]), citing=f"[{rng.choice(ids)}, {rng.choice(ids)}]"),
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
    sure = [case(qid, said("Grace", "100%"), ["1"]) for qid in list(answers)[:130]]
    unsure = [case(qid, said("Grace", "0%"), ["1"]) for qid in list(answers)[130:]]
    metrics = ours([*sure, *unsure], answers, {"0": ["1"]})
    assert metrics["calibration_error_published"] == 0
    assert metrics["calibration_error"] == pytest.approx(100 * math.sqrt(130 / 830))
