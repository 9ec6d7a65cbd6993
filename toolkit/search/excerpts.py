"""Query-biased excerpts: which few characters of a text to show for a query.

Matching is a light one, made to be fast on long texts rather than to equal an index's analyzer: a
query word without its ending (-s, -es, -ed, -ing) matches where a word of the text starts with it
and goes on for at most three letters; what is shorter than four letters matches whole words only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")
_TWO = re.compile(r"\w\w")
_PARTIAL = re.compile(r"\w+\Z")
_ENDINGS = ("ing", "es", "ed", "s")
_SHORTEST_STEM = 4
_LONGEST_ENDING = 3
# A query that is a whole question is searched for by its longest words; the short ones say little.
_MOST_STEMS = 24
# Characters by which one pass over a text picks the places that are worth comparing with a stem.
_PREFIX = 4
# What stands more often in a text says little about where to look; stopping here bounds the time.
_FREQUENT = 64
# Pi-Serini starts a quarter of its 220 characters before the first match.
_LEAD = 55
# A longer run of word characters is an address or a script without spaces: cut it anywhere.
_LONGEST_WORD = 30


class Match(NamedTuple):
    """An occurrence of the query word numbered `word`, at `start`..`end`, and what it is worth."""

    start: int
    end: int
    word: int
    weight: float


class Query:
    """The distinct words of a query (the 24 longest), prepared once for all texts of a page."""

    def __init__(self, text: str) -> None:
        stems = dict.fromkeys(_stem(word) for word in _WORD.findall(_lower(text)))
        self.stems = sorted(stems, key=len, reverse=True)[:_MOST_STEMS]
        self._short = [word for word, stem in enumerate(self.stems) if len(stem) < _PREFIX]
        self._long: dict[str, list[int]] = {}
        for word, stem in enumerate(self.stems):
            if len(stem) >= _PREFIX:
                self._long.setdefault(stem[:_PREFIX], []).append(word)
        self._tables = [_table(self._long, position) for position in range(_PREFIX)]

    def places(self, lowered: str, most: int = sys.maxsize) -> Iterator[Iterator[tuple[int, int]]]:
        """Where `lowered` holds the stems, for each the first `most` places: the stem's number and
        the position, ascending and without overlap. All stems of four characters or more come
        together, found in one pass; then each shorter one, of which a text soon holds enough."""
        yield self._long_places(lowered, most)
        for word in self._short:
            yield zip(repeat(word), islice(_find(lowered, self.stems[word]), most))

    def _long_places(self, lowered: str, most: int) -> Iterator[tuple[int, int]]:
        ends, missing = [0] * len(self.stems), [most] * len(self.stems)
        for start in self._candidates(lowered):
            for word in self._long.get(lowered[start : start + _PREFIX], ()):
                stem = self.stems[word]
                if missing[word] and start >= ends[word] and lowered.startswith(stem, start):
                    ends[word] = start + len(stem)
                    missing[word] -= 1
                    yield word, start

    def _candidates(self, lowered: str) -> list[int]:
        """The places where a long stem may start, ascending, and few others.

        Each prefix of four characters has one of eight bits. Four tables map a character to the
        bits of the prefixes that have it at their first, second, third or fourth place, so that the
        AND over four neighbours leaves the places that may start one. With the stems `king` (bit
        1), `ring` (2) and `gold` (4):

            text                       r  i  n  g  .  g  o  k  i  n  g
            first character here       2  0  0  4  0  4  0  1  0  0  4
            second one further         3  0  0  0  0  4  0  3  0  0
            third two further          3  0  0  0  0  0  0  3  0
            fourth three further       3  0  3  0  0  0  0  3
            AND                        2  0  0  0  0  0  0  1
        """
        length = len(lowered) - _PREFIX + 1
        if length < 1 or not self._long:
            return []
        codes = _last_bytes(lowered)
        bits: NDArray[np.uint8] = np.full(length, 255, np.uint8)
        for position, table in enumerate(self._tables):
            bits &= np.frombuffer(codes.translate(table), np.uint8)[position : position + length]
        # As booleans, because numpy finds those several times faster than bytes.
        candidates: list[int] = np.flatnonzero(bits != 0).tolist()
        return candidates


def _table(prefixes: Iterable[str], position: int) -> bytes:
    """For the last byte of a character's code: the bits of the prefixes that have it there."""
    bits = bytearray(256)
    for number, prefix in enumerate(prefixes):
        bits[ord(prefix[position]) % 256] |= 1 << number % 8
    return bytes(bits)


