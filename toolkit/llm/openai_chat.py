"""OpenAI's chat completions and text completions, and the many servers that implement them.

Reasoning is in the field `reasoning` (vLLM), in `reasoning_content` (DeepSeek, older vLLM) or
inside `<think>` tags. It is sent back in the same place: DeepSeek requires it for turns with tool
calls, and a local server then finds its cached prefix.

A text completion (`/completions`) sends its prompt without a chat template. It serves models that
were trained on plain prompts, and scores that are read from the probability of a token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import wire
from soundingline.toolkit.llm.client import Arrived, LanguageModel, receive_body
from soundingline.toolkit.llm.errors import BadReply
from soundingline.toolkit.llm.messages import (
    TOOL_CHOICES,
    Message,
    SamplingParams,
    Token,
    Turn,
    Usage,
    user,
)

API = "openai_chat"
COMPLETIONS_API = "openai_completions"
_OPEN, _CLOSE = "<think>", "</think>"
_FIELDS = ("reasoning", "reasoning_content")
_BEFORE_CALL = re.compile(r"\s*(?:```\w*\s*|<\|?[\w|]+>\s*)?(?=\{)")
_FINISH = {"content_filter": "refusal", "function_call": "tool_calls", None: "stop"}
_COMPLETION_FINISH = {"content_filter": "refusal", None: "stop"}


@dataclass(kw_only=True, eq=False, repr=False)
class OpenAIChat(LanguageModel):
    """A model behind `/chat/completions`.

    A reply with log-probabilities that reaches its limit is complete.

    Args:
        strict_tools: Request arguments that follow the schema of the tool.
        parallel_calls: Allow several calls in a turn. Several are accepted in any case.
        output_limit: The field of the request for `max_output_tokens`. Older servers call it
            `max_tokens`.
        replay_reasoning: Send earlier reasoning back to the server.
        forced_calls: The server accepts a forced call. DeepSeek's does not while the model thinks.
            False sends `auto` instead of `required` and of the name of a tool.
        text_calls: A reply that begins with a call as JSON, without the marks that the chat
            template puts around one, is that call. Small models write calls so. The text of the
            reply is recorded.

    See `LanguageModel` for the other arguments.
    """

    sdk: ClassVar = "openai"
    default_url: ClassVar = "https://api.openai.com/v1"

    strict_tools: bool = True
    parallel_calls: bool = False
    output_limit: str = "max_completion_tokens"
    replay_reasoning: bool = True
    forced_calls: bool = True
    text_calls: bool = False

    def _client(self, sdk: Any, **arguments: Any) -> Any:
        return sdk.AsyncOpenAI(**arguments)

    async def _send(
        self,
        client: Any,
        body: dict[str, Any],
        timeout: float,
        reply: dict[str, Any],
        arrived: Arrived,
    ) -> None:
        # The body as it comes, because servers add fields that the SDK's types do not have; and all
        # as extra body, because the SDK walks through every typed argument, which takes longer than
        # anything else that is done here.
        sending = client.chat.completions.with_streaming_response.create(
            model=self.name, messages=[], extra_body=body, timeout=timeout
        )
        await receive_body(sending, arrived)

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        settings: SamplingParams,
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
            usage=self._usage(reply.get("usage")),
            finish_reason=str(_FINISH.get(finish, finish)),
            model=str(reply.get("model") or ""),
            provider=provider,
            tokens=tuple(wire.tokens(choice.get("logprobs"))),
        )

    def _usage(self, usage: Any) -> Usage:
        cached = wire.count(usage, "prompt_tokens_details", "cached_tokens")
        return Usage(
            input=wire.count(usage, "prompt_tokens"),
            cached=wire.count(usage, "prompt_cache_hit_tokens") if cached is None else cached,
            reasoning=wire.count(usage, "completion_tokens_details", "reasoning_tokens"),
            output=wire.count(usage, "completion_tokens"),
            cache_write=wire.count(usage, "prompt_tokens_details", "cache_write_tokens"),
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


@dataclass(frozen=True)
class Completion:
    """A text completion.

    Attributes:
        text: The text, which ends before a stop sequence.
        tokens: The tokens of the text, with the stop sequence where the server is vLLM.
        finish_reason: `stop`, `length`, or the server's own word.
        usage: The tokens that the server counted.
        attempts: The number of requests that were sent.
    """

    text: str
    tokens: Sequence[Token] = ()
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    attempts: int = 1

    @classmethod
    def of(cls, turn: Turn) -> Completion:
        """What a turn of `OpenAICompletions` holds."""
        return cls(turn.text, turn.tokens, turn.finish_reason, turn.usage, turn.attempts)


def asking(
    settings: SamplingParams,
    *,
    stop: Sequence[str] = (),
    logprobs: int | None = None,
    max_tokens: int | None = None,
) -> SamplingParams:
    """`settings` with what completions have besides: the texts in `stop` end the reply;
    `logprobs` asks for those of so many tokens at each place (0: of the written one alone);
    `max_tokens` bounds the reply (None: as it was)."""
    extra = {**settings.extra, "stop": list(stop)} if stop else settings.extra
    return replace(
        settings,
        extra=extra,
        logprobs=settings.logprobs if logprobs is None else logprobs,
        max_output_tokens=max_tokens or settings.max_output_tokens,
    )


@dataclass(kw_only=True, eq=False, repr=False)
class OpenAICompletions(LanguageModel):
    """A model behind `/completions`.

    It is also a `ChatModel` that takes one message, the prompt, so that the ledger, the retries and
    the cache of chat models apply; `Completion.of(turn)` is then the completion. A reply that
    reaches its limit is complete.

    Args:
        kept_tokens: The number of last tokens whose log-probabilities are stored, because those of
            a long reply take far more room than its text. None: all.

    See `LanguageModel` for the other arguments.
    """

    sdk: ClassVar = "openai"
    default_url: ClassVar = "http://127.0.0.1:8000/v1"
    continues_text: ClassVar = True

    kept_tokens: int | None = None

    async def complete(
        self,
        prompt: str,
        settings: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        max_tokens: int | None = None,
    ) -> Completion:
        """What follows `prompt`; keywords as in `asking`. A `ModelError` where there is none."""
        settings = asking(
            settings or self.settings, stop=stop, logprobs=logprobs, max_tokens=max_tokens
        )
        return Completion.of(await self.respond([user(prompt)], (), settings))

    def _client(self, sdk: Any, **arguments: Any) -> Any:
        return sdk.AsyncOpenAI(**arguments)

    async def _send(
        self,
        client: Any,
        body: dict[str, Any],
        timeout: float,
        reply: dict[str, Any],
        arrived: Arrived,
    ) -> None:
        # As it comes and as extra body for the reasons given in `openai_chat`.
        sending = client.completions.with_streaming_response.create(
            model=self.name, prompt="", extra_body=body, timeout=timeout
        )
        await receive_body(sending, arrived)

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        settings: SamplingParams,
    ) -> dict[str, Any]:
        if len(messages) != 1 or tools:
            raise InputError(
                f"a text completion was given {len(messages)} messages and {len(tools)} tools",
                valid="one message, which is the prompt, and no tools",
                do="use OpenAIChat for conversations",
            )
        parameters = {
            "prompt": wire.sendable(messages[0].get("content")),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_output_tokens,
            "reasoning_effort": settings.reasoning_effort,
            "seed": settings.seed,
            "logprobs": settings.logprobs,
        }
        body = {name: value for name, value in parameters.items() if value is not None}
        return {**body, **settings.extra}

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        choices = reply.get("choices")
        if not choices:
            raise BadReply(f"{self._where}: the reply has no choices")
        choice = choices[0]
        finish = choice.get("finish_reason")
        tokens = list(wire.tokens(choice.get("logprobs")))
        last_tokens = tokens if self.kept_tokens is None else tokens[-self.kept_tokens :]
        return Turn(
            text=str(choice.get("text") or ""),
            usage=self._usage(reply.get("usage")),
            finish_reason=str(_COMPLETION_FINISH.get(finish, finish)),
            model=str(reply.get("model") or ""),
            provider={"api": COMPLETIONS_API},
            tokens=last_tokens,
        )

    def _usage(self, usage: Any) -> Usage:
        return Usage(
            input=wire.count(usage, "prompt_tokens"),
            cached=wire.count(usage, "prompt_tokens_details", "cached_tokens"),
            output=wire.count(usage, "completion_tokens"),
            cache_write=wire.count(usage, "prompt_tokens_details", "cache_write_tokens"),
        )

    def _whole(self, turn: Turn) -> Turn:
        return turn if turn.finish_reason == "length" else super()._whole(turn)
