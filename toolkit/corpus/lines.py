"""Cutting a text into lines for reading, so that reading by lines works on every document."""

from __future__ import annotations

import re

from toolkit.corpus.sentences import Spans, last_sentence_start

LINE_WIDTH = 1000

_TO_LAST_SPACE = re.compile(r".*\s", re.DOTALL)


def line_spans(text: str, width: int = LINE_WIDTH) -> Spans:
    """Half-open character spans of the lines of `text`, which they partition without a gap.

    A line ends with its line break (`\\n` or `\\r\\n`). One with more than `width` characters
    before the break is wrapped: behind the last sentence that fits with the white space after it;
    where none does, behind the last word; where one word is longer than `width`, at `width`. An
    empty text is one empty line.
    """
    spans: Spans = []
    start = 0
    while start < len(text):
        stop = text.find("\n", start) + 1 or len(text)
        # Of the break's two characters only: a copy of the rest at each cut would be quadratic.
        ending = text[max(start, stop - 2) : stop]
        visible_end = stop - len(ending) + len(without_break(ending))
        while visible_end - start > width:
            cut = _wrap_point(text, start, start + width)
            spans.append((start, cut))
            start = cut
        spans.append((start, stop))
        start = stop
    return spans or [(0, 0)]


def without_break(line: str) -> str:
    """The line less its final line break; all other white space stays."""
    return line.removesuffix("\n").removesuffix("\r")


def _wrap_point(text: str, start: int, limit: int) -> int:
    """Where the line from `start` is cut: after `start`, at or before `limit`."""
    cut = last_sentence_start(text, start, limit)
    if cut:
        return cut
    word = _TO_LAST_SPACE.match(text, start, limit)
    return word.end() if word else limit
