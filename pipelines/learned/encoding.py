"""Encoding a corpus by a model, in blocks on disk, so that a killed process loses one block.

    manifest.json      encoder and corpus; with the counts once all blocks are there
    000000/ids.json    unit ids in the order of the corpus, a hash of the units, the number of empty
                       ones, and a checksum of the block
    000000/values.npy  the rows of all units, one after the other, in the type of the encoder
    000000/offsets.npy int64 [units + 1], where each unit's rows begin

A row is a token's vector, a unit's only vector, or a (term, weight) pair.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from operator import length_hint
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import MANIFEST, UniqueUnits
from soundingline.pipelines.models import readable
from soundingline.toolkit.console import notify, progress_bar
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import (
    atomic_folder,
    file_hash,
    fingerprint,
    free_aside,
    write_json,
)

SPARSE = np.dtype([("term", "<i4"), ("weight", "<f4")])
"""A term's number in the model's vocabulary, and its weight."""

_FORMAT = {"format": "soundingline-encoding", "version": 1}
_IDS, _VALUES, _OFFSETS = "ids.json", "values.npy", "offsets.npy"
# Characters of a block by type of device: what is computed in about a minute at most, and less than
# 1 GB of the largest rows (128 float32 a token).
BLOCK_CHARACTERS = {"cpu": 1 << 18, "cuda": 1 << 22}


class TextEncoder(Protocol):
    """A model that turns texts into arrays.

    Equal fingerprints give equal arrays, but for rounding that depends on the batch. `model` is for
    messages.
    """

    @property
    def model(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """One array for each text, all of one type, in which they are stored:

        - [dimensions] of a single-vector model;
        - [tokens, dimensions] of a multi-vector model;
        - [terms] of `SPARSE` for a learned sparse model, by ascending term.
        """
        ...


class Block(NamedTuple):
    """Consecutive units: the rows of unit `i` are `values[offsets[i]:offsets[i + 1]]`.

    `values` is mapped from disk: [rows, dimensions] of vectors (one row a unit for a single-vector
    encoder, so that it is the units' matrix), [rows] of (term, weight) pairs.
    """

    unit_ids: list[str]
    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def arrays(self) -> list[NDArray[Any]]:
        """The rows of each unit, without a copy."""
        return [self.values[first:last] for first, last in pairwise(self.offsets.tolist())]


class Blocks:
    """A complete encoding, in the order of the corpus. Its length is the number of units.

    Iterating gives one `Block` after the other, mapped anew each time. `counts`: units, rows,
    blocks, `empty` units (without visible text; encoded as an empty string), and `reused` blocks,
    which an earlier process had finished.
    """

    def __init__(self, folder: Path, *, reused: int = 0) -> None:
        self.folder = folder
        manifest = _manifest(folder)
        if "counts" not in manifest:
            raise InputError(f"the encoding at '{folder}' is not complete", do="encode it again")
        self.counts: Mapping[str, int] = {**manifest["counts"], "reused": reused}

    def __len__(self) -> int:
        return self.counts["units"]

    def __repr__(self) -> str:
        return f"Blocks({str(self.folder)!r})"

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
    encoder: TextEncoder,
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
    bar. One process a folder: the caller holds a lock.

    Raises:
        InputError: for a folder of another encoder or corpus, and for values that are not finite.
            What the encoder raises when it is loaded, it raises before there is a folder.
    """
    check_int("block_units", block_units)
    if not folder.is_dir():
        encoder.encode([""])
    _prepare(folder, {"encoder": encoder.fingerprint, "corpus_fingerprint": corpus_fingerprint})
    heads: list[_Head] = []
    reused = encoded = 0
    seconds = 1e-9
    rest = iter(units)
    with progress_bar() as progress:
        description = f"encoding with {encoder.model}"
        task = progress.add_task(description, total=total or length_hint(units) or None, note="")
        while True:
            head = _finished(folder, len(heads))
            part = list(
                islice(rest, head.units) if head else _next(rest, block_units, block_characters)
            )
            if not part:
                break
            digest = _digest(part)
            if head and head.digest == digest:
                reused += 1
            else:
                start = time.perf_counter()
                head = _encode(part, encoder, folder, len(heads), digest)
                seconds += time.perf_counter() - start
                encoded += len(part)
            heads.append(head)
            note = f"{encoded / seconds:,.0f} units/s"
            progress.update(task, advance=len(part), note=note)
    _finish(folder, heads)
    return Blocks(folder, reused=reused)


@contextmanager
def encoded(
    units: Iterable[Unit], encoder: TextEncoder, path: Path, **settings: Any
) -> Iterator[Blocks]:
    """The units encoded for an index at `path`, in `<path>.encoding`, which survives a kill and is
    removed when the `with` ends well. Settings as of `encode_corpus`. `InputError` for a repeated
    unit id and an empty corpus."""
    checked = UniqueUnits(units)
    blocks = encode_corpus(
        checked, encoder, work_folder(path), total=length_hint(units), **settings
    )
    checked.finish()
    yield blocks
    blocks.remove()


def work_folder(path: Path) -> Path:
    """Where the units of an index at `path` are encoded."""
    return path.with_name(f"{path.name}.encoding")


def complete_blocks(
    folder: Path, encoder: TextEncoder, corpus_fingerprint: str, *, verify: bool = False
) -> Blocks | None:
    """The encoding in `folder`; None if it is not complete, or of another encoder or corpus.

    With `verify` every block is compared with its checksum. A damaged one is moved aside with a
    notice, and the encoding is not complete.
    """
    try:
        blocks, manifest = Blocks(folder), _manifest(folder)
    except InputError:
        return None
    own = {"encoder": encoder.fingerprint, "corpus_fingerprint": corpus_fingerprint}
    numbers = range(blocks.counts["blocks"])
    if {name: manifest.get(name) for name in own} != own:
        return None
    if not all(_block_path(folder, number).is_dir() for number in numbers):
        return None
    if verify and not all(_finished(folder, number) for number in numbers):
        return None
    return blocks


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


def _next(units: Iterator[Unit], most: int, characters: float) -> Iterator[Unit]:
    for unit in islice(units, most):
        yield unit
        characters -= len(unit.title) + len(unit.text)
        if characters <= 0:
            break


def _digest(units: Sequence[Unit]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for unit in units:
        for part in unit:
            coded = part.encode("utf-8", "surrogatepass")
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            digest.update(len(coded).to_bytes(8, "little") + coded)
    return digest.hexdigest()


def _encode(
    units: Sequence[Unit], encoder: TextEncoder, folder: Path, number: int, digest: str
) -> _Head:
    """Encode and write one block."""
    arrays = encoder.encode([readable(unit.contents) for unit in units])
    for unit, array in zip(units, arrays, strict=True):
        values = array["weight"] if array.dtype == SPARSE else array
        if not np.isfinite(values).all():
            raise InputError(
                f"{encoder.model} encodes unit '{unit.unit_id}' to values that are not finite",
                do="set dtype=float32",
            )
    if arrays[0].ndim == 1 and arrays[0].dtype != SPARSE:
        arrays = [array[None] for array in arrays]  # the only vector of a unit is one row
    values = np.concatenate(arrays)
    offsets = np.concatenate([[0], np.cumsum(list(map(len, arrays)))]).astype(np.int64)
    empty = sum(not unit.contents.strip() for unit in units)
    head = _Head(digest, len(units), len(values), empty)
    with atomic_folder(_block_path(folder, number)) as unfinished:
        np.save(unfinished / _VALUES, values)
        np.save(unfinished / _OFFSETS, offsets)
        content = {**head._asdict(), "unit_ids": [unit.unit_id for unit in units]}
        # ASCII, because an id may hold a lone surrogate, which JSON can hold and UTF-8 cannot.
        text = json.dumps({**content, "checksum": _checksum(unfinished, content)})
        (unfinished / _IDS).write_text(text, "ascii")
    return head


def _finished(folder: Path, number: int) -> _Head | None:
    """The head of a block; None if there is none. A damaged block is moved aside with a notice, and
    counts as none."""
    path = _block_path(folder, number)
    if not path.is_dir():
        return None
    try:
        content = json.loads((path / _IDS).read_text("ascii"))
        if content.pop("checksum") == _checksum(path, content):
            return _Head(*(content[name] for name in _Head._fields))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    aside = path.rename(free_aside(path))
    notify(f"the encoded block {path} is damaged; it is kept as {aside.name} and encoded again")
    return None


def _checksum(path: Path, content: Mapping[str, Any]) -> str:
    """Of a block's arrays and of what its ids.json holds besides the checksum."""
    return fingerprint(content, file_hash(path / _VALUES, path / _OFFSETS))


def _prepare(folder: Path, content: Mapping[str, str]) -> None:
    """Write the manifest; `InputError` if the folder has one of another encoder or corpus."""
    # A process killed at its very beginning may leave a hidden temporary file and nothing else.
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        present = {name: _manifest(folder).get(name) for name in content}
        if present != content:
            raise InputError(
                f"'{folder}' holds an encoding of {_described(present)}",
                valid=f"one of {_described(content)}",
                do="remove that folder, or name another",
            )
    write_json(folder / MANIFEST, {**_FORMAT, **content})


def _finish(folder: Path, heads: Sequence[_Head]) -> None:
    """Write the counts of all blocks, and remove the blocks beyond them."""
    for path in folder.iterdir():
        if path.name.isdecimal() and int(path.name) >= len(heads):
            shutil.rmtree(path)
    counts = {
        "units": sum(head.units for head in heads),
        "rows": sum(head.rows for head in heads),
        "blocks": len(heads),
        "empty": sum(head.empty for head in heads),
    }
    write_json(folder / MANIFEST, {**_manifest(folder), "counts": counts})


def _block_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        if all(content.get(name) == value for name, value in _FORMAT.items()):
            return content
    except (OSError, ValueError, AttributeError):
        pass
    raise InputError(
        f"'{folder}' is not an encoded corpus: it has no {MANIFEST} of one",
        do="name another folder, or remove this one",
    )


def _described(content: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in content.items())
