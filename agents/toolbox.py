"""One face over the search tool's interfaces, for loops that call tools by themselves.

Looks at the names and arguments that `specs()` declares and at nothing else, so that a tool with
fewer abilities is used as far as it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agents import pages
from agents.base import Episode
from toolkit.contracts import ToolResult


class Shown(NamedTuple):
    """What a page of results says: its pieces, the whole ranking where the call made one, and the
    id under which more of it can be had."""

    pieces: Sequence[pages.Piece] = ()
    ranking: Sequence[str] = ()
    search_id: str = ""


class Toolbox:
    """Calls of one episode. A refused call gives None."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._accepts = {
            function["name"]: frozenset(function["parameters"]["properties"])
            for spec in episode.tool.specs()
            if (function := spec.get("function", spec))
        }
        self._reader = next((n for n in ("read_document", "get_document") if self.offers(n)), "")

    def offers(self, name: str) -> bool:
        return name in self._accepts

    @property
    def reads(self) -> bool:
        """Whether documents can be read."""
        return bool(self._reader)

    @property
    def browses(self) -> bool:
        """Whether a ranking can be paged through."""
        return self.offers("read_search_results")

    def search(self, query: str, reason: str) -> Shown | None:
        result = self._call("search", {"query": query}, reason)
        if result is None:
            return None
        pieces = pages.results(result.text, result.call.shown)
        return Shown(pieces, result.call.ranking, pages.search_id(result.text))

    def browse(self, search_id: str, offset: int, reason: str) -> Shown | None:
        """The page of a ranking that begins at rank `offset`; only where the tool `browses`."""
        arguments = {"search_id": search_id, "offset": offset}
        result = self._call("read_search_results", arguments, reason)
        if result is None:
            return None
        return Shown(pages.results(result.text, result.call.shown), (), search_id)

    def read(self, unit_id: str, offset: int, reason: str) -> pages.Reading | None:
        """A document from line `offset` (0: where the tool begins by itself)."""
        arguments = {"docid": unit_id, **({"offset": offset} if offset else {})}
        result = self._call(self._reader, arguments, reason)
        return pages.document(result.text) if result else None

    def _call(self, name: str, arguments: Mapping[str, Any], reason: str) -> ToolResult | None:
        accepted = self._accepts[name]
        wanted = {"reason": reason, **arguments}
        result = self._episode.call(
            name, {key: wanted[key] for key in wanted if key in accepted}, content=reason
        )
        return None if result.failed else result
