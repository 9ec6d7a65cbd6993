"""Anserini (Lucene in Java) as an engine: the reference for our own index.

`make anserini` installs it; nothing here imports Java, and no virtual machine starts before the
first build or search. Text is analysed by Anserini itself, with its default English analyzer, of
which `make_analyzer("english")` is the equal. Raw text is not stored: it would slow every search.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from soundingline.pipelines.engines.anserini_process import AnseriniProcess
from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.index_folder import Checked, OpenedIndex, read_manifest, write_manifest
from soundingline.pipelines.lexical import Analyzer, make_analyzer
from soundingline.pipelines.lexical.bm25 import check_settings
from soundingline.pipelines.lexical.likelihood import check_likelihood
from soundingline.pipelines.retrieve import BM25, RM3, QueryLikelihood
from soundingline.toolkit.console import track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, fingerprint

NAME = "anserini"
_LUCENE = "lucene"
_BATCH = 500
_QUERIES_AT_ONCE = 64
_INDEXING = ["-collection", "JsonCollection", "-threads", "1", "-memoryBuffer", "512"]


@dataclass(frozen=True)
class AnseriniEngine:
    """Builds and opens Anserini indexes.

    `document_vectors` keeps what RM3 needs. `jar`, `java_home`: other ones than those found (see
    `soundingline.pipelines.engines.java`); `heap`: the machine's memory, such as `2g`. The three
    change no index, so they are not part of the fingerprint.
    """

    document_vectors: bool = True
    jar: str | None = None
    java_home: str | None = None
    heap: str | None = None
    name: str = NAME
    offers: ClassVar[frozenset[str]] = frozenset({"bm25", "ql", "rm3"})

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.document_vectors)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Index the `contents` of the units. Units without a term are left out, as Anserini does.

        `InputError` for an empty corpus, a repeated id, a missing jar or machine. Whole or not at
        all.
        """
        checked = Checked(track(units, "indexing (anserini)"))
        process = self.process()
        try:
            with atomic_folder(Path(path)) as folder:
                vectors = ["-storeDocvectors"] if self.document_vectors else []
                arguments = ["-input", str(folder), "-index", str(folder / _LUCENE)]
                process.ask("create", arguments=[*_INDEXING, *arguments, *vectors])
                indexed = _feed(process, checked)
                counts = {"units": checked.finish(), "indexed": indexed}
                process.ask("finish")
                if process.ask("open", path=str(folder / _LUCENE)) != indexed:
                    raise RuntimeError("Anserini lost documents while indexing")
                self._write_manifest(folder, process, counts, corpus_fingerprint)
        finally:
            process.close()

    def open(self, path: Path, *, corpus_fingerprint: str | None = None) -> AnseriniIndex:
        """`InputError` if there is no whole index of that corpus."""
        manifest = read_manifest(Path(path), NAME, corpus_fingerprint)
        return AnseriniIndex(Path(path), manifest, self)

    def process(self, first: tuple[str, dict[str, Any]] | None = None) -> AnseriniProcess:
        """A machine of these settings, not yet started; `first` is what it does first."""
        return AnseriniProcess(self.jar, self.java_home, self.heap, first)

    def _write_manifest(
        self, folder: Path, process: AnseriniProcess, counts: dict[str, int], corpus: str
    ) -> None:
        content = {
            "corpus_fingerprint": corpus,
            "counts": counts,
            "document_vectors": self.document_vectors,
            "versions": {"anserini": process.jar.stem},
        }
        write_manifest(folder, NAME, content)


def _feed(process: AnseriniProcess, units: Iterable[Unit]) -> int:
    indexed, remaining = 0, iter(units)
    while batch := list(islice(remaining, _BATCH)):
        rows = [json.dumps({"id": unit.unit_id, "contents": unit.contents}) for unit in batch]
        indexed += process.ask("add", documents=rows)
    return indexed


