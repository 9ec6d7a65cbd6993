"""What a foreign file tells of a question, and the trajectory that it becomes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.contracts import PASSAGE_MARK, STATUSES, ToolCall, Trajectory, parent
from toolkit.exchange.outputs import docids_shown, output_text
from toolkit.search.answers import parse_answer
from toolkit.search.evidence import EvidenceLog
from toolkit.search.schemas import recordable
from toolkit.text import count_tokens

NO_OUTPUT = "no_output"  # the `error` of a call whose output the file does not hold
_PREFIX = "browsecomp_plus_"
_PASSAGE = re.compile(r"(.+)_(\d+)", re.DOTALL)
_STATUSES = {
    "completed": "completed",
    "timeout": "timed_out",
    "timed_out": "timed_out",
    "failed": "failed",
    "error": "failed",
}


@dataclass(frozen=True)
class Reasoning:
    """What the agent thought, as far as the file tells."""

    text: str


@dataclass(frozen=True)
class Said:
    """A message of the agent."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call. `arguments` and `output` are as the file has them; an output of None is not on
    record. `error` is a code, empty where the call succeeded."""

    tool: str
    arguments: Any
    output: Any
    error: str = ""
    seconds: float = 0.0


Step = Reasoning | Said | Call


@dataclass(frozen=True)
class Transcript:
    """One question of a foreign run.

    `status` is the file's own word. `surfaced` are ids of whole rankings, and `previewed` of what
    pages showed, as the file lists them for the question; the latter count where the output of a
    search is not on record. `source` is what the file says of itself and what its own evaluator
    reads.
    """

    qid: str
    steps: Sequence[Step]
    status: str
    source: Mapping[str, Any] = field(default_factory=dict)
    surfaced: Sequence[str] = ()
    previewed: Sequence[str] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    started: str = ""


def plain_tool(name: str) -> str:
    """Our name of a foreign tool: `search-server-search` and `local_knowledge_base_retrieval`
    search, whatever holds `get_document` or `read_document` reads; others keep their names."""
    lower = name.lower()
    for known in ("read_search_results", "get_document", "read_document"):
        if known in lower:
            return known
    return "search" if "search" in lower or "retrieval" in lower else name


def trajectory_of(
    transcript: Transcript, question: str, documents: Collection[str] = ()
) -> Trajectory:
    """The trajectory of a transcript.

    `documents` are ids that are known to name documents, such as the judged ones. Where an id
    `<docid>_<n>` is none and its docid is, or is listed in its place, all ids of that form in this
    file are passages, which are recorded in our form. The ranking of a search is what its output
    shows, as nothing else is on record.
    """
    listed = {*transcript.surfaced, *transcript.previewed}
    units = _Units(transcript.steps, documents, listed)
    log = EvidenceLog()
    calling = (step for step in transcript.steps if isinstance(step, Call))
    calls = [_recorded(call, units, log) for call in calling]
    log.surface(parent(units.unit(docid)) for docid in transcript.surfaced)
    unseen: list[str] = []  # shown by some call, nobody knows by which
    if any(call.name == "search" and call.error == NO_OUTPUT for call in calls):
        unseen = [parent(units.unit(docid)) for docid in transcript.previewed]
        log.surface(unseen)
    final = final_text(transcript.steps)
    answer = parse_answer(final, log.known)
    log.show("cited", answer.citations)
    known_status = transcript.status if transcript.status in STATUSES else "out_of_turns"
    status = _STATUSES.get(transcript.status, known_status)
    return Trajectory(
        qid=transcript.qid,
        question=question,
        status=status,
        answer=answer,
        messages=tuple(_messages(transcript.steps, question)),
        calls=tuple(calls),
        tiers={**log.tiers, "previewed": tuple(dict.fromkeys((*log.tiers["previewed"], *unseen)))},
        exposures=log.exposures,
        usage=transcript.usage,
        started=transcript.started,
        seconds=transcript.seconds,
        reason="" if status == "completed" else transcript.status[:80],
        source=recordable(transcript.source),
    )


def final_text(steps: Iterable[Step]) -> str:
    """The last message behind which no tool is called; empty where there is none."""
    final = ""
    for step in steps:
        if isinstance(step, Said):
            final = step.text
        elif isinstance(step, Call):
            final = ""
    return final


def arguments_of(arguments: Any) -> dict[str, Any]:
    """A call's arguments as an object, be they one or its JSON text; what is neither is kept as
    `unreadable`."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else {"unreadable": arguments}
    return recordable({} if arguments is None else arguments)


