"""Document store and index of a benchmark and a unit, and the collection's link graph and resolver:
opened if they stand, built if not.

indexes/<benchmark>/documents-<fingerprint>/       raw text, once a corpus
indexes/<benchmark>/<unit>-spans-<fingerprint>/    where its units begin and end
indexes/<benchmark>/<unit>-<engine>-<fingerprint>/ the index
indexes/<benchmark>/seconds-<index>.json           how long it took to build
indexes/<benchmark>/links-<fingerprint>/           of the corpus and of what the links are made of
indexes/<benchmark>/headings-<fingerprint>/        of the corpus: titles, urls, identifiers
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from soundingline.pipelines.engines.engine import DeletedIndex, Engine, RemoteEngine
from soundingline.pipelines.stage import LazyValues, computes_on_gpu
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.checksums import verify_checksum_list, write_checksum_list
from soundingline.toolkit.console import notify, track
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.corpus.links import FORMAT as LINKS_FORMAT
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.corpus.resolve import FORMAT as HEADINGS_FORMAT
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.corpus.segmentation import Segmenter
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, fingerprint, read_json, write_json, write_text
from soundingline.toolkit.locks import building_lock, file_lock, read_only

if TYPE_CHECKING:
    from soundingline.pipelines.index_folder import Shard

CLEAR = "NOT-SEALED.txt"
_CLEAR_NOTE = """\
The stores and indexes in this folder hold texts of a sealed benchmark as they are, because engines
must read them. Do not publish this folder; git ignores it.
"""


class _Writable(Protocol):
    def write(self, folder: Path) -> None: ...


Part = TypeVar("Part", bound=_Writable)


@dataclass
class IndexedCollection:
    """An opened store and an index of `engine`, with the fingerprint that names the index. `folder`
    holds them and whatever else is indexed of the same units; `others` names what was, by engine.
    Indexes are made of `shards` parts, if these are above 1 and the engine can be divided.
    `links` gives the links between the documents, where the benchmark has any, and `resolver` what
    recognises documents by title, url or identifier."""

    store: SqliteStore
    path: Path
    fingerprint: str
    folder: Path
    segmenter: Segmenter
    corpus: str
    engine: Engine
    others: dict[str, str] = field(default_factory=dict)
    links: Callable[[], LinkGraph] | None = None
    resolver: Callable[[], Resolver] | None = None
    shards: int = 1

    @cached_property
    def index(self) -> Any:
        """The index, opened when it is first asked for; built if it is missing."""
        return self.opened(self.engine, self.path)

    def indexed(self, engine: Engine) -> Any:
        """Another engine's index of the same units, opened; built if it is missing."""
        engine = _of_units(engine, self.segmenter)
        path, digest = _place(self.folder, self.segmenter, engine, self.corpus)
        self.others[path.name] = digest
        return self.opened(engine, path)

    def opened(self, engine: Any, path: Path) -> Any:
        """The index of an engine at a path, opened; built if it is missing."""
        divisible = self.shards > 1 and hasattr(engine, "build_shard")  # of learned retrievers
        build = partial(
            engine.build,
            StoredUnits(self.store),
            path,
            corpus_fingerprint=self.corpus,
            **({"shards": self.shards} if divisible else {}),
        )
        with _missing(path, f"the index '{path}'") as missing:
            if missing:
                with _timed(path, engine):
                    build()
        try:
            return engine.open(path, corpus_fingerprint=self.corpus)
        except DeletedIndex:
            with building_lock(path.parent / f".{path.name}.lock", f"the index of '{path}'"):
                try:
                    return engine.open(path, corpus_fingerprint=self.corpus)  # made meanwhile
                except DeletedIndex:
                    notify(f"the cluster has no index that '{path}' records; it is loaded again")
                    shutil.rmtree(path)
                    build()
        return engine.open(path, corpus_fingerprint=self.corpus)

    def build_seconds(self) -> dict[str, float]:
        """The seconds that building the indexes with all their shards has taken: of `all`, and of
        those by a model on a GPU (`gpu`). Empty where there is no record; builds that were
        interrupted have left none."""
        total = Counter[str]()
        for name in {self.path.name, *self.others}:
            file = _seconds_file(self.folder / name)
            if file.exists():
                total.update(read_json(file, dict[str, float], do="remove that file"))
        return dict(total)

    def build_shard(self, engine: Any, shard: Shard) -> None:
        """Make a shard of the index of an engine that can be divided, unless the index is there.
        One process at a time makes a shard."""
        path, _ = _place(self.folder, self.segmenter, engine, self.corpus)
        with _missing(path, f"{shard} of the index '{path}'", shard.folder(path)) as missing:
            if missing:
                units = StoredUnits(self.store)
                with _timed(path, engine):
                    engine.build_shard(units, path, shard, corpus_fingerprint=self.corpus)

    def missing_shards(self, engine: Any, count: int) -> tuple[Path, list[int]]:
        """The path of an engine's index, and the numbers of the shards that are missing."""
        path, _ = _place(self.folder, self.segmenter, engine, self.corpus)
        if path.exists():
            return path, []
        return path, engine.missing_shards(path, count, self.corpus)


