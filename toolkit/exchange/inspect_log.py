"""Logs of Inspect AI: `.eval` (a zip file with one member a sample) and `.json`, in and out.

Written without `inspect_ai`, by the documented layout of version 2 of its logs; `inspect view` and
`read_eval_log` read them. Logs of others become transcripts: their messages, tool calls and usage.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.contracts import Trajectory
from toolkit.errors import InputError
from toolkit.exchange.inspect_samples import sample_messages
from toolkit.exchange.json_stream import items_of
from toolkit.exchange.own import KEY, changed, restored
from toolkit.exchange.run_files import LARGEST, RunFile
from toolkit.exchange.transcript import Call, Reasoning, Said, Step, Transcript
from toolkit.extras import require
from toolkit.files import dump_json, file_made_whole

VERSION = 2
_ZSTANDARD = 93  # zip's number of the compression that Inspect prefers
_ATTACHMENT = re.compile(r"attachment://([0-9a-f]{32})")
_LIMITS = {
    "time": "timed_out",
    "working": "timed_out",
    "token": "out_of_context",
    "context": "out_of_context",
    "message": "out_of_turns",
    "turn": "out_of_turns",
    "cost": "out_of_money",
}


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
    samples: int,
) -> dict[str, Any]:
    """A log without its samples. `name` is the task's; `identity` is unique to the run and what it
    holds; `means` are scores over all questions."""
    metrics = {
        measure: {"mean": {"name": "mean", "value": value, "params": {}}}
        for measure, value in means.items()
    }
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "eval_id": f"eval-{identity}",
            "run_id": f"run-{identity}",
            "created": created,
            "task": name,
            "task_id": f"task-{identity}",
            "task_version": 0,
            "task_args": dict(factors),
            "dataset": {"name": benchmark, "samples": samples},
            "model": model,
            "config": {},
            "packages": dict(versions),
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": samples,
            "completed_samples": samples,
            "scores": [
                {"name": measure, "scorer": measure, "params": {}, "metrics": rows}
                for measure, rows in metrics.items()
            ],
        },
        "stats": {"started_at": created, "completed_at": created, "model_usage": {}},
    }


def write_eval(path: Path, head: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> int:
    """Write a `.eval` log, whole or not at all, and count its samples."""
    summaries = []
    with (
        file_made_whole(path) as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        start = {"version": VERSION, "eval": head["eval"], "plan": head["plan"]}
        archive.writestr("_journal/start.json", _compact(start))
        for row in samples:
            archive.writestr(f"samples/{row['id']}_epoch_{row['epoch']}.json", _compact(row))
            summaries.append(_summary(row))
        archive.writestr("summaries.json", _compact(summaries))
        archive.writestr("header.json", _compact(head))
    return len(summaries)


def write_json_log(
    path: Path, head: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
) -> int:
    """Write a `.json` log, whole or not at all, one line a sample, and count them."""
    count = 0
    with file_made_whole(path) as stream:
        stream.write(_open(head))
        for count, row in enumerate(samples, start=1):
            stream.write((b",\n" if count > 1 else b"\n") + _compact(row).encode())
        stream.write(b"\n]}\n")
    return count


def read(path: Path) -> Iterator[Transcript | Trajectory]:
    """Each sample of a log: a trajectory where we wrote it, else its transcript. `InputError` where
    it is no log, or holds several epochs."""
    for location, content in _samples(path):
        file = RunFile(location, content)
        if content.get("epoch", 1) != 1:
            raise InputError(
                f"{location} is epoch {str(content['epoch'])[:20]} of its question",
                valid="a log with one epoch",
                do="import each epoch as a run of its own",
            )
        store = file.get("store", dict, {})
        yield _ours(file, store[KEY]) if KEY in store else transcript(file)


def transcript(file: RunFile) -> Transcript:
    """The transcript of a foreign sample."""
    attachments = file.get("attachments", dict, {})
    messages = [_resolved(message, attachments) for message in file.objects("messages")]
    seconds, scores = file.get("total_time", (float, int), 0.0), file.get("scores", dict, {})
    values = {name: row.get("value") for name, row in scores.items() if isinstance(row, dict)}
    status = _status(file)
    return Transcript(
        qid=file.qid("id"),
        steps=list(_steps(file.place, messages)),
        status=status,
        usage=_usage(file.get("model_usage", dict, {})),
        seconds=float(seconds),
        started=file.get("started_at", str, ""),
        source={
            "format": "inspect",
            "file": file.place,
            "status": status,
            "models": list(file.get("model_usage", dict, {})),
            "scores": values,
        },
    )


def _ours(file: RunFile, own_record: Any) -> Trajectory:
    messages = file.objects("messages")
    outputs = [str(row.get("content")) for row in messages if row.get("role") == "tool"]
    trajectory = restored(file.place, own_record, outputs)
    again = json.loads(dump_json(sample_messages(trajectory)))
    if file.content.get("id") != trajectory.qid or again != messages:
        raise changed(file.place)
    return trajectory


def _status(file: RunFile) -> str:
    if file.content.get("error") is not None:
        return "failed"
    limit = file.get("limit", dict, {}).get("type")
    return _LIMITS.get(str(limit), "out_of_turns") if limit else "completed"


def _steps(location: str, messages: list[dict[str, Any]]) -> Iterator[Step]:
    results = {
        row["tool_call_id"]: row
        for row in messages
        if row.get("role") == "tool" and isinstance(row.get("tool_call_id"), str)
    }
    for message in messages:
        if message.get("role") != "assistant":
            continue
        yield from _said(message.get("content"))
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
            raise InputError(f"{location} has 'tool_calls' that are no calls of functions")
        for call in calls:
            arguments, result = call.get("arguments"), results.get(call.get("id", ""))
            answer = arguments.get("answer") if isinstance(arguments, dict) else None
            if call["function"] == "submit" and isinstance(answer, str):
                yield Said(answer)  # how Inspect's own agents end
                continue
            error = "tool_error" if result and result.get("error") else ""
            output = _output(result.get("content")) if result else None
            yield Call(call["function"], arguments, output, error)


def _said(content: Any) -> Iterator[Step]:
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if isinstance(part, str) and part:
            yield Said(part)
        elif isinstance(part, dict) and isinstance(part.get("reasoning"), str):
            yield Reasoning(part["reasoning"])
        elif isinstance(part, dict) and part.get("text") and isinstance(part["text"], str):
            yield Said(part["text"])


def _output(content: Any) -> Any:
    """A tool's result: its text parts alone are text."""
    if isinstance(content, list):
        return [part for part in content if isinstance(part, dict) and "text" in part]
    return content


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and isinstance(call.get("function"), str)
        and isinstance(call.get("id", ""), str)
    )


