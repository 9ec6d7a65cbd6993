"""Foreign run files, the transcripts that they hold, and the trajectories that these become. A file
that we wrote also contains our own record of the question (`embed_record`), because no foreign
format has a place for rankings, exposures and seconds. It reads back as the same trajectory
(`extract_record`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from soundingline.toolkit.benchmarks.formats import records
from soundingline.toolkit.data import PASSAGE_MARK, parent
from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.files import read_json
from soundingline.toolkit.json_text import try_json
from soundingline.toolkit.search.answers import parse_answer
from soundingline.toolkit.search.session import ExposureLog
from soundingline.toolkit.search.tool import recordable
from soundingline.toolkit.tokens import count_tokens
from soundingline.toolkit.trajectory import (
    STATUSES,
    RecordedCall,
    Trajectory,
    from_record,
    readable_usage,
    to_record,
)

RECORD_KEY = "soundingline"  # the key of our own record in a foreign file
NO_OUTPUT = "no_output"  # the `error` of a call whose output the file does not contain
SUFFIXES = (".json", ".jsonl", ".eval")

_OUTPUT_NUMBER = "output_number"
_EXPORT_AGAIN = f"export the run again, or remove {RECORD_KEY!r} to read it as a foreign file"
_PREFIX = "browsecomp_plus_"
_PASSAGE = re.compile(r"(.+)_(\d+)", re.DOTALL)
_STATUSES = {"timeout": "timed_out", "error": "failed"}  # their words, and ours
_WRAPPERS = 4  # levels around a list of hits that are searched; MCP has two
_LISTS = ("results", "hits", "documents")
_DOCID = re.compile(r'"docid"\s*:\s*(?:"([^"]+)"|(\d+))')
# A line of a page of Pi-Serini's tools or of ours.
_PAGE_LINE = re.compile(r"^(?:\d+\. )?docid=(\S+)(?: score=| title=|$)", re.MULTILINE)
# A hit of a ranking that is paged through, with its rank and the line below it, its excerpt.
_PAGE_HIT = re.compile(
    r"^(\d+)\. docid=(\S+)(?: score=| title=|$)[^\n]*(?:\n([^\n]*))?", re.MULTILINE
)
_EXCERPT_DEPTH = 50  # Pi-Serini's hits beyond this rank have none


def run_paths(path: Path, skip: Collection[str] = ()) -> list[Path]:
    """The files of a run: `path` itself, or the `.json`, `.jsonl` and `.eval` files in the folder
    `path`, sorted by name, without hidden ones and those with a name in `skip`. `InputError` if
    there is no such file."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"there is no file or folder {path}", do="check the path")
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix in SUFFIXES and file.is_file()
        if not file.name.startswith(".") and file.name not in skip
    )
    if not files:
        raise InputError(
            f"{path} contains no run files", valid=f"files named *{', *'.join(SUFFIXES)}"
        )
    return files


