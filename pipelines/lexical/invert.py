"""Second half of a build: postings by document into postings by term.

The vocabulary is cut into ranges of terms whose postings fit in the memory allowed, and each range
is filled in one pass over the documents in their order. The result depends on that order alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.forward import Batch, postings_path
from pipelines.lexical.jit import compiled
from pipelines.lexical.storage import LARGEST_SMALL, array_path
from pipelines.lexical.vocabulary import Vocabulary
from toolkit.progress import track

BYTES_PER_POSTING = 5


def invert(
    work: Path, batches: Sequence[Batch], vocabulary: Vocabulary, folder: Path, memory: int
) -> tuple[int, int]:
    """Write offsets, documents and frequencies to `folder`, with about `memory` bytes of buffers.

    Gives the number of postings and of those too large for one byte.
    """
    offsets = _offsets(work, batches, vocabulary)
    array_path(folder, "offsets").write_bytes(offsets.tobytes())
    large: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    ranges = list(_ranges(offsets, max(memory // BYTES_PER_POSTING, 1)))
    with (
        array_path(folder, "documents").open("wb") as documents,
        array_path(folder, "frequencies").open("wb") as frequencies,
    ):
        for first, last in track(ranges, "inverting", len(ranges)):
            passed = _Pass(offsets, first, last)
            for batch, document, terms, values in _read(work, batches, vocabulary):
                passed.add(batch, document, terms, values)
            large.append(passed.write(documents, frequencies))
    positions = np.concatenate([p for p, _ in large]) if large else np.empty(0, np.int64)
    values = np.concatenate([v for _, v in large]) if large else np.empty(0, np.int32)
    array_path(folder, "large_positions").write_bytes(positions.tobytes())
    array_path(folder, "large_values").write_bytes(values.tobytes())
    return int(offsets[-1]), len(positions)


def _offsets(work: Path, batches: Sequence[Batch], vocabulary: Vocabulary) -> NDArray[np.int64]:
    counts = np.zeros(vocabulary.size + 1, dtype=np.int64)
    for _, _, terms, _ in _read(work, batches, vocabulary):
        count(terms, counts)
    return np.cumsum(counts)


def _ranges(offsets: NDArray[np.int64], postings: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of terms of at most `postings` postings each, but of one term at least."""
    first, size = 0, len(offsets) - 1
    while first < size:
        fitting = int(np.searchsorted(offsets, offsets[first] + postings, side="right")) - 1
        last = min(max(fitting, first + 1), size)
        yield first, last
        first = last


def _read(
    work: Path, batches: Sequence[Batch], vocabulary: Vocabulary
) -> Iterator[tuple[Batch, int, NDArray[np.int32], NDArray[np.int32]]]:
    """Each batch with its first document's number, its terms and its frequencies."""
    document = 0
    streams: dict[str, BinaryIO] = {}
    try:
        for batch in batches:
            if batch.segment not in streams:
                streams[batch.segment] = postings_path(work, batch.segment).open("rb")
            stream = streams[batch.segment]
            stream.seek(batch.start)
            size = 4 * int(batch.distinct.sum())
            terms = np.frombuffer(stream.read(size), dtype=np.int32)
            values = np.frombuffer(stream.read(size), dtype=np.int32)
            yield batch, document, vocabulary.numbers[batch.segment][terms], values
            document += len(batch.distinct)
    finally:
        for stream in streams.values():
            stream.close()


class _Pass:
    """The postings of the terms `first`..`last - 1`, filled document by document."""

    def __init__(self, offsets: NDArray[np.int64], first: int, last: int) -> None:
        self._first, self._base = first, int(offsets[first])
        self._next = offsets[first:last] - self._base
        size = int(offsets[last]) - self._base
        self._documents = np.empty(size, np.uint32)
        self._frequencies = np.empty(size, np.uint8)
        self._large: list[NDArray[np.int64]] = []

    def add(
        self, batch: Batch, document: int, terms: NDArray[np.int32], values: NDArray[np.int32]
    ) -> None:
        room = np.empty((int((values > LARGEST_SMALL).sum()), 2), np.int64)
        found = place(
            batch.distinct,
            document,
            terms,
            values,
            self._first,
            self._next,
            self._documents,
            self._frequencies,
            room,
        )
        self._large.append(room[:found])

    def write(
        self, documents: BinaryIO, frequencies: BinaryIO
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Append to the two files; the positions and values of the large frequencies."""
        documents.write(self._documents.data)
        frequencies.write(self._frequencies.data)
        large = np.concatenate(self._large) if self._large else np.empty((0, 2), np.int64)
        large = large[np.argsort(large[:, 0])]
        return large[:, 0] + self._base, large[:, 1].astype(np.int32)


@compiled
def count(terms: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
    """Count each term one place up, so that the running sum gives where each begins."""
    for term in terms:
        counts[term + 1] += 1


@compiled
def place(
    distinct: NDArray[np.int32],
    document: int,
    terms: NDArray[np.int32],
    values: NDArray[np.int32],
    first: int,
    free: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.uint8],
    large: NDArray[np.int64],
) -> int:
    """Put a batch's postings of this range of terms at the next free place of their term."""
    found = 0
    posting = 0
    for row in range(len(distinct)):
        for _ in range(distinct[row]):
            term = terms[posting] - first
            value = values[posting]
            posting += 1
            if 0 <= term < len(free):
                position = free[term]
                free[term] = position + 1
                documents[position] = document + row
                frequencies[position] = value if value <= LARGEST_SMALL else 0
                if value > LARGEST_SMALL:
                    large[found, 0] = position
                    large[found, 1] = value
                    found += 1
    return found
