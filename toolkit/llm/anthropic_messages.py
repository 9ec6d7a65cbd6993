"""Anthropic's Messages API, streamed: long replies outlive what networks grant a silent connection.

Thinking blocks carry signatures and go back untouched. The end of each request is marked for the
prompt cache, so that the next one, which begins with it, reads it from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolkit.llm import wire
from toolkit.llm.anthropic_stream import gather
from toolkit.llm.anthropic_wire import API, mark, merged, opening, strict_schema
from toolkit.llm.client import ApiModel
from toolkit.llm.errors import ServerGone
from toolkit.llm.protocol import Message, Settings, Turn, Usage

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "refusal",
    "model_context_window_exceeded": "overflow",
}


class AnthropicMessages(ApiModel):
    """A model behind `/v1/messages`.

    `max_tokens` is the output limit where the settings give none, since the API demands one;
    `thinking` is the API's own object, such as `{type: adaptive, display: summarized}` (None: the
    model's default). While the model thinks the API takes no forced call, so that the choice is
    then left to the model (`auto`). `cache` marks prefixes for the prompt cache; `strict_tools` and
    `parallel_calls` as in `OpenAIChat`. There is no seed. The rest as in `ApiModel`.
    """

    sdk = "anthropic"
    gives_logprobs = False
    default_url = "https://api.anthropic.com"

    def __init__(
        self,
        *,
        max_tokens: int = 32_000,
        thinking: Mapping[str, Any] | None = None,
        cache: bool = True,
        strict_tools: bool = True,
        parallel_calls: bool = False,
        **common: Any,
    ) -> None:
        self.max_tokens = max_tokens
        self.thinking = dict(thinking) if thinking else None
        self.cache = cache
        self.strict_tools = strict_tools
        self.parallel_calls = parallel_calls
        super().__init__(**common)

    def _connect(
        self,
        model: str,
        base_url: str | None,
        key_env: str | None,
        settings: Settings,
        concurrency: int,
    ) -> None:
        if settings.max_output_tokens is None:
            # Told to whoever budgets: see `LanguageModel.settings`.
            settings = replace(settings, max_output_tokens=self.max_tokens)
        super()._connect(model, base_url, key_env, settings, concurrency)

    def _client(self, sdk: Any, **arguments: Any) -> Any:
        return sdk.AsyncAnthropic(**arguments)

    async def _send(self, client: Any, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        # All as extra body: see `OpenAIChat`.
        stream = await client.messages.create(
            model=self.name,
            messages=[],
            max_tokens=body["max_tokens"],
            stream=True,
            extra_body=body,
            timeout=timeout,
        )
        async with stream:
            reply = await gather(event.to_dict() async for event in stream)
        if not reply.get("stop_reason"):
            raise ServerGone(f"{self._where}: the stream ended before the reply did")
        return reply

    def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], settings: Settings
    ) -> dict[str, Any]:
        settings.refuse_seed("the Messages API")
        settings.refuse_logprobs("the Messages API")
        instructions, rest = opening(messages)
        body: dict[str, Any] = {
            "messages": merged(rest),
            "max_tokens": settings.max_output_tokens or self.max_tokens,
        }
        if instructions:
            body["system"] = [{"type": "text", "text": instructions}]
        if self.cache:
            mark(body)
        if tools:
            body["tools"] = [self._tool(wire.FunctionSpec(schema)) for schema in tools]
            body["tool_choice"] = self._tool_choice(settings.tool_choice)
        effort = settings.reasoning_effort
        parameters = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "thinking": self.thinking,
            "output_config": {"effort": effort} if effort else None,
        }
        body.update({name: value for name, value in parameters.items() if value is not None})
        body.update(settings.extra)
        if tools and settings.forces_a_call and _thinks(body):
            body["tool_choice"] = self._tool_choice("auto")
        return body

    def _tool(self, spec: wire.FunctionSpec) -> dict[str, Any]:
        tool: dict[str, Any] = {"name": spec.name, "description": spec.description}
        if not self.strict_tools:
            return {**tool, "input_schema": spec.parameters}
        return {**tool, "input_schema": strict_schema(spec.parameters), "strict": True}

    def _tool_choice(self, choice: str) -> dict[str, Any]:
        if choice == "none":
            return {"type": "none"}
        parallel = {"disable_parallel_tool_use": not self.parallel_calls}
        if choice in ("auto", "required"):
            return {"type": {"auto": "auto", "required": "any"}[choice], **parallel}
        return {"type": "tool", "name": choice, **parallel}

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        blocks = reply["content"]
        calls = tuple(
            wire.call_request(block.get("id"), block.get("name"), block.get("input"), index)
            for index, block in enumerate(
                (block for block in blocks if block["type"] == "tool_use"),
                start=wire.calls_before(messages) + 1,
            )
        )
        reason = str(reply["stop_reason"])
        return Turn(
            text="".join(str(block["text"]) for block in blocks if block["type"] == "text"),
            reasoning="\n\n".join(
                str(block["thinking"])
                for block in blocks
                if block["type"] == "thinking" and block.get("thinking")
            ),
            tool_calls=calls,
            usage=_usage(reply.get("usage")),
            finish_reason=_FINISH.get(reason, reason),
            model=str(reply.get("model") or ""),
            provider={"api": API, "blocks": [_kept(block) for block in blocks]},
        )


def _thinks(body: Mapping[str, Any]) -> bool:
    thinking = body.get("thinking")
    return isinstance(thinking, Mapping) and thinking.get("type") != "disabled"


def _kept(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if value is not None}


def _usage(usage: Any) -> Usage:
    """The API counts what was read from and written to the cache apart from `input_tokens`."""
    fresh = wire.count(usage, "input_tokens")
    cached = wire.count(usage, "cache_read_input_tokens")
    written = wire.count(usage, "cache_creation_input_tokens")
    return Usage(
        input=None if fresh is None else fresh + (cached or 0) + (written or 0),
        cached=cached,
        reasoning=wire.count(usage, "output_tokens_details", "thinking_tokens"),
        output=wire.count(usage, "output_tokens"),
        cache_write=written,
        cache_write_long=wire.count(usage, "cache_creation", "ephemeral_1h_input_tokens"),
    )