def run_files(paths: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of `.json` files and of the lines of `.jsonl` files, one at a time, each
    with its location for messages. `InputError` for a file or a line that is not a JSON object."""
    for path in paths:
        if path.suffix == ".jsonl":
            yield from ((str(location), content) for location, content in records(path))
        else:
            yield str(path), read_json(path, dict[str, Any])


@dataclass(frozen=True)
class Message:
    """A message or, with `reasoning`, the reasoning of the agent."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True)
class ForeignCall:
    """A tool call of the agent.

    Args:
        tool, arguments, output: as in the file. Arguments are an object, or its JSON text; the
            output is None if the file does not contain it.
        error: a code; empty if the call succeeded.
    """

    tool: str
    arguments: Any
    output: Any
    error: str = ""


Step = Message | ForeignCall


@dataclass(frozen=True)
class Transcript:
    """One question of a foreign run.

    Args:
        qid, steps: the id of the question, and what the agent did, in order.
        question: the text that the agent was given as the question; None where the file does not
            record it.
        repeat: the number of the attempt at the question, from 1.
        status: how the question ended, in the words of the file.
        source: facts about the file, and the fields that the format's own evaluator reads.
        surfaced, previewed: ids of whole rankings, and ids that pages showed, where the file lists
            them for the question. The latter count if the output of a search is missing.
        usage: tokens and dollars as in the file, impossible numbers included.
        seconds, started: duration, and time of the start in ISO 8601; 0 and empty if unknown.
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
    question: str | None = None
    repeat: int = 1


def trajectory_of(
    transcript: Transcript, question: str, documents: Collection[str] = ()
) -> Trajectory:
    """The trajectory of a transcript, with the text of its question.

    The ranking of a search is the list of ids in its output, because nothing else is recorded.
    Ids of the form `<docid>_<n>` become passages in our form, `<docid>%p<n>`, if one of them is not
    one of the known `documents` and its docid is one, or is listed by the file.
    """
    foreign_calls = [step for step in transcript.steps if isinstance(step, ForeignCall)]
    unit_id = _unit_naming(transcript, foreign_calls, documents)
    log = ExposureLog()
    calls = [_recorded(call, unit_id, log) for call in foreign_calls]
    log.surface(parent(unit_id(docid)) for docid in transcript.surfaced)
    lost: list[str] = []  # ids of outputs that the file does not contain
    if any(call.name == "search" and call.error == NO_OUTPUT for call in calls):
        lost = [parent(unit_id(docid)) for docid in transcript.previewed]
        log.surface(lost)
    answer = parse_answer(_final_text(transcript.steps), log.known)
    log.show("cited", answer.citations)
    status = _STATUSES.get(transcript.status, transcript.status)
    status = status if status in STATUSES else "out_of_turns"
    return Trajectory(
        qid=transcript.qid,
        question=question,
        status=status,
        answer=answer,
        messages=tuple(_messages(transcript.steps, question)),
        calls=tuple(calls),
        tiers={**log.tiers, "previewed": tuple(dict.fromkeys((*log.tiers["previewed"], *lost)))},
        exposures=log.rows,
        usage=readable_usage(transcript.usage),
        started=transcript.started,
        seconds=transcript.seconds,
        reason="" if status == "completed" else transcript.status[:80],
        source=recordable(transcript.source),
    )


def _unit_naming(
    transcript: Transcript, calls: Iterable[ForeignCall], documents: Collection[str]
) -> Callable[[str], str]:
    """What gives our id of a unit by an id in the transcript; see `trajectory_of`."""
    listed = {*transcript.surfaced, *transcript.previewed}
    searches = [call.output for call in calls if our_tool(call.tool) == "search"]
    hits = chain.from_iterable(map(docids_shown, searches))
    passages = any(_names_passage(docid, documents, listed) for docid in hits)

    def unit_id(docid: str) -> str:
        name = docid.removeprefix(_PREFIX)
        match = _PASSAGE.fullmatch(name) if passages else None
        return f"{match[1]}{PASSAGE_MARK}{match[2]}" if match else name

    return unit_id


def _recorded(call: ForeignCall, unit_id: Callable[[str], str], log: ExposureLog) -> RecordedCall:
    """A call in our form. What it exposed is entered in `log`."""
    name, arguments = our_tool(call.tool), call_arguments(call.arguments)
    error = call.error or (NO_OUTPUT if call.output is None else "")
    text = output_text(call.output)
    tokens = count_tokens(text)
    log.count(tokens)
    ranking: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    if not error and name in ("search", "read_search_results"):
        docids = docids_shown(call.output)
        shown = tuple(map(unit_id, docids))
        ranking = shown if name == "search" else ()
        log.surface(map(parent, shown))
        without_excerpt = set(docids_without_excerpt(call.output))
        previewed = [docid for docid in docids if docid not in without_excerpt]
        log.show("previewed", [parent(unit_id(docid)) for docid in previewed])
    elif not error and name in ("get_document", "read_document"):
        docid = arguments.get("docid")
        shown = (parent(unit_id(str(docid))),) if isinstance(docid, (str, int)) else ()
        log.show("opened", shown)
    notes = {} if name == call.tool else {"tool": call.tool}
    return RecordedCall(name, arguments, text, error, 0.0, tokens, ranking, shown, notes)


def _final_text(steps: Sequence[Step]) -> str:
    """The last message; empty if a tool call follows it."""
    for step in reversed(steps):
        if isinstance(step, ForeignCall):
            return ""
        if not step.reasoning:
            return step.text
    return ""


def our_tool(name: str) -> str:
    """Our name of a foreign tool: `search` for tools such as `search-server-search` and
    `local_knowledge_base_retrieval`, `get_document` or `read_document` for tools whose names
    contain that. Other names do not change."""
    lower = name.lower()
    for known in ("read_search_results", "get_document", "read_document"):
        if known in lower:
            return known
    return "search" if "search" in lower or "retrieval" in lower else name


def call_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments of a call as an object. Text that is not a JSON object becomes the value of
    `unreadable`."""
    if isinstance(arguments, str):
        parsed = try_json(arguments or "{}")
        arguments = parsed if isinstance(parsed, dict) else {"unreadable": arguments}
    return recordable({} if arguments is None else arguments)


def docids_shown(output: Any) -> list[str]:
    """The distinct ids in the output of a search tool, in order: from JSON with `docid` fields,
    also within text parts or wrapper objects, from text that quotes such JSON, and from pages with
    lines `docid=...`."""
    return list(dict.fromkeys(_docids(output, _WRAPPERS)))


def docids_without_excerpt(output: Any) -> list[str]:
    """The ids that a page of a ranking, in the form of Pi-Serini's tools and of ours, lists without
    an excerpt below: those beyond rank 50, and those that another hit or an empty line follows.
    Empty for outputs in other forms.

    >>> docids_without_excerpt("50. docid=a score=2.0\\n   an excerpt\\n51. docid=b score=1.0")
    ['b']
    """
    text, listed, at = output_text(output), [], 0
    while hit := _PAGE_HIT.search(text, at):
        below, at = hit[3] or "", hit.start(3) if hit[3] else hit.end()
        if int(hit[1]) > _EXCERPT_DEPTH or not below.strip() or _PAGE_HIT.match(below):
            listed.append(hit[2])
    return listed


def output_text(output: Any) -> str:
    """The output of a tool as text: its text parts, or its JSON. It is empty for None."""
    if output is None or isinstance(output, str):
        return output or ""
    parts = output if isinstance(output, list) else [output]
    if parts and all(isinstance(part, str) or is_text_part(part) for part in parts):
        return "\n".join(part if isinstance(part, str) else part["text"] for part in parts)
    return json.dumps(output, ensure_ascii=False)


def is_text_part(part: Any) -> bool:
    """Whether a part of a message or an output is an object with a `text`."""
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def embed_record(trajectory: Trajectory, outputs: Sequence[str]) -> dict[str, Any]:
    """The record of a trajectory for a foreign file. Tool outputs make up most of a file; texts of
    the record that are equal to one of `outputs`, the tool outputs of the file in order, are
    therefore replaced by its number."""
    numbers: dict[str, int] = {}
    for number, text in enumerate(outputs):
        if text:
            numbers.setdefault(text, number)

    def shortened(row: Mapping[str, Any], name: str) -> dict[str, Any]:
        text = row.get(name)
        number = numbers.get(text) if isinstance(text, str) else None
        return dict(row) if number is None else _renamed(row, name, _OUTPUT_NUMBER, number)

    record = to_record(trajectory)
    record["calls"] = [shortened(call, "output") for call in record["calls"]]
    record["messages"] = [shortened(message, "content") for message in record["messages"]]
    return record


class _Embedded(TypedDict):
    calls: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def extract_record(location: str, embedded: Any, outputs: Sequence[str]) -> Trajectory:
    """The trajectory of an embedded record (`embed_record`); `InputError` if it is damaged."""
    what = f"{location} was written by us and is damaged"

    def completed(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        number = row.get(_OUTPUT_NUMBER)
        if number is None:
            return row
        if not isinstance(number, int) or number not in range(len(outputs)):
            raise InputError(f"{what}: there is no output {str(number)[:40]}", do=_EXPORT_AGAIN)
        return _renamed(row, _OUTPUT_NUMBER, name, outputs[number])

    rows = parse(_Embedded, embedded, where=what, do=_EXPORT_AGAIN)
    record = {
        **embedded,
        "calls": [completed(call, "output") for call in rows["calls"]],
        "messages": [completed(message, "content") for message in rows["messages"]],
    }
    return from_record(record, where=what, do=_EXPORT_AGAIN)


def _renamed(row: Mapping[str, Any], old: str, new: str, value: Any) -> dict[str, Any]:
    """The row with another key and value in the place of `old`. The order of the keys does not
    change, so that a file reads back byte for byte."""
    return {new if key == old else key: value if key == old else row[key] for key in row}


def edited_file(location: str) -> InputError:
    """The error for a file that differs from its embedded record."""
    return InputError(
        f"{location} was changed after it was exported: its content and its {RECORD_KEY!r} differ",
        do=_EXPORT_AGAIN,
    )


class _Function(TypedDict):
    name: str
    arguments: str


class _ToolCall(TypedDict):
    id: str
    function: _Function


class _ForeignMessage(TypedDict, total=False):
    role: str
    content: str | list[Any] | None
    reasoning: str | None
    tool_calls: list[_ToolCall] | None
    tool_call_id: str


def chat_messages(trajectory: Trajectory) -> Sequence[Mapping[str, Any]]:
    """The messages of a trajectory; `InputError` if they are not in the function-calling form,
    because no foreign format can hold them then."""
    parse(
        list[_ForeignMessage],
        list(trajectory.messages),
        where=f"the messages of question {trajectory.qid!r} cannot be exported",
        do="choose another format=, or restore the trajectory from a copy",
        strict=True,
    )
    return trajectory.messages


def _names_passage(docid: str, documents: Collection[str], listed: Collection[str]) -> bool:
    match = _PASSAGE.fullmatch(docid.removeprefix(_PREFIX))
    if match is None or docid in documents:
        return False
    of_document = match[1] in documents or (match[1] in listed and docid not in listed)
    return of_document or docid.startswith(_PREFIX)


def _docids(output: Any, levels: int) -> Iterator[str]:
    if levels == 0:
        return
    if isinstance(output, str):
        if output.lstrip()[:1] in ("[", "{") and (value := try_json(output)) is not None:
            yield from _docids(value, levels - 1)
            return
        if '"docid"' in output:
            yield from (quoted or number for quoted, number in _DOCID.findall(output))
        else:
            yield from _PAGE_LINE.findall(output)
    elif isinstance(output, list):
        for item in output:
            yield from _docids(item, levels - 1)
    elif isinstance(output, dict):
        if isinstance(docid := output.get("docid"), (str, int)) and not isinstance(docid, bool):
            yield str(docid)
        elif is_text_part(output):
            yield from _docids(output["text"], levels)
        for name in _LISTS:
            if isinstance(output.get(name), list):
                yield from _docids(output[name], levels - 1)


def _messages(steps: Sequence[Step], question: str) -> Iterator[dict[str, Any]]:
    """The steps as messages in the function-calling form. Reasoning is a field of the message that
    follows it."""
    yield {"role": "user", "content": question}
    reasoning: list[str] = []
    number = 0
    for step in steps:
        if isinstance(step, Message) and step.reasoning:
            reasoning.append(step.text)
            continue
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if reasoning:
            message["reasoning"] = "\n\n".join(reasoning)
            reasoning = []
        if isinstance(step, Message):
            yield {**message, "content": step.text}
            continue
        number += 1
        written = step.arguments if isinstance(step.arguments, str) else None
        arguments = written or json.dumps(call_arguments(step.arguments), ensure_ascii=False)
        function = {"name": step.tool, "arguments": arguments}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        yield {**message, "tool_calls": [call]}
        text = output_text(step.output)
        yield {"role": "tool", "tool_call_id": call["id"], "content": text}
    if reasoning:
        yield {"role": "assistant", "content": "", "reasoning": "\n\n".join(reasoning)}
