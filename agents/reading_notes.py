"""What the agent without a model has learnt on one question: ranks, sentences, what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agents.sentences import Reader, Sentence
from toolkit.contracts import Continuation, parent

_DAMPING = 10  # of reciprocal rank fusion; small, since few queries are fused and the top matters
_FUSED_DEPTH = 50


class Place(NamedTuple):
    """Somewhere to read: a unit, or (`continuation`) where the reading of its document goes on."""

    unit_id: str
    continuation: Continuation | None = None


class Notes:
    """Grows while a question is worked on. Documents are ranked by reciprocal rank fusion over the
    queries asked, raised by what their texts showed."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._reader = Reader(weights)
        self._fused: dict[str, float] = {}
        self._units: dict[str, str] = {}
        self._best: dict[str, float] = {}
        self._shown: dict[str, dict[str, Sentence]] = {}
        self._read: dict[str, dict[str, Sentence]] = {}
        self._following: dict[str, Continuation | None] = {}

    def rank(self, ranking: Sequence[str]) -> None:
        """A fresh ranking of unit ids; a document counts once, at its best rank."""
        seen: set[str] = set()
        for rank, unit_id in enumerate(ranking[:_FUSED_DEPTH], start=1):
            docid = parent(unit_id)
            if docid not in seen:
                seen.add(docid)
                self._fused[docid] = self._fused.get(docid, 0.0) + 1 / (_DAMPING + rank)
                self._units.setdefault(docid, unit_id)

    def show(self, unit_id: str, title: str, text: str) -> None:
        """Text that a page of results shows of a unit. It may be cut and joined at will, so it
        serves only until the document itself is read."""
        self._add(self._shown, unit_id, title, text)

    def read(self, unit_id: str, title: str, text: str) -> None:
        """Text of the document of a unit."""
        self._add(self._read, unit_id, title, text)

    def _add(
        self, notes: dict[str, dict[str, Sentence]], unit_id: str, title: str, text: str
    ) -> None:
        docid = parent(unit_id)
        noted = notes.setdefault(docid, {})
        for sentence in self._reader.sentences(docid, title[:200], text):
            noted.setdefault(sentence.text, sentence)
            self._best[docid] = max(self._best.get(docid, 0.0), sentence.score)

    def visited(self, place: Place, following: Continuation | None) -> None:
        """A place was read; `following` shows what follows it in its document (None: nothing)."""
        self._following[parent(place.unit_id)] = following

    def next_place(self) -> Place | None:
        """The most promising unread place; the rest of a read document counts half."""
        promises: dict[str, float] = {}
        for docid, score in self.trust().items():
            begun = docid in self._following
            if begun and self._following[docid] is None:
                continue
            promise = score * (0.5 + self._best.get(docid, 0.0))
            promises[docid] = promise * (0.5 if begun else 1.0)
        best = max(promises, key=lambda docid: promises[docid], default=None)
        return None if best is None else Place(self._units[best], self._following.get(best))

    def trust(self) -> dict[str, float]:
        """Docid -> fused rank score, 1 for the best, in order of first sight."""
        best = max(self._fused.values(), default=1.0)
        return {docid: score / best for docid, score in self._fused.items()}

    @property
    def sentences(self) -> list[Sentence]:
        """All sentences noted so far, each once a document, in the documents' order of sight."""
        noted = {**self._shown, **self._read}
        return [sentence for of_document in noted.values() for sentence in of_document.values()]

    def trusted(self) -> list[Sentence]:
        """The sentences, their scores multiplied by their documents' trust."""
        trust = self.trust()
        return [s._replace(score=s.score * trust.get(s.docid, 0.0)) for s in self.sentences]
