"""Tool schemas in the function-calling form, and the check of a call's arguments against them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.search.errors import ToolError, quoted

MAX_CHARACTERS = 10_000
FAR = 10**9  # the largest rank or line that a call may name
# No tool takes nested arguments; writers of JSON recurse, and deeper nesting could break them.
_DEEPEST = 20
# JSON on one line. Made once: `json.dumps` makes an encoder at each call that has options.
json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


@dataclass(frozen=True)
class TextParameter:
    """A string argument, always required. `blank` allows it to be empty or white space.

    An integer is taken for its digits, since models send numeric docids as numbers.
    """

    name: str
    description: str
    blank: bool = False

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "description": self.description}

    def check(self, value: Any, tool: str) -> str:
        if value is None:
            raise _missing(self.name, tool)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
            value = str(value)
        if not isinstance(value, str):
            raise _refused("wrong_type", self.name, tool, "a string", value)
        if len(value) > MAX_CHARACTERS:
            most = f"at most {MAX_CHARACTERS} characters"
            raise _refused("too_long", self.name, tool, most, value)
        if not _encodable(value):
            raise _refused("bad_unicode", self.name, tool, "text without lone surrogates", value)
        if not self.blank and not value.strip():
            raise _refused("empty_value", self.name, tool, "a string that is not blank", value)
        return value


@dataclass(frozen=True)
class IntegerParameter:
    """An integer argument from `minimum` to `maximum`; null or absent means its default.

    `"5"` and `5.0` are taken for 5.
    """

    name: str
    description: str
    minimum: int
    maximum: int

    def schema(self) -> dict[str, Any]:
        return {
            "type": ["integer", "null"],
            "minimum": self.minimum,
            "maximum": self.maximum,
            "description": self.description,
        }

    def check(self, value: Any, tool: str) -> int | None:
        if value is None:
            return None
        valid = f"an integer from {self.minimum} to {self.maximum}, or null"
        number = _integer(value)
        if number is None:
            raise _refused("wrong_type", self.name, tool, valid, value)
        if not self.minimum <= number <= self.maximum:
            raise _refused("out_of_range", self.name, tool, valid, value)
        return number


@dataclass(frozen=True)
class ChoiceParameter:
    """One of some words; null or absent means the default."""

    name: str
    description: str
    choices: tuple[str, ...]
    default: str

    def schema(self) -> dict[str, Any]:
        return {
            "type": ["string", "null"],
            "enum": [*self.choices, None],
            "description": f"{self.description} Default: {self.default}.",
        }

    def check(self, value: Any, tool: str) -> str:
        if value is None:
            return self.default
        if not isinstance(value, str) or value.strip().lower() not in self.choices:
            code = "out_of_range" if isinstance(value, str) else "wrong_type"
            valid = f"one of {', '.join(self.choices)}, or null"
            raise _refused(code, self.name, tool, valid, value)
        return value.strip().lower()


@dataclass(frozen=True)
class ToolSpec:
    """One tool as the model sees it."""

    name: str
    description: str
    parameters: tuple[TextParameter | IntegerParameter | ChoiceParameter, ...]

    def schema(self) -> dict[str, Any]:
        """`name`, `description`, `parameters`; strict: every argument is required (optional ones
        are nullable) and no other is allowed."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
                "required": [parameter.name for parameter in self.parameters],
                "additionalProperties": False,
            },
        }

    def check(self, arguments: Any) -> dict[str, Any]:
        """The arguments as the tool wants them; `ToolError` for the first that is wrong."""
        if not isinstance(arguments, Mapping):
            raise ToolError(
                "arguments_not_an_object",
                f"arguments must be a JSON object; got {quoted(arguments)}. "
                f"Call {self.name} again with {self._names()}.",
                tool=self.name,
            )
        known = {parameter.name for parameter in self.parameters}
        for name in arguments:
            if not isinstance(name, str) or name not in known:
                raise ToolError(
                    "unknown_argument",
                    f"{self.name} has no argument {quoted(name)}. "
                    f"Call it again with {self._names()} only.",
                    tool=self.name,
                )
        return {
            parameter.name: parameter.check(arguments.get(parameter.name), self.name)
            for parameter in self.parameters
        }

    def _names(self) -> str:
        return ", ".join(parameter.name for parameter in self.parameters)


def recordable(arguments: Any) -> dict[str, Any]:
    """A call's arguments, or a search's notes, for the record: as they came where JSON and UTF-8
    can hold them."""
    try:
        json_text(arguments).encode()
        if isinstance(arguments, Mapping) and _shallow(arguments, _DEEPEST):
            return {str(name): value for name, value in arguments.items()}
    except (TypeError, ValueError, RecursionError):
        pass
    return {"unreadable": quoted(arguments)}


def _shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, (Mapping, list, tuple)):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_shallow(item, levels - 1) for item in inner)


def call_text(tool: str, **arguments: Any) -> str:
    """A call as the hints print it: `read_document(reason="...", docid="d1", offset=201)`."""
    pairs = (f"{name}={json_text(value)}" for name, value in arguments.items())
    return f"{tool}({', '.join(pairs)})"


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _missing(field: str, tool: str) -> ToolError:
    return ToolError(
        "missing_argument",
        f"{tool} needs {field}. Call it again with {field}.",
        tool=tool,
        field=field,
    )


def _refused(code: str, field: str, tool: str, valid: str, value: Any) -> ToolError:
    return ToolError(
        code,
        f"{field} must be {valid}; got {quoted(value)}. Call {tool} again with a valid {field}.",
        tool=tool,
        field=field,
    )
