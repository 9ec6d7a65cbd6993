"""The agent without a language model: its steps on a question, and its answer."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from soundingline.agents.base import (
    Agent,
    Clock,
    Episode,
    RunResources,
    run_episode,
    search_tool_of,
)
from soundingline.agents.keyword.answers import AnswerType, answer_type, candidates, count_votes
from soundingline.agents.keyword.clues import (
    Clue,
    Query,
    Rarity,
    find_clues,
    first_queries,
    heaviest,
    is_content,
    stem,
    weights,
    words,
)
from soundingline.agents.keyword.evidence import Evidence, ReadingPosition, Sentence, coverage
from soundingline.toolkit.data import Hit, Topic
from soundingline.toolkit.errors import check_int, check_number
from soundingline.toolkit.search.answers import format_answer
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import DocumentPage, ResultsPage, ToolResult
from soundingline.toolkit.trajectory import Answer, Trajectory

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


def follow_up(
    clues: Sequence[Clue],
    covered: Mapping[str, float],
    terms: Sequence[str],
    *,
    limit: int,
) -> Query | None:
    """A query of `terms` (learnt from reading) and of the clues that reading did not cover.

    `covered` gives each stem's share of coverage (0 to 1). All clues serve where all are covered.
    None where there is nothing new to ask.
    """
    if not terms:
        return None
    open_clues = [clue for clue in clues if covered.get(clue.stem, 0.0) < 0.5] or list(clues)
    chosen = heaviest(open_clues, max(1, limit - len(terms)))
    text = " ".join([*terms, *(clue.text for clue in chosen)])
    return Query(text, f"Follow up on {', '.join(terms)}, found while reading.")


def feedback_terms(
    sentences: Sequence[Sentence],
    known: Collection[str],
    rarity: Callable[[str], float],
    *,
    limit: int,
    best: int = 20,
) -> list[str]:
    """Pseudo-relevance feedback: at most `limit` terms (names or single words) that the `best`
    sentences hold and that are not `known` (stems asked before), the most telling first.

    A term's weight is the squared coverage of its best sentence (not a sum, which favours what is
    common to many weak sentences) times its rarity; a name is as rare as its rarest word, and takes
    the place of the words in it.
    """
    if limit < 1:
        return []
    scores: dict[str, float] = {}
    as_written: dict[str, str] = {}
    for sentence in sorted(sentences, key=lambda s: -s.score)[:best]:
        for term in sorted(_terms(sentence.text)):
            key = " ".join(stem(word) for word in words(term))
            as_written.setdefault(key, term)
            score = sentence.score**2 * max(map(rarity, words(term)))
            scores[key] = max(scores.get(key, 0.0), score)
    chosen: list[str] = []
    known_stems = set(known)
    for key in sorted(scores, key=lambda key: (-scores[key], key)):
        if scores[key] > 0 and not known_stems.issuperset(key.split()):
            chosen.append(as_written[key])
            known_stems.update(key.split())
        if len(chosen) == limit:
            break
    return chosen


def _terms(text: str) -> set[str]:
    """Names, and content words outside them."""
    names = {name.text for name in candidates("name", text)}
    inside = {word for name in names for word in words(name)}
    return names | {word for word in words(text) if is_content(word) and word not in inside}


def shown_text(hit: Hit) -> tuple[str, str]:
    """Title and text that a page shows of a hit. Where it has no title of its own, the first line
    of its text serves."""
    text = (hit.text or hit.snippet).strip()
    return hit.title or text.partition("\n")[0], text


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
