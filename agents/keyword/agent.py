"""The agent without a language model: its searches and reads, and the simulated reader that answers
from what these showed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from soundingline.agents.base import (
    Agent,
    Episode,
    RunResources,
    search_tool_of,
)
from soundingline.agents.keyword.clues import Rarity, find_clues, make_queries
from soundingline.agents.keyword.evidence import SeenEvidence
from soundingline.toolkit.errors import check_int
from soundingline.toolkit.runs.run_folder import question_of
from soundingline.toolkit.search.answers import ShownText, format_answer, shown_texts
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import DocumentPage, ResultsPage, ToolResult
from soundingline.toolkit.trajectory import Answer

if TYPE_CHECKING:
    from soundingline.toolkit.evaluation.funnel import NeededTexts

_MOST_READS = 4  # reading calls of a question
_QUERY_TERMS = 24  # words of one query
_MOST_CALLS = 40  # tool calls of a question
_PATIENCE = 3  # refusals in a row after which the tool is taken to be closed


@dataclass(frozen=True)
class SimulatedReader:
    """Answers a question right if the texts that an agent was shown have what the answer needs
    (the measure `answer_shown`), and says `unknown` otherwise. It never guesses and never misreads,
    so that accuracy isolates retrieval. It cites nothing, because the final ranking of an agent has
    cited documents first: its measures would know the judgements.

    Args:
        needed: what must be shown for each question.
        answers: the accepted answers by qid, the fullest first.

    Example:
        >>> from soundingline.toolkit.data import StatedFact
        >>> from soundingline.toolkit.evaluation.funnel import NeededTexts
        >>> fact = StatedFact("Mill", named=("the old mill",), titled=("It was built in 1820",))
        >>> reader = SimulatedReader(NeededTexts({}, {"q1": [fact]}, {}), {"q1": ["1820"]})
        >>> reader("q1", [ShownText("d1", "Mill", "It was built in 1820.")]).exact
        '1820'
    """

    needed: NeededTexts
    answers: Mapping[str, Sequence[str]]

    def __call__(self, qid: str, shown: Iterable[ShownText]) -> Answer:
        """The answer to a question, or to a repeat of it, after these texts, with confidence 100 or
        0."""
        qid = qid if qid in self.answers else question_of(qid)
        sources = self.needed.sources(qid, shown)
        stated = sum(docid is not None for docid in sources)
        facts = f"{stated} of {len(sources)} needed facts were"
        answer = "the answer was" if stated else "the answer was not"
        shown_part = facts if qid in self.needed.facts else answer
        explanation = f"Simulated reader: {shown_part} shown."
        if stated < len(sources):
            return Answer(explanation, "unknown", 0.0)
        return Answer(explanation, self.answers[qid][0], 100.0)


@dataclass(kw_only=True, eq=False, repr=False)
class KeywordAgent(Agent):
    """Queries of clues, reading, and the `SimulatedReader` of the run (`bind`), which then reads
    what the searches and reads have shown.

    Args:
        max_searches: searches of a question.

    The rarity of a word comes from the collection's index (`bind`), else from its form.
    A question takes at most 40 tool calls, 4 of which read. The status is `completed`, or `steered`
    if the tool closed and the answer is based on what was seen until then. Without a reader the
    answer is `unknown`. Deterministic.

    Raises:
        InputError: for impossible values.

    Example:
        >>> [call.name for call in asyncio.run(KeywordAgent(max_searches=1).run(topic, tool)).calls]
        ['search', 'read_document']
    """

    name = "keyword"
    reads_document_frequencies = True
    uses_reader = True

    max_searches: int = 3

    def __post_init__(self) -> None:
        check_int("max_searches", self.max_searches, ge=0)
        self.rarity = Rarity()
        self.reader: Callable[[str, Iterable[ShownText]], Answer] | None = None

    def bind(self, resources: RunResources) -> KeywordAgent:
        """See `Agent`: binds the collection's statistics and the simulated reader."""
        bound = copy.copy(self)
        bound.rarity = Rarity(resources.document_frequency, resources.documents)
        bound.reader = resources.reader
        return bound

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: one of the tools must take a query."""
        search_tool_of(tool)

    async def work(self, episode: Episode) -> None:
        """Answer one question. Nothing is awaited: all work is computation, which threads would not
        speed up. Run questions in parallel by processes."""
        search = KeywordSearch(self, episode)
        search.search()
        search.read()
        answer = Answer("No reader is bound.", "unknown", 0.0)
        if self.reader is not None:
            answer = self.reader(episode.topic.qid, shown_texts(episode.tool.calls))
        text = format_answer(answer.explanation, answer.exact, answer.confidence, answer.citations)
        episode.finish(text, status="steered" if search.stopped else "completed")


class KeywordSearch:
    """The search of `agent` for one question."""

    def __init__(self, agent: KeywordAgent, episode: Episode) -> None:
        self._agent, self._episode = agent, episode
        self._question = episode.topic.text
        self._clues = find_clues(self._question, agent.rarity)
        self._weights = {clue.stem: clue.weight for clue in self._clues}
        self._evidence = SeenEvidence(self._weights)
        self._refused = 0  # calls in a row

    @property
    def stopped(self) -> bool:
        """Whether the tool closed."""
        return self._refused >= _PATIENCE

    def _may_call(self) -> bool:
        return not self.stopped and len(self._episode.tool.calls) < _MOST_CALLS

    def search(self) -> None:
        """Run the queries of the question and note what their pages show."""
        limit = self._agent.max_searches
        for query in make_queries(self._clues, limit=limit, terms=_QUERY_TERMS):
            if not self._may_call():
                return
            self._episode.tool.reasoning = f"The question is: {self._question} {query.reason}"
            result = self._counted(self._episode.search(query.text, query.reason))
            if result is None:
                continue
            self._evidence.rank(result.call.ranking)
            for hit in result.page.hits if isinstance(result.page, ResultsPage) else ():
                text = (hit.text or hit.snippet).strip()
                title = hit.title or text.partition("\n")[0]
                self._evidence.add(hit.unit_id, title, text)

    def read(self) -> None:
        """Read the most promising places."""
        if self._episode.tool.read_tool is None:
            return
        reason = "Read it: its ranks and text promise most."
        for _ in range(_MOST_READS):
            unread = self._evidence.next_unread() if self._may_call() else None
            if unread is None:
                return
            if unread.continuation is None:
                result = self._counted(self._episode.read(unread.unit_id, reason))
            else:
                result = self._counted(self._episode.follow(unread.continuation, reason))
            page = result.page if result else None
            if isinstance(page, DocumentPage):
                text = "\n".join(page.lines).strip()
                self._evidence.add(unread.unit_id, page.title, text)
                self._evidence.visited(unread, page.continuation)
            else:
                self._evidence.visited(unread, None)

    def _counted(self, result: ToolResult | None) -> ToolResult | None:
        """The result, after counting refusals in a row."""
        self._refused = self._refused + 1 if result is None else 0
        return result
