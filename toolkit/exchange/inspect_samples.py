"""Samples of Inspect AI's logs: one trajectory as messages, events, scores and usage.

The Messages tab of its viewer shows `messages`, the Transcript tab `events`. Each model event names
the messages that it was sent by their numbers in a pool (`events_data`), whose long texts are
attachments; otherwise a long transcript would hold every text once a turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from toolkit.contracts import ToolCall, Trajectory
from toolkit.exchange.own import KEY, kept_beside

_ATTACHED = 100  # characters above which a text of the pool is an attachment, as in Inspect
_NAMES = {
    "output_tokens": "output_tokens",
    "cached_tokens": "input_tokens_cache_read",
    "reasoning_tokens": "reasoning_tokens",
    "dollars": "total_cost",
}


def sample(
    trajectory: Trajectory,
    *,
    model: str,
    target: Sequence[str],
    scores: Mapping[str, float],
) -> dict[str, Any]:
    """The sample of a trajectory. `target` are the accepted answers; `scores` values by measure."""
    messages = sample_messages(trajectory)
    attachments: dict[str, str] = {}
    pool = [_with_attachments(message, attachments) for message in messages]
    outputs = [message["content"] for message in messages if message["role"] == "tool"]
    began = _time(trajectory.started)
    return {
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
        "store": {KEY: kept_beside(trajectory, outputs)},
        "events": _events(trajectory, model, messages, pool, began),
        "model_usage": usage(trajectory, model),
        "role_usage": {},
        "started_at": began.isoformat(),
        "completed_at": (began + timedelta(seconds=trajectory.seconds)).isoformat(),
        "total_time": trajectory.seconds,
        **({"error": _error(trajectory)} if trajectory.status == "failed" else {}),
        "attachments": attachments,
        "events_data": {"messages": pool, "calls": []},
    }


def sample_messages(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The transcript as Inspect's chat messages."""
    rows: list[dict[str, Any]] = []
    functions: dict[str, str] = {}
    records = iter(trajectory.calls)
    for number, message in enumerate(trajectory.messages):
        role, content = message.get("role"), str(message.get("content") or "")
        row: dict[str, Any] = {"id": f"{trajectory.qid}-{number}", "content": content}
        if role == "assistant":
            row |= {"source": "generate", "role": "assistant"}
            if message.get("reasoning"):
                thought = {"type": "reasoning", "reasoning": message["reasoning"]}
                text = [{"type": "text", "text": content}] if content else []
                row["content"] = [{**thought, "redacted": False}, *text]
            calls = [_tool_call(call) for call in message.get("tool_calls", ())]
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


def usage(trajectory: Trajectory, model: str) -> dict[str, dict[str, float]]:
    """Tokens as Inspect counts them: its input leaves out what came from a cache."""
    known = trajectory.usage
    if "input_tokens" not in known or "output_tokens" not in known:
        return {}
    row = {theirs: known[ours] for ours, theirs in _NAMES.items() if ours in known}
    total = known["input_tokens"] + known["output_tokens"]
    fresh = known["input_tokens"] - known.get("cached_tokens", 0)
    tokens = {name: int(value) for name, value in row.items() if name != "total_cost"}
    row = {"input_tokens": int(fresh), "total_tokens": int(total), **row, **tokens}
    return {model: row}


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = None
    row = {"id": call["id"], "function": function["name"], "type": "function"}
    if isinstance(arguments, dict):
        return {**row, "arguments": arguments}
    return {**row, "arguments": {}, "parse_error": str(function["arguments"])}


def _with_attachments(message: Mapping[str, Any], attachments: dict[str, str]) -> dict[str, Any]:
    content = message["content"]
    if not isinstance(content, str) or len(content) <= _ATTACHED:
        return dict(message)
    name = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:32]
    attachments[name] = content
    return {**message, "content": f"attachment://{name}"}


def _events(
    trajectory: Trajectory,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    pool: Sequence[Mapping[str, Any]],
    began: datetime,
) -> list[dict[str, Any]]:
    """One event a reply and one a tool call. Only the seconds of tools are on record, so that times
    are those of a model that takes none."""
    events: list[dict[str, Any]] = []
    seconds = 0.0
    calls = {row["id"]: row for message in messages for row in message.get("tool_calls", ())}
    records = iter(trajectory.calls)
    for number, message in enumerate(messages):
        event = {
            "uuid": f"{message['id']}-event",
            "timestamp": (began + timedelta(seconds=seconds)).isoformat(),
            "working_start": seconds,
        }
        if message["role"] == "assistant":
            sent = [[0, number]] if number else []
            events.append(event | _reply(model, pool[number], sent))
        elif message["role"] == "tool":
            record = next(records, None)
            call = calls.get(message["tool_call_id"], {})
            events.append(event | _tool_event(message, call, record))
            seconds += record.seconds if record else 0.0
    return events


def _reply(model: str, message: Mapping[str, Any], sent: list[list[int]]) -> dict[str, Any]:
    """`sent`: half-open ranges of the pool."""
    return {
        "event": "model",
        "model": model,
        "input": [],
        "input_refs": sent,
        "tools": [],
        "tool_choice": "auto",
        "config": {},
        "output": _output(model, message),
    }


def _tool_event(
    message: Mapping[str, Any], call: Mapping[str, Any], record: ToolCall | None
) -> dict[str, Any]:
    failure = {"error": message["error"]} if "error" in message else {}
    return {
        "event": "tool",
        "type": "function",
        "id": message["tool_call_id"],
        "function": call.get("function", message["function"]),
        "arguments": call.get("arguments", {}),
        "result": message["content"],  # inspect_ai resolves no attachment here
        **failure,
        "events": [],
        "working_time": record.seconds if record else 0.0,
        "message_id": message["id"],
    }


def _output(model: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") != "assistant":
        return {"model": model, "choices": [], "completion": ""}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    content = message["content"]
    parts = [] if isinstance(content, str) else [part.get("text", "") for part in content]
    return {
        "model": model,
        "choices": [{"message": dict(message), "stop_reason": reason}],
        "completion": content if isinstance(content, str) else "".join(parts),
    }


def _error(trajectory: Trajectory) -> dict[str, str]:
    lines = trajectory.traceback.strip().splitlines()
    message = lines[-1] if lines else trajectory.reason
    return {
        "message": message,
        "traceback": trajectory.traceback,
        "traceback_ansi": trajectory.traceback,
    }


def _time(started: str) -> datetime:
    try:
        time = datetime.fromisoformat(started)
    except ValueError:
        return datetime.fromtimestamp(0, timezone.utc)
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
