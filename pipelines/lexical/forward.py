"""From the inverted index back to documents: which terms some documents hold, and how often.

One walk through the postings finds them for any number of documents at once: a long list is
searched for each document, a short one is read through. Where postings are many, feedback's terms,
those in at most a tenth of the documents, are found by document in files beside the index:

    forward/manifest.json    written last: the index that the files are of
    forward/offsets.bin      int64 [documents + 1]  where each document's terms begin
    forward/terms.bin        int32 [entries]        numbers of terms, ascending within a document
    forward/frequencies.bin  uint16 [entries]       of the type that the index has

They are written when they are first asked for, in about the time of a few walks, and appear whole.
Where they cannot be written (a folder of somebody else's, a full disk), each query walks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import MANIFEST, read_manifest, write_manifest
from soundingline.pipelines.lexical.storage import (
    Arrays,
    array_path,
    check_offsets,
    check_range,
    load_array,
)
from soundingline.toolkit.console import track
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, file_hash, file_lock
from soundingline.toolkit.jit import compiled

_SEARCH_PAYS = 8  # where a list has so many postings for each document that is looked for
_FILES_PAY = 1 << 21  # postings: fewer are walked through in a few milliseconds
_PIECE = 1 << 25  # entries written at once, of six bytes each
_SHARE = 0.1  # of the documents: terms in more are no feedback terms
_KIND = "forward"

Vector = tuple[NDArray[np.int32], NDArray[np.int32]]


class DocumentTerms:
    """The terms of documents of the index at `path`, which are of up to `longest` words; for many
    threads."""

    def __init__(
        self, path: Path, arrays: Arrays, documents_with_terms: int, longest: int = 1
    ) -> None:
        self._path, self._arrays, self._longest = path, arrays, longest
        self._limit = int(_SHARE * documents_with_terms)
        self._lock = Lock()
        self._files: _Files | None = None
        self._tried = len(arrays.documents) < _FILES_PAY

    def vectors(self, numbers: NDArray[Any], largest_frequency: int) -> list[Vector]:
        """As `document_vectors`, from the files where they have all that is asked for."""
        files = self._opened() if largest_frequency <= self._limit else None
        if files is None:
            return document_vectors(self._arrays, numbers, largest_frequency, self._longest)
        return [
            files.vector(self._arrays, number, largest_frequency) for number in numbers.tolist()
        ]

    def _opened(self) -> _Files | None:
        with self._lock:
            if not self._tried:
                self._tried = True
                try:
                    self._files = _open(self._path, self._arrays, self._limit)
                except OSError:
                    self._files = None
        return self._files


class _Files(NamedTuple):
    offsets: NDArray[np.int64]
    terms: NDArray[np.int32]
    frequencies: NDArray[Any]

    def vector(self, arrays: Arrays, number: int, largest_frequency: int) -> Vector:
        entries = slice(*self.offsets[number : number + 2].tolist())
        terms, frequencies = self.terms[entries], self.frequencies[entries].astype(np.int32)
        short = arrays.offsets[terms + 1] - arrays.offsets[terms] <= largest_frequency
        return terms[short], frequencies[short]


def _open(index: Path, arrays: Arrays, limit: int) -> _Files:
    """The files of an index; written if they are not there, or not of this index."""
    folder, fingerprint = index / _KIND, file_hash(index / MANIFEST)
    if not _is_of(folder, fingerprint, arrays):
        with file_lock(index / f"{_KIND}.lock"):
            if not _is_of(folder, fingerprint, arrays):
                _write(folder, arrays, limit, fingerprint)
    return _load(folder, arrays)


def _load(folder: Path, arrays: Arrays) -> _Files:
    return _Files(
        load_array(folder, "offsets", "<i8"),
        load_array(folder, "terms", "<i4"),
        load_array(folder, "frequencies", arrays.frequencies.dtype.str),
    )


def _is_of(folder: Path, fingerprint: str, arrays: Arrays) -> bool:
    def check(folder: Path, manifest: Mapping[str, Any]) -> None:
        files = _load(folder, arrays)
        check_offsets(files.offsets, len(files.terms), "offsets.bin")
        check_range(files.terms, 0, len(arrays.offsets) - 2, "terms.bin")
        if (len(files.offsets) - 1, len(files.frequencies)) != (
            len(arrays.lengths),
            len(files.terms),
        ):
            raise ValueError("the files do not fit together")

    try:
        read_manifest(folder, _KIND, fingerprint, check)
    except InputError:
        return False
    return True


def _write(folder: Path, arrays: Arrays, limit: int, fingerprint: str) -> None:
    offsets = _offsets(arrays, limit)
    with atomic_folder(folder) as partial:
        array_path(partial, "offsets").write_bytes(offsets.tobytes())
        with (
            array_path(partial, "terms").open("wb") as terms,
            array_path(partial, "frequencies").open("wb") as frequencies,
        ):
            for first, last in track(list(_pieces(offsets)), "terms by document"):
                piece = _entries(arrays, limit, offsets, first, last)
                terms.write(piece[0].data)
                frequencies.write(piece[1].data)
        write_manifest(partial, _KIND, {"corpus_fingerprint": fingerprint})


def every_vector(arrays: Arrays) -> Iterator[Vector]:
    """For each document, in their order: the numbers of its terms, ascending, and their
    frequencies. Takes six bytes for each of up to 33 million postings, and a walk through all
    postings for as many."""
    limit = len(arrays.lengths)
    offsets = _offsets(arrays, limit)
    for first, last in _pieces(offsets):
        piece = _entries(arrays, limit, offsets, first, last)
        files = _Files(offsets - offsets[first], *piece)
        for number in range(first, last):
            yield files.vector(arrays, number, limit)


def _offsets(arrays: Arrays, limit: int) -> NDArray[np.int64]:
    """Where each document's terms begin, of those in at most `limit` documents."""
    counts = np.zeros(len(arrays.lengths) + 1, np.int64)
    _count(arrays.offsets, arrays.documents, limit, counts)
    return np.cumsum(counts)


