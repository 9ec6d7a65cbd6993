"""An encoded corpus on disk, in shards that are whole or absent.

    manifest.json      encoder, corpus, shard size; with the number of shards once all are there
    000000/ids.json    unit ids in the corpus's order, a hash of the units, how many were empty, and
                       a checksum of the shard's files (absent in those of earlier versions)
    000000/values.npy  the rows of all units, one after the other, in the type of the encoder
    000000/offsets.npy int64 [units + 1], where each unit's rows begin

A row is a token's vector, a unit's only vector, or a (term, weight) pair.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import (
    atomic_folder,
    file_hash,
    fingerprint,
    free_aside,
    write_json,
)

FORMAT = "soundingline-encoding"
VERSION = 1
MANIFEST = "manifest.json"
_IDS = "ids.json"
_CHECKSUM = "checksum"


class Shard(NamedTuple):
    """Some consecutive units: the rows of unit `i` are `values[offsets[i]:offsets[i + 1]]`.

    `values` is mapped from disk: [rows, dimensions] of vectors (one row a unit for a single-vector
    encoder, so that it is the units' matrix), [rows] of (term, weight) pairs.
    """

    unit_ids: list[str]
    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def arrays(self) -> list[NDArray[Any]]:
        """The rows of each unit, without a copy."""
        bounds = self.offsets.tolist()
        return [self.values[a:b] for a, b in pairwise(bounds)]


class Shards:
    """A corpus that was encoded whole, in the order in which its units came: `len` of them.

    Iterating gives a `Shard` after the other, mapped anew each time. `counts`: units, rows,
    shards, `empty` units (without visible text; encoded as an empty string), and `reused` shards,
    which an earlier process had finished.
    """

    def __init__(self, folder: Path, *, reused: int = 0) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        if "counts" not in self.manifest:
            raise InputError(f"the encoding at '{folder}' is not whole", do="encode it again")
        self.counts: Mapping[str, int] = {**self.manifest["counts"], "reused": reused}

    def __len__(self) -> int:
        return self.counts["units"]

    def __repr__(self) -> str:
        return f"Shards({str(self.folder)!r})"

    def __iter__(self) -> Iterator[Shard]:
        return (read(self.folder, number) for number in range(self.counts["shards"]))

    def remove(self) -> None:
        """Delete the folder, once an index holds what it was for."""
        shutil.rmtree(self.folder)


class Head(NamedTuple):
    """What a shard tells without its values. `digest` hashes ids and texts of its units."""

    digest: str
    units: int
    rows: int
    empty: int


def prepare(folder: Path, encoder: str, corpus: str, shard_units: int) -> None:
    """Make the folder ready for shards, or go on with what stands there; `InputError` where that
    is of another encoder or another corpus."""
    wanted = {"encoder": encoder, "corpus_fingerprint": corpus, "shard_units": shard_units}
    content = {"format": FORMAT, "version": VERSION, **wanted}
    # A process killed at its very beginning may leave a hidden temporary file and nothing else.
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        present = {name: _manifest(folder).get(name) for name in content}
        if present != content:
            raise InputError(
                f"'{folder}' holds an encoding of {_told(present)}",
                valid=f"one of {_told(content)}",
                do="remove that folder, or name another",
            )
    write_json(folder / MANIFEST, content)


def finish(folder: Path, heads: Sequence[Head]) -> None:
    """Note that the shards are all there, and remove what is beyond them."""
    for path in folder.iterdir():
        if path.name.isdecimal() and int(path.name) >= len(heads):
            shutil.rmtree(path)
    counts = {
        "units": sum(head.units for head in heads),
        "rows": sum(head.rows for head in heads),
        "shards": len(heads),
        "empty": sum(head.empty for head in heads),
    }
    write_json(folder / MANIFEST, {**_manifest(folder), "counts": counts})


def write(
    folder: Path,
    number: int,
    digest: str,
    unit_ids: Sequence[str],
    arrays: Iterable[NDArray[Any]],
    empty: int,
) -> Head:
    """Keep one shard. `arrays`: [rows, dimensions] or [rows] of each unit, of one type."""
    parts = list(arrays)
    values = np.concatenate(parts)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    head = Head(digest, len(unit_ids), len(values), empty)
    with atomic_folder(_path(folder, number)) as unfinished:
        np.save(unfinished / "values.npy", values)
        np.save(unfinished / "offsets.npy", offsets)
        # ASCII, because an id may hold a lone surrogate, which JSON can carry and UTF-8 cannot.
        content = {**head._asdict(), "unit_ids": list(unit_ids)}
        text = json.dumps({**content, _CHECKSUM: _checksum(unfinished, content)})
        (unfinished / _IDS).write_text(text, "ascii")
    return head


def head(folder: Path, number: int) -> Head | None:
    """What a finished shard tells; None where there is none. A damaged one is moved aside, which
    one line tells, and counts as none."""
    path = _path(folder, number)
    if not path.is_dir():
        return None
    try:
        content = json.loads((path / _IDS).read_text("ascii"))
        checksum = content.pop(_CHECKSUM, None)
        if checksum in (None, _checksum(path, content)):
            return Head(*(content[name] for name in Head._fields))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    kept = path.rename(free_aside(path))
    notify(f"the encoded shard {path} is damaged; it is kept as {kept.name} and encoded again")
    return None


def read(folder: Path, number: int) -> Shard:
    """Map one shard."""
    path = _path(folder, number)
    content = json.loads((path / _IDS).read_text("ascii"))
    # An array without rows cannot be mapped.
    values = load_array(path / "values.npy", mapped=bool(content["rows"]))
    return Shard(content["unit_ids"], values, load_array(path / "offsets.npy"))


def load_array(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """The array of a .npy file; `InputError` for anything but plain numbers, pickled objects among
    it."""
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


def _checksum(path: Path, content: Mapping[str, Any]) -> str:
    """Of a shard's arrays and of what its ids.json holds beside the checksum."""
    return fingerprint(content, file_hash(path / "values.npy", path / "offsets.npy"))


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        if content.get("format") == FORMAT:
            return content
    except (OSError, ValueError, AttributeError):
        pass
    raise InputError(
        f"'{folder}' is no encoded corpus: it has no {MANIFEST} of one",
        do="name another folder, or remove this one",
    )


def _told(content: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in content.items() if name != "format")
