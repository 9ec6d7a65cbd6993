"""Many segments' vocabularies into one, sorted by bytes, without holding them all in memory."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.forward import terms_path
from pipelines.lexical.storage import TERMS
from pipelines.lexical.strings import StringWriter
from toolkit.errors import InputError

LARGEST_VOCABULARY = 2**31 - 1  # terms are numbered in 32 bits with a sign
_CHUNK = 65536
_SEGMENT = itemgetter(1)


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
    merged = heapq.merge(*(_lines(terms_path(work, segment), segment) for segment in orders))
    distinct = groupby(merged, key=itemgetter(0))
    writer = StringWriter(folder / TERMS)
    size = 0
    while chunk := [(term, list(map(_SEGMENT, group))) for term, group in islice(distinct, _CHUNK)]:
        if size + len(chunk) > LARGEST_VOCABULARY:
            raise InputError(
                f"there are more than {LARGEST_VOCABULARY:,} index terms",
                valid=f"at most {LARGEST_VOCABULARY:,} in one lexical index",
                do="choose an analyzer without n-grams or with hashed ones, or split the corpus",
            )
        for position, (_, holders) in enumerate(chunk, start=size):
            for segment in holders:
                positions[segment].append(position)
        writer.extend([term for term, _ in chunk])
        size += len(chunk)
    writer.close()
    numbers = {segment: np.empty(len(order), np.int32) for segment, order in orders.items()}
    for segment, order in orders.items():
        numbers[segment][order] = np.frombuffer(positions[segment], np.int32)
    return Vocabulary(size, numbers)


def _sort(path: Path) -> NDArray[np.int32]:
    """Sort a file of lines in place; the former line number of each line."""
    lines = path.read_bytes().split(b"\n")[:-1]
    order = sorted(range(len(lines)), key=lines.__getitem__)
    with path.open("wb") as stream:
        stream.writelines(lines[number] + b"\n" for number in order)
    return np.array(order, dtype=np.int32)


def _lines(path: Path, segment: str) -> Iterator[tuple[bytes, str]]:
    with path.open("rb") as stream:
        for line in stream:
            yield line[:-1], segment
