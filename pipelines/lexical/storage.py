"""The files of a lexical index, and their types.

    manifest.json       written last: format, counts, analyzer, corpus, versions, file sizes
    offsets.bin         int64 [terms + 1]   where each term's postings begin
    documents.bin       uint32 [postings]   document numbers, ascending within a term
    frequencies.bin     uint8 [postings]    term frequency; 0 stands for one above 255 ...
    large_positions.bin int64 [large]       ... whose position in the postings is listed here
    large_values.bin    int32 [large]       ... with the frequency itself
    lengths.bin         int32 [documents]   tokens of each document
    length_codes.bin    uint8 [documents]   the same in Lucene's one byte
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
LARGEST_SMALL = 255
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


TYPES = dict(zip(Arrays._fields, ("<i8", "<u4", "|u1", "<i8", "<i4", "<i4", "|u1"), strict=True))


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
    return Arrays(**{name: load_array(folder, name, kind) for name, kind in TYPES.items()})


def load_array(folder: Path, name: str, kind: str) -> NDArray[Any]:
    """Map one array, read-only."""
    return np.frombuffer(map_bytes(array_path(folder, name)), dtype=kind)
