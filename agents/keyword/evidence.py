"""What the agent has seen of one question, and where it reads next.

Documents are ranked by the queries that returned them, and by how much of the question their best
sentence covers. Spelling alone decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from soundingline.agents.keyword.clues import WORD, crude_stem
from soundingline.toolkit.corpus.segmentation import rule_spans
from soundingline.toolkit.data import parent
from soundingline.toolkit.search.tool import Continuation

_DAMPING = 10  # of reciprocal rank fusion; small, since few queries are fused and the top matters
_FUSED_DEPTH = 50
_CONTEXT = 0.5  # share of the weight of a clue in the sentence before


class Coverage:
    """The share of a question that a sentence covers. One regular expression finds its clue words,
    so that a long document costs one scan, and only sentences with a clue word cost more.

    A clue (`weights` has the weight of each stem) in the title of a document counts in all its
    sentences, because articles call their topic `he` or `it`. One in the sentence before counts
    half.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._total = sum(weights.values())
        stems = sorted((re.escape(s.removesuffix("y")) for s in weights), key=len, reverse=True)
        self._pattern = re.compile(rf"\b(?:{'|'.join(stems)})", re.IGNORECASE) if stems else None

    def of_best_sentence(self, title: str, text: str) -> float:
        """The largest coverage (0 to 1) of a sentence of `text`; 0 if no clue word is in it."""
        if self._pattern is None or not self._total:
            return 0.0
        topic = self._clues(title)
        before: set[str] = set()
        best = 0.0
        for sentence in (text[start:end] for start, end in rule_spans(text)):
            clues = self._clues(sentence) if self._pattern.search(sentence) else set()
            if clues:
                best = max(best, self._coverage(clues | topic, before))
            before = clues
        return best

    def _clues(self, text: str) -> set[str]:
        return {crude_stem(word) for word in WORD.findall(text)} & self._weights.keys()

    def _coverage(self, clues: Set[str], around: Set[str]) -> float:
        # Exact sums: the order of a set differs from process to process.
        inside = math.fsum(self._weights[clue] for clue in clues)
        outside = math.fsum(self._weights[clue] for clue in around - clues)
        return (inside + _CONTEXT * outside) / self._total


class ReadingPosition(NamedTuple):
    """Somewhere to read: a unit, or (`continuation`) where the reading of its document goes on."""

    unit_id: str
    continuation: Continuation | None = None


class SeenEvidence:
    """The documents of one question, ranked by reciprocal rank fusion over its queries and by what
    their texts showed."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._coverage = Coverage(weights)
        self._fused: dict[str, float] = {}
        self._units: dict[str, str] = {}
        self._best: dict[str, float] = {}
        self._following: dict[str, Continuation | None] = {}

    def rank(self, ranking: Sequence[str]) -> None:
        """Add a ranking of unit ids. A document counts once, at its best rank."""
        seen: set[str] = set()
        for rank, unit_id in enumerate(ranking[:_FUSED_DEPTH], start=1):
            docid = parent(unit_id)
            if docid not in seen:
                seen.add(docid)
                self._fused[docid] = self._fused.get(docid, 0.0) + 1 / (_DAMPING + rank)
                self._units.setdefault(docid, unit_id)

    def add(self, unit_id: str, title: str, text: str) -> None:
        """Add text of a unit: an excerpt from a page of results, or text of its document."""
        docid = parent(unit_id)
        covered = self._coverage.of_best_sentence(title[:200], text)
        self._best[docid] = max(self._best.get(docid, 0.0), covered)

    def visited(self, position: ReadingPosition, following: Continuation | None) -> None:
        """Note that a place was read. `following` opens what follows it in its document (None: no
        more)."""
        self._following[parent(position.unit_id)] = following

    def next_unread(self) -> ReadingPosition | None:
        """The most promising unread place; the rest of a read document counts half."""
        promises: dict[str, float] = {}
        for docid, score in self._fused.items():
            begun = docid in self._following
            if begun and self._following[docid] is None:
                continue
            promise = score * (0.5 + self._best.get(docid, 0.0))
            promises[docid] = promise * (0.5 if begun else 1.0)
        if not promises:
            return None
        best = max(promises, key=lambda docid: promises[docid])
        return ReadingPosition(self._units[best], self._following.get(best))
