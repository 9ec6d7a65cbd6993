"""Rounds of retrieval, evidence and scores on one question, and their checkpoints.

A row of `Trajectory.rounds` has

- `round` (from 1), `planned_by` (`rules` or `model`), `reason`, what the plan names as `missing`,
  its `strategy`, and the `checklist` from here on;
- `librarians`: a row for each query (see `PlanQuery.row`) with `candidates` (how many it
  returned), `new` (how many of them are new), and `error`, empty if there was none;
- `scored`: documents by the query whose librarian scored them; `unscored`: how many could not be
  scored, by error code;
- `stopped`, of the last round: `plan`, `patience` or `coverage` if one of these ended the rounds;
- `good`: how many documents with a score of `bar` or more are new; absent if the round did not
  finish;
- `documents[docid]`: `retrieval`, `requirements[requirement]` (`verdict`, `score`, `rationale`,
  `passage`), if known `probability` with its `origin` and `calibrated`, and `score`; `unscored` if
  it has none. Documents that this round scored, with all that is known;
- `probability`: `calibrated`, `raw` without a calibration, or empty if the scorer returns none;
- `ranking`: the best documents after the round.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from soundingline.agents.base import Budget, End, Episode, OutOfTime, within
from soundingline.agents.literature.planner import (
    EXPAND,
    RESOLVE,
    SEARCH,
    PlanQuery,
    SearchPlan,
    normalize_checklist,
)
from soundingline.agents.literature.scores import CandidateScores
from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import parse
from soundingline.toolkit.llm.errors import ERRORS, BadRequest, LedgerFailed, ModelError, OutOfMoney
from soundingline.toolkit.llm.prices import UsageTotals
from soundingline.toolkit.search.literature import MOST_DOCIDS, Literature
from soundingline.toolkit.search.scoring import ScoresPage
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ResultsPage, ToolResult
from soundingline.toolkit.trajectory import call_of, call_row, exposure_of, exposure_row

Task = Callable[[], Sequence[ToolResult]]
TIMED_OUT = "timed_out"
_SPARE_THREADS = 8
_LONGEST_ARGUMENT = 9000  # characters; the tools take 10,000
_RETRYABLE = {code: kind for code, kind in ERRORS.items() if kind.retryable}
_RANKING_DEPTH = 100


class TaskOutcome(NamedTuple):
    """The result of a librarian's task: the calls that were served, in order, or the code of an
    error. `raised` is an exception that ends the question."""

    served: Sequence[ToolResult] = ()
    error: str = ""
    raised: Exception | None = None


class Librarians:
    """Runs the tasks of all questions concurrently, each in a thread.

    A thread cannot be stopped: a task that is late runs on, and its result is not used (a scorer's
    cache stores scores that a model returned).

    At most `most` tasks run at once, each for at most `seconds`. Under a virtual clock, each takes
    the time that it needs.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def work(self, tasks: Sequence[Task], episode: Episode) -> list[TaskOutcome]:
        """The outcome of each task of a question, in order."""
        spent = episode.seconds
        return list(await asyncio.gather(*(self._run(t, episode.budget, spent) for t in tasks)))

    async def _run(self, task: Task, budget: Budget, spent: float) -> TaskOutcome:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots = loop, asyncio.Semaphore(self.most)
        assert self._slots is not None
        began = loop.time()
        async with self._slots:
            if budget.is_virtual:
                seconds = budget.patience(spent)
            else:
                left = budget.seconds_left(spent + loop.time() - began)
                seconds = self.seconds if left is None else min(self.seconds, left)
            try:
                if seconds is not None and seconds <= 0:
                    raise OutOfTime
                return TaskOutcome(await within(loop.run_in_executor(self._threads, task), seconds))
            except OutOfTime:
                return TaskOutcome(error=TIMED_OUT)
            except ModelError as error:
                fatal = error.stops_run or isinstance(error, OutOfMoney | LedgerFailed | BadRequest)
                return TaskOutcome(error=error.code, raised=error if fatal else None)
            except Exception as error:
                return TaskOutcome(error="defect", raised=error)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        # A late task still occupies its thread, so there are some more than tasks at once. Not
        # many, because a thread opens stores and caches, and a process has a limit of open files.
        return ThreadPoolExecutor(self.most + _SPARE_THREADS, "librarian")


def run_query(session: SearchTool, query: PlanQuery) -> Sequence[ToolResult]:
    """The calls of a query. A `resolve` with a direction has two."""
    if query.operator == SEARCH:
        return [session.serve("search", {"query": query.text[:_LONGEST_ARGUMENT]})]
    if query.operator == EXPAND:
        return [_expand(session, query.docids, query.direction)]
    resolved = session.serve("resolve", {"findings": query.text[:_LONGEST_ARGUMENT]})
    if not query.direction or not resolved.call.shown:
        return [resolved]
    return [resolved, _expand(session, resolved.call.shown, query.direction)]


def _expand(session: SearchTool, docids: Sequence[str], direction: str) -> ToolResult:
    return session.serve("expand", {"docids": _json(docids), "direction": direction})


