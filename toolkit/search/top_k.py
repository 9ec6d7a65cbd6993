"""The best k texts at once, cut to a number of tokens: the tools of BrowseComp-Plus."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from soundingline.toolkit.data import Hit, heading, parent
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.search.session import SearchTool, Tool, ToolOutput
from soundingline.toolkit.search.tool import (
    LARGEST_OFFSET,
    DocumentPage,
    Parameter,
    ResultsPage,
    document_page,
    short,
    unknown_docid,
)
from soundingline.toolkit.trajectory import QUERIES

OUTPUTS = ("text", "json")
_READ = "get_document"


@dataclass(kw_only=True, eq=False)
class TopK(SearchTool):
    """`search` and, optionally, `get_document`.

    Args:
        k: hits that are ranked and shown, so that surfaced and previewed documents are the same.
        max_tokens: tokens shown of each hit, title included; None shows the whole text.
        get_document: whether there is a tool that returns a whole document.
        max_bytes: size of one output of `get_document` in bytes of UTF-8. A longer document comes
            in pages of lines.
        query_argument: the name of the argument for the query: `query`, or another one of
            `soundingline.toolkit.trajectory.QUERIES`. The code of BrowseComp-Plus and of arXiv
            2602.21456 (search_agent/oss_client.py at b546046) has `user_query`.
        output: how `search` and a whole document are shown: `text`, or `json` as in that code, a
            list of objects with docid, score and snippet, and one with docid and text. A document
            of more than `max_bytes` is cut to its first lines there, and has `"truncated": true`.

    `tokenizer` (see `SearchTool`) counts the tokens of hits too.

    Example:
        >>> tool = TopK(k=1).open(backend, store)
        >>> tool.call("search", {"query": "old mill"}).page.shown
        ('d1',)
    """

    k: int = 5
    max_tokens: int | None = 512
    get_document: bool = False
    max_bytes: int = 200_000
    query_argument: str = "query"
    output: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("k", self.k)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens)
        check_int("max_bytes", self.max_bytes)
        for name, valid in (("query_argument", QUERIES), ("output", OUTPUTS)):
            if getattr(self, name) not in valid:
                raise InputError(f"{name}={getattr(self, name)!r}", valid=", ".join(valid))

    def tools(self) -> Iterable[Tool]:
        cut = f" (the first {self.max_tokens} tokens)" if self.max_tokens else ""
        yield Tool(
            "search",
            f"Search the collection. Returns the {self.k} best hits with their docids, scores "
            f"and texts{cut}.",
            (Parameter(self.query_argument, "The search query."),),
            self._search,
            searches_by=self.query_argument,
            usage=f"Rank the collection for a query, and show the {self.k} best texts{cut}.",
        )
        if self.get_document:
            offset = "First line to show, for further pages (default 1)."
            read = Tool(
                _READ,
                "Return the whole text of a document, or of a long one the first page, which tells "
                "the call for the next. The id of a passage gives its document.",
                (
                    Parameter("docid", "A docid as search results show it."),
                    Parameter("offset", offset, bounds=(1, LARGEST_OFFSET)),
                ),
                self._get_document,
                reads_by="docid",
                usage="Show the whole text of a document. Call it for a document whose text was "
                "cut before you rely on it.",
            )
            if self.output == "json":
                read = replace(
                    read,
                    description="Return the whole text of a document. The id of a passage gives "
                    "its own.",
                    parameters=read.parameters[:1],
                    serve=self._json_document,
                )
            yield read

    def _search(self, **arguments: str) -> ToolOutput:
        _, search = self.rank(arguments[self.query_argument], self.k)
        searched = search.request.query
        if not search.hits and self.output == "text":
            return ToolOutput(
                f"[no hits query={short(searched)}]\n"
                "Nothing matched. Call search with other words.",
                ResultsPage(searched, (), 0),
                search,
            )
        blocks = [f"[top {len(search.hits)} query={short(searched)}]"]
        hits: list[Hit] = []
        units = self.units(search.unit_ids)
        for rank, (hit, unit) in enumerate(zip(search.hits, units, strict=True), start=1):
            text = unit.contents
            if self.max_tokens:
                text = self.tokens.truncate(text, self.max_tokens)
            title = unit.title[: len(text)]
            hits.append(hit._replace(rank=rank, title=title, snippet="", text=text))
            cut = len(text) < len(unit.contents)
            end = f"\n[cut after {self.max_tokens} tokens]" if cut else ""
            blocks.append(f"docid={hit.unit_id} score={hit.score:.4f}\n{text}{end}")
        page = ResultsPage(searched, tuple(hits), len(hits))
        if self.output == "json":
            return ToolOutput(json.dumps(list(map(self._row, hits)), indent=2), page, search)
        return ToolOutput("\n\n".join(blocks), page, search)

    def _get_document(self, docid: str, offset: int | None) -> ToolOutput:
        docid, named = parent(docid), docid
        try:
            if offset is None:
                document = self.store.document(docid)
                title = heading(document.title, document.text)
                text = f"[docid={document.docid}]{title and f' {title}'}\n{document.text}"
                if len(text.encode()) <= self.max_bytes:
                    every = tuple(document.text.split("\n"))
                    page = DocumentPage(document.docid, document.title, every, len(every))
                    return ToolOutput(text, page)
            lines = self.read_lines(_READ, docid, offset or 1, LARGEST_OFFSET)
        except KeyError:
            do = "Call search(...) first and get a docid that its results show."
            raise unknown_docid(named, do, tool=_READ) from None
        call = {"docid": lines.docid, "offset": 0}
        return ToolOutput(*document_page(lines, _READ, call, (LARGEST_OFFSET, self.max_bytes)))

    def _row(self, hit: Hit) -> dict[str, Any]:
        score = {"score": hit.score} if math.isfinite(hit.score) else {}
        return {"docid": hit.unit_id, **score, "snippet": hit.text}

    def _json_document(self, docid: str) -> ToolOutput:
        output = self._get_document(docid, None)
        page = output.page
        assert isinstance(page, DocumentPage)
        lines = [page.title, *page.lines] if page.title else page.lines
        cut = {"truncated": True} if page.continuation else {}
        row = {"docid": page.docid, "text": "\n".join(lines), **cut}
        return output._replace(text=json.dumps(row, indent=2))
