"""Recorded tool calls served again by another pipeline, held against what was recorded.

The counterfactual is honest up to the first page whose text differs from the recorded one: until
then the agent would have done the same, and behind it nobody knows. Every measure is therefore also
given for the calls before that point, as `<measure>_unchanged`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from toolkit.contracts import Answer, SearchTool, ToolCall, Trajectory
from toolkit.evaluation.funnel import SHOWN
from toolkit.evaluation.retrieval import documents
from toolkit.runs.records import SEARCHES, surfaced

_READING = ("get_document", "read_document")
_QUERY = ("query", "user_query", "words")  # what takes words, in the tools of ours and of others
BLOCKED = "blocked"  # a refusal by the harness, not by the pipeline
OVERLAP = 10
TIERS = ("surfaced", *SHOWN)
EFFORT = ("documents_exposed", "tokens_exposed")
PREFIX = "_unchanged"


class Replayed(NamedTuple):
    """A question's calls served again. `trajectory` holds them, without an answer; `unchanged` is
    the number of calls before the first page with another text, of all `calls`. `overlap` is the
    mean share of a recorded ranking's first documents that are among the new one's, and `moved` the
    mean number of ranks by which evidence came nearer to the top; None without any search, or any
    evidence in a ranking."""

    trajectory: Trajectory
    calls: int
    unchanged: int
    overlap: float | None
    moved: float | None


def replay(recorded: Trajectory, tool: SearchTool, evidence: Collection[str]) -> Replayed:
    """Serve the calls of a recorded question by `tool`, a new session, in their order. Calls that
    the harness refused, because the time was over, are left out."""
    unchanged, changed = 0, False
    served = [pair for pair in _calls(recorded) if pair[0].error != BLOCKED]
    adapted = _Adapter(tool, foreign=bool(recorded.source))
    overlaps: list[float] = []
    moves: list[int] = []
    for call, reasoning in served:
        tool.reasoning = reasoning
        result = tool.call(*adapted(call))
        changed = changed or result.text != call.output
        unchanged += not changed
        if call.ranking:
            before, after = documents(call.ranking), documents(result.call.ranking)
            overlaps.append(_overlap(before, after))
            moves += _moves(before, after, evidence)
    log = tool.evidence
    trajectory = without_answer(recorded, tool.calls)
    return Replayed(
        trajectory=replace(
            trajectory, tiers={t: tuple(log.tiers[t]) for t in TIERS}, exposures=log.exposures
        ),
        calls=len(served),
        unchanged=unchanged,
        overlap=sum(overlaps) / len(overlaps) if overlaps else None,
        moved=sum(moves) / len(moves) if moves else None,
    )


def without_answer(recorded: Trajectory, calls: Sequence[ToolCall]) -> Trajectory:
    """The retrieval of a trajectory alone: its `calls`, no answer, no model, no time."""
    return replace(
        recorded,
        answer=Answer(),
        messages=(),
        calls=tuple(calls),
        tiers={tier: recorded.tiers.get(tier, ()) for tier in TIERS},
        exposures=tuple(row for row in recorded.exposures if row.tier in TIERS),
        usage={},
        traceback="",
    )


def first_calls(trajectory: Trajectory, count: int) -> Trajectory:
    """The trajectory up to its call `count`. Tiers are those of the calls that are left."""
    calls = trajectory.calls[:count]
    exposures = [row for row in trajectory.exposures if row.call <= count]
    shown = {tier: tuple(row.docid for row in exposures if row.tier == tier) for tier in SHOWN}
    return replace(
        trajectory,
        calls=tuple(calls),
        tiers={"surfaced": surfaced(calls), **shown},
        exposures=tuple(exposures),
    )


def calls_until_evidence(trajectory: Trajectory, evidence: Collection[str]) -> int:
    """The number of the call that first showed evidence; one more than all calls where none did."""
    calls = [row.call for row in trajectory.exposures if row.docid in evidence]
    return min(calls, default=len(trajectory.calls) + 1)


class _Adapter:
    """Calls of a recorded question as another tool takes them. `foreign`: they were made to a tool
    that is not ours."""

    def __init__(self, tool: SearchTool, foreign: bool) -> None:
        self._search, self._read = tool.abilities
        functions = [spec.get("function", spec) for spec in tool.specs()]
        self._known = {
            function["name"]: function["parameters"]["properties"] for function in functions
        }
        self._foreign = foreign

    def __call__(self, call: ToolCall) -> tuple[str, Mapping[str, Any]]:
        """Name and arguments: as recorded where the tool takes them, or where an agent of ours got
        them wrong; else the tool's own name, with the arguments that it knows."""
        known = self._known.get(call.name, {})
        fits = bool(known) and call.arguments.keys() <= known.keys()
        if not self._foreign and (fits or call.error):
            return call.name, call.arguments
        use = self._search if call.name in SEARCHES else None
        use = self._read if call.name in _READING else use
        name = call.name if known or use is None else use.tool
        known = self._known.get(name, {})
        arguments = {key: value for key, value in call.arguments.items() if key in known}
        if use and use == self._search:
            key = next((key for key in _QUERY if key in call.arguments), None)
            if key is not None:
                arguments.setdefault(use.argument, call.arguments[key])
        if "reason" in known:
            arguments.setdefault("reason", "")
        return name, arguments


def _calls(recorded: Trajectory) -> Iterator[tuple[ToolCall, str]]:
    """Each call with the agent's newest reasoning before it, as far as messages tell."""
    newest = ""
    reasonings: list[str] = []
    for message in recorded.messages:
        if message.get("role") == "assistant":
            newest = str(message.get("reasoning") or message.get("content") or newest)
        elif message.get("role") == "tool":
            reasonings.append(newest)
    for number, call in enumerate(recorded.calls):
        yield call, reasonings[number] if number < len(reasonings) else newest


def _overlap(before: Sequence[str], after: Sequence[str]) -> float:
    count = min(OVERLAP, len(before))
    return len(set(before[:count]) & set(after[:count])) / count


def _moves(before: Sequence[str], after: Sequence[str], evidence: Collection[str]) -> list[int]:
    """Ranks gained by each evidence document that either ranking has; absent is behind the last."""
    old, new = _ranks(before, evidence), _ranks(after, evidence)
    last = max(len(before), len(after)) + 1
    return [old.get(docid, last) - new.get(docid, last) for docid in old | new]


def _ranks(documents: Sequence[str], evidence: Collection[str]) -> dict[str, int]:
    """Rank from 1 of each document that is evidence."""
    return {docid: rank for rank, docid in enumerate(documents, start=1) if docid in evidence}