class AnseriniIndex(OpenedIndex):
    """An opened Anserini index. Its machine starts at the first search and serves it alone."""

    def __init__(self, path: Path, manifest: dict[str, Any], engine: AnseriniEngine) -> None:
        super().__init__(path, manifest)
        self.engine = engine
        self.analyzer: Analyzer = make_analyzer("english")
        self._process = engine.process(("open", {"path": str(path.absolute() / _LUCENE)}))

    def __len__(self) -> int:
        return int(self.manifest["counts"]["indexed"])

    def document_frequency(self, term: str) -> int:
        """In how many documents an index term occurs."""
        return int(self._process.ask("frequencies", terms=[term])[0])

    def bm25(self, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> BM25:
        """Lucene's BM25; see `BM25`."""
        return BM25(k1=float(k1), b=float(b), depth=depth, index=self)

    def ql(self, mu: float = 1000.0, depth: int = 1000) -> QueryLikelihood:
        """Query likelihood with Dirichlet smoothing; see `QueryLikelihood`."""
        return QueryLikelihood(mu=float(mu), depth=depth, index=self)

    def check_model(self, model: Any) -> None:
        """`InputError` for RM3 over an index without document vectors."""
        if isinstance(model, RM3) and not self.manifest["document_vectors"]:
            raise InputError(
                f"the index at '{self.path}' has no document vectors, which RM3 needs",
                do="build it with engine.document_vectors=true",
            )

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """See `soundingline.pipelines.engines.engine.Index`. Anserini's `SimpleSearcher` rounds
        scores to four decimals, orders equal ones by docno, and then lowers them by a millionth a
        place."""
        settings: dict[str, Any] = (
            {"k1": float(model.k1), "b": float(model.b)}
            if getattr(model, "mu", None) is None
            else {"mu": float(model.mu)}
        )
        if isinstance(model, RM3):
            settings["rm3"] = model.fb_terms, model.fb_docs, float(model.original_weight)
            if not all(isinstance(query, str) for query in queries):
                raise InputError(
                    "query_toks came to RM3", valid="query text", do="drop the column query_toks"
                )
        return self.search(list(map(_positive, queries)), depth, settings)

    def search(
        self, queries: list[Any], depth: int, model: dict[str, Any], threads: int = 1
    ) -> list[RankedList]:
        """Rank for texts, or for weights by index term."""
        rankings: list[RankedList] = []
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            part = queries[first : first + _QUERIES_AT_ONCE]
            hits_by_number = self._process.ask(
                "search", queries=part, depth=depth, threads=threads, model=model
            )
            for number in range(len(part)):
                hits = hits_by_number.get(str(number), ())
                docnos = [hit["docid"] for hit in hits]
                rankings.append(RankedList(docnos, [hit["score"] for hit in hits]))
        return rankings

    def lucene(
        self, queries: list[str], k1: float = 0.9, b: float = 0.4, depth: int = 1000
    ) -> list[RankedList]:
        """BM25 by Lucene's own searcher, with the scores that `SimpleSearcher` would round: what
        another implementation is to be compared with."""
        check_settings(k1, b, depth)
        return self._lucene(queries, depth, {"k1": float(k1), "b": float(b)})

    def lucene_ql(
        self, queries: list[str], mu: float = 1000.0, depth: int = 1000
    ) -> list[RankedList]:
        """As `lucene`, by query likelihood."""
        check_likelihood(mu, depth)
        return self._lucene(queries, depth, {"mu": float(mu)})

    def _lucene(self, queries: list[str], depth: int, model: dict[str, float]) -> list[RankedList]:
        rankings = self._process.ask("lucene", queries=queries, depth=depth, model=model)
        return [
            RankedList([docno for docno, _ in hits], [score for _, score in hits])
            for hits in rankings
        ]


def _positive(query: str | Mapping[str, float]) -> str | dict[str, float]:
    """A text as it is; of weights those above 0."""
    if isinstance(query, str):
        return query
    return {term: float(weight) for term, weight in query.items() if weight > 0}
