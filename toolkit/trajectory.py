"""Trajectories: what an agent did on one question, and how it is written and read as JSON. The file
has no `surfaced` tier if that follows from the rankings of the calls, so that it does not hold
every id twice; reading derives the tier again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Lt
from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.data import parents
from soundingline.toolkit.errors import InputError, is_number, parse
from soundingline.toolkit.files import dump_json, read_json
from soundingline.toolkit.json_text import decode_json
from soundingline.toolkit.obfuscation import decrypt_line

FORMAT = 1
TIERS = ("surfaced", "previewed", "opened", "cited")
# An answer of a question with such a status was demanded after a limit was reached.
FORCED_STATUSES = ("out_of_turns", "out_of_context", "out_of_money")
STATUSES = ("completed", "steered", "timed_out", *FORCED_STATUSES, "failed")
# The `reason` of a question that ended because the money of its run was spent. It is repeated when
# the run is resumed, as a failed one is.
RUN_OUT_OF_MONEY = "run_out_of_money"
NO_FORMAT = "no_format"  # the mark of a final message that is not in the required format
SEARCHES = ("search",)  # the names of our tools that search
QUERIES = ("query", "user_query")  # arguments for the query, in our tools and others
STAGES = ("rewriter", "enrichment", "retriever", "reranker")  # in the order of a pipeline
ROLES = (
    *("agent", "rewriter", "reranker", "judge", "enrichment", "navigator", "librarian"),
    "preflight",  # requests before the first question, which check the servers
)

# The number of lines up to `reason`, and the end of the file, as `dump_trajectory` writes them.
_HEAD_LINES = 6
_LAST = b"}"
_TAIL = 64  # bytes at the end of a file that contain its last line, obfuscated or not


Count = Annotated[int, Lt(2**63)]  # what other programs can hold


class Exposure(NamedTuple):
    """The first time that a document was shown in a tier: the number of the `call`, from 1; the
    numbers of distinct `documents` shown and `tokens` of tool output so far, with this one; and,
    where the interface has layers (`soundingline.toolkit.search.literature`), the `layer` of the
    document that was shown. A document then has an exposure for each layer of a tier."""

    call: Count
    tier: str
    docid: str
    documents: Count
    tokens: Count
    layer: str = ""


@dataclass(frozen=True)
class RecordedCall:
    """One tool call.

    Args:
        name: the tool.
        error: an error code; empty if the call succeeded.
        tokens: the tokens of the output.
        ranking: the unit ids of a new ranking, best first; empty for other calls.
        shown: the unit ids in the output.
        notes: what the backend noted of the search, such as a rewritten query, and the `layer` of
            the output where the interface has layers.
    """

    name: str
    arguments: Mapping[str, Any]
    output: str
    error: str = ""
    seconds: float = 0.0
    tokens: int = 0
    ranking: Sequence[str] = ()
    shown: Sequence[str] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def searched(self) -> bool:
        """Whether the call is a successful search: of one of our tools by its name, of any other
        tool by its ranking. Following links ranks documents too, and is not a search."""
        ranked = bool(self.ranking) and self.name != "expand"
        return not self.error and (self.name in SEARCHES or ranked)

    @property
    def query(self) -> str | None:
        """The query of a successful search as the agent wrote it; None for other calls."""
        named = (self.arguments.get(name) for name in QUERIES if self.searched)
        return next((query for query in named if isinstance(query, str)), None)


@dataclass(frozen=True)
class Answer:
    """The parts of a final answer: the texts after `Explanation:` and `Exact Answer:`, the
    `confidence` from 0 to 100 (None if there is none), the docids that the explanation cites in
    order, and the distinct `documents` that answer a question for documents, best first."""

    explanation: str = ""
    exact: str = ""
    confidence: float | None = None
    citations: Sequence[str] = ()
    documents: Sequence[str] = ()


@dataclass(frozen=True)
class Trajectory:
    """Everything that happened on one question.

    Args:
        qid: the id of the question.
        question: its text.
        status: one of `STATUSES`.
        messages: the messages of the agent's conversation.
        tiers: for each of `TIERS`, the docids in the order of their first exposure.
        exposures: the first exposure of each document in each tier.
        usage: numbers of requests, tokens, seconds and dollars by name; empty for an agent without
            a language model.
        started: the time of the start in ISO 8601.
        seconds: the duration (wall-clock).
        virtual_seconds: the seconds by which the question was limited where those were declared
            (`soundingline.agents.base.Budget`); None: those of the wall clock.
        reason: a stable word for why the question ended so, where the status does not say it
            (`refused`, `tool_calls`, `empty_answer`, ...).
        warnings: lines for a person.
        source: facts about the file of an imported trajectory (`soundingline.toolkit.exchange`).
        rounds: plain JSON values of each round of an agent that works in rounds
            (`soundingline.agents.literature.rounds`).
    """

    qid: str
    question: str
    status: str
    answer: Answer = field(default_factory=Answer)
    messages: Sequence[Mapping[str, Any]] = ()
    calls: Sequence[RecordedCall] = ()
    tiers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    exposures: Sequence[Exposure] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0
    virtual_seconds: float | None = None
    traceback: str = ""
    reason: str = ""
    warnings: Sequence[str] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    rounds: Sequence[Mapping[str, Any]] = ()


class Outcome(NamedTuple):
    """How a question ended."""

    qid: str
    status: str
    reason: str

    @classmethod
    def of(cls, trajectory: Trajectory) -> Outcome:
        return cls(trajectory.qid, trajectory.status, trajectory.reason)

    @property
    def finished(self) -> bool:
        """Whether the question is not repeated: it did not fail, and the end of the run's money did
        not cut it short."""
        return self.status != "failed" and self.reason != RUN_OUT_OF_MONEY


def surfaced(calls: Iterable[RecordedCall]) -> tuple[str, ...]:
    """The distinct documents of all rankings, in the order of their first appearance."""
    units = tuple(dict.fromkeys(chain.from_iterable(call.ranking for call in calls)))
    return tuple(dict.fromkeys(parents(units)))


def final_message(trajectory: Trajectory) -> Mapping[str, Any] | None:
    """The agent's last message with a text, if no tool output follows it."""
    for message in reversed(trajectory.messages):
        if message.get("role") != "assistant":
            return None
        if message.get("content"):
            return message
    return None


