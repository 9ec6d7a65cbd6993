"""From the inverted index back to documents: which terms some documents hold, and how often.

One walk through the postings finds them for any number of documents at once: a long list is
searched for each document, a short one is read through. Where postings are many, feedback's terms,
those in at most a tenth of the documents, are found by document in files beside the index:

    forward/manifest.json    written last: the index that the files are of
    forward/offsets.bin      int64 [documents + 1]  where each document's terms begin
    forward/terms.bin        int32 [entries]        numbers of terms, ascending within a document
    forward/frequencies.bin  uint8 [entries]        as in the index: 0 for one above 255

They are written when they are first asked for, in about the time of a few walks, and appear whole.
Where they cannot be written (a folder of somebody else's, a full disk), each query walks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.index_folder import MANIFEST, read_manifest, write_manifest
from pipelines.lexical.storage import Arrays, array_path, load_array
from toolkit.errors import InputError
from toolkit.files import file_fingerprint, folder_made_whole, waiting_lock
from toolkit.jit import compiled
from toolkit.progress import track

_SEARCH_PAYS = 8  # where a list has so many postings for each document that is looked for
_FILES_PAY = 1 << 21  # postings: fewer are walked through in a few milliseconds
_PIECE = 1 << 25  # entries written at once, of five bytes each
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
    frequencies: NDArray[np.uint8]

    def vector(self, arrays: Arrays, number: int, largest_frequency: int) -> Vector:
        entries = slice(*self.offsets[number : number + 2].tolist())
        terms, frequencies = self.terms[entries], self.frequencies[entries].astype(np.int32)
        for position in np.flatnonzero(frequencies == 0).tolist():
            first, last = np.searchsorted(
                arrays.large_positions, arrays.offsets[terms[position] : terms[position] + 2]
            )
            large = first + np.searchsorted(arrays.large_documents[first:last], number)
            frequencies[position] = arrays.large_values[large]
        short = arrays.offsets[terms + 1] - arrays.offsets[terms] <= largest_frequency
        return terms[short], frequencies[short]


_TYPES = dict(zip(_Files._fields, ("<i8", "<i4", "|u1"), strict=True))


def _open(index: Path, arrays: Arrays, limit: int) -> _Files:
    """The files of an index; written if they are not there, or not of this index."""
    folder, fingerprint = index / _KIND, file_fingerprint(index / MANIFEST)
    if not _is_of(folder, fingerprint):
        with waiting_lock(index / f"{_KIND}.lock"):
            if not _is_of(folder, fingerprint):
                _write(folder, arrays, limit, fingerprint)
    return _Files(**{name: load_array(folder, name, kind) for name, kind in _TYPES.items()})


def _is_of(folder: Path, fingerprint: str) -> bool:
    try:
        read_manifest(folder, _KIND, fingerprint)
    except InputError:
        return False
    return True


def _write(folder: Path, arrays: Arrays, limit: int, fingerprint: str) -> None:
    postings = (arrays.offsets, arrays.documents, arrays.frequencies, limit)
    counts = np.zeros(len(arrays.lengths) + 1, np.int64)
    _count(arrays.offsets, arrays.documents, limit, counts)
    offsets = np.cumsum(counts)
    with folder_made_whole(folder) as partial:
        array_path(partial, "offsets").write_bytes(offsets.tobytes())
        with (
            array_path(partial, "terms").open("wb") as terms,
            array_path(partial, "frequencies").open("wb") as frequencies,
        ):
            for first, last in track(list(_pieces(offsets)), "terms by document"):
                free = offsets[first:last] - offsets[first]
                size = int(offsets[last] - offsets[first])
                piece = np.empty(size, np.int32), np.empty(size, np.uint8)
                _fill(*postings, first, last, free, *piece)
                terms.write(piece[0].data)
                frequencies.write(piece[1].data)
        write_manifest(partial, _KIND, {"corpus_fingerprint": fingerprint})


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
    frequencies: NDArray[np.uint8],
    limit: int,
    first: int,
    last: int,
    free: NDArray[np.int64],
    terms: NDArray[np.int32],
    values: NDArray[np.uint8],
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