def _entries(
    arrays: Arrays, limit: int, offsets: NDArray[np.int64], first: int, last: int
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """The terms and frequencies of the documents `first`..`last - 1`."""
    size = int(offsets[last] - offsets[first])
    piece = np.empty(size, np.int32), np.empty(size, arrays.frequencies.dtype)
    postings = (arrays.offsets, arrays.documents, arrays.frequencies, limit)
    _fill(*postings, first, last, offsets[first:last] - offsets[first], *piece)
    return piece


def _pieces(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of documents, of one at least, with at most so many entries that memory is bounded."""
    first, documents = 0, len(offsets) - 1
    while first < documents:
        fitting = int(np.searchsorted(offsets, offsets[first] + _PIECE, side="right")) - 1
        last = min(max(fitting, first + 1), documents)
        yield first, last
        first = last


def document_vectors(
    arrays: Arrays, numbers: NDArray[Any], largest_frequency: int, longest: int = 1
) -> list[Vector]:
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
    vectors = [
        (terms[part].copy(), arrays.frequencies[positions[part]].astype(np.int32)) for part in parts
    ]
    return [vectors[row] for row in rows.tolist()]


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


@compiled
def _count(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    limit: int,
    counts: NDArray[np.int64],
) -> None:
    """Count each document's terms one place up, so that the running sum gives where each begins."""
    for term in range(len(offsets) - 1):
        if offsets[term + 1] - offsets[term] <= limit:
            for i in range(offsets[term], offsets[term + 1]):
                counts[documents[i] + np.uint32(1)] += 1


@compiled
def _fill(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[Any],
    limit: int,
    first: int,
    last: int,
    free: NDArray[np.int64],
    terms: NDArray[np.int32],
    values: NDArray[Any],
) -> None:
    """The entries of the documents `first`..`last - 1`."""
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
