"""The inverted index as an object: built once, opened by mapping, searched by many threads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from soundingline.pipelines.engines.engine import RankedList, TermQuery, ranked_lists
from soundingline.pipelines.index_folder import (
    Documents,
    IndexArtifact,
    OpenedIndex,
    TermIndex,
    as_units,
    read_manifest,
)
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.bm25 import (
    ScoreBuffers,
    TfWeights,
    TopK,
    add_bm25,
    check_settings,
    idf,
)
from soundingline.pipelines.lexical.build import LEAST_MEMORY_MB, build_index
from soundingline.pipelines.lexical.forward import DocumentTerms
from soundingline.pipelines.lexical.likelihood import Dirichlet, collection_frequency
from soundingline.pipelines.lexical.operators import Filter
from soundingline.pipelines.lexical.storage import (
    ARTIFACT_FORMAT,
    ARTIFACT_TYPE,
    KIND,
    TERMS,
    TEXTS,
    TITLES,
    UNITS,
    Docnos,
    Statistics,
    StringTable,
    load_arrays,
    load_postings,
)
from soundingline.pipelines.stage import ByArguments
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, Runtime, check_call, check_int, check_weights
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.queries import parse_query

_FIELDS = ("text", "title")
_CACHED_TABLES = 8  # of a model's newest settings

Sums = tuple[NDArray[np.int64], Callable[[NDArray[np.float32]], None]]
"""The known terms of a query, and a function that adds their scores to those of the documents."""


class _Term(NamedTuple):
    """An index term; all 0 if it is unknown."""

    number: int
    document_frequency: int
    idf: float
    first: int

    @property
    def postings(self) -> slice:
        return slice(self.first, self.first + self.document_frequency)


class InvertedIndex(OpenedIndex, IndexArtifact):
    """The postings of each term, with counts or impacts, mapped from disk; an artifact of
    PyTerrier's (`pt.Artifact.load`, `build_package`, `from_url`, `from_hf`, `to_hf`).

    A document's number is its position in the input; `docnos` gives its unit id. Safe for many
    threads; pickled, it travels as its path.
    """

    ARTIFACT_TYPE = ARTIFACT_TYPE
    path: Path
    _values: ClassVar[type[np.number[Any]]] = np.int32
    """The type of the values of postings."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        super().__init__(path, manifest)
        self.docnos, self.vocabulary = Docnos(StringTable(path / UNITS)), StringTable(path / TERMS)
        self._postings = load_postings(path, manifest)
        self._buffers = ScoreBuffers(self._postings, len(self.docnos))

    def __len__(self) -> int:
        return len(self.docnos)

    def find(self, term: str) -> int:
        """The position of an index term in `vocabulary`; -1 if it is not there."""
        return self.vocabulary.find(term)

    def _places(self, term: str) -> slice:
        """Where the postings of a term are; nowhere if it is unknown."""
        number = self.find(term)
        return slice(*self._postings.offsets[number : number + 2].tolist() if number >= 0 else [0])

    def document_frequency(self, term: str) -> int:
        """In how many documents an index term occurs; 0 if it is unknown."""
        places = self._places(term)
        return int(places.stop - (places.start or 0))

    def postings(self, term: str) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """The numbers of the documents that hold an index term, ascending, and their counts (int32)
        or impacts (float32)."""
        _, documents, values = self._postings
        places = self._places(term)
        return documents[places].astype(np.int32), values[places].astype(self._values)


