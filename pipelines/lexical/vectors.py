"""From the inverted index back to documents: which terms some documents hold, and how often.

The index has no document vectors. One walk through the postings finds them for any number of
documents at once: a long list is searched for each document, a short one is read through.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.jit import compiled
from pipelines.lexical.storage import Arrays

_SEARCH_PAYS = 8  # where a list has so many postings for each document that is looked for


def document_vectors(
    arrays: Arrays, numbers: NDArray[Any], largest_frequency: int, longest: int = 1
) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """For each document: the numbers of its terms, ascending, and their frequencies.

    Terms that more than `largest_frequency` documents hold are left out. `longest` is how many
    words a term has at most: lengths count words, and a document has at most so many terms for each
    of its words.
    """
    wanted, rows = np.unique(numbers, return_inverse=True)
    most = arrays.lengths[wanted].astype(np.int64) * longest
    room = np.concatenate([[0], np.cumsum(most)])
    terms = np.empty(room[-1], np.int32)
    positions = np.empty(room[-1], np.int64)
    marks = np.zeros(len(arrays.lengths), np.bool_)
    marks[wanted] = True
    ends = room[:-1].copy()
    looked_for = wanted.astype(np.uint32)
    _collect(
        *(arrays.offsets, arrays.documents, looked_for, marks, largest_frequency),
        *(ends, terms, positions),
    )
    parts = [slice(first, end) for first, end in zip(room.tolist(), ends.tolist(), strict=False)]
    vectors = [(terms[part].copy(), _frequencies(arrays, positions[part])) for part in parts]
    return [vectors[row] for row in rows.tolist()]


def _frequencies(arrays: Arrays, positions: NDArray[np.int64]) -> NDArray[np.int32]:
    frequencies = arrays.frequencies[positions].astype(np.int32)
    large = np.flatnonzero(frequencies == 0)
    entries = np.searchsorted(arrays.large_positions, positions[large])
    frequencies[large] = arrays.large_values[entries]
    return frequencies


@compiled
def _collect(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    wanted: NDArray[np.uint32],
    marks: NDArray[np.bool_],
    largest_frequency: int,
    ends: NDArray[np.int64],
    terms: NDArray[np.int32],
    positions: NDArray[np.int64],
) -> None:
    for term in range(len(offsets) - 1):
        first, last = offsets[term], offsets[term + 1]
        if last - first > largest_frequency:
            continue
        if last - first > _SEARCH_PAYS * len(wanted):
            for slot in range(len(wanted)):
                first = _lower(documents, first, last, wanted[slot])
                if first < last and documents[first] == wanted[slot]:
                    terms[ends[slot]] = term
                    positions[ends[slot]] = first
                    ends[slot] += 1
            continue
        for i in range(first, last):
            if marks[documents[i]]:
                slot = _lower(wanted, 0, len(wanted), documents[i])
                terms[ends[slot]] = term
                positions[ends[slot]] = i
                ends[slot] += 1


@compiled
def _lower(numbers: NDArray[np.uint32], first: int, last: int, number: np.uint32) -> int:
    """The first place in `first`..`last - 1` that holds `number` or more; else `last`."""
    while first < last:
        middle = (first + last) >> 1
        if numbers[middle] < number:
            first = middle + 1
        else:
            last = middle
    return first
