"""Rounds of retrieval, evidence and scores on one question, and what is on record of each.

A row of `Trajectory.rounds` has

- `round` (from 1), `planned_by` (`rules` or `model`), `reason`, and the `checklist` from here on;
- `librarians`: a row a query (see `plans.Query.row`) with `candidates` (how many it brought up),
  `new` (how many of them are new), and `error`, or empty where it did its work;
- `scored`: documents by the query whose librarian scored them; `unscored`: how many could not be
  scored, by the code of what went wrong;
- `good`: how many documents with a score of `bar` or more are new; it is absent where the round
  did not come to its end;
- `documents[docid]`: `retrieval`, `requirements[requirement]` (`verdict`, `score`, `rationale`,
  `passage`), and where they are known `probability` with its `origin` and `calibrated`, and
  `score`; `unscored` where it has none. Documents that this round scored, with all that is known;
- `probability`: `calibrated`, or `raw` where there is no calibration; empty where the scorer tells
  none;
- `ranking`: the best documents after the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from soundingline.agents.base import Episode
from soundingline.agents.literature.librarians import (
    Librarians,
    Outcome,
    candidates_of,
    run_query,
    score_call,
)
from soundingline.agents.literature.plans import RESOLVE, Plan, Query, tidy_checklist
from soundingline.agents.literature.survey import Survey
from soundingline.toolkit.llm.errors import ModelError, OutOfMoney
from soundingline.toolkit.llm.prices import UsageTotals, usage_totals
from soundingline.toolkit.search.literature import MOST_DOCIDS
from soundingline.toolkit.search.scoring import ScoresPage
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ResultsPage, ToolResult
from soundingline.toolkit.trajectory import call_of, call_row, exposure_of, exposure_row

_RETRYABLE = {kind.code: kind for kind in ModelError.__subclasses__() if kind.retryable}
_RANKING_KEPT = 100


@dataclass
class Report:
    """One librarian's row of the record."""

    query: Query
    ranking: Sequence[str] = ()
    new: int = 0
    error: str = ""
    to_score: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """The row as JSON values."""
        numbers = {"candidates": len(self.ranking), "new": self.new, "error": self.error}
        return {**self.query.row(), **numbers}


