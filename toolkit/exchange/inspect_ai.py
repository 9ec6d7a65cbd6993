"""Logs of Inspect AI, in and out: `.eval` files (zip archives with one member a sample) and `.json`
files, in version 2 of its format. The package `inspect_ai` is not needed: it brings 62 packages,
cannot write or read half a surrogate pair, which models emit, and keeps 1.6 GB in memory for 830
questions. An `.eval` file is read one sample at a time here (0.16 GB), a `.json` file at once (0.6
GB). `tests/integration` reads, scores and shows our logs with it and reads logs that it wrote."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field
from typing_extensions import Required, TypedDict

from soundingline.toolkit.benchmarks.formats import Id
from soundingline.toolkit.errors import InputError, is_number, parse
from soundingline.toolkit.exchange.transcript import (
    RECORD_KEY,
    ForeignCall,
    Message,
    Step,
    Transcript,
    chat_messages,
    edited_file,
    embed_record,
    extract_record,
    output_text,
)
from soundingline.toolkit.files import atomic_file, dump_json, read_json
from soundingline.toolkit.json_text import decode_json, try_json
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.trajectory import Trajectory

VERSION = 2
LARGEST = 1 << 29  # bytes of one sample
_ZSTANDARD = 93  # zip's number of the compression that Inspect prefers
_EPOCHS = 1_000_000  # more than any log has; folders of repeats have numbers of six digits
_LONG = 100  # characters above which a text of the pool is an attachment, as in Inspect
_ATTACHMENT = re.compile(r"attachment://([0-9a-f]{32})")
_NOT_IN_NAMES = re.compile(r"[_/:+]")
# Inspect reads names of models as `<provider>/<model>`, and loads the model to score a log. This
# provider needs neither a package nor a key.
_PROVIDER = "none/"
_LIMITS = {
    "time": "timed_out",
    "working": "timed_out",
    "token": "out_of_context",
    "context": "out_of_context",
    "message": "out_of_turns",
    "turn": "out_of_turns",
    "cost": "out_of_money",
}
_USAGE = {  # our name of a number, and theirs
    "output_tokens": "output_tokens",
    "cached_tokens": "input_tokens_cache_read",
    "reasoning_tokens": "reasoning_tokens",
    "dollars": "total_cost",
}
_SUMMARY = (
    "id",
    "epoch",
    "input",
    "target",
    "metadata",
    "scores",
    "model_usage",
    "role_usage",
    "started_at",
    "completed_at",
    "total_time",
)


# Writing.


def header(
    name: str,
    *,
    created: str,
    identity: str,
    benchmark: str,
    model: str,
    factors: Mapping[str, str],
    versions: Mapping[str, str],
    means: Mapping[str, float],
    sample_ids: Sequence[str],
) -> dict[str, Any]:
    """The log of a run without its samples.

    Args:
        name, benchmark, model: the names of the task, the benchmark and the language model.
        created: when the run was created, in ISO 8601.
        identity: an id of the run and its content.
        factors, versions, means: options, versions of packages, and means of measures, by name.
        sample_ids: Inspect reads samples one at a time by these ids.
    """
    scores = [
        {
            "name": measure,
            "scorer": measure,
            "params": {},
            "metrics": {"mean": {"name": "mean", "value": value, "params": {}}},
        }
        for measure, value in means.items()
    ]
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "eval_id": f"eval-{identity}",
            "run_id": f"run-{identity}",
            "created": created,
            "task": name,
            "task_id": identity,
            "task_version": 0,
            "task_args": dict(factors),
            "dataset": {
                "name": benchmark,
                "samples": len(sample_ids),
                "sample_ids": list(sample_ids),
            },
            "model": f"{_PROVIDER}{model}",
            "config": {},
            "packages": dict(versions),
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(sample_ids),
            "completed_samples": len(sample_ids),
            "scores": scores,
        },
        "stats": {"started_at": created, "completed_at": created, "model_usage": {}},
    }


def log_name(head: Mapping[str, Any], form: str) -> str:
    """The name of the file of a log, `<time>_<task>_<id>.<form>` with the form `eval` or `json`.
    Inspect lists a `.json` file in a folder only under such a name."""
    parts = (head["eval"][name] for name in ("created", "task", "task_id"))
    return f"{'_'.join(_NOT_IN_NAMES.sub('-', part) for part in parts)}.{form}"


def write(path: Path, head: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> int:
    """Write a log, whole or not at all, with one sample in memory at a time, and return the number
    of samples. The suffix `.json` selects that form, and any other one the `.eval` form. `head` is
    the result of `header`, and `samples` are those of `sample`."""
    write_samples = _write_json if path.suffix == ".json" else _write_eval
    with atomic_file(path) as stream:
        return write_samples(stream, head, samples)


def _write_eval(
    stream: BinaryIO, head: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
) -> int:
    summaries = []
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        start = {"version": VERSION, "eval": head["eval"], "plan": head["plan"]}
        archive.writestr("_journal/start.json", _compact(start))
        for row in samples:
            archive.writestr(f"samples/{row['id']}_epoch_{row['epoch']}.json", _compact(row))
            summary = {name: row[name] for name in _SUMMARY}
            if "error" in row:
                summary["error"] = row["error"]["message"]
            count = len(row["messages"])
            summaries.append({**summary, "completed": True, "message_count": count})
        archive.writestr("summaries.json", _compact(summaries))
        archive.writestr("header.json", _compact(head))
    return len(summaries)


def _write_json(
    stream: BinaryIO, head: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
) -> int:
    count = 0
    stream.write(_compact({**head, "samples": []}).rstrip("\n")[: -len("]}")].encode())
    for count, row in enumerate(samples, start=1):
        stream.write((b",\n" if count > 1 else b"\n") + _compact(row).encode())
    stream.write(b"\n]}\n")
    return count


def _compact(value: Any) -> str:
    return dump_json(value, indent=None)


def sample(
    trajectory: Trajectory, *, model: str, target: Sequence[str], scores: Mapping[str, float]
) -> dict[str, Any]:
    """The sample of a trajectory, with the accepted answers as its target and the value of each
    measure. `InputError` for messages that are not in the function-calling form."""
    model = f"{_PROVIDER}{model}"
    messages = sample_messages(trajectory)
    attachments: dict[str, str] = {}
    pool = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str) and len(content) > _LONG:
            name = hashlib.sha256(content.encode()).hexdigest()[:32]
            attachments[name] = content
            content = f"attachment://{name}"
        pool.append({**message, "content": content})
    outputs = [message["content"] for message in messages if message["role"] == "tool"]
    try:
        began = datetime.fromisoformat(trajectory.started)
    except ValueError:
        began = datetime.fromtimestamp(0, timezone.utc)
    began = began if began.tzinfo else began.replace(tzinfo=timezone.utc)
    row = {
        "id": trajectory.qid,
        "epoch": 1,
        "input": trajectory.question,
        "target": list(target),
        "messages": messages,
        "output": _output(model, messages[-1] if messages else {}),
        "scores": {
            name: {"value": value, "answer": trajectory.answer.exact, "history": []}
            for name, value in scores.items()
        },
        "metadata": {"status": trajectory.status, "reason": trajectory.reason},
        "store": {RECORD_KEY: embed_record(trajectory, outputs)},
        "events": _events(trajectory, model, messages, pool, began),
        "model_usage": _model_usage(trajectory, model),
        "role_usage": {},
        "started_at": began.isoformat(),
        "completed_at": (began + timedelta(seconds=trajectory.seconds)).isoformat(),
        "total_time": trajectory.seconds,
    }
    if trajectory.status == "failed":
        text = trajectory.traceback
        last = (text.strip().splitlines() or [trajectory.reason])[-1]
        row["error"] = {"message": last, "traceback": text, "traceback_ansi": text}
    return {**row, "attachments": attachments, "events_data": {"messages": pool, "calls": []}}


def sample_messages(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The messages of a trajectory as Inspect's chat messages."""
    rows: list[dict[str, Any]] = []
    functions: dict[str, str] = {}
    records = iter(trajectory.calls)
    for number, message in enumerate(chat_messages(trajectory)):
        role, content = message.get("role"), str(message.get("content") or "")
        row: dict[str, Any] = {"id": f"{trajectory.qid}-{number}", "content": content}
        if role == "assistant":
            row |= {"source": "generate", "role": "assistant"}
            if message.get("reasoning"):
                thought = {"type": "reasoning", "reasoning": message["reasoning"]}
                text = [{"type": "text", "text": content}] if content else []
                row["content"] = [{**thought, "redacted": False}, *text]
            calls = []
            for call in message.get("tool_calls") or ():
                function = call["function"]
                arguments = try_json(function["arguments"] or "{}")
                shared = {"id": call["id"], "function": function["name"], "type": "function"}
                if isinstance(arguments, dict):
                    calls.append({**shared, "arguments": arguments})
                else:
                    error = str(function["arguments"])
                    calls.append({**shared, "arguments": {}, "parse_error": error})
            functions |= {call["id"]: call["function"] for call in calls}
            row |= {"tool_calls": calls} if calls else {}
        elif role == "tool":
            called = str(message.get("tool_call_id"))
            row |= {"role": "tool", "tool_call_id": called, "function": functions.get(called, "")}
            record = next(records, None)
            if record and record.error:
                row["error"] = {"type": "unknown", "message": record.error}
        else:
            row["role"] = role if role in ("system", "user") else "user"
        rows.append(row)
    return rows


