"""The files of a lexical index, and their types.

    manifest.json       written last: format, counts, analyzer, corpus, versions, file sizes
    offsets.bin         int64 [terms + 1]   where each term's postings begin
    documents.bin       uint32 [postings]   document numbers, ascending within a term
    frequencies.bin     uint8 [postings]    term frequency; 0 stands for one above 255 ...
    large_positions.bin int64 [large]       ... whose position in the postings is listed here
    large_values.bin    int32 [large]       ... with the frequency itself ...
    large_documents.bin uint32 [large]      ... and its document
    lengths.bin         int32 [documents]   tokens of each document
    length_codes.bin    uint8 [documents]   the same in Lucene's one byte
    frequent.bin        uint8 [rows, documents]  a row for each term that a third of the documents
                        hold: its frequency in each, as in frequencies.bin; 0 where it is absent
    terms.bytes/.offsets, units.bytes/.offsets   index terms (sorted by UTF-8), unit ids
    titles.bytes/.offsets, texts.bytes/.offsets  the units themselves, where they are kept

One byte holds nearly every frequency, and reading postings is what a query's time goes to.
All numbers are little-endian.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.strings import map_bytes

KIND = "lexical"
FREQUENT = "frequent"
LARGE = "large_documents"
LARGEST_SMALL = 255
ROWS = 3  # one of so many documents, or more, hold a term that has a row
_PIECE = 1 << 20  # postings
TERMS = "terms"
UNITS = "units"
TITLES = "titles"
# Where the texts of a ranking are: an attribute of its frame, plain text, because pandas copies,
# pickles and writes attributes with the frame.
ATTRIBUTE = "soundingline_texts"
TEXTS = "texts"


class Postings(Protocol):
    """What ranks documents by their postings, of this index or another that keeps them so."""

    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def documents(self) -> NDArray[np.uint32]: ...
    @property
    def frequencies(self) -> NDArray[Any]: ...
    @property
    def large_positions(self) -> NDArray[np.int64]: ...
    @property
    def large_values(self) -> NDArray[np.int32]: ...


class Arrays(NamedTuple):
    """The arrays of an index, in the order and of the types that the module's text gives."""

    offsets: NDArray[np.int64]
    documents: NDArray[np.uint32]
    frequencies: NDArray[np.uint8]
    large_positions: NDArray[np.int64]
    large_values: NDArray[np.int32]
    lengths: NDArray[np.int32]
    length_codes: NDArray[np.uint8]
    large_documents: NDArray[np.uint32]


_TYPES = ("<i8", "<u4", "|u1", "<i8", "<i4", "<i4", "|u1", "<u4")
TYPES = dict(zip(Arrays._fields, _TYPES, strict=True))


class FrequentTerms:
    """`numbers`: the terms that have a row, ascending; `rows` (uint8, terms by documents)."""

    def __init__(self, numbers: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        self.numbers, self.rows = numbers, rows
        # A query's few terms are found faster here than by numpy's search.
        self._places = {term: position for position, term in enumerate(numbers.tolist())}

    def rows_of(self, terms: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each term, -1 where it has none."""
        return np.array([self._places.get(term, -1) for term in terms.tolist()], np.int64)


def frequent_numbers(offsets: NDArray[np.int64], documents: int) -> NDArray[np.int64]:
    """The terms that at least a third of the documents hold."""
    return np.flatnonzero(ROWS * np.diff(offsets) >= documents)


def write_frequent(folder: Path, documents: int) -> None:
    """Write large_documents.bin and frequent.bin from the postings, a piece at a time."""
    offsets, large = (load_array(folder, name, "<i8") for name in ("offsets", "large_positions"))
    holders = [_read(folder, "documents", position, 1) for position in large.tolist()]
    array_path(folder, LARGE).write_bytes(b"".join(number.tobytes() for number in holders))
    row = np.empty(documents, np.uint8)
    with array_path(folder, FREQUENT).open("wb") as rows:
        for term in frequent_numbers(offsets, documents).tolist():
            row[:] = 0
            first, last = offsets[term : term + 2].tolist()
            for start in range(first, last, _PIECE):
                count = min(_PIECE, last - start)
                numbers = _read(folder, "documents", start, count)
                row[numbers] = _read(folder, "frequencies", start, count)
            rows.write(row.data)


def _read(folder: Path, name: str, start: int, count: int) -> NDArray[Any]:
    """Part of an array, read and not mapped, so that it is in memory for a moment only."""
    kind = np.dtype(TYPES[name])
    return np.fromfile(array_path(folder, name), kind, count, offset=start * kind.itemsize)


class Statistics(NamedTuple):
    """Counts of a collection. `documents_with_terms` is Lucene's docCount, the N of its idf, and
    `average_length` is in tokens over those documents."""

    documents: int
    documents_with_terms: int
    terms: int
    postings: int
    tokens: int

    @property
    def average_length(self) -> float:
        return self.tokens / max(self.documents_with_terms, 1)


def array_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.bin"


def load_arrays(folder: Path) -> Arrays:
    """Map every array, read-only."""
    names = [name for name in TYPES if array_path(folder, name).exists()]
    arrays = {name: load_array(folder, name, TYPES[name]) for name in names}
    if LARGE not in arrays:  # an index of an older release
        arrays[LARGE] = arrays["documents"][arrays["large_positions"]]
    return Arrays(**arrays)


def load_frequent(folder: Path, arrays: Arrays) -> FrequentTerms | None:
    """Map the rows of frequent terms; None for an index of another release, which has none or has
    them for other terms."""
    path, documents = array_path(folder, FREQUENT), len(arrays.lengths)
    numbers = frequent_numbers(arrays.offsets, documents)
    if not path.exists() or path.stat().st_size != len(numbers) * documents:
        return None
    return FrequentTerms(numbers, load_array(folder, FREQUENT, "|u1").reshape(-1, documents))


def load_array(folder: Path, name: str, kind: str) -> NDArray[Any]:
    """Map one array, read-only."""
    return np.frombuffer(map_bytes(array_path(folder, name)), dtype=kind)
