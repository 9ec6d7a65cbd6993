"""Trajectories as JSON text and back.

The `surfaced` tier is left out of the file wherever it follows from the calls' rankings (it always
does when our own search tool recorded it): a question with thirty rankings of a thousand documents
would otherwise carry every id twice. It is derived again on reading.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.contracts import (
    RUN_OUT_OF_MONEY,
    STATUSES,
    TIERS,
    Answer,
    Exposure,
    ToolCall,
    Trajectory,
    parents,
)
from toolkit.errors import InputError
from toolkit.files import dump_json
from toolkit.sealing import open_line, read_text

FORMAT = 1
SEARCHES = ("search", "grep")  # tools of ours that search, by name
NO_FORMAT = "no_format"  # marks a final message without an answer in the format asked for
_NUMBER = (int, float)
_TRAJECTORY_TYPES: dict[str, Any] = {
    "qid": str,
    "question": str,
    "status": str,
    "answer": dict,
    "usage": dict,
    "started": str,
    "seconds": _NUMBER,
    "traceback": str,
    "exposures": list,
    "calls": list,
    "messages": list,
}
_CALL_TYPES: dict[str, Any] = {
    "name": str,
    "arguments": dict,
    "output": str,
    "error": str,
    "seconds": _NUMBER,
    "tokens": int,
    "ranking": list,
    "shown": list,
}
_ANSWER_TYPES: dict[str, Any] = {
    "explanation": str,
    "exact": str,
    "confidence": (int, float, type(None)),
    "citations": list,
}
# The file up to `reason`, and its end, as `dump_trajectory` writes them.
_HEAD_LINES = 6
_LAST = b"}"
_TAIL = 64  # bytes at the end of a file, which hold its last line, sealed or not


class Outcome(NamedTuple):
    """How a question ended."""

    qid: str
    status: str
    reason: str

    @property
    def well(self) -> bool:
        """Whether it had its chance: it did not fail, and was not cut short by its run's end."""
        return self.status != "failed" and self.reason != RUN_OUT_OF_MONEY


def surfaced(calls: Iterable[ToolCall]) -> tuple[str, ...]:
    """Documents of all rankings, each once, in order of first appearance."""
    units = tuple(dict.fromkeys(chain.from_iterable(call.ranking for call in calls)))
    return tuple(dict.fromkeys(parents(units)))


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as JSON values, keys in a fixed order, small fields before large ones."""
    return {
        "format": FORMAT,
        "qid": trajectory.qid,
        "question": trajectory.question,
        "status": trajectory.status,
        "reason": trajectory.reason,
        "answer": _answer_row(trajectory.answer),
        "started": trajectory.started,
        "seconds": trajectory.seconds,
        "usage": dict(trajectory.usage),
        "traceback": trajectory.traceback,
        "warnings": list(trajectory.warnings),
        **({"source": dict(trajectory.source)} if trajectory.source else {}),
        **({"rounds": [dict(row) for row in trajectory.rounds]} if trajectory.rounds else {}),
        "tiers": _stored_tiers(trajectory),
        "exposures": [exposure_row(exposure) for exposure in trajectory.exposures],
        "calls": [call_row(call) for call in trajectory.calls],
        "messages": [dict(message) for message in trajectory.messages],
    }


def from_record(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory that `to_record` was given. Sequences come back as tuples; messages and
    arguments as JSON has them. `ValueError` where a field is absent or of a wrong type."""
    _check(record, _TRAJECTORY_TYPES, "trajectory")
    if record.get("format") != FORMAT:
        raise ValueError(f"format is {record.get('format')!r}, this version reads {FORMAT}")
    if record["status"] not in STATUSES:
        raise ValueError(f"status is {record['status']!r}")
    calls = tuple(call_of(call) for call in record["calls"])
    _check(record["answer"], _ANSWER_TYPES, "answer")
    _check({"documents": record["answer"].get("documents", [])}, {"documents": list}, "answer")
    optional = {"source": record.get("source", {}), "rounds": record.get("rounds", [])}
    _check(optional, {"source": dict, "rounds": list}, "trajectory")
    lists = {name: tuple(record["answer"].get(name, ())) for name in ("citations", "documents")}
    answer = {**record["answer"], **lists}
    return Trajectory(
        qid=record["qid"],
        question=record["question"],
        status=record["status"],
        answer=Answer(**answer),
        messages=tuple(record["messages"]),
        calls=calls,
        tiers=_read_tiers(record.get("tiers"), calls),
        exposures=tuple(exposure_of(row) for row in record["exposures"]),
        usage=record["usage"],
        started=record["started"],
        seconds=record["seconds"],
        traceback=record["traceback"],
        reason=str(record.get("reason", "")),
        warnings=tuple(map(str, record.get("warnings", ()))),
        source=record.get("source", {}),
        rounds=tuple(record.get("rounds", ())),
    )


def final_message(trajectory: Trajectory) -> Mapping[str, Any] | None:
    """The agent's last message with a text, behind which no tool has answered; None without one."""
    for message in reversed(trajectory.messages):
        if message.get("role") != "assistant":
            return None
        if message.get("content"):
            return message
    return None


