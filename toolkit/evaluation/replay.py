"""Replay of recorded tool calls through another pipeline, and comparison with the recorded results.

After the first page whose text differs from the recorded one, nobody knows what the agent would
have done. Every measure is therefore also computed for the calls before it (`<measure>_unchanged`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from soundingline.toolkit.evaluation.funnel import SHOWN
from soundingline.toolkit.evaluation.retrieval import documents
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import (
    QUERIES,
    SEARCHES,
    Answer,
    RecordedCall,
    Trajectory,
    surfaced,
)

_READING = ("get_document", "read_document")
BLOCKED = "blocked"  # a refusal by the harness, not by the pipeline
OVERLAP = 10
TIERS = ("surfaced", *SHOWN)
EFFORT = ("documents_exposed", "tokens_exposed")
PREFIX = "_unchanged"


@dataclass(frozen=True)
class Replay:
    """The replay of one question.

    `overlap` is the mean share of a recorded ranking's first `OVERLAP` documents that are among the
    first of the new ranking (None without a search), and `moved` the mean number of ranks by which
    evidence moved up (None if no ranking has any).
    """

    trajectory: Trajectory  # the replayed calls, without an answer
    calls: int
    unchanged: int  # calls before the first page with another text
    overlap: float | None
    moved: float | None


def replay(recorded: Trajectory, tool: SearchTool, evidence: Collection[str]) -> Replay:
    """Repeat the calls of a recorded question, in their order.

    Args:
        recorded: the recorded trajectory. Calls that the harness refused because the time was over
            are left out.
        tool: a new session of a search tool.
        evidence: the relevant documents of the question.
    """
    unchanged, changed = 0, False
    calls = [pair for pair in _calls(recorded) if pair[0].error != BLOCKED]
    overlaps: list[float] = []
    moves: list[int] = []
    for call, reasoning in calls:
        tool.reasoning = reasoning
        result = tool.call(*_adapted(call, tool, foreign=bool(recorded.source)))
        changed = changed or result.text != call.output
        unchanged += not changed
        if call.ranking:
            before, after = documents(call.ranking), documents(result.call.ranking)
            depth = min(OVERLAP, len(before))
            overlaps.append(len(set(before[:depth]) & set(after[:depth])) / depth)
            old, new = (
                {docid: rank for rank, docid in enumerate(ranking, 1) if docid in evidence}
                for ranking in (before, after)
            )
            last = max(len(before), len(after)) + 1  # the rank of a document that is missing
            moves += [old.get(docid, last) - new.get(docid, last) for docid in old | new]
    log = tool.exposures
    return Replay(
        trajectory=replace(
            without_answer(recorded, tool.calls),
            tiers={tier: tuple(log.tiers[tier]) for tier in TIERS},
            exposures=log.rows,
        ),
        calls=len(calls),
        unchanged=unchanged,
        overlap=sum(overlaps) / len(overlaps) if overlaps else None,
        moved=sum(moves) / len(moves) if moves else None,
    )


def without_answer(recorded: Trajectory, calls: Sequence[RecordedCall]) -> Trajectory:
    """The retrieval of a trajectory: `calls`, without answer, messages and usage."""
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
    """The first `count` calls of a trajectory, with the tiers that they reached."""
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
    """The number of the call that first showed evidence; one more than all calls if none did."""
    calls = [row.call for row in trajectory.exposures if row.docid in evidence]
    return min(calls, default=len(trajectory.calls) + 1)


def _adapted(
    call: RecordedCall, tool: SearchTool, *, foreign: bool
) -> tuple[str, Mapping[str, Any]]:
    """The name and arguments of a recorded call for a tool: unchanged if the tool accepts them, or
    if an agent of ours got them wrong; otherwise the tool's own name, with the arguments that it
    knows. `foreign`: the call was made to a tool of another harness."""
    functions = [spec.get("function", spec) for spec in tool.specs()]
    parameters = {spec["name"]: spec["parameters"]["properties"] for spec in functions}
    accepted = parameters.get(call.name, {})
    fits = bool(accepted) and call.arguments.keys() <= accepted.keys()
    if not foreign and (fits or call.error):
        return call.name, call.arguments
    counterpart = tool.search_tool if call.name in SEARCHES else None
    counterpart = tool.read_tool if call.name in _READING else counterpart
    name = call.name if accepted or counterpart is None else counterpart[0]
    accepted = parameters.get(name, {})
    arguments = {key: value for key, value in call.arguments.items() if key in accepted}
    if counterpart and counterpart == tool.search_tool:
        for key in QUERIES:
            if key in call.arguments:
                arguments.setdefault(counterpart[1], call.arguments[key])
    if "reason" in accepted:
        arguments.setdefault("reason", "")
    return name, arguments


def _calls(recorded: Trajectory) -> Iterator[tuple[RecordedCall, str]]:
    """Each call with the agent's last reasoning before it, if the messages have one."""
    newest = ""
    reasonings: list[str] = []
    for message in recorded.messages:
        if message.get("role") == "assistant":
            newest = str(message.get("reasoning") or message.get("content") or newest)
        elif message.get("role") == "tool":
            reasonings.append(newest)
    for number, call in enumerate(recorded.calls):
        yield call, reasonings[number] if number < len(reasonings) else newest
