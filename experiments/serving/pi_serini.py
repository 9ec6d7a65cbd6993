"""Pi-Serini's contract of a search backend, for its own client: JSON over HTTP.

The client keeps rankings, pages and cuts by itself, so that what its agent saw of a ranking is not
known here: a search counts as surfaced, and only what is read counts as opened. Optional fields are
absent, never null. Ids are those of documents, each once in a ranking, at its best passage.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from soundingline.experiments.serving.json_bodies import dump_json, finite
from soundingline.toolkit.data import DocumentStore, Hit, Lines, parent
from soundingline.toolkit.search import Parameter, RankedBrowsing, Tool, ToolOutput, ToolSpec
from soundingline.toolkit.search.tool import LARGEST_OFFSET, DocumentPage

SEARCH, READ = "search", "read_document"


class ReadLines(NamedTuple):
    """Lines of a document from `offset`, of which `total` there are; `lines` are those that fit."""

    docid: str
    title: str
    offset: int
    lines: Sequence[str]
    total: int

    @property
    def last(self) -> int:
        """The number of the last line shown; `offset - 1` where none is."""
        return self.offset + len(self.lines) - 1

    @property
    def following(self) -> int | None:
        """The line to go on at; None at the end."""
        return self.last + 1 if self.lines and self.last < self.total else None


@dataclass(kw_only=True, eq=False)
class PiSeriniTools(RankedBrowsing):
    """`RankedBrowsing` for Pi-Serini's own client, which pages through rankings by itself."""

    @classmethod
    def like(cls, other: object) -> PiSeriniTools:
        """With the settings of another interface, if that is a `RankedBrowsing`."""
        if not isinstance(other, RankedBrowsing):
            return cls(excerpt="first_match")
        named = {each.name for each in fields(RankedBrowsing) if each.init}
        return cls(**{name: getattr(other, name) for name in named})

    def tools(self) -> Iterable[Tool]:
        limit = Parameter("limit", "How many, at most.", bounds=(1, LARGEST_OFFSET))
        offset = Parameter("offset", "The first one.", bounds=(1, LARGEST_OFFSET))
        search = ToolSpec(SEARCH, "Rank.", (Parameter("query", "The query."), limit, offset))
        yield Tool(search, self._ranked, searches_by="query")
        read = ToolSpec(READ, "Read lines.", (Parameter("docid", "A docid."), offset, limit))
        yield Tool(read, self._read, reads_by="docid")

    def _ranked(self, query: str, limit: int | None, offset: int | None) -> ToolOutput:
        began = time.perf_counter()
        _, ranked = self.rank(query, self.depth)
        hits = once_each(ranked.hits)
        first, count = offset or 1, limit or self.depth
        shown = hits[first - 1 : first - 1 + count]
        head = max(0, self.excerpt_depth - first + 1)
        rows = [_row(hit) for hit in self.filled(ranked.request.query, first, shown[:head])]
        rows += [_row(hit) for hit in shown[head:]]
        more = first - 1 + count < len(hits)
        page = {
            "hits": rows,
            "hasMore": more,
            **({"nextOffset": first + count} if more else {}),
            "timingMs": {"request": milliseconds(began)},
        }
        return ToolOutput(dump_json(page), None, ranked)

    def _read(self, docid: str, offset: int | None, limit: int | None) -> ToolOutput:
        began = time.perf_counter()
        count = limit or self.read_limit
        result = read_lines(self.store, docid, offset or 1, count, self)
        if result is None:
            return ToolOutput(dump_json({"found": False, "docid": docid}))
        following = result.following
        page = {
            "found": True,
            "docid": result.docid,
            **({"title": result.title} if result.title else {}),
            "text": "\n".join(result.lines),
            "offset": result.offset,
            "limit": count,
            "totalUnits": result.total,
            **_returned(result),
            "truncated": following is not None,
            **({"nextOffset": following} if following else {}),
            "timingMs": {"request": milliseconds(began)},
        }
        shown = DocumentPage(
            result.docid, result.title, tuple(result.lines), result.total, result.offset
        )
        return ToolOutput(dump_json(page), shown if result.lines else None)


def read_lines(
    store: DocumentStore, docid: str, offset: int, limit: int, settings: RankedBrowsing
) -> ReadLines | None:
    """At most `limit` lines of a document from line `offset`, as many as one output may hold; none
    past its end. None where there is no such document."""
    try:
        lines = store.lines(parent(docid), 1, 1)
    except KeyError:
        return None
    if offset > lines.total:
        return ReadLines(lines.docid, lines.title, offset, (), lines.total)
    lines = store.lines(parent(docid), offset, min(limit, settings.max_lines))
    fitting = _fitting(lines, settings.max_bytes)
    return ReadLines(lines.docid, lines.title, offset, fitting, lines.total)


def once_each(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without further passages of a document that stands above."""
    best: dict[str, Hit] = {}
    for hit in hits:
        best.setdefault(hit.docid, hit)
    return list(best.values())


def milliseconds(began: float) -> float:
    """Milliseconds since `began` of `time.perf_counter`."""
    return round(1000 * (time.perf_counter() - began), 3)


def _fitting(lines: Lines, room: int) -> Sequence[str]:
    """The first lines that have at most `room` bytes together, and at least one."""
    for index, line in enumerate(lines.lines):
        room -= len(line.encode(errors="surrogatepass")) + 1
        if room < 0:
            return lines.lines[: max(1, index)]
    return lines.lines


def _returned(result: ReadLines) -> dict[str, int]:
    """First and last line shown, which the contract wants to be at least 1, so that there are none
    of an empty page."""
    if not result.lines:
        return {}
    return {"returnedOffsetStart": result.offset, "returnedOffsetEnd": result.last}


def _row(hit: Hit) -> dict[str, Any]:
    score = finite(hit.score)
    row: dict[str, Any] = {"docid": hit.docid}
    if score is not None:
        row["score"] = score
    if hit.title:
        row["title"] = hit.title
    if hit.snippet:
        row |= {
            "snippet": hit.snippet,
            "snippetTruncated": "…" in (hit.snippet[0], hit.snippet[-1]),
        }
    return row