class StoredUnits:
    """The units of a store as an iterable of known length, which an engine's bar shows."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __iter__(self) -> Iterator[Unit]:
        return self._store.units()

    def __len__(self) -> int:
        return self._store.unit_count


def texts_in(store: SqliteStore, docids: Collection[str]) -> Iterator[tuple[str, str]]:
    """Docid, and title and text, of those of the documents that the store has."""
    for docid in docids:
        with suppress(KeyError):
            document = store.document(docid)
            yield docid, f"{document.title}\n{document.text}"


def texts_under(
    root: Path, benchmark: Benchmark, docids: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The same from the benchmark's store under `root` where it stands, else from the benchmark,
    which may mean to read all of its corpus."""
    corpus = benchmark.corpus_fingerprint
    path = _texts(root / benchmark.name, corpus)
    if not path.exists():
        yield from benchmark.document_texts(docids)
        return
    with SqliteStore(path, corpus_fingerprint=corpus) as store:
        yield from texts_in(store, docids)


def prepare(
    benchmark: Benchmark,
    segmenter: Segmenter,
    engine: Engine,
    root: Path,
    *,
    indexed: bool = True,
) -> IndexedCollection:
    """Open what stands under `root`; build what is missing, each part by one process. The index
    waits until it is asked for where `indexed` is false. What is complete is opened without a lock,
    so that `root` may be read-only; `InputError` where it is, and something is missing."""
    if segmenter.first and not benchmark.in_passages:
        raise InputError(
            f"the corpus of {benchmark.name} was not released in passages",
            do="set passage_splitter=rules or passage_splitter=spacy, which cut documents",
        )
    folder = root / benchmark.name
    corpus = benchmark.corpus_fingerprint
    engine = _of_units(engine, segmenter)
    path, digest = _place(folder, segmenter, engine, corpus)
    if benchmark.obfuscated:
        _mark_clear(folder)
    store = _store(benchmark, segmenter, folder, corpus)
    collection = IndexedCollection(
        store,
        path,
        digest,
        folder,
        segmenter,
        corpus,
        engine,
        links=link_graph(benchmark, store, corpus, folder),
        resolver=title_resolver(store, corpus, folder),
    )
    if indexed:
        collection.index = collection.opened(engine, path)
    return collection


def _mark_clear(folder: Path) -> None:
    """Say that the folder holds texts of an obfuscated benchmark as they are, and keep git away."""
    for name, text in ((".gitignore", "*\n"), (CLEAR, _CLEAR_NOTE)):
        if not (folder / name).exists():
            try:
                write_text(folder / name, text)
            except OSError as error:
                if not read_only(error):
                    raise


def _of_units(engine: Engine, segmenter: Segmenter) -> Any:
    """The engine for the units of a segmenter. The folder of an index is named after them, and an
    index outside that folder has to be as well."""
    return engine.of_content(segmenter.fingerprint) if isinstance(engine, RemoteEngine) else engine


def _place(folder: Path, segmenter: Segmenter, engine: Engine, corpus: str) -> tuple[Path, str]:
    digest = fingerprint(corpus, segmenter.fingerprint, engine.fingerprint)
    return folder / f"{segmenter.name}-{engine.name}-{digest}", digest


def _texts(folder: Path, corpus: str) -> Path:
    return folder / f"documents-{corpus}"


@contextmanager
def _missing(path: Path, what: str, part: Path | None = None) -> Iterator[bool]:
    """Whether the block has to build `path`, or `part` of it, which no other process does then.
    Each part has a lock of its own, because encoding a corpus takes hours, and other cells build
    theirs meanwhile. What is there needs no lock."""
    if path.exists():
        yield False
        return
    part = part or path
    with building_lock(part.parent / f".{part.name}.lock", what):
        yield not path.exists()


def _seconds_file(path: Path) -> Path:
    return path.with_name(f"seconds-{path.name}.json")