def _last_bytes(text: str) -> bytes:
    """The last byte of each character's code."""
    return text.encode() if text.isascii() else text.encode("utf-32-le", "surrogatepass")[::4]


def _find(lowered: str, stem: str) -> Iterator[int]:
    """The places of a stem, ascending and without overlap."""
    start = lowered.find(stem)
    while start >= 0:
        yield start
        start = lowered.find(stem, start + len(stem))


def window(query: Query, text: str, characters: int) -> str:
    """The stretch of `characters` with the highest sum of distinct query words' weights (the
    earliest such one), where a word that occurs n times in the text weighs `n ** -0.5`."""
    matches = _matches(query, text)
    if not matches:
        return cut(text, 0, characters)
    first, last = _best(matches, characters)
    start, end = matches[first].start, matches[last].end
    return cut(text, start - max(0, characters - (end - start)) // 2, characters)


def first_match(query: Query, text: str, characters: int) -> str:
    """The stretch that starts 55 characters before the first match of any query word."""
    lowered = _lower(text)
    matching = (
        (position for word, position in places if _end(lowered, query.stems[word], position))
        for places in query.places(lowered)
    )
    firsts = [position for positions in matching for position in islice(positions, 1)]
    return cut(text, min(firsts, default=0) - min(_LEAD, characters // 4), characters)


def nothing(query: Query, text: str, characters: int) -> str:
    """No excerpt."""
    return ""


METHODS: Mapping[str, Callable[[Query, str, int], str]] = {
    "window": window,
    "first_match": first_match,
    "none": nothing,
}


def _matches(query: Query, text: str) -> Sequence[Match]:
    """Occurrences in order of position. A word that the text holds often, be it inside other words,
    is left out where others match, and known by its first occurrences where none does."""
    lowered = _lower(text)
    positions: list[list[int]] = [[] for _ in query.stems]
    for word, position in chain.from_iterable(query.places(lowered, _FREQUENT + 1)):
        positions[word].append(position)
    rare: list[Match] = []
    frequent: list[Match] = []
    for word, stem in enumerate(query.stems):
        matches = rare if len(positions[word]) <= _FREQUENT else frequent
        spans = [(start, end) for start in positions[word] if (end := _end(lowered, stem, start))]
        weight = max(1, len(spans)) ** -0.5
        matches += [Match(start, end, word, weight) for start, end in spans]
    return sorted(rare or frequent)


def _end(lowered: str, stem: str, start: int) -> int:
    """Where the word ends whose stem stands at `start`; 0 where that is no match."""
    end = start + len(stem)
    if not stem.isascii():
        return end  # scripts that write no spaces have no word starts to see; words in ASCII do
    if start > 0 and ((before := lowered[start - 1]) == "_" or before.isalnum()):
        return 0  # inside another word
    longest = _LONGEST_ENDING if len(stem) >= _SHORTEST_STEM else 0
    ending = _WORD.match(lowered, end, end + longest + 1)
    stop = ending.end() if ending else end
    return stop if stop - end <= longest else 0


def _best(matches: Sequence[Match], characters: int) -> tuple[int, int]:
    """First and last index of the window with the highest worth; at least one match."""
    inside: dict[int, int] = {}
    worth, best, bounds, first = 0.0, -1.0, (0, 0), 0
    for last, match in enumerate(matches):
        if not inside.get(match.word):
            worth += match.weight
        inside[match.word] = inside.get(match.word, 0) + 1
        while first < last and match.end - matches[first].start > characters:
            gone = matches[first]
            inside[gone.word] -= 1
            if not inside[gone.word]:
                worth -= gone.weight
            first += 1
        # Sums in another order differ in their last bits; that must not move the window.
        if worth > best + 1e-9:
            best, bounds = worth, (first, last)
    return bounds


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
