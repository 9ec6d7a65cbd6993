"""The agent's own measures: by question, and over a set of answers.

`ended` are the trajectories that did not fail, `recorded` all of them; see `agent_run` for what a
question without a trajectory counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from toolkit.contracts import ToolCall, Trajectory, parent
from toolkit.evaluation.answers import AnswerVerdict, holds_answer
from toolkit.evaluation.calibration import calibration_error
from toolkit.evaluation.funnel import SHOWN, Judgements, reach_by_tier, relevant_documents
from toolkit.llm.accounts import known
from toolkit.runs.records import SEARCHES
from toolkit.search.answers import invented_citations

PerQuestion = dict[str, dict[str, float]]
GUESSED = "phrases_with_answer"
REWRITTEN = "rewrites_with_answer"

_KINDS = {
    "search_calls": SEARCHES,
    "browse_calls": ("read_search_results",),
    "read_calls": ("read_document", "get_document", "read"),
}


def answer_measures(
    verdicts: Sequence[AnswerVerdict], accepted: Mapping[str, Sequence[str]]
) -> PerQuestion:
    """`accuracy` and `answer_f1` of every question with an accepted answer."""
    return {
        "accuracy": scores(accepted, {verdict.qid: float(verdict.correct) for verdict in verdicts}),
        "answer_f1": scores(accepted, {verdict.qid: verdict.f1 for verdict in verdicts}),
    }


def recalls(ended: Sequence[Trajectory], evidence: Judgements) -> PerQuestion:
    """`recall_<exposure tier>` of every question with a relevant document."""
    return {
        f"recall_{tier}": {qid: reach.recall for qid, reach in reaches.items()}
        for tier, reaches in reach_by_tier(ended, evidence).items()
    }


def citations(ended: Sequence[Trajectory], evidence: Judgements) -> PerQuestion:
    """`citation_precision` and `citation_recall` of every question with a relevant document."""
    relevant = relevant_documents(evidence)
    precision, recall = {}, {}
    for trajectory in ended:
        # A passage is cited as `d1%p3`; it is one citation, of its document.
        cited = {parent(docid) for docid in trajectory.answer.citations}
        relevant_docids = relevant.get(trajectory.qid, frozenset())
        if cited and relevant_docids:
            precision[trajectory.qid] = len(cited & relevant_docids) / len(cited)
            recall[trajectory.qid] = len(cited & relevant_docids) / len(relevant_docids)
    return {
        "citation_precision": scores(relevant, precision),
        "citation_recall": scores(relevant, recall),
    }


def invented(ended: Sequence[Trajectory]) -> PerQuestion:
    """`citations_invented` of every question that did not fail."""
    counts = {}
    for trajectory in ended:
        shown = {docid for docids in trajectory.tiers.values() for docid in docids}
        answer = f"{trajectory.answer.explanation}\n{trajectory.answer.exact}"
        counts[trajectory.qid] = float(len(invented_citations(answer, shown)))
    return {"citations_invented": counts}


def phrases_with_answer(
    recorded: Sequence[Trajectory], accepted: Mapping[str, Sequence[str]]
) -> PerQuestion:
    """`phrases_with_answer`: how many different phrases, of those with which the searches of a
    question were enriched, hold an accepted answer. Over the recorded questions with an accepted
    answer that have an enriched search; nothing where none has. An agent may have read the answer
    before it searches on, so that not every such phrase is a guess."""
    counts: dict[str, float] = {}
    for trajectory in recorded:
        rows = [row for call in trajectory.calls for row in call.notes.get("enrichment", ())]
        if not rows or trajectory.qid not in accepted:
            continue
        phrases = {one["phrase"] for row in rows for one in row["phrases"] if one["kept"]}
        answers = accepted[trajectory.qid]
        counts[trajectory.qid] = float(sum(holds_answer(phrase, answers) for phrase in phrases))
    return {GUESSED: counts} if counts else {}


def rewrites_with_answer(
    recorded: Sequence[Trajectory], accepted: Mapping[str, Sequence[str]]
) -> PerQuestion:
    """`rewrites_with_answer`: how many different rewritten queries of a question hold an accepted
    answer that neither the question nor the agent's own query holds. Over the recorded questions
    with an accepted answer that have a rewritten search; nothing where none has."""
    counts: dict[str, float] = {}
    for trajectory in recorded:
        rows = [row for call in trajectory.calls for row in rewrites(call.notes)]
        if rows and trajectory.qid in accepted:
            guesses = guessed_rewrites(rows, trajectory.question, accepted[trajectory.qid])
            counts[trajectory.qid] = float(len(guesses))
    return {REWRITTEN: counts} if counts else {}


def rewrites(notes: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """What rewriters noted of a search: `raw` and `rewritten` queries."""
    return [row for name, row in notes.items() if name.partition("_")[0] == "rewrite"]


def guessed_rewrites(
    rows: Iterable[Mapping[str, str]], question: str, answers: Sequence[str]
) -> set[str]:
    """The rewritten queries that hold an answer which came from the rewriter."""
    if holds_answer(question, answers):
        return set()
    return {
        row["rewritten"]
        for row in rows
        if holds_answer(row["rewritten"], answers) and not holds_answer(row["raw"], answers)
    }


def effort(recorded: Sequence[Trajectory]) -> PerQuestion:
    """Calls, exposure and seconds of every recorded trajectory, and its usage where that is known:
    a reply without a price or without token counts costs something, and nobody knows how much."""
    measures: PerQuestion = {}
    for trajectory in recorded:
        for measure, value in _effort_of(trajectory).items():
            measures.setdefault(measure, {})[trajectory.qid] = value
    for name in dict.fromkeys(name for trajectory in recorded for name in trajectory.usage):
        values = {trajectory.qid: known(trajectory.usage, name) for trajectory in recorded}
        measures[f"usage_{name}"] = {q: float(v) for q, v in values.items() if v is not None}
    return measures


def _succeeded(calls: Sequence[ToolCall], tools: Collection[str]) -> int:
    return sum(call.name in tools and not call.error for call in calls)


def _effort_of(trajectory: Trajectory) -> dict[str, float]:
    calls = trajectory.calls
    exposed = {docid for tier in SHOWN for docid in trajectory.tiers.get(tier, ())}
    # Foreign files that do not tell the time hold a zero.
    timed = {"seconds": float(trajectory.seconds)}
    return {
        **{name: float(_succeeded(calls, tools)) for name, tools in _KINDS.items()},
        "tool_calls": float(len(calls)),
        "tool_errors": float(sum(bool(call.error) for call in calls)),
        "documents_exposed": float(len(exposed)),
        "tokens_exposed": float(sum(call.tokens for call in calls)),
        **(timed if trajectory.seconds or not trajectory.source else {}),
    }


def call_counts(recorded: Sequence[Trajectory]) -> dict[str, int]:
    """`calls` of tools; those of them that were `repeated`, which is called before on the same
    question with the same arguments, but for the reason; those that were `refused`, and by the
    refusal's code `refused_<code>`. What a file of others says in a sentence is counted as
    `refused_other`."""
    codes = Counter(call.error for trajectory in recorded for call in trajectory.calls)
    refused = Counter[str]()
    for error, count in codes.items():
        if error:
            refused[f"refused_{error if error.isidentifier() else 'other'}"] += count
    different = sum(len(set(map(_call_text, trajectory.calls))) for trajectory in recorded)
    return {
        "calls": codes.total(),
        "repeated": codes.total() - different,
        "refused": refused.total(),
        **dict(sorted(refused.items())),
    }


def _call_text(call: ToolCall) -> str:
    arguments = {name: value for name, value in call.arguments.items() if name != "reason"}
    return json.dumps([call.name, arguments], sort_keys=True)


def reason_counts(recorded: Sequence[Trajectory]) -> dict[str, int]:
    """`ended_<reason>`: questions by why they ended, where their status alone does not tell."""
    reasons = Counter(trajectory.reason for trajectory in recorded if trajectory.reason)
    return {f"ended_{reason}": count for reason, count in sorted(reasons.items())}


def over_answers(
    ended: Sequence[Trajectory], verdicts: Sequence[AnswerVerdict]
) -> tuple[dict[str, float], dict[str, int]]:
    """Measures over a set of answers, which have no value for one question: values, counts."""
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    right = {verdict.qid: verdict.correct for verdict in verdicts}
    stated = {t.qid: t.answer.confidence for t in ended if t.qid in right}
    claims = {qid: value for qid, value in stated.items() if value is not None}
    if claims:
        values["calibration_error"] = calibration_error(
            list(claims.values()), [right[qid] for qid in claims]
        )
        counts["calibration_error"] = len(claims)
    return values, counts


def scores(qids: Iterable[str], known: Mapping[str, float]) -> dict[str, float]:
    """The known values, and 0 for every other question."""
    return {qid: known.get(qid, 0.0) for qid in qids}
