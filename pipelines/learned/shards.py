"""Encoding a corpus in shards, each by a process of its own, and one index of all of them.

    <index>.encoding-2-of-4/    the units of shard 2, encoded as `encode_corpus` describes it

Merging restores the order of the corpus, so that the index is the one that a single process builds,
but for the rounding of batches.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
)
from soundingline.pipelines.shards import Shard, of_other_units, shard_number, shards_missing
from soundingline.toolkit.data import Unit

_UNITS = 256  # of a merged block, which bounds the memory of merging


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
                raise of_other_units(folders[owner])
            self._owners.append(owner)
        checked.finish()
        for folder, rest in zip(folders, encoded, strict=True):
            if next(rest, None) is not None:
                raise of_other_units(folder)
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
