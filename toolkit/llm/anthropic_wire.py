"""Our messages and schemas in the form that Anthropic's Messages API takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.llm import wire
from toolkit.llm.protocol import Message

API = "anthropic_messages"
# The API refuses blocks of text that are empty or blank.
_EMPTY = "(empty)"
_SCHEMA_KEYS = ("type", "description", "enum", "required", "additionalProperties")
_EPHEMERAL = {"type": "ephemeral"}


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema in the subset that strict tools take: a list of types becomes `anyOf`, and bounds go
    into the description; the search tool checks them anyway."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        plain = {key: value for key, value in schema.items() if key != "description"}
        options = [
            {"type": kind} if kind == "null" else strict_schema({**plain, "type": kind})
            for kind in kinds
        ]
        return {"anyOf": options, **_described(schema, ())}
    strict = {key: schema[key] for key in _SCHEMA_KEYS if key in schema}
    bounds = [f"{key}: {schema[key]}" for key in ("minimum", "maximum") if key in schema]
    strict.update(_described(schema, bounds))
    if "properties" in schema:
        strict["properties"] = {
            name: strict_schema(property_schema)
            for name, property_schema in schema["properties"].items()
        }
    if "items" in schema:
        strict["items"] = strict_schema(schema["items"])
    return strict


def _described(schema: Mapping[str, Any], bounds: Sequence[str]) -> dict[str, Any]:
    text = " ".join(filter(None, [str(schema.get("description", "")), ", ".join(bounds)]))
    return {"description": text} if text else {}


def opening(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """The system messages that open the transcript, joined, and the rest."""
    first = next(
        (i for i, message in enumerate(messages) if message["role"] != "system"), len(messages)
    )
    text = "\n\n".join(wire.sendable(message.get("content")) for message in messages[:first])
    return text, messages[first:]


def merged(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with consecutive ones of a role joined: all results of a turn's calls must come in
    one message, and what the user adds may follow them there."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        if not joined or joined[-1]["role"] != role:
            joined.append({"role": role, "content": []})
        joined[-1]["content"] += _blocks(message)
    return joined


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = wire.sendable(message.get("content"))
    text = {"type": "text", "text": content if content.strip() else _EMPTY}
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
        return [result]
    if message["role"] != "assistant":
        return [text]
    if blocks := wire.provider_part(message, API).get("blocks"):
        contents = [_sent(block) for block in blocks if not _blank(block)]
        has_content = any(block["type"] in ("text", "tool_use") for block in contents)
        return contents if has_content else [*contents, text]
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": wire.sendable_name(call["function"]["name"]),
            "input": wire.sendable_object(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls") or ()
    ]
    return [text, *calls] if content.strip() or not calls else calls


def _blank(block: Mapping[str, Any]) -> bool:
    return block["type"] == "text" and not str(block.get("text") or "").strip()


def _sent(block: Mapping[str, Any]) -> dict[str, Any]:
    sent = wire.sendable_tree(block)
    if block["type"] == "tool_use":
        sent["name"] = wire.sendable_name(str(block.get("name") or ""))
        sent["input"] = wire.sendable_object(str(block.get("input") or ""))
    return dict(sent)


def mark(body: dict[str, Any]) -> None:
    """Marks the instructions (with the tools, which stand before them) and the last block."""
    ends = [body["system"][-1]] if "system" in body else []
    ends += [message["content"][-1] for message in body["messages"][-1:]]
    for block in ends:
        if block["type"] in ("text", "tool_result"):
            block["cache_control"] = dict(_EPHEMERAL)
