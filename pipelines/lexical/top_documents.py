"""One search after another over the arrays of an index, from any number of threads."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from threading import Lock, Semaphore
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.build import cores
from pipelines.lexical.dirichlet import Dirichlet, collection_frequency
from pipelines.lexical.extra_postings import ExtraPostings
from pipelines.lexical.pruning import PrunedSearch
from pipelines.lexical.scoring import Numbered, Saturation, best
from pipelines.lexical.storage import Arrays, FrequentTerms, Postings, Statistics
from toolkit.checks import check_integer, check_number
from toolkit.errors import InputError

LENGTHS = ("lucene", "exact")
_TABLES_KEPT = 8
_SUMS_BYTES = 2 << 30
Tables = TypeVar("Tables", Saturation, Dirichlet, PrunedSearch)


class ScoreSums:
    """One float32 sum a document, for searches in any number of threads.

    A search takes an all-zero array and gives it back all zero. There are `searches_at_once` arrays
    at most; further searches wait, which costs no time, because they would share the same cores.
    """

    def __init__(self, postings: Postings, documents: int) -> None:
        self._postings, self._documents = postings, documents
        self._free: deque[NDArray[np.float32]] = deque()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._turns = Semaphore(searches_at_once(self._documents))

    def best(
        self,
        terms: NDArray[np.int64],
        add: Callable[[NDArray[np.float32]], None],
        depth: int,
        more: Sequence[tuple[Postings, NDArray[np.int64]]] = (),
        first: Callable[[NDArray[np.float32]], Numbered | None] = lambda sums: None,
    ) -> Numbered:
        """The `depth` documents of highest sum above 0 once `add` has filled the sums, which it
        may do for documents of `terms`, and of the terms of the postings in `more`, alone.

        `first` may know a shorter way to the same documents; it leaves the sums all zero."""
        if self._process != os.getpid():
            self._begin()  # after a fork nobody gives back the turns of the parent's threads
        with self._turns:
            try:
                sums = self._free.pop()
            except IndexError:
                sums = np.zeros(self._documents, np.float32)
            best_documents = first(sums)
            if best_documents is None:
                add(sums)
                most = min(depth, self._documents)
                best_documents = best(self._postings, terms, sums, most, more)
            self._free.append(sums)  # not reached on an interrupt, which may leave sums half-done
        return best_documents


def searches_at_once(documents: int) -> int:
    """How many searches of an index run at once: one a core, and no more than have room for their
    sums in 2 GiB; at least one."""
    return max(1, min(cores(), _SUMS_BYTES // (4 * max(documents, 1))))


class TopDocuments:
    """The best documents and their scores, by numbers of terms in ascending order, at least one."""

    def __init__(
        self, arrays: Arrays, statistics: Statistics, frequent: FrequentTerms | None = None
    ) -> None:
        self._arrays, self._statistics, self._frequent = arrays, statistics, frequent
        self._sums = ScoreSums(arrays, len(arrays.lengths))
        self._tables: OrderedDict[Hashable, Any] = OrderedDict()
        self._collection_frequencies: dict[int, int] = {}
        self._lock = Lock()

    def bm25(
        self,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        k1: float,
        b: float,
        depth: int,
        lengths: str,
    ) -> Numbered:
        """`weights`: weight times idf."""
        saturation = self._saturation(k1, b, lengths)

        def add(sums: NDArray[np.float32]) -> None:
            saturation.add(self._arrays, terms, weights, sums)

        frequent = self._frequent
        if frequent is None or saturation.shares is None:
            return self._sums.best(terms, add, depth)
        pruned = self._kept(
            (PrunedSearch, k1, b), lambda: PrunedSearch(self._arrays, frequent, saturation)
        )

        def search(sums: NDArray[np.float32]) -> Numbered | None:
            return pruned.search(terms, weights, sums, min(depth, len(sums)))

        return self._sums.best(terms, add, depth, first=search)

    def bm25_with(
        self, extra: ExtraPostings, k1: float, b: float, depth: int, lengths: str
    ) -> Numbered:
        """The same with the occurrences of terms in an overlay."""
        saturation = self._saturation(k1, b, lengths)

        def add(sums: NDArray[np.float32]) -> None:
            extra.add(saturation, self._arrays, sums)

        own = extra.base_terms[extra.base_terms >= 0]
        return self._sums.best(own, add, depth, [(extra.arrays, extra.in_overlay)])

    def _saturation(self, k1: float, b: float, lengths: str) -> Saturation:
        average = self._statistics.average_length
        return self._kept(
            (Saturation, k1, b, lengths),
            lambda: Saturation.of(k1, b, average, self._exact(lengths)),
        )

    def likelihood(
        self,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        mu: float,
        depth: int,
        lengths: str,
    ) -> Numbered:
        """Query likelihood; a document whose every part was cut to 0 is found with score 0."""
        dirichlet = self._kept(
            (Dirichlet, mu, lengths), lambda: Dirichlet.of(mu, self._exact(lengths))
        )
        frequencies = np.array([self._collection_frequency(term) for term in terms.tolist()])
        probabilities = (frequencies + 1) / (self._statistics.tokens + 1)

        def add(sums: NDArray[np.float32]) -> None:
            dirichlet.add(self._arrays, terms, weights, probabilities, sums)

        documents, scores = self._sums.best(terms, add, depth)
        return documents, Dirichlet.scores(scores)

    def _exact(self, lengths: str) -> NDArray[np.int32] | None:
        return self._arrays.lengths if lengths == "exact" else None

    def _kept(self, key: Hashable, make: Callable[[], Tables]) -> Tables:
        """The tables of these settings, made once and kept while they are among the newest."""
        with self._lock:
            tables: Tables | None = self._tables.pop(key, None)
            if tables is None:
                tables = make()
            self._tables[key] = tables
            if len(self._tables) > _TABLES_KEPT:
                self._tables.popitem(last=False)
        return tables

    def _collection_frequency(self, term: int) -> int:
        if term not in self._collection_frequencies:
            self._collection_frequencies[term] = collection_frequency(self._arrays, term)
        return self._collection_frequencies[term]


def check_settings(k1: float, b: float, depth: int, lengths: str) -> None:
    """`InputError` for settings of BM25 that have no meaning."""
    check_number("k1", k1, do="try 0.9 (default) or 25 (tuned)")
    check_number("b", b, most=1, do="try 0.4 (default) or 1 (tuned)")
    _check_ranking(depth, lengths)


def check_likelihood(mu: float, depth: int, lengths: str) -> None:
    """`InputError` for settings of query likelihood that have no meaning."""
    check_number("mu", mu, above=True, do="try 1000")
    _check_ranking(depth, lengths)


def _check_ranking(depth: int, lengths: str) -> None:
    check_integer("depth", depth, do="try 1000")
    if lengths not in LENGTHS:
        raise InputError(f"lengths='{lengths}'", valid=" or ".join(LENGTHS))
