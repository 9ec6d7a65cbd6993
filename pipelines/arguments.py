"""Objects that are told apart by the arguments they were made of."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


class ByArguments:
    """Constructor arguments are attributes of the same names; representation, equality and hash
    follow from them. Nested mappings and lists are compared by their content."""

    def __repr__(self) -> str:
        parameters = inspect.signature(type(self).__init__).parameters
        shown = []
        for name, value in self._arguments().items():
            parameter = parameters[name]
            positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            leading = positional and parameter.default is parameter.empty
            shown.append(repr(value) if leading else f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ByArguments)
            and type(self) is type(other)
            and self._identity() == other._identity()
        )

    def __hash__(self) -> int:
        return hash((type(self), self._identity()))

    def _identity(self) -> Any:
        """What makes two objects of one class equal; hashable."""
        return _hashable(self._arguments())

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments by name."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
        return {name: getattr(self, name) for name in named if name != "self"}


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((name, _hashable(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return value
