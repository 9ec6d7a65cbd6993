"""The agent without a language model: the reference that any model has to beat."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

from soundingline.agents.base import (
    Agent,
    Clock,
    Episode,
    RunResources,
    run_episode,
    search_tool_of,
)
from soundingline.agents.keyword.answer_types import AnswerType, answer_type
from soundingline.agents.keyword.queries import first_queries
from soundingline.agents.keyword.research import Limits, Research
from soundingline.agents.keyword.vote import count_votes
from soundingline.agents.keyword.words import Rarity
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import check_int, check_number
from soundingline.toolkit.search.answers import format_answer
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Answer, Trajectory

_CITED = 3


class KeywordAgent(Agent):
    """Clue queries, browsing, reading, feedback, and a vote over typed answer candidates.

    `max_searches`: searches in all, of which up to `follow_ups` use terms from what was read;
    `pages`: further result pages of each search; `max_reads`: reading calls; `query_terms`: words
    of one query; `feedback_terms`: terms that a follow-up adds (0: no follow-up); `max_calls`: tool
    calls of any kind; `seconds`: time for a question (None: no limit), by `clock`.
    `document_frequency` (word -> documents with it) and `documents` (the corpus's size) come from
    the index and tell which words are rare; without both, spelling decides.

    The status is `completed`, or `steered` where time ran out or the tool closed and the answer was
    given from what had been seen. Nothing is random: question and tool decide the trajectory.
    Raises `InputError` for impossible values.
    """

    name = "keyword"
    reads_document_frequencies = True

    def __init__(
        self,
        *,
        max_searches: int = 6,
        pages: int = 1,
        max_reads: int = 4,
        follow_ups: int = 2,
        query_terms: int = 24,
        feedback_terms: int = 3,
        max_calls: int = 40,
        seconds: float | None = None,
        document_frequency: Callable[[str], int] | None = None,
        documents: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        check_int("max_searches", max_searches)
        check_int("query_terms", query_terms)
        check_int("max_calls", max_calls)
        check_int("pages", pages, ge=0)
        check_int("max_reads", max_reads, ge=0)
        check_int("follow_ups", follow_ups, ge=0)
        check_int("feedback_terms", feedback_terms, ge=0)
        if seconds is not None:
            check_number("seconds", seconds, gt=0)
        self.limits = Limits(
            searches=max_searches,
            pages=pages,
            reads=max_reads,
            query_terms=query_terms,
            feedback_terms=feedback_terms,
            calls=max_calls,
            seconds=seconds,
        )
        self.follow_ups = follow_ups if feedback_terms else 0
        self._rarity = Rarity(document_frequency, documents)
        self._clock = clock

    def bind(self, resources: RunResources) -> KeywordAgent:
        """See `Agent`: the collection's statistics."""
        bound = copy.copy(self)
        bound._rarity = Rarity(resources.document_frequency, resources.documents)
        return bound

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: one of them must take a query."""
        search_tool_of(tool)

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """Answer one question. Awaits nothing until its answer is read: all work is computation in
        this process, which threads would not speed up; run questions in parallel by processes, or
        a thread each."""
        return await run_episode(topic, tool, self._work, clock=self._clock)

    async def _work(self, episode: Episode) -> None:
        research = Research(episode, self._rarity, self.limits)
        early = max(1, self.limits.searches - self.follow_ups)
        terms = self.limits.query_terms
        research.search(first_queries(research.clues, limit=early, terms=terms))
        research.read(self.limits.reads - self.limits.reads // 2)
        for _ in range(self.follow_ups):
            research.follow_up()
        research.read(self.limits.reads)
        answer = conclude(research)
        text = format_answer(answer.explanation, answer.exact, answer.confidence, answer.citations)
        episode.finish(text, status="steered" if research.stopped else "completed")


def conclude(research: Research) -> Answer:
    """The answer with most votes; `unknown` with confidence 0 where nothing was found.

    Confidence is the vote's share times the part of the question that its best sentence covers.
    """
    sentences, trust = research.evidence.sentences, research.evidence.trust()
    votes = count_votes(answer_type(research.question), sentences, research.weights, trust)
    if not votes:
        votes = count_votes(AnswerType("phrase"), sentences, research.weights, trust)
    if not votes:
        return Answer("Nothing that was found speaks of the question.", "unknown", 0.0)
    best = votes[0]
    confidence = round(100 * best.share * best.coverage)
    return Answer(best.sentence, best.text, confidence, best.docids[:_CITED])
