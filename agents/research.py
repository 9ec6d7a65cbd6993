"""The steps of the agent without a model on one question: search, browse, read, follow up.

Every step asks first whether it may still call a tool; none of them decides the order of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from agents.base import Episode
from agents.clues import Query, find_clues, follow_up, weights
from agents.feedback import feedback_terms
from agents.notes import Notes
from agents.sentences import coverage
from agents.toolbox import Shown, Toolbox
from agents.words import stem, words

_T = TypeVar("_T")
_PATIENCE = 3  # refusals in a row after which the tool is taken to be closed


class Limits(NamedTuple):
    """The most that one question may cost: see `KeywordAgent`."""

    searches: int
    pages: int
    reads: int
    query_terms: int
    feedback_terms: int
    calls: int
    seconds: float | None


class Research:
    """One question's state and steps."""

    def __init__(self, episode: Episode, rarity: Callable[[str], float], limits: Limits) -> None:
        self.question = episode.topic.text
        self.clues = find_clues(self.question, rarity)
        self.weights = weights(self.clues)
        self.notes = Notes(self.weights)
        self._episode = episode
        self._rarity = rarity
        self._limits = limits
        self._tools = Toolbox(episode)
        self._asked = set(self.weights)
        self._searches = self._reads = self._refused = 0

    @property
    def stopped(self) -> bool:
        """Whether time ran out or the tool closed, which leaves only to answer."""
        late = self._limits.seconds is not None and self._episode.seconds >= self._limits.seconds
        return late or self._refused >= _PATIENCE

    @property
    def _may_call(self) -> bool:
        return not self.stopped and len(self._episode.tool.calls) < self._limits.calls

    def search(self, queries: Sequence[Query]) -> None:
        """Ask the queries, as many as the limits allow, and look at further pages of each."""
        for query in queries:
            if self._searches == self._limits.searches or not self._may_call:
                return
            self._searches += 1
            found = self._kept(self._tools.search(query.text, query.reason))
            if found is not None:
                self.notes.rank(found.ranking)
                self._take_in(found)
                self._browse(found)

    def _browse(self, found: Shown) -> None:
        offset = len(found.pieces) + 1
        for _ in range(self._limits.pages):
            more = found.search_id and offset <= len(found.ranking) and self._tools.browses
            if not more or not self._may_call:
                return
            page = self._kept(
                self._tools.browse(
                    found.search_id, offset, f"Look further down, from rank {offset}."
                )
            )
            if page is None or not page.pieces:
                return
            self._take_in(page)
            offset += len(page.pieces)

    def _take_in(self, page: Shown) -> None:
        for piece in page.pieces:
            self.notes.show(*piece)

    def read(self, reads: int) -> None:
        """Read the most promising places until `reads` reading calls were made in all."""
        while self._reads < min(reads, self._limits.reads) and self._tools.reads and self._may_call:
            place = self.notes.next_place()
            if place is None:
                return
            self._reads += 1
            found = self._kept(
                self._tools.read(
                    place.unit_id, place.offset, "Read it: its ranks and text promise most."
                )
            )
            if found is not None:
                self.notes.read(place.unit_id, found.title, found.text)
            self.notes.visited(place, found.following if found else 0)

    def follow_up(self) -> None:
        """Search with terms that were met while reading and not asked for before."""
        sentences = self.notes.trusted()
        limit = self._limits.feedback_terms
        terms = feedback_terms(sentences, self._asked, self._rarity, limit=limit)
        query = follow_up(
            self.clues,
            coverage(sentences, self.weights),
            terms,
            limit=self._limits.query_terms,
        )
        if query is not None:
            self._asked.update(stem(word) for term in terms for word in words(term))
            self.search([query])

    def _kept(self, found: _T | None) -> _T | None:
        """Count refusals in a row."""
        self._refused = self._refused + 1 if found is None else 0
        return found
