"""Search, page through the ranking, and read by lines: the three tools of Pi-Serini."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from soundingline.toolkit.data import Hit, Unit, parent
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.search.session import CachedSearch, SearchTool, Tool, ToolOutput
from soundingline.toolkit.search.tool import (
    LARGEST_OFFSET,
    Parameter,
    ResultsPage,
    ToolError,
    call_text,
    document_page,
    line_of,
    quoted,
    results_page,
    short,
    unknown_docid,
)

SNIPPETS = ("window", "first_match", "none")
_BROWSE, _READ = "read_search_results", "read_document"


@dataclass(kw_only=True, eq=False)
class RankedBrowsing(SearchTool):
    """`search`, `read_search_results` and `read_document`, with Pi-Serini's defaults
    (arXiv:2605.10848).

    An output is cut between hits or lines, and its hint continues at the first one that was left
    out. A single hit or line is shown whatever its size.

    Args:
        depth: hits of a ranking, all of which count as surfaced.
        page: hits that a search shows.
        browse_page, max_page: hits that `read_search_results` shows by default and at most.
        excerpt: `window` (the stretch of text that matches the query best), `first_match` (the
            text around the earliest match, as Pi-Serini shows it; see `snippets.first_match`) or
            `none`.
        titles: whether hits are shown with their titles. BrowseComp-Plus's documents have theirs in
            the text, and Pi-Serini shows none.
        excerpt_characters: length of a snippet.
        excerpt_depth: hits up to this rank have a snippet. Hits without one are listed, and do not
            count as previewed.
        read_limit: lines that `read_document` shows by default.
        max_lines, max_bytes: size of one output, in lines and in bytes of UTF-8.
        reason_words: the most words of the argument `reason`; None for any number.

    Example:
        >>> tool = RankedBrowsing(page=3).open(backend, store)
        >>> result = tool.call("search", {"reason": "Where is it?", "query": "old mill"})
        >>> print(result.text)
        [search_id=s1 ranks 1-1 of 1 query="old mill"]
        1. docid=d1 score=0.8197 title=Mill
           The old mill stands by the river. It was built in 1820.
        End of the ranking.
    """

    depth: int = 1000
    page: int = 5
    browse_page: int = 10
    max_page: int = 50
    excerpt: str = "window"
    titles: bool = True
    excerpt_characters: int = 220
    excerpt_depth: int = 50
    read_limit: int = 200
    max_lines: int = 2000
    max_bytes: int = 50_000
    reason_words: int | None = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.excerpt not in SNIPPETS:
            raise InputError(f"excerpt={self.excerpt!r}", valid=", ".join(SNIPPETS))
        for name in ("max_page", "depth", "max_lines", "max_bytes"):
            check_int(name, getattr(self, name))
        check_int("page", self.page, le=self.max_page)
        check_int("browse_page", self.browse_page, le=self.max_page)
        check_int("read_limit", self.read_limit, le=self.max_lines)
        check_int("excerpt_characters", self.excerpt_characters, ge=20)
        check_int("excerpt_depth", self.excerpt_depth, ge=0)
        if self.reason_words is not None:
            check_int("reason_words", self.reason_words)
        if self.page > self.depth:
            raise InputError(
                f"page={self.page} shows more hits than depth={self.depth} ranks",
                valid=f"page from 1 to {self.depth}",
                do="lower page or raise depth",
            )

    @property
    def reason(self) -> Parameter:
        """The first argument of each tool."""
        most = "" if self.reason_words is None else f", in at most {self.reason_words} words"
        description = f"Why you make this call{most}."
        usage = f"Give a reason with each call: what you expect from it, and why now{most}."
        return Parameter("reason", description, blank=True, words=self.reason_words, usage=usage)

    def tools(self) -> Iterable[Tool]:
        yield Tool(
            "search",
            f"Rank the collection for a query. Shows the first {self.page} hits and keeps up "
            f"to {self.depth} under a search_id, which read_search_results pages through.",
            (self.reason, Parameter("query", "The search query.")),
            self._search,
            searches_by="query",
            usage=f"Rank the collection for a query, and show the first {self.page} hits. The "
            "ranking is kept under a search_id.",
        )
        offset = f"First rank to show (default {self.page + 1})."
        limit = f"Hits to show (default {self.browse_page})."
        yield Tool(
            _BROWSE,
            "Show more hits of an earlier search, without searching again.",
            (
                self.reason,
                Parameter("search_id", "The search_id of an earlier search, such as s1."),
                Parameter("offset", offset, bounds=(1, LARGEST_OFFSET)),
                Parameter("limit", limit, bounds=(1, self.max_page)),
            ),
            self._read_search_results,
            usage="Show further hits of a ranking that you have, without searching again. Page "
            "through a ranking that looks promising before you make another one.",
        )
        offset, limit = "First line to show (default 1).", f"Lines (default {self.read_limit})."
        yield Tool(
            _READ,
            "Read a document by lines. The id of a passage shows its document, from the line where "
            "the passage starts unless offset is given.",
            (
                self.reason,
                Parameter("docid", "A docid as result pages show it."),
                Parameter("offset", offset, bounds=(1, LARGEST_OFFSET)),
                Parameter("limit", limit, bounds=(1, self.max_lines)),
            ),
            self._read_document,
            reads_by="docid",
            usage="Show the lines of one document. Excerpts are short and may mislead: open a "
            "document before you rely on it. Read a moderate number of lines, and continue from "
            "the line where the page ended if the document still matters.",
        )

    def _search(self, query: str, reason: str) -> ToolOutput:
        """The first hits of a new search. `reason` changes nothing."""
        search_id, search = self.rank(query, self.depth)
        searched = search.request.query
        if not search.hits:
            return ToolOutput(
                f"[search_id={search_id} no hits query={short(searched)}]\n"
                "Nothing matched. Call search with other words.",
                ResultsPage(searched, (), 0, search_id=search_id),
                search,
            )
        output = self._results(search_id, search, 1, self.page, None)
        return output._replace(search=search)

    def _results(
        self, search_id: str, search: CachedSearch, first: int, count: int, limit: int | None
    ) -> ToolOutput:
        query = search.request.query
        hits = self.filled(query, first, search.hits[first - 1 : first - 1 + count])
        page = ResultsPage(query, hits, len(search.hits), first, search_id, excerpts=True)
        limits = (self.max_lines, self.max_bytes)
        return ToolOutput(*results_page(page, limit, self.browse_page, limits))

    def _read_search_results(
        self, reason: str, search_id: str, offset: int | None, limit: int | None
    ) -> ToolOutput:
        suffix = self.search_id_suffix
        if suffix and search_id + suffix in self._search_ids():
            search_id += suffix  # some callers leave it out
        search = self.cached(search_id)
        if search is None:
            ids = self._search_ids()
            if search_id in ids:
                query = self._queries[ids.index(search_id)]
                code = "dropped_search_id"
                message = (
                    f"was dropped: only the newest {self.max_rankings} rankings are kept. "
                    f"Call {call_text('search', reason='...', query=query)} to rank it again."
                )
            else:
                known = f" (kept: {', '.join(self._searches)})" if ids else ""
                code, message = "unknown_search_id", f"is unknown{known}. Call search(...) first."
            message = f"search_id {quoted(search_id)} {message}"
            raise ToolError(code, message, tool=_BROWSE, field="search_id")
        first = offset or self.page + 1
        if first > len(search.hits):
            again = call_text(_BROWSE, reason="...", search_id=search_id, offset=1)
            raise ToolError(
                "past_the_end",
                f"search {search_id} has {len(search.hits)} hits; rank {first} is past its end. "
                f"Call {again} for its first hits, or search with another query.",
                tool=_BROWSE,
                field="offset",
            )
        return self._results(search_id, search, first, limit or self.browse_page, limit)

    def _search_ids(self) -> list[str]:
        """The search ids of all searches, including those whose rankings were dropped."""
        suffix = self.search_id_suffix
        return [f"s{number}{suffix}" for number in range(1, len(self._queries) + 1)]

    def _read_document(
        self, reason: str, docid: str, offset: int | None, limit: int | None
    ) -> ToolOutput:
        count = limit or self.read_limit
        try:
            first = offset or self._first_line(docid)
            lines = self.read_lines(_READ, parent(docid), first, count, reason="...")
        except KeyError:
            do = "Call search(...) first and read a docid that its results show."
            raise unknown_docid(docid, do, tool=_READ) from None
        following = {"reason": "...", "docid": lines.docid, "offset": 0, "limit": count}
        limits = (self.max_lines, self.max_bytes)
        return ToolOutput(*document_page(lines, _READ, following, limits, limit))

    def _first_line(self, unit_id: str) -> int:
        """The line of the document in which a passage begins; 1 for a docid."""
        docid = parent(unit_id)
        if docid == unit_id:
            return 1
        passage = self.store.texts([unit_id])[0].text
        return line_of(passage, self.store.lines(docid, 1, LARGEST_OFFSET).lines)

    def filled(self, query: str, first: int, hits: Sequence[Hit]) -> list[Hit]:
        from soundingline.toolkit.search.snippets import METHODS, QueryTerms  # it imports numba

        terms, make_snippet = QueryTerms(query), METHODS.get(self.excerpt)
        last = self.excerpt_depth if make_snippet else 0
        if first <= last or (self.titles and not all(hit.title for hit in hits)):
            units = self.units([hit.unit_id for hit in hits])
        else:
            units = [Unit(hit.unit_id, hit.title, "") for hit in hits]
        filled = []
        for rank, (hit, unit) in enumerate(zip(hits, units, strict=True), start=first):
            snippet = ""
            if make_snippet and rank <= last:
                snippet = make_snippet(terms, unit.text, self.excerpt_characters)
            title = (hit.title or unit.title) if self.titles else ""
            filled.append(hit._replace(rank=rank, title=title, snippet=snippet, text=""))
        return filled
