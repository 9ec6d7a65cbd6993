"""Query-biased excerpts: which few characters of a text to show for a query.

Matching is a light one, made to be fast on long texts rather than to equal an index's analyzer: a
query word without its ending (-s, -es, -ed, -ing) matches where a word of the text starts with it
and goes on for at most three letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_WORD = re.compile(r"\w+")
_TWO = re.compile(r"\w\w")
_PARTIAL = re.compile(r"\w+\Z")
_ENDINGS = ("ing", "es", "ed", "s")
_SHORTEST_STEM = 4
_LONGEST_ENDING = 3
# Enough to see every occurrence of the words that tell, few enough to be done in 0.2 ms.
_MOST_MATCHES = 256
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
    """The distinct words of a query, prepared once for all the texts of a page."""

    def __init__(self, text: str) -> None:
        words = (_stem(word) for word in _WORD.findall(_lower(text)))
        self.stems = tuple(dict.fromkeys(words))


def window(query: Query, text: str, characters: int) -> str:
    """The stretch of `characters` with the highest sum of distinct query words' weights (the
    earliest such one), where a word that occurs n times in the text weighs `n ** -0.5`."""
    matches = _matches(query, text)
    if not matches:
        return _cut(text, 0, characters)
    first, last = _best(matches, characters)
    start, end = matches[first].start, matches[last].end
    return _cut(text, start - max(0, characters - (end - start)) // 2, characters)


def first_match(query: Query, text: str, characters: int) -> str:
    """The stretch that starts 55 characters before the first match of any query word."""
    lowered = _lower(text)
    firsts = (_occurrences(lowered, stem, 1) for stem in query.stems)
    start = min((found[0][0] for found in firsts if found), default=0)
    return _cut(text, start - min(_LEAD, characters // 4), characters)


def nothing(query: Query, text: str, characters: int) -> str:
    """No excerpt."""
    return ""


METHODS: Mapping[str, Callable[[Query, str, int], str]] = {
    "window": window,
    "first_match": first_match,
    "none": nothing,
}


def _matches(query: Query, text: str) -> Sequence[Match]:
    """Occurrences in order of position, the rarest words' first served when there are many."""
    lowered = _lower(text)
    counts = [lowered.count(stem) for stem in query.stems]
    matches: list[Match] = []
    for word in sorted(range(len(counts)), key=counts.__getitem__):
        left = _MOST_MATCHES - len(matches)
        if counts[word] and left > 0:
            places = _occurrences(lowered, query.stems[word], left)
            weight = max(1, len(places)) ** -0.5
            matches += [Match(start, end, word, weight) for start, end in places]
    matches.sort()
    return matches


def _occurrences(lowered: str, stem: str, most: int) -> list[tuple[int, int]]:
    """Up to `most` spans of words of `lowered` that start with `stem` and end soon after it."""
    found: list[tuple[int, int]] = []
    # Scripts that write no spaces have no word starts to see; words in ASCII do.
    whole = stem.isascii()
    start = lowered.find(stem)
    while start >= 0 and len(found) < most:
        end = stop = start + len(stem)
        if not whole:
            found.append((start, end))
        elif start == 0 or not _TWO.match(lowered, start - 1):
            if ending := _WORD.match(lowered, end, end + _LONGEST_ENDING + 1):
                stop = ending.end()
            if stop - end <= _LONGEST_ENDING:
                found.append((start, stop))
        start = lowered.find(stem, end)
    return found


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


def _cut(text: str, start: int, characters: int) -> str:
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
    shown = " ".join(text[start:end].split())
    if not shown:
        return ""
    return f"{'…' if start > 0 else ''}{shown}{'…' if end < len(text) else ''}"


def _lower(text: str) -> str:
    """Lower case of the same length, so that positions in it are positions in the text."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := each.lower()) == 1 else each for each in text)


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word
