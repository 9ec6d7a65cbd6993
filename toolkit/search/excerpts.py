"""Query-biased excerpts: which few characters of a text to show for a query.

Matching is a light one, made to be fast on long texts rather than to equal an index's analyzer: a
query word without its ending (-s, -es, -ed, -ing) matches where a word of the text starts with it
and goes on for at most three letters; what is shorter than four letters matches whole words only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from toolkit.text import character_codes, word_characters

_WORD = re.compile(r"\w+")
_TWO = re.compile(r"\w\w")
_PARTIAL = re.compile(r"\w+\Z")
_ENDINGS = ("ing", "es", "ed", "s")
_SHORTEST_STEM = 4
_LONGEST_ENDING = 3
# A query that is a whole question is searched for by its longest words; the short ones say little.
_MOST_STEMS = 24
# What is longer is no word that a text repeats, and would be compared at every place of the text.
_LONGEST_STEM = 200
# What stands more often in a text says little about where to look; stopping here bounds the time.
_FREQUENT = 64
# What a word weighs that matches so often.
_WEIGHTS = np.array([max(1, count) ** -0.5 for count in range(_FREQUENT + 2)])
# Pi-Serini starts a quarter of its 220 characters before the first match.
_LEAD = 55
# A longer run of word characters is an address or a script without spaces: cut it anywhere.
_LONGEST_WORD = 30


class Query:
    """The distinct words of a query (the 24 longest of up to 200 letters), prepared once for all
    texts of a page."""

    def __init__(self, text: str) -> None:
        # Here, because it imports numba.
        from toolkit.search import excerpt_kernel

        self._kernel = excerpt_kernel
        distinct = dict.fromkeys(_stem(word) for word in _WORD.findall(_lower(text)))
        words = [stem for stem in distinct if len(stem) <= _LONGEST_STEM]
        stems = sorted(words, key=len, reverse=True)[:_MOST_STEMS]
        shapes = np.zeros((len(stems), 3), np.int64)
        offset = 0
        for row, stem in zip(shapes, stems, strict=True):
            row[:] = offset, len(stem), self._longest_ending(stem)
            offset += len(stem)
        self._stems = (_codes("".join(stems)), shapes, self._heads(stems))

    def _longest_ending(self, stem: str) -> int:
        if not stem.isascii():
            # Scripts that write no spaces have no word starts to see; words in ASCII do.
            return self._kernel.ANYWHERE
        return _LONGEST_ENDING if len(stem) >= _SHORTEST_STEM else 0

    def _heads(self, stems: list[str]) -> NDArray[np.int64]:
        heads = np.zeros((self._kernel.PREFIX, 256), np.int64)
        for number, stem in enumerate(stems):
            for position, row in enumerate(heads):
                last_bytes = ord(stem[position]) % 256 if position < len(stem) else slice(None)
                row[last_bytes] |= 1 << number
        return heads

    def best_window(self, text: str, characters: int) -> tuple[int, int]:
        """Start and end of the matches in the best window of `text`; both -1 without a match."""
        codes, characters = _codes(_lower(text)), min(characters, len(text))
        return self._kernel.best_window(
            codes, word_characters(), *self._stems, _WEIGHTS, characters
        )

    def first_place(self, text: str) -> int:
        """Where the first match in `text` starts; -1 without one."""
        return self._kernel.first_place(_codes(_lower(text)), word_characters(), *self._stems)


def _codes(text: str) -> NDArray[np.uint32]:
    """A copy, always of the same type, because the kernel is compiled for each type anew."""
    return np.array(character_codes(text), np.uint32)


def window(query: Query, text: str, characters: int) -> str:
    """The stretch of `characters` with the highest sum of distinct query words' weights (the
    earliest such one), where a word that occurs n times in the text weighs `n ** -0.5`."""
    start, end = query.best_window(text, characters)
    if end < 0:
        return cut(text, 0, characters)
    return cut(text, start - max(0, characters - (end - start)) // 2, characters)


def first_match(query: Query, text: str, characters: int) -> str:
    """The stretch that starts 55 characters before the first match of any query word."""
    start = max(0, query.first_place(text))
    return cut(text, start - min(_LEAD, characters // 4), characters)


def nothing(query: Query, text: str, characters: int) -> str:
    """No excerpt."""
    return ""


METHODS: Mapping[str, Callable[[Query, str, int], str]] = {
    "window": window,
    "first_match": first_match,
    "none": nothing,
}


def prepare() -> None:
    """Load the compiled code and the tables, which the first excerpts would else wait for."""
    for method in METHODS.values():
        method(Query("a"), "a", 1)


def cut(text: str, start: int, characters: int) -> str:
    """At most `characters` of `text` from about `start`, whole words, white space collapsed, with
    an ellipsis where text was left out."""
    start = max(0, min(start, len(text) - characters))
    end = min(len(text), start + characters)
    if start > 0 and _TWO.match(text, start - 1):
        word = _WORD.match(text, start, start + _LONGEST_WORD)
        start = word.end() if word and word.end() < start + _LONGEST_WORD else start
    if end < len(text) and _TWO.match(text, end - 1):
        word = _PARTIAL.search(text[max(start, end - _LONGEST_WORD) : end])
        end -= len(word[0]) if word and len(word[0]) < _LONGEST_WORD else 0
    excerpt = " ".join(text[start:end].split())
    if not excerpt:
        return ""
    return f"{'…' if start > 0 else ''}{excerpt}{'…' if end < len(text) else ''}"


def _lower(text: str) -> str:
    """Lower case of the same length, so that positions in it are positions in the text."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word
