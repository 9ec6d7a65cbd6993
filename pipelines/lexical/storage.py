"""The files of an inverted index, and their types.

    manifest.json       written last: format, counts, analyzer, corpus, versions, checksums
    offsets.bin         int64 [terms + 1]   where each term's postings begin
    documents.bin       uint32 [postings]   document numbers, ascending within a term
    frequencies.bin     uint16 [postings]   term frequency; uint32 where one is above 65,535;
                                            float32 for impacts that are not small whole numbers
    terms.bytes/.offsets, units.bytes/.offsets   index terms, unit ids
    pt_meta.json        what PyTerrier opens the index by (`pt.Artifact`)

A lexical index has its terms sorted by UTF-8, and besides these files

    lengths.bin         int32 [documents]   tokens of each document
    length_codes.bin    uint8 [documents]   the same in Lucene's one byte
    titles.bytes/.offsets, texts.bytes/.offsets  titles and texts of the units, if they are stored

All numbers are little-endian."""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

KIND = "lexical"
ARTIFACT_TYPE = "sparse_index"
ARTIFACT_FORMAT = "soundingline"
TERMS = "terms"
UNITS = "units"
TITLES = "titles"
TEXTS = "texts"


class Postings(NamedTuple):
    """The postings of each term: document numbers, ascending, and frequencies or impacts."""

    offsets: NDArray[np.int64]
    documents: NDArray[np.uint32]
    frequencies: NDArray[Any]


class Arrays(NamedTuple):
    """The arrays of an index; see the module."""

    offsets: NDArray[np.int64]
    documents: NDArray[np.uint32]
    frequencies: NDArray[Any]
    lengths: NDArray[np.int32]
    length_codes: NDArray[np.uint8]


class Statistics(NamedTuple):
    """Counts of a collection. `documents_with_terms` is Lucene's docCount, the N of its idf, and
    `average_length` is in tokens over those documents."""

    documents: int
    documents_with_terms: int
    terms: int
    postings: int
    tokens: int

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Statistics:
        """Those in the manifest of an index."""
        counts = manifest["counts"]
        return cls(*(counts[name] for name in cls._fields))

    @property
    def average_length(self) -> float:
        return self.tokens / max(self.documents_with_terms, 1)


def array_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.bin"


def load_postings(folder: Path, manifest: Mapping[str, Any]) -> Postings:
    """Map the postings of an index, read-only."""
    return Postings(
        map_array(folder, "offsets", "<i8"),
        map_array(folder, "documents", "<u4"),
        map_array(folder, "frequencies", manifest["type"]),
    )


def load_arrays(folder: Path, postings: Postings) -> Arrays:
    """The postings of a lexical index with its other arrays, which are mapped read-only."""
    return Arrays(
        *postings, map_array(folder, "lengths", "<i4"), map_array(folder, "length_codes", "|u1")
    )


def map_array(folder: Path, name: str, kind: str) -> NDArray[Any]:
    """Map one array, read-only."""
    return np.frombuffer(map_bytes(array_path(folder, name)), dtype=kind)


def to_texts(data: bytes, bounds: Sequence[int]) -> list[str]:
    """The strings between neighbouring `bounds` of `data`."""
    pairs = pairwise(bounds)
    if data.isascii():  # all to text at once is faster
        text = data.decode("ascii")
        return [text[start:end] for start, end in pairs]
    return [data[start:end].decode() for start, end in pairs]


class StringWriter:
    """Appends strings to `<stem>.bytes` and closes with their offsets in `<stem>.offsets`."""

    def __init__(self, stem: Path) -> None:
        self._blob: BinaryIO = stem.with_suffix(".bytes").open("wb")
        self._offsets: BinaryIO = stem.with_suffix(".offsets").open("wb")
        self._end = 0
        self._offsets.write(np.int64(0).tobytes())

    def extend(self, items: Iterable[bytes]) -> None:
        items = list(items)
        ends = np.cumsum(np.fromiter(map(len, items), np.int64, len(items))) + self._end
        self._blob.write(b"".join(items))
        self._offsets.write(ends.astype("<i8").tobytes())
        self._end = int(ends[-1]) if len(items) else self._end

    def close(self) -> None:
        self._blob.close()
        self._offsets.close()


