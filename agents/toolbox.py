"""One face over the search tool's interfaces, for loops that call tools by themselves.

Goes by what an interface declares (`abilities`) and by what its results show (`details`), so that
any interface is used as far as it goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.base import Episode
from toolkit.contracts import Continuation, SearchTool, ToolResult, ToolUse
from toolkit.errors import InputError


def search_of(tool: SearchTool) -> ToolUse:
    """The tool that takes a query; `InputError` where the interface has none."""
    search = tool.abilities.search
    if search is None:
        raise InputError(
            "the search tool declares no tool that searches, and the agent needs one",
            valid="an interface whose abilities name one",
            do="set searches_by on that tool of the interface, or choose another tool; with "
            "tool=grep set tool.syntax=words",
        )
    return search


class Toolbox:
    """Calls of one episode. A refused call gives None. `InputError` where no tool searches."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._search = search_of(episode.tool)
        self._read = episode.tool.abilities.read
        functions = [spec.get("function", spec) for spec in episode.tool.specs()]
        self._take_reasons = {
            function["name"]
            for function in functions
            if "reason" in function["parameters"]["properties"]
        }

    @property
    def reads(self) -> bool:
        """Whether documents can be read."""
        return self._read is not None

    def search(self, query: str, reason: str) -> ToolResult | None:
        return self._call(self._search.tool, {self._search.argument: query}, reason)

    def read(self, unit_id: str, reason: str) -> ToolResult | None:
        """A document, from where the tool begins by itself; only where the tool `reads`."""
        if self._read is None:
            return None
        return self._call(self._read.tool, {self._read.argument: unit_id}, reason)

    def follow(self, continuation: Continuation, reason: str) -> ToolResult | None:
        """What follows a page."""
        return self._call(continuation.tool, continuation.arguments, reason)

    def _call(self, name: str, arguments: Mapping[str, Any], reason: str) -> ToolResult | None:
        extra = {"reason": reason} if name in self._take_reasons else {}
        result = self._episode.call(name, {**extra, **arguments}, content=reason)
        return None if result.failed else result
