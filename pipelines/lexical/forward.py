"""From the inverted index back to documents: which terms some documents have, and how often.

One walk through the postings finds them for any number of documents at once: a long list is
searched for each document, a short one is read through. If there are many postings, the terms of
feedback, those in at most a tenth of the documents, are read by document from files in the index:

    forward/manifest.json    written last: the index that the files are of
    forward/offsets.bin      int64 [documents + 1]  where the terms of each document begin
    forward/terms.bin        int32 [entries]        numbers of terms, ascending within a document
    forward/frequencies.bin  uint16 [entries]       of the type that the index has

They are written when they are first needed, in about the time of a few walks, and appear complete.
If they cannot be written (a folder without write access, a full disk), each query walks.
"""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import MANIFEST, write_once
from soundingline.pipelines.lexical.invert import ranges
from soundingline.pipelines.lexical.storage import (
    Arrays,
    array_path,
    map_array,
)
from soundingline.toolkit.console import track
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import file_hash
from soundingline.toolkit.jit import compiled

_SEARCH_PAYS = 8  # times as many postings as documents: then each document is searched for
_FILES_PAY = 1 << 21  # postings: a walk through fewer takes a few milliseconds
_PIECE = 1 << 25  # entries written at once, of six bytes each
_SHARE = 0.1  # of the documents: terms in more are not feedback terms
_KIND = "forward"

Vector = tuple[NDArray[np.int32], NDArray[np.int32]]


class DocumentTerms:
    """The terms of documents of the index at `path`; terms have up to `longest` words. Safe for
    many threads."""

    def __init__(
        self, path: Path, arrays: Arrays, documents_with_terms: int, longest: int = 1
    ) -> None:
        self._path, self._arrays, self._longest = path, arrays, longest
        self._limit = int(_SHARE * documents_with_terms)

    def vectors(self, numbers: NDArray[Any], largest_frequency: int) -> list[Vector]:
        """As `document_vectors`, from the files if they have all of these terms."""
        files = self._files if largest_frequency <= self._limit else None
        if files is None:
            return document_vectors(self._arrays, numbers, largest_frequency, self._longest)
        return [
            files.vector(self._arrays, number, largest_frequency) for number in numbers.tolist()
        ]

    @cached_property
    def _files(self) -> _Files | None:
        """The files, which are written if they are missing or of another index."""
        if len(self._arrays.documents) < _FILES_PAY:
            return None
        folder, origin = self._path / _KIND, file_hash(self._path / MANIFEST)
        try:
            write_once(folder, _KIND, origin, partial(_write, self._arrays, self._limit))
            return _Files.load(folder, self._arrays)
        except (OSError, InputError):
            return None


class _Files(NamedTuple):
    offsets: NDArray[np.int64]
    terms: NDArray[np.int32]
    frequencies: NDArray[Any]

    @classmethod
    def load(cls, folder: Path, arrays: Arrays) -> _Files:
        kinds = {"offsets": "<i8", "terms": "<i4", "frequencies": arrays.frequencies.dtype.str}
        return cls(*(map_array(folder, name, kind) for name, kind in kinds.items()))

    def vector(self, arrays: Arrays, number: int, largest_frequency: int) -> Vector:
        entries = slice(*self.offsets[number : number + 2].tolist())
        terms, frequencies = self.terms[entries], self.frequencies[entries].astype(np.int32)
        short = arrays.offsets[terms + 1] - arrays.offsets[terms] <= largest_frequency
        return terms[short], frequencies[short]


def _write(arrays: Arrays, limit: int, folder: Path) -> None:
    """Write the files of the terms in at most `limit` documents."""
    counts = np.zeros(len(arrays.lengths) + 1, np.int64)
    _count(arrays, limit, counts)
    offsets = np.cumsum(counts)
    array_path(folder, "offsets").write_bytes(offsets.tobytes())
    with (
        array_path(folder, "terms").open("wb") as terms,
        array_path(folder, "frequencies").open("wb") as frequencies,
    ):
        for first, last in track(list(ranges(offsets, _PIECE)), "terms by document"):
            starts, size = offsets[first:last] - offsets[first], offsets[last] - offsets[first]
            piece = np.empty(size, np.int32), np.empty(size, arrays.frequencies.dtype)
            _fill(arrays, limit, first, last, starts, *piece)
            terms.write(piece[0].data)
            frequencies.write(piece[1].data)


def document_vectors(
    arrays: Arrays, numbers: NDArray[Any], largest_frequency: int, longest: int = 1
) -> list[Vector]:
    """For each document: the numbers of its terms, ascending, and their frequencies.

    Terms in more than `largest_frequency` documents are left out. Terms have up to `longest` words,
    which bounds the number of terms of a document by its length in words.
    """
    wanted, rows = np.unique(numbers, return_inverse=True)
    most = arrays.lengths[wanted].astype(np.int64) * longest
    room = np.concatenate([[0], np.cumsum(most)])
    terms = np.empty(room[-1], np.int32)
    positions = np.empty(room[-1], np.int64)
    marks = np.zeros(len(arrays.lengths), np.bool_)
    marks[wanted] = True
    ends = room[:-1].copy()
    _collect(arrays, wanted.astype(np.uint32), marks, largest_frequency, ends, terms, positions)
    parts = [slice(first, end) for first, end in zip(room.tolist(), ends.tolist(), strict=False)]
    vectors = [
        (terms[part].copy(), arrays.frequencies[positions[part]].astype(np.int32)) for part in parts
    ]
    return [vectors[row] for row in rows.tolist()]


@compiled
def _collect(
    arrays: Arrays,
    wanted: NDArray[np.uint32],
    marks: NDArray[np.bool_],
    largest_frequency: int,
    ends: NDArray[np.int64],
    terms: NDArray[np.int32],
    positions: NDArray[np.int64],
) -> None:
    offsets, documents = arrays.offsets, arrays.documents
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


@compiled
def _count(arrays: Arrays, limit: int, counts: NDArray[np.int64]) -> None:
    """Count the terms of each document one place up, so that the running sum is where they
    begin."""
    offsets, documents = arrays.offsets, arrays.documents
    for term in range(len(offsets) - 1):
        if offsets[term + 1] - offsets[term] <= limit:
            for i in range(offsets[term], offsets[term + 1]):
                counts[documents[i] + np.uint32(1)] += 1


@compiled
def _fill(
    arrays: Arrays,
    limit: int,
    first: int,
    last: int,
    free: NDArray[np.int64],
    terms: NDArray[np.int32],
    values: NDArray[Any],
) -> None:
    """The entries of the documents `first`..`last - 1`."""
    offsets, documents, frequencies = arrays.offsets, arrays.documents, arrays.frequencies
    for term in range(len(offsets) - 1):
        end = offsets[term + 1]
        if end - offsets[term] > limit:
            continue
        i = _lower(documents, offsets[term], end, np.uint32(first))
        while i < end and documents[i] < last:
            row = np.int64(documents[i]) - first
            terms[free[row]] = term
            values[free[row]] = frequencies[i]
            free[row] += 1
            i += 1