def map_bytes(path: Path) -> mmap.mmap | bytes:
    """The file's bytes, mapped read-only. An empty file cannot be mapped and is empty bytes."""
    if path.stat().st_size == 0:
        return b""
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


class StringTable:
    """Strings by position, and iterable. Safe for many threads."""

    def __init__(self, stem: Path) -> None:
        self._blob = map_bytes(stem.with_suffix(".bytes"))
        # Reading a plain integer from a memoryview is faster than from a numpy array.
        self._offsets = memoryview(map_bytes(stem.with_suffix(".offsets"))).cast("q")
        self._bytes = np.frombuffer(self._blob, np.uint8)
        self._starts = np.frombuffer(self._offsets, np.int64)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def data(self, position: int) -> bytes:
        return self._blob[self._offsets[position] : self._offsets[position + 1]]

    def __iter__(self) -> Iterator[str]:
        return (self.data(position).decode() for position in range(len(self)))

    def __getitem__(self, position: int) -> str:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of a table of {len(self)} strings")
        return self.data(position).decode()

    def take(self, positions: NDArray[Any]) -> list[str]:
        """The strings at these positions, whose bytes are copied and decoded together."""
        starts = self._starts[positions]
        sizes = self._starts[positions + 1] - starts
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)
        return to_texts(self._bytes[places].tobytes(), [0, *ends.tolist()])

    def find(self, text: str) -> int:
        """The position of `text` in a table that is sorted by its bytes; -1 if it is not there."""
        key = text.encode()
        position = bisect.bisect_left(range(len(self)), key, key=self.data)
        return position if position < len(self) and self.data(position) == key else -1


class StringLookup:
    """Places of strings in a sequence, by the hashes of its strings: 12 bytes each, where a
    dictionary takes more than 100. `read` reads the string at a place, and decides if hashes are
    equal."""

    def __init__(self, hashes: NDArray[np.int64], read: Callable[[int], str]) -> None:
        self._order = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes, self._read = hashes[self._order], read

    def find(self, text: str) -> int:
        """The first place of `text`; -1 if it is not in the sequence."""
        value = np.int64(hash(text))
        first, last = (np.searchsorted(self._hashes, value, side) for side in ("left", "right"))
        positions = self._order[first:last].tolist()
        return next((position for position in positions if self._read(position) == text), -1)


class Docnos:
    """The unit ids of an index by document number, decoded when they are first read."""

    def __init__(self, table: StringTable) -> None:
        self._table = table
        self._names = np.full(len(table), None, dtype=object)
        self._known = np.zeros(len(table), dtype=bool)
        self._places: StringLookup | None = None

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, number: int) -> str:
        return self._table[number]

    def take(self, numbers: NDArray[Any]) -> NDArray[np.object_]:
        """The unit ids (an object array of `str`) of these document numbers."""
        unknown = numbers[~self._known[numbers]]
        if len(unknown):
            # The names first and their marks second: another thread must not see a mark too early.
            self._names[unknown] = self._table.take(unknown)
            self._known[unknown] = True
        return self._names[numbers]

    def numbers(self, names: Iterable[str]) -> NDArray[np.int32]:
        """The document numbers of these unit ids; -1 for an id that is not in the index."""
        if self._places is None:
            hashes = np.fromiter(map(hash, self._table), np.int64, len(self))
            self._places = StringLookup(hashes, self._table.__getitem__)
        return np.array([self._places.find(name) for name in names], dtype=np.int32)


_EXACT_LENGTHS = 24


def _decode_length(code: int) -> int:
    if code < _EXACT_LENGTHS:
        return code
    mantissa, exponent = (code - _EXACT_LENGTHS) & 7, (code - _EXACT_LENGTHS) >> 3
    return _EXACT_LENGTHS + (mantissa if exponent == 0 else (8 | mantissa) << (exponent - 1))


DECODED_LENGTHS: NDArray[np.int64] = np.array(
    [_decode_length(code) for code in range(256)], dtype=np.int64
)
"""The length of each of the 256 codes, ascending."""


def encode_lengths(lengths: NDArray[Any]) -> NDArray[np.uint8]:
    """The code of each length (integers >= 0): the largest whose decoded length is not above."""
    return (np.searchsorted(DECODED_LENGTHS, lengths, side="right") - 1).astype(np.uint8)
