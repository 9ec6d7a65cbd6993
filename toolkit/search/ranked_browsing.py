"""Search, page through the cached ranking, read by lines: the three tools of Pi-Serini."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from toolkit.contracts import PASSAGE_MARK, DocumentStore, Hit, Lines, SearchBackend, Unit, parent
from toolkit.errors import InputError
from toolkit.search.checks import one_of, whole_number
from toolkit.search.errors import ToolError, quoted
from toolkit.search.excerpts import METHODS, Query
from toolkit.search.pages import Limits, document_page, hit_block, line_of, results_page, short
from toolkit.search.schemas import Text, ToolSpec, Whole, call_text
from toolkit.search.session import Page, Ranking, Session, Tool

_FAR = 10**9
_LONGEST_PASSAGE_SUFFIX = len(PASSAGE_MARK) + 9
_REASON = Text("reason", "Why you make this call, in at most 100 words.", blank=True)


class RankedBrowsing(Session):
    """A session with `search`, `read_search_results` and `read_document`.

    Defaults are Pi-Serini's. `depth`: hits of a ranking, all cached and counted as surfaced.
    `page`: hits that `search` shows; `browse_page`, `max_page`: hits that `read_search_results`
    shows by default and at most. `max_rankings`: rankings kept, oldest dropped. `excerpt`: `window`
    (best query-biased stretch), `first_match` or `none`, of `excerpt_characters` characters, for
    ranks up to `excerpt_depth`. `read_limit`: lines that `read_document` shows by default.
    `max_lines`, `max_bytes` (UTF-8): size of one output; it is cut between hits or lines, never
    inside one, and its hint goes on at the first omitted one; a single hit or line is always shown,
    whatever its size. `clock`: seconds. Raises `InputError` for impossible values.
    """

    def __init__(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        *,
        depth: int = 1000,
        page: int = 5,
        browse_page: int = 10,
        max_page: int = 50,
        max_rankings: int = 32,
        excerpt: str = "window",
        excerpt_characters: int = 220,
        excerpt_depth: int = 50,
        read_limit: int = 200,
        max_lines: int = 2000,
        max_bytes: int = 50_000,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.max_page = whole_number("max_page", max_page, low=1)
        self.page = whole_number("page", page, low=1, high=max_page)
        self.browse_page = whole_number("browse_page", browse_page, low=1, high=max_page)
        if page > whole_number("depth", depth, low=1):
            raise InputError(
                f"page={page} shows more hits than depth={depth} ranks",
                valid=f"page from 1 to {depth}",
                do="lower page or raise depth",
            )
        self.excerpt = one_of("excerpt", excerpt, METHODS)
        self.excerpt_characters = whole_number("excerpt_characters", excerpt_characters, low=20)
        self.excerpt_depth = whole_number("excerpt_depth", excerpt_depth, low=0)
        self.limits = Limits(
            whole_number("max_lines", max_lines, low=1), whole_number("max_bytes", max_bytes, low=1)
        )
        self.read_limit = whole_number("read_limit", read_limit, low=1, high=max_lines)
        whole_number("max_rankings", max_rankings, low=1)
        super().__init__(backend, store, depth=depth, max_rankings=max_rankings, clock=clock)

    def _offer(self) -> Iterable[Tool]:
        search = ToolSpec(
            "search",
            f"Rank the collection for a query. Shows the first {self.page} hits and keeps up to "
            f"{self.depth} under a search_id, which read_search_results pages through.",
            (_REASON, Text("query", "The search query.")),
        )
        browse = ToolSpec(
            "read_search_results",
            "Show more hits of an earlier search, without searching again.",
            (
                _REASON,
                Text("search_id", "The search_id of an earlier search, such as s1."),
                Whole("offset", f"First rank to show (default {self.page + 1}).", 1, _FAR),
                Whole("limit", f"Hits to show (default {self.browse_page}).", 1, self.max_page),
            ),
        )
        read = ToolSpec(
            "read_document",
            "Read a document by lines. The id of a passage shows its document, from the line where "
            "the passage starts unless offset is given.",
            (
                _REASON,
                Text("docid", "A docid as result pages show it."),
                Whole("offset", "First line to show (default 1).", 1, _FAR),
                Whole("limit", f"Lines (default {self.read_limit}).", 1, self.limits.lines),
            ),
        )
        yield Tool(search, self._search)
        yield Tool(browse, self._read_search_results)
        yield Tool(read, self._read_document)

    def _search(self, reason: str, query: str) -> Page:
        search_id, ranking = self._rank(query)
        if not ranking.hits:
            return Page(
                f"[search_id={search_id} no hits query={short(ranking.request.query)}]\n"
                "Nothing matched. Call search with other words.",
                ranking=ranking,
            )
        page = self._results(search_id, ranking, 1, self.page, self.browse_page)
        return page._replace(ranking=ranking)

    def _read_search_results(
        self, reason: str, search_id: str, offset: int | None, limit: int | None
    ) -> Page:
        ranking = self._kept(search_id)
        first = offset or self.page + 1
        if first > len(ranking.hits):
            again = call_text("read_search_results", reason="...", search_id=search_id, offset=1)
            raise ToolError(
                "past_the_end",
                f"search {search_id} has {len(ranking.hits)} hits; rank {first} is past its end. "
                f"Call {again} for its first hits, or search with another query.",
                tool="read_search_results",
                field="offset",
            )
        shown = limit or self.browse_page
        return self._results(search_id, ranking, first, shown, shown)

    def _read_document(
        self, reason: str, docid: str, offset: int | None, limit: int | None
    ) -> Page:
        asked = limit or self.read_limit
        try:
            found = self._lines(parent(docid), offset or self._first_line(docid), asked)
        except KeyError:
            raise ToolError(
                "unknown_docid",
                f"docid {quoted(docid)} is unknown. Call search(...) first and read a docid that "
                "its results show.",
                tool="read_document",
                field="docid",
            ) from None
        text, _ = document_page(found, asked, self.limits)
        return Page(text, "opened", (found.docid,))

    def _kept(self, search_id: str) -> Ranking:
        if search_id in self._rankings:
            return self._rankings[search_id]
        ids = [f"s{number}" for number in range(1, len(self._queries) + 1)]
        if search_id in ids:
            again = call_text("search", reason="...", query=self._queries[ids.index(search_id)])
            code, message = (
                "dropped_search_id",
                f"search_id {quoted(search_id)} was dropped: only the newest {self._max_rankings} "
                f"rankings are kept. Call {again} to rank it again.",
            )
        else:
            known = f" (kept: {', '.join(self._rankings)})" if ids else ""
            code, message = (
                "unknown_search_id",
                f"search_id {quoted(search_id)} is unknown{known}. Call search(...) first.",
            )
        raise ToolError(code, message, tool="read_search_results", field="search_id")

    def _lines(self, docid: str, first: int, limit: int) -> Lines:
        try:
            return self._store.lines(docid, first, limit)
        except ValueError:
            total = self._store.lines(docid, 1, 1).total
            if first <= total:
                raise
        again = call_text("read_document", reason="...", docid=docid, offset=1)
        raise ToolError(
            "past_the_end",
            f"document {quoted(docid)} has {total} lines; line {first} is past its end. "
            f"Call {again} for its beginning.",
            tool="read_document",
            field="offset",
        )

    def _first_line(self, unit_id: str) -> int:
        """The line of the document where a passage starts; 1 for a document's own id."""
        docid = parent(unit_id)
        if docid == unit_id:
            return 1
        # Stores compute with the passage's number; no document has so many passages.
        if len(unit_id) - len(docid) > _LONGEST_PASSAGE_SUFFIX:
            raise KeyError(unit_id)
        passage = self._store.texts([unit_id])[0].text
        return line_of(passage, self._store.lines(docid, 1, _FAR).lines)

    def _results(
        self, search_id: str, ranking: Ranking, first: int, limit: int, next_limit: int
    ) -> Page:
        query, total = ranking.request.query, len(ranking.hits)
        hits = ranking.hits[first - 1 : first - 1 + limit]
        blocks = self._blocks(query, first, hits)
        text, count = results_page(search_id, query, first, total, blocks, next_limit, self.limits)
        return Page(text, "previewed", ranking.unit_ids[first - 1 : first - 1 + count])

    def _blocks(self, query: str, first: int, hits: Sequence[Hit]) -> list[str]:
        words, cut = Query(query), METHODS[self.excerpt]
        rows = zip(hits, self._texts(first, hits), strict=True)
        blocks = []
        for rank, (hit, unit) in enumerate(rows, start=first):
            shown = self._excerpted(rank)
            excerpt = cut(words, unit.text, self.excerpt_characters) if shown else ""
            blocks.append(hit_block(rank, hit, hit.title or unit.title, excerpt))
        return blocks

    def _texts(self, first: int, hits: Sequence[Hit]) -> list[Unit]:
        if self._excerpted(first) or not all(hit.title for hit in hits):
            return self._units([hit.unit_id for hit in hits])
        return [Unit(hit.unit_id, hit.title, "") for hit in hits]

    def _excerpted(self, rank: int) -> bool:
        return self.excerpt != "none" and rank <= self.excerpt_depth
