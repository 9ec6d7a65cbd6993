"""The navigator without a language model: the reference that any model has to beat.

Rounds of retrieval, evidence and scores, after PaSaMaster (Du et al., 2026, section 2); what its
model decides is decided by rules here.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence

from agents.base import BaseAgent, Clock, Episode, Resources, play
from agents.keyword.words import Rarity
from agents.literature.clauses import Clause, find_clauses
from toolkit.checks import check_integer
from toolkit.contracts import (
    DocumentPage,
    ResultsPage,
    SearchTool,
    ToolResult,
    Topic,
    Trajectory,
)
from toolkit.errors import InputError
from toolkit.search.answers import format_answer

_FUSION = 60  # of reciprocal rank fusion


class Navigator(BaseAgent):
    """Requirements from the question's clauses; one query a clause and one of all together;
    evidence for each requirement in the best documents; a second round over links and what is
    uncovered.

    - `rounds`: the first retrieves by the clauses; each later one follows the links of documents
      that the question names and of the best so far, and asks again for the clauses that those meet
      least. `pool`: new documents a round whose evidence is located. `seeds`: documents whose links
      are followed.
    - A document's score is (the mean of its requirements' scores + its retrieval score) / 2, each 0
      to 1, as in the paper with reciprocal rank fusion in the place of a scorer's probability, for
      which there is no model here. An excluded requirement scores 1 less what its evidence says.
    - `listed`: documents that the answer lists, the best first. `max_calls`: tool calls; where they
      are used up, the answer is given from what was scored.

    Nothing is random. `InputError` for impossible values, and for an interface without evidence.
    """

    name = "navigator"

    def __init__(
        self,
        *,
        rounds: int = 2,
        pool: int = 40,
        seeds: int = 10,
        listed: int = 50,
        max_calls: int = 2000,
        clock: Clock = time.monotonic,
    ) -> None:
        for name, value in (("rounds", rounds), ("pool", pool), ("seeds", seeds)):
            check_integer(name, value)
        check_integer("listed", listed)
        check_integer("max_calls", max_calls)
        self.rounds, self.pool, self.seeds, self.listed = rounds, pool, seeds, listed
        self.max_calls = max_calls
        self._rarity = Rarity()
        self._clock = clock

    def bind(self, resources: Resources) -> Navigator:
        """See `BaseAgent`: the collection's statistics."""
        bound = copy.copy(self)
        bound._rarity = Rarity(resources.document_frequency, resources.documents)
        return bound

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """Answer one question with a list of documents."""
        return await play(topic, tool, self._work, clock=self._clock)

    async def _work(self, episode: Episode) -> None:
        survey = Survey(episode, find_clauses(episode.topic.text, self._rarity), self.max_calls)
        for number in range(self.rounds):
            if number:
                survey.follow_links(self.seeds)
                survey.ask_uncovered(self.seeds)
            else:
                survey.ask_clauses()
            survey.judge(self.pool)
        documents = survey.ranked()[: self.listed]
        best = survey.table(documents[:5])
        text = format_answer(best, "", None, documents[:1], documents)
        episode.finish(text, status="steered" if survey.stopped else "completed")


