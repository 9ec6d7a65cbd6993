"""Pi-Serini's contract of a search backend, for its own client: JSON over HTTP. The client keeps
rankings, pages and cuts by itself, so that what its agent saw of a ranking is not known here: a
search counts as surfaced, and only what is read counts as opened. Optional fields are absent, never
null. Ids name documents, each once in a ranking, at its best passage."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from soundingline.experiments.serve.sessions import dump_json, finite, settings_of
from soundingline.toolkit.data import Hit, parent
from soundingline.toolkit.search import Parameter, RankedBrowsing, Tool, ToolOutput, ToolSpec
from soundingline.toolkit.search.tool import LARGEST_OFFSET, DocumentPage

SEARCH, READ = "search", "read_document"


@dataclass(kw_only=True, eq=False)
class PiSeriniTools(RankedBrowsing):
    """`RankedBrowsing` for Pi-Serini's own client, which pages through rankings by itself."""

    @classmethod
    def like(cls, other: object) -> PiSeriniTools:
        """With the settings of another interface, if that is a `RankedBrowsing`."""
        return cls(**settings_of(other, RankedBrowsing) or {"excerpt": "first_match"})

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
        best: dict[str, Hit] = {}  # each document once, at its best passage
        for hit in ranked.hits:
            best.setdefault(hit.docid, hit)
        hits = list(best.values())
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
            "timingMs": {"request": _milliseconds(began)},
        }
        return ToolOutput(dump_json(page), None, ranked)

    def _read(self, docid: str, offset: int | None, limit: int | None) -> ToolOutput:
        began = time.perf_counter()
        first, count = offset or 1, limit or self.read_limit
        try:
            read = self.store.lines(parent(docid), 1, 1)
        except KeyError:
            return ToolOutput(dump_json({"found": False, "docid": docid}))
        lines: Sequence[str] = ()
        if first <= read.total:
            read = self.store.lines(parent(docid), first, min(count, self.max_lines))
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
        return ToolOutput(dump_json(page), shown if lines else None)


def _milliseconds(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 3)


def _fitting(lines: Sequence[str], room: int) -> Sequence[str]:
    """The first lines that have at most `room` bytes together, and at least one."""
    for index, line in enumerate(lines):
        room -= len(line.encode(errors="surrogatepass")) + 1
        if room < 0:
            return lines[: max(1, index)]
    return lines


def _row(hit: Hit) -> dict[str, Any]:
    score = finite(hit.score)
    row: dict[str, Any] = {"docid": hit.docid}
    if score is not None:
        row["score"] = score
    if hit.title:
        row["title"] = hit.title
    if hit.snippet:
        row["snippet"] = hit.snippet
        row["snippetTruncated"] = "…" in (hit.snippet[0], hit.snippet[-1])
    return row
