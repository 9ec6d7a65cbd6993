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

from pipelines.engines.anserini_process import AnseriniProcess
from pipelines.index_folder import Checked, OpenedIndex, read_manifest, write_manifest
from pipelines.index_retriever import IndexRetriever, RankedList, checked_weights
from pipelines.lexical import Analyzer, make_analyzer
from pipelines.lexical.rm3 import check_feedback
from pipelines.lexical.top_documents import check_likelihood, check_settings
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import fingerprint, folder_made_whole
from toolkit.progress import track

NAME = "anserini"
_LUCENE = "lucene"
_BATCH = 500
_QUERIES_AT_ONCE = 64
_INDEXING = ["-collection", "JsonCollection", "-threads", "1", "-memoryBuffer", "512"]


@dataclass(frozen=True)
class AnseriniEngine:
    """Builds and opens Anserini indexes.

    `document_vectors` keeps what RM3 needs. `jar`, `java_home`: other ones than those found (see
    `pipelines.engines.java`); `heap`: the machine's memory, such as `2g`. The three change no
    index, so they are not part of the fingerprint.
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
            with folder_made_whole(Path(path)) as folder:
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

    def bm25(self, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> AnseriniRetriever:
        """Lucene's BM25."""
        check_settings(k1, b, depth, "lucene")
        return AnseriniRetriever(self, k1=float(k1), b=float(b), depth=depth)

    def ql(self, mu: float = 1000.0, depth: int = 1000) -> AnseriniRetriever:
        """Query likelihood with Dirichlet smoothing; `mu` above 0."""
        check_likelihood(mu, depth, "lucene")
        return AnseriniRetriever(self, mu=float(mu), depth=depth)

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
        check_settings(k1, b, depth, "lucene")
        return self._lucene(queries, depth, {"k1": float(k1), "b": float(b)})

    def lucene_ql(
        self, queries: list[str], mu: float = 1000.0, depth: int = 1000
    ) -> list[RankedList]:
        """As `lucene`, by query likelihood."""
        check_likelihood(mu, depth, "lucene")
        return self._lucene(queries, depth, {"mu": float(mu)})

    def _lucene(self, queries: list[str], depth: int, model: dict[str, float]) -> list[RankedList]:
        rankings = self._process.ask("lucene", queries=queries, depth=depth, model=model)
        return [
            RankedList([docno for docno, _ in hits], [score for _, score in hits])
            for hits in rankings
        ]


class AnseriniRetriever(IndexRetriever):
    """Anserini's `SimpleSearcher` as a transformer.

    In: `qid` and `query` (text), or `query_toks` (index term -> weight), which is taken where both
    are there. Out: every column of the input, and `docno`, `score`, `rank` (from 0). Anserini
    rounds scores to four decimals, orders equal ones by docno, and then lowers them by a millionth
    a place.

    It ranks by BM25 where `k1` and `b` are given, by query likelihood where `mu` is. `feedback`:
    terms, documents and weight, as of the method `rm3`.
    """

    def __init__(
        self,
        index: AnseriniIndex,
        *,
        k1: float | None = None,
        b: float | None = None,
        mu: float | None = None,
        feedback: tuple[int, int, float] | None = None,
        depth: int = 1000,
    ) -> None:
        self.index, self.k1, self.b, self.mu = index, k1, b, mu
        self.feedback, self.depth = feedback, depth

    def rm3(
        self, fb_terms: int = 10, fb_docs: int = 10, original_weight: float = 0.5
    ) -> AnseriniRetriever:
        """The same with RM3 feedback (Anserini's defaults): terms and documents of feedback, and
        the weight of the original query, 0 to 1."""
        if not self.index.manifest["document_vectors"]:
            raise InputError(
                f"the index at '{self.index.path}' has no document vectors, which RM3 needs",
                do="build it with engine.document_vectors=true",
            )
        check_feedback(fb_terms, fb_docs, original_weight)
        feedback = int(fb_terms), int(fb_docs), float(original_weight)
        return AnseriniRetriever(**{**self._arguments(), "feedback": feedback})

    def given(self, value: Any) -> Mapping[str, float]:
        if self.feedback is not None:
            raise InputError(
                "query_toks came to RM3", valid="query text", do="drop the column query_toks"
            )
        weights = checked_weights(value)
        return {term: float(weight) for term, weight in weights.items() if weight > 0}

    def rank(self, queries: Sequence[str | Mapping[str, float]]) -> Sequence[RankedList]:
        settings = {"k1": self.k1, "b": self.b, "mu": self.mu, "rm3": self.feedback}
        model = {name: value for name, value in settings.items() if value is not None}
        return self.index.search(list(queries), self.depth, model)
