"""What a trace shows of one trajectory, as JSON values whose keys are all ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from toolkit.contracts import (
    PASSAGE_MARK,
    TIERS,
    DocumentStore,
    Exposure,
    ToolCall,
    Trajectory,
    parent,
)
from toolkit.llm.prices import Price
from toolkit.report.traces.plain import as_text, pairs
from toolkit.report.traces.rounds import matrix_values, round_values
from toolkit.report.traces.spending import Spending

Labels = Mapping[str, Sequence[str]]
Judgements = Mapping[str, Mapping[str, Mapping[str, int]]]


def trace_values(
    trajectory: Trajectory,
    judgements: Judgements,
    accepted: Sequence[str],
    price: Price,
    passages: DocumentStore | None = None,
) -> dict[str, Any]:
    """The trajectory as its page shows it. `judgements`: tier -> qid -> docid -> grade, as a
    benchmark has them; `price`: of the agent's model, for the money so far; `passages`: texts of
    the passages that scores stand on (None: they are not shown). What other programs wrote
    (arguments, notes) comes as pairs of name and text, so that no name can mean anything."""
    labels = judged_documents(judgements, trajectory.qid)
    ranks = [_ranks(call.ranking, labels) for call in trajectory.calls]
    answer = trajectory.answer
    return {
        "qid": trajectory.qid,
        "question": trajectory.question,
        "status": trajectory.status,
        "reason": trajectory.reason,
        "started": trajectory.started,
        "seconds": trajectory.seconds,
        "traceback": trajectory.traceback,
        "warnings": list(trajectory.warnings),
        "answer": {
            "exact": answer.exact,
            "explanation": answer.explanation,
            "confidence": answer.confidence,
            "citations": _labelled(answer.citations, labels),
            "documents": _labelled(answer.documents, labels),
        },
        "accepted": list(accepted),
        "evidence": [_document(docid, labels[docid], ranks, trajectory) for docid in labels],
        "rounds": round_values(trajectory),
        "matrix": matrix_values(trajectory, labels, passages),
        "usage": pairs(trajectory.usage),
        "source": pairs(trajectory.source),
        "steps": list(_steps(trajectory, labels, ranks, price)),
    }


def judged_documents(judgements: Judgements, qid: str) -> dict[str, list[str]]:
    """Relevant documents (a grade above 0) with the judged tiers that they are in, and the grade
    where it is not 1: `{"d1": ["evidence", "gold 2"]}`."""
    labels: dict[str, list[str]] = {}
    for tier, grades in judgements.items():
        for docid, grade in grades.get(qid, {}).items():
            if grade > 0:
                labels.setdefault(docid, []).append(tier if grade == 1 else f"{tier} {grade}")
    return labels


def _labelled(docids: Sequence[str], labels: Labels) -> list[list[Any]]:
    return [[docid, labels.get(parent(docid), [])] for docid in docids]


def _ranks(ranking: Sequence[str], labels: Labels) -> dict[str, int]:
    """The best rank of each judged document in a ranking of units, counted from 1."""
    ranks: dict[str, int] = {}
    for rank, unit in enumerate(ranking, start=1):
        # Most units are looked up once: rankings are long, and few of their units are judged.
        docid = unit if PASSAGE_MARK not in unit else parent(unit)
        if docid in labels:
            ranks.setdefault(docid, rank)
    return ranks


def _document(
    docid: str, judged: Sequence[str], ranks: Sequence[Mapping[str, int]], trajectory: Trajectory
) -> dict[str, Any]:
    """Where the agent met a judged document. `rank`: the best one, and the call that gave it. Of
    each tier the first call, counted from 1: null where there was none, 0 where nobody recorded
    which it was."""
    ranked = [(row[docid], call) for call, row in enumerate(ranks, start=1) if docid in row]
    by_tier: dict[str, int | None] = {
        tier: 0 if docid in trajectory.tiers.get(tier, ()) else None for tier in TIERS
    }
    if ranked:
        by_tier["surfaced"] = min(call for _, call in ranked)
    for exposure in reversed(trajectory.exposures):
        if exposure.docid == docid:
            by_tier[exposure.tier] = exposure.call
    best = min(ranked, default=None)
    return {
        "docid": docid,
        "judged": list(judged),
        "rank": None if best is None else list(best),
        **by_tier,
    }


def _steps(
    trajectory: Trajectory, labels: Labels, ranks: Sequence[Mapping[str, int]], price: Price
) -> Iterator[dict[str, Any]]:
    """Messages and calls in their order. A call stands where its result reached the agent; those
    that no message answers come last."""
    spending = Spending(trajectory, price)
    tokens = list(accumulate(call.tokens for call in trajectory.calls))
    results = sum(message.get("role") == "tool" for message in trajectory.messages)
    in_order = results <= len(trajectory.calls)
    number = 0

    def next_call() -> dict[str, Any]:
        exposed = [row for row in trajectory.exposures if row.call == number + 1]
        call = _call(trajectory.calls[number], labels, ranks[number], exposed)
        return {"call": number + 1, **call, "tokens_so_far": tokens[number], **spending.so_far}

    def answers_next(message: Mapping[str, Any]) -> bool:
        if number == len(trajectory.calls):
            return False
        return in_order or trajectory.calls[number].output == message.get("content")

    for message in trajectory.messages:
        if message.get("role") == "assistant":
            spending.replied(message)
        if message.get("role") == "tool" and answers_next(message):
            yield next_call()
            number += 1
        elif shown := _message(message, spending):
            yield shown
    while number < len(trajectory.calls):
        yield next_call()
        number += 1


def _message(message: Mapping[str, Any], spending: Spending) -> dict[str, Any]:
    """A message that says something; an assistant's call of a tool stands with its result."""
    text, reasoning = message.get("content"), message.get("reasoning")
    if not text and not reasoning:
        return {}
    return {
        "role": str(message.get("role", "")),
        "text": as_text(text or ""),
        "reasoning": as_text(reasoning or ""),
        **(spending.so_far if message.get("role") == "assistant" else {}),
    }


def _call(
    call: ToolCall, labels: Labels, ranks: Mapping[str, int], exposed: Sequence[Exposure]
) -> dict[str, Any]:
    shown = {parent(unit) for unit in call.shown}
    judged = [
        {
            "docid": docid,
            "judged": list(labels[docid]),
            "rank": ranks.get(docid),
            "shown": docid in shown,
            "first": [row.tier for row in exposed if row.docid == docid and row.tier != "cited"],
        }
        for docid in labels
        if docid in ranks or docid in shown
    ]
    return {
        "name": call.name,
        "error": call.error,
        "arguments": pairs(call.arguments),
        "rewritten": list(_rewritten(call.notes)),
        "notes": pairs(call.notes),
        "output": call.output,
        "shown": list(call.shown),
        "ranked": len(call.ranking),
        "judged": judged,
        "tokens": call.tokens,
        "seconds": round(call.seconds, 3),
    }


def _rewritten(notes: Mapping[str, Any]) -> Iterator[str]:
    """Queries that rewriters put in the place of the agent's, as `pipelines.rewrite` notes them."""
    for name, value in notes.items():
        if re.fullmatch(r"rewrite(_\d+)?", name) and isinstance(value, Mapping):
            yield as_text(value.get("rewritten", ""))