def final_response(trajectory: Trajectory) -> str:
    """The text of the final answer as the agent wrote it; empty where it ended without one."""
    message = final_message(trajectory)
    answered = bool(trajectory.answer.explanation or trajectory.answer.exact)
    return str(message["content"]) if answered and message else ""


def dump_trajectory(trajectory: Trajectory) -> str:
    """JSON text with one line a field, and one line a call, message and exposure, so that `grep`,
    `less` and `diff` work on it. Equal trajectories give equal text."""
    lines = ",\n".join(
        f"{_compact(key)}: {_by_line(value)}" for key, value in to_record(trajectory).items()
    )
    return f"{{\n{lines}\n}}\n"


def read_trajectory(path: Path) -> Trajectory:
    """The trajectory in a file; `InputError` naming the file where it is absent or damaged."""
    try:
        return from_record(json.loads(read_text(path)))
    except OSError as error:
        raise InputError(f"cannot read the trajectory {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is not a complete trajectory: {error}",
            valid="a file that a run of this version wrote",
            do="delete the file and run again; its question will be asked anew",
        ) from error


def read_outcome(path: Path) -> Outcome:
    """How a question ended, from the first lines of a file whose last line is there too.
    `InputError` as from `read_trajectory`. Resuming asks this of every file, and whole
    trajectories of long questions take long to read."""
    try:
        with path.open("rb") as stream:
            lines = [stream.readline().rstrip(b"\n") for _ in range(_HEAD_LINES)]
            stream.seek(-_TAIL, os.SEEK_END)
            *_, last, rest = stream.read().split(b"\n")
        complete = not rest and open_line(last, path) == _LAST
        head = b"\n".join(open_line(line, path) for line in lines)
        record = json.loads(head.rstrip(b",\n") + b"}")
        if complete and record["format"] == FORMAT and record["status"] in STATUSES:
            return Outcome(str(record["qid"]), record["status"], str(record.get("reason", "")))
    except (OSError, ValueError, TypeError, KeyError):
        pass  # The whole reading says what is wrong, or makes sense of another layout.
    trajectory = read_trajectory(path)
    return Outcome(trajectory.qid, trajectory.status, trajectory.reason)


def _row(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}


def _answer_row(answer: Answer) -> dict[str, Any]:
    """Without documents where there are none: files of runs from before there were any hold the
    same."""
    row = _row(answer)
    if not answer.documents:
        del row["documents"]
    return row


def call_row(call: ToolCall) -> dict[str, Any]:
    """A call as JSON values, without notes where there are none: files of runs before there were
    any hold the same."""
    row = _row(call)
    if not call.notes:
        del row["notes"]
    return row


def _stored_tiers(trajectory: Trajectory) -> dict[str, Any]:
    tiers: dict[str, Any] = {tier: trajectory.tiers.get(tier) for tier in TIERS}
    if tiers["surfaced"] is not None and tuple(tiers["surfaced"]) == surfaced(trajectory.calls):
        del tiers["surfaced"]
    return tiers


def _read_tiers(stored: Any, calls: Sequence[ToolCall]) -> dict[str, tuple[str, ...]]:
    if not isinstance(stored, Mapping) or not set(stored) <= set(TIERS):
        raise ValueError(f"tiers must be among {', '.join(TIERS)}")
    derived = {"surfaced": surfaced(calls)} if "surfaced" not in stored else {}
    read = {tier: tuple(docids) for tier, docids in stored.items() if docids is not None}
    return {**derived, **read}


def call_of(record: Any) -> ToolCall:
    """The call that `call_row` was given; `ValueError` where it is none."""
    _check(record, _CALL_TYPES, "call")
    _check({"notes": record.get("notes", {})}, {"notes": dict}, "call")
    return ToolCall(
        **{**record, "ranking": tuple(record["ranking"]), "shown": tuple(record["shown"])}
    )


def exposure_row(exposure: Exposure) -> list[Any]:
    """An exposure as JSON values, without a layer where none is told, as in files of runs before
    there were any."""
    return list(exposure) if exposure.layer else list(exposure[:-1])


def exposure_of(row: Any) -> Exposure:
    """The exposure that `exposure_row` was given; `ValueError` where it is none."""
    exposure = Exposure(*row)
    if exposure.tier not in TIERS:
        raise ValueError(f"exposure tier is {exposure.tier!r}")
    return exposure


def _check(record: Any, types: Mapping[str, Any], what: str) -> None:
    if not isinstance(record, Mapping):
        raise ValueError(f"the {what} is not an object")
    for name, valid in types.items():
        if name not in record:
            raise ValueError(f"the {what} has no {name!r}")
        if not isinstance(record[name], valid):
            raise ValueError(f"{name!r} of the {what} is {type(record[name]).__name__}")


def _compact(value: Any) -> str:
    return dump_json(value, indent=None).rstrip("\n")


def _by_line(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(_compact(item) for item in value) + "\n]"
    return _compact(value)
