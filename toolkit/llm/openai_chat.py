"""OpenAI's chat completions and the many servers that speak them; a local vLLM first.

Reasoning comes as the field `reasoning` (vLLM), as `reasoning_content` (DeepSeek, older vLLM), or
inside `<think>` tags, and goes back in the same place, which DeepSeek demands of turns with tool
calls and which keeps the prefix of a local server whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.llm import wire
from toolkit.llm.client import ApiModel
from toolkit.llm.errors import BadReply
from toolkit.llm.protocol import TOOL_CHOICES, Message, Settings, Turn, Usage

API = "openai_chat"
_OPEN, _CLOSE = "<think>", "</think>"
_FIELDS = ("reasoning", "reasoning_content")
_BEFORE_CALL = re.compile(r"\s*(?:```\w*\s*|<\|?[\w|]+>\s*)?(?=\{)")
_FINISH = {"content_filter": "refusal", "function_call": "tool_calls", None: "stop"}


class OpenAIChat(ApiModel):
    """A model behind `/chat/completions`.

    `strict_tools` asks for arguments that follow the schema; `parallel_calls` allows several calls
    a turn (several are accepted anyway); `output_limit` names the body's field for
    `max_output_tokens`, which older servers call `max_tokens`; `replay_reasoning` sends earlier
    reasoning back. `forced_calls`: whether the server lets a call be forced; DeepSeek's does not
    while the model thinks, so that the choice is then left to the model (false: `auto` is sent for
    `required` and for the name of a tool). `text_calls`: whether a reply that begins with a call as
    JSON, without the marks that the server's chat template puts around one, is that call: small
    models write it so. What they wrote stays on record. A reply with log-probabilities that reaches
    its limit is a whole one. The rest as in `ApiModel`.
    """

    sdk = "openai"
    default_url = "https://api.openai.com/v1"

    def __init__(
        self,
        *,
        strict_tools: bool = True,
        parallel_calls: bool = False,
        output_limit: str = "max_completion_tokens",
        replay_reasoning: bool = True,
        forced_calls: bool = True,
        text_calls: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.strict_tools = strict_tools
        self.parallel_calls = parallel_calls
        self.output_limit = output_limit
        self.replay_reasoning = replay_reasoning
        self.forced_calls = forced_calls
        self.text_calls = text_calls

    def _client(self, sdk: Any, **arguments: Any) -> Any:
        return sdk.AsyncOpenAI(**arguments)

    async def _send(self, client: Any, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        # The raw reply, because servers add fields that the SDK's types do not have; and all as
        # extra body, because the SDK walks through every typed argument, which takes longer than
        # anything else that is done here.
        raw = await client.chat.completions.with_raw_response.create(
            model=self.name, messages=[], extra_body=body, timeout=timeout
        )
        return self._object(raw.text)

    def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], settings: Settings
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": [self._message(item) for item in messages]}
        if tools:
            body["tools"] = [self._tool(wire.FunctionSpec(item)) for item in tools]
            free = settings.forces_a_call and not self.forced_calls
            body["tool_choice"] = "auto" if free else _tool_choice(settings.tool_choice)
            body["parallel_tool_calls"] = self.parallel_calls
        parameters = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            self.output_limit: settings.max_output_tokens,
            "reasoning_effort": settings.reasoning_effort,
            "seed": settings.seed,
        }
        body.update({name: value for name, value in parameters.items() if value is not None})
        if settings.logprobs is not None:
            body.update(logprobs=True, top_logprobs=settings.logprobs)
        return {**body, **settings.extra}

    def _tool(self, spec: wire.FunctionSpec) -> dict[str, Any]:
        function: dict[str, Any] = {
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
        }
        if self.strict_tools:
            function["strict"] = True
        return {"type": "function", "function": function}

    def _message(self, message: Message) -> dict[str, Any]:
        content = wire.sendable(message.get("content"))
        if message["role"] == "tool":
            call_id = wire.sendable(message["tool_call_id"])
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        if message["role"] != "assistant":
            return {"role": message["role"], "content": content}
        sent: dict[str, Any] = {"role": "assistant", "content": content}
        if self.replay_reasoning and message.get("reasoning"):
            self._put_back(sent, message)
        if calls := message.get("tool_calls"):
            sent["tool_calls"] = [_sent_call(call) for call in calls]
            sent["content"] = sent["content"] or None
        return sent

    def _put_back(self, sent: dict[str, Any], message: Message) -> None:
        part = wire.provider_part(message, API)
        reasoning = wire.sendable(message["reasoning"])
        if part.get("field") in _FIELDS:
            sent[part["field"]] = reasoning
        elif "tags" in part:
            opening, gap = part["tags"]
            sent["content"] = f"{opening}{reasoning}{_CLOSE}{gap}{sent['content']}"

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        choices = reply.get("choices")
        if not choices:
            raise BadReply(f"{self._where}: the reply has no choices")
        choice = choices[0]
        message = choice["message"]
        text, reasoning, provider = _reasoning(message)
        calls = tuple(
            wire.call_request(
                call.get("id"),
                call["function"].get("name"),
                call["function"].get("arguments"),
                index,
            )
            for index, call in enumerate(
                message.get("tool_calls") or (), start=wire.calls_before(messages) + 1
            )
        )
        finish = choice.get("finish_reason")
        written = call_in_text(text) if self.text_calls and not calls else None
        if written:
            index = wire.calls_before(messages) + 1
            calls = (wire.call_request(None, *written, index),)
            provider = {**provider, "api": API, "text": text}
            text, finish = "", "tool_calls"  # whole, however the reply went on
        if message.get("refusal"):
            text, finish = text or str(message["refusal"]), "content_filter"
        return Turn(
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            usage=_usage(reply.get("usage")),
            finish_reason=str(_FINISH.get(finish, finish)),
            model=str(reply.get("model") or ""),
            provider=provider,
            tokens=tuple(wire.tokens(choice.get("logprobs"))),
        )

    def _whole(self, turn: Turn) -> Turn:
        # Who asks for probabilities reads tokens, and limits their number to those that are read.
        limited = turn.finish_reason == "length" and turn.tokens
        return turn if limited else super()._whole(turn)


def _tool_choice(choice: str) -> Any:
    if choice in TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _sent_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": wire.sendable(call["id"]),
        "type": "function",
        "function": {
            "name": wire.sendable_name(function["name"]),
            "arguments": wire.sendable_arguments(function["arguments"]),
        },
    }


def _reasoning(message: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Text, reasoning, and what puts the reasoning back where it was found."""
    text = str(message.get("content") or "")
    for name in _FIELDS:
        if message.get(name):
            return text, str(message[name]), {"api": API, "field": name}
    # Some chat templates open the tag themselves, so that only its end is in the reply.
    head, close, tail = text.partition(_CLOSE)
    opening = _OPEN if head.lstrip().startswith(_OPEN) else ""
    if not close and not opening:
        return text, "", {}
    answer = tail.lstrip("\n")
    gap = tail[: len(tail) - len(answer)]
    reasoning = head.lstrip().removeprefix(_OPEN) if opening else head
    return answer, reasoning, {"api": API, "tags": [opening, gap]}


def call_in_text(text: str) -> tuple[str, Any] | None:
    """Name and arguments of the call as which a reply begins: `{"name": ..., "arguments": {...}}`
    (`parameters` in Llama's form), perhaps in a code fence or after a template's opening mark. What
    follows is ignored. The last brace may be absent, which small models forget. None where it
    begins otherwise, or where name or arguments are not whole."""
    start = _BEFORE_CALL.match(text)
    if not start:
        return None
    value = _object_at(text, start.end()) or _object_at(text.rstrip() + "}", start.end())
    if value is None:
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _object_at(text: str, position: int) -> dict[str, Any] | None:
    """The JSON object that begins at `position`; None where it is not whole."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _usage(usage: Any) -> Usage:
    cached = wire.count(usage, "prompt_tokens_details", "cached_tokens")
    return Usage(
        input=wire.count(usage, "prompt_tokens"),
        cached=wire.count(usage, "prompt_cache_hit_tokens") if cached is None else cached,
        reasoning=wire.count(usage, "completion_tokens_details", "reasoning_tokens"),
        output=wire.count(usage, "completion_tokens"),
        cache_write=wire.count(usage, "prompt_tokens_details", "cache_write_tokens"),
    )
