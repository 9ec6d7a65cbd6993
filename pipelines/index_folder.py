"""Index folders: complete or absent, and of the right corpus; and what opened indexes share.

manifest.json   written last: kind of index, settings, counts, corpus, versions, file sizes
<the files of the index>
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
BUILD = "build it: python -m experiments.index, or the build method of its class"
REBUILD = (
    "build it again: remove the folder, and the same command does so (in Python, the build method "
    "of its class)"
)
_VERSION = 1
_NOT_CONTENT = ("write.lock",)


def write_manifest(folder: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Finish an index folder of that kind: `content` and the sizes of all files, written last."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in paths
        if path.name not in _NOT_CONTENT
    }
    head = {"format": _format(kind), "version": _VERSION}
    write_json(folder / MANIFEST, {**head, **content, "files": files})


def read_manifest(folder: Path, kind: str, corpus_fingerprint: str | None) -> dict[str, Any]:
    """The manifest of a complete index of that kind and corpus (any corpus for None).

    `InputError` says what is wrong with anything else and how to build it again.
    """
    if not folder.is_dir():
        raise InputError(f"there is no {kind} index at '{folder}'", do=BUILD)
    manifest = _content(folder)
    if manifest is None:
        raise InputError(
            f"'{folder}' is not a complete {kind} index: its {MANIFEST} is missing or damaged",
            do=REBUILD,
        )
    if manifest.get("format") != _format(kind) or manifest.get("version") != _VERSION:
        raise InputError(
            f"the index at '{folder}' has the format {manifest.get('format')}, "
            f"version {manifest.get('version')}",
            valid=f"{_format(kind)}, version {_VERSION}",
            do=REBUILD,
        )
    if corpus_fingerprint is not None and manifest["corpus_fingerprint"] != corpus_fingerprint:
        raise InputError(
            f"the {kind} index at '{folder}' is of another corpus "
            f"('{manifest['corpus_fingerprint']}')",
            valid=f"one of corpus '{corpus_fingerprint}'",
            do=REBUILD,
        )
    for name, size in manifest["files"].items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise InputError(
                f"the {kind} index at '{folder}' is damaged: {name} is not {size} bytes",
                do=REBUILD,
            )
    return manifest


def is_index(folder: Path, kind: str) -> bool:
    """Whether the folder has the manifest of an index of that kind, of whatever version."""
    manifest = _content(folder)
    return manifest is not None and manifest.get("format") == _format(kind)


def _content(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _format(kind: str) -> str:
    return f"soundingline-{kind}"


class OpenedIndex:
    """An index folder that was opened. Two are equal where folder and corpus are.

    Pickled, it travels as its path and is opened again: by `engine.open` where an engine made it,
    else by its class's `open`.
    """

    engine: Any = None

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path, self.manifest = path, manifest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OpenedIndex)
            and type(self) is type(other)
            and self._identity == other._identity
        )

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        opener: Any = type(self) if self.engine is None else self.engine
        return opener.open, (self.path,)

    @property
    def _identity(self) -> tuple[str, ...]:
        return str(self.path.absolute()), self.manifest["corpus_fingerprint"]


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


def _refuse(repeated: tuple[str, None] | None) -> None:
    if repeated:
        raise InputError(f"unit id '{repeated[0]}' comes twice", do="give every unit its own id")