def _json(docids: Sequence[str]) -> str:
    return json.dumps(list(docids), ensure_ascii=False)


def candidates_of(query: PlanQuery, served: Sequence[ToolResult]) -> list[str]:
    """The documents that a query returned, best first."""
    last = served[-1]
    if last.call.error or (query.operator == RESOLVE and query.direction and len(served) < 2):
        return []
    ranking = last.call.ranking or last.call.shown
    if query.title_has or query.title_lacks:
        page = last.page
        hits = page.hits if isinstance(page, ResultsPage) else ()
        ranking = [hit.docid for hit in hits if _passes(hit.title.casefold(), query)]
    return list(dict.fromkeys(map(parent, ranking)))


def _passes(title: str, query: PlanQuery) -> bool:
    has = [word.casefold() in title for word in query.title_has]
    return (not has or any(has)) and not any(w.casefold() in title for w in query.title_lacks)


def judging_task(episode: Episode, tool: str, docids: Sequence[str], **arguments: str) -> Task:
    """The task of judging documents of a question by the tool `score` or `order`."""
    question = episode.topic.text[:_LONGEST_ARGUMENT]
    named = {"docids": _json(docids), **arguments, "question": question}
    return lambda: [episode.tool.serve(tool, named)]


@dataclass
class LibrarianReport:
    """What one librarian did."""

    query: PlanQuery
    ranking: Sequence[str] = ()
    new: int = 0
    error: str = ""
    to_score: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """The report as JSON values."""
        numbers = {"candidates": len(self.ranking), "new": self.new, "error": self.error}
        return {**self.query.row(), **numbers}


