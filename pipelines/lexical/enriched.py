"""An index and an overlay searched as one: BM25 of documents that phrases enrich."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical import smallfloat
from pipelines.lexical.extra_postings import ExtraPostings
from pipelines.lexical.index import LexicalIndex, weights_of
from pipelines.lexical.overlay import Overlay
from pipelines.lexical.scoring import idf
from pipelines.lexical.top_documents import TopDocuments, check_settings
from toolkit.errors import InputError

if TYPE_CHECKING:
    from pipelines.lexical.retriever import BM25

COUNTED = ("length", "average", "df")
_NO_TERMS = np.empty(0, np.int64)


class EnrichedIndex:
    """`base` with the phrases of `overlay` as further occurrences of their terms.

    `counted` says where phrases count beside the term frequency:

    - `length`: their tokens are part of a document's length,
    - `average`: and of the average length,
    - `df`: a document that has a term in a phrase alone counts in the term's document frequency.

    All three, the default, is what SIRA's released code does. A term that only phrases have and
    that `df` does not count has the document frequency 0. Feedback (`vectors`) and texts are those
    of `base`. Scores are exact: one pass over the base's postings and one over the overlay's.
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
        self._terms: dict[str, tuple[int, int, int]] = {}

    @cached_property
    def _top_documents(self) -> TopDocuments:
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
        return TopDocuments(arrays, statistics)

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
            return self._term(terms)[2]
        return np.array([self._term(term)[2] for term in terms], dtype=np.int64)

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
        own: list[tuple[int, float]] = []
        added: list[tuple[int, float]] = []
        documents = self.statistics.documents_with_terms
        for name, weight in weights_of(query).items():
            base, extra, frequency = self._term(name)
            value = weight * idf(documents, frequency)
            if base >= 0:
                own.append((base, value))
            if extra >= 0:
                added.append((extra, value))
        if not own and not added:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        more = ExtraPostings(self.overlay.arrays, *_columns(added)) if added else None
        return self._top_documents.bm25(*_columns(own), k1, b, depth, lengths, more)

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

    def _term(self, term: str) -> tuple[int, int, int]:
        """A term's number in the base and in the overlay (-1 where it has none), and its document
        frequency."""
        known = self._terms.get(term)
        if known is None:
            base = self.base._term(term)
            extra = self.overlay.term(term)
            frequency = base.document_frequency if base else 0
            if extra >= 0 and "df" in self.counted:
                frequency += self.overlay.new_documents(extra)
            known = self._terms[term] = (base.number if base else -1, extra, frequency)
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


def _columns(terms: list[tuple[int, float]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Numbers of terms, ascending, and their weights."""
    ordered = sorted(terms)
    numbers = np.array([number for number, _ in ordered], dtype=np.int64)
    return numbers, np.array([weight for _, weight in ordered], dtype=np.float32)