class LexicalIndex(TermIndex, InvertedIndex):
    """An inverted index over units of text, for ranking with Lucene's statistics. An artifact of
    PyTerrier's, as `InvertedIndex`.

    `LexicalIndex.build` makes one, and `LexicalIndex(path)` opens it. `vocabulary` has the index
    terms in order of their bytes. To analyse a text: `index.analyzer.terms(text)`.

    Opening maps the files, and compares those that have changed since the last check with their
    checksums.

    Args:
        path: the folder of the index.
        corpus_fingerprint: of the corpus that it must be of; None for any.

    Raises:
        InputError: if there is no index, if it is damaged, of another format version, made by
            another version of its analyzer, or of another corpus.

    Example:
        >>> documents = [{"docno": "d1", "text": "old mills"}, {"docno": "d2", "text": "a harbour"}]
        >>> LexicalIndex.build(documents, "my-index").bm25().search("mill")["docno"].tolist()
        ['d1']
        >>> LexicalIndex("my-index").document_frequency("mill")
        1
    """

    ARTIFACT_FORMAT = ARTIFACT_FORMAT

    def __init__(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> None:
        path = Path(path)
        manifest = read_manifest(path, KIND, corpus_fingerprint)
        super().__init__(path, manifest, make_analyzer(manifest["analyzer"]))
        self.statistics = Statistics.of(manifest)
        self._arrays = load_arrays(path, self._postings)
        self._document_terms = DocumentTerms(
            path, self._arrays, self.statistics.documents_with_terms, self.analyzer.longest
        )
        self._terms: dict[str, _Term] = {}
        average = self.statistics.average_length
        self._tf_weights = lru_cache(_CACHED_TABLES)(partial(TfWeights.of, average=average))
        self._dirichlet = lru_cache(_CACHED_TABLES)(Dirichlet.of)
        self._collection_frequency = cache(partial(collection_frequency, self._postings))

    @classmethod
    @check_call
    def build(
        cls,
        units: Documents,
        path: str | Path,
        *,
        overwrite: bool = False,
        analyzer: str = "english",
        memory_mb: int = 1024,
        corpus_fingerprint: str = "",
        keep_texts: bool = True,
    ) -> LexicalIndex:
        """Index the `contents` of `units`, in their order, and open the result.

        The same units give the same bytes, whatever the memory. A build is one process with two
        threads.

        Args:
            units: a frame with the columns `docno`, `text` and perhaps `title`, or an iterable of
                dicts with these keys or of `Unit`s.
            path: the folder, which appears when it is complete.
            overwrite: whether the index replaces an older lexical index at `path`, when it is
                complete.
            analyzer: the name of an analyzer; see `make_analyzer`.
            memory_mb: bounds the memory of the build, apart from the text that is being analysed
                and about 35 bytes a unit.
            corpus_fingerprint: identifies the units; opening the index compares it.
            keep_texts: whether the index stores the texts, so that re-rankers find them.

        Raises:
            InputError: for a `path` that holds anything (but see `overwrite`), documents of another
                form, a `docno` or a text that is neither text nor a whole number, an empty corpus,
                2^31 units or more (before any work if their number is known), a repeated `unit_id`,
                a full disk, an unknown analyzer. Whatever the iterable raises passes through. In
                each case nothing is left.
        """
        build_index(
            as_units(units),
            Path(path),
            overwrite=overwrite,
            analyzer=analyzer,
            memory_mb=memory_mb,
            corpus_fingerprint=corpus_fingerprint,
            keep_texts=keep_texts,
        )
        return cls(path, corpus_fingerprint=corpus_fingerprint)

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """The units, in the order of their ids; `KeyError` for an unknown id, `InputError` if the
        index stores no texts."""
        if not self.base.manifest.get("texts"):
            raise InputError(
                f"the lexical index at '{self.path}' stores no texts",
                do="build it with keep_texts=True, or give the texts of a store",
            )
        numbers = self.docnos.numbers(unit_ids).tolist()
        if -1 in numbers:
            raise KeyError(unit_ids[numbers.index(-1)])
        titles, texts = self._tables
        pairs = zip(unit_ids, numbers, strict=True)
        return [Unit(unit_id, titles[number], texts[number]) for unit_id, number in pairs]

    @cached_property
    def _tables(self) -> tuple[StringTable, StringTable]:
        return StringTable(self.base.path / TITLES), StringTable(self.base.path / TEXTS)

    def text_loader(self, fields: str | Sequence[str] = "*", **options: Any) -> pt.Transformer:
        """For `pt.text.get_text(index)`: adds `text` and `title`, or the columns of `fields`."""
        return TextLoader(self, _FIELDS if fields == "*" else fields)

    def _places(self, term: str) -> slice:
        return self._term(term).postings

    def idf(self, term: str) -> float:
        """Lucene's inverse document frequency of an index term; 0 for an unknown one."""
        return self._term(term).idf

    @property
    def length_codes(self) -> NDArray[np.uint8]:
        """Each document's length in Lucene's one byte."""
        return self._arrays.length_codes

    def postings_within(
        self, term: str, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The postings of an index term in ranges of document numbers, `first[i]` up to `last[i]`
        (not included): which range each is in, its document, and its frequency. Reads no postings
        outside of the ranges but those that a binary search touches."""
        arrays, part = self._arrays, self._term(term).postings
        documents = arrays.documents[part]
        low = np.searchsorted(documents, first.astype(documents.dtype))
        counts = np.searchsorted(documents, last.astype(documents.dtype)) - low
        owners = np.repeat(np.arange(len(first)), counts)
        positions = np.arange(len(owners)) + np.repeat(low - np.cumsum(counts) + counts, counts)
        frequencies = arrays.frequencies[part][positions].astype(np.int64)
        return owners, documents[positions].astype(np.int64), frequencies

    def search(self, query: TermQuery, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> TopK:
        """BM25 of index terms (a repeated one counts again) or of weights by index term.

        Gives the numbers of the documents with a score above 0, `depth` at most, and their
        scores: highest first, equal scores in the order of the documents.
        """
        check_settings(k1, b, depth)
        return self._buffers.best(*self._bm25(query, k1, b), depth)

    def vectors(
        self, numbers: NDArray[Any], largest_share: float = 1.0
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Terms of documents: for each document number, the numbers of its terms (positions in
        `vocabulary`, ascending) and their frequencies. Terms in more than `largest_share` of the
        documents are left out. They are read from files of the index if that is at most a tenth
        and there are many postings, else by one walk through the postings for all documents.
        """
        limit = math.floor(largest_share * self.statistics.documents_with_terms)
        return self._document_terms.vectors(numbers, limit)

    def rank(
        self, queries: Sequence[str | TermQuery], model: Any, depth: int
    ) -> Sequence[RankedList]:
        """See `OpenedIndex`; `model` is a `BM25` or a
        `QueryLikelihood`."""
        rankings = []
        for query in queries:
            terms, passing = self._without_operators(query, model)
            most = depth if passing is None else max(1, len(self))
            documents, scores = self._buffers.best(*self._sums(terms, model), most)
            if passing is not None:
                passed = passing.first(documents, depth)
                documents, scores = documents[passed], scores[passed]
            rankings.append((documents, _of_sums(scores, model)))
        return ranked_lists(self.docnos, rankings)

    def score(
        self, queries: Sequence[str | TermQuery], numbers: Sequence[NDArray[Any]], model: Any
    ) -> Sequence[NDArray[np.float32]]:
        """For each query, the scores by `model` of the documents of these numbers, as in a ranking
        of any depth; 0 for one that would not be in it. Reads the whole postings of the terms."""
        results = []
        for query, of_query in zip(queries, numbers, strict=True):
            terms, passing = self._without_operators(query, model)
            scores = self._buffers.of(of_query, *self._sums(terms, model))
            if passing is not None:
                scores[np.delete(np.arange(len(scores)), passing.first(of_query))] = 0
            results.append(_of_sums(scores, model))
        return results

    def _without_operators(
        self, query: str | TermQuery, model: Any
    ) -> tuple[TermQuery, Filter | None]:
        """The terms of a query, and what filters its documents if it has operators."""
        if not isinstance(query, str):
            return query, None
        if getattr(model, "operators", None) is None:
            return self.analyzer.terms(query), None
        parsed = parse_query(query)
        filters = bool(parsed.phrases or parsed.excluded)
        terms = self.analyzer.terms(parsed.text)
        return terms, Filter(parsed, self, self.texts_for(model)) if filters else None

    @property
    def supports(self) -> frozenset[str]:
        """See `OpenedIndex`. Documents with phrases are ranked by BM25 alone."""
        return LexicalEngine.supports if self.base is self else LexicalEngine.supports - {"ql"}

    def texts_for(self, model: Any) -> Callable[[Sequence[str]], list[Unit]]:
        """What gives the texts of the documents: the collection of a retriever, or this index."""
        collection = getattr(model, "collection", None)
        return getattr(collection, "texts", None) or self.texts

    def _term(self, term: str) -> _Term:
        if term not in self._terms:
            entry = _Term(0, 0, 0.0, 0)
            if (number := self.find(term)) >= 0:
                first, last = self._arrays.offsets[number : number + 2].tolist()
                weight = idf(self.statistics.documents_with_terms, last - first)
                entry = _Term(number, last - first, weight, first)
            self._terms[term] = entry
        return self._terms[term]

    def _sums(self, query: TermQuery, model: Any) -> Sums:
        if hasattr(model, "mu"):
            return self._likelihood(query, model.mu)
        return self._bm25(query, model.k1, model.b)

    def _bm25(self, query: TermQuery, k1: float, b: float) -> Sums:
        terms, weights = self._weighted(query)
        return terms, partial(add_bm25, self._arrays, terms, weights, *self._tf_weights(k1, b))

    def _likelihood(self, query: TermQuery, mu: float) -> Sums:
        known = self._known(query)
        counts = np.array([self._collection_frequency(term.number) for term, _ in known])
        probabilities = (counts + 1) / (self.statistics.tokens + 1)
        terms = np.array([term.number for term, _ in known], np.int64)
        weights = np.array([weight for _, weight in known], np.float32)
        return terms, partial(self._dirichlet(mu).add, self._arrays, terms, weights, probabilities)

    def _weighted(self, query: TermQuery) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Numbers of the known terms of weight above 0, ascending, and weight times idf."""
        known = self._known(query)
        terms = np.array([term.number for term, _ in known], np.int64)
        return terms, np.array([weight * term.idf for term, weight in known], np.float32)

    def _known(self, query: TermQuery) -> list[tuple[_Term, float]]:
        """The known terms of weight above 0 and their weights, in the order of the index, so that a
        score does not depend on the order of the words."""
        weighted = ((self._term(name), weight) for name, weight in weights_of(query).items())
        return sorted((term, weight) for term, weight in weighted if term.document_frequency)


def _of_sums(sums: NDArray[np.float32], model: Any) -> NDArray[np.float32]:
    """The scores of documents by their sums."""
    return Dirichlet.scores(sums) if hasattr(model, "mu") else sums


def weights_of(query: TermQuery) -> dict[str, float]:
    """Weights above 0 by index term; a term that is repeated in a sequence counts again.
    `InputError` for text that was not analysed, and for a weight below 0."""
    if isinstance(query, str):
        raise InputError(
            "the query is a string",
            valid="index terms or weights by index term",
            do="analyse it first: index.analyzer.terms(query)",
        )
    counted: Mapping[str, float] = query if isinstance(query, Mapping) else Counter(query)
    check_weights(counted)
    return {name: float(weight) for name, weight in counted.items() if weight > 0}


class TextLoader(ByArguments, pt.Transformer):
    """Adds texts to rows of documents: `docno` in; the same rows out, with `fields` of `text`
    (without its title) and `title`. `InputError` for other fields and for a docno that is not in
    the index."""

    def __init__(self, index: LexicalIndex, fields: str | Sequence[str] = _FIELDS) -> None:
        self.index = index
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)
        if unknown := sorted(set(self.fields) - set(_FIELDS)):
            raise InputError(f"the index has no {', '.join(unknown)}", valid=", ".join(_FIELDS))

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer:
        """Texts of the first `k` rows alone; PyTerrier's optimiser calls it."""
        return pt.RankCutoff(k) >> self

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["docno"])
        try:
            units = self.index.texts(list(map(str, inp["docno"].tolist())))
        except KeyError as error:
            raise InputError(
                f"the ranking names {error}, which is missing from the index",
                do="rank and read one index",
            ) from error
        columns = {field: [getattr(unit, field) for unit in units] for field in self.fields}
        return inp.assign(**{name: pd.Series(values, inp.index, dtype=object)
                             for name, values in columns.items()})  # fmt: skip


@dataclass(frozen=True)
class LexicalEngine:
    """Builds and opens a `LexicalIndex`: the default engine.

    Args:
        analyzer: The name of the analyzer; see `make_analyzer`.
        memory_mb: Bounds the memory of a build. It changes no byte of the index, so it is not part
            of the fingerprint.

    Raises:
        InputError: for an unknown analyzer, or too little memory.

    Example:
        >>> engine = LexicalEngine(analyzer="whitespace")
        >>> engine.build([Unit("u1", "", "old mill")], Path("mills"), corpus_fingerprint="mine")
        >>> engine.open(Path("mills")).document_frequency("mill")
        1
    """

    analyzer: str = "english"
    memory_mb: Runtime[int] = 1024
    name: str = "lexical"
    supports: ClassVar[frozenset[str]] = frozenset(
        {"bm25", "ql", "rm3", "grid", "operators", "weighted queries", "enriched documents"}
    )

    def __post_init__(self) -> None:
        make_analyzer(self.analyzer)
        check_int("engine.memory_mb", self.memory_mb, ge=LEAST_MEMORY_MB)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, make_analyzer(self.analyzer).fingerprint)

    def build(self, units: Documents, path: str | Path, *, corpus_fingerprint: str) -> None:
        """See `LexicalIndex.build`."""
        settings: dict[str, Any] = {"analyzer": self.analyzer, "memory_mb": self.memory_mb}
        build_index(as_units(units), Path(path), corpus_fingerprint=corpus_fingerprint, **settings)

    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> LexicalIndex:
        return LexicalIndex(path, corpus_fingerprint=corpus_fingerprint)
