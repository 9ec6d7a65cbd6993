"""Second half of a build: vocabularies merged, postings by document turned into postings by term.

The vocabularies of all segments are merged in the order of their bytes. The terms are cut into
ranges whose postings fit in the memory allowed, and each range is filled in one pass over the
documents in their order. The result depends on that order alone."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.storage import TERMS, StringWriter, array_path
from soundingline.toolkit.console import track
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.jit import compiled

LARGEST_VOCABULARY = 2**31 - 1  # terms are numbered in 32 bits with a sign
_BLOCKS = 1 << 19  # bytes of the terms that are merged at once, from all segments
_LEAST_BLOCK = 1 << 12
_DOCUMENT_BYTES = 4
_LARGEST_SHORT = 65_535


class Batch(NamedTuple):
    """What became of some consecutive documents.

    `distinct` counts terms per document, `lengths` its tokens without n-grams; the postings are
    `sum(distinct)` term numbers of the segment and as many frequencies, both int32, from byte
    `start` of the segment's file.
    """

    segment: str
    start: int
    distinct: NDArray[np.int32]
    lengths: NDArray[np.int32]


def postings_path(folder: Path, segment: str) -> Path:
    return folder / f"segment-{segment}.postings"


def terms_path(folder: Path, segment: str) -> Path:
    """The file of a segment's terms in the order of their numbers, one a line."""
    return folder / f"segment-{segment}.terms"


class Vocabulary(NamedTuple):
    """`size` terms; `numbers[segment][n]` is the position, in sorted order, of its term `n`."""

    size: int
    numbers: dict[str, NDArray[np.int32]]


