"""OpenAI's Responses API; vLLM speaks it too, and BrowseComp-Plus used it there for gpt-oss.

Nothing is stored at the server: every request carries the whole transcript, the model's reasoning
items among it, encrypted where the server encrypts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from soundingline.toolkit.llm import wire
from soundingline.toolkit.llm.client import Body
from soundingline.toolkit.llm.messages import (
    TOOL_CHOICES,
    Message,
    SamplingParams,
    Tools,
    Turn,
    Usage,
)
from soundingline.toolkit.llm.openai_chat import OpenAIModel

API = "openai_responses"
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "refusal"}


@dataclass(kw_only=True, eq=False, repr=False)
class OpenAIResponses(OpenAIModel):
    """A model behind `/responses`. The API has no seed.

    Args:
        summary: Request a summary of the reasoning: `auto`, `concise` or `detailed`. None: none.
        encrypted_reasoning: Request reasoning items that can be sent back. Servers that return
            plain reasoning do not know this field and need False.
        strict_tools: As in `OpenAIChat`.
        parallel_calls: As in `OpenAIChat`.

    See `LanguageModel` for the other arguments.
    """

    gives_logprobs: ClassVar[bool] = False

    summary: str | None = "auto"
    encrypted_reasoning: bool = True
    strict_tools: bool = True
    parallel_calls: bool = False

    def _create(self, client: Any, **arguments: Any) -> Any:
        return client.responses.with_streaming_response.create(input=[], **arguments)

    def _body(self, messages: Sequence[Message], tools: Tools, settings: SamplingParams) -> Body:
        settings.refuse_unsupported("the Responses API")
        body: dict[str, Any] = {
            "input": [item for entry in messages for item in _items(entry)],
            "store": False,
        }
        if self.encrypted_reasoning:
            body["include"] = ["reasoning.encrypted_content"]
        if tools:
            # Absent means strict here, unlike in chat completions.
            strict = {"strict": self.strict_tools}
            body["tools"] = [{"type": "function", **spec, **strict} for spec in tools]
            named = {"type": "function", "name": settings.tool_choice}
            plain = settings.tool_choice in TOOL_CHOICES
            body["tool_choice"] = settings.tool_choice if plain else named
            body["parallel_tool_calls"] = self.parallel_calls
        reasoning = {"effort": settings.reasoning_effort, "summary": self.summary}
        parameters = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_output_tokens": settings.max_output_tokens,
            "reasoning": {key: value for key, value in reasoning.items() if value} or None,
        }
        body.update(wire.present(parameters))
        return {**body, **settings.extra}

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        if reply.get("status") == "failed" or reply.get("error"):
            raise self._fault(200, reply.get("error") or "failed", {})
        items = reply["output"]
        contents = [part for item in _of(items, "message") for part in item.get("content") or ()]
        refusals = "".join(str(part["refusal"]) for part in _of(contents, "refusal"))
        functions = _of(items, "function_call")
        parts = (
            (each.get("call_id"), each.get("name"), each.get("arguments")) for each in functions
        )
        calls = wire.tool_calls(parts, messages)
        finish = "tool_calls" if calls else "stop"
        if refusals:
            finish = "refusal"
        if reply.get("status") == "incomplete":
            reason = (reply.get("incomplete_details") or {}).get("reason")
            finish = _INCOMPLETE.get(str(reason), "incomplete")
        elif reply.get("status") == "cancelled":
            finish = "cancelled"
        return Turn(
            text="".join(str(part["text"]) for part in _of(contents, "output_text")) or refusals,
            reasoning="\n\n".join(filter(None, map(_reasoning, _of(items, "reasoning")))),
            tool_calls=calls,
            finish_reason=finish,
            provider={"api": API, "items": items},
        )

    def _usage(self, usage: Any) -> Usage:
        # Writes are billed from GPT-5.6 on, at one rate for 30 minutes and at another for 12 hours.
        details = ("input_tokens_details", "cache_write_tokens_details")
        return Usage(
            input=wire.count(usage, "input_tokens"),
            cached=wire.count(usage, "input_tokens_details", "cached_tokens"),
            cache_write=wire.count(usage, "input_tokens_details", "cache_write_tokens"),
            cache_write_long=wire.count(usage, *details, "ttl_12h_tokens"),
            reasoning=wire.count(usage, "output_tokens_details", "reasoning_tokens"),
            output=wire.count(usage, "output_tokens"),
        )


def _of(items: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [item for item in items if item.get("type") == kind]


def _items(message: Message) -> list[dict[str, Any]]:
    content = wire.sendable(message.get("content"))
    if message["role"] == "tool":
        call_id = wire.sendable(message["tool_call_id"])
        return [{"type": "function_call_output", "call_id": call_id, "output": content}]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": content}]
    if items := wire.provider_part(message, API).get("items"):
        return [_replayed(item) for item in _paired(items)]
    output = [{"role": "assistant", "content": content}] if content else []
    calls = [
        {
            "type": "function_call",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }
        for call in message.get("tool_calls") or ()
    ]
    return output + [_replayed(call) for call in calls]


def _paired(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The items without reasoning that nothing follows: OpenAI refuses a reasoning item "without
    its required following item", which a turn that thought and said nothing does not have."""
    last = max((n for n, item in enumerate(items) if item.get("type") != "reasoning"), default=-1)
    return list(items[: last + 1])


def _replayed(item: Mapping[str, Any]) -> dict[str, Any]:
    """An output item as input: without status and empty fields, repaired where it must be."""
    sent = wire.sendable_tree({key: value for key, value in item.items() if key != "status"})
    if item.get("type") == "function_call":
        sent["name"] = wire.sendable_name(str(item.get("name") or ""))
        sent["arguments"] = wire.sendable_arguments(str(item.get("arguments") or ""))
    return dict(sent)


def _reasoning(item: Mapping[str, Any]) -> str:
    """The text of a reasoning item: itself where the server gives it, else its summary."""
    parts = item.get("content") or item.get("summary") or ()
    return "\n\n".join(str(part.get("text") or "") for part in parts)