def _usage(models: Mapping[str, Any]) -> dict[str, float]:
    """Tokens of all models, in our counting."""
    sums: dict[str, float] = {}
    for row in models.values():
        if not isinstance(row, dict):
            continue
        values = {k: v for k, v in row.items() if isinstance(v, (int, float))}
        cached = values.get("input_tokens_cache_read", 0)
        written = values.get("input_tokens_cache_write", 0)
        counted = {
            "input_tokens": values.get("input_tokens", 0) + cached + written,
            "output_tokens": values.get("output_tokens", 0),
            "cached_tokens": cached,
            "reasoning_tokens": values.get("reasoning_tokens", 0),
        }
        counted |= {"dollars": values["total_cost"]} if "total_cost" in values else {}
        for name, value in counted.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def _resolved(value: Any, attachments: Mapping[str, Any], levels: int = 8) -> Any:
    """With the texts of attachments in their places."""
    if isinstance(value, str):
        return _ATTACHMENT.sub(lambda match: str(attachments.get(match[1], match[0])), value)
    if isinstance(value, dict) and levels:
        return {k: _resolved(inner, attachments, levels - 1) for k, inner in value.items()}
    if isinstance(value, list) and levels:
        return [_resolved(inner, attachments, levels - 1) for inner in value]
    return value


def _samples(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if zipfile.is_zipfile(path):
        yield from _members(path)
        return
    number = 0
    for number, content in enumerate(items_of(path, "samples"), start=1):
        if not isinstance(content, dict):
            raise InputError(f"{path} has a sample {number} that is no object")
        yield f"{path}, sample {number}", content
    if not number:
        raise InputError(
            f"{path} holds no samples", valid="a log of Inspect AI, .eval or .json, with samples"
        )


def _members(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            members = [row for row in archive.infolist() if row.filename.startswith("samples/")]
            if not members:
                raise InputError(f"{path} holds no samples", valid="a whole log of Inspect AI")
            for member in members:
                location = f"{path}, {member.filename}"
                if member.file_size > LARGEST:
                    raise InputError(
                        f"{location} has {member.file_size:,} bytes", valid=f"{LARGEST:,}"
                    )
                packed = member.compress_type == _ZSTANDARD
                text = _unpacked(stream, member) if packed else archive.read(member)
                content = json.loads(text)
                if not isinstance(content, dict):
                    raise InputError(f"{location} is no sample")
                yield location, content
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, OSError) as error:
        raise InputError(f"{path} is no whole log: {error}", do="copy it again") from None
    except (ValueError, RecursionError, EOFError, struct.error) as error:
        raise InputError(f"{path} is damaged: {str(error)[:200]}", do="copy it again") from None


def _unpacked(stream: BinaryIO, member: zipfile.ZipInfo) -> bytes:
    """A member that Python's zipfile cannot read before 3.14."""
    zstandard = require("zstandard")
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
        raise ValueError(f"{member.filename} is not whole")
    return content


def _summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the viewer lists of a sample."""
    names = ("id", "epoch", "input", "target", "metadata", "scores", "model_usage", "role_usage")
    error = {"error": row["error"]["message"]} if "error" in row else {}
    return {
        **{name: row[name] for name in names},
        "started_at": row["started_at"],
        "completed_at": row["completed_at"],
        "total_time": row["total_time"],
        **error,
        "completed": True,
        "message_count": len(row["messages"]),
    }


def _open(head: Mapping[str, Any]) -> bytes:
    """The log up to its first sample."""
    text = _compact({**head, "samples": []})
    return text.rstrip("\n")[: -len("]}")].encode()


def _compact(value: Any) -> str:
    return dump_json(value, indent=None)
