"""Long texts in pieces that a model reads whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def windows(text: str, begins: Sequence[int], room: int) -> list[str]:
    """`text` cut between words into pieces of at most `room` of the tokens that begin at these
    characters; within a word only where it alone is longer. One piece at least."""
    cuts, first = [0], 0
    while len(begins) - first > room:
        last = first + room
        words = (at for at in range(last, first, -1) if _opens_word(text, begins[at]))
        first = next(words, last)
        cuts.append(begins[first])
    return [text[begin:end].strip() for begin, end in pairwise([*cuts, len(text)])]


def _opens_word(text: str, at: int) -> bool:
    # The tokens of some models begin with the space before the word.
    return text[at - 1].isspace() or text[at].isspace()
