"""Encoding a corpus by a model, in blocks on disk, so that a killed process loses the block that
it computes and the one that it writes.

    manifest.json      encoder and corpus; with the counts once all blocks are there
    000000/ids.json    unit ids in the order of the corpus, a hash of the units, and the number of
                       empty ones; the block's checksums.json finds damage
    000000/values.npy  the rows of all units, one after the other, in the type of the encoder
    000000/offsets.npy int64 [units + 1], where each unit's rows begin

A row is a token's vector, a unit's only vector, or a (term, weight) pair. A shard of a corpus has
the folder <index>.encoding-2-of-4. Merging restores the order of the
corpus, so that the index is that of a single process, but for the rounding of batches. Of an
`Encoder`, `model`, `fingerprint`, `tokenize` and `encode_tokens` are used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, islice, pairwise
from operator import length_hint
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import (
    MANIFEST,
    Shard,
    UniqueUnits,
    of_other_units,
    shard_number,
    shards_missing,
)
from soundingline.toolkit.checksums import verify_checksum_list, write_checksum_list
from soundingline.toolkit.console import notify, progress_bar
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder, backup_path, read_record, write_json

SPARSE = np.dtype([("term", "<i4"), ("weight", "<f4")])
"""A term's number in the model's vocabulary, and its weight."""

_FORMAT = {"format": "soundingline-encoding", "version": 2}
_MERGED = 256  # units of a merged block, which bounds the memory of merging
_IDS, _VALUES, _OFFSETS = "ids.json", "values.npy", "offsets.npy"
# Characters of a block by type of device: what is computed in about a minute at most, and less than
# 1 GB of the largest rows (128 float32 a token).
BLOCK_CHARACTERS = {"cpu": 1 << 18, "cuda": 1 << 22}


class Block(NamedTuple):
    """Consecutive units: the rows of unit `i` are `values[offsets[i]:offsets[i + 1]]`. `values` is
    mapped from disk: [rows, dimensions] of vectors, [rows] of (term, weight) pairs."""

    unit_ids: list[str]
    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def arrays(self) -> list[NDArray[Any]]:
        """The rows of each unit, without a copy."""
        return [self.values[first:last] for first, last in pairwise(self.offsets.tolist())]


class Blocks:
    """A complete encoding, in the order of the corpus. Its length is the number of units.

    `counts`: units, rows, blocks, and `empty` units (without visible text; encoded as an empty
    string).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = _manifest(folder)
        if "counts" not in manifest:
            raise InputError(f"the encoding at '{folder}' is not complete", do="encode it again")
        self.counts: Mapping[str, int] = manifest["counts"]

    def __len__(self) -> int:
        return self.counts["units"]

    def __iter__(self) -> Iterator[Block]:
        for number in range(self.counts["blocks"]):
            path = _block_path(self.folder, number)
            content = json.loads((path / _IDS).read_text("ascii"))
            # An array without rows cannot be mapped.
            values = load_array(path / _VALUES, mapped=bool(content["rows"]))
            yield Block(content["unit_ids"], values, load_array(path / _OFFSETS))

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder)


def encode_corpus(
    units: Iterable[Unit],
    encoder: Any,
    folder: Path,
    *,
    corpus_fingerprint: str,
    block_units: int = 2048,
    block_characters: int = BLOCK_CHARACTERS["cuda"],
    total: int | None = None,
) -> Blocks:
    """Encode the `contents` of all units into `folder`, in their order.

    A block ends with the unit that brings it to `block_units` units or to `block_characters`
    characters. A block that an earlier process has finished, in whatever size, is reused if its ids
    and texts are the same. `total`, the number of units if they do not say it, is for the progress
    bar. One process a folder: the caller holds a lock. `InputError` for a folder of another encoder
    or corpus, and for values that are not finite. What the encoder raises when it is loaded, it
    raises before there is a folder.
    """
    check_int("block_units", block_units)
    own = {"encoder": encoder.fingerprint, "corpus_fingerprint": corpus_fingerprint}
    if not folder.is_dir():
        encoder.encode_tokens(encoder.tokenize([""]))
    _check_folder(folder, own)
    write_json(folder / MANIFEST, {**_FORMAT, **own})
    heads: list[_Head | Future[_Head]] = []
    encoded, seconds = 0, 1e-9
    # While a block is computed, one thread tokenizes the next and another writes the last.
    with (
        ThreadPoolExecutor(1) as tokenizing,
        ThreadPoolExecutor(1) as writing,
        progress_bar() as progress,
    ):
        description = f"encoding with {encoder.model}"
        task = progress.add_task(description, total=total or length_hint(units) or None, note="")
        tokenize = partial(tokenizing.submit, encoder.tokenize)
        parts = _parts(iter(units), folder, block_units, block_characters, tokenize)

        def finish(part: _Part) -> None:
            nonlocal encoded, seconds
            head: _Head | Future[_Head] | None = part.head
            start = time.perf_counter()
            if head is None:
                arrays = encoder.encode_tokens(part.tokens.result())
                if heads and isinstance(heads[-1], Future):
                    heads[-1].result()  # Memory holds one block that is not written.
                path = _block_path(folder, len(heads))
                head = writing.submit(_write, part, arrays, encoder.model, path)
                encoded, seconds = encoded + len(part.units), seconds + time.perf_counter() - start
            heads.append(head)
            progress.update(task, advance=len(part.units), note=f"{encoded / seconds:,.0f} units/s")

        part = next(parts, None)
        while part:
            try:
                following = next(parts, None)
            except Exception:
                finish(part)
                raise
            finish(part)
            part = following
        written = [head.result() if isinstance(head, Future) else head for head in heads]
    for path in folder.iterdir():
        if path.name.isdecimal() and int(path.name) >= len(written):
            shutil.rmtree(path)  # of a longer corpus
    counted = ("units", "rows", "empty")
    counts = {name: sum(getattr(head, name) for head in written) for name in counted}
    write_json(folder / MANIFEST, {**_FORMAT, **own, "counts": {**counts, "blocks": len(written)}})
    return Blocks(folder)


