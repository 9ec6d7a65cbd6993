"""Finding an identifier that comes twice, among more of them than memory holds as strings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Mark = TypeVar("Mark")
_RECENT = 1 << 16  # identifiers that are kept as strings
_LARGEST = 1 << 20  # hashes in one sorted block: bounds what merging two of them takes


class _Hashes(NamedTuple):
    """Hashes of 16 bytes, sorted by their first halves."""

    first: NDArray[np.uint64]
    second: NDArray[np.uint64]

    @classmethod
    def of(cls, names: Iterable[str]) -> _Hashes:
        digests = b"".join(
            hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            for name in names
        )
        halves = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
        return cls(halves[:, 0].copy(), halves[:, 1].copy())

    def sorted(self) -> _Hashes:
        order = np.argsort(self.first, kind="stable")
        return _Hashes(self.first[order], self.second[order])

    def merged(self, other: _Hashes) -> _Hashes:
        return _Hashes(*map(np.concatenate, zip(self, other, strict=True))).sorted()

    def holds(self, others: _Hashes) -> NDArray[np.bool_]:
        """Which of the others are among these."""
        positions = np.minimum(np.searchsorted(self.first, others.first), len(self.first) - 1)
        same: NDArray[np.bool_] = self.first[positions] == others.first
        return same & (self.second[positions] == others.second)


class DistinctIds(Generic[Mark]):
    """Identifiers that should differ, in about 20 bytes each: strings of the newest 65,536, hashes
    of 16 bytes of all others.

    Each comes with a mark, such as its place in a file. A double is told as the identifier and the
    mark of its later coming: at once among the newest, else after 65,536 more at the latest, or by
    `close`. Two different identifiers of one hash would be taken for a double: less likely than 1
    to 10^20 among a thousand million.
    """

    def __init__(self) -> None:
        self._recent: dict[str, Mark] = {}
        self._blocks: list[_Hashes] = []
        self._settled = 0

    def __len__(self) -> int:
        return self._settled + len(self._recent)

    def add(self, name: str, mark: Mark) -> tuple[str, Mark] | None:
        """Count an identifier; a double that has been found, which may be an earlier one."""
        if name in self._recent:
            return name, mark
        self._recent[name] = mark
        return self._settle() if len(self._recent) >= _RECENT else None

    def close(self) -> tuple[str, Mark] | None:
        """A double among the newest identifiers and those before, if there is one."""
        return self._settle() if self._recent else None

    def _settle(self) -> tuple[str, Mark] | None:
        hashes = _Hashes.of(self._recent)
        order = np.argsort(hashes.first)  # neighbours are looked up faster than strangers
        block = _Hashes(hashes.first[order], hashes.second[order])
        for known in self._blocks:
            doubled = np.flatnonzero(known.holds(block))
            if len(doubled):
                earliest = int(order[doubled].min())
                return list(self._recent.items())[earliest]
        self._settled += len(self._recent)
        self._recent = {}
        while self._blocks and len(self._blocks[-1].first) <= len(block.first) < _LARGEST:
            block = self._blocks.pop().merged(block)
        self._blocks.append(block)
        return None
