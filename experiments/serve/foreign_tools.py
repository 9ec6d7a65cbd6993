"""The tools in the forms of other projects, for their own clients.

Pi-Serini's contract of a search backend is JSON over HTTP. Its client keeps rankings, pages and
cuts by itself, so that what its agent saw of a ranking is not known here: a search counts as
surfaced, and only what is read counts as opened. Optional fields are absent, never null. Ids name
documents, each once in a ranking, at its best passage.

BrowseComp-Plus's `search` returns a JSON array of `{docid, score, snippet}`, also for one hit or
none, and `get_document` returns `{docid, text}` or null. Ids name documents and are always strings,
because its readers look for quoted ones. Its searcher has whole texts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from soundingline.experiments.serve.sessions import compact_json, finite, settings_of
from soundingline.toolkit.data import DocumentStore, Hit, SearchBackend, SearchRequest, parent
from soundingline.toolkit.search import (
    Parameter,
    RankedBrowsing,
    Tool,
    ToolError,
    ToolOutput,
    TopK,
)
from soundingline.toolkit.search.tool import LARGEST_OFFSET, DocumentPage

SEARCH, READ = "search", "read_document"  # of Pi-Serini
MOST_HITS = 1000  # of BrowseComp-Plus's searcher


@dataclass(kw_only=True, eq=False)
class PiSeriniTools(RankedBrowsing):
    """`RankedBrowsing` for Pi-Serini's own client, which pages through rankings by itself."""

    @classmethod
    def like(cls, other: object) -> PiSeriniTools:
        """With the settings of another search tool, if that is a `RankedBrowsing`."""
        return cls(**settings_of(other, RankedBrowsing) or {"excerpt": "first_match"})

    def tools(self) -> Iterable[Tool]:
        limit = Parameter("limit", "How many, at most.", bounds=(1, LARGEST_OFFSET))
        offset = Parameter("offset", "The first one.", bounds=(1, LARGEST_OFFSET))
        ranked = (Parameter("query", "The query."), limit, offset)
        yield Tool(SEARCH, "Rank.", ranked, self._ranked, searches_by="query")
        read = (Parameter("docid", "A docid."), offset, limit)
        yield Tool(READ, "Read lines.", read, self._read, reads_by="docid")

    def _ranked(self, query: str, limit: int | None, offset: int | None) -> ToolOutput:
        began = time.perf_counter()
        _, ranked = self.rank(query, self.depth)
        best: dict[str, Hit] = {}  # each document once, at its best passage
        for hit in ranked.hits:
            best.setdefault(hit.docid, hit)
        hits = list(best.values())
        first, count = offset or 1, limit or self.depth
        shown = hits[first - 1 : first - 1 + count]
        head = max(0, self.excerpt_depth - first + 1)
        rows = [
            _pi_serini_row(hit) for hit in self.filled(ranked.request.query, first, shown[:head])
        ]
        rows += [_pi_serini_row(hit) for hit in shown[head:]]
        more = first - 1 + count < len(hits)
        page = {
            "hits": rows,
            "hasMore": more,
            **({"nextOffset": first + count} if more else {}),
            "timingMs": {"request": _milliseconds(began)},
        }
        return ToolOutput(compact_json(page), None, ranked)

    def _read(self, docid: str, offset: int | None, limit: int | None) -> ToolOutput:
        began = time.perf_counter()
        first, count = offset or 1, limit or self.read_limit
        try:
            read = self.store.lines(parent(docid), first, min(count, self.max_lines))
        except KeyError:
            return ToolOutput(compact_json({"found": False, "docid": docid}))
        lines = _fitting(read.lines, self.max_bytes)
        last = first + len(lines) - 1
        truncated = bool(lines) and last < read.total
        page = {
            "found": True,
            "docid": read.docid,
            **({"title": read.title} if read.title else {}),
            "text": "\n".join(lines),
            "offset": first,
            "limit": count,
            "totalUnits": read.total,
            # The contract wants them to be at least 1, so that an empty page has none.
            **({"returnedOffsetStart": first, "returnedOffsetEnd": last} if lines else {}),
            "truncated": truncated,
            **({"nextOffset": last + 1} if truncated else {}),
            "timingMs": {"request": _milliseconds(began)},
        }
        shown = DocumentPage(read.docid, read.title, tuple(lines), read.total, first)
        return ToolOutput(compact_json(page), shown if lines else None)


def _milliseconds(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 3)


def _fitting(lines: Sequence[str], room: int) -> Sequence[str]:
    """The first lines that have at most `room` bytes together, and at least one."""
    for index, line in enumerate(lines):
        room -= len(line.encode()) + 1
        if room < 0:
            return lines[: max(1, index)]
    return lines


def _pi_serini_row(hit: Hit) -> dict[str, Any]:
    score = finite(hit.score)
    row: dict[str, Any] = {"docid": hit.docid}
    if score is not None:
        row["score"] = score
    if hit.title:
        row["title"] = hit.title
    if hit.snippet:
        row["snippet"] = hit.snippet
        marks = ("…", "...")
        row["snippetTruncated"] = hit.snippet.startswith(marks) or hit.snippet.endswith(marks)
    return row


@dataclass(kw_only=True, eq=False)
class BrowseCompPlusTools(TopK):
    """`TopK` as BrowseComp-Plus's server has it: JSON, documents in place of passages, and `null`
    for an unknown document."""

    output: str = "json"

    @classmethod
    def like(cls, other: object) -> BrowseCompPlusTools:
        """With the settings of another search tool, if that is a `TopK`, but for the form."""
        settings = settings_of(other, TopK) or {"get_document": True}
        return cls(**{**settings, "query_argument": "query", "output": "json"})

    def _row(self, hit: Hit) -> dict[str, Any]:
        return {**super()._row(hit), "docid": hit.docid}

    def _json_document(self, docid: str) -> ToolOutput:
        try:
            return super()._json_document(docid)
        except ToolError:
            return ToolOutput("null")


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
