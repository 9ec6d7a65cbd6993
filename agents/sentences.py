"""Sentences of read text, scored by how much of the question they cover."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from agents.words import WORD, stem
from toolkit.corpus.sentences import rule_spans


class Sentence(NamedTuple):
    """A sentence that holds clue words. `score` is its coverage (0 to 1); `matches` are the clue
    stems in it, with their character positions; `topic` those of its document's title."""

    docid: str
    text: str
    score: float
    matches: tuple[tuple[str, int], ...]
    topic: frozenset[str] = frozenset()


class Reader:
    """Finds sentences that speak of the question. One regular expression finds clue words, so that
    a long document costs one scan and only sentences with a clue word cost more."""

    def __init__(self, weights: Mapping[str, float], *, context: float = 0.5) -> None:
        """`weights`: clue stem -> weight. `context`: the share of a clue's weight that counts when
        it is not in the sentence, but in the sentence before. A clue in the document's title counts
        whole everywhere in it, because articles call their topic `he` or `it`."""
        self._weights = weights
        self._total = sum(weights.values())
        self._context = context
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
        inside = sum(self._weights[clue] for clue in clues)
        outside = sum(self._weights[clue] for clue in around - clues)
        return (inside + self._context * outside) / self._total


def coverage(sentences: Sequence[Sentence], stems: Mapping[str, float]) -> dict[str, float]:
    """Stem -> the score of the best sentence that holds it; 0 where none does."""
    best = dict.fromkeys(stems, 0.0)
    for sentence in sentences:
        for clue, _ in sentence.matches:
            best[clue] = max(best[clue], sentence.score)
    return best