def _model_usage(trajectory: Trajectory, model: str) -> dict[str, dict[str, float]]:
    """The tokens as Inspect counts them: cached tokens are not part of its input tokens."""
    usage = trajectory.usage
    if "input_tokens" not in usage or "output_tokens" not in usage:
        return {}
    row: dict[str, float] = {
        "input_tokens": int(usage["input_tokens"] - usage.get("cached_tokens", 0)),
        "total_tokens": int(usage["input_tokens"] + usage["output_tokens"]),
    }
    for ours, theirs in _USAGE.items():
        if ours in usage:
            row[theirs] = usage[ours] if ours == "dollars" else int(usage[ours])
    return {model: row}


def _events(
    trajectory: Trajectory,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    pool: Sequence[Mapping[str, Any]],
    began: datetime,
) -> list[dict[str, Any]]:
    """One event a reply and one a tool call, for the viewer's Transcript tab. A reply refers to the
    messages that were sent by their numbers in the pool; otherwise a log would contain every text
    once a turn. Only the seconds of tools are recorded; the times are those of a model that replies
    at once."""
    events: list[dict[str, Any]] = []
    seconds = 0.0
    calls = {row["id"]: row for message in messages for row in message.get("tool_calls", ())}
    records = iter(trajectory.calls)
    for number, message in enumerate(messages):
        event: dict[str, Any] = {
            "uuid": f"{message['id']}-event",
            "timestamp": (began + timedelta(seconds=seconds)).isoformat(),
            "working_start": seconds,
        }
        if message["role"] == "assistant":
            event |= {
                "event": "model",
                "model": model,
                "input": [],
                "input_refs": [[0, number]] if number else [],  # half-open ranges of the pool
                "tools": [],
                "tool_choice": "auto",
                "config": {},
                "output": _output(model, pool[number]),
            }
        elif message["role"] == "tool":
            record = next(records, None)
            call = calls.get(message["tool_call_id"], {})
            event |= {
                "event": "tool",
                "type": "function",
                "id": message["tool_call_id"],
                "function": call.get("function", message["function"]),
                "arguments": call.get("arguments", {}),
                "result": message["content"],  # Inspect does not resolve attachments here.
                **({"error": message["error"]} if "error" in message else {}),
                "events": [],
                "working_time": record.seconds if record else 0.0,
                "message_id": message["id"],
            }
            seconds += event["working_time"]
        else:
            continue
        events.append(event)
    return events