@contextmanager
def _timed(path: Path, engine: Any) -> Iterator[None]:
    """Add the duration of the block, if it ends well, to that of building the index at `path`."""
    began = time.monotonic()
    yield
    seconds = round(time.monotonic() - began, 3)
    file, spent = _seconds_file(path), {"all": seconds}
    if computes_on_gpu(engine):
        spent["gpu"] = seconds
    with file_lock(path.parent / f".{file.name}.lock"):  # several shards may end at once
        before = read_json(file, dict[str, float], do="remove that file") if file.exists() else {}
        total = {name: before.get(name, 0.0) + spent.get(name, 0.0) for name in {**before, **spent}}
        write_json(file, total)


def _store(benchmark: Benchmark, segmenter: Segmenter, folder: Path, corpus: str) -> SqliteStore:
    texts = _texts(folder, corpus)
    spans = folder / f"{segmenter.name}-spans-{fingerprint(corpus, segmenter.fingerprint)}"
    with _missing(texts, f"the document store '{texts}'") as missing:
        if missing:
            reading = track(benchmark.documents(), f"Storing {benchmark.name}")
            SqliteStore.build(texts, reading, corpus_fingerprint=corpus).close()
    with _missing(spans, f"the document store '{spans}'") as missing:
        if missing:
            with SqliteStore(texts, corpus_fingerprint=corpus) as store:
                store.add_units(spans, segmenter)
    return SqliteStore(
        texts,
        spans,
        corpus_fingerprint=corpus,
        segmenter_fingerprint=segmenter.fingerprint,
    )


def link_graph(
    benchmark: Benchmark, store: SqliteStore, corpus: str, folder: Path
) -> Callable[[], LinkGraph] | None:
    """What gives the graph of a benchmark's links when it is first asked for; None where it has
    none. `corpus` is the fingerprint of the documents. Links to documents that are missing from the
    corpus are told. Without a fingerprint of the links (`Benchmark.links_fingerprint`) the graph is
    built at each start."""
    links, content = benchmark.links(), benchmark.links_fingerprint
    if links is None:
        return None

    def build() -> LinkGraph:
        return LinkGraph.build(links, store)

    def graph() -> LinkGraph:
        if content is None:
            result = build()
        else:
            key = fingerprint(corpus, content, LINKS_FORMAT)
            result = open_or_build(folder / f"links-{key}", LinkGraph.open, build)
        if result.missing:
            total = len(result) + result.missing + result.repeated + result.own
            lacking = f"{result.missing:,} of {total:,} links of {benchmark.name}"
            notify(f"{lacking} name documents that are missing from its corpus; they are left out")
        return result

    return _once(graph)


def title_resolver(store: SqliteStore, corpus: str, folder: Path) -> Callable[[], Resolver]:
    """What gives the resolver of a store when it is first asked for; `corpus` is the fingerprint of
    its documents."""
    path = folder / f"headings-{fingerprint(corpus, HEADINGS_FORMAT)}"
    return _once(
        lambda: open_or_build(path, Resolver.open, lambda: Resolver(store.documents(texts=False)))
    )


def open_or_build(path: Path, open_: Callable[[Path], Part], build: Callable[[], Part]) -> Part:
    """What the folder `path` holds, opened. Where it is missing, or damaged, which one line
    reports, it is built by one process at a time, and left there where that can be written."""

    def whole() -> Part | None:
        try:
            verify_checksum_list(path, what=str(path), do="")
        except InputError:
            return None
        return open_(path)

    part = whole()
    if part is not None:
        return part
    try:
        with file_lock(path.parent / f".{path.name}.lock"):
            if (part := whole()) is None:
                if path.exists():
                    notify(f"{path} is damaged; it is built again")
                part = build()
                with atomic_folder(path, replace=True) as temporary:
                    part.write(temporary)
                    write_checksum_list(temporary)
    except OSError as error:
        if not read_only(error):
            raise
    return build() if part is None else part


def _once(make: Callable[[], Part]) -> Callable[[], Part]:
    """`make`, called once, for many threads."""
    values = LazyValues()
    return lambda: values.get("part", make)


def notes(benchmark: Benchmark, collection: IndexedCollection) -> list[str]:
    """What a user must know about the benchmark's data before believing a number."""
    unknown = len(benchmark.unknown_judged(collection.store))
    evidence = benchmark.qrels.get("evidence", {})
    unjudged = sum(not evidence.get(topic.qid) for topic in benchmark.topics)
    questions = len(benchmark.topics)
    notes = {
        f"{unknown} judged documents of {benchmark.name} are not in its corpus; they count as "
        "not found": unknown,
        f"{unjudged} of {questions} questions of {benchmark.name} have no judgements": unjudged,
    }
    return [note for note, count in notes.items() if count]