class _Units:
    """The ids of one file, passages in our form."""

    def __init__(
        self, steps: Sequence[Step], documents: Collection[str], listed: Collection[str]
    ) -> None:
        ids = (docid for step in steps if isinstance(step, Call) for docid in _ids(step))
        self._passages = any(_names_passage(docid, documents, listed) for docid in ids)

    def unit(self, docid: str) -> str:
        name = docid.removeprefix(_PREFIX)
        match = _PASSAGE.fullmatch(name) if self._passages else None
        return f"{match[1]}{PASSAGE_MARK}{match[2]}" if match else name


def _ids(call: Call) -> list[str]:
    return docids_shown(call.output) if plain_tool(call.tool) == "search" else []


def _names_passage(docid: str, documents: Collection[str], listed: Collection[str]) -> bool:
    match = _PASSAGE.fullmatch(docid.removeprefix(_PREFIX))
    if match is None or docid in documents:
        return False
    known = match[1] in documents or (match[1] in listed and docid not in listed)
    return known or docid.startswith(_PREFIX)


def _recorded(call: Call, units: _Units, log: EvidenceLog) -> ToolCall:
    """The record of a call, whose evidence goes into `log`."""
    name, arguments = plain_tool(call.tool), arguments_of(call.arguments)
    text = output_text(call.output)
    error = call.error or (NO_OUTPUT if call.output is None else "")
    tokens = count_tokens(text)
    log.count(tokens)
    ranking: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    if not error and name in ("search", "read_search_results"):
        shown = tuple(units.unit(docid) for docid in docids_shown(call.output))
        ranking = shown if name == "search" else ()
        log.surface(map(parent, shown))
        log.show("previewed", list(map(parent, shown)))
    elif not error and name in ("get_document", "read_document"):
        docid = arguments.get("docid")
        shown = (parent(units.unit(str(docid))),) if isinstance(docid, (str, int)) else ()
        log.show("opened", shown)
    return ToolCall(
        name=name,
        arguments=arguments,
        output=text,
        error=error,
        seconds=call.seconds,
        tokens=tokens,
        ranking=ranking,
        shown=shown,
        notes={} if name == call.tool else {"tool": call.tool},
    )


def _messages(steps: Sequence[Step], question: str) -> Iterator[dict[str, Any]]:
    """The transcript in the function-calling form; reasoning rides on the message that follows."""
    yield {"role": "user", "content": question}
    reasoning: list[str] = []
    number = 0
    for step in steps:
        if isinstance(step, Reasoning):
            reasoning.append(step.text)
            continue
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if reasoning:
            message["reasoning"] = "\n\n".join(reasoning)
            reasoning = []
        if isinstance(step, Said):
            yield {**message, "content": step.text}
            continue
        number += 1
        written = step.arguments if isinstance(step.arguments, str) else None
        arguments = written or json.dumps(arguments_of(step.arguments), ensure_ascii=False)
        function = {"name": step.tool, "arguments": arguments}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        yield {**message, "tool_calls": [call]}
        text = output_text(step.output)
        yield {"role": "tool", "tool_call_id": call["id"], "content": text}
    if reasoning:
        yield {"role": "assistant", "content": "", "reasoning": "\n\n".join(reasoning)}
