"""The best k texts at once, cut to a token budget: the interface of BrowseComp-Plus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from toolkit.contracts import DocumentStore, Hit, SearchBackend, Unit, parent
from toolkit.search.checks import whole_number
from toolkit.search.errors import ToolError, quoted
from toolkit.search.pages import short
from toolkit.search.schemas import Text, ToolSpec
from toolkit.search.session import Page, Session, Tool
from toolkit.text import head


class TopK(Session):
    """A session with `search` and, by `get_document`, one that gives a whole document.

    `k`: hits ranked and shown, so that surfaced and previewed are equal here. `max_tokens`: tokens
    shown of each hit (its title counts), as `toolkit.text` counts them; None shows all. The text of
    `get_document` is never cut. `max_rankings`: rankings kept for repeated queries. `clock`:
    seconds. Raises `InputError` for impossible values.
    """

    def __init__(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        *,
        k: int = 5,
        max_tokens: int | None = 512,
        get_document: bool = False,
        max_rankings: int = 32,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.k = whole_number("k", k, low=1)
        if max_tokens is not None:
            whole_number("max_tokens", max_tokens, low=1)
        self.max_tokens = max_tokens
        self.get_document = get_document
        whole_number("max_rankings", max_rankings, low=1)
        super().__init__(backend, store, depth=k, max_rankings=max_rankings, clock=clock)

    def _offer(self) -> Iterable[Tool]:
        search = ToolSpec(
            "search",
            f"Search the collection. Returns the {self.k} best hits with their docids, scores and "
            "texts" + (f" (the first {self.max_tokens} tokens)." if self.max_tokens else "."),
            (Text("query", "The search query."),),
        )
        yield Tool(search, self._search)
        if self.get_document:
            read = ToolSpec(
                "get_document",
                "Return the whole text of a document. The id of a passage gives its document.",
                (Text("docid", "A docid as search results show it."),),
            )
            yield Tool(read, self._get_document)

    def _search(self, query: str) -> Page:
        _, ranking = self._rank(query)
        if not ranking.hits:
            return Page(
                f"[no hits query={short(ranking.request.query)}]\n"
                "Nothing matched. Call search with other words.",
                ranking=ranking,
            )
        units = self._units(ranking.unit_ids)
        header = f"[top {len(units)} query={short(ranking.request.query)}]"
        blocks = [self._block(hit, unit) for hit, unit in zip(ranking.hits, units, strict=True)]
        return Page("\n\n".join([header, *blocks]), "previewed", ranking.unit_ids, ranking)

    def _get_document(self, docid: str) -> Page:
        try:
            document = self._store.document(parent(docid))
        except KeyError:
            raise ToolError(
                "unknown_docid",
                f"docid {quoted(docid)} is unknown. Call search(...) first and get a docid that "
                "its results show.",
                tool="get_document",
                field="docid",
            ) from None
        title = f" {document.title}" if document.title else ""
        text = f"[docid={document.docid}]{title}\n{document.text}"
        return Page(text, "opened", (document.docid,))

    def _block(self, hit: Hit, unit: Unit) -> str:
        whole = unit.contents
        text = head(whole, self.max_tokens) if self.max_tokens else whole
        cut = f"\n[cut after {self.max_tokens} tokens]" if len(text) < len(whole) else ""
        return f"docid={hit.unit_id} score={hit.score:.4f}\n{text}{cut}"
