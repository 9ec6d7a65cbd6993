"""Many segments' vocabularies into one, sorted by bytes, without holding them all in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.forward import terms_path
from pipelines.lexical.storage import TERMS
from pipelines.lexical.strings import StringWriter
from toolkit.errors import InputError

LARGEST_VOCABULARY = 2**31 - 1  # terms are numbered in 32 bits with a sign
_BLOCKS = 1 << 19  # bytes of the terms that are merged at once, from all segments
_LEAST_BLOCK = 1 << 12


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
            _check_size(size + len(terms))
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


def _check_size(terms: int) -> None:
    if terms > LARGEST_VOCABULARY:
        raise InputError(
            f"there are more than {LARGEST_VOCABULARY:,} index terms",
            valid=f"at most {LARGEST_VOCABULARY:,} in one lexical index",
            do="choose an analyzer without n-grams or with hashed ones, or split the corpus",
        )


class _Block:
    """The next terms of a sorted file, some `length` bytes of them; none where it has ended."""

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
