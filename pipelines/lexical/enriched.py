"""An index and an overlay searched as one: BM25 of documents that phrases enrich."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical import smallfloat
from pipelines.lexical.extra_postings import ExtraPostings
from pipelines.lexical.index import LexicalIndex, weights_of
from pipelines.lexical.merged_postings import EnrichedTerm, MergedIndex
from pipelines.lexical.overlay import Overlay
from pipelines.lexical.scoring import idf
from pipelines.lexical.storage import Arrays, Statistics
from pipelines.lexical.strings import to_bytes
from pipelines.lexical.top_documents import TopDocuments, check_settings
from toolkit.errors import InputError

if TYPE_CHECKING:
    from pipelines.lexical.retriever import BM25

COUNTED = ("length", "average", "df")


class EnrichedIndex:
    """`base` with the phrases of `overlay` as further occurrences of their terms.

    `counted` says where phrases count beside the term frequency:

    - `length`: their tokens are part of a document's length,
    - `average`: and of the average length,
    - `df`: a document that has a term in a phrase alone counts in the term's document frequency.

    All three, the default, is what SIRA's released code does. A term that only phrases have and
    that `df` does not count has the document frequency 0. Feedback (`vectors`) and texts are those
    of `base`. One pass over the postings of both: scores are those of an index of text and phrases
    together, to the last bit.
    """

    def __init__(
        self, base: LexicalIndex, overlay: Overlay, counted: Sequence[str] = COUNTED
    ) -> None:
        unknown = sorted(set(counted) - set(COUNTED))
        if unknown:
            raise InputError(f"counted has {', '.join(unknown)}", valid=", ".join(COUNTED))
        self.base, self.overlay = base, overlay
        self.counted = tuple(name for name in COUNTED if name in counted)
        self.analyzer, self.docnos, self.vocabulary = base.analyzer, base.docnos, base.vocabulary
        extra = overlay.lengths.astype(np.int64)
        with_terms = int((base.lengths + extra > 0).sum())
        statistics = base.statistics
        if "df" in self.counted:
            statistics = statistics._replace(documents_with_terms=with_terms)
        self.statistics = statistics
        self._terms: dict[str, EnrichedTerm] = {}

    @cached_property
    def _enriched(self) -> tuple[Arrays, Statistics]:
        """The base's arrays and statistics with the lengths that count."""
        arrays, statistics = self.base._arrays, self.base.statistics
        extra = self.overlay.lengths.astype(np.int64)
        lengths = arrays.lengths + extra
        # Documents without any token have no average length; then that of the phrases serves.
        if "average" in self.counted or not statistics.tokens:
            statistics = statistics._replace(
                tokens=statistics.tokens + int(extra.sum()),
                documents_with_terms=int((lengths > 0).sum()),
            )
        if "length" in self.counted:
            arrays = arrays._replace(
                lengths=lengths.astype(np.int32), length_codes=smallfloat.encode(lengths)
            )
        return arrays, statistics

    @cached_property
    def _top_documents(self) -> TopDocuments:
        return TopDocuments(*self._enriched)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each document, as BM25 counts them."""
        extra = self.overlay.lengths if "length" in self.counted else 0
        return (self.base.lengths + extra).astype(np.int32)

    @property
    def texts_path(self) -> str:
        return self.base.texts_path

    def __len__(self) -> int:
        return len(self.base)

    @overload
    def document_frequency(self, terms: str) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def document_frequency(self, terms: Iterable[str]) -> NDArray[np.int64]: ...
    def document_frequency(self, terms: str | Iterable[str]) -> int | NDArray[np.int64]:
        """See `LexicalIndex`; phrases count where `counted` has `df`."""
        if isinstance(terms, str):
            return self._term(terms).document_frequency
        return np.array([self._term(term).document_frequency for term in terms], dtype=np.int64)

    def search(
        self,
        query: Mapping[str, float] | Sequence[str],
        k1: float = 0.9,
        b: float = 0.4,
        depth: int = 1000,
        lengths: str = "lucene",
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """BM25 of index terms or of weights by index term; see `LexicalIndex.search`."""
        check_settings(k1, b, depth, lengths)
        base, extra, weights = self._weighted(query)
        if not len(weights):
            return np.empty(0, np.int32), np.empty(0, np.float32)
        added = ExtraPostings(self.overlay.arrays, base, extra, weights)
        return self._top_documents.bm25_with(added, k1, b, depth, lengths)

    def merged(self, queries: Iterable[Mapping[str, float] | Sequence[str]]) -> MergedIndex:
        """The postings of text and phrases together, in memory, of the terms of `queries`: what a
        search finds for them there is what it finds here, to the last bit of its scores."""
        names = {name for query in queries for name in weights_of(query)}
        terms = {name: self._term(name) for name in sorted(names, key=to_bytes)}
        known = {name: term for name, term in terms.items() if term.base >= 0 or term.extra >= 0}
        lengths, statistics = self._enriched
        return MergedIndex.of(
            self.base,
            self.overlay,
            known,
            lengths=lengths,
            statistics=statistics,
            documents_with_terms=self.statistics.documents_with_terms,
        )

    def vectors(
        self, numbers: NDArray[Any], largest_share: float = 1.0
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Terms of the documents themselves; see `LexicalIndex`."""
        return self.base.vectors(numbers, largest_share)

    def bm25(
        self, k1: float = 0.9, b: float = 0.4, depth: int = 1000, lengths: str = "lucene"
    ) -> BM25:
        """A PyTerrier transformer over this index; see `BM25`."""
        from pipelines.lexical.retriever import BM25

        return BM25(self, k1=k1, b=b, depth=depth, lengths=lengths)

    def ql(self, **settings: Any) -> NoReturn:
        """`InputError`: documents with phrases are ranked by BM25 alone."""
        raise InputError(
            "an index with phrases offers no query likelihood",
            valid="bm25",
            do="choose a retriever by BM25, or set enrichment.corpus=null",
        )

    def _weighted(
        self, query: Mapping[str, float] | Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Of the known terms of weight above 0, in the order of their bytes: numbers in the base
        and in the overlay (-1: not there), and weight times idf."""
        weights = weights_of(query)
        documents = self.statistics.documents_with_terms
        rows = [
            (term.base, term.extra, weights[name] * idf(documents, term.document_frequency))
            for name in sorted(weights, key=to_bytes)
            if (term := self._term(name)).base >= 0 or term.extra >= 0
        ]
        base, extra, products = zip(*rows, strict=True) if rows else ((), (), ())
        return (
            np.array(base, dtype=np.int64),
            np.array(extra, dtype=np.int64),
            np.array(products, dtype=np.float32),
        )

    def _term(self, name: str) -> EnrichedTerm:
        known = self._terms.get(name)
        if known is None:
            base = self.base._term(name)
            extra = self.overlay.term(name)
            frequency = base.document_frequency if base else 0
            if extra >= 0 and "df" in self.counted:
                frequency += self.overlay.new_documents(extra)
            known = self._terms[name] = EnrichedTerm(base.number if base else -1, extra, frequency)
        return known

    def __repr__(self) -> str:
        return f"EnrichedIndex({self.base!r}, '{self.overlay.path}', counted={self.counted})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnrichedIndex) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.base, str(self.overlay.path), self.counted)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.base, str(self.overlay.path.absolute()), self.counted


def _reopen(base: LexicalIndex, path: str, counted: Sequence[str]) -> EnrichedIndex:
    return EnrichedIndex(base, Overlay.open(path, base), counted)
