"""BrowseComp-Plus's tools in the form of its own server, and its searcher over HTTP. `search`
returns a JSON array of `{docid, score, snippet}`, also for one hit or none, and `get_document`
returns `{docid, text}` or null. Ids name documents and are always strings, because its readers look
for quoted ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from soundingline.experiments.serve.sessions import dump_json, finite, settings_of
from soundingline.toolkit.data import DocumentStore, Hit, SearchBackend, SearchRequest, parent
from soundingline.toolkit.search import Parameter, Tool, ToolError, ToolOutput, ToolSpec, TopK
from soundingline.toolkit.search.tool import DocumentPage, ResultsPage

MOST_HITS = 1000


@dataclass(kw_only=True, eq=False)
class BrowseCompPlusTools(TopK):
    """`TopK` with JSON instead of texts. A document of more than `max_bytes` is cut to its first
    lines and has `"truncated": true`."""

    @classmethod
    def like(cls, other: object) -> BrowseCompPlusTools:
        """With the settings of another interface, if that is a `TopK`."""
        return cls(**settings_of(other, TopK) or {"get_document": True})

    def tools(self) -> Iterable[Tool]:
        for tool in super().tools():
            if tool.searches_by:
                yield tool
            else:
                docid = Parameter("docid", "A docid as search results show it.")
                spec = ToolSpec(tool.spec.name, "Return the whole text of a document.", (docid,))
                yield Tool(spec, self._document, reads_by="docid")

    def _search(self, query: str) -> ToolOutput:
        output = super()._search(query)
        assert isinstance(output.page, ResultsPage)
        return output._replace(text=dump_json([_row(hit) for hit in output.page.hits]))

    def _document(self, docid: str) -> ToolOutput:
        try:
            output = self._get_document(docid, None)
        except ToolError:
            return ToolOutput("null")
        page = output.page
        assert isinstance(page, DocumentPage)
        lines = [page.title, *page.lines] if page.title else page.lines
        cut = {"truncated": True} if page.continuation else {}
        row = {"docid": page.docid, "text": "\n".join(lines), **cut}
        return output._replace(text=dump_json(row))


def _row(hit: Hit) -> dict[str, Any]:
    score = finite(hit.score)
    scored = {} if score is None else {"score": score}
    return {"docid": hit.docid, **scored, "snippet": hit.text}


def whole_hits(
    backend: SearchBackend, store: DocumentStore, query: str, k: int
) -> list[dict[str, Any]]:
    """The best `k` hits with their whole texts, as a searcher of BrowseComp-Plus returns them;
    its clients cut them."""
    hits = backend.search(SearchRequest(query, depth=k)).hits[:k]
    units = store.texts([hit.unit_id for hit in hits])
    rows = zip(hits, units, strict=True)
    return [
        {"docid": hit.docid, "score": finite(hit.score), "text": unit.contents}
        for hit, unit in rows
    ]


def whole_document(store: DocumentStore, docid: str) -> dict[str, str] | None:
    """A document of BrowseComp-Plus's searcher; None if there is none of that id."""
    try:
        document = store.document(parent(docid))
    except KeyError:
        return None
    text = f"{document.title}\n{document.text}" if document.title else document.text
    return {"docid": document.docid, "text": text}
