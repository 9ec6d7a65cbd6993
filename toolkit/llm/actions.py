"""Tool calls as JSON objects, for servers that constrain a reply by a JSON schema.

The model is shown the tools in a system message and replies with one action, an object that names
a tool and its arguments, or the final answer: `{"action": {"search": {"query": "old mill"}}}`. The
schema is a tree of objects below one root, as OpenAI's strict schemas require.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from soundingline.toolkit.json_text import try_json
from soundingline.toolkit.llm.errors import BadRequest, Truncated
from soundingline.toolkit.llm.messages import (
    ChatModel,
    Message,
    SamplingParams,
    Tools,
    object_schema,
    tool_spec,
    user,
)
from soundingline.toolkit.llm.messages import system as system_message
from soundingline.toolkit.llm.prompts import json_values

_ACTION = "action"
ANSWER = "final_answer"
# A word that no model writes in reply to a greeting unless its server constrains the reply.
_WORD = "cormorant"
_NOTE = tool_spec("note", "Notes a word.", {"word": {"type": "string", "enum": [_WORD]}})
_NOTE_TOKENS = 512  # of the reply; reasoning may precede it
_PERCENT = "Confidence"
# Characters of a string, so that no reply reaches its output limit, and of the answer alone, which
# small models otherwise fill with their explanation.
_LONGEST = 400
_LONGEST_FIELDS = {"Exact Answer": 100}
_HEAD = (
    "How to reply: write one JSON object with one action, and nothing before or after it. The "
    "actions are:"
)
_ANSWER_USAGE = (
    "The final answer. Its fields take the place of the lines with these labels, wherever a "
    "message mentions them."
)


class Action(NamedTuple):
    """What a reply does: the call of the tool `name` with `arguments` (an object, or text as in
    `FunctionCall`), or without a name the final answer `text`."""

    name: str = ""
    arguments: Mapping[str, Any] | str = ""
    text: str = ""


def action_schema(
    tools: Tools, choice: str, answer: Sequence[str] | None, *, bounded: bool
) -> dict[str, Any] | None:
    """The JSON schema of the next action; None if it is not constrained.

    Args:
        tools: The tools that may be called.
        choice: As in `SamplingParams.tool_choice`.
        answer: As in `SamplingParams.answer`.
        bounded: Whether strings have a longest length, which OpenAI's strict schemas do not know.
    """
    named = [spec for spec in tools if spec["name"] == choice]
    offered = named or ([] if choice == "none" else tools)
    branches = [object_schema({spec["name"]: spec["parameters"]}) for spec in offered]
    if answer and not named and choice != "required":
        branches.append(
            object_schema({ANSWER: object_schema({label: _field(label) for label in answer})})
        )
    if not branches or (choice == "auto" and not answer):
        return None
    schema = object_schema({_ACTION: {"anyOf": branches}})
    return _with_lengths(schema, _LONGEST) if bounded else schema


def describe_actions(tools: Tools, answer: Sequence[str] | None) -> str:
    """What a system message says about the actions."""
    blocks = [_HEAD]
    for spec in tools:
        properties = spec["parameters"]["properties"]
        lines = [
            _example({spec["name"]: dict.fromkeys(properties, "...")}),
            spec.get("description", ""),
            *(f"- {name}: {each.get('description', '')}" for name, each in properties.items()),
        ]
        blocks.append("\n".join(filter(None, lines)))
    if answer:
        fields = _example({ANSWER: dict.fromkeys(answer, "...")})
        percent = f"\n- {_PERCENT}: a number from 0 to 100." if _PERCENT in answer else ""
        blocks.append(f"{fields}\n{_ANSWER_USAGE}{percent}")
    return "\n\n".join(blocks)


def plain_messages(messages: Sequence[Message], description: str) -> list[dict[str, Any]]:
    """The transcript without tool calls: a call is the text of its action, its result a message of
    the user, and the system message ends in `description`. Neighbours of one role are joined,
    because some chat templates demand that user and assistant alternate."""
    plain: list[dict[str, Any]] = []
    if messages and messages[0]["role"] == "system":
        text, messages = f"{messages[0]['content']}\n\n{description}", messages[1:]
    else:
        text = description
    plain.append(system_message(text))
    for message in messages:
        if message["role"] == "assistant":
            written = (message.get("provider") or {}).get("text") or _written(message)
            turn = {name: field for name, field in message.items() if name != "tool_calls"}
            turn["content"] = written
        else:
            turn = user(message["content"])
        if plain[-1]["role"] == turn["role"]:
            turn["content"] = f"{plain.pop()['content']}\n\n{turn['content']}"
        plain.append(turn)
    return plain


def read_action(text: str) -> Action | None:
    """The action of a reply, perhaps with prose or a code fence around it; None without one.
    Arguments of any type are those of a call: the tool refuses what it cannot take."""
    for value in json_values(text, only_objects=True):
        action = value.get(_ACTION)
        if isinstance(action, str) and action:  # the name alone
            action = {action: {}}
        if not isinstance(action, Mapping) or not action:
            continue
        name, arguments = next(iter(action.items()))
        if name == ANSWER and isinstance(arguments, Mapping):
            return Action(text=_lines(arguments))
        written = arguments if isinstance(arguments, str) else _json(arguments)
        return Action(text=written) if name == ANSWER else Action(name, written)
    return None


async def unconstrained_reply(model: ChatModel, settings: SamplingParams) -> str | None:
    """What a model replies, with `calls="schema"`, where the schema demands a word that is not in
    the prompt: None if it is that word, so that the server constrains replies, or if the reply was
    cut; the error if the server refuses the request."""
    request = replace(settings, tool_choice=_NOTE["name"], max_output_tokens=_NOTE_TOKENS)
    try:
        turn = await model.respond([user("Say hello.")], [_NOTE], request)
    except Truncated:
        return None
    except BadRequest as error:
        return str(error)
    reply = ", ".join([turn.text, *(call.arguments for call in turn.tool_calls)])
    return None if _WORD in reply else reply


def _field(label: str) -> dict[str, Any]:
    if label == _PERCENT:
        return {"type": "integer", "minimum": 0, "maximum": 100}
    return {"type": "string"}


def _with_lengths(schema: Any, longest: int) -> Any:
    """The schema with a longest length of each string that has none and is not one of a list."""
    if isinstance(schema, list):
        return [_with_lengths(each, longest) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {
        name: _with_lengths(each, _LONGEST_FIELDS.get(name, longest))
        for name, each in schema.items()
    }
    if schema.get("type") == "string" and "enum" not in schema:
        return {"maxLength": longest, **inner}
    return inner


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _example(action: Mapping[str, Any]) -> str:
    return _json({_ACTION: action})


def _written(message: Message) -> str:
    """The actions of an assistant message that was not written as one, such as an agent's own."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    actions = [
        _example({function["name"]: try_json(function["arguments"], function["arguments"])})
        for function in functions
    ]
    return "\n".join(filter(None, [message.get("content"), *actions]))


def _lines(fields: Mapping[str, Any]) -> str:
    """The fields of an answer as lines with labels. All but the last are on one line."""
    lines: list[str] = []
    for label, value in fields.items():
        text = value if isinstance(value, str) else _json(value)
        percent = "%" if label == _PERCENT and isinstance(value, int) else ""
        last = len(lines) == len(fields) - 1
        lines.append(f"{label}: {text.strip() if last else ' '.join(text.split())}{percent}")
    return "\n".join(lines)
