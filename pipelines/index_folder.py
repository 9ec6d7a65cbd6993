"""Index folders: complete or absent, and of the right corpus; opened indexes; shards of a corpus.

manifest.json   written last: kind of index, settings, counts, corpus, versions; size and checksum
                of each file, and a checksum of all that the manifest itself says
.verified.json  which files were compared with their checksums (`soundingline.toolkit.checksums`)
<the files of the index>
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, starmap
from numbers import Integral, Real
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from soundingline.toolkit.checksums import checksums, verify_checksums
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_call, check_int
from soundingline.toolkit.files import (
    atomic_folder,
    dump_json,
    fingerprint,
    is_free,
    read_record,
    write_json,
)
from soundingline.toolkit.json_text import has_surrogates, replace_surrogates
from soundingline.toolkit.locks import building_lock

if TYPE_CHECKING:
    from soundingline.pipelines.engines.engine import RankedList
    from soundingline.pipelines.lexical.analyzers import Analyzer
    from soundingline.pipelines.retrieve import BM25, QueryLikelihood


Item = TypeVar("Item")
Terms = TypeVar("Terms", bound="TermIndex")
Documents: TypeAlias = "pd.DataFrame | Iterable[Unit | Mapping[str, Any]]"
"""A frame with the columns `docno`, `text` and perhaps `title`, or an iterable of dicts with these
keys or of `Unit`s."""
MANIFEST = "manifest.json"
BUILD = "build it: soundingline index, or the build method of its class"
REBUILD = (
    "build it again: remove the folder, and the same command does so (in Python, the build method "
    "of its class)"
)
_VERSION = 3
_CHECKSUM = "checksum"
_METADATA, _PACKAGE = "pt_meta.json", "soundingline"
_NOT_CONTENT = ("write.lock",)
_ROW = ("docno", "text", "title")
_RECENT = 1 << 16  # ids that `UniqueUnits` keeps as strings
_LARGEST_BLOCK = 1 << 20  # hashes that are sorted together, which bounds the memory of merging


def write_manifest(folder: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Complete an index folder: write `content` with the sizes and checksums of all files."""
    head = {"format": _format(kind), "version": _VERSION}
    files = checksums(folder, leave_out=_NOT_CONTENT)
    write_json(folder / MANIFEST, signed({**head, **content, "files": files}))


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """`content` with its own checksum, by which damage is recognised."""
    plain = json.loads(dump_json({name: content[name] for name in content if name != _CHECKSUM}))
    return {**plain, _CHECKSUM: fingerprint(plain)}


def read_manifest(folder: Path, kind: str, corpus_fingerprint: str | None) -> dict[str, Any]:
    """The manifest of an index whose files are complete and unchanged.

    Args:
        folder: The folder of the index.
        kind: Its kind, such as `lexical`.
        corpus_fingerprint: The corpus that it must be of; None for any corpus.

    Raises:
        InputError: For anything else, with the way to build it again.
    """
    if not folder.is_dir():
        raise InputError(f"there is no {kind} index at '{folder}'", do=BUILD)
    manifest, what = read_record(folder / MANIFEST), f"the {kind} index at '{folder}'"
    if not manifest:
        what = f"'{folder}' is not a complete {kind} index: its {MANIFEST} is missing or damaged"
        raise InputError(what, do=REBUILD)
    found = f"{manifest.get('format')}, version {manifest.get('version')}"
    valid = f"{_format(kind)}, version {_VERSION}"
    if found != valid:
        what = f"the index at '{folder}' has a {MANIFEST} of the format {found}"
        raise InputError(what, valid=valid, do=REBUILD)
    if manifest != signed(manifest):
        raise InputError(f"{what} is damaged: {MANIFEST} was changed", do=REBUILD)
    corpus = manifest["corpus_fingerprint"]
    if corpus_fingerprint not in (None, corpus):
        valid = f"one of corpus '{corpus_fingerprint}'"
        raise InputError(f"{what} is of another corpus ('{corpus}')", valid=valid, do=REBUILD)
    verify_checksums(folder, manifest["files"], what=what, do=REBUILD)
    return manifest


