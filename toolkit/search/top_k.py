"""The best k texts at once, cut to a token budget: the interface of BrowseComp-Plus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from toolkit.checks import check_integer
from toolkit.contracts import (
    DocumentPage,
    DocumentStore,
    Hit,
    ResultsPage,
    SearchBackend,
    Unit,
    parent,
)
from toolkit.search.errors import ToolError, quoted
from toolkit.search.pages import Limits, document_page, short
from toolkit.search.schemas import FAR, IntegerParameter, TextParameter, ToolSpec, call_text
from toolkit.search.session import Page, SessionSettings, Tool, ToolSession

_READ = "get_document"


@dataclass(frozen=True, kw_only=True)
class TopK(SessionSettings):
    """Settings of an interface with `search` and, by `get_document`, a tool that gives a whole
    document.

    `k`: hits ranked and shown, so that surfaced and previewed are equal here. `max_tokens`: tokens
    shown of each hit (its title counts); None shows all. `tokenizer` counts these tokens too.
    `max_bytes` (UTF-8): size of one output of `get_document`. A longer document comes in pages of
    lines, and each tells the call for the next one. Raises `InputError` for impossible values.
    """

    k: int = 5
    max_tokens: int | None = 512
    get_document: bool = False
    max_bytes: int = 200_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("k", self.k)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens)
        check_integer("max_bytes", self.max_bytes)

    def session(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        clock: Callable[[], float] = time.perf_counter,
    ) -> TopKSession:
        """A session for one question; `clock` gives seconds."""
        return self.open_session(TopKSession, backend, store, clock, depth=self.k)


class TopKSession(ToolSession[TopK]):
    """One question's session: see `TopK`."""

    def tools(self) -> Iterable[Tool]:
        settings = self.settings
        cut = f" (the first {settings.max_tokens} tokens)" if settings.max_tokens else ""
        search = ToolSpec(
            "search",
            f"Search the collection. Returns the {settings.k} best hits with their docids, scores "
            f"and texts{cut}.",
            (TextParameter("query", "The search query."),),
        )
        yield Tool(search, self._search, searches_by="query")
        if settings.get_document:
            read = ToolSpec(
                _READ,
                "Return the whole text of a document, or of a long one the first page, which tells "
                "the call for the next. The id of a passage gives its document.",
                (
                    TextParameter("docid", "A docid as search results show it."),
                    IntegerParameter(
                        "offset", "First line to show, for further pages (default 1).", 1, FAR
                    ),
                ),
            )
            yield Tool(read, self._get_document, reads_by="docid")

    def _search(self, query: str) -> Page:
        _, ranking = self.rank(query)
        searched = ranking.request.query
        if not ranking.hits:
            return Page(
                f"[no hits query={short(searched)}]\n"
                "Nothing matched. Call search with other words.",
                ResultsPage(searched, (), 0),
                ranking,
            )
        units = self.units(ranking.unit_ids)
        rows = zip(ranking.hits, units, strict=True)
        hits = [self._filled(rank, hit, unit) for rank, (hit, unit) in enumerate(rows, start=1)]
        header = f"[top {len(units)} query={short(searched)}]"
        blocks = [self._block(hit, unit) for hit, unit in zip(hits, units, strict=True)]
        details = ResultsPage(searched, tuple(hits), len(hits))
        return Page("\n\n".join([header, *blocks]), details, ranking)

    def _get_document(self, docid: str, offset: int | None) -> Page:
        try:
            page = self._whole(parent(docid)) if offset is None else None
            return page or self._lines_page(parent(docid), offset or 1)
        except KeyError:
            raise ToolError(
                "unknown_docid",
                f"docid {quoted(docid)} is unknown. Call search(...) first and get a docid that "
                "its results show.",
                tool=_READ,
                field="docid",
            ) from None

    def _whole(self, docid: str) -> Page | None:
        """The document as it is; None where that is too much for one output."""
        document = self.store.document(docid)
        title = f" {document.title}" if document.title else ""
        text = f"[docid={document.docid}]{title}\n{document.text}"
        if len(text.encode()) > self.settings.max_bytes:
            return None
        lines = tuple(document.text.split("\n"))
        return Page(text, DocumentPage(document.docid, document.title, lines, len(lines)))

    def _lines_page(self, docid: str, first: int) -> Page:
        lines = self.lines(_READ, docid, first, FAR)
        limits = Limits(lines=FAR, bytes=self.settings.max_bytes)

        def next_call(line: int) -> str:
            return call_text(_READ, docid=lines.docid, offset=line)

        return Page(*document_page(lines, limits, _READ, next_call))

    def _filled(self, rank: int, hit: Hit, unit: Unit) -> Hit:
        """The hit with its text, cut to size, and with as much of its title."""
        most = self.settings.max_tokens
        text = self.tokens.head(unit.contents, most) if most else unit.contents
        return hit._replace(rank=rank, title=text[: len(unit.title)], excerpt="", text=text)

    def _block(self, hit: Hit, unit: Unit) -> str:
        cut = len(hit.text) < len(unit.contents)
        end = f"\n[cut after {self.settings.max_tokens} tokens]" if cut else ""
        return f"docid={hit.unit_id} score={hit.score:.4f}\n{hit.text}{end}"
