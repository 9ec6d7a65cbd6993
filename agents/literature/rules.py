"""The navigator's plans without a language model: requirements are the question's clauses."""

from __future__ import annotations

from collections.abc import Callable, Collection

from soundingline.agents.literature.clauses import Clause, find_clauses
from soundingline.agents.literature.plans import EXPAND, RESOLVE, Plan, Query, tidy
from soundingline.agents.literature.survey import Survey
from soundingline.toolkit.data import Topic


class Rules:
    """One query a clause and one of all together; then links of what the question names and of the
    best `seeds` documents, and the requirement that those meet least. `tools`: those that the
    interface has."""

    def __init__(
        self, topic: Topic, rarity: Callable[[str], float], tools: Collection[str], seeds: int
    ) -> None:
        self._clauses = find_clauses(topic.text, rarity)
        self._question, self._tools, self._seeds = topic.text, tools, seeds
        self._checklist = tuple(dict.fromkeys(tidy(one.requirement) for one in self._clauses))

    async def plan(self, survey: Survey, number: int) -> Plan:
        """The plan of round `number`, from 1."""
        queries = self._first() if number == 1 else self._later(survey)
        return Plan(tuple(queries), self._checklist)

    @property
    def _wanted(self) -> list[Clause]:
        """The requirements that do not exclude."""
        return [clause for clause in self._clauses if not clause.excluded] or self._clauses

    def _first(self) -> list[Query]:
        together = " ".join(clause.query for clause in self._wanted)
        queries = [Query(text=together, reason="All requirements together.")]
        if len(self._wanted) > 1:
            queries += [Query(text=one.query, reason="One requirement.") for one in self._wanted]
        usable = [query for query in queries if query.text.strip()]
        return usable or [Query(text=self._question, reason="The question as it is.")]

    def _later(self, survey: Survey) -> list[Query]:
        queries = []
        best = tuple(survey.ranked()[: self._seeds])
        if {"expand", "resolve"} <= set(self._tools):
            findings = "\n".join(clause.text for clause in self._wanted)
            reason = "Who refers to what the question names?"
            queries.append(Query(RESOLVE, findings, direction="in", reason=reason))
        if "expand" in self._tools and best:
            reason = "What are the best linked with?"
            queries.append(Query(EXPAND, docids=best, direction="both", reason=reason))
        return [*queries, *self._uncovered(survey)]

    def _uncovered(self, survey: Survey) -> list[Query]:
        """The requirement that the best documents meet least, with the words of the one that they
        meet best."""
        best = [docid for docid in survey.ranked() if survey.judged(docid)][: self._seeds]
        if len(self._wanted) < 2 or not best:
            return []
        covered = {
            number: sum(self._score(survey, docid, clause) for docid in best)
            for number, clause in enumerate(self._wanted)
        }
        least, most = min(covered, key=covered.__getitem__), max(covered, key=covered.__getitem__)
        text = f"{self._wanted[least].query} {self._wanted[most].query}"
        return [Query(text=text, reason="The requirement that is met least.")]

    def _score(self, survey: Survey, docid: str, clause: Clause) -> float:
        row = survey.scores[docid].get(tidy(clause.requirement))
        return row.score if row else 0.0
