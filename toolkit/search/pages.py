"""What the pages of browsing look like, and how they are cut to size without losing text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from toolkit.contracts import Continuation, DocumentPage, Hit, Lines, ResultsPage
from toolkit.search.schemas import call_text, json_text

_LONGEST_TITLE = 200
_LONGEST_QUERY = 300
_BROWSE = "read_search_results"
_END = "End of the document."


class Limits(NamedTuple):
    """The most lines and UTF-8 bytes of one output, its header and hint included."""

    lines: int
    bytes: int


class Frame(NamedTuple):
    """What stands around the blocks of a page; both parts depend on the last block shown."""

    header: Callable[[int], str]
    hint: Callable[[int], str]


def results_page(
    page: ResultsPage, limit: int | None, default: int, limits: Limits, remark: str = ""
) -> tuple[str, ResultsPage]:
    """The text of a page of hits, and the page with the hits that it shows and what follows.
    `limit` is how many the caller asked for, None for the `default`; the header ends with
    `remark`."""

    def header(last: int) -> str:
        ranks = f"ranks {page.first}-{last} of {page.total}"
        return f"[search_id={page.search_id} {ranks} query={short(page.query)}]{remark}"

    def hint(last: int) -> str:
        call = call_text(
            _BROWSE,
            reason="...",
            search_id=page.search_id,
            offset=last + 1,
            limit=limit or default,
        )
        return f"Next hits: {call}" if last < page.total else "End of the ranking."

    blocks = [hit_block(hit) for hit in page.hits]
    text, count = _page(Frame(header, hint), blocks, page.first, page.total, limits)
    hits = tuple([hit._replace(title=one_line(hit.title)) for hit in page.hits[:count]])
    arguments = {"search_id": page.search_id, "offset": page.first + count}
    following = _continuation(_BROWSE, arguments, limit, page.total)
    return text, replace(page, hits=hits, continuation=following)


def document_page(
    lines: Lines,
    limits: Limits,
    tool: str,
    next_call: Callable[[int], str],
    limit: int | None = None,
) -> tuple[str, DocumentPage]:
    """The text of a page of a document's lines, and what it shows. `next_call` is the call of
    `tool` for the lines from a number on, as hints print it; `limit` as for results."""
    title = one_line(lines.title)

    def header(last: int) -> str:
        numbers = f"lines {lines.first}-{last} of {lines.total}"
        return f"[docid={lines.docid} {numbers}]{f' {title}' if lines.title else ''}"

    def hint(last: int) -> str:
        return f"Next lines: {next_call(last + 1)}" if last < lines.total else _END

    text, count = _page(Frame(header, hint), lines.lines, lines.first, lines.total, limits)
    arguments = {"docid": lines.docid, "offset": lines.first + count}
    following = _continuation(tool, arguments, limit, lines.total)
    page_lines = tuple(lines.lines[:count])
    page = DocumentPage(lines.docid, title, page_lines, lines.total, lines.first, following)
    return text, page


def _continuation(
    tool: str, arguments: Mapping[str, Any], limit: int | None, total: int
) -> Continuation | None:
    if arguments["offset"] > total:
        return None
    return Continuation(tool, {**arguments, **({} if limit is None else {"limit": limit})})


def hit_block(hit: Hit) -> str:
    """One hit: rank, id of the unit, score with 4 decimals, title; the excerpt on a second line."""
    line = f"{hit.rank}. docid={hit.unit_id} score={hit.score:.4f}"
    if hit.title:
        line += f" title={one_line(hit.title)}"
    return f"{line}\n   {hit.excerpt}" if hit.excerpt else line


def one_line(title: str) -> str:
    """The title as pages show it: on one line, at most 200 characters."""
    joined = " ".join(title.split())
    return joined if len(joined) <= _LONGEST_TITLE else joined[:_LONGEST_TITLE] + "…"


def line_of(passage: str, lines: Sequence[str]) -> int:
    """The line (from 1) in which a passage starts; 1 if it is not there.

    White space is ignored, since wrapping a text into lines changes it.
    """
    key = "".join(passage.split())
    solid = ["".join(line.split()) for line in lines]
    position = "".join(solid).find(key) if key else -1
    if position < 0:
        return 1
    ends = accumulate(len(line) for line in solid)
    return next(number for number, end in enumerate(ends, start=1) if position < end)


def short(query: str) -> str:
    """The query as headers show it: quoted, on one line, at most 300 characters."""
    cut = query if len(query) <= _LONGEST_QUERY else query[:_LONGEST_QUERY] + "…"
    return json_text(cut)


def _page(
    frame: Frame, blocks: Sequence[str], first: int, total: int, limits: Limits
) -> tuple[str, int]:
    widest = f"{frame.header(total)}\n{max(frame.hint(total - 1), frame.hint(total), key=len)}"
    count = _fitting(blocks, widest, limits)
    last = first + count - 1
    return "\n".join([frame.header(last), *blocks[:count], frame.hint(last)]), count


def _fitting(blocks: Sequence[str], frame: str, limits: Limits) -> int:
    """How many of the first blocks fit beside the frame. At least 1, even where that exceeds the
    limits: a page that shows nothing would be asked for again for ever, and a block that is cut
    inside loses text."""
    lines = limits.lines - _lines(frame)
    room = limits.bytes - _bytes(frame)
    for index, block in enumerate(blocks):
        lines -= _lines(block)
        room -= _bytes(block)
        if lines < 0 or room < 0:
            return max(1, index)
    return len(blocks)


def _lines(block: str) -> int:
    return block.count("\n") + 1


def _bytes(block: str) -> int:
    return (len(block) if block.isascii() else len(block.encode())) + 1
