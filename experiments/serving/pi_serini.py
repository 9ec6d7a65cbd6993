"""Pi-Serini's contract of a search backend, for its own client: JSON over HTTP.

The client keeps rankings, pages and cuts by itself, so that what its agent saw of a ranking is not
known here: a search counts as surfaced, and only what is read counts as opened. Optional fields are
absent, never null. Ids are those of documents, each once in a ranking, at its best passage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from experiments.serving.json_bodies import dump_json, finite
from toolkit.contracts import DocumentPage, DocumentStore, Hit, Lines, SearchBackend, parent
from toolkit.search import (
    IntegerParameter,
    Page,
    RankedBrowsing,
    RankedBrowsingSession,
    TextParameter,
    Tool,
    ToolSpec,
)
from toolkit.search.schemas import FAR

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


@dataclass(frozen=True, kw_only=True)
class PiSeriniTools(RankedBrowsing):
    """The settings of `RankedBrowsing` (`depth`, excerpts, size of an output) for Pi-Serini's own
    client, which does the browsing."""

    @classmethod
    def like(cls, other: object) -> PiSeriniTools:
        """With the settings of another interface, where that is a `RankedBrowsing`."""
        if not isinstance(other, RankedBrowsing):
            return cls(excerpt="first_match")
        return cls(**{field.name: getattr(other, field.name) for field in fields(RankedBrowsing)})

    def session(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        clock: Callable[[], float] = time.perf_counter,
    ) -> PiSeriniSession:
        """A session for one question."""
        return self.open_session(PiSeriniSession, backend, store, clock, depth=self.depth)


class PiSeriniSession(RankedBrowsingSession):
    """One question's session: see `PiSeriniTools`."""

    def tools(self) -> Iterable[Tool]:
        limit = IntegerParameter("limit", "How many, at most.", 1, FAR)
        offset = IntegerParameter("offset", "The first one.", 1, FAR)
        search = ToolSpec(SEARCH, "Rank.", (TextParameter("query", "The query."), limit, offset))
        yield Tool(search, self._ranked, searches_by="query")
        read = ToolSpec(READ, "Read lines.", (TextParameter("docid", "A docid."), offset, limit))
        yield Tool(read, self._read, reads_by="docid")

    def _ranked(self, query: str, limit: int | None, offset: int | None) -> Page:
        began = time.perf_counter()
        _, ranking = self.rank(query)
        hits = once_each(ranking.hits)
        first, count = offset or 1, limit or self.settings.depth
        shown = hits[first - 1 : first - 1 + count]
        head = max(0, self.settings.excerpt_depth - first + 1)
        rows = [_row(hit) for hit in self.filled(ranking.request.query, first, shown[:head])]
        rows += [_row(hit) for hit in shown[head:]]
        more = first - 1 + count < len(hits)
        page = {
            "hits": rows,
            "hasMore": more,
            **({"nextOffset": first + count} if more else {}),
            "timingMs": {"request": milliseconds(began)},
        }
        return Page(dump_json(page), None, ranking)

    def _read(self, docid: str, offset: int | None, limit: int | None) -> Page:
        began = time.perf_counter()
        count = limit or self.settings.read_limit
        result = read_lines(self.store, docid, offset or 1, count, self.settings)
        if result is None:
            return Page(dump_json({"found": False, "docid": docid}))
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
        details = DocumentPage(
            result.docid, result.title, tuple(result.lines), result.total, result.offset
        )
        return Page(dump_json(page), details if result.lines else None)


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
    if hit.excerpt:
        row |= {
            "snippet": hit.excerpt,
            "snippetTruncated": "…" in (hit.excerpt[0], hit.excerpt[-1]),
        }
    return row
