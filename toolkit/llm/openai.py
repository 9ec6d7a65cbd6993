"""OpenAI's APIs (chat completions, text completions, responses), and other servers of them.

Reasoning is in the field `reasoning` (vLLM), in `reasoning_content` (DeepSeek, older vLLM), in a
part of the content (Mistral) or inside `<think>` tags. It is sent back in the same place: DeepSeek
requires it for turns with tool calls, and a local server then finds its cached prefix.

A text completion (`/completions`) sends its prompt without a chat template. It serves models that
were trained on plain prompts, and scores that are read from the probability of a token.

vLLM implements the Responses API too, and BrowseComp-Plus used it there for gpt-oss. Nothing is
stored at the server: every request contains the whole transcript with the model's reasoning items,
which are encrypted where the server encrypts them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.json_text import decode_json_at
from soundingline.toolkit.llm import wire
from soundingline.toolkit.llm.actions import (
    Action,
    action_schema,
    describe_actions,
    plain_messages,
    read_action,
)
from soundingline.toolkit.llm.client import Body, LanguageModel
from soundingline.toolkit.llm.errors import BadReply, UnknownModel
from soundingline.toolkit.llm.messages import (
    TOOL_CHOICES,
    Message,
    SamplingParams,
    Tools,
    Turn,
    Usage,
)

CALLS = ("native", "schema", "text")
LICENCES = ("Apache-2.0", "MIT")  # of models whose replies are recorded
CHAT_API = "openai_chat"
COMPLETIONS_API = "openai_completions"
RESPONSES_API = "openai_responses"
_OPEN, _CLOSE = "<think>", "</think>"
_FIELDS = ("reasoning", "reasoning_content")
_BEFORE_CALL = re.compile(r"\s*(?:```\w*\s*|<\|?[\w|]+>\s*)?(?=\{)")
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "refusal"}
_FINISH = {"content_filter": "refusal", "function_call": "tool_calls", None: "stop"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenAIModel(LanguageModel):
    """A model with one of OpenAI's APIs. See `LanguageModel` for the arguments."""

    default_url: ClassVar[str] = "https://api.openai.com/v1"

    async def _send(
        self, client: Any, body: Body, timeout: float, reply: Body, arrived: Callable[[], None]
    ) -> None:
        def complete() -> None:
            wire.read_body(bytes(content), reply, self.transport.where, self.transport.hide)
            arrived()

        content = bytearray()
        request = {"model": self.name, **body}
        async with self.transport.post(client, request, timeout) as response:
            encoded = "content-encoding" in response.headers
            length = -1 if encoded else int(response.headers.get("content-length", -1))
            async for part in response.aiter_bytes():
                content += part
                if len(content) == length:
                    # What follows, up to the end of the response, frees the connection for the
                    # next request; the replies that other tasks have by now come first.
                    complete()
                    await asyncio.sleep(0)
            if len(content) != length or not content:
                complete()

    def _choice(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        if not (choices := reply.get("choices")):
            # Some servers report an error with status 200.
            if any(reply.get(name) for name in ("error", "base_resp", "message")):
                raise self.transport.error_of_reply(200, reply, {})
            raise BadReply(f"{self.transport.where}: the reply has no choices")
        choice: Mapping[str, Any] = choices[0]
        return choice

    def _usage(self, usage: Any) -> Usage:
        cached = wire.count(usage, "prompt_tokens_details", "cached_tokens")
        return Usage(
            input=wire.count(usage, "prompt_tokens"),
            cached=wire.count(usage, "prompt_cache_hit_tokens") if cached is None else cached,
            reasoning=wire.count(usage, "completion_tokens_details", "reasoning_tokens"),
            output=wire.count(usage, "completion_tokens"),
            cache_write=wire.count(usage, "prompt_tokens_details", "cache_write_tokens"),
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenAIChat(OpenAIModel):
    """A model with `/chat/completions`.

    A reply with log-probabilities that reaches its limit is complete.

    Args:
        strict_tools: Request arguments that follow the schema of the tool.
        parallel_calls: Allow several calls in a turn. Several are accepted in any case. None leaves
            the field out: o1, o3-mini and o4-mini refuse it.
        output_limit: The field of the request for `max_output_tokens`. Older servers call it
            `max_tokens`.
        replay_reasoning: Send earlier reasoning back to the server.
        calls: How the model calls tools.

            - `native`: by the API's tools.
            - `schema`: each reply is one JSON object, a call or the final answer, which the server
              constrains by the schemas of the tools and of the answer (`response_format`), so that
              small models call tools too. The transcript stays the same: the client translates it.
            - `text`: by the API's tools, and a reply that begins with a call as JSON, without the
              marks that the chat template puts around one, is that call. No call is forced, which
              DeepSeek's server refuses while the model thinks.

            With `schema` and `text`, the text of a reply with a call is recorded.

    See `LanguageModel` for the other arguments.
    """

    path: ClassVar[str] = "/chat/completions"

    strict_tools: bool = True
    parallel_calls: bool | None = False
    output_limit: str = "max_completion_tokens"
    replay_reasoning: bool = True
    calls: str = "native"

    def __post_init__(self) -> None:
        if self.calls not in CALLS:
            raise InputError(f"llm.calls is {self.calls!r}", valid=", ".join(CALLS))
        super().__post_init__()

    def _body(self, messages: Sequence[Message], tools: Tools, settings: SamplingParams) -> Body:
        by_schema = self.calls == "schema" and (tools or settings.answer)
        if by_schema:
            messages = plain_messages(messages, describe_actions(tools, settings.answer))
        body: dict[str, Any] = {"messages": [self._message(item) for item in messages]}
        if by_schema:
            body.update(self._response_format(tools, settings))
        elif tools:
            strict = {"strict": True} if self.strict_tools else {}
            body["tools"] = [{"type": "function", "function": {**spec, **strict}} for spec in tools]
            free = settings.forces_a_call and self.calls == "text"
            choice = "auto" if free else settings.tool_choice
            named = {"type": "function", "function": {"name": choice}}
            body["tool_choice"] = choice if choice in TOOL_CHOICES else named
            body.update(wire.present({"parallel_tool_calls": self.parallel_calls}))
        parameters = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            self.output_limit: settings.max_output_tokens,
            "reasoning_effort": settings.reasoning_effort,
            "seed": settings.seed,
        }
        body.update(wire.present(parameters))
        if settings.logprobs is not None:
            body.update(logprobs=True, top_logprobs=settings.logprobs)
        return {**body, **settings.extra}

    def _response_format(self, tools: Tools, settings: SamplingParams) -> Body:
        bounded = not self.strict_tools
        schema = action_schema(tools, settings.tool_choice, settings.answer, bounded=bounded)
        if schema is None:
            return {}
        strict = {"strict": True} if self.strict_tools else {}
        named = {"name": "reply", "schema": schema, **strict}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def _message(self, message: Message) -> dict[str, Any]:
        content = message.get("content") or ""
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        if message["role"] != "assistant":
            return {"role": message["role"], "content": content}
        sent: dict[str, Any] = {"role": "assistant", "content": content}
        if self.replay_reasoning and message.get("reasoning"):
            part, reasoning = wire.provider_part(message, CHAT_API), message["reasoning"]
            if part.get("field") in _FIELDS:
                sent[part["field"]] = reasoning
            elif "tags" in part:
                opening, gap = part["tags"]
                sent["content"] = f"{opening}{reasoning}{_CLOSE}{gap}{sent['content']}"
            elif "parts" in part:
                sent["content"] = wire.without_none(part["parts"])
        if calls := message.get("tool_calls"):
            sent["tool_calls"] = [_sent_call(call) for call in calls]
            sent["content"] = sent["content"] or None
        return sent

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        choice = self._choice(reply)
        message = choice["message"]
        content = wire.read_content(message.get("content"), self.transport.where)
        text, reasoning, provider = _split_reasoning(message, content, self.transport.where)
        calls = wire.tool_calls(message.get("tool_calls") or content.calls, messages)
        finish = choice.get("finish_reason")
        action = None if calls else self._action(text)
        if action:
            provider = {**provider, "api": CHAT_API, "text": text}
            text, finish = action.text, "stop"  # complete, whatever follows in the reply
            if action.name:
                call = {"name": action.name, "arguments": action.arguments}
                calls = wire.tool_calls([call], messages)
                finish = "tool_calls"
        if message.get("refusal"):
            text, finish = text or str(message["refusal"]), "content_filter"
        return Turn(
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            finish_reason=str(_FINISH.get(finish, finish)),
            provider=provider,
            tokens=tuple(wire.tokens(choice.get("logprobs"))),
        )

    def _action(self, text: str) -> Action | None:
        """What a reply does by its text, if calls are not native."""
        action = read_action(text) if self.calls == "schema" else None
        if action is None and self.calls != "native" and (written := call_in_text(text)):
            action = Action(*written)
        return action

    def _check_complete(self, turn: Turn) -> Turn:
        # Who asks for probabilities reads tokens, and limits their number to those that are read.
        limited = turn.finish_reason == "length" and turn.tokens
        return turn if limited else super()._check_complete(turn)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RecordedChat(OpenAIChat):
    """`OpenAIChat` with the recorded replies of a small model, for experiments without a model.

    The file of recordings has a JSON object a line: first the `model`, the `licence` and the
    `sha256` of its weights, then each `request`, a fingerprint of its body, with its `reply`. With
    `server.gguf` that model is served and asked for replies that are not recorded, which are added
    to the file; `make recordings` begins it.

    Args:
        licence: the licence of the model.

    Raises:
        InputError: if the licence is not one of `LICENCES`, or the recordings are of another model.
        UnknownModel: from `respond`, for a request without a recorded reply.
    """

    recordings: ClassVar[Path] = Path(__file__).with_name("recordings.jsonl")

    licence: str
    _replies: dict[str, Body] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not getattr(self.server, "gguf", None):
            self._set("server", None)
        super().__post_init__()
        first, *rest = map(json.loads, self.recordings.read_text(encoding="utf-8").splitlines())
        self._set("weights_fingerprint", first["sha256"][:12])
        self._replies.update((row["request"], row["reply"]) for row in rest)
        for name, value in (("model", self.name), ("licence", self.licence)):
            if first[name] != value or (name == "licence" and value not in LICENCES):
                raise InputError(
                    f"llm.{name} is {value!r}, and that of {self.recordings} is {first[name]!r}",
                    valid=f"a model under one of the licences {', '.join(LICENCES)}",
                    do="record it: make recordings GGUF=<file>",
                )

    def ready(self) -> None:
        """See `LanguageModel.ready`: recorded replies need nothing."""
        if self.server:
            super().ready()

    def reach(self) -> None:
        """See `LanguageModel.reach`."""
        if self.server:
            super().reach()

    async def respond(
        self, messages: Sequence[Message], tools: Tools = (), settings: SamplingParams | None = None
    ) -> Turn:
        """See `ChatModel.respond`."""
        body = self._body(messages, tools, settings or self.settings)
        reply = self._replies.get(fingerprint(body))
        if reply is None and self.server:
            return await super().respond(messages, tools, settings)
        if reply is None:
            raise UnknownModel(
                f"no reply of {self.name} to this request is recorded: a prompt, a question or a "
                "setting is another; make recordings GGUF=<file> records all replies anew"
            )
        return self._check_complete(self._read(reply, messages))

    async def _send(
        self, client: Any, body: Body, timeout: float, reply: Body, arrived: Callable[[], None]
    ) -> None:
        def noted() -> None:
            kept = wire.present({name: reply.get(name) for name in ("choices", "usage")})
            request = fingerprint(body)
            with self.recordings.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"request": request, "reply": kept}) + "\n")
            self._replies[request] = kept
            arrived()

        await super()._send(client, body, timeout, reply, noted)


