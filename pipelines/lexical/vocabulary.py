"""Many segments' vocabularies into one, sorted by bytes, without holding them all in memory."""

from __future__ import annotations

import heapq
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

_CHUNK = 65536


class Vocabulary(NamedTuple):
    """`size` terms; `numbers[segment][n]` is the position, in sorted order, of its term `n`."""

    size: int
    numbers: dict[str, NDArray[np.int32]]


def merge_vocabularies(work: Path, segments: Iterable[str], folder: Path) -> Vocabulary:
    """Write the sorted terms of all segments to `folder` and number them.

    Bytes of UTF-8 sort as code points do, so the order depends on no locale and on no segment.
    """
    orders = {segment: _sort(terms_path(work, segment)) for segment in sorted(segments)}
    numbers = {segment: np.empty(len(order), np.int32) for segment, order in orders.items()}
    streams = (_lines(terms_path(work, segment), segment) for segment in orders)
    writer = StringWriter(folder / TERMS)
    size = 0
    distinct = groupby(heapq.merge(*streams), key=itemgetter(0))
    while chunk := [(term, list(group)) for term, group in islice(distinct, _CHUNK)]:
        for position, (_, group) in enumerate(chunk, start=size):
            for _, segment, rank in group:
                numbers[segment][orders[segment][rank]] = position
        writer.extend(term for term, _ in chunk)
        size += len(chunk)
    writer.close()
    return Vocabulary(size, numbers)


def _sort(path: Path) -> NDArray[np.int32]:
    """Sort a file of lines in place; the former line number of each line."""
    lines = path.read_bytes().split(b"\n")[:-1]
    order = sorted(range(len(lines)), key=lines.__getitem__)
    with path.open("wb") as stream:
        stream.writelines(lines[number] + b"\n" for number in order)
    return np.array(order, dtype=np.int32)


def _lines(path: Path, segment: str) -> Iterator[tuple[bytes, str, int]]:
    with path.open("rb") as stream:
        for rank, line in enumerate(stream):
            yield line[:-1], segment, rank
