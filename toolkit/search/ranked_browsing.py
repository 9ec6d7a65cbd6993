"""Search, page through the cached ranking, read by lines: the three tools of Pi-Serini."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from toolkit.contracts import DocumentStore, Hit, SearchBackend, Unit
from toolkit.errors import InputError
from toolkit.search.browsing import REASON, Browsing, BrowsingSession
from toolkit.search.excerpts import METHODS, Query
from toolkit.search.schemas import TextParameter, ToolSpec
from toolkit.search.session import Page, Tool


@dataclass(frozen=True, kw_only=True)
class RankedBrowsing(Browsing):
    """Settings of an interface with `search`, `read_search_results` and `read_document`.

    Defaults are Pi-Serini's. `excerpt`: `window` (best query-biased stretch), `first_match` or
    `none`. For the other settings see `Browsing`. Raises `InputError` for impossible values.
    """

    excerpt: str = "window"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.excerpt not in METHODS:
            raise InputError(f"excerpt={self.excerpt!r}", valid=", ".join(METHODS))

    def session(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        clock: Callable[[], float] = time.perf_counter,
    ) -> RankedBrowsingSession:
        """A session for one question; `clock` gives seconds."""
        return self.open_session(RankedBrowsingSession, backend, store, clock, depth=self.depth)


class RankedBrowsingSession(BrowsingSession[RankedBrowsing]):
    """One question's session: see `RankedBrowsing`."""

    def tools(self) -> Iterable[Tool]:
        settings = self.settings
        search = ToolSpec(
            "search",
            f"Rank the collection for a query. Shows the first {settings.page} hits and keeps up "
            f"to {settings.depth} under a search_id, which read_search_results pages through.",
            (REASON, TextParameter("query", "The search query.")),
        )
        yield Tool(search, self._search, searches_by="query")
        yield from self.browsing_tools()

    def _search(self, reason: str, query: str) -> Page:
        return self.first_page(query, "Call search with other words.")

    def filled(self, query: str, first: int, hits: Sequence[Hit]) -> list[Hit]:
        """The hits from rank `first` with their titles and excerpts."""
        words, cut = Query(query), METHODS[self.settings.excerpt]
        rows = zip(hits, self._texts(first, hits), strict=True)
        filled = []
        for rank, (hit, unit) in enumerate(rows, start=first):
            excerpt = ""
            if self._excerpted(rank):
                excerpt = cut(words, unit.text, self.settings.excerpt_characters)
            title = hit.title or unit.title
            filled.append(hit._replace(rank=rank, title=title, excerpt=excerpt, text=""))
        return filled

    def _texts(self, first: int, hits: Sequence[Hit]) -> list[Unit]:
        if self._excerpted(first) or not all(hit.title for hit in hits):
            return self.units([hit.unit_id for hit in hits])
        return [Unit(hit.unit_id, hit.title, "") for hit in hits]

    def _excerpted(self, rank: int) -> bool:
        return self.settings.excerpt != "none" and rank <= self.settings.excerpt_depth
