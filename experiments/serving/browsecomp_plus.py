"""BrowseComp-Plus's tools as they stand on the wire of its own server, and its searcher over HTTP.

`search` gives a JSON array of `{docid, score, snippet}`, also where it has one element or none, and
`get_document` gives `{docid, text}` or null. Ids are those of documents and always strings, because
its readers look for quoted ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from experiments.serving.json_bodies import dump_json, finite
from toolkit.contracts import (
    DocumentPage,
    DocumentStore,
    Hit,
    ResultsPage,
    SearchBackend,
    SearchRequest,
    parent,
)
from toolkit.search import Page, TextParameter, Tool, ToolError, ToolSpec, TopK, TopKSession

MOST_HITS = 1000


@dataclass(frozen=True, kw_only=True)
class BrowseCompPlusTools(TopK):
    """The settings of `TopK` for an interface whose pages are JSON. A document of more than
    `max_bytes` is cut to its first lines, and says so by `"truncated": true`."""

    @classmethod
    def like(cls, other: object) -> BrowseCompPlusTools:
        """With the settings of another interface, where that is a `TopK`."""
        if not isinstance(other, TopK):
            return cls(get_document=True)
        return cls(**{field.name: getattr(other, field.name) for field in fields(TopK)})

    def session(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        clock: Callable[[], float] = time.perf_counter,
    ) -> BrowseCompPlusSession:
        """A session for one question."""
        return self.open_session(BrowseCompPlusSession, backend, store, clock, depth=self.k)


class BrowseCompPlusSession(TopKSession):
    """One question's session: see `BrowseCompPlusTools`."""

    def tools(self) -> Iterable[Tool]:
        for tool in super().tools():
            if tool.searches_by:
                yield tool
            else:
                docid = TextParameter("docid", "A docid as search results show it.")
                spec = ToolSpec(tool.spec.name, "Return the whole text of a document.", (docid,))
                yield Tool(spec, self._document, reads_by="docid")

    def _search(self, query: str) -> Page:
        page = super()._search(query)
        assert isinstance(page.details, ResultsPage)
        return page._replace(text=dump_json([_row(hit) for hit in page.details.hits]))

    def _document(self, docid: str) -> Page:
        try:
            page = self._get_document(docid, None)
        except ToolError:
            return Page("null")
        assert isinstance(page.details, DocumentPage)
        details = page.details
        text = {"docid": details.docid, "text": "\n".join([details.title, *details.lines])}
        if not details.title:
            text["text"] = "\n".join(details.lines)
        cut = {"truncated": True} if details.continuation else {}
        return page._replace(text=dump_json({**text, **cut}))


def _row(hit: Hit) -> dict[str, Any]:
    score = finite(hit.score)
    scored = {} if score is None else {"score": score}
    return {"docid": hit.docid, **scored, "snippet": hit.text}


def whole_hits(
    backend: SearchBackend, store: DocumentStore, query: str, k: int
) -> list[dict[str, Any]]:
    """The best `k` hits with their whole texts, as a searcher of BrowseComp-Plus gives them; its
    clients cut them."""
    hits = backend.search(SearchRequest(query, depth=k)).hits[:k]
    units = store.texts([hit.unit_id for hit in hits])
    rows = zip(hits, units, strict=True)
    return [
        {"docid": hit.docid, "score": finite(hit.score), "text": unit.contents}
        for hit, unit in rows
    ]


def whole_document(store: DocumentStore, docid: str) -> dict[str, str] | None:
    """A document of BrowseComp-Plus's searcher; None where there is none of that id."""
    try:
        document = store.document(parent(docid))
    except KeyError:
        return None
    text = f"{document.title}\n{document.text}" if document.title else document.text
    return {"docid": document.docid, "text": text}
