"""Query-biased snippets. A query word without its ending (-s, -es, -ed, -ing) matches words of the
text that start with it and have at most three more letters; stems of fewer than four letters match
whole words only. The search is compiled: in Python, a call with a question of 25 words would take
1.7 times as long. Import this module where it is used, because it loads numba; all compiled code is
in this file, because numba keeps machine code until the file of the function changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.jit import compiled
from soundingline.toolkit.tokens import character_codes, word_characters

_WORD = re.compile(r"\w+")
_TWO = re.compile(r"\w\w")
_PARTIAL = re.compile(r"\w+\Z")
_ENDINGS = ("ing", "es", "ed", "s")
_SHORTEST_STEM = 4
_LONGEST_ENDING = 3
# Of a query that is a whole question the longest words are used; short ones say little.
_MOST_STEMS = 24
# A longer stem is not a word that texts repeat.
_LONGEST_STEM = 200
# A stem that occurs more often says little about where to look; the limit also bounds the time.
_FREQUENT = 64
_WEIGHTS = np.array([max(1, count) ** -0.5 for count in range(_FREQUENT + 2)])  # by matches
# Of Pi-Serini's excerpts (`tokenize`, STOPWORDS and `buildExcerpt` of Bm25Server.java in
# justram/pi-serini at bbab25d): the tokens of a query, without some words; the fewest characters in
# front of a match; and what Java's `trim` removes.
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")
_STOPWORDS = "a an and are as at be by for from in into is it of on or that the their this to with"
_LEAST_LEAD = 20
_BLANK = "".join(map(chr, range(33)))
# A longer run of word characters is a URL or a script without spaces: it may be cut anywhere.
_LONGEST_WORD = 30
# Of the kernel: characters that `heads` compares; the ending of a stem that matches inside words;
# columns of a match.
_PREFIX = 4
_ANYWHERE = -1
_START, _END, _STEM = 0, 1, 2

_Codes = NDArray[np.uint32]
_Numbers = NDArray[np.int64]
_Flags = NDArray[np.bool_]
# The stems of a query, joined; the offset, the length and the longest ending of each; `heads`.
_Stems = tuple[_Codes, _Numbers, _Numbers]


class QueryTerms:
    """The words of a query, prepared once for all texts of a page: `stems`, the 24 longest distinct
    ones of at most 200 letters, for `best_window`, and Pi-Serini's `tokens` for `first_match`."""

    def __init__(self, query: str) -> None:
        stopwords = _STOPWORDS.split()
        tokens = dict.fromkeys(token.lower() for token in _TOKEN.findall(query))
        self.tokens = [each for each in tokens if len(each) > 1 and each not in stopwords]
        distinct = dict.fromkeys(_stem(word) for word in _WORD.findall(_lower(query)))
        short = [stem for stem in distinct if len(stem) <= _LONGEST_STEM]
        stems = sorted(short, key=len, reverse=True)[:_MOST_STEMS]
        shapes = np.zeros((len(stems), 3), np.int64)
        # Bit s of `heads[p, b]` says that character p of stem s may have a code that ends with the
        # byte b. The AND over four neighbours leaves the stems that may begin at a place, which
        # selects the places that are worth comparing in one reading of the text.
        heads = np.zeros((_PREFIX, 256), np.int64)
        offset = 0
        for number, stem in enumerate(stems):
            ending = _LONGEST_ENDING if len(stem) >= _SHORTEST_STEM else 0
            if not stem.isascii():
                ending = _ANYWHERE  # scripts without spaces have no visible beginnings of words
            shapes[number] = offset, len(stem), ending
            offset += len(stem)
            for position, row in enumerate(heads):
                last_byte = ord(stem[position]) % 256 if position < len(stem) else slice(None)
                row[last_byte] |= 1 << number
        self.stems: _Stems = (_codes("".join(stems)), shapes, heads)


