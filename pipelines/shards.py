"""Shards of a corpus: parts that processes encode, enrich or index, each by itself.

A unit belongs to a shard by a hash of its id, so that a shard can be computed alone, on any machine
that sees the folder, and again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int

_MOST = 1 << 16  # numbers of 16 bits


@dataclass(frozen=True)
class Shard:
    """The units of a corpus whose ids have the hash `number`, of `count` hashes from 0.

    Raises:
        InputError: for numbers out of range.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        check_int("shards", self.count, le=_MOST)
        check_int("shard", self.number, ge=0, le=self.count - 1)

    def __str__(self) -> str:
        return f"shard {self.number} of {self.count}"

    def of(self, units: Iterable[Unit]) -> ShardUnits:
        """Those of the units that belong to the shard, in their order."""
        return ShardUnits(units, self)

    def folder(self, path: Path) -> Path:
        """Where the shard of an index at `path` is made."""
        return path.with_name(f"{path.name}.encoding-{self.number}-of-{self.count}")


class ShardUnits:
    """Iterates over the units of a shard. Its length reads all units once."""

    def __init__(self, units: Iterable[Unit], shard: Shard) -> None:
        self._units, self._shard = units, shard

    def __iter__(self) -> Iterator[Unit]:
        number, count = self._shard.number, self._shard.count
        return (unit for unit in self._units if shard_number(unit.unit_id, count) == number)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def shards_missing(path: Path, numbers: Sequence[int], count: int, do: str = "") -> InputError:
    """The error of an index that cannot be merged before the shards `numbers` are made."""
    shown = ", ".join(map(str, numbers))
    return InputError(
        f"{len(numbers)} of {count} shards of the index '{path}' are missing: {shown}",
        do=do or f"make them: soundingline index -m with shards={count} shard=... (build_shard)",
    )


def of_other_units(folder: Path) -> InputError:
    """The error of a shard whose units are not those of the corpus."""
    return InputError(
        f"the shard at '{folder}' is of other units than the corpus has",
        do="remove that folder and give the same command again",
    )


def shard_number(unit_id: str, count: int) -> int:
    """The shard of a unit: a hash of its id modulo the number of shards."""
    digest = hashlib.blake2b(unit_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % count
