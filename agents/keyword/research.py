"""The steps of the agent without a model on one question: search, browse, read, follow up.

Every step asks first whether it may still call a tool; none of them decides the order of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from soundingline.agents.base import Episode
from soundingline.agents.keyword.evidence import Evidence, ReadingPosition, coverage
from soundingline.agents.keyword.queries import (
    Query,
    feedback_terms,
    find_clues,
    follow_up,
    weights,
)
from soundingline.agents.keyword.words import stem, words
from soundingline.toolkit.data import Hit
from soundingline.toolkit.search.tool import DocumentPage, ResultsPage, ToolResult

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
        self.evidence = Evidence(self.weights)
        self._episode = episode
        self._rarity = rarity
        self._limits = limits
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
            result = self._counted(self._episode.search(query.text, query.reason))
            if result is not None:
                self.evidence.rank(result.call.ranking)
                self._browse(self._take_in(result))

    def _browse(self, page: ResultsPage | None) -> None:
        for _ in range(self._limits.pages):
            if page is None or page.continuation is None or not page.hits or not self._may_call:
                return
            reason = f"Look further down, from rank {page.hits[-1].rank + 1}."
            page = self._take_in(self._counted(self._episode.follow(page.continuation, reason)))

    def _take_in(self, result: ToolResult | None) -> ResultsPage | None:
        """Note what a page of hits shows."""
        if result is None or not isinstance(result.page, ResultsPage):
            return None
        for hit in result.page.hits:
            title, text = shown_text(hit)
            self.evidence.show(hit.unit_id, title, text)
        return result.page

    def read(self, reads: int) -> None:
        """Read the most promising places until `reads` reading calls were made in all."""
        if self._episode.tool.read_tool is None:
            return
        while self._reads < min(reads, self._limits.reads) and self._may_call:
            unread = self.evidence.next_unread()
            if unread is None:
                return
            self._reads += 1
            result = self._counted(self._open(unread))
            page = result.page if result else None
            if isinstance(page, DocumentPage):
                self.evidence.read(unread.unit_id, page.title, "\n".join(page.lines).strip())
                self.evidence.visited(unread, page.continuation)
            else:
                self.evidence.visited(unread, None)

    def _open(self, unread: ReadingPosition) -> ToolResult | None:
        reason = "Read it: its ranks and text promise most."
        if unread.continuation is not None:
            return self._episode.follow(unread.continuation, reason)
        return self._episode.read(unread.unit_id, reason)

    def follow_up(self) -> None:
        """Search with terms that were met while reading and not asked for before."""
        sentences = self.evidence.trusted()
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

    def _counted(self, result: ToolResult | None) -> ToolResult | None:
        """The result; counts refusals in a row."""
        self._refused = self._refused + 1 if result is None else 0
        return result


def shown_text(hit: Hit) -> tuple[str, str]:
    """Title and text that a page shows of a hit. Where it has no title of its own, the first line
    of its text serves."""
    text = (hit.text or hit.snippet).strip()
    return hit.title or text.partition("\n")[0], text