class Round:
    """One round on one question. `pool`: new documents that are scored; `rescored`: of the best
    documents, those in which requirements that are new are scored. `most_calls`: tool calls of the
    question; a round that would pass it leaves out what is too much, and `cut` says so."""

    def __init__(
        self,
        episode: Episode,
        session: SearchTool,
        survey: Survey,
        librarians: Librarians,
        *,
        pool: int,
        rescored: int,
        most_calls: int,
        seconds: float | None,
    ) -> None:
        self._episode, self._session, self._survey = episode, session, survey
        self._librarians = librarians
        self._pool, self._rescored, self._most_calls = pool, rescored, most_calls
        self._seconds = seconds
        self.cut = False
        self.reports: list[Report] = []
        self.newly_scored: list[str] = []
        self._errors: Counter[str] = Counter()
        self._tried: list[str] = []

    async def run(self, plan: Plan) -> None:
        """Retrieve by every query, then score. `OutOfMoney` where money ends, after all that was
        paid for is on record; what else ends a question is raised likewise."""
        survey = self._survey
        # A plan without any requirement judges by the question itself.
        survey.checklist = (
            plan.checklist or survey.checklist or tidy_checklist([self._episode.topic.text], 1)
        )
        left = self._calls_left()
        for query in plan.queries:
            left -= 2 if query.operator == RESOLVE and query.direction else 1
            if left < 0:
                self.cut = True
                break
            self.reports.append(Report(query))
        await self._retrieve(self.reports)
        await self._score(self.reports)

    def record(self, number: int, plan: Plan) -> dict[str, Any]:
        """The row of the trajectory; see the module."""
        survey = self._survey
        return {
            "round": number,
            "planned_by": plan.by,
            "reason": plan.reason,
            "left_out": plan.left_out,
            "checklist": list(survey.checklist),
            "librarians": [report.row() for report in self.reports],
            "scored": {
                str(n): one.to_score for n, one in enumerate(self.reports, start=1) if one.to_score
            },
            "unscored": dict(self._errors),
            "documents": {docid: survey.row(docid) for docid in self._tried},
            "probability": survey.kind_of_probability,
            "ranking": survey.ranked()[:_RANKING_KEPT],
        }

    async def _retrieve(self, reports: Sequence[Report]) -> None:
        tasks = [partial(run_query, self._session, report.query) for report in reports]
        outcomes = await self._librarians.work(tasks, self._left)
        for report, outcome in zip(reports, outcomes, strict=True):
            report.error = outcome.error
            for served in outcome.served:
                result = self._episode.record(served, report.query.reason)
                report.error = report.error or result.call.error
            if outcome.served:
                report.ranking = candidates_of(report.query, outcome.served)
                known = self._survey.retrieval
                report.new = sum(docid not in known for docid in report.ranking)
                self._survey.take(report.ranking)
                self._note_titles(outcome.served)
        self._raise(outcomes)

    async def _score(self, reports: Sequence[Report]) -> None:
        """The best new documents, each by the librarian whose query ranks it best, and the best
        known ones for what is new in the checklist."""
        if not reports or not self._survey.checklist:
            return
        ranks = [{docid: n for n, docid in enumerate(report.ranking)} for report in reports]
        far = len(self._survey.retrieval)
        for docid in self._survey.fresh()[: self._pool]:
            best = min(range(len(reports)), key=lambda n: ranks[n].get(docid, far))
            reports[best].to_score.append(docid)
        work: list[tuple[Report, Sequence[str], Sequence[str]]] = []
        for report in reports:
            work += [(report, *chunk) for chunk in self._by_missing(report.to_score)]
        known = [docid for docid in self._survey.ranked() if self._survey.judged(docid)]
        incomplete = [docid for docid in known[: self._rescored] if self._survey.missing(docid)]
        work += [(reports[0], *chunk) for chunk in self._by_missing(incomplete)]
        allowed = work[: self._calls_left()]
        self.cut |= len(allowed) < len(work)
        question = self._episode.topic.text
        tasks = [score_call(self._session, docs, needs, question) for _, docs, needs in allowed]
        outcomes = await self._librarians.work(tasks, self._left)
        for (report, docids, needs), outcome in zip(allowed, outcomes, strict=True):
            self._take_scores(report, docids, needs, outcome)
        self._raise(outcomes)
        self._refuse_nothing()

    def _by_missing(self, docids: Sequence[str]) -> list[tuple[list[str], tuple[str, ...]]]:
        """Documents in the calls that score them: those that lack the same requirements share one,
        as far as a call takes them."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for docid in docids:
            groups.setdefault(self._survey.missing(docid) or self._survey.checklist, []).append(
                docid
            )
        return [
            (members[start : start + MOST_DOCIDS], needs)
            for needs, members in groups.items()
            for start in range(0, len(members), MOST_DOCIDS)
        ]

    def _take_scores(
        self, report: Report, docids: Sequence[str], needs: Sequence[str], outcome: Outcome
    ) -> None:
        page = None
        for served in outcome.served:
            said = f"Scores of {len(docids)} documents."
            entered = self._episode.record(served, said).page
            page = entered if isinstance(entered, ScoresPage) else None
        error = outcome.error or ("" if page else "refused_call")
        self._tried += docids
        if page is None:
            for docid in docids:
                if not self._survey.judged(docid):
                    self._survey.unscored[docid] = error
            self._errors[error] += len(docids)
            return
        for docid, judgement in zip(page.docids, page.scores, strict=True):
            before = self._survey.judged(docid)
            self._survey.add(docid, page.requirements, judgement)
            if not judgement.complete:
                self._errors[judgement.error or "unscored"] += 1
            elif not before:
                self.newly_scored.append(docid)

    def _note_titles(self, served: Sequence[ToolResult]) -> None:
        for one in served:
            if isinstance(one.page, ResultsPage):
                titles = {hit.docid: hit.title for hit in one.page.hits if hit.title}
                self._survey.titles.update(titles)

    def _raise(self, outcomes: Sequence[Outcome]) -> None:
        """What ends the question, money last, because anything else fails it."""
        raised = [outcome.raised for outcome in outcomes if outcome.raised]
        if raised:
            raise next((error for error in raised if not isinstance(error, OutOfMoney)), raised[0])

    def _refuse_nothing(self) -> None:
        """A server that gave no score at all has failed the question, which is asked again."""
        total = sum(self._errors.values())
        codes = set(self._errors)
        if total and total == len(self._tried) and codes <= set(_RETRYABLE):
            code = self._errors.most_common(1)[0][0]
            raise _RETRYABLE[code](f"none of {total} documents could be scored: {code}")

    def _calls_left(self) -> int:
        return max(0, self._most_calls - len(self._session.calls))

    @property
    def _left(self) -> float | None:
        return None if self._seconds is None else self._seconds - self._episode.seconds


class Mark(NamedTuple):
    """How much of a question was on record when a round began."""

    calls: int
    exposures: int
    messages: int

    @classmethod
    def of(cls, episode: Episode) -> Mark:
        tool = episode.tool
        return cls(len(tool.calls), len(tool.exposures.rows), len(episode.messages))


def kept_round(
    mark: Mark,
    episode: Episode,
    session: SearchTool,
    survey: Survey,
    books: Mapping[str, UsageTotals],
    ended: tuple[str, str] | None,
) -> dict[str, Any]:
    """What a question needs to go on behind its newest round: the round's row, what record and
    transcript have gained since `mark`, and what the session has read. `books`: what the question
    has spent so far, by role; `ended`: status and reason where the round was the last."""
    tool, row = episode.tool, episode.rounds[-1]
    return {
        "row": dict(row),
        "memory": session.memory(row["documents"]),
        "ended": ended,
        "retrieval": survey.retrieval,
        "titles": survey.titles,
        "calls": [call_row(call) for call in tool.calls[mark.calls :]],
        "exposures": [exposure_row(row) for row in tool.exposures.rows[mark.exposures :]],
        "messages": episode.messages[mark.messages :],
        "warnings": list(episode.warnings),
        "books": {role: account.nonzero() for role, account in books.items()},
        "seconds": episode.seconds,
    }


def restore(
    records: Sequence[Mapping[str, Any]],
    episode: Episode,
    session: SearchTool,
    survey: Survey,
) -> dict[str, UsageTotals]:
    """Begin behind these rounds; what they have spent, by role. Nothing is changed where they are
    none of ours: `InputError`, `ValueError`, `TypeError`, `KeyError` or `AttributeError`."""
    calls = [call_of(row) for record in records for row in record["calls"]]
    exposures = [exposure_of(row) for record in records for row in record["exposures"]]
    messages = [dict(message) for record in records for message in record["messages"]]
    last = records[-1]
    books = {role: usage_totals(account) for role, account in last["books"].items()}
    seconds, warnings = float(last["seconds"]), list(map(str, last["warnings"]))
    memories = [record["memory"] for record in records if "memory" in record]
    if len(memories) < len(records):
        warnings.append("rounds of an earlier version do not tell which passages they have read")
    survey.restore([record["row"] for record in records], last["retrieval"], last["titles"])
    session.restore(calls, exposures, memories)
    episode.messages[:] = messages
    episode.warnings += [*warnings, f"went on behind round {len(records)}"]
    episode.rounds += [record["row"] for record in records]
    episode.earlier_seconds = seconds
    return books
