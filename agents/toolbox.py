"""Calls to any search-tool interface, for agents without a language model.

The tools and arguments are those that the interface declares (`SearchTool.search_tool`,
`SearchTool.read_tool`), and results are read from their pages, so that no agent depends on the
names of an interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from soundingline.agents.base import Episode
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import Continuation, ToolResult


def search_of(tool: SearchTool) -> tuple[str, str]:
    """The tool that searches and its argument; `InputError` if the interface has none."""
    search = tool.search_tool
    if search is None:
        raise InputError(
            "the search tool declares no tool that searches, and the agent needs one",
            valid="an interface with a tool whose searches_by is set",
            do="set searches_by on that tool of the interface, or choose another tool; with "
            "tool=grep set tool.syntax=words",
        )
    return search


class Toolbox:
    """Calls of one episode. A refused call gives None. `InputError` where no tool searches."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._search = search_of(episode.tool)
        self._read = episode.tool.read_tool
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
        name, argument = self._search
        return self._call(name, {argument: query}, reason)

    def read(self, unit_id: str, reason: str) -> ToolResult | None:
        """A document, from where the tool begins by itself; only where the tool `reads`."""
        if self._read is None:
            return None
        name, argument = self._read
        return self._call(name, {argument: unit_id}, reason)

    def follow(self, continuation: Continuation, reason: str) -> ToolResult | None:
        """What follows a page."""
        return self._call(continuation.tool, continuation.arguments, reason)

    def _call(self, name: str, arguments: Mapping[str, Any], reason: str) -> ToolResult | None:
        extra = {"reason": reason} if name in self._take_reasons else {}
        result = self._episode.call(name, {**extra, **arguments}, content=reason)
        return None if result.failed else result
