"""Puts the events of an Anthropic stream together into one reply.

Not the SDK's own gathering, which raises where a model wrote arguments that are not JSON: they must
come back to the model as a tool error, so they are kept as text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from toolkit.llm.errors import BadReply

Reply = dict[str, Any]


async def gather(events: AsyncIterator[Mapping[str, Any]]) -> Reply:
    """`{"content": blocks, "stop_reason", "usage", "model"}`. A `tool_use` block's `input` is the
    JSON text as it was streamed. `stop_reason` is absent if the stream ended too early.
    `BadReply` for events that do not fit together."""
    reply: Reply = {"content": [], "usage": {}}
    try:
        async for event in events:
            handler = _HANDLERS.get(str(event.get("type")))
            if handler:
                handler(reply, event)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadReply(f"an event of the stream is out of its protocol ({error!r})") from None
    return reply


def _start(reply: Reply, event: Mapping[str, Any]) -> None:
    message = event["message"]
    reply["model"] = message.get("model")
    _count(reply, message.get("usage"))


def _block(reply: Reply, event: Mapping[str, Any]) -> None:
    block = dict(event["content_block"])
    if block.get("type") == "tool_use":
        block["input"] = ""
    reply["content"].append(block)


def _delta(reply: Reply, event: Mapping[str, Any]) -> None:
    delta, block = event["delta"], reply["content"][event["index"]]
    field, source = _FIELDS.get(delta["type"], ("", ""))
    if field:
        block[field] = (block.get(field) or "") + (delta.get(source) or "")


def _end(reply: Reply, event: Mapping[str, Any]) -> None:
    reply["stop_reason"] = event["delta"].get("stop_reason")
    _count(reply, event.get("usage"))


def _count(reply: Reply, usage: Mapping[str, Any] | None) -> None:
    # The last event repeats the counts as totals; what it leaves out stays.
    known = {key: value for key, value in (usage or {}).items() if value is not None}
    reply["usage"].update(known)


_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("input", "partial_json"),
}
_HANDLERS: dict[str, Callable[[Reply, Mapping[str, Any]], None]] = {
    "message_start": _start,
    "content_block_start": _block,
    "content_block_delta": _delta,
    "message_delta": _end,
}