def best_window(terms: QueryTerms, text: str, characters: int) -> str:
    """The stretch of `characters` around the window of matches that is worth most: the sum of the
    weights of its distinct stems, `n ** -0.5` for a stem with n matches in the text. Of equal
    windows the first one counts. Stems that occur more than 64 times count only if no others
    match."""
    codes, room = _codes(_lower(text)), min(characters, len(text))
    start, end = _best_window(codes, word_characters(), terms.stems, _WEIGHTS, room)
    if end < 0:
        return excerpt(text, 0, characters)
    return excerpt(text, start - max(0, characters - (end - start)) // 2, characters)


def first_match(terms: QueryTerms, text: str, characters: int) -> str:
    """Pi-Serini's excerpt: `characters` of the text. It begins a quarter of them, and at least 20,
    before the earliest place of any token of the query, inside a word or not; without one, at the
    beginning. Words are cut, line breaks stay, and `...` marks text that was left out."""
    text = text.strip(_BLANK)
    lowered = _lower(text)
    places = [place for token in terms.tokens if (place := lowered.find(token)) >= 0]
    start = max(0, min(places, default=0) - max(_LEAST_LEAD, characters // 4))
    end = start + characters
    shown = text[start:end].strip(_BLANK)
    return f"{'...' if start > 0 else ''}{shown}{'...' if end < len(text) else ''}"


METHODS: Mapping[str, Callable[[QueryTerms, str, int], str]] = {
    "window": best_window,
    "first_match": first_match,
}


def load_tables() -> None:
    """Load the compiled code and the tables, so that the first snippet does not wait for them."""
    for method in METHODS.values():
        method(QueryTerms("a"), "a", 1)


def excerpt(text: str, start: int, characters: int) -> str:
    """At most `characters` of `text` from about `start`: whole words, white space collapsed. An
    ellipsis marks text that was left out."""
    start = max(0, min(start, len(text) - characters))
    end = min(len(text), start + characters)
    if start > 0 and _TWO.match(text, start - 1):
        word = _WORD.match(text, start, start + _LONGEST_WORD)
        start = word.end() if word and word.end() < start + _LONGEST_WORD else start
    if end < len(text) and _TWO.match(text, end - 1):
        word = _PARTIAL.search(text[max(start, end - _LONGEST_WORD) : end])
        end -= len(word[0]) if word and len(word[0]) < _LONGEST_WORD else 0
    snippet = " ".join(text[start:end].split())
    if not snippet:
        return ""
    return f"{'…' if start > 0 else ''}{snippet}{'…' if end < len(text) else ''}"


def _lower(text: str) -> str:
    """The text in lower case, of the same length, so that positions are those of the text."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    # Only one character gets longer. Without capital sigmas, whose form depends on their place,
    # parts of a text have the same lower case as the whole.
    return "İ".join(part.lower() for part in text.replace("Σ", "σ").split("İ"))


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word


def _codes(text: str) -> _Codes:
    """The codes of the characters, always of one type, because each type is compiled anew."""
    return np.array(character_codes(text), np.uint32)


@compiled
def _best_window(
    text: _Codes, letters: _Flags, query: _Stems, weights: NDArray[np.float64], characters: int
) -> tuple[int, int]:
    """Start of the first and end of the last match of the best window; both -1 without one.
    `letters` has the codes of word characters; `weights[n]` is the weight of a stem with n
    matches."""
    shapes = query[1]
    frequent = len(weights) - 1
    counts = np.zeros((2, len(shapes)), np.int64)  # of places; of those that match
    matches = np.empty((len(shapes) * frequent, 3), np.int64)
    count = _find(text, letters, query, frequent, counts, matches)
    rare = 0
    for row in range(count):
        if counts[0, matches[row, _STEM]] < frequent:
            _copy(matches, row, rare)
            rare += 1
    count = rare or count
    if count == 0:
        return -1, -1
    first, last = _heaviest(matches[:count], counts[1], weights, characters)
    return matches[first, _START], matches[last, _END]


@compiled
def _find(
    text: _Codes, letters: _Flags, query: _Stems, most: int, counts: _Numbers, matches: _Numbers
) -> int:
    """Fill `matches` (start, end, stem) in order, from the first `most` places of each stem. The
    places of a stem do not overlap. Stops when `matches` is full; returns their number."""
    stems, shapes, heads = query
    free = np.zeros(len(shapes), np.int64)  # where the next place of a stem may start
    searched = (1 << len(shapes)) - 1
    count = 0
    for start in range(len(text)):
        candidates = searched
        for position in range(min(_PREFIX, len(text) - start)):
            candidates &= heads[position, text[start + position] & 255]
            if candidates == 0:
                break
        stem = 0
        while candidates >> stem:
            offset, length, ending = shapes[stem]
            if (
                candidates >> stem & 1
                and start >= free[stem]
                and _equals(text, start, stems[offset : offset + length])
            ):
                free[stem] = start + length
                counts[0, stem] += 1
                if counts[0, stem] == most:
                    searched ^= 1 << stem
                end = _end(text, letters, start, start + length, ending)
                if end:
                    counts[1, stem] += 1
                    _insert(matches, count, start, end, stem)
                    count += 1
                    if count == len(matches):
                        return count
            stem += 1
        if searched == 0:
            break
    return count


@compiled
def _equals(text: _Codes, start: int, stem: _Codes) -> bool:
    """Whether the stem occurs at `start`."""
    if start + len(stem) > len(text):
        return False
    same = 0
    while same < len(stem) and text[start + same] == stem[same]:
        same += 1
    return same == len(stem)


@compiled
def _end(text: _Codes, letters: _Flags, start: int, end: int, ending: int) -> int:
    """The end of the word whose stem is at `start` to `end`; 0 if it is not a match."""
    if ending == _ANYWHERE:
        return end
    if start > 0 and letters[text[start - 1]]:
        return 0  # inside another word
    stop = end
    while stop < len(text) and letters[text[stop]]:
        stop += 1
        if stop - end > ending:
            return 0
    return stop


@compiled
def _insert(matches: _Numbers, count: int, start: int, end: int, stem: int) -> None:
    """Add a match to `count` others that begin no later, which stay ordered by start and end."""
    row = count
    while row > 0 and matches[row - 1, _START] == start and matches[row - 1, _END] > end:
        _copy(matches, row - 1, row)
        row -= 1
    matches[row, _START], matches[row, _END], matches[row, _STEM] = start, end, stem


@compiled
def _copy(matches: _Numbers, source: int, target: int) -> None:
    # Assigning a whole row would take a second longer to compile.
    for column in range(matches.shape[1]):
        matches[target, column] = matches[source, column]


@compiled
def _heaviest(
    matches: _Numbers, occurrences: _Numbers, weights: NDArray[np.float64], characters: int
) -> tuple[int, int]:
    """First and last match of the window that is worth most."""
    inside = np.zeros(len(occurrences), np.int64)
    worth, best, best_first, best_last, first = 0.0, -1.0, 0, 0, 0
    for last in range(len(matches)):
        stem = matches[last, _STEM]
        if inside[stem] == 0:
            worth += weights[occurrences[stem]]
        inside[stem] += 1
        while first < last and matches[last, _END] - matches[first, _START] > characters:
            gone = matches[first, _STEM]
            inside[gone] -= 1
            if inside[gone] == 0:
                worth -= weights[occurrences[gone]]
            first += 1
        # Sums in another order differ in their last bits; that must not move the window.
        if worth > best + 1e-9:
            best, best_first, best_last = worth, first, last
    return best_first, best_last
