"""Phrases from pseudo-relevance feedback: a baseline without a model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.enrich.phrases import PhraseSource, QueryContext, batches
from soundingline.pipelines.lexical.analyzers import is_ngram
from soundingline.pipelines.lexical.bm25 import idf
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.rm3 import check_feedback
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint

_BATCH = 512  # documents whose neighbours' terms are read together
_UNITS_KEPT = 256

Numbers = NDArray[np.int32]


@dataclass(kw_only=True, eq=False, repr=False)
class FeedbackPhrases(PhraseSource):
    """The words of highest weight in the documents that a BM25 search finds.

    A query is searched as it is; a document is searched with its terms of highest tf-idf, and is
    not among its own results. The words of the best documents are weighted as in RM3: the share of
    the word in the document times the document's score, summed over the documents. Numbers, n-grams
    and words that the text already has are left out. A word is spelled as in the first document of
    the index that has it, in its most frequent spelling there.

    Args:
        phrases: Words of a text.
        fb_docs: Feedback documents of a search.
        query_terms: Terms with which a document is searched.
        k1, b: Parameters of BM25.

    Raises:
        InputError: For impossible arguments, and for a collection without texts.
    """

    phrases: int = 10
    fb_docs: int = 10
    query_terms: int = 20
    k1: float = 0.9
    b: float = 0.4

    def __post_init__(self) -> None:
        check_int("phrases", self.phrases)
        check_feedback(self.phrases, self.fb_docs, 0.5)
        check_int("query_terms", self.query_terms)
        # By collection: spellings of terms, and which terms may be proposed.
        self._spellings: dict[tuple[str, str], str] = {}
        self._words: dict[str, NDArray[np.bool_]] = {}

    @property
    def fingerprint(self) -> str:
        """Hash of the arguments."""
        settings = (self.phrases, self.fb_docs, self.query_terms, self.k1, self.b)
        return fingerprint("feedback", 2, *settings)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        feedback = _Feedback(self, collection)
        for batch in batches((unit.unit_id for unit in units), _BATCH):
            yield from zip(batch, feedback.of_documents(batch), strict=True)

    def for_queries(
        self, queries: Sequence[QueryContext], collection: Collection
    ) -> list[Sequence[str]]:
        return list(_Feedback(self, collection).of_queries([query.text for query in queries]))


class _Search(NamedTuple):
    """The terms of a search, those that are not proposed, and the number of the document that must
    not be among the results (-1: none)."""

    terms: Sequence[str]
    excluded: Numbers
    own: int = -1


class _Feedback:
    """One pass over documents or queries of a collection."""

    def __init__(self, source: FeedbackPhrases, collection: Collection) -> None:
        if collection.texts is None:
            raise InputError("phrases from feedback need the texts of the collection")
        if not isinstance(collection.index, LexicalIndex):
            raise InputError(
                "phrases from feedback need our lexical index", do="set engine=lexical"
            )
        self._source, self._texts = source, collection.texts
        self._index: LexicalIndex = collection.index
        # The words of the documents themselves, if phrases enrich them.
        self._base: LexicalIndex = collection.index.base
        self._collection = collection.fingerprint
        self._spellings_of = lru_cache(_UNITS_KEPT)(self._read_spellings)

    @property
    def _is_word(self) -> NDArray[np.bool_]:
        """Which terms of the vocabulary may be proposed: neither n-grams nor numbers."""
        known = self._source._words
        if self._collection not in known:
            vocabulary = self._base.vocabulary
            words = (not is_ngram(term) and not term.isdecimal() for term in vocabulary)
            known[self._collection] = np.fromiter(words, np.bool_, len(vocabulary))
        return known[self._collection]

    @cached_property
    def _idf(self) -> NDArray[np.float64]:
        # 0 for a term of one document, which finds no other.
        frequencies, positions = np.unique(self._base.document_frequencies, return_inverse=True)
        documents = len(self._base)
        values = [idf(documents, df) if df > 1 else 0.0 for df in frequencies.tolist()]
        return np.array(values)[positions]

    def of_documents(self, unit_ids: Sequence[str]) -> list[list[str]]:
        """The phrases of each unit; none if the index lacks it."""
        numbers = self._base.docnos.numbers(unit_ids)
        known = numbers[numbers >= 0]
        vectors = dict(zip(known.tolist(), self._base.vectors(known), strict=True))
        nothing = np.empty(0, np.int32)
        searches = []
        for number in numbers.tolist():
            terms, frequencies = vectors.get(number, (nothing, nothing))
            weights = frequencies * self._idf[terms]
            heaviest = self._heaviest(terms, weights, self._source.query_terms)
            searches.append(_Search(heaviest, terms, number))
        return self._phrases(searches)

    def of_queries(self, texts: Sequence[str]) -> list[list[str]]:
        """The phrases of each query."""
        searches = []
        for text in texts:
            terms = self._index.analyzer.terms(text)
            numbers = [self._base.vocabulary.find(term) for term in terms]
            searches.append(_Search(terms, np.array(numbers, dtype=np.int32)))
        return self._phrases(searches)

    def _phrases(self, searches: Sequence[_Search]) -> list[list[str]]:
        rankings = [self._neighbours(search) for search in searches]
        every = np.unique(np.concatenate([np.empty(0, np.int32), *(n for n, _ in rankings)]))
        vectors = {}
        for number, vector in zip(every.tolist(), self._base.vectors(every), strict=True):
            usable = self._is_word[vector[0]]
            vectors[number] = vector[0][usable], vector[1][usable]
        phrases = []
        for search, (numbers, scores) in zip(searches, rankings, strict=True):
            terms, weights = self._weighted(numbers, scores, vectors)
            usable = ~np.isin(terms, search.excluded)
            heaviest = self._heaviest(terms[usable], weights[usable], self._source.phrases)
            phrases.append([self._spelled(term) for term in heaviest])
        return phrases

    def _neighbours(self, search: _Search) -> tuple[Numbers, NDArray[np.float32]]:
        """The best other documents and their scores."""
        source = self._source
        if not search.terms:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        numbers, scores = self._index.search(search.terms, source.k1, source.b, source.fb_docs + 1)
        others = numbers != search.own
        return numbers[others][: source.fb_docs], scores[others][: source.fb_docs]

    def _weighted(
        self, numbers: Numbers, scores: NDArray[np.float32], vectors: dict[int, Any]
    ) -> tuple[Numbers, NDArray[np.float64]]:
        """The terms of the documents, ascending, and the weight of each over all of them."""
        if not len(numbers):
            return np.empty(0, np.int32), np.empty(0, np.float64)
        of_documents = [vectors[number] for number in numbers.tolist()]
        shares = [
            frequencies * (score / max(1, frequencies.sum()))
            for score, (_, frequencies) in zip(scores.tolist(), of_documents, strict=True)
        ]
        every = np.concatenate([terms for terms, _ in of_documents])
        terms, positions = np.unique(every, return_inverse=True)
        weights: NDArray[Any] = np.bincount(positions, np.concatenate(shares), len(terms))
        return terms, weights

    def _heaviest(self, numbers: Numbers, weights: NDArray[np.float64], count: int) -> list[str]:
        """The `count` heaviest terms that are not n-grams; equal ones in the order of the index."""
        heaviest: list[str] = []
        for index in np.lexsort((numbers, -weights)).tolist():
            if len(heaviest) == count or weights[index] <= 0:
                break
            term = self._base.vocabulary[int(numbers[index])]
            if not is_ngram(term):
                heaviest.append(term)
        return heaviest

    def _spelled(self, term: str) -> str:
        """The spelling of a term, which is stored in the source."""
        key, known = (self._collection, term), self._source._spellings
        if key not in known:
            first = int(self._base.postings(term)[0][0])
            known[key] = self._spellings_of(first).get(term, term)
        return known[key]

    def _read_spellings(self, number: int) -> dict[str, str]:
        """The most frequent spelling of each term of a document."""
        analyzer = self._base.analyzer
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        [unit] = self._texts([self._base.docnos[number]])
        for word in analyzer.words(unit.contents):
            if (term := analyzer.term(word)) is not None:
                counts[term][word.lower()] += 1
        return {
            term: min(words, key=lambda word: (-words[word], word))
            for term, words in counts.items()
        }
