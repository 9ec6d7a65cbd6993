"""The inverted index as an object: built once, opened by mapping, searched by many threads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from pipelines.index_folder import REBUILD, OpenedIndex, read_manifest
from pipelines.lexical.analyzer import Analyzer, make_analyzer
from pipelines.lexical.build import build_index
from pipelines.lexical.scoring import idf
from pipelines.lexical.storage import (
    KIND,
    TERMS,
    TEXTS,
    TITLES,
    UNITS,
    Statistics,
    load_arrays,
    load_frequent,
)
from pipelines.lexical.strings import Names, StringTable
from pipelines.lexical.top_documents import TopDocuments, check_likelihood, check_settings
from pipelines.lexical.vectors import DocumentTerms
from toolkit.checks import check_weights
from toolkit.contracts import Unit
from toolkit.errors import InputError

if TYPE_CHECKING:
    import pyterrier as pt

    from pipelines.lexical.retriever import BM25, QueryLikelihood


class _Term(NamedTuple):
    number: int
    document_frequency: int
    idf: float


def as_unit(row: Unit | Mapping[str, Any]) -> Unit:
    """A unit as it is, or a row of PyTerrier's (`docno`, `text`, perhaps `title`) as one."""
    if isinstance(row, Unit):
        return row
    try:
        return Unit(str(row["docno"]), str(row.get("title") or ""), str(row["text"] or ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"a document came as {row!r:.200}", valid="a mapping with docno and text, or a Unit"
        ) from error


class LexicalIndex(OpenedIndex):
    """An inverted index over units of text, for ranking with Lucene's statistics.

    Make one with `LexicalIndex.build` or `LexicalIndex.open`. A document's number is its position
    in the input; `docnos` gives its unit id, `vocabulary` the index terms in order of their bytes.
    Safe for many threads; pickled, it travels as its path.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        super().__init__(path, manifest)
        self.analyzer: Analyzer = make_analyzer(manifest["analyzer"])
        self.docnos = Names(StringTable(path / UNITS))
        counts = manifest["counts"]
        self.statistics = Statistics(*(counts[name] for name in Statistics._fields))
        self._arrays = load_arrays(path)
        self.vocabulary = StringTable(path / TERMS)
        self._document_terms = DocumentTerms(
            path, self._arrays, self.statistics.documents_with_terms, self.analyzer.longest
        )
        self._terms: dict[str, _Term | None] = {}
        frequent = load_frequent(path, self._arrays)
        self._top_documents = TopDocuments(self._arrays, self.statistics, frequent)

    @classmethod
    def build(
        cls,
        units: Iterable[Unit | Mapping[str, Any]],
        path: str | Path,
        *,
        analyzer: str = "english",
        memory_mb: int = 1024,
        processes: int | None = None,
        corpus_fingerprint: str = "",
        total: int | None = None,
        description: str = "indexing",
        keep_texts: bool = True,
    ) -> LexicalIndex:
        """Index the `contents` of `units`, in their order, and open the result.

        A unit is a `Unit`, or a row of PyTerrier's: a mapping with `docno`, `text` and perhaps
        `title`. `keep_texts` puts the texts beside the index, so that re-rankers find them.

        `path` is a folder that appears when it is whole; an index that is there already is
        replaced. `memory_mb` bounds what the build keeps beside the text in flight and about
        35 bytes a unit. `processes`, this one included, analyse text (default: one a core); until
        others start, a thread of this one cuts text ahead, on a second core where there is one.
        `total`, the number of units if known, and `description` are for the progress bar. The
        same units give the same bytes, whatever the memory and the processes.

        Raises `InputError` for an empty corpus, 2^31 units or more (before any work where their
        number is known), a repeated `unit_id`, a full disk, an unknown analyzer; whatever the
        iterable raises passes through. In each case nothing is left.
        """
        build_index(
            map(as_unit, units),
            Path(path),
            analyzer=analyzer,
            memory_mb=memory_mb,
            processes=processes,
            corpus_fingerprint=corpus_fingerprint,
            total=len(units) if total is None and isinstance(units, Sized) else total,
            description=description,
            keep_texts=keep_texts,
        )
        return cls.open(path, corpus_fingerprint=corpus_fingerprint)

    @classmethod
    def open(cls, path: str | Path, *, corpus_fingerprint: str | None = None) -> LexicalIndex:
        """Map an index. `InputError` if there is none, if it is not whole, of another format
        version, of another analyzer's making, or not of the corpus `corpus_fingerprint`."""
        path = Path(path)
        manifest = read_manifest(path, KIND, corpus_fingerprint)
        index = cls(path, manifest)
        if manifest["analyzer_fingerprint"] != index.analyzer.fingerprint:
            raise InputError(
                f"the lexical index at '{path}' was made by another version of the analyzer "
                f"'{index.analyzer.name}'",
                do=REBUILD,
            )
        return index

    @property
    def texts_path(self) -> str:
        """The index's folder where it keeps its texts, else empty."""
        return str(self.path.absolute()) if self.manifest.get("texts") else ""

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """The units, in the order of their ids; `KeyError` for an unknown id, `InputError` where
        the index keeps no texts."""
        if not self.texts_path:
            raise InputError(
                f"the lexical index at '{self.path}' keeps no texts",
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
        return StringTable(self.path / TITLES), StringTable(self.path / TEXTS)

    def text_loader(self, fields: str | Sequence[str] = "*", **options: Any) -> pt.Transformer:
        """For `pt.text.get_text(index)`: adds `text` and `title`, or the columns of `fields`."""
        from pipelines.lexical.texts import TextLoader

        return TextLoader(self, ("text", "title") if fields == "*" else fields)

    def __len__(self) -> int:
        return self.statistics.documents

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each document."""
        return self._arrays.lengths

    @overload
    def document_frequency(self, terms: str) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def document_frequency(self, terms: Iterable[str]) -> NDArray[np.int64]: ...
    def document_frequency(self, terms: str | Iterable[str]) -> int | NDArray[np.int64]:
        """In how many documents an index term occurs (0 if it is unknown); for several terms, an
        array. Analyse text first: `index.analyzer.terms(text)`."""
        if isinstance(terms, str):
            entry = self._term(terms)
            return entry.document_frequency if entry else 0
        return np.array([self.document_frequency(term) for term in terms], dtype=np.int64)

    @property
    def document_frequencies(self) -> NDArray[np.int64]:
        """In how many documents each term of `vocabulary` occurs."""
        return np.diff(self._arrays.offsets)

    def postings(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The numbers of the documents that hold an index term, ascending, and its frequencies."""
        entry = self._term(term)
        if entry is None:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        arrays = self._arrays
        first, last = arrays.offsets[entry.number : entry.number + 2].tolist()
        frequencies = arrays.frequencies[first:last].astype(np.int32)
        large = slice(*np.searchsorted(arrays.large_positions, [first, last]).tolist())
        frequencies[arrays.large_positions[large] - first] = arrays.large_values[large]
        return arrays.documents[first:last].astype(np.int32), frequencies

    def idf(self, term: str) -> float:
        """Lucene's inverse document frequency of an index term; 0 where it is unknown."""
        entry = self._term(term)
        return entry.idf if entry else 0.0

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
        entry, arrays = self._term(term), self._arrays
        if entry is None or not len(first):
            return (np.empty(0, np.int64),) * 3
        begin, end = arrays.offsets[entry.number : entry.number + 2].tolist()
        documents = arrays.documents[begin:end]
        low = np.searchsorted(documents, first.astype(documents.dtype))
        counts = np.searchsorted(documents, last.astype(documents.dtype)) - low
        owners = np.repeat(np.arange(len(first)), counts)
        positions = np.arange(len(owners)) + np.repeat(low - np.cumsum(counts) + counts, counts)
        frequencies = arrays.frequencies[begin + positions].astype(np.int64)
        large = np.flatnonzero(frequencies == 0)
        indexes = np.searchsorted(arrays.large_positions, begin + positions[large])
        frequencies[large] = arrays.large_values[indexes]
        return owners, documents[positions].astype(np.int64), frequencies

    def search(
        self,
        query: Mapping[str, float] | Sequence[str],
        k1: float = 0.9,
        b: float = 0.4,
        depth: int = 1000,
        lengths: str = "lucene",
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """BM25 of index terms (a repeated one counts again) or of weights by index term.

        Gives the numbers of the documents with a score above 0, `depth` at most, and their
        scores: highest first, equal scores in the order of the documents.
        """
        check_settings(k1, b, depth, lengths)
        terms, weights = self._weighted(query)
        if not len(terms):
            return np.empty(0, np.int32), np.empty(0, np.float32)
        return self._top_documents.bm25(terms, weights, k1, b, depth, lengths)

    def search_likelihood(
        self,
        query: Mapping[str, float] | Sequence[str],
        mu: float = 1000.0,
        depth: int = 1000,
        lengths: str = "lucene",
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """As `search`, by query likelihood with Dirichlet smoothing (see `Dirichlet`), in which a
        document with a query term may score 0."""
        check_likelihood(mu, depth, lengths)
        known = self._known(query)
        if not known:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        terms = np.array([term.number for term, _ in known], dtype=np.int64)
        weights = np.array([weight for _, weight in known], dtype=np.float32)
        return self._top_documents.likelihood(terms, weights, mu, depth, lengths)

    def vectors(
        self, numbers: NDArray[Any], largest_share: float = 1.0
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Terms of documents: for each document number, the numbers of its terms (positions in
        `vocabulary`, ascending) and their frequencies. Terms in more than `largest_share` of the
        documents are left out. Read from files beside the index where that is at most a tenth and
        postings are many, else one walk through the postings, whatever the number of documents.
        """
        limit = math.floor(largest_share * self.statistics.documents_with_terms)
        return self._document_terms.vectors(numbers, limit)

    def ql(self, mu: float = 1000.0, depth: int = 1000, lengths: str = "lucene") -> QueryLikelihood:
        """A PyTerrier transformer over this index; see `QueryLikelihood`."""
        # Here, so that an index alone needs no PyTerrier.
        from pipelines.lexical.retriever import QueryLikelihood

        return QueryLikelihood(self, mu=mu, depth=depth, lengths=lengths)

    def bm25(
        self, k1: float = 0.9, b: float = 0.4, depth: int = 1000, lengths: str = "lucene"
    ) -> BM25:
        """A PyTerrier transformer over this index; see `BM25`."""
        from pipelines.lexical.retriever import BM25

        return BM25(self, k1=k1, b=b, depth=depth, lengths=lengths)

    def _term(self, term: str) -> _Term | None:
        try:
            return self._terms[term]
        except KeyError:
            number = self.vocabulary.find(term)
            entry = None
            if number >= 0:
                first, last = self._arrays.offsets[number : number + 2].tolist()
                total = self.statistics.documents_with_terms
                entry = _Term(number, last - first, idf(total, last - first))
            return self._terms.setdefault(term, entry)

    def _weighted(
        self, query: Mapping[str, float] | Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Numbers of the known terms of weight above 0, ascending, and weight times idf."""
        known = self._known(query)
        return (
            np.array([term.number for term, _ in known], dtype=np.int64),
            np.array([weight * term.idf for term, weight in known], dtype=np.float32),
        )

    def _known(self, query: Mapping[str, float] | Sequence[str]) -> list[tuple[_Term, float]]:
        """The known terms of weight above 0 and their weights, in the order of the index, so that
        a score does not depend on the order of the words."""
        known: list[tuple[_Term, float]] = []
        for name, weight in weights_of(query).items():
            term = self._term(name)
            if term is not None:
                known.append((term, weight))
        known.sort()
        return known


def weights_of(query: Mapping[str, float] | Sequence[str]) -> dict[str, float]:
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