def write_once(folder: Path, kind: str, origin: str, write: Callable[[Path], None]) -> None:
    """Have `write` fill a folder with what is derived from an index with the hash `origin`, unless
    it is there, whole; one process at a time. `InputError` where that cannot be written."""

    def is_whole() -> bool:
        try:
            read_manifest(folder, kind, origin)
        except InputError:
            return False
        return True

    if is_whole():
        return
    with building_lock(folder.parent / f".{folder.name}.lock", f"'{folder}'"):
        if not is_whole():
            with atomic_folder(folder, replace=True) as unfinished:
                write(unfinished)
                write_manifest(unfinished, kind, {"corpus_fingerprint": origin})


def is_index(folder: Path, kind: str) -> bool:
    """Whether the folder has the manifest of an index of that kind, in any version."""
    return read_record(folder / MANIFEST).get("format") == _format(kind)


def check_target(path: Path, kind: str, *, overwrite: bool) -> None:
    """`InputError` where a build would replace what is at `path`: an index of that kind without
    `overwrite`, and anything else in any case."""
    if is_free(path):
        return
    if not is_index(path, kind):
        raise InputError(
            f"'{path}' exists and is not an index of the kind {kind}; it would be replaced",
            do="name another folder, or remove this one",
        )
    if not overwrite:
        raise InputError(
            f"'{path}' holds an index of the kind {kind}, which would be replaced",
            do="open it, name another folder, or build with overwrite=True",
        )


def _format(kind: str) -> str:
    return f"soundingline-{kind}"


def as_units(documents: Documents) -> Iterable[Unit]:
    """The units of `documents`, which can be read as often as the documents. Missing texts and
    titles are empty. `InputError` for documents of another form, and while they are read for a
    `docno`, text or title that is neither text nor a whole number."""
    if isinstance(documents, pd.DataFrame):
        if missing := [name for name in _ROW[:2] if name not in documents.columns]:
            raise InputError(
                f"the frame has no column {' and no column '.join(missing)}; its columns are "
                f"{', '.join(map(str, documents.columns))}",
                valid="docno, text and perhaps title",
                do="rename them: frame.rename(columns={'id': 'docno'})",
            )
        if (absent := documents["docno"].isna().to_numpy()).any():
            raise InputError(f"row {absent.argmax()} of the frame has no docno", valid="unique ids")
        rows = documents[[name for name in _ROW if name in documents.columns]]
        filled = rows.astype(object).where(rows.notna(), None)
        return _Units(lambda: (row._asdict() for row in filled.itertuples(index=False)), len(rows))
    if isinstance(documents, Iterator):
        return _numbered(documents)
    if not isinstance(documents, Iterable) or isinstance(documents, (str, bytes, Mapping)):
        raise InputError(
            f"the documents came as {documents!r:.100}",
            valid="a frame with the columns docno and text, or an iterable of dicts or Units",
        )
    return _Units(documents.__iter__, length_hint(documents))


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items; the last one may be shorter."""
    iterator = iter(items)
    return iter(lambda: list(islice(iterator, size)), [])


class _Units:
    """The units of rows that can be read several times, with their number if that is known."""

    def __init__(self, rows: Callable[[], Iterable[Any]], number: int) -> None:
        self._rows, self._number = rows, number

    def __iter__(self) -> Iterator[Unit]:
        return _numbered(self._rows())

    def __length_hint__(self) -> int:
        return self._number


def _numbered(rows: Iterable[Any]) -> Iterator[Unit]:
    return starmap(_as_unit, enumerate(rows, start=1))


def _as_unit(number: int, row: Any) -> Unit:
    """A unit, or a row of PyTerrier's, as a unit without lone surrogates; rows count from 1."""
    if isinstance(row, Unit):
        docno, title, text = row
    elif not isinstance(row, Mapping) or any(name not in row for name in _ROW[:2]):
        raise InputError(
            f"a document came as {row!r:.200}", valid="a mapping with docno and text, or a Unit"
        )
    elif row["docno"] in (None, ""):
        raise InputError(f"document {number} has the docno {row['docno']!r}", valid="unique ids")
    else:
        docno, text, title = (field_text(number, name, row.get(name)) for name in _ROW)
    if has_surrogates(docno):
        raise InputError(
            f"document {number} has a lone surrogate in its docno", valid="ids that UTF-8 can hold"
        )
    return Unit(docno, replace_surrogates(title), replace_surrogates(text))


