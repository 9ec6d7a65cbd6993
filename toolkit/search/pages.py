"""What the pages of ranked browsing look like, and how they are cut to size without losing text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from toolkit.contracts import Hit, Lines
from toolkit.search.schemas import call_text

_LONGEST_TITLE = 200
_LONGEST_QUERY = 300


class Limits(NamedTuple):
    """The most lines and UTF-8 bytes of one output, its header and hint included."""

    lines: int
    bytes: int


class Frame(NamedTuple):
    """What stands around the blocks of a page; both parts depend on the last block shown."""

    header: Callable[[int], str]
    hint: Callable[[int], str]


def results_page(
    search_id: str,
    query: str,
    first: int,
    total: int,
    blocks: Sequence[str],
    limit: int,
    limits: Limits,
) -> tuple[str, int]:
    """A page of hits from rank `first` and the number of hits that it shows."""

    def header(last: int) -> str:
        return f"[search_id={search_id} ranks {first}-{last} of {total} query={short(query)}]"

    def hint(last: int) -> str:
        call = call_text(
            "read_search_results", reason="...", search_id=search_id, offset=last + 1, limit=limit
        )
        return f"Next hits: {call}" if last < total else "End of the ranking."

    return _page(Frame(header, hint), blocks, first, total, limits)


def document_page(found: Lines, limit: int, limits: Limits) -> tuple[str, int]:
    """A page of a document's lines and the number of lines that it shows."""
    title = f" {_one_line(found.title)}" if found.title else ""

    def header(last: int) -> str:
        return f"[docid={found.docid} lines {found.first}-{last} of {found.total}]{title}"

    def hint(last: int) -> str:
        call = call_text(
            "read_document", reason="...", docid=found.docid, offset=last + 1, limit=limit
        )
        return f"Next lines: {call}" if last < found.total else "End of the document."

    return _page(Frame(header, hint), found.lines, found.first, found.total, limits)


def hit_block(rank: int, hit: Hit, title: str, excerpt: str) -> str:
    """One hit: rank, id of the unit, score with 4 decimals, title; the excerpt on a second line."""
    line = f"{rank}. docid={hit.unit_id} score={hit.score:.4f}"
    if title:
        line += f" title={_one_line(title)}"
    return f"{line}\n   {excerpt}" if excerpt else line


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
    return json.dumps(cut, ensure_ascii=False)


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


def _one_line(title: str) -> str:
    joined = " ".join(title.split())
    return joined if len(joined) <= _LONGEST_TITLE else joined[:_LONGEST_TITLE] + "…"