@dataclass(kw_only=True, eq=False)
class Round:
    """One round on one question.

    Args:
        scores: the candidates of the question, to which the round adds.
        pool: the number of new documents that are scored.
        rescored: the number of best documents in which new requirements are scored.

    A round that would exceed the budget's tool calls is `cut`.
    """

    episode: Episode
    scores: CandidateScores
    librarians: Librarians
    pool: int
    rescored: int
    cut: bool = False
    reports: list[LibrarianReport] = field(default_factory=list)
    newly_scored: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    tried: list[str] = field(default_factory=list)

    async def run(self, plan: SearchPlan) -> None:
        """Run every query, then score. Raises what ends the question, such as `OutOfMoney`, after
        all that was paid for is recorded."""
        scores = self.scores
        # Without any requirement, documents are judged by the question itself.
        scores.checklist = (
            plan.checklist or scores.checklist or normalize_checklist([self.episode.topic.text], 1)
        )
        left = self._calls_left()
        for query in plan.queries:
            left -= 2 if query.operator == RESOLVE and query.direction else 1
            if left < 0:
                self.cut = True
                break
            self.reports.append(LibrarianReport(query))
        await self._retrieve()
        await self._score()

    def row(self, number: int, plan: SearchPlan) -> dict[str, Any]:
        """The row of the trajectory; see the module."""
        scores = self.scores
        return {
            "round": number,
            "planned_by": plan.by,
            "reason": plan.reason,
            "missing": list(plan.missing),
            "strategy": plan.strategy,
            "left_out": plan.left_out,
            "checklist": list(scores.checklist),
            "librarians": [report.row() for report in self.reports],
            "scored": {
                str(n): one.to_score for n, one in enumerate(self.reports, start=1) if one.to_score
            },
            "unscored": dict(self.errors),
            "documents": {docid: scores.row(docid) for docid in self.tried},
            "probability": scores.kind_of_probability,
            "ranking": scores.ranked()[:_RANKING_DEPTH],
        }

    async def _retrieve(self) -> None:
        tasks = [partial(run_query, self.episode.tool, report.query) for report in self.reports]
        outcomes = await self.librarians.work(tasks, self.episode)
        for report, outcome in zip(self.reports, outcomes, strict=True):
            report.error = outcome.error
            for served in outcome.served:
                result = self.episode.record(served, report.query.reason)
                report.error = report.error or result.call.error
                if isinstance(served.page, ResultsPage):
                    hits = served.page.hits
                    self.scores.titles.update({hit.docid: hit.title for hit in hits if hit.title})
            if outcome.served:
                report.ranking = candidates_of(report.query, outcome.served)
                earlier = self.scores.retrieval
                report.new = sum(docid not in earlier for docid in report.ranking)
                self.scores.add_ranking(report.ranking)
        _raise_first(outcomes)

    async def _score(self) -> None:
        """Score the best new documents, each by the librarian whose query ranks it best, and the
        best known documents for what is new in the checklist."""
        reports, scores = self.reports, self.scores
        if not reports or not scores.checklist:
            return
        ranks = [{docid: n for n, docid in enumerate(report.ranking)} for report in reports]
        far = len(scores.retrieval)
        for docid in scores.unscored_candidates()[: self.pool]:
            best = min(range(len(reports)), key=lambda n: ranks[n].get(docid, far))
            reports[best].to_score.append(docid)
        work = [chunk for report in reports for chunk in self._by_missing(report.to_score)]
        incomplete = [docid for docid in scores.best()[: self.rescored] if scores.missing(docid)]
        work += self._by_missing(incomplete)
        allowed = work[: self._calls_left()]
        self.cut |= len(allowed) < len(work)
        tasks = [
            judging_task(self.episode, "score", docids, requirements="\n".join(needs))
            for docids, needs in allowed
        ]
        outcomes = await self.librarians.work(tasks, self.episode)
        for (docids, _), outcome in zip(allowed, outcomes, strict=True):
            self._add_scores(docids, outcome)
        _raise_first(outcomes)
        total = sum(self.errors.values())
        if total and total == len(self.tried) and set(self.errors) <= set(_RETRYABLE):
            # No document has a score: a resumed run asks the question again.
            code = self.errors.most_common(1)[0][0]
            raise _RETRYABLE[code](f"none of {total} documents could be scored: {code}")

    def _by_missing(self, docids: Sequence[str]) -> list[tuple[list[str], tuple[str, ...]]]:
        """Documents grouped into the calls that score them. Documents without the same
        requirements share a call, as far as a call takes them."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for docid in docids:
            needs = self.scores.missing(docid) or self.scores.checklist
            groups.setdefault(needs, []).append(docid)
        return [
            (members[start : start + MOST_DOCIDS], needs)
            for needs, members in groups.items()
            for start in range(0, len(members), MOST_DOCIDS)
        ]

    def _add_scores(self, docids: Sequence[str], outcome: TaskOutcome) -> None:
        page = None
        for served in outcome.served:
            recorded = self.episode.record(served, f"Scores of {len(docids)} documents.").page
            page = recorded if isinstance(recorded, ScoresPage) else None
        self.tried += docids
        if page is None:
            error = outcome.error or "refused_call"
            for docid in docids:
                if not self.scores.is_scored(docid):
                    self.scores.unscored[docid] = error
            self.errors[error] += len(docids)
            return
        for docid, judgement in zip(page.docids, page.scores, strict=True):
            before = self.scores.is_scored(docid)
            self.scores.add(docid, page.requirements, judgement)
            if not judgement.complete:
                self.errors[judgement.error or "unscored"] += 1
            elif not before:
                self.newly_scored.append(docid)

    def _calls_left(self) -> int:
        most = self.episode.budget.tool_calls
        return sys.maxsize if most is None else max(0, most - len(self.episode.tool.calls))


def _raise_first(outcomes: Sequence[TaskOutcome]) -> None:
    """Raise what ends the question: `OutOfMoney` last, because anything else fails it."""
    raised = [outcome.raised for outcome in outcomes if outcome.raised]
    if raised:
        raise next((error for error in raised if not isinstance(error, OutOfMoney)), raised[0])


def round_checkpoint(
    began: tuple[int, int, int],
    episode: Episode,
    session: Literature,
    scores: CandidateScores,
    usage: Mapping[str, UsageTotals],
    ended: End | None,
) -> dict[str, Any]:
    """What a question needs to continue after its newest round, as JSON values.

    `began` are the numbers of calls, exposures and messages at the beginning of the round,
    `session` is the tool of the episode, `usage` what the question has spent so far, by role, and
    `ended` the status and the reason if the round was the last.
    """
    row = episode.rounds[-1]
    calls, exposures, messages = began
    return {
        "row": dict(row),
        "memory": session.memory(row["documents"]),
        "ended": ended,
        "retrieval": scores.retrieval,
        "titles": scores.titles,
        "calls": [call_row(call) for call in session.calls[calls:]],
        "exposures": [exposure_row(row) for row in session.exposures.rows[exposures:]],
        "messages": episode.messages[messages:],
        "warnings": list(episode.warnings),
        "books": {role: totals.nonzero() for role, totals in usage.items()},
        "seconds": episode.wall_seconds,
        "reply_seconds": episode.reply_seconds,
    }


def restore(
    checkpoints: Sequence[Mapping[str, Any]],
    episode: Episode,
    session: Literature,
    scores: CandidateScores,
) -> dict[str, UsageTotals]:
    """Continue after these rounds. Returns what they have spent, by role."""
    calls = [call_of(row) for saved in checkpoints for row in saved["calls"]]
    exposures = [exposure_of(row) for saved in checkpoints for row in saved["exposures"]]
    rows = [saved["row"] for saved in checkpoints]
    last = checkpoints[-1]
    scores.restore(rows, last["retrieval"], last["titles"])
    session.restore(calls, exposures, [saved["memory"] for saved in checkpoints])
    episode.messages[:] = [message for saved in checkpoints for message in saved["messages"]]
    episode.warnings += [*last["warnings"], f"went on after round {len(checkpoints)}"]
    episode.rounds += rows
    episode.earlier_seconds, episode.reply_seconds = last["seconds"], last["reply_seconds"]
    return parse(dict[str, UsageTotals], last["books"], where="the usage of a round")