def merge_vocabularies(work: Path, segments: Iterable[str], folder: Path) -> Vocabulary:
    """Write the sorted terms of all segments to `folder` and number them.

    Bytes of UTF-8 sort as code points do, so the order depends on no locale and on no segment.
    `InputError` for 2^31 terms or more.
    """
    orders = {segment: _sort(terms_path(work, segment)) for segment in sorted(segments)}
    # Terms of a segment come in order, so each one's position is the next of its segment.
    positions = {segment: array("i") for segment in orders}
    writer = StringWriter(folder / TERMS)
    size = 0
    with ExitStack() as stack:
        length = max(_BLOCKS // max(len(orders), 1), _LEAST_BLOCK)
        blocks = {
            segment: _Block(stack.enter_context(terms_path(work, segment).open("rb")), length)
            for segment in orders
        }
        while lasts := [block.terms[-1] for block in blocks.values() if block.terms]:
            # Every term up to the least of these is in a block, for the blocks reach at least it.
            parts = {segment: block.take(min(lasts)) for segment, block in blocks.items()}
            terms = sorted(set().union(*parts.values()))
            if size + len(terms) > LARGEST_VOCABULARY:
                raise InputError(
                    f"there are more than {LARGEST_VOCABULARY:,} index terms",
                    valid=f"at most {LARGEST_VOCABULARY:,} in one lexical index",
                    do="use an analyzer without n-grams or with hashed ones, or split the corpus",
                )
            numbered = dict(zip(terms, count(size), strict=False))
            for segment, part in parts.items():
                positions[segment].extend(map(numbered.__getitem__, part))
            writer.extend(terms)
            size += len(terms)
    writer.close()
    numbers = {segment: np.empty(len(order), np.int32) for segment, order in orders.items()}
    for segment, order in orders.items():
        numbers[segment][order] = np.frombuffer(positions[segment], np.int32)
    return Vocabulary(size, numbers)


class _Block:
    """The next terms of a sorted file, about `length` bytes of them; none at its end."""

    def __init__(self, stream: BinaryIO, length: int) -> None:
        self._stream, self._length = stream, length
        self._read()

    def _read(self) -> None:
        self.terms = [line[:-1] for line in self._stream.readlines(self._length)]
        self._taken = 0

    def take(self, last: bytes) -> list[bytes]:
        """Take the terms up to `last`."""
        end = bisect_right(self.terms, last, self._taken)
        taken, self._taken = self.terms[self._taken : end], end
        if end == len(self.terms):
            self._read()
        return taken


def _sort(path: Path) -> NDArray[np.int32]:
    """Sort a file of lines in place; the former line number of each line."""
    lines = path.read_bytes().split(b"\n")[:-1]
    order = sorted(range(len(lines)), key=lines.__getitem__)
    with path.open("wb") as stream:
        stream.writelines(lines[number] + b"\n" for number in order)
    return np.array(order, dtype=np.int32)


class DocumentPostings(NamedTuple):
    """Postings of consecutive documents, document after document; `first` is the number of the
    first one, and `distinct` the number of terms of each."""

    first: int
    distinct: NDArray[Any]
    terms: NDArray[Any]
    values: NDArray[Any]


def invert(
    read: Callable[[], Iterable[DocumentPostings]],
    size: int,
    folder: Path,
    memory: int,
    kind: str | None = None,
) -> tuple[int, str]:
    """Write offsets, documents and frequencies of `size` terms to `folder`, with buffers of about
    `memory` bytes. `read` gives all documents in their order, each time it is called. `kind` is the
    type of the frequencies; None takes 16 bits, or 32 if a frequency needs them.

    Returns:
        The number of postings and the type of the frequencies.
    """
    counts, largest = np.zeros(size + 1, dtype=np.int64), 0.0
    for postings in read():
        count_postings(postings.terms, counts)
        largest = max(largest, float(postings.values.max(initial=0)))
    offsets = np.cumsum(counts)
    array_path(folder, "offsets").write_bytes(offsets.tobytes())
    kind = kind or ("<u2" if largest <= _LARGEST_SHORT else "<u4")
    bytes_each = _DOCUMENT_BYTES + np.dtype(kind).itemsize
    passes = list(ranges(offsets, max(memory // bytes_each, 1)))
    with (
        array_path(folder, "documents").open("wb") as documents,
        array_path(folder, "frequencies").open("wb") as frequencies,
    ):
        for first, last in track(passes, "inverting", len(passes)):
            free = offsets[first:last] - offsets[first]
            size = int(offsets[last] - offsets[first])
            numbers, values = np.empty(size, np.uint32), np.empty(size, kind)
            for postings in read():
                place_postings(postings, first, free, numbers, values)
            documents.write(numbers.data)
            frequencies.write(values.data)
    return int(offsets[-1]), kind


def ranges(offsets: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rows, each of at most `most` entries or of one row. `offsets` are where
    the entries of the rows begin."""
    first, rows = 0, len(offsets) - 1
    while first < rows:
        fitting = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = min(max(fitting, first + 1), rows)
        yield first, last
        first = last


def read_segments(
    work: Path, batches: Sequence[Batch], vocabulary: Vocabulary
) -> Iterator[DocumentPostings]:
    """Each batch that the first half has written, by the numbers of the merged vocabulary."""
    document = 0
    with ExitStack() as stack:
        streams = {
            segment: stack.enter_context(postings_path(work, segment).open("rb"))
            for segment in {batch.segment for batch in batches}
        }
        for batch in batches:
            stream = streams[batch.segment]
            stream.seek(batch.start)
            size = 4 * int(batch.distinct.sum())
            terms = np.frombuffer(stream.read(size), dtype=np.int32)
            values = np.frombuffer(stream.read(size), dtype=np.int32)
            numbers = vocabulary.numbers[batch.segment][terms]
            yield DocumentPostings(document, batch.distinct, numbers, values)
            document += len(batch.distinct)


@compiled
def count_postings(terms: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Count each term one place up, so that the running sum is where its postings begin."""
    for term in terms:
        counts[term + 1] += 1


@compiled
def place_postings(
    postings: DocumentPostings,
    first: int,
    free: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[Any],
) -> None:
    """Put the postings of the terms `first`..`first + len(free) - 1` at the next free place of
    their term."""
    posting = 0
    for row in range(len(postings.distinct)):
        for _ in range(postings.distinct[row]):
            term = postings.terms[posting] - first
            value = postings.values[posting]
            posting += 1
            if 0 <= term < len(free):
                position = free[term]
                free[term] = position + 1
                documents[position] = postings.first + row
                frequencies[position] = value
