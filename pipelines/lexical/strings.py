"""Tables of strings on disk, mapped and not loaded: a blob of UTF-8 and the offsets into it."""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


def to_bytes(text: str) -> bytes:
    """UTF-8; a lone surrogate, which JSON can carry, survives."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


class StringWriter:
    """Appends strings to `<stem>.bytes` and closes with their offsets in `<stem>.offsets`."""

    def __init__(self, stem: Path) -> None:
        self._stem = stem
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

    def read(self, position: int) -> str:
        """One of the strings written so far."""
        self._blob.flush()
        self._offsets.flush()
        table = StringTable(self._stem)
        return table[position]

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
        # A memoryview gives plain integers faster than a numpy array does.
        self._offsets = memoryview(map_bytes(stem.with_suffix(".offsets"))).cast("q")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def data(self, position: int) -> bytes:
        return self._blob[self._offsets[position] : self._offsets[position + 1]]

    def __iter__(self) -> Iterator[str]:
        return (to_text(self.data(position)) for position in range(len(self)))

    def __getitem__(self, position: int) -> str:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of a table of {len(self)} strings")
        return to_text(self.data(position))

    def find(self, text: str) -> int:
        """The position of `text` in a table that is sorted by its bytes; -1 if it is not there."""
        key = to_bytes(text)
        position = bisect.bisect_left(range(len(self)), key, key=self.data)
        return position if position < len(self) and self.data(position) == key else -1


class Places:
    """Where strings stand in a sequence, by their hashes, which are given in the same order: 12
    bytes each, where a dictionary takes more than 100. `read` gives the string at a place, and
    decides where hashes are equal."""

    def __init__(self, hashes: NDArray[np.int64], read: Callable[[int], str]) -> None:
        self._order = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes, self._read = hashes[self._order], read

    def find(self, text: str) -> int:
        """The first place of `text`; -1 where it is not in the sequence."""
        positions = self._places(np.int64(hash(text)))
        return next((position for position in positions if self._read(position) == text), -1)

    def doubled(self) -> tuple[int, int] | None:
        """The places of a string and of another coming of it, where one comes twice."""
        for position in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]).tolist():
            first: dict[str, int] = {}
            for index in self._places(self._hashes[position]):
                if first.setdefault(self._read(index), index) != index:
                    return first[self._read(index)], index
        return None

    def _places(self, value: np.int64) -> list[int]:
        first, last = (np.searchsorted(self._hashes, value, side) for side in ("left", "right"))
        positions: list[int] = self._order[first:last].tolist()
        return positions


class Names:
    """The unit ids of an index by document number, decoded once and kept as they are asked for."""

    def __init__(self, table: StringTable) -> None:
        self._table = table
        self._names = np.full(len(table), None, dtype=object)
        self._known = np.zeros(len(table), dtype=bool)
        self._places: Places | None = None

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, number: int) -> str:
        return self._table[number]

    def take(self, numbers: NDArray[Any]) -> NDArray[np.object_]:
        """The unit ids (an object array of `str`) of these document numbers."""
        unknown = numbers[~self._known[numbers]]
        if len(unknown):
            # The names first and their marks second: another thread must not see a mark too early.
            self._names[unknown] = [self._table[number] for number in unknown.tolist()]
            self._known[unknown] = True
        return self._names[numbers]

    def numbers(self, names: Iterable[str]) -> NDArray[np.int32]:
        """The document numbers of these unit ids; -1 for an id that is not in the index."""
        if self._places is None:
            hashes = np.fromiter(map(hash, self._table), np.int64, len(self))
            self._places = Places(hashes, self._table.__getitem__)
        return np.array([self._places.find(name) for name in names], dtype=np.int32)