def _output(model: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") != "assistant":
        return {"model": model, "choices": [], "completion": ""}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    content = message["content"]
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return {
        "model": model,
        "choices": [{"message": dict(message), "stop_reason": reason}],
        "completion": "".join(parts),
    }


# Reading.


class _Call(TypedDict, total=False):
    id: str
    function: Required[str]
    arguments: Any


class _Message(TypedDict, total=False):
    role: str
    content: Any
    tool_calls: list[_Call] | None
    tool_call_id: str | None
    error: Any


class _Sample(TypedDict, total=False):
    id: Required[Annotated[Id, Field(pattern=r"\S")]]
    epoch: Annotated[int, Field(strict=True, ge=1, lt=_EPOCHS)]
    input: Any
    messages: list[dict[str, Any]] | None
    attachments: dict[str, Any] | None
    scores: dict[str, Any] | None
    model_usage: dict[str, Any] | None
    total_time: Annotated[float, Field(strict=True)] | None
    started_at: str | None
    limit: dict[str, Any] | None
    error: Any


class _JsonLog(TypedDict, total=False):
    samples: list[dict[str, Any]] | None


def read(path: Path) -> Iterator[Transcript | Trajectory]:
    """The samples of a log, one at a time: a trajectory of what we wrote, otherwise a transcript.
    `InputError` for a file that is not a log or is damaged."""
    samples = _zipped_samples if zipfile.is_zipfile(path) else _json_samples
    for location, content in samples(path):
        store = content.get("store")
        if isinstance(store, dict) and RECORD_KEY in store:
            row = parse(_Sample, dict(content), where=location)
            messages = row.get("messages") or []
            outputs = [str(each.get("content")) for each in messages if each.get("role") == "tool"]
            trajectory = extract_record(location, store[RECORD_KEY], outputs)
            again = json.loads(dump_json(sample_messages(trajectory)))
            ours = trajectory.qid, 1, again
            if ours != (row["id"], row.get("epoch", 1), messages):
                raise edited_file(location)
            yield trajectory
        else:
            yield transcript(location, content)


def transcript(location: str, content: Mapping[str, Any]) -> Transcript:
    """The transcript of a sample that we did not write. `location` is for error messages."""
    row = parse(_Sample, dict(content), where=location)
    resolved = _resolved(row.get("messages") or [], row.get("attachments") or {})
    messages = parse(list[_Message], resolved, where=f"{location}, messages")
    usage, scores = row.get("model_usage") or {}, row.get("scores") or {}
    limit = (row.get("limit") or {}).get("type")
    status = _LIMITS.get(str(limit), "out_of_turns") if limit else "completed"
    status = "failed" if row.get("error") is not None else status
    return Transcript(
        qid=row["id"],
        steps=list(_steps(messages)),
        status=status,
        usage=_summed_usage(usage),
        seconds=float(row.get("total_time") or 0.0),
        started=row.get("started_at") or "",
        question=_input_text(row.get("input")),
        repeat=row.get("epoch", 1),
        source={
            "format": "inspect",
            "file": location,
            "status": status,
            "models": list(usage),
            "scores": {k: v.get("value") for k, v in scores.items() if isinstance(v, dict)},
        },
    )


def _input_text(value: Any) -> str:
    """The text of a sample's input, which is a text or a list of chat messages."""
    if isinstance(value, str):
        return value
    messages = value if isinstance(value, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(map(output_text, contents))


def _resolved(value: Any, attachments: Mapping[str, Any], levels: int = 8) -> Any:
    """A value with the texts of attachments in place of references to them."""
    if isinstance(value, str):
        return _ATTACHMENT.sub(lambda match: str(attachments.get(match[1], match[0])), value)
    if isinstance(value, dict) and levels:
        return {k: _resolved(inner, attachments, levels - 1) for k, inner in value.items()}
    if isinstance(value, list) and levels:
        return [_resolved(inner, attachments, levels - 1) for inner in value]
    return value


def _steps(messages: Sequence[_Message]) -> Iterator[Step]:
    results = {row.get("tool_call_id"): row for row in messages if row.get("role") == "tool"}
    for message in messages:
        if message.get("role") != "assistant":
            continue
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            part = {"text": part} if isinstance(part, str) else part
            if isinstance(part, dict) and isinstance(part.get("reasoning"), str):
                yield Message(part["reasoning"], reasoning=True)
            elif isinstance(part, dict) and part.get("text") and isinstance(part["text"], str):
                yield Message(part["text"])
        for call in message.get("tool_calls") or ():
            arguments, result = call.get("arguments"), results.get(call.get("id", ""))
            answer = arguments.get("answer") if isinstance(arguments, dict) else None
            if call["function"] == "submit" and isinstance(answer, str):
                yield Message(answer)  # Inspect's own agents end so.
                continue
            output = result.get("content") if result else None
            if isinstance(output, list):
                output = [part for part in output if isinstance(part, dict) and "text" in part]
            error = "tool_error" if result and result.get("error") else ""
            yield ForeignCall(call["function"], arguments, output, error)


def _summed_usage(models: Mapping[str, Any]) -> dict[str, float]:
    """The tokens of all models as we count them. An impossible number makes a sum NaN, which is
    unknown."""
    sums: dict[str, float] = {}
    for row in models.values():
        if not isinstance(row, dict):
            continue
        values = {
            name: value if is_number(value) and value >= 0 else math.nan
            for name, value in row.items()
            if value is not None
        }
        inputs = ("input_tokens", "input_tokens_cache_read", "input_tokens_cache_write")
        counted = {"input_tokens": sum(values.get(name, 0) for name in inputs)}
        for ours, theirs in _USAGE.items():
            if theirs in values or ours != "dollars":
                counted[ours] = values.get(theirs, 0)
        for name, value in counted.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def _zipped_samples(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            members = [row for row in archive.infolist() if row.filename.startswith("samples/")]
            if not members:
                raise InputError(f"{path} contains no samples", valid="a log of Inspect AI")
            for member in members:
                location = f"{path}, {member.filename}"
                if member.file_size > LARGEST:
                    raise InputError(
                        f"{location} has {member.file_size:,} bytes", valid=f"at most {LARGEST:,}"
                    )
                packed = member.compress_type == _ZSTANDARD
                text = _unpacked(stream, member) if packed else archive.read(member)
                content = decode_json(text)
                if not isinstance(content, dict):
                    raise InputError(f"{location} is not a sample")
                yield location, content
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, OSError) as error:
        raise InputError(f"{path} is not a complete log: {error}", do="copy it again") from None
    except (ValueError, EOFError, struct.error) as error:
        raise InputError(f"{path} is damaged: {str(error)[:200]}", do="copy it again") from None


def _unpacked(stream: BinaryIO, member: zipfile.ZipInfo) -> bytes:
    """A member that is compressed by Zstandard, which Python's zipfile reads since 3.14."""
    zstandard = import_optional("zstandard")
    stream.seek(member.header_offset)
    head = stream.read(30)
    names, extra = struct.unpack("<HH", head[26:30])
    stream.seek(names + extra, 1)
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(stream.read(member.compress_size))
        content: bytes = reader.read(LARGEST + 1)
    except zstandard.ZstdError as error:
        raise ValueError(f"{member.filename}: {error}") from None
    if len(content) != member.file_size:
        raise ValueError(f"{member.filename} is not complete")
    return content


def _json_samples(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    log = read_json(path, _JsonLog, do="copy it again")
    if not log.get("samples"):
        raise InputError(
            f"{path} contains no samples", valid="a log of Inspect AI, .eval or .json, with samples"
        )
    for number, content in enumerate(log["samples"], start=1):
        yield f"{path}, sample {number}", content