def field_text(number: int, name: str, value: Any) -> str:
    """A value of document `number` as text; empty for None. `InputError` for one that is neither
    text nor a whole number."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    do = ""
    if isinstance(value, Real) and name == "docno":
        do = (
            "pandas makes floats of whole numbers if one of them is missing, and judgements have "
            "no such ids: read the column as text, dtype={'docno': str}"
        )
    raise InputError(
        f"document {number} has the {name} {value!r:.100}", valid="text, or a whole number", do=do
    )


class OpenedIndex:
    """An opened index folder. A subclass implements `rank`.

    One that also scores units of the caller's choice has `docnos` (unit ids by number), and
    `score(queries, numbers, model)`, which returns an array for each query: the scores of the units
    with these numbers.

    `engine.open(path)` opens one that needs the settings of an engine, and `Class(path)` any other.
    Two are equal if their folders and corpora are. A pickled one is opened again from its path.
    """

    engine: Any = None
    query_columns: ClassVar[tuple[str, ...]] = ("query_toks", "query")
    """The columns of a frame that hold queries, in the order in which a retriever prefers them."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path, self.manifest = path, manifest

    @property
    def supports(self) -> frozenset[str]:
        """See `Engine.supports`; a retriever needs some of it (`Stage.needs`)."""
        supports: frozenset[str] = self.engine.supports if self.engine else frozenset()
        return supports

    @abstractmethod
    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """Rank at most `depth` units for each query.

        Args:
            queries: one or more, from one of the `query_columns`: texts, which the index analyses
                itself, or weights by index term, for example.
            model: the retriever that asks, which holds the parameters: `k1` and `b` of a
                `soundingline.pipelines.retrieve.BM25`, for example.
        """

    @property
    def _opener(self) -> str:
        return f"{self.engine}.open" if self.engine else type(self).__name__

    def __repr__(self) -> str:
        return f"{self._opener}({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpenedIndex) or type(self) is not type(other):
            return False
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        opener: Any = self.engine.open if self.engine else type(self)
        return opener, (self.path,)

    @property
    def _identity(self) -> tuple[str, ...]:
        return str(self.path.absolute()), self.manifest["corpus_fingerprint"]


def write_metadata(folder: Path, kind: str, artifact_format: str) -> None:
    """Write pt_meta.json, by which PyTerrier knows the type and the format of an artifact."""
    metadata = {"type": kind, "format": artifact_format, "package_hint": _PACKAGE}
    (folder / _METADATA).write_text(dump_json(metadata), "utf-8")


class IndexArtifact(pt.Artifact):
    """An opened index folder as an artifact of PyTerrier's (`pt.Artifact.load`, `build_package`,
    `from_url`, `from_hf`, `to_hf`).

    The entry point `<type>.<format>` of the group `pyterrier.artifact` names what opens the folder
    by its path.
    """

    ARTIFACT_TYPE: ClassVar[str]
    ARTIFACT_FORMAT: ClassVar[str]
    ARTIFACT_PACKAGE_HINT: ClassVar[str] = _PACKAGE
    path: Path
    manifest: Mapping[str, Any]

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """What a package holds: what was built, and not what was noted since."""
        for name in sorted([MANIFEST, *self.manifest["files"]]):
            yield name, str(self.path / name)


