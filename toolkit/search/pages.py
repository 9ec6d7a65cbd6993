"""The text of result pages and document pages, cut between hits or lines to a limited size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from soundingline.toolkit.data import Lines
from soundingline.toolkit.search.tool import (
    Continuation,
    DocumentPage,
    ResultsPage,
    call_text,
    json_text,
)

_LONGEST_TITLE = 200
_LONGEST_QUERY = 300
_BROWSE = "read_search_results"

# The most lines and UTF-8 bytes of one output, header and hint included.
Limits = tuple[int, int]


def results_page(
    page: ResultsPage, limit: int | None, default: int, limits: Limits, remark: str
) -> tuple[str, ResultsPage]:
    """The text of a page of hits, and the page with the hits that fit and its continuation. `limit`
    is the number of hits that the caller named, if any, and `remark` follows the header."""

    def header(last: int) -> str:
        ranks = f"ranks {page.first}-{last} of {page.total}"
        return f"[search_id={page.search_id} {ranks} query={short(page.query)}]{remark}"

    def hint(last: int) -> str:
        if last >= page.total:
            return "End of the ranking."
        arguments = {"search_id": page.search_id, "offset": last + 1, "limit": limit or default}
        return f"Next hits: {call_text(_BROWSE, reason='...', **arguments)}"

    blocks = []
    for hit in page.hits:
        title = f" title={one_line(hit.title)}" if hit.title else ""
        snippet = f"\n   {hit.snippet}" if hit.snippet else ""
        blocks.append(f"{hit.rank}. docid={hit.unit_id} score={hit.score:.4f}{title}{snippet}")
    text, count = _fitted(header, hint, blocks, page.first, page.total, limits)
    hits = tuple([hit._replace(title=one_line(hit.title)) for hit in page.hits[:count]])
    arguments = {"search_id": page.search_id, "offset": page.first + count}
    following = _continuation(_BROWSE, arguments, limit, page.total)
    return text, replace(page, hits=hits, continuation=following)


def document_page(
    lines: Lines, tool: str, arguments: dict[str, Any], limits: Limits, limit: int | None = None
) -> tuple[str, DocumentPage]:
    """The text of a page of lines, and the page with the lines that fit and its continuation. The
    hint shows the call of `tool` for the next lines with these `arguments` and their `offset`;
    `limit` is the number of lines that the caller named, if any."""
    title = one_line(lines.title)

    def header(last: int) -> str:
        numbers = f"lines {lines.first}-{last} of {lines.total}"
        return f"[docid={lines.docid} {numbers}]{f' {title}' if lines.title else ''}"

    def hint(last: int) -> str:
        if last >= lines.total:
            return "End of the document."
        return f"Next lines: {call_text(tool, **{**arguments, 'offset': last + 1})}"

    text, count = _fitted(header, hint, lines.lines, lines.first, lines.total, limits)
    following = {"docid": lines.docid, "offset": lines.first + count}
    more = _continuation(tool, following, limit, lines.total)
    shown = tuple(lines.lines[:count])
    return text, DocumentPage(lines.docid, title, shown, lines.total, lines.first, more)


def one_line(title: str) -> str:
    """A title as pages show it: on one line, at most 200 characters."""
    joined = " ".join(title.split())
    return joined if len(joined) <= _LONGEST_TITLE else joined[:_LONGEST_TITLE] + "…"


def short(query: str) -> str:
    """A query as headers show it: quoted, on one line, at most 300 characters."""
    return json_text(query if len(query) <= _LONGEST_QUERY else query[:_LONGEST_QUERY] + "…")


def line_of(passage: str, lines: Sequence[str]) -> int:
    """The line (from 1) in which a passage begins; 1 if the lines do not contain it. White space is
    ignored, because wrapping a text into lines changes it."""
    key = "".join(passage.split())
    solid = ["".join(line.split()) for line in lines]
    position = "".join(solid).find(key) if key else -1
    if position < 0:
        return 1
    ends = accumulate(len(line) for line in solid)
    return next(number for number, end in enumerate(ends, start=1) if position < end)


def _continuation(
    tool: str, arguments: dict[str, Any], limit: int | None, total: int
) -> Continuation | None:
    if arguments["offset"] > total:
        return None
    return Continuation(tool, arguments if limit is None else {**arguments, "limit": limit})


def _fitted(
    header: Callable[[int], str],
    hint: Callable[[int], str],
    blocks: Sequence[str],
    first: int,
    total: int,
    limits: Limits,
) -> tuple[str, int]:
    """Header, blocks and hint, with as many blocks as fit, and their number. `header` and `hint`
    depend on the number of the last block. There is at least one block, even if it exceeds the
    limits: an empty page would be requested again for ever, and a block that is cut loses text."""
    frame = f"{header(total)}\n{max(hint(total - 1), hint(total), key=len)}"
    lines, room = limits[0] - _lines(frame), limits[1] - _bytes(frame)
    count = len(blocks)
    for index, block in enumerate(blocks):
        lines -= _lines(block)
        room -= _bytes(block)
        if lines < 0 or room < 0:
            count = max(1, index)
            break
    last = first + count - 1
    return "\n".join([header(last), *blocks[:count], hint(last)]), count


def _lines(block: str) -> int:
    return block.count("\n") + 1


def _bytes(block: str) -> int:
    return (len(block) if block.isascii() else len(block.encode())) + 1