def _sent_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {
            "name": wire.sendable_name(function["name"]),
            "arguments": wire.sendable_arguments(function["arguments"]),
        },
    }


def _split_reasoning(
    message: Mapping[str, Any], content: wire.Content, where: str
) -> tuple[str, str, dict[str, Any]]:
    """Text, reasoning, and the place to which the reasoning is sent back."""
    text = content.text
    for name in _FIELDS:
        if message.get(name):
            field = wire.read_content(message[name], where)
            reasoning = "\n\n".join(filter(None, (field.reasoning, field.text)))
            return text, reasoning, {"api": CHAT_API, "field": name}
    if content.reasoning:
        return text, content.reasoning, {"api": CHAT_API, "parts": content.parts}
    # Some chat templates open the tag themselves, so that only its end is in the reply.
    before, close, after = text.partition(_CLOSE)
    opening = _OPEN if before.lstrip().startswith(_OPEN) else ""
    if not close and not opening:
        return text, "", {}
    answer = after.lstrip("\n")
    gap = after[: len(after) - len(answer)]
    reasoning = before.lstrip().removeprefix(_OPEN) if opening else before
    return answer, reasoning, {"api": CHAT_API, "tags": [opening, gap]}


def call_in_text(text: str) -> tuple[str, Any] | None:
    """Name and arguments of the call with which a reply begins: `{"name": ..., "arguments": {...}}`
    (`parameters` in Llama's form), perhaps in a code fence or after a template's opening mark. What
    follows is ignored. The last brace may be absent, because small models forget it. None if the
    reply begins otherwise, or if name or arguments are incomplete."""
    start = _BEFORE_CALL.match(text)
    if not start:
        return None
    value = _object_at(text, start.end()) or _object_at(text.rstrip() + "}", start.end())
    if value is None:
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _object_at(text: str, position: int) -> dict[str, Any] | None:
    """The JSON object that begins at `position`; None if it is incomplete."""
    try:
        value, _ = decode_json_at(text, position)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenAICompletions(OpenAIModel):
    """A model with `/completions`, a `ChatModel` that takes one message, the prompt.

    A reply that reaches its limit is complete. `Turn.tokens` has the stop sequence too if the
    server is vLLM.

    Args:
        kept_tokens: The number of last tokens whose log-probabilities are stored, because those of
            a long reply take far more room than its text. None: all.

    See `LanguageModel` for the other arguments.
    """

    path: ClassVar[str] = "/completions"
    default_url: ClassVar[str] = "http://127.0.0.1:8000/v1"
    continues_text: ClassVar[bool] = True

    kept_tokens: int | None = None

    def _body(self, messages: Sequence[Message], tools: Tools, settings: SamplingParams) -> Body:
        if len(messages) != 1 or tools:
            raise InputError(
                f"a text completion was given {len(messages)} messages and {len(tools)} tools",
                valid="one message, which is the prompt, and no tools",
                do="use OpenAIChat for conversations",
            )
        parameters = {
            "prompt": messages[0].get("content") or "",
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_output_tokens,
            "reasoning_effort": settings.reasoning_effort,
            "seed": settings.seed,
            "logprobs": settings.logprobs,
        }
        return {**wire.present(parameters), **settings.extra}

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        choice = self._choice(reply)
        finish = choice.get("finish_reason")
        tokens = list(wire.tokens(choice.get("logprobs")))
        return Turn(
            text=wire.joined_text(choice["text"], self.transport.where),
            finish_reason=str(_FINISH.get(finish, finish)),
            provider={"api": COMPLETIONS_API},
            tokens=tokens if self.kept_tokens is None else tokens[-self.kept_tokens :],
        )

    def _check_complete(self, turn: Turn) -> Turn:
        return turn if turn.finish_reason == "length" else super()._check_complete(turn)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenAIResponses(OpenAIModel):
    """A model with `/responses`. The API has no seed.

    Args:
        summary: Request a summary of the reasoning: `auto`, `concise` or `detailed`. None: none.
        encrypted_reasoning: Request reasoning items that can be sent back. Servers that return
            plain reasoning do not know this field and need False.
        strict_tools: As in `OpenAIChat`.
        parallel_calls: As in `OpenAIChat`.

    See `LanguageModel` for the other arguments.
    """

    path: ClassVar[str] = "/responses"
    gives_logprobs: ClassVar[bool] = False

    summary: str | None = "auto"
    encrypted_reasoning: bool = True
    strict_tools: bool = True
    parallel_calls: bool | None = False

    def _body(self, messages: Sequence[Message], tools: Tools, settings: SamplingParams) -> Body:
        settings.refuse_unsupported("the Responses API")
        body: dict[str, Any] = {
            "input": [item for entry in messages for item in _input_items(entry)],
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
            body.update(wire.present({"parallel_tool_calls": self.parallel_calls}))
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
            raise self.transport.error_of_reply(200, reply.get("error") or "failed", {})
        items = reply["output"]
        contents = [
            part for item in _of_type(items, "message") for part in item.get("content") or ()
        ]
        refusals = "".join(str(part["refusal"]) for part in _of_type(contents, "refusal"))
        texts = (part["text"] for part in _of_type(contents, "output_text"))
        calls = wire.tool_calls(_of_type(items, "function_call"), messages)
        finish = "tool_calls" if calls else "stop"
        if refusals:
            finish = "refusal"
        if reply.get("status") == "incomplete":
            reason = (reply.get("incomplete_details") or {}).get("reason")
            finish = _INCOMPLETE.get(str(reason), "incomplete")
        elif reply.get("status") == "cancelled":
            finish = "cancelled"
        return Turn(
            text=wire.joined_text(list(texts), self.transport.where) or refusals,
            reasoning="\n\n".join(
                filter(None, map(self._reasoning_text, _of_type(items, "reasoning")))
            ),
            tool_calls=calls,
            finish_reason=finish,
            provider={"api": RESPONSES_API, "items": items},
        )

    def _reasoning_text(self, item: Mapping[str, Any]) -> str:
        """The text of a reasoning item: itself where the server gives it, else its summary."""
        parts = item.get("content") or item.get("summary") or ()
        return "\n\n".join(wire.joined_text(part, self.transport.where) for part in parts)

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


def _of_type(items: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [item for item in items if item.get("type") == kind]


def _input_items(message: Message) -> list[dict[str, Any]]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": content}]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": content}]
    if items := wire.provider_part(message, RESPONSES_API).get("items"):
        return [_input_item(item) for item in _without_trailing_reasoning(items)]
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
    return output + [_input_item(call) for call in calls]


def _without_trailing_reasoning(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The items without reasoning that nothing follows: OpenAI refuses a reasoning item "without
    its required following item", which a turn that thought and said nothing does not have."""
    last = max((n for n, item in enumerate(items) if item.get("type") != "reasoning"), default=-1)
    return list(items[: last + 1])


def _input_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An output item as input: without status and empty fields, repaired where it must be."""
    sent = wire.without_none({key: value for key, value in item.items() if key != "status"})
    if item.get("type") == "function_call":
        sent["name"] = wire.sendable_name(str(item.get("name") or ""))
        sent["arguments"] = wire.sendable_arguments(str(item.get("arguments") or ""))
    return dict(sent)
