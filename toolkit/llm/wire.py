"""What the three wire formats share: messages made safe to send, tool specs, and reply fields.

A model may write anything into a call: a name no API accepts, arguments that are not JSON. The
transcript keeps it as it was written; what is sent is repaired, always in the same way, because
servers refuse the whole request otherwise, and a changed prefix is not cached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from soundingline.toolkit.json_text import decode_json_at, try_json
from soundingline.toolkit.llm.errors import BadReply
from soundingline.toolkit.llm.messages import FunctionCall, Message, Token

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
_PREFIX, _CHANNEL = "functions.", "<|"
# Types of the parts of a message: of OpenAI's APIs, Mistral's, Anthropic's and Databricks'.
_TEXT_PARTS = ("text", "output_text", "summary_text", "reasoning_text")
_THINKING_PARTS = ("thinking", "redacted_thinking", "reasoning")
_THINKING_FIELDS = ("thinking", "reasoning", "summary", "content", "text")
_CALL_PARTS = ("tool_use", "tool_call", "function_call", "function")
_USAGE = re.compile(r'"usage"\s*:\s*')


def sendable_name(name: str) -> str:
    """A tool name that every API accepts."""
    return _NOT_IN_NAMES.sub("_", tool_name(name))[:_LONGEST_NAME] or "unnamed"


def tool_name(name: str) -> str:
    """The name of a tool without the marks of gpt-oss's format, which some servers leave in it:
    `functions.search<|channel|>commentary` calls `search`. No API accepts a tool with such a name.
    """
    return name.partition(_CHANNEL)[0].strip().removeprefix(_PREFIX) or name


def sendable_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object; anything else becomes `{"malformed": <the text>}`."""
    try:
        value = FunctionCall("", "", arguments).parsed()
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"malformed": arguments}


def sendable_arguments(arguments: str) -> str:
    """A call's arguments as text of a JSON object, unchanged if they are one."""
    value = sendable_object(arguments)
    if arguments and "malformed" not in value:
        return arguments
    return json.dumps(value, ensure_ascii=False)


def present(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are not None."""
    return {name: value for name, value in parameters.items() if value is not None}


def provider_part(message: Message, api: str) -> Mapping[str, Any]:
    """The state of `api` in an assistant message; empty for that of another API."""
    part = message.get("provider") or {}
    return part if part.get("api") == api else {}


def without_none(value: Any) -> Any:
    """JSON values without the entries that are None."""
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [without_none(item) for item in value]
    return value


def tool_calls(
    calls: Iterable[Mapping[str, Any]], messages: Sequence[Message]
) -> tuple[FunctionCall, ...]:
    """The calls of a reply to `messages` from the objects of any API: name and arguments (`input`
    at Anthropic) stand in the object, or in its `function`. An absent id becomes `call_<number>` by
    the number of the call in the transcript."""
    read = []
    first = 1 + sum(len(message.get("tool_calls") or ()) for message in messages)
    for number, call in enumerate(calls, start=first):
        identifier = call.get("call_id") or call.get("id") or f"call_{number}"
        function = call.get("function", call)
        arguments = function.get("arguments", function.get("input"))
        if isinstance(arguments, (dict, list)):  # Some servers send the object, not its text.
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = tool_name(str(function.get("name") or ""))
        read.append(FunctionCall(str(identifier), name, str(arguments or "")))
    return tuple(read)


class Content(NamedTuple):
    """What the content of a reply has: its text, its reasoning, its calls (for `tool_calls`), and,
    if there is reasoning, the `parts` that are sent back: all but the calls."""

    text: str
    reasoning: str = ""
    calls: Sequence[Mapping[str, Any]] = ()
    parts: Sequence[Any] = ()


def read_content(content: Any, where: str) -> Content:
    """The content of a reply: text, None, a part, or a list of texts and parts. A part is an object
    with text, thinking or a call. `BadReply` for a part of another kind; `where` names the
    server."""
    text, reasoning, calls, parts = [], [], [], []
    for part in _listed(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _CALL_PARTS:
            calls.append(part)
            continue
        parts.append(part)
        if kind in _THINKING_PARTS:
            thinking = next((part[name] for name in _THINKING_FIELDS if part.get(name)), None)
            reasoning.append(joined_text(thinking, where))
        else:
            text.append(joined_text(part, where))
    joined = "\n\n".join(filter(None, reasoning))
    return Content("".join(text), joined, calls, parts if joined else ())


def joined_text(value: Any, where: str) -> str:
    """The text of a reply's field: text, None, a part with text, or a list of these, joined.
    `BadReply` for anything else."""
    texts = []
    for part in _listed(value):
        text = part
        if isinstance(part, Mapping):
            text = part.get("text", part) if part.get("type", "text") in _TEXT_PARTS else part
        if text is not None and not isinstance(text, str):
            raise BadReply(f"{where}: the reply has {_described(part)} in place of text")
        texts.append(text or "")
    return "".join(texts)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _described(part: Any) -> str:
    if isinstance(part, Mapping) and "type" in part:
        return f"a part of the type {str(part['type'])[:40]!r}"
    if isinstance(part, Mapping):
        return f"an object with the keys {', '.join(map(str, part))[:80] or '(none)'}"
    return f"a value of the type {type(part).__name__}"


def count(usage: Any, *path: str) -> Any:
    """What a reply's usage has at a path, a token count or whatever the server sent instead (see
    `Usage`); None if it is absent."""
    for name in path:
        if not isinstance(usage, Mapping):
            return None
        usage = usage.get(name)
    return usage


def read_body(content: bytes, reply: dict[str, Any], what: str, hide: Callable[[str], str]) -> None:
    """Fill `reply` with the JSON object that is a reply's body.

    `BadReply` for another body, which it quotes the beginning of after `hide` has removed a key
    from it. The reply then has the `usage` that stands in the damaged object, or None if that
    cannot be read, and nothing if the body does not begin as an object, so that no model has sent
    it.
    """
    text = content.decode("utf-8-sig", "replace")
    value = try_json(text)
    if isinstance(value, dict):
        reply.update(value)
        return
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        try:
            *_, last = _USAGE.finditer(text)
            reply["usage"] = decode_json_at(text, last.end())[0]
        except ValueError:
            reply["usage"] = None
    beginning = hide(text)[:80]
    raise BadReply(f"{what} answered with something that is not a JSON object: {beginning!r}")


def tokens(logprobs: Mapping[str, Any] | None) -> Iterator[Token]:
    """The tokens of a reply by a choice's `logprobs`: one list of objects (chat completions,
    llama.cpp), or lists of tokens, of their log-probabilities and of the likeliest at each place
    (text completions of OpenAI and vLLM)."""
    listed = logprobs or {}
    for entry in listed.get("content") or ():
        likeliest = entry.get("top_logprobs") or ()
        top = {token["token"]: float(token["logprob"]) for token in likeliest}
        yield Token(str(entry["token"]), entry.get("logprob"), top)
    lists = (listed.get(name) or () for name in ("tokens", "token_logprobs", "top_logprobs"))
    for text, logprob, likeliest in zip_longest(*lists):
        yield Token(str(text), logprob, likeliest or {})
