"""Messages, tools, replies and sampling parameters in one form for all language model APIs.

Messages are plain dictionaries in the function-calling form that trajectories record: `system`,
`user`, `assistant` (with `tool_calls`, whose `function.arguments` is JSON text as the model wrote
it) and `tool` (with `tool_call_id`). `Turn.message()` makes an assistant message of a reply. State
that only one API understands, such as encrypted reasoning or signed thinking, is stored under
`provider` and is sent back unchanged, so that the server finds its cached prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from soundingline.toolkit.errors import InputError, Runtime, check_number
from soundingline.toolkit.json_text import decode_json, replace_surrogates_in
from soundingline.toolkit.redaction import redact

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]
"""Specs as `SearchTool.specs()` returns them."""

TOOL_CHOICES = ("auto", "none", "required")


def system(text: str) -> dict[str, Any]:
    """The instructions that open a transcript."""
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    """A message of the user, or of the harness speaking as one."""
    return {"role": "user", "content": text}


def tool_result(call_id: str, text: str) -> dict[str, Any]:
    """The answer to one tool call; every call of a turn needs one before the next request."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def tool_spec(name: str, description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the function-calling form that the APIs share. All of `properties` are required,
    and no other argument is allowed."""
    return {"name": name, "description": description, "parameters": object_schema(properties)}


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object that has all of `properties` and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class FunctionCall:
    """A tool call as the model wrote it, without lone surrogates. `arguments` is raw text and may
    be malformed.

    Example:
        >>> FunctionCall("call_1", "search", '{"query": "old mill"}').name
        'search'
    """

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        _replace_in(self, "id", "name", "arguments")

    def parsed(self) -> Any:
        """The arguments as JSON; empty text is an empty object. `ValueError`, one line, if the text
        is not JSON (NaN and Infinity are not)."""
        return decode_json(self.arguments or "{}", constants=False)


def _replace_in(reply: object, *names: str) -> None:
    for name in names:
        object.__setattr__(reply, name, replace_surrogates_in(getattr(reply, name)))


class Token(NamedTuple):
    """A token of a reply, the natural logarithm of its probability, and those of the most probable
    tokens at its position. They are None and empty if the server does not return them."""

    text: str
    logprob: float | None = None
    top: Mapping[str, float] = {}


MOST_TOKENS = 1_000_000_000


def is_count(value: object) -> bool:
    """Whether a value can be the number of tokens of one request: an integer from 0 to
    `MOST_TOKENS`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


@dataclass(frozen=True)
class Usage:
    """Tokens of one request as the server counted them; None if it did not report them. If one of
    them is impossible (see `is_count`), or more tokens are cached than the input has, none can be
    trusted: all are None.

    `input` includes `cached` (read from a prefix cache) and `cache_write` (written to one, where
    that is billed apart), which includes `cache_write_long` (written for the longer of the API's
    two lifetimes); `output` includes `reasoning`.

    Example:
        >>> Usage(input=900, output=-1).input is None  # an impossible count
        True
    """

    input: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    output: int | None = None
    cache_write: int | None = None
    cache_write_long: int | None = None

    def __post_init__(self) -> None:
        names = [item.name for item in fields(self)]
        counts = [getattr(self, name) for name in names]
        possible = all(is_count(count) for count in counts if count is not None)
        if not possible or (self.input is not None and (self.cached or 0) > self.input):
            for name in names:
                object.__setattr__(self, name, None)


