"""Librarians: they run one query each, beside each other, and score what it brought up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

from soundingline.agents.conversation import OutOfTime, within
from soundingline.agents.literature.plans import EXPAND, RESOLVE, SEARCH, Query
from soundingline.toolkit.data import parent
from soundingline.toolkit.llm.errors import BadRequest, LedgerFailed, ModelError, OutOfMoney
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ResultsPage, ToolResult

T = TypeVar("T")
TIMED_OUT = "timed_out"
_SPARE = 8
_LONGEST = 9000  # characters of an argument; the tools take 10,000


class Outcome(NamedTuple):
    """What came of a librarian's work: the calls that were served, in order; `error` is the code of
    what went wrong instead, `raised` what ends the question."""

    served: Sequence[ToolResult] = ()
    error: str = ""
    raised: Exception | None = None


class Librarians:
    """At most `most` at work at once, of all questions together; each has `seconds` for a query or
    for scoring. A thread cannot be stopped: one that is late goes on alone, and what it brings is
    not used (scores that a model gave are kept by its cache)."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def work(
        self, tasks: Sequence[Callable[[], Sequence[ToolResult]]], left: float | None
    ) -> list[Outcome]:
        """The outcome of each task, in order. `left`: seconds that the question has (None: no
        limit)."""
        return list(await asyncio.gather(*(self._one(task, left) for task in tasks)))

    async def _one(self, task: Callable[[], Sequence[ToolResult]], left: float | None) -> Outcome:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots = loop, asyncio.Semaphore(self.most)
        assert self._slots is not None
        began = loop.time()
        async with self._slots:
            waited = loop.time() - began
            seconds = self.seconds if left is None else min(self.seconds, left - waited)
            try:
                return Outcome(await within(loop.run_in_executor(self._threads, task), seconds))
            except OutOfTime:
                return Outcome(error=TIMED_OUT)
            except ModelError as error:
                fatal = error.stops_run or isinstance(error, OutOfMoney | LedgerFailed | BadRequest)
                return Outcome(error=error.code, raised=error if fatal else None)
            except Exception as error:
                return Outcome(error="defect", raised=error)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        # Some more than are at work, because one that is late still holds its thread. Not many: a
        # thread opens stores and caches for itself, and a process has a limit of open files.
        return ThreadPoolExecutor(self.most + _SPARE, "librarian")


def run_query(session: SearchTool, query: Query) -> Sequence[ToolResult]:
    """The calls of a query; a `resolve` with a direction is two."""
    if query.operator == SEARCH:
        return [session.serve("search", {"query": query.text[:_LONGEST]})]
    if query.operator == EXPAND:
        return [_expanded(session, query.docids, query.direction)]
    resolved = session.serve("resolve", {"findings": query.text[:_LONGEST]})
    if not query.direction or not resolved.call.shown:
        return [resolved]
    return [resolved, _expanded(session, resolved.call.shown, query.direction)]


def candidates_of(query: Query, served: Sequence[ToolResult]) -> list[str]:
    """The documents that a query brought up, the best first."""
    last = served[-1]
    if last.call.error or (query.operator == RESOLVE and query.direction and len(served) < 2):
        return []
    ranking = last.call.ranking or last.call.shown
    if query.title_has or query.title_lacks:
        page = last.page
        hits = page.hits if isinstance(page, ResultsPage) else ()
        ranking = [hit.docid for hit in hits if _passes(hit.title.casefold(), query)]
    return list(dict.fromkeys(map(parent, ranking)))


def score_call(
    session: SearchTool, docids: Sequence[str], requirements: Sequence[str], question: str
) -> Callable[[], Sequence[ToolResult]]:
    """The task of scoring documents."""
    arguments = {
        "docids": json.dumps(list(docids), ensure_ascii=False),
        "requirements": "\n".join(requirements),
        "question": question[:_LONGEST],
    }
    return partial(_alone, session, "score", arguments)


def order_call(
    session: SearchTool, docids: Sequence[str], question: str
) -> Callable[[], Sequence[ToolResult]]:
    """The task of putting documents in order."""
    named = json.dumps(list(docids), ensure_ascii=False)
    return partial(_alone, session, "order", {"docids": named, "question": question[:_LONGEST]})


def _alone(session: SearchTool, name: str, arguments: dict[str, str]) -> Sequence[ToolResult]:
    return [session.serve(name, arguments)]


def _expanded(session: SearchTool, docids: Sequence[str], direction: str) -> ToolResult:
    named = json.dumps(list(docids), ensure_ascii=False)
    return session.serve("expand", {"docids": named, "direction": direction})


def _passes(title: str, query: Query) -> bool:
    has = [word.casefold() for word in query.title_has]
    lacks = [word.casefold() for word in query.title_lacks]
    return (not has or any(word in title for word in has)) and not any(w in title for w in lacks)
