"""Anthropic's Messages API, streamed because networks close connections that stay silent for long.

Thinking blocks carry signatures and are sent back unchanged. The end of each request is marked for
the prompt cache, so that the next request, which begins with the same messages, reads it from
there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

from soundingline.toolkit.json_text import decode_json
from soundingline.toolkit.llm import wire
from soundingline.toolkit.llm.client import Body, LanguageModel
from soundingline.toolkit.llm.errors import BadReply, ServerGone
from soundingline.toolkit.llm.messages import Message, SamplingParams, Tools, Turn, Usage, is_count
from soundingline.toolkit.optional import import_optional

API = "anthropic_messages"
# The API refuses blocks of text that are empty or blank.
_EMPTY = "(empty)"
_SCHEMA_KEYS = ("type", "description", "enum", "required", "additionalProperties")
_EPHEMERAL = {"type": "ephemeral"}
# The types of blocks that are read; others, such as those of the server's own tools, are sent back.
_READABLE = ("text", "thinking", "redacted_thinking", "tool_use")
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "refusal",
    "model_context_window_exceeded": "overflow",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AnthropicMessages(LanguageModel):
    """A model with `/v1/messages`. The API has no seed.

    Args:
        max_tokens: The limit on the output if the settings have none, because the API requires
            one.
        thinking: The API's own object, such as `{type: adaptive, display: summarized}`. None: the
            default of the model. The API accepts no forced call while the model thinks; `auto` is
            sent instead.
        cache: Mark prefixes for the prompt cache.
        strict_tools: As in `OpenAIChat`.
        parallel_calls: As in `OpenAIChat`.

    See `LanguageModel` for the other arguments.
    """

    path: ClassVar[str] = "/v1/messages"
    models_path: ClassVar[str] = "/v1/models?limit=1000"
    key_header: ClassVar[tuple[str, str]] = ("x-api-key", "")
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    gives_logprobs: ClassVar[bool] = False
    default_url: ClassVar[str] = "https://api.anthropic.com"

    max_tokens: int = 32_000
    thinking: Mapping[str, Any] | None = None
    cache: bool = True
    strict_tools: bool = True
    parallel_calls: bool | None = False

    def __post_init__(self) -> None:
        if self.settings.max_output_tokens is None:
            settings = replace(self.settings, max_output_tokens=self.max_tokens)
            self._set("settings", settings)
        super().__post_init__()

    async def _send(
        self, client: Any, body: Body, timeout: float, reply: Body, arrived: Callable[[], None]
    ) -> None:
        request = {"model": self.name, "stream": True, **body}
        async with (
            self.transport.post(client, request, timeout) as response,
            aclosing(self._events(response)) as events,
        ):
            await collect_reply(events, reply)
            if not reply.get("stop_reason"):
                raise ServerGone(f"{self.transport.where}: the stream ended before the reply did")
            arrived()
            await asyncio.sleep(0)  # As in `OpenAIModel._send`.
            async for _ in events:  # Read to its end, the connection serves the next request.
                pass

    async def _events(self, response: Any) -> AsyncGenerator[Any, None]:
        """The data of each event of a stream; `ModelError` for an event that is an error."""
        source = import_optional("httpx2").EventSource(response, max_event_size=None)
        async for event in source:
            if event.event == "error":
                raise self.transport.error_of_reply(200, event.data, {})
            if event.data:
                yield decode_json(event.data)

    def _body(self, messages: Sequence[Message], tools: Tools, settings: SamplingParams) -> Body:
        settings.refuse_unsupported("the Messages API")
        instructions, dialogue = split_instructions(messages)
        body: dict[str, Any] = {
            "messages": join_roles(dialogue),
            "max_tokens": settings.max_output_tokens or self.max_tokens,
        }
        if instructions:
            body["system"] = [{"type": "text", "text": instructions}]
        if self.cache:
            mark_for_cache(body)
        if tools:
            body["tools"] = [self._tool(spec) for spec in tools]
            body["tool_choice"] = self._tool_choice(settings.tool_choice)
        effort = settings.reasoning_effort
        parameters = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "thinking": self.thinking or None,
            "output_config": {"effort": effort} if effort else None,
        }
        body.update({**wire.present(parameters), **settings.extra})
        thinking = body.get("thinking")
        thinks = isinstance(thinking, Mapping) and thinking.get("type") != "disabled"
        if tools and settings.forces_a_call and thinks:
            body["tool_choice"] = self._tool_choice("auto")
        return body

    def _tool(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        tool = {"name": spec["name"], "description": spec["description"]}
        if not self.strict_tools:
            return {**tool, "input_schema": spec["parameters"]}
        return {**tool, "input_schema": strict_schema(spec["parameters"]), "strict": True}

    def _tool_choice(self, choice: str) -> dict[str, Any]:
        if choice == "none":
            return {"type": "none"}
        allowed = self.parallel_calls
        parallel = {} if allowed is None else {"disable_parallel_tool_use": not allowed}
        if choice in ("auto", "required"):
            return {"type": {"auto": "auto", "required": "any"}[choice], **parallel}
        return {"type": "tool", "name": choice, **parallel}

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        blocks = reply["content"]
        readable = [block for block in blocks if block["type"] in _READABLE]
        content = wire.read_content(readable, self.transport.where)
        reason = str(reply["stop_reason"])
        return Turn(
            text=content.text,
            reasoning=content.reasoning,
            tool_calls=wire.tool_calls(content.calls, messages),
            finish_reason=_FINISH.get(reason, reason),
            provider={"api": API, "blocks": [wire.present(block) for block in blocks]},
        )

    def _usage(self, usage: Any) -> Usage:
        # What was read from and written to the cache is counted apart from `input_tokens`.
        fresh = wire.count(usage, "input_tokens")
        cached = wire.count(usage, "cache_read_input_tokens")
        written = wire.count(usage, "cache_creation_input_tokens")
        counts = (fresh, cached or 0, written or 0)
        return Usage(
            # An impossible count makes all unknown; see `Usage`.
            input=sum(counts) if all(map(is_count, counts)) else fresh,
            cached=cached,
            reasoning=wire.count(usage, "output_tokens_details", "thinking_tokens"),
            output=wire.count(usage, "output_tokens"),
            cache_write=written,
            cache_write_long=wire.count(usage, "cache_creation", "ephemeral_1h_input_tokens"),
        )


async def collect_reply(events: AsyncIterator[Mapping[str, Any]], reply: Body) -> None:
    """Fill the empty `reply` with `content` (blocks), `stop_reason`, `usage` and `model` as they
    come, up to the event that ends the message. A `tool_use` block's `input` is the JSON text as it
    was streamed. `stop_reason` is absent if the stream ended too early. `BadReply` for events that
    do not fit together."""
    try:
        async for event in events:
            kind = event.get("type")
            message = event["message"] if kind == "message_start" else event
            if kind in ("message_start", "message_delta"):
                # The last event repeats the counts as totals; what it leaves out stays.
                counts = wire.present(message.get("usage") or {})
                reply.setdefault("usage", {}).update(counts)
            if kind == "message_start":
                reply.update(model=message.get("model"), content=[])
            elif kind == "content_block_start":
                block = dict(event["content_block"])
                started = {"input": ""} if block.get("type") == "tool_use" else {}
                reply["content"].append(block | started)
            elif kind == "content_block_delta":
                delta, block = event["delta"], reply["content"][event["index"]]
                field, source = _FIELDS.get(delta["type"], ("", ""))
                if field:
                    block[field] = (block.get(field) or "") + (delta.get(source) or "")
            elif kind == "message_delta":
                reply["stop_reason"] = event["delta"].get("stop_reason")
            elif kind == "message_stop":
                return
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise BadReply(f"an event of the stream is out of its protocol ({error!r})") from None


_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("input", "partial_json"),
}


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


def split_instructions(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """The system messages that open the transcript, joined, and the messages after them."""
    instructions = list(takewhile(lambda message: message["role"] == "system", messages))
    text = "\n\n".join(message.get("content") or "" for message in instructions)
    return text, messages[len(instructions) :]


def join_roles(messages: Sequence[Message]) -> list[dict[str, Any]]:
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
    content = message.get("content") or ""
    text = {"type": "text", "text": content if content.strip() else _EMPTY}
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
        return [result]
    if message["role"] != "assistant":
        return [text]
    if blocks := wire.provider_part(message, API).get("blocks"):
        contents = [_sendable_block(block) for block in blocks if not _is_blank(block)]
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


def _is_blank(block: Mapping[str, Any]) -> bool:
    return block["type"] == "text" and not str(block.get("text") or "").strip()


def _sendable_block(block: Mapping[str, Any]) -> dict[str, Any]:
    sent = wire.without_none(block)
    if block["type"] == "tool_use":
        sent["name"] = wire.sendable_name(str(block.get("name") or ""))
        sent["input"] = wire.sendable_object(str(block.get("input") or ""))
    return dict(sent)


def mark_for_cache(body: dict[str, Any]) -> None:
    """Mark the instructions (with the tools, which precede them) and the last block."""
    last_blocks = [body["system"][-1]] if "system" in body else []
    last_blocks += [message["content"][-1] for message in body["messages"][-1:]]
    for block in last_blocks:
        if block["type"] in ("text", "tool_result"):
            block["cache_control"] = dict(_EPHEMERAL)
