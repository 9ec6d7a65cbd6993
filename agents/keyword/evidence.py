"""What the agent has seen of one question: sentences scored by how much of the question they cover,
and documents ranked by the queries that returned them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from soundingline.agents.keyword.clues import WORD, stem
from soundingline.toolkit.corpus.segmentation import rule_spans
from soundingline.toolkit.data import parent
from soundingline.toolkit.search.tool import Continuation

_DAMPING = 10  # of reciprocal rank fusion; small, since few queries are fused and the top matters
_FUSED_DEPTH = 50
_CONTEXT = 0.5  # share of the weight of a clue in the sentence before


class Sentence(NamedTuple):
    """A sentence with clue words. `score` is its coverage of the question (0 to 1), `matches` are
    the stems of its clue words with their character positions, and `topic` the stems of those in
    the title of its document."""

    docid: str
    text: str
    score: float
    matches: tuple[tuple[str, int], ...]
    topic: frozenset[str] = frozenset()


class Reader:
    """Finds sentences with clue words. One regular expression finds these words, so that a long
    document costs one scan, and only sentences with a clue word cost more.

    A clue (`weights` has the weight of each stem) in the title of a document counts in all its
    sentences, because articles call their topic `he` or `it`. One in the sentence before counts
    half.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._total = sum(weights.values())
        stems = sorted((re.escape(s.removesuffix("y")) for s in weights), key=len, reverse=True)
        self._pattern = re.compile(rf"\b(?:{'|'.join(stems)})", re.IGNORECASE) if stems else None

    def sentences(self, docid: str, title: str, text: str) -> list[Sentence]:
        """The sentences of `text` with at least one clue word, in order."""
        if self._pattern is None or not self._total:
            return []
        topic = frozenset(clue for clue, _ in self._matches(title))
        before: set[str] = set()
        result = []
        for part in (text[start:end] for start, end in rule_spans(text)):
            matches = self._matches(part) if self._pattern.search(part) else ()
            clues = {clue for clue, _ in matches}
            if clues:
                score = self._coverage(clues | topic, before)
                result.append(Sentence(docid, part, score, matches, topic))
            before = clues
        return result

    def _matches(self, text: str) -> tuple[tuple[str, int], ...]:
        return tuple(
            (clue, match.start())
            for match in WORD.finditer(text)
            if (clue := stem(match.group())) in self._weights
        )

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
        self._reader = Reader(weights)
        self._fused: dict[str, float] = {}
        self._units: dict[str, str] = {}
        self._best: dict[str, float] = {}
        self._shown: dict[str, dict[str, Sentence]] = {}
        self._opened: dict[str, dict[str, Sentence]] = {}
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

    def add(self, unit_id: str, title: str, text: str, *, opened: bool = False) -> None:
        """Add text of a unit: an excerpt from a page of results, which counts until the document
        itself is opened, or text of the document."""
        docid = parent(unit_id)
        noted = (self._opened if opened else self._shown).setdefault(docid, {})
        for sentence in self._reader.sentences(docid, title[:200], text):
            noted.setdefault(sentence.text, sentence)
            self._best[docid] = max(self._best.get(docid, 0.0), sentence.score)

    def visited(self, position: ReadingPosition, following: Continuation | None) -> None:
        """Note that a place was read. `following` opens what follows it in its document (None: no
        more)."""
        self._following[parent(position.unit_id)] = following

    def next_unread(self) -> ReadingPosition | None:
        """The most promising unread place; the rest of a read document counts half."""
        promises: dict[str, float] = {}
        for docid, score in self.trust().items():
            begun = docid in self._following
            if begun and self._following[docid] is None:
                continue
            promise = score * (0.5 + self._best.get(docid, 0.0))
            promises[docid] = promise * (0.5 if begun else 1.0)
        if not promises:
            return None
        best = max(promises, key=lambda docid: promises[docid])
        return ReadingPosition(self._units[best], self._following.get(best))

    def trust(self) -> dict[str, float]:
        """Docid -> fused rank score, 1 for the best, in the order of first appearance."""
        best = max(self._fused.values(), default=1.0)
        return {docid: score / best for docid, score in self._fused.items()}

    @property
    def sentences(self) -> list[Sentence]:
        """All sentences so far, each once per document."""
        noted = {**self._shown, **self._opened}
        return [sentence for of_document in noted.values() for sentence in of_document.values()]