class Survey:
    """One question's candidates, their retrieval scores, and what each requirement gets in them.
    `stopped`: the tool calls were used up before all was done."""

    def __init__(self, episode: Episode, clauses: Sequence[Clause], max_calls: int) -> None:
        self.clauses = clauses
        self.scores: dict[str, list[float]] = {}
        self.stopped = False
        self._episode, self._max_calls = episode, max_calls
        self._retrieval: dict[str, float] = {}
        self._tools = {spec["name"] for spec in episode.tool.specs()}
        if not {"search", "locate"} <= self._tools:
            raise InputError(
                "the navigator needs an interface that searches and locates evidence",
                valid="tool=literature",
                do="choose it",
            )

    @property
    def wanted(self) -> list[Clause]:
        """The requirements that do not exclude."""
        return [clause for clause in self.clauses if not clause.excluded] or list(self.clauses)

    def ask_clauses(self) -> None:
        """One query of all that is wanted, and one a clause where there are several."""
        together = " ".join(clause.query for clause in self.wanted)
        self._search(together, "All requirements together.")
        for clause in self.wanted if len(self.wanted) > 1 else ():
            self._search(clause.query, "One requirement.")

    def ask_uncovered(self, head: int) -> None:
        """Ask again for the requirement that the best documents meet least, with the words of the
        one that they meet best."""
        best = [docid for docid in self.ranked() if docid in self.scores][:head]
        if len(self.wanted) < 2 or not best:
            return
        covered = {
            number: sum(self.scores[docid][number] for docid in best)
            for number, clause in enumerate(self.clauses)
            if not clause.excluded
        }
        least, most = min(covered, key=covered.__getitem__), max(covered, key=covered.__getitem__)
        query = f"{self.clauses[least].query} {self.clauses[most].query}"
        self._search(query, "The requirement that is met least.")

    def follow_links(self, seeds: int) -> None:
        """Documents linked with those that the question names, and with the best so far."""
        if "expand" not in self._tools:
            return
        if "resolve" in self._tools:
            findings = "\n".join(clause.text for clause in self.wanted)
            named = self._call("resolve", {"findings": findings}, "Does the question name any?")
            docids = named.call.shown if named else ()
            if docids:
                self._expand(docids, "in", "Who refers to what the question names?")
        best = self.ranked()[:seeds]
        if best:
            self._expand(best, "both", "What are the best linked with?")

    def judge(self, pool: int) -> None:
        """Locate evidence for every requirement in the best documents that have no scores yet."""
        fresh = [docid for docid in self._by_retrieval() if docid not in self.scores]
        for docid in fresh[:pool]:
            if len(self._episode.tool.calls) + len(self.clauses) > self._max_calls:
                self.stopped = True  # A document that is judged in part would have no score.
                return
            self.scores[docid] = [self._requirement(docid, clause) for clause in self.clauses]

    def ranked(self) -> list[str]:
        """Documents with scores, the best first; then the others as they were retrieved."""
        order = self._by_retrieval()
        judged = [docid for docid in order if docid in self.scores]
        judged.sort(key=lambda docid: -self.score(docid))
        return judged + [docid for docid in order if docid not in self.scores]

    def score(self, docid: str) -> float:
        """See `Navigator`."""
        row = self.scores[docid]
        retrieval = self._retrieval[docid] / max(self._retrieval.values())
        return (sum(row) / len(row) + retrieval) / 2

    def table(self, docids: Iterable[str]) -> str:
        """Documents by requirements, in a line each."""
        rows = [
            f"{docid} ({', '.join(f'{value:.2f}' for value in self.scores[docid])})"
            for docid in docids
            if docid in self.scores
        ]
        requirements = "; ".join(
            f"{'not ' if clause.excluded else ''}{clause.text}" for clause in self.clauses
        )
        return f"Requirements: {requirements}. Met by the best: {'; '.join(rows) or 'none'}."

    def _requirement(self, docid: str, clause: Clause) -> float:
        arguments = {"docid": docid, "requirement": clause.query or clause.text}
        result = self._call("locate", arguments, "Where does it speak of this?")
        page = result.details if result else None
        lines = page.lines if isinstance(page, DocumentPage) else ()
        met = max((clause.met_by(line) for line in lines), default=0.0)
        return 1 - met if clause.excluded else met

    def _search(self, query: str, reason: str) -> None:
        result = self._call("search", {"query": query}, reason)
        if result is not None:
            self._take(list(dict.fromkeys(result.call.ranking)))

    def _expand(self, docids: Sequence[str], direction: str, reason: str) -> None:
        arguments = {"docids": " ".join(docids), "direction": direction}
        result = self._call("expand", arguments, reason)
        if result is not None and isinstance(result.details, ResultsPage):
            self._take(result.call.ranking)

    def _take(self, ranking: Sequence[str]) -> None:
        """Add a ranking to the retrieval scores, by reciprocal rank."""
        for rank, docid in enumerate(ranking, start=1):
            self._retrieval[docid] = self._retrieval.get(docid, 0.0) + 1 / (_FUSION + rank)

    def _by_retrieval(self) -> list[str]:
        scores: Mapping[str, float] = self._retrieval
        return sorted(scores, key=lambda docid: -scores[docid])

    def _call(self, name: str, arguments: Mapping[str, str], reason: str) -> ToolResult | None:
        if len(self._episode.tool.calls) >= self._max_calls:
            self.stopped = True
            return None
        result = self._episode.call(name, arguments, content=reason)
        return None if result.failed else result