@dataclass(frozen=True)
class Turn:
    """One reply of a model. Lone surrogates, which a model may write, become U+FFFD.

    Attributes:
        text: The text of the reply.
        reasoning: The text of the model's reasoning, if the server returns it.
        tool_calls: The tool calls in the order of the reply.
        usage: The tokens that the server counted.
        finish_reason: `stop`, `tool_calls`, `length`, `overflow`, `refusal`, or the server's own
            word.
        model: The model that the server says it used.
        provider: State for the same API; see the module.
        tokens: The tokens of the text with their log-probabilities, if the settings request them
            and the server returns them.

    Example:
        >>> Turn(text="1820", usage=Usage(input=900, output=20)).usage.output
        20
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[FunctionCall] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    model: str = ""
    provider: Mapping[str, Any] = field(default_factory=dict)
    tokens: Sequence[Token] = ()

    def __post_init__(self) -> None:
        _replace_in(self, "text", "reasoning", "provider")

    @property
    def empty(self) -> bool:
        """Neither text nor a tool call."""
        return not self.text.strip() and not self.tool_calls

    def message(self) -> dict[str, Any]:
        """The assistant message to append to the transcript."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
                for id_, name, text in map(astuple, self.tool_calls)
            ]
        if self.provider:
            message["provider"] = dict(self.provider)
        return message


_BOUNDS = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "max_output_tokens": (1, 10_000_000),
    "timeout": (0.001, 86_400),
    "logprobs": (0, 1000),
}


@dataclass(frozen=True)
class SamplingParams:
    """How to sample, and what else a request sets. None leaves a choice to the server.

    Args:
        temperature: From 0 to 2.
        top_p: From 0 to 1.
        max_output_tokens: The limit on the reply, reasoning included.
        reasoning_effort: A word of the API, such as `low` or `high`.
        seed: The seed of sampling. An API without seeds refuses it.
        tool_choice: `auto`, `none`, `required` or the name of a tool.
        timeout: Seconds for one attempt, from sending to the last byte.
        extra: Fields that are added to the body of the request unchanged.
        logprobs: The number of most probable tokens whose log-probabilities are returned at each
            position of the reply. 0: those of the written token alone. None: none.
        answer: The labels of the lines of the final answer, for a client that constrains it
            (`OpenAIChat(calls="schema")`). None: its format is not known.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> SamplingParams(temperature=0.0, max_output_tokens=500).max_output_tokens
        500
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None
    tool_choice: str = "auto"
    timeout: Runtime[float] = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    logprobs: int | None = None
    answer: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            if (value := getattr(self, name)) is not None:
                check_number(name, value, ge=low, le=high)
        if not self.tool_choice:
            raise InputError(
                "tool_choice is empty", valid=f"{', '.join(TOOL_CHOICES)} or the name of a tool"
            )

    def as_dict(self) -> dict[str, Any]:
        """The settings that are not None, by name, for records. Secrets in `extra` are masked."""
        pairs = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: redact(value, name) for name, value in pairs if value is not None}

    @property
    def forces_a_call(self) -> bool:
        """Whether the model must call a tool: any (`required`), or the one that is named."""
        return self.tool_choice not in ("auto", "none")

    def refuse_unsupported(self, api: str) -> None:
        """`InputError` for a seed or log-probabilities, which `api` does not have: leaving them out
        would mislead."""
        for name, value in (("log-probabilities", self.logprobs), ("a seed", self.seed)):
            if value is not None:
                raise InputError(
                    f"{name} ({value}) are set, and {api} has none",
                    valid="null",
                    do="choose a server of chat completions, such as llm=openai_compatible",
                )


class ChatModel(Protocol):
    """One model of one API; any number of requests at once, from one event loop or several.

    Example:
        >>> async def answer(model: ChatModel) -> str:
        ...     turn = await model.respond([{"role": "user", "content": "When was it built?"}])
        ...     return turn.text
    """

    @property
    def name(self) -> str:
        """The name of the model."""
        ...

    def ready(self) -> None:
        """`InputError` if a package or the key is missing. Sends nothing."""
        ...

    async def respond(
        self, messages: Sequence[Message], tools: Tools = (), settings: SamplingParams | None = None
    ) -> Turn:
        """The next turn of the transcript.

        Args:
            messages: The transcript.
            settings: How to sample. None: the settings of the model.

        Raises:
            ModelError: If there is no usable reply.
        """
        ...

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        ...
