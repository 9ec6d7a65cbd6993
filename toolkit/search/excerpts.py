"""Query-biased excerpts: which few characters of a text to show for a query.

Matching is a light one, made to be fast on long texts rather than to equal an index's analyzer: a
query word without its ending (-s, -es, -ed, -ing) matches where a word of the text starts with it
and goes on for at most three letters; what is shorter than four letters matches whole words only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

_WORD = re.compile(r"\w+")
_TWO = re.compile(r"\w\w")
_PARTIAL = re.compile(r"\w+\Z")
_ENDINGS = ("ing", "es", "ed", "s")
_SHORTEST_STEM = 4
_LONGEST_ENDING = 3
# A query that is a whole question is searched for by its longest words: each costs a pass over
# the text, and the short ones say little.
_MOST_STEMS = 24
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
    firsts = (next(filter(_fits, _places(lowered, stem)), None) for stem in query.stems)
    start = min((span[0] for span in firsts if span), default=0)
    return cut(text, start - min(_LEAD, characters // 4), characters)


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
    rare: list[Match] = []
    frequent: list[Match] = []
    for word, stem in enumerate(query.stems):
        positions = list(islice(_places(lowered, stem), _FREQUENT + 1))
        matches = rare if len(positions) <= _FREQUENT else frequent
        spans = list(filter(_fits, positions))
        weight = max(1, len(spans)) ** -0.5
        matches += [Match(start, end, word, weight) for start, end in spans]
    return sorted(rare or frequent)


def _places(lowered: str, stem: str) -> Iterator[tuple[int, int]]:
    """Where `lowered` holds `stem`, in order: start and end of the word, the end -1 where that is
    no match."""
    # Scripts that write no spaces have no word starts to see; words in ASCII do.
    ascii_stem = stem.isascii()
    longest = _LONGEST_ENDING if len(stem) >= _SHORTEST_STEM else 0
    start = lowered.find(stem)
    while start >= 0:
        end = stop = start + len(stem)
        if ascii_stem and start > 0 and _TWO.match(lowered, start - 1):
            stop = -1
        elif ascii_stem and (ending := _WORD.match(lowered, end, end + longest + 1)):
            stop = ending.end() if ending.end() - end <= longest else -1
        yield start, stop
        start = lowered.find(stem, end)


def _fits(span: tuple[int, int]) -> bool:
    return span[1] >= 0


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