def _check_folder(folder: Path, own: Mapping[str, str]) -> None:
    """`InputError` for a folder that holds anything but an encoding of this encoder and corpus."""
    # A process killed at its very beginning may leave a hidden temporary file and nothing else.
    if not folder.is_dir() or all(path.name.startswith(".") for path in folder.iterdir()):
        return
    manifest = _manifest(folder)
    if any(manifest.get(name) != value for name, value in own.items()):
        here, valid = (
            ", ".join(f"{name} {content.get(name)}" for name in own) for content in (manifest, own)
        )
        raise InputError(
            f"'{folder}' holds an encoding of {here}",
            valid=f"one of {valid}",
            do="remove that folder, or name another",
        )


def _taken(units: Iterator[Unit], most: int, characters: int | None) -> list[Unit]:
    """The next units of a block: `most`, or those up to the one that brings them to `characters`
    characters (None: `most` in any case)."""
    taken, left = [], float("inf") if characters is None else characters
    for unit in islice(units, most):
        taken.append(unit)
        left -= len(unit.title) + len(unit.text)
        if left <= 0:
            break
    return taken


@contextmanager
def encoded(units: Iterable[Unit], encoder: Any, path: Path, **settings: Any) -> Iterator[Blocks]:
    """The units encoded for an index at `path`, in `<path>.encoding`, which survives a kill and is
    removed when the `with` ends well. Settings as of `encode_corpus`. `InputError` for a repeated
    unit id and an empty corpus."""
    checked, total = UniqueUnits(units), length_hint(units)
    blocks = encode_corpus(checked, encoder, work_folder(path), total=total, **settings)
    checked.finish()
    yield blocks
    blocks.remove()


def work_folder(path: Path) -> Path:
    """Where the units of an index at `path` are encoded."""
    return path.with_name(f"{path.name}.encoding")


def encode_shard(
    units: Iterable[Unit], encoder: Any, path: Path, shard: Shard, **settings: Any
) -> Blocks:
    """Encode a shard of all `units` for an index at `path`. After a kill, the same call continues.
    Settings and errors as of `encode_corpus`, and `InputError` for a repeated unit id."""
    own = UniqueUnits(shard.of(units))
    total = length_hint(units) // shard.count
    return encode_corpus(own, encoder, shard.folder(path), total=total, **settings)


def missing_shards(
    encoder: Any, path: Path, count: int, corpus_fingerprint: str, *, verify: bool = False
) -> list[int]:
    """The numbers of the shards that are not complete, or of another encoder or corpus.

    With `verify` every block is compared with its checksum. A damaged one is moved aside with a
    notice, and its shard is missing.
    """
    own = {"encoder": encoder.fingerprint, "corpus_fingerprint": corpus_fingerprint}

    def is_complete(folder: Path) -> bool:
        try:
            blocks, manifest = Blocks(folder), _manifest(folder)
        except InputError:
            return False
        numbers = range(blocks.counts["blocks"])
        return (
            {name: manifest.get(name) for name in own} == own
            and all(_block_path(folder, number).is_dir() for number in numbers)
            and (not verify or all(_finished(folder, number) for number in numbers))
        )

    folders = [Shard(number, count).folder(path) for number in range(count)]
    return [number for number, folder in enumerate(folders) if not is_complete(folder)]


