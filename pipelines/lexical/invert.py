"""Second half of a build: postings by document into postings by term.

The vocabulary is cut into ranges of terms whose postings fit in the memory allowed, and each range
is filled in one pass over the documents in their order. The result depends on that order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.forward import Batch, postings_path
from pipelines.lexical.storage import LARGEST_SMALL, array_path
from pipelines.lexical.vocabulary import Vocabulary
from toolkit.jit import compiled
from toolkit.progress import track

_DOCUMENT_BYTES = 4


class DocumentPostings(NamedTuple):
    """Postings of consecutive documents: `distinct` counts each one's terms, `terms` and `values`
    hold them all, document after document. `first` is the number of the first document."""

    first: int
    distinct: NDArray[Any]
    terms: NDArray[Any]
    values: NDArray[Any]


def invert(
    read: Callable[[], Iterable[DocumentPostings]],
    size: int,
    folder: Path,
    memory: int,
    kind: type = np.uint8,
) -> tuple[int, int]:
    """Write offsets, documents and frequencies to `folder`, with about `memory` bytes of buffers.

    `read` gives all documents in their order, each time it is called; `size` is the number of
    terms; `kind` the type of frequencies, of which those above 255 are listed apart.
    Gives the number of postings and of those too large for one byte.
    """
    offsets = _offsets(read(), size)
    array_path(folder, "offsets").write_bytes(offsets.tobytes())
    large: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    bytes_each = _DOCUMENT_BYTES + np.dtype(kind).itemsize
    ranges = list(_ranges(offsets, max(memory // bytes_each, 1)))
    with (
        array_path(folder, "documents").open("wb") as documents,
        array_path(folder, "frequencies").open("wb") as frequencies,
    ):
        for first, last in track(ranges, "inverting", len(ranges)):
            passed = _Pass(offsets, first, last, kind)
            for postings in read():
                passed.add(postings)
            large.append(passed.write(documents, frequencies))
    positions = np.concatenate([p for p, _ in large]) if large else np.empty(0, np.int64)
    values = np.concatenate([v for _, v in large]) if large else np.empty(0, np.int32)
    array_path(folder, "large_positions").write_bytes(positions.tobytes())
    array_path(folder, "large_values").write_bytes(values.tobytes())
    return int(offsets[-1]), len(positions)


def _offsets(documents: Iterable[DocumentPostings], size: int) -> NDArray[np.int64]:
    counts = np.zeros(size + 1, dtype=np.int64)
    for postings in documents:
        count(postings.terms, counts)
    return np.cumsum(counts)


def _ranges(offsets: NDArray[np.int64], postings: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of terms of at most `postings` postings each, but of one term at least."""
    first, size = 0, len(offsets) - 1
    while first < size:
        fitting = int(np.searchsorted(offsets, offsets[first] + postings, side="right")) - 1
        last = min(max(fitting, first + 1), size)
        yield first, last
        first = last


def read_segments(
    work: Path, batches: Sequence[Batch], vocabulary: Vocabulary
) -> Iterator[DocumentPostings]:
    """Each batch that the first half has written, by the numbers of the merged vocabulary."""
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
            numbers = vocabulary.numbers[batch.segment][terms]
            yield DocumentPostings(document, batch.distinct, numbers, values)
            document += len(batch.distinct)
    finally:
        for stream in streams.values():
            stream.close()


class _Pass:
    """The postings of the terms `first`..`last - 1`, filled document by document."""

    def __init__(self, offsets: NDArray[np.int64], first: int, last: int, kind: type) -> None:
        self._first, self._base = first, int(offsets[first])
        self._next = offsets[first:last] - self._base
        size = int(offsets[last]) - self._base
        self._documents = np.empty(size, np.uint32)
        self._frequencies: NDArray[Any] = np.empty(size, kind)
        self._large: list[NDArray[np.int64]] = []

    def add(self, postings: DocumentPostings) -> None:
        room = np.empty((int((postings.values > LARGEST_SMALL).sum()), 2), np.int64)
        count_large = place(
            postings.distinct,
            postings.first,
            postings.terms,
            postings.values,
            self._first,
            self._next,
            self._documents,
            self._frequencies,
            room,
        )
        self._large.append(room[:count_large])

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
def count(terms: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Count each term one place up, so that the running sum gives where each begins."""
    for term in terms:
        counts[term + 1] += 1


@compiled
def place(
    distinct: NDArray[Any],
    document: int,
    terms: NDArray[Any],
    values: NDArray[Any],
    first: int,
    free: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[Any],
    large: NDArray[np.int64],
) -> int:
    """Put a batch's postings of this range of terms at the next free place of their term."""
    count = 0
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
                    large[count, 0] = position
                    large[count, 1] = value
                    count += 1
    return count