class TermIndex(OpenedIndex):
    """An opened index of the terms of an analyzer, ranked by BM25. `InputError` if another analyzer
    made it."""

    _base: Any = None

    def __init__(self, path: Path, manifest: Mapping[str, Any], analyzer: Analyzer) -> None:
        super().__init__(path, manifest)
        self.analyzer = analyzer
        if manifest.get("analyzer_fingerprint", analyzer.fingerprint) != analyzer.fingerprint:
            what = f"the index at '{path}' was made by another analyzer than '{analyzer.name}'"
            raise InputError(f"{what}, or another version of it", do=REBUILD)

    @check_call
    def bm25(self, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> BM25:
        """A PyTerrier transformer over this index; see `BM25`."""
        from soundingline.pipelines.retrieve import BM25

        return BM25(k1=k1, b=b, depth=depth, index=self)

    @check_call
    def ql(self, mu: float = 1000.0, depth: int = 1000) -> QueryLikelihood:
        """A PyTerrier transformer over this index; see `QueryLikelihood`."""
        from soundingline.pipelines.retrieve import QueryLikelihood

        return QueryLikelihood(mu=mu, depth=depth, index=self)

    def over(self: Terms, base: Terms) -> Terms:
        """This index of enriched documents, with `base` as the index of the documents themselves.
        Both number the documents alike."""
        self._base = base
        return self

    @property
    def base(self: Terms) -> Terms:
        """The index of the documents themselves, which feedback and texts are read from: this
        index, unless phrases enrich its documents."""
        return self._base or self

    def __repr__(self) -> str:
        return super().__repr__() + (f".over({self._base!r})" if self._base else "")

    def __reduce__(self) -> tuple[Any, ...]:
        opened = super().__reduce__()
        return (_over, (*opened, self._base)) if self._base else opened


def _over(opener: Callable[..., Terms], arguments: tuple[Any, ...], base: Terms) -> Terms:
    return opener(*arguments).over(base)


class UniqueUnits:
    """Iterates over units, counts them, and refuses repeated ids.

    The newest 65,536 ids are in memory as strings, all others as hashes of 16 bytes. Two different
    ids with one hash would be refused; the probability is below 1e-20 for a billion ids.

    Raises:
        InputError: For a repeated id, at most 65,536 units later; from `finish` also for a corpus
            without units.
    """

    def __init__(self, units: Iterable[Unit]) -> None:
        self._units = units
        self._recent: dict[str, None] = {}
        self._blocks: list[NDArray[np.bytes_]] = []  # each sorted
        self._settled = 0

    def __iter__(self) -> Iterator[Unit]:
        for unit in self._units:
            if unit.unit_id in self._recent:
                raise _repeated(unit.unit_id)
            self._recent[unit.unit_id] = None
            if len(self._recent) >= _RECENT:
                self._settle()
            yield unit
        self._settle()

    def finish(self) -> int:
        """The number of units."""
        self._settle()  # Not every engine reads its input to the end or passes an error on.
        if not self._settled:
            raise InputError("the corpus is empty: no unit to index", do="check the benchmark")
        return self._settled

    def _settle(self) -> None:
        """Replace the newest ids by their hashes."""
        if not self._recent:
            return
        names = [name.encode() for name in self._recent]
        digests = b"".join(hashlib.blake2b(name, digest_size=16).digest() for name in names)
        hashes = np.frombuffer(digests, dtype="S16")
        order = np.argsort(hashes)
        block = hashes[order]
        for known in self._blocks:
            places = np.minimum(np.searchsorted(known, block), len(known) - 1)
            doubled = np.flatnonzero(known[places] == block)
            if len(doubled):
                raise _repeated(list(self._recent)[order[doubled].min()])
        self._settled += len(self._recent)
        self._recent = {}
        while self._blocks and len(self._blocks[-1]) <= len(block) < _LARGEST_BLOCK:
            block = np.sort(np.concatenate([self._blocks.pop(), block]))
        self._blocks.append(block)


def _repeated(unit_id: str) -> InputError:
    return InputError(f"unit id '{unit_id}' comes twice", do="give every unit its own id")


# Shards of a corpus: parts that processes encode, enrich or index, each by itself.

_MOST = 1 << 16  # numbers of 16 bits


@dataclass(frozen=True)
class Shard:
    """The units of a corpus whose ids have the hash `number`, of `count` hashes from 0. Membership
    depends on the id alone, so that any machine can compute a shard by itself, and again.

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
    digest = hashlib.blake2b(unit_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % count