@contextmanager
def merged_shards(
    units: Iterable[Unit], encoder: Any, path: Path, count: int, *, corpus_fingerprint: str
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

    def __iter__(self) -> Iterator[Block]:
        rows = [_rows(encoding) for encoding in self._encodings]
        for start in range(0, len(self._owners), _MERGED):
            pairs = [next(rows[owner]) for owner in self._owners[start : start + _MERGED]]
            unit_ids, arrays = [name for name, _ in pairs], [values for _, values in pairs]
            ends = np.cumsum(list(map(len, arrays)))
            offsets = np.concatenate([[0], ends]).astype(np.int64)
            yield Block(unit_ids, np.concatenate(arrays), offsets)

    def remove(self) -> None:
        for encoding in self._encodings:
            encoding.remove()


def _rows(encoding: Blocks) -> Iterator[tuple[str, NDArray[Any]]]:
    for block in encoding:
        yield from zip(block.unit_ids, block.arrays(), strict=True)


def load_array(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """The array of a .npy file; `InputError` for anything but plain numbers, such as pickled
    objects."""
    try:
        loaded = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        error: Exception = ValueError("an archive")
    except (OSError, ValueError, EOFError) as caught:
        error = caught
    raise InputError(
        f"cannot read {path}: {error}", do="delete that folder and run the command again"
    ) from error


class _Head(NamedTuple):
    """What ids.json says of a block besides the ids. `digest` hashes ids and texts of its units."""

    digest: str
    units: int
    rows: int
    empty: int


def _digest(units: Sequence[Unit]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for unit in units:
        for part in unit:
            coded = part.encode()
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            digest.update(len(coded).to_bytes(8, "little") + coded)
    return digest.hexdigest()


class _Part(NamedTuple):
    """The units of a block, and either the head of the block that is there, or `tokens`, which are
    still read."""

    units: list[Unit]
    digest: str
    head: _Head | None
    tokens: Any = None


def _parts(
    units: Iterator[Unit],
    folder: Path,
    block_units: int,
    block_characters: int,
    tokenize: Callable[[list[str]], Any],
) -> Iterator[_Part]:
    for number in count():
        head = _finished(folder, number)
        sizes = (head.units, None) if head else (block_units, block_characters)
        part = _taken(units, *sizes)
        if not part:
            return
        digest = _digest(part)
        if head and head.digest == digest:
            yield _Part(part, digest, head)
        else:
            yield _Part(part, digest, None, tokenize([unit.contents for unit in part]))


def _write(part: _Part, arrays: list[NDArray[Any]], model: str, path: Path) -> _Head:
    """Write a block of the arrays of its units."""
    units = part.units
    for unit, rows in zip(units, arrays, strict=True):
        values = rows["weight"] if rows.dtype == SPARSE else rows
        if not np.isfinite(values).all():
            raise InputError(
                f"{model} encodes unit '{unit.unit_id}' to values that are not finite",
                do="set dtype=float32",
            )
    if arrays[0].ndim == 1 and arrays[0].dtype != SPARSE:
        arrays = [array[None] for array in arrays]  # the only vector of a unit is one row
    values = np.concatenate(arrays)
    offsets = np.concatenate([[0], np.cumsum(list(map(len, arrays)))]).astype(np.int64)
    empty = sum(not unit.contents.strip() for unit in units)
    head = _Head(part.digest, len(units), len(values), empty)
    with atomic_folder(path, replace=True) as unfinished:
        np.save(unfinished / _VALUES, values)
        np.save(unfinished / _OFFSETS, offsets)
        content = {**head._asdict(), "unit_ids": [unit.unit_id for unit in units]}
        (unfinished / _IDS).write_text(json.dumps(content), "ascii")
        write_checksum_list(unfinished)
    return head


def _finished(folder: Path, number: int) -> _Head | None:
    """The head of a block; None if there is none. A damaged block is moved aside with a notice, and
    counts as none."""
    path = _block_path(folder, number)
    if not path.is_dir():
        return None
    try:
        verify_checksum_list(path, what=str(path), do="")
    except InputError:
        aside = path.rename(backup_path(path))
        notify(f"the encoded block {path} is damaged, now in {aside.name}, and is encoded again")
        return None
    content = json.loads((path / _IDS).read_text("ascii"))
    return _Head(*(content[name] for name in _Head._fields))


def _block_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _manifest(folder: Path) -> dict[str, Any]:
    content = read_record(folder / MANIFEST)
    if all(content.get(name) == value for name, value in _FORMAT.items()):
        return content
    raise InputError(
        f"'{folder}' is not an encoded corpus: it has no {MANIFEST} of one",
        do="name another folder, or remove this one",
    )
