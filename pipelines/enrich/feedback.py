"""Phrases from pseudo-relevance feedback: a baseline without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.enrich.phrases import PhraseSource
from soundingline.pipelines.lexical.analyzers import is_ngram
from soundingline.pipelines.lexical.forward import Vector
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.rm3 import check_feedback
from soundingline.pipelines.lexical.storage import StringTable
from soundingline.pipelines.rewrite import QueryContext
from soundingline.pipelines.stage import Collection, LazyValues
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint


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
        # By collection: which terms may be proposed, and how each is spelled.
        self._shared = LazyValues()

    @property
    def fingerprint(self) -> str:
        """Hash of the arguments."""
        return fingerprint("feedback", 3, self.phrases, self.fb_docs, self.k1, self.b)

    def for_queries(
        self, queries: Sequence[QueryContext], collection: Collection
    ) -> list[Sequence[str]]:
        index, texts = collection.index, collection.texts
        if texts is None:
            raise InputError("phrases from feedback need the texts of the collection")
        if not isinstance(index, LexicalIndex):
            do = "set engine=lexical"
            raise InputError("phrases from feedback need our lexical index", do=do)
        base = index.base  # the words of the documents themselves, if phrases enrich them
        searches = [index.analyzer.terms(query.text) for query in queries]
        rankings = [index.search(terms, self.k1, self.b, self.fb_docs) for terms in searches]
        # The documents of all queries are read together.
        numbers = np.concatenate([np.empty(0, np.int32), *(found for found, _ in rankings)])
        vectors = iter(base.vectors(numbers))
        known = self._shared
        is_word = known.get(collection.fingerprint, lambda: _words(base.vocabulary))

        def spelled(term: str) -> str:
            """The most frequent spelling in the first document that has the term."""
            [unit] = texts([base.docnos[int(base.postings(term)[0][0])]])
            words = base.analyzer.words(unit.contents)
            counts = Counter(word.lower() for word in words if base.analyzer.term(word) == term)
            return min(counts, key=lambda word: (-counts[word], word), default=term)

        phrases: list[Sequence[str]] = []
        for own, (found, scores) in zip(searches, rankings, strict=True):
            of_query = islice(vectors, len(found))
            heaviest = self._heaviest(own, of_query, scores, is_word, base.vocabulary)
            keys = [(collection.fingerprint, term) for term in heaviest]
            phrases.append([known.get(key, partial(spelled, key[1])) for key in keys])
        return phrases

    def _heaviest(
        self,
        own: Sequence[str],
        vectors: Iterable[Vector],
        scores: NDArray[np.float32],
        is_word: NDArray[np.bool_],
        vocabulary: StringTable,
    ) -> list[str]:
        """The heaviest words of the documents with these vectors and scores, without those of the
        query; equal ones in the order of the index."""
        every, shares = [np.empty(0, np.int32)], [np.empty(0)]
        for (terms, frequencies), score in zip(vectors, scores.tolist(), strict=True):
            usable = is_word[terms]
            every.append(terms[usable])
            shares.append(frequencies[usable] * (score / max(1, frequencies[usable].sum())))
        terms, positions = np.unique(np.concatenate(every), return_inverse=True)
        weights = np.bincount(positions, np.concatenate(shares), len(terms))
        weights[np.isin(terms, [vocabulary.find(term) for term in own])] = 0
        best = np.lexsort((terms, -weights))[: self.phrases]
        return [vocabulary[int(terms[n])] for n in best if weights[n] > 0]


def _words(vocabulary: StringTable) -> NDArray[np.bool_]:
    """Which terms may be proposed: neither n-grams nor numbers."""
    words = (not is_ngram(term) and not term.isdecimal() for term in vocabulary)
    return np.fromiter(words, np.bool_, len(vocabulary))
