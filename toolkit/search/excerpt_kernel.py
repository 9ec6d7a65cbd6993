"""Where the words of a query stand in a text, and the window that holds the most of them: compiled.

A text is an array of the codes of its characters, in lower case. `heads` picks the places that are
worth comparing with a stem: bit s of `heads[p, b]` says that the stem numbered s may have, as its
character p, one whose code ends with the byte b. The AND over four neighbours leaves the stems that
may start at a place. With the stems `king` (bit 1), `ring` (2) and `of` (4):

    text                       r  i  n  g  .  o  f  k  i  n  g
    first character here       2  0  0  0  0  4  0  1  0  0  0
    second one further         3  0  0  0  0  4  0  3  0  0
    third two further          7  4  4  4  4  4  4  7  4
    fourth three further       7  4  7  4  4  4  4  7
    AND                        2  0  0  0  0  4  0  1

All compiled functions stand in this one file, with their constants: numba keeps machine code until
the file of the function changes, and does not look at what that function calls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.jit import compiled

PREFIX = 4
ANYWHERE = -1  # the `ending` of a stem that matches inside words, too
_UNLIMITED = 1 << 62
_START, _END, _STEM = 0, 1, 2


@compiled
def best_window(
    text: NDArray[np.uint32],
    word_characters: NDArray[np.bool_],
    stems: NDArray[np.uint32],
    shapes: NDArray[np.int64],
    heads: NDArray[np.int64],
    weights: NDArray[np.float64],
    characters: int,
) -> tuple[int, int]:
    """Start of the first and end of the last match of the best window; both -1 without a match.

    `stems` are those of the query, one behind the other; a row of `shapes` holds a stem's offset in
    them, its length, and the longest ending that may follow it. `weights[n]` is what a stem with n
    matches weighs. A stem with more than `len(weights) - 2` places counts only where no other one
    matches.
    """
    frequent = len(weights) - 1
    counts = np.zeros((2, len(shapes)), np.int64)  # places, and those of them that match
    matches = np.empty((len(shapes) * frequent, 3), np.int64)
    count = _find(text, word_characters, stems, shapes, heads, frequent, counts, matches)
    rare = 0
    for row in range(count):
        if counts[0, matches[row, _STEM]] < frequent:
            _copy(matches, row, rare)
            rare += 1
    count = rare or count
    if count == 0:
        return -1, -1
    first, last = _best(matches[:count], counts[1], weights, characters)
    return matches[first, _START], matches[last, _END]


@compiled
def first_place(
    text: NDArray[np.uint32],
    word_characters: NDArray[np.bool_],
    stems: NDArray[np.uint32],
    shapes: NDArray[np.int64],
    heads: NDArray[np.int64],
) -> int:
    """Where the first match starts; -1 without one. For the arguments see `best_window`."""
    counts = np.zeros((2, len(shapes)), np.int64)
    matches = np.empty((1, 3), np.int64)
    count = _find(text, word_characters, stems, shapes, heads, _UNLIMITED, counts, matches)
    return matches[0, _START] if count else -1


@compiled
def _find(
    text: NDArray[np.uint32],
    word_characters: NDArray[np.bool_],
    stems: NDArray[np.uint32],
    shapes: NDArray[np.int64],
    heads: NDArray[np.int64],
    most: int,
    counts: NDArray[np.int64],
    matches: NDArray[np.int64],
) -> int:
    """Fill `matches` (start, end, stem) in order, from the first `most` places of each stem, which
    do not overlap; their number. Stops when `matches` is full."""
    free = np.zeros(len(shapes), np.int64)  # where the next place of a stem may start
    wanted = (1 << len(shapes)) - 1
    count = 0
    for start in range(len(text)):
        candidates = wanted
        for position in range(min(PREFIX, len(text) - start)):
            candidates &= heads[position, text[start + position] & 255]
            if candidates == 0:
                break
        stem = 0
        while candidates >> stem:
            offset, length, ending = shapes[stem]
            if (
                candidates >> stem & 1
                and start >= free[stem]
                and _stands(text, start, stems[offset : offset + length])
            ):
                free[stem] = start + length
                counts[0, stem] += 1
                if counts[0, stem] == most:
                    wanted ^= 1 << stem
                end = _end(text, word_characters, start, start + length, ending)
                if end:
                    counts[1, stem] += 1
                    _insert(matches, count, start, end, stem)
                    count += 1
                    if count == len(matches):
                        return count
            stem += 1
        if wanted == 0:
            break
    return count


@compiled
def _stands(text: NDArray[np.uint32], start: int, stem: NDArray[np.uint32]) -> bool:
    """Whether the text has the stem at `start`."""
    if start + len(stem) > len(text):
        return False
    same = 0
    while same < len(stem) and text[start + same] == stem[same]:
        same += 1
    return same == len(stem)


@compiled
def _end(
    text: NDArray[np.uint32], word_characters: NDArray[np.bool_], start: int, end: int, ending: int
) -> int:
    """Where the word ends whose stem stands from `start` to `end`; 0 where that is no match."""
    if ending == ANYWHERE:
        return end
    if start > 0 and word_characters[text[start - 1]]:
        return 0  # inside another word
    stop = end
    while stop < len(text) and word_characters[text[stop]]:
        stop += 1
        if stop - end > ending:
            return 0
    return stop


@compiled
def _insert(matches: NDArray[np.int64], count: int, start: int, end: int, stem: int) -> None:
    """Add a match behind the first `count`, which begin no later: matches that begin together are
    ordered by their ends."""
    row = count
    while row > 0 and matches[row - 1, _START] == start and matches[row - 1, _END] > end:
        _copy(matches, row - 1, row)
        row -= 1
    matches[row, _START], matches[row, _END], matches[row, _STEM] = start, end, stem


@compiled
def _copy(matches: NDArray[np.int64], source: int, target: int) -> None:
    """A row at once, numba would compile an error that tells shapes, for a second."""
    for column in range(matches.shape[1]):
        matches[target, column] = matches[source, column]


@compiled
def _best(
    matches: NDArray[np.int64],
    occurrences: NDArray[np.int64],
    weights: NDArray[np.float64],
    characters: int,
) -> tuple[int, int]:
    """First and last row of the window with the highest worth; at least one match."""
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
