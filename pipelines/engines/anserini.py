"""Anserini (Lucene in Java) as an engine: the reference for our own index.

`make anserini` installs it; nothing here imports Java, and no virtual machine starts before the
first build or search. Text is analysed by Anserini itself, with its default English analyzer, of
which `make_analyzer("english")` is the equal. Raw text is not stored: it would slow every search.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, overload

import pandas as pd
import pyterrier as pt

from pipelines.engines.anserini_process import AnseriniProcess
from pipelines.engines.index_folder import Checked, read_manifest, write_manifest
from pipelines.engines.result_frames import RankedList, queries_of, ranked
from pipelines.lexical import Analyzer, make_analyzer
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


class AnseriniIndex:
    """An opened Anserini index. Its machine starts at the first search and serves it alone."""

    def __init__(self, path: Path, manifest: dict[str, Any], engine: AnseriniEngine) -> None:
        self.path = path
        self.manifest = manifest
        self.engine = engine
        self.analyzer: Analyzer = make_analyzer("english")
        self._process = engine.process(("open", {"path": str(path.absolute() / _LUCENE)}))

    def __len__(self) -> int:
        return int(self.manifest["counts"]["indexed"])

    @overload
    def document_frequency(self, terms: str) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def document_frequency(self, terms: Iterable[str]) -> list[int]: ...
    def document_frequency(self, terms: str | Iterable[str]) -> int | list[int]:
        """In how many documents an index term occurs; a list for several terms."""
        if isinstance(terms, str):
            return self.document_frequency([terms])[0]
        found: list[int] = self._process.ask("frequencies", terms=list(terms))
        return found

    def bm25(self, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> AnseriniRetriever:
        """Lucene's BM25."""
        check_settings(k1, b, depth, "lucene")
        return AnseriniRetriever(self, (("k1", float(k1)), ("b", float(b))), depth)

    def ql(self, mu: float = 1000.0, depth: int = 1000) -> AnseriniRetriever:
        """Query likelihood with Dirichlet smoothing; `mu` above 0."""
        check_likelihood(mu, depth, "lucene")
        return AnseriniRetriever(self, (("mu", float(mu)),), depth)

    def search(
        self, queries: list[Any], depth: int, model: dict[str, Any], threads: int = 1
    ) -> list[RankedList]:
        """Rank for texts, or for weights by index term."""
        rankings: list[RankedList] = []
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            part = queries[first : first + _QUERIES_AT_ONCE]
            found = self._process.ask(
                "search", queries=part, depth=depth, threads=threads, model=model
            )
            for number in range(len(part)):
                hits = found.get(str(number), ())
                rankings.append(RankedList([h["docid"] for h in hits], [h["score"] for h in hits]))
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
        found = self._process.ask("lucene", queries=queries, depth=depth, model=model)
        return [RankedList([d for d, _ in hits], [score for _, score in hits]) for hits in found]

    def __repr__(self) -> str:
        return f"AnseriniIndex({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnseriniIndex) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.engine, self.path)

    @property
    def _identity(self) -> tuple[str, str]:
        return str(self.path.absolute()), self.manifest["corpus_fingerprint"]


def _reopen(engine: AnseriniEngine, path: Path) -> AnseriniIndex:
    return engine.open(path)


class AnseriniRetriever(pt.Transformer):
    """Anserini's `SimpleSearcher` as a transformer.

    In: `qid` and `query` (text), or `query_toks` (index term -> weight), which is taken where both
    are there. Out: every column of the input, and `docno`, `score`, `rank` (from 0). Anserini
    rounds scores to four decimals, orders equal ones by docno, and then lowers them by a millionth
    a place. `model`: pairs of `k1` and `b`, or of `mu`, and of `rm3`.
    """

    def __init__(
        self, index: AnseriniIndex, model: tuple[tuple[str, Any], ...], depth: int
    ) -> None:
        self.index, self.model, self.depth = index, model, depth

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
        if fb_terms < 1 or fb_docs < 1 or not 0 <= original_weight <= 1:
            raise InputError(
                f"fb_terms={fb_terms}, fb_docs={fb_docs}, original_weight={original_weight}",
                valid="1 or more, 1 or more, 0 to 1",
            )
        rm3 = (int(fb_terms), int(fb_docs), float(original_weight))
        kept = tuple(pair for pair in self.model if pair[0] != "rm3")
        return AnseriniRetriever(self.index, (*kept, ("rm3", rm3)), self.depth)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        queries = queries_of(inp)
        if "query_toks" in inp.columns and "rm3" in dict(self.model):
            raise InputError(
                "query_toks came to RM3", valid="query text", do="drop the column query_toks"
            )
        return ranked(inp, self.index.search(list(queries), self.depth, dict(self.model)))

    def fuse_rank_cutoff(self, k: int) -> AnseriniRetriever | None:
        """`ranker % k` as one stage; PyTerrier's optimiser asks for it."""
        return AnseriniRetriever(self.index, self.model, k) if k < self.depth else None

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.model)
        return f"AnseriniRetriever({self.index!r}, {settings}, depth={self.depth})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnseriniRetriever) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    @property
    def _settings(self) -> tuple[Any, ...]:
        return self.index, self.model, self.depth
