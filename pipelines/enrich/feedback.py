"""Phrases from pseudo-relevance feedback: a baseline without a model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.enrich.phrases import PhraseSource
from soundingline.pipelines.lexical.analyzers import is_ngram
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.rm3 import check_feedback
from soundingline.pipelines.rewrite import QueryContext
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint

_UNITS_KEPT = 256


@dataclass(kw_only=True, eq=False, repr=False)
class FeedbackPhrases(PhraseSource):
    """The words of highest weight in the documents that a BM25 search with a query finds.

    Words are weighted as in RM3: the share of the word in the document times the document's score,
    summed over the documents. Numbers, n-grams and words that the query already has are left out. A
    word is spelled as in the first document of the index that has it, in its most frequent spelling
    there.

    Args:
        phrases: Words of a query.
        fb_docs: Feedback documents of a search.
        k1, b: Parameters of BM25.

    Raises:
        InputError: For impossible arguments, and for a collection without texts.
    """

    phrases: int = 10
    fb_docs: int = 10
    k1: float = 0.9
    b: float = 0.4

    def __post_init__(self) -> None:
        check_int("phrases", self.phrases)
        check_feedback(self.phrases, self.fb_docs, 0.5)
        # By collection: spellings of terms, and which terms may be proposed.
        self._spellings: dict[tuple[str, str], str] = {}
        self._words: dict[str, NDArray[np.bool_]] = {}

    @property
    def fingerprint(self) -> str:
        """Hash of the arguments."""
        return fingerprint("feedback", 3, self.phrases, self.fb_docs, self.k1, self.b)

    def for_queries(
        self, queries: Sequence[QueryContext], collection: Collection
    ) -> list[Sequence[str]]:
        return list(_Feedback(self, collection).of_queries([query.text for query in queries]))


class _Feedback:
    """One pass over queries of a collection."""

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

    def of_queries(self, texts: Sequence[str]) -> list[list[str]]:
        """The phrases of each query."""
        searches = [self._index.analyzer.terms(text) for text in texts]
        rankings = [self._found(terms) for terms in searches]
        # The documents of all queries are read together.
        every = np.unique(np.concatenate([np.empty(0, np.int32), *(n for n, _ in rankings)]))
        vectors = {}
        for number, (terms, frequencies) in zip(
            every.tolist(), self._base.vectors(every), strict=True
        ):
            usable = self._is_word[terms]
            vectors[number] = terms[usable], frequencies[usable]
        phrases = []
        for own, (numbers, scores) in zip(searches, rankings, strict=True):
            of_documents = [vectors[number] for number in numbers.tolist()]
            phrases.append(self._heaviest(own, of_documents, scores.tolist()))
        return phrases

    def _found(self, terms: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The best documents of a search and their scores."""
        if not terms:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        source = self._source
        return self._index.search(terms, source.k1, source.b, source.fb_docs)

    def _heaviest(
        self, own: Sequence[str], of_documents: Sequence[Any], scores: Sequence[float]
    ) -> list[str]:
        """The heaviest words of documents, of which terms and frequencies are given, without those
        of the query; equal ones in the order of the index."""
        if not of_documents:
            return []
        shares = [
            frequencies * (score / max(1, frequencies.sum()))
            for score, (_, frequencies) in zip(scores, of_documents, strict=True)
        ]
        every = np.concatenate([terms for terms, _ in of_documents])
        terms, positions = np.unique(every, return_inverse=True)
        weights = np.bincount(positions, np.concatenate(shares), len(terms))
        vocabulary = self._base.vocabulary
        weights[np.isin(terms, [vocabulary.find(term) for term in own])] = 0
        best = np.lexsort((terms, -weights))[: self._source.phrases]
        return [self._spelled(vocabulary[int(terms[n])]) for n in best if weights[n] > 0]

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