def final_response(trajectory: Trajectory) -> str:
    """The text of the final answer as the agent wrote it; empty if there is none."""
    message = final_message(trajectory)
    answered = bool(trajectory.answer.explanation or trajectory.answer.exact)
    return str(message["content"]) if answered and message else ""


# JSON.


class _Source(TypedDict, total=False):
    """What evaluations read of an imported trajectory's `source`."""

    format: str
    file: str
    status: str
    ends_with_answer: bool
    retrieved_docids: list[str]
    tool_call_counts: dict[str, Count]
    metadata: dict[str, Any]


class _Answer(TypedDict):
    explanation: str
    exact: str
    confidence: float | None
    citations: list[str]
    documents: NotRequired[list[str]]


class _CallRow(TypedDict):
    name: str
    arguments: dict[str, Any]
    output: str
    error: str
    seconds: float
    tokens: Count
    ranking: list[str]
    shown: list[str]
    notes: NotRequired[dict[str, Any]]


class _OutcomeRow(TypedDict):
    """The first values of a trajectory."""

    format: int
    qid: str
    status: str
    reason: NotRequired[str]


class _Record(_OutcomeRow):
    """A trajectory as JSON values."""

    question: str
    answer: _Answer
    started: str
    seconds: float
    virtual_seconds: NotRequired[float]
    usage: dict[str, Any]  # Impossible numbers are unknown; see `readable_usage`.
    traceback: str
    warnings: NotRequired[list[str]]
    source: NotRequired[_Source]
    rounds: NotRequired[list[dict[str, Any]]]
    tiers: dict[str, list[str] | None]
    exposures: list[Exposure]
    calls: list[_CallRow]
    messages: list[dict[str, Any]]


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as JSON values, with small fields before large ones."""
    tiers: dict[str, Any] = {tier: trajectory.tiers.get(tier) for tier in TIERS}
    if tiers["surfaced"] is not None and tuple(tiers["surfaced"]) == surfaced(trajectory.calls):
        del tiers["surfaced"]
    virtual = trajectory.virtual_seconds
    return {
        "format": FORMAT,
        "qid": trajectory.qid,
        "question": trajectory.question,
        "status": trajectory.status,
        "reason": trajectory.reason,
        "answer": _row(trajectory.answer, optional="documents"),
        "started": trajectory.started,
        "seconds": trajectory.seconds,
        **({} if virtual is None else {"virtual_seconds": virtual}),
        "usage": dict(trajectory.usage),
        "traceback": trajectory.traceback,
        "warnings": list(trajectory.warnings),
        **({"source": dict(trajectory.source)} if trajectory.source else {}),
        **({"rounds": [dict(row) for row in trajectory.rounds]} if trajectory.rounds else {}),
        "tiers": tiers,
        "exposures": [exposure_row(exposure) for exposure in trajectory.exposures],
        "calls": [call_row(call) for call in trajectory.calls],
        "messages": [dict(message) for message in trajectory.messages],
    }


def from_record(record: Any, *, where: object = "a trajectory", do: str = "") -> Trajectory:
    """The trajectory of a record (`to_record`). Sequences become tuples; messages and arguments
    stay as in JSON. `InputError` if a field is missing or has a wrong type; see `parse`."""
    checked: Any = parse(_Record, record, where=where, do=do, strict=True)
    calls = tuple(RecordedCall(**_with_tuples(call)) for call in checked["calls"])
    tiers = {tier: tuple(ids) for tier, ids in checked["tiers"].items() if ids is not None}
    if "surfaced" not in checked["tiers"]:
        tiers = {"surfaced": surfaced(calls), **tiers}
    for name, value, valid in (
        ("format", checked.pop("format"), (FORMAT,)),
        ("status", checked["status"], STATUSES),
        *(("tiers", tier, TIERS) for tier in {*tiers, *(row.tier for row in checked["exposures"])}),
    ):
        if value not in valid:
            raise InputError(
                f"{where}: {name} is {value!r}", valid=", ".join(map(str, valid)), do=do
            )
    objects = {
        "answer": Answer(**_with_tuples(checked["answer"])),
        "calls": calls,
        "tiers": tiers,
        "usage": readable_usage(checked["usage"]),
        "source": record.get("source", {}),  # `_Source` has a part of its fields
    }
    return Trajectory(**_with_tuples({**checked, **objects}))


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(part) if isinstance(part, list) else part for name, part in row.items()}


def dump_trajectory(trajectory: Trajectory) -> str:
    """The JSON text of a trajectory, with one line for each field, call, message and exposure, so
    that `grep`, `less` and `diff` work on it. Equal trajectories have equal texts."""
    lines = []
    for key, value in to_record(trajectory).items():
        by_line = isinstance(value, list) and value
        text = ",\n ".join(map(_compact, value)) if by_line else _compact(value)
        lines.append(f"{_compact(key)}: " + (f"[\n {text}\n]" if by_line else text))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_trajectory(path: Path) -> Trajectory:
    """The trajectory in a file; `InputError` if the file is missing or damaged."""
    do = "move the file away and run again; its question is then repeated"
    return from_record(read_json(path, do=do), where=path, do=do)


def read_outcome(path: Path) -> Outcome:
    """How a question ended; `InputError` if the file is missing or damaged. Only the first lines
    and the last line are read if `dump_trajectory` wrote the file, because resuming a run needs the
    outcome of every file, and reading complete trajectories takes long."""
    try:
        with path.open("rb") as stream:
            lines = [stream.readline().rstrip(b"\n") for _ in range(_HEAD_LINES)]
            stream.seek(-_TAIL, os.SEEK_END)
            *_, last, rest = stream.read().split(b"\n")
        complete = not rest and decrypt_line(last, path) == _LAST
        head = b"\n".join(decrypt_line(line, path) for line in lines)
        row = parse(_OutcomeRow, decode_json(head.rstrip(b",\n") + b"}"), where=path, strict=True)
        if complete and row["format"] == FORMAT and row["status"] in STATUSES:
            return Outcome(row["qid"], row["status"], row.get("reason", ""))
    except (InputError, OSError, ValueError):
        pass  # The file has another layout, or is damaged, which `read_trajectory` reports.
    return Outcome.of(read_trajectory(path))


def call_row(call: RecordedCall) -> dict[str, Any]:
    """A call as JSON values, without `notes` if there are none."""
    return _row(call, optional="notes")


def call_of(row: Any) -> RecordedCall:
    """The call of a `call_row`; `InputError` if it is damaged."""
    return RecordedCall(**_with_tuples(parse(_CallRow, row, where="a tool call", strict=True)))


def exposure_row(exposure: Exposure) -> list[Any]:
    """An exposure as JSON values, without `layer` if it is empty."""
    return list(exposure) if exposure.layer else list(exposure[:-1])


def exposure_of(row: Any) -> Exposure:
    """The exposure of an `exposure_row`; `InputError` if it is damaged."""
    return parse(Exposure, row, where="an exposure", strict=True)


def _row(value: Any, optional: str) -> dict[str, Any]:
    """The fields of a dataclass, without an `optional` one that is empty."""
    row = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: part for name, part in row.items() if part or name != optional}


def _compact(value: Any) -> str:
    return dump_json(value, indent=None).rstrip("\n")


# Usage.


def readable_usage(usage: Mapping[str, Any]) -> dict[str, float]:
    """The possible numbers of a usage from a file. Impossible ones are left out and marked as
    `unreported`: they are unknown, and not zero."""
    numbers = {name: value for name, value in usage.items() if is_number(value) and value >= 0}
    for name in usage.keys() - numbers.keys():
        numbers.setdefault(f"{_prefix(name)}unreported", 1)
    return numbers


def known_usage(usage: Mapping[str, float], name: str) -> float | None:
    """A number of a question's usage. If it is missing: 0 if the usage has no number of that role,
    so that no request was made, else None (unknown)."""
    if name in usage:
        return usage[name]
    return None if any(item.startswith(_prefix(name)) for item in usage) else 0.0


def _prefix(name: str) -> str:
    """`judge_` of `judge_calls`; empty for a number of all roles."""
    return next((f"{role}_" for role in ROLES if name.startswith(f"{role}_")), "")


# Rounds. They are read as far as possible, because another version or somebody else may have
# written them. `soundingline.agents.literature.rounds` describes their fields.

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ScoredDocument:
    """What the rounds say of a document, the newest values: `verdict`, `score`, `rationale` and
    `passage` by the text of the requirement, the document's score, and the scorer's `probability`
    that it is relevant, with the `origin` of that number."""

    requirements: Mapping[str, Mapping[str, Any]]
    score: float | None = None
    probability: float | None = None
    origin: str = ""

    @property
    def passages(self) -> list[str]:
        """The distinct unit ids of the passages that the scores name."""
        named = (text_of(cell.get("passage")) for cell in self.requirements.values())
        return list(dict.fromkeys(filter(None, named)))


def checklist_of(row: Mapping[str, Any]) -> list[str]:
    """The requirements of a round."""
    return [text for text in items(row.get("checklist")) if isinstance(text, str)]


def last_checklist(rounds: Rows) -> list[str]:
    """The requirements of the last round that has any."""
    return next(filter(None, map(checklist_of, reversed(rounds))), [])


def scored_documents(rounds: Rows) -> dict[str, ScoredDocument]:
    """The scored documents by docid, in the order of their first appearance."""
    documents: dict[str, ScoredDocument] = {}
    for row in rounds:
        for docid, record in mapping(row.get("documents")).items():
            facts = mapping(record)
            cells = mapping(facts.get("requirements"))
            scored = {need: cell for need, cell in cells.items() if isinstance(cell, Mapping)}
            before = documents[docid].requirements if docid in documents else {}
            documents[docid] = ScoredDocument(
                {**before, **scored},
                number_of(facts.get("score")),
                number_of(facts.get("probability")),
                text_of(facts.get("origin")),
            )
    return documents


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """The items of a list; none for other values."""
    return list(value) if isinstance(value, list | tuple) else []


def text_of(value: Any) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number_of(value: Any) -> float | None:
    """The value if it is a number, else None."""
    return float(value) if is_number(value) else None
