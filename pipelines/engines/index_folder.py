"""Folders of other projects' indexes: whole or not at all, and of the right corpus.

manifest.json   written last: engine, settings, counts, corpus, versions, file sizes
<engine>/       what the engine itself wrote
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import write_json
from toolkit.identifiers import DistinctIds

MANIFEST = "manifest.json"
REBUILD = "build it again: python -m experiments.index"
_VERSION = 1


def write_manifest(folder: Path, engine: str, content: Mapping[str, Any]) -> None:
    """Finish an index folder: sizes of all its files, and `content`, written last."""
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "write.lock"
    }
    write_json(
        folder / MANIFEST,
        {"format": f"soundingline-{engine}", "version": _VERSION, **content, "files": files},
    )


def read_manifest(folder: Path, engine: str, corpus_fingerprint: str | None) -> dict[str, Any]:
    """The manifest of a whole index of that engine and corpus (any corpus for None).

    `InputError` says what is wrong with anything else and how to build it again.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"there is no {engine} index at '{folder}'", do=REBUILD)
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"'{folder}' is no whole {engine} index: its {MANIFEST} is missing or damaged",
            do=REBUILD,
        ) from error
    came = manifest.get("format"), manifest.get("version")
    if came != (f"soundingline-{engine}", _VERSION):
        raise InputError(
            f"the index at '{folder}' is {came[0]} version {came[1]}",
            valid=f"soundingline-{engine} version {_VERSION}",
            do=REBUILD,
        )
    if corpus_fingerprint is not None and manifest["corpus_fingerprint"] != corpus_fingerprint:
        raise InputError(
            f"the {engine} index at '{folder}' is of another corpus "
            f"('{manifest['corpus_fingerprint']}')",
            valid=f"one of corpus '{corpus_fingerprint}'",
            do=REBUILD,
        )
    for name, size in manifest["files"].items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise InputError(
                f"the {engine} index at '{folder}' is damaged: {name} is not {size} bytes",
                do=REBUILD,
            )
    return manifest


class Checked:
    """Units on their way into an engine: counted, and each `unit_id` seen once.

    `InputError` for a repeated id (at once, or up to 65,536 units later); `finish` raises it for a
    corpus without units.
    """

    def __init__(self, units: Iterable[Unit]) -> None:
        self._units = units
        self._ids = DistinctIds[None]()

    def __iter__(self) -> Iterator[Unit]:
        for unit in self._units:
            _refuse(self._ids.add(unit.unit_id, None))
            yield unit
        _refuse(self._ids.close())

    def finish(self) -> int:
        """Number of units that came."""
        _refuse(self._ids.close())  # not every engine takes the end of its input, or an error there
        if not len(self._ids):
            raise InputError("the corpus is empty: no unit to index", do="check the benchmark")
        return len(self._ids)


def _refuse(doubled: tuple[str, None] | None) -> None:
    if doubled:
        raise InputError(f"unit id '{doubled[0]}' comes twice", do="give every unit its own id")
