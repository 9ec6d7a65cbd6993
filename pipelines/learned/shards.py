"""Encoding a corpus in shards, each by a process of its own, and one index of all of them.

    <index>.encoding-2-of-4/    the units of shard 2, encoded as `encode_corpus` describes it

A unit belongs to a shard by a hash of its id, so that a shard can be computed alone, on any machine
that sees the folder, and again. Merging restores the order of the corpus, so that the index is the
one that a single process builds, but for the rounding of batches.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import UniqueUnits
from soundingline.pipelines.learned.encoding import (
    Block,
    Blocks,
    TextEncoder,
    complete_blocks,
    encode_corpus,
    work_folder,
)
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int

_UNITS = 256  # of a merged block, which bounds the memory of merging
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
        """Where the shard of an index at `path` is encoded."""
        work = work_folder(path)
        return work.with_name(f"{work.name}-{self.number}-of-{self.count}")


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
    """The error of an index that cannot be merged before the shards `numbers` are encoded."""
    shown = ", ".join(map(str, numbers))
    return InputError(
        f"{len(numbers)} of {count} shards of the index '{path}' are missing: {shown}",
        do=do or f"encode them: soundingline index -m with shards={count} shard=... (encode_shard)",
    )


def shard_number(unit_id: str, count: int) -> int:
    """The shard of a unit: a hash of its id modulo the number of shards."""
    digest = hashlib.blake2b(unit_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % count


def encode_shard(
    units: Iterable[Unit], encoder: TextEncoder, path: Path, shard: Shard, **settings: Any
) -> Blocks:
    """Encode a shard of all `units` for an index at `path`. After a kill, the same call continues.
    Settings and errors as of `encode_corpus`, and `InputError` for a repeated unit id."""
    own = UniqueUnits(shard.of(units))
    total = length_hint(units) // shard.count
    return encode_corpus(own, encoder, shard.folder(path), total=total, **settings)


def missing_shards(
    encoder: TextEncoder, path: Path, count: int, corpus_fingerprint: str, *, verify: bool = False
) -> list[int]:
    """The numbers of the shards that are not complete. `verify` as of `complete_blocks`."""
    folders = [Shard(number, count).folder(path) for number in range(count)]
    return [
        number
        for number, folder in enumerate(folders)
        if complete_blocks(folder, encoder, corpus_fingerprint, verify=verify) is None
    ]


@contextmanager
def merged(
    units: Iterable[Unit], encoder: TextEncoder, path: Path, count: int, *, corpus_fingerprint: str
) -> Iterator[MergedBlocks]:
    """The encodings of all shards as one, in the order of `units`. They are removed when the `with`
    ends well. `InputError` for shards that are missing, damaged or of other units, and for an empty
    corpus."""
    if numbers := missing_shards(encoder, path, count, corpus_fingerprint, verify=True):
        raise shards_missing(path, numbers, count)
    blocks = MergedBlocks(units, [Shard(number, count).folder(path) for number in range(count)])
    yield blocks
    blocks.remove()


class MergedBlocks(Blocks):
    """The complete encodings in `folders`, by the number of the shard, read as one encoding of
    `units`."""

    def __init__(self, units: Iterable[Unit], folders: Sequence[Path]) -> None:
        self._encodings = [Blocks(folder) for folder in folders]
        self._owners = array("H")
        encoded = [
            chain.from_iterable(block.unit_ids for block in encoding)
            for encoding in self._encodings
        ]
        checked = UniqueUnits(units)
        for unit in checked:
            owner = shard_number(unit.unit_id, len(folders))
            if next(encoded[owner], None) != unit.unit_id:
                raise _of_other_units(folders[owner])
            self._owners.append(owner)
        checked.finish()
        for folder, rest in zip(folders, encoded, strict=True):
            if next(rest, None) is not None:
                raise _of_other_units(folder)
        names = self._encodings[0].counts
        self.counts = {
            name: sum(encoding.counts[name] for encoding in self._encodings) for name in names
        }

    def __repr__(self) -> str:
        return f"MergedBlocks({[encoding.folder for encoding in self._encodings]})"

    def __iter__(self) -> Iterator[Block]:
        rows = [_rows(encoding) for encoding in self._encodings]
        for start in range(0, len(self._owners), _UNITS):
            pairs = [next(rows[owner]) for owner in self._owners[start : start + _UNITS]]
            unit_ids, arrays = [name for name, _ in pairs], [values for _, values in pairs]
            ends = np.cumsum(list(map(len, arrays)))
            offsets = np.concatenate([[0], ends]).astype(np.int64)
            yield Block(unit_ids, np.concatenate(arrays), offsets)

    def remove(self) -> None:
        """Delete the folders."""
        for encoding in self._encodings:
            encoding.remove()


def _rows(encoding: Blocks) -> Iterator[tuple[str, NDArray[Any]]]:
    for block in encoding:
        yield from zip(block.unit_ids, block.arrays(), strict=True)


def _of_other_units(folder: Path) -> InputError:
    return InputError(
        f"the shard at '{folder}' is of other units than the corpus has",
        do="remove that folder and encode the shard again",
    )
