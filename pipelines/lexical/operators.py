"""Quoted phrases and excluded words of a query, as an option of BM25 (`operators=phrases`).

    "tide mill"   only units in which the analysed words of the phrase are adjacent
    -mill         only units without the word
    -"tide mill"  only units without the phrase

All phrases are required and all exclusions apply, as in web search engines. They filter: the score
is BM25 of the query's words, which are also those of its phrases, but not the excluded ones. As in
Elasticsearch's `simple_query_string`, nothing in a query is an error:

- Quotation marks are `"` and the curly ones. An opening mark without a closing one is white space.
- A minus is an operator only where a word or a quoted phrase begins: `well-known` and `3 - 2` have
  none.
- Words that the analyzer leaves out, such as stop words, are left out of phrases and of texts:
  `"state of the art"` also finds `state art`. A phrase without any other word filters nothing.
- A query of exclusions alone finds nothing, as in Lucene.

Postings have no positions. The units that have all words of a phrase are therefore verified by
their texts, in the order of the ranking and no further than its depth. Phrases of an enrichment are
not text of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.analyzers import SEPARATOR, Analyzer
from soundingline.toolkit.data import Unit
from soundingline.toolkit.queries import ParsedQuery

_BATCH = 64  # units whose texts are read together


class Filter:
    """Which units of a lexical `index` a query's phrases and exclusions let through. `texts` gives
    units by their ids."""

    def __init__(
        self, query: ParsedQuery, index: Any, texts: Callable[[Sequence[str]], list[Unit]]
    ) -> None:
        self._index, self._texts = index.base, texts
        self._required = self._clauses(query.phrases)
        self._excluded = self._clauses(query.excluded)

    def first(self, numbers: NDArray[Any], count: int | None = None) -> NDArray[np.int64]:
        """The positions of the first `count` units (None: of all) that pass, in their order."""
        possible = np.ones(len(numbers), np.bool_)
        for _, having in self._required:
            possible &= np.isin(numbers, having)
        for words, having in self._excluded:
            if len(words) == 1:
                possible &= ~np.isin(numbers, having)
        positions = np.flatnonzero(possible)
        passed: list[int] = []
        for position in np.split(positions, range(_BATCH, len(positions), _BATCH)):
            passed += position[self._verified(numbers[position])].tolist()
            if count is not None and len(passed) >= count:
                break
        return np.array(passed[:count], dtype=np.int64)

    def _clauses(self, texts: Sequence[str]) -> list[tuple[tuple[str, ...], NDArray[Any]]]:
        """The words of each clause, and the units that have all of them."""
        clauses = []
        for text in texts:
            words = tuple(_words(self._index.analyzer, text))
            if words:
                terms = dict.fromkeys(self._index.analyzer.terms(" ".join(text.split(SEPARATOR))))
                having = (self._index.postings(term)[0] for term in terms)
                clauses.append((words, reduce(np.intersect1d, having)))
        return clauses

    def _verified(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each unit has the phrases of several words, and none of the excluded ones."""
        required = [words for words, _ in self._required if len(words) > 1]
        excluded = [(words, having) for words, having in self._excluded if len(words) > 1]
        passed = np.ones(len(numbers), np.bool_)
        read = np.full(len(numbers), bool(required))
        for _, having in excluded:
            read |= np.isin(numbers, having)
        positions = np.flatnonzero(read)
        if not len(positions):
            return passed
        units = self._texts(self._index.docnos.take(numbers[positions]).tolist())
        for position, unit in zip(positions.tolist(), units, strict=True):
            parts = [_words(self._index.analyzer, part) for part in unit.contents.split(SEPARATOR)]
            has_all = all(_has(parts, words) for words in required)
            passed[position] = has_all and not any(_has(parts, words) for words, _ in excluded)
        return passed


def _words(analyzer: Analyzer, text: str) -> list[str]:
    """The single terms of a text, in order."""
    return list(filter(None, map(analyzer.term, analyzer.words(text))))


def _has(parts: Sequence[Sequence[str]], phrase: tuple[str, ...]) -> bool:
    """Whether the phrase is in one of the parts of a text."""
    size = len(phrase)
    return any(
        tuple(words[start : start + size]) == phrase
        for words in parts
        for start in range(len(words) - size + 1)
    )
