"""Reading the search tool's pages back: which text belongs to which unit, without the frame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_HIT = re.compile(r"^(?:\d+\. )?docid=(?P<id>.+?) score=-?[\d.]+(?: title=(?P<title>.*))?$", re.M)
_FRAME = re.compile(
    r"^(?:Next (?:hits|lines): .*|End of the (?:ranking|document)\.|\[cut after \d+ tokens\])$",
    re.MULTILINE,
)
_SEARCH_ID = re.compile(r"^\[search_id=(\S+)")
_DOCUMENT = re.compile(
    r"^\[docid=.*?(?: lines \d+-(?P<last>\d+) of (?P<total>\d+))?\] ?(?P<title>.*)"
)


class Piece(NamedTuple):
    """Text that a page shows of one unit."""

    unit_id: str
    title: str
    text: str


class Reading(NamedTuple):
    """Text of a document, and the line to go on at (0: the document ends here)."""

    title: str
    text: str
    following: int = 0


def results(page: str, unit_ids: Sequence[str]) -> list[Piece]:
    """The pieces of a page of hits that shows `unit_ids` in this order.

    Where a hit has no title of its own, the first line of its text serves.
    """
    heads: list[re.Match[str]] = []
    for found in _HIT.finditer(page):
        if len(heads) < len(unit_ids) and found["id"] == unit_ids[len(heads)]:
            heads.append(found)
    ends = [found.start() for found in heads[1:]] + [len(page)]
    pieces = []
    for found, end in zip(heads, ends, strict=False):  # no hits, no pieces
        text = _FRAME.sub("", page[found.end() : end]).strip()
        title = found["title"] or text.partition("\n")[0]
        pieces.append(Piece(found["id"], title, text))
    return pieces


def search_id(page: str) -> str:
    """The id under which the ranking of this page can be browsed; empty where it cannot."""
    found = _SEARCH_ID.match(page)
    return found[1] if found else ""


def document(page: str) -> Reading:
    """The text of a page of a document, or of a whole document."""
    head = _DOCUMENT.match(page)
    if head is None:
        return Reading("", page)
    last, total = int(head["last"] or 0), int(head["total"] or 0)
    text = _FRAME.sub("", page[head.end() :]).strip()
    return Reading(head["title"], text, last + 1 if last < total else 0)
