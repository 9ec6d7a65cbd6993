"""Rankings in pages and documents by lines: what Pi-Serini's interface and others like it share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from toolkit.checks import check_integer
from toolkit.contracts import PASSAGE_MARK, Hit, ResultsPage, ToolUse, parent
from toolkit.errors import InputError
from toolkit.search.errors import ToolError, quoted
from toolkit.search.pages import Limits, document_page, line_of, results_page, short
from toolkit.search.schemas import FAR, IntegerParameter, TextParameter, ToolSpec, call_text
from toolkit.search.session import CachedRanking, Page, SessionSettings, Tool, ToolSession

BROWSE, READ = "read_search_results", "read_document"
REASON = TextParameter("reason", "Why you make this call, in at most 100 words.", blank=True)
_LONGEST_PASSAGE_SUFFIX = len(PASSAGE_MARK) + 9


@dataclass(frozen=True, kw_only=True)
class Browsing(SessionSettings):
    """Settings of an interface with `read_search_results` and `read_document`, beside a tool of its
    own that searches.

    `depth`: hits of a ranking, all kept and counted as surfaced. `page`: hits that a search shows;
    `browse_page`, `max_page`: hits that `read_search_results` shows by default and at most.
    Excerpts have `excerpt_characters` characters, and hits up to rank `excerpt_depth` have one.
    `read_limit`: lines that `read_document` shows by default. `max_lines`, `max_bytes` (UTF-8):
    size of one output; it is cut between hits or lines, never inside one, and its hint goes on at
    the first omitted one; a single hit or line is always shown, whatever its size.

    Raises `InputError` for impossible values.
    """

    depth: int = 1000
    page: int = 5
    browse_page: int = 10
    max_page: int = 50
    excerpt_characters: int = 220
    excerpt_depth: int = 50
    read_limit: int = 200
    max_lines: int = 2000
    max_bytes: int = 50_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("max_page", self.max_page)
        check_integer("page", self.page, most=self.max_page)
        check_integer("browse_page", self.browse_page, most=self.max_page)
        check_integer("depth", self.depth)
        if self.page > self.depth:
            raise InputError(
                f"page={self.page} shows more hits than depth={self.depth} ranks",
                valid=f"page from 1 to {self.depth}",
                do="lower page or raise depth",
            )
        check_integer("excerpt_characters", self.excerpt_characters, least=20)
        check_integer("excerpt_depth", self.excerpt_depth, least=0)
        check_integer("max_lines", self.max_lines)
        check_integer("max_bytes", self.max_bytes)
        check_integer("read_limit", self.read_limit, most=self.max_lines)

    @property
    def limits(self) -> Limits:
        """The size of one output."""
        return Limits(self.max_lines, self.max_bytes)


Settings = TypeVar("Settings", bound=Browsing)


class BrowsingSession(ToolSession[Settings]):
    """One question's session: see `Browsing`. An interface writes `tools`, whose searches give
    `first_page`, and `filled`."""

    @property
    def search_tool(self) -> ToolUse:
        """The tool that hints name as the one that makes rankings."""
        return ToolUse("search", "query")

    @abstractmethod
    def filled(self, query: str, first: int, hits: Sequence[Hit]) -> list[Hit]:
        """The hits from rank `first` with their titles and excerpts."""

    def browsing_tools(self) -> Iterable[Tool]:
        """`read_search_results` and `read_document`."""
        settings = self.settings
        browse = ToolSpec(
            BROWSE,
            "Show more hits of an earlier search, without searching again.",
            (
                REASON,
                TextParameter("search_id", "The search_id of an earlier search, such as s1."),
                IntegerParameter(
                    "offset", f"First rank to show (default {settings.page + 1}).", 1, FAR
                ),
                IntegerParameter(
                    "limit", f"Hits to show (default {settings.browse_page}).", 1, settings.max_page
                ),
            ),
        )
        read = ToolSpec(
            READ,
            "Read a document by lines. The id of a passage shows its document, from the line where "
            "the passage starts unless offset is given.",
            (
                REASON,
                TextParameter("docid", "A docid as result pages show it."),
                IntegerParameter("offset", "First line to show (default 1).", 1, FAR),
                IntegerParameter(
                    "limit", f"Lines (default {settings.read_limit}).", 1, settings.max_lines
                ),
            ),
        )
        yield Tool(browse, self._read_search_results)
        yield Tool(read, self._read_document, reads_by="docid")

    def first_page(self, query: str, otherwise: str) -> Page:
        """The first hits of a new search, or, where there are none, what to do `otherwise`."""
        search_id, ranking = self.rank(query)
        searched = ranking.request.query
        if not ranking.hits:
            return Page(
                f"[search_id={search_id} no hits query={short(searched)}]{self.remark(ranking)}\n"
                f"Nothing matched. {otherwise}",
                ResultsPage(searched, (), 0, search_id=search_id),
                ranking,
            )
        page = self._results(search_id, ranking, 1, self.settings.page, None)
        return page._replace(ranking=ranking)

    def remark(self, ranking: CachedRanking) -> str:
        """What the header of each page of a ranking ends with."""
        return ""

    def _read_search_results(
        self, reason: str, search_id: str, offset: int | None, limit: int | None
    ) -> Page:
        ranking = self.kept(search_id)
        if ranking is None:
            raise self._not_kept(search_id)
        first = offset or self.settings.page + 1
        if first > len(ranking.hits):
            again = call_text(BROWSE, reason="...", search_id=search_id, offset=1)
            raise ToolError(
                "past_the_end",
                f"search {search_id} has {len(ranking.hits)} hits; rank {first} is past its end. "
                f"Call {again} for its first hits, or search with another query.",
                tool=BROWSE,
                field="offset",
            )
        return self._results(search_id, ranking, first, limit or self.settings.browse_page, limit)

    def _read_document(
        self, reason: str, docid: str, offset: int | None, limit: int | None
    ) -> Page:
        limit_shown = self.settings.read_limit
        try:
            first = offset or self._first_line(docid)
            lines = self.lines(READ, parent(docid), first, limit or limit_shown, reason="...")
        except KeyError:
            raise ToolError(
                "unknown_docid",
                f"docid {quoted(docid)} is unknown. Call {self.search_tool.tool}(...) first and "
                "read a docid that its results show.",
                tool=READ,
                field="docid",
            ) from None

        def next_call(line: int) -> str:
            count = limit or limit_shown
            return call_text(READ, reason="...", docid=lines.docid, offset=line, limit=count)

        return Page(*document_page(lines, self.settings.limits, READ, next_call, limit))

    def _not_kept(self, search_id: str) -> ToolError:
        ids = [f"s{number}" for number in range(1, len(self._queries) + 1)]
        if search_id in ids:
            query = {self.search_tool.argument: self._queries[ids.index(search_id)]}
            again = call_text(self.search_tool.tool, reason="...", **query)
            code, message = (
                "dropped_search_id",
                f"search_id {quoted(search_id)} was dropped: only the newest {self._max_rankings} "
                f"rankings are kept. Call {again} to rank it again.",
            )
        else:
            known = f" (kept: {', '.join(self._rankings)})" if ids else ""
            code, message = (
                "unknown_search_id",
                f"search_id {quoted(search_id)} is unknown{known}. "
                f"Call {self.search_tool.tool}(...) first.",
            )
        return ToolError(code, message, tool=BROWSE, field="search_id")

    def _first_line(self, unit_id: str) -> int:
        """The line of the document where a passage starts; 1 for a document's own id."""
        docid = parent(unit_id)
        if docid == unit_id:
            return 1
        # Stores compute with the passage's number; no document has so many passages.
        if len(unit_id) - len(docid) > _LONGEST_PASSAGE_SUFFIX:
            raise KeyError(unit_id)
        passage = self.store.texts([unit_id])[0].text
        return line_of(passage, self.store.lines(docid, 1, FAR).lines)

    def _results(
        self, search_id: str, ranking: CachedRanking, first: int, count: int, limit: int | None
    ) -> Page:
        """At most `count` hits from rank `first`; `limit` is what the caller asked for."""
        query = ranking.request.query
        hits = self.filled(query, first, ranking.hits[first - 1 : first - 1 + count])
        page = ResultsPage(query, hits, len(ranking.hits), first, search_id)
        default, limits = self.settings.browse_page, self.settings.limits
        return Page(*results_page(page, limit, default, limits, self.remark(ranking)))
