"""Locators of evidence: the passages of a document in which it meets a requirement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.lexical.bm25 import TfWeights
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.stage import LRUCache, Texts
from soundingline.toolkit.data import first_units, parent
from soundingline.toolkit.errors import check_int
from soundingline.toolkit.search.literature import Located

_K1, _B = 0.9, 0.4
# The passages in which a document meets a requirement, best first.
Passages = list[list[list[Located]]]


class Ranges(NamedTuple):
    """The passages of some documents: document i has the units `first[i]` up to `last[i]`
    (exclusive) of the index, which begin at `start[i]` in an array of all of them."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    start: NDArray[np.int64]

    @property
    def total(self) -> int:
        return int((self.last - self.first).sum())

    @property
    def units(self) -> list[int]:
        pairs = zip(self.first.tolist(), self.last.tolist(), strict=True)
        return [unit for first, last in pairs for unit in range(first, last)]


class LexicalLocator:
    """Finds evidence by BM25 with k1=0.9 and b=0.4, and the statistics of the index. Thread-safe.

    Args:
        index: An index of passages, or of documents, which are their own evidence. The units of a
            document are adjacent, as in every index that `build` makes.
    """

    _least: ClassVar[float] = 0.0  # a passage with this score contains no term

    def __init__(self, index: LexicalIndex) -> None:
        self.index = index
        self._norms = TfWeights.of(_K1, _B, index.statistics.average_length).norms

    def locate(self, docids: Sequence[str], requirements: Sequence[str], most: int = 3) -> Passages:
        """For each document and each requirement the `most` best passages that contain a term of
        the requirement, best first, equal scores in the order of the text. `KeyError` for an
        unknown document."""
        check_int("most", most)
        ranges = self.ranges(docids)
        scores = self.scores(requirements, ranges)
        return [
            [self._best(first, row[start : start + last - first], most) for row in scores]
            for first, last, start in zip(
                ranges.first.tolist(), ranges.last.tolist(), ranges.start.tolist(), strict=True
            )
        ]

    def scores(
        self, requirements: Sequence[str], ranges: Ranges
    ) -> Sequence[NDArray[np.floating[Any]]]:
        """For each requirement the score of every unit in the ranges: float [units]."""
        every = []
        for requirement in requirements:
            scores = np.zeros(ranges.total)
            for term, count in Counter(self.index.analyzer.terms(requirement)).items():
                weight = count * self.index.idf(term)
                within = self.index.postings_within(term, ranges.first, ranges.last)
                owners, units, frequencies = within
                norms = self._norms[self.index.length_codes[units]]
                positions = ranges.start[owners] + units - ranges.first[owners]
                scores[positions] += weight * frequencies / (frequencies + norms)
            every.append(scores)
        return every

    def ranges(self, docids: Sequence[str]) -> Ranges:
        """The units of the documents. `KeyError` for an unknown document."""
        docnos = self.index.docnos
        first = np.full(len(docids), -1, dtype=np.int64)
        last = first.copy()
        for position, docid in enumerate(docids):
            numbers = docnos.numbers(first_units(docid))
            if numbers.max() < 0:
                raise KeyError(docid)
            end = first[position] = int(numbers[numbers >= 0][0])
            while end < len(docnos) and parent(docnos[end]) == docid:
                end += 1
            last[position] = end
        sizes = last - first
        return Ranges(first, last, np.cumsum(sizes) - sizes)

    def _best(self, first: int, scores: NDArray[np.floating[Any]], most: int) -> list[Located]:
        """The best of the units from number `first`, whose scores these are."""
        order = np.argsort(-scores, kind="stable")[:most]
        return [
            Located(self.index.docnos[first + unit], float(scores[unit]))
            for unit in order.tolist()
            if scores[unit] > self._least
        ]


class DenseLocator(LexicalLocator):
    """Finds evidence by the dot product of the vectors of requirement and passage. Thread-safe.

    Every passage has a score, so that a document has evidence for each requirement. Vectors of
    passages are computed in batches when a document is first requested.

    `index` is as for `LexicalLocator`, and says which passages a document has; `encoder` encodes
    requirements as queries and passages, by their `texts`, as documents; the newest `kept` vectors
    of passages are in memory.
    """

    _least = -np.inf

    def __init__(
        self, index: LexicalIndex, encoder: Dense, texts: Texts, kept: int = 20_000
    ) -> None:
        super().__init__(index)
        self.encoder, self._texts, self._vectors = encoder, texts, LRUCache(kept)

    def scores(
        self, requirements: Sequence[str], ranges: Ranges
    ) -> Sequence[NDArray[np.floating[Any]]]:
        if not requirements or not ranges.total:
            return [np.zeros(ranges.total, np.float32) for _ in requirements]
        vectors = np.stack(self._vectors.get(ranges.units, self._encoded))
        return list(np.stack(self.encoder.encode_queries(requirements)) @ vectors.T)

    def _encoded(self, units: Sequence[int]) -> list[NDArray[np.float32]]:
        texts = self._texts([self.index.docnos[unit] for unit in units])
        return self.encoder.encode([unit.contents for unit in texts])
