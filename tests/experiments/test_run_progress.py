"""What a run tells of itself while it works, and what stops it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import cast

import pytest

from soundingline.agents.base import Agent
from soundingline.experiments.rollouts import (
    Progress,
    Rollout,
    RolloutRunner,
    duration,
    expected,
    fallbacks,
)
from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge
from soundingline.toolkit.llm import Turn, Usage
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import UNKNOWN, Price, estimate
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Answer, ToolCall, Trajectory


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def spend(ledger, usage, price=UNKNOWN):
    with ledger.request("agent", "q", price) as entry:
        entry.reply(Turn(usage=usage))


def tally(clock, ledger, lines):
    return Progress(ledger, {"a": ["Ada"], "b": ["Bob"]}, lines.append, clock)


def test_the_line_tells_failures_accuracy_money_and_speed(clock):
    ledger, lines = Ledger(clock=clock), list[str]()
    count = tally(clock, ledger, lines)
    spend(ledger, Usage(input=1_000_000, cached=250_000, output=500), Price(input=2.0, output=0.0))
    clock.now = 10.0
    count.add(Trajectory("a", "?", "completed", Answer(exact="Ada")))
    count.add(Trajectory("b", "?", "failed", Answer(exact="Bob")))
    count.add(Trajectory("c", "?", "completed"))  # no accepted answer
    assert lines[0] == "accuracy 1.00 · $2.00 · 50 tokens/s"
    assert lines[-1] == "1 failed · accuracy 0.50 · $2.00 · 50 tokens/s"
    assert count.closing() == ["25.0% of the input tokens came from the prefix cache"]


def test_the_line_tells_what_is_spent_before_the_first_question_ends(clock):
    ledger = Ledger(clock=clock)
    count = tally(clock, ledger, [])
    spend(ledger, Usage(input=1_000, output=500))
    clock.now = 10.0
    assert count.line() == "50 tokens/s"


def test_what_is_unknown_is_left_out_of_the_line(clock):
    ledger, lines = Ledger(clock=clock), list[str]()
    count = tally(clock, ledger, lines)
    count.add(Trajectory("x", "?", "completed"))
    assert lines == [""] and count.closing() == []
    spend(ledger, Usage(input=10, output=0))
    count.add(Trajectory("y", "?", "completed", warnings=("broken",)))
    assert "$" not in lines[-1]


def test_an_answer_is_judged_while_the_event_loop_goes_on(clock, monkeypatch):
    lines = list[str]()
    count = tally(clock, Ledger(), lines)
    verdict, judging, go_on = ExactAnswerJudge.verdict, threading.Event(), threading.Event()

    def slow(*arguments):
        judging.set()
        assert go_on.wait(timeout=10), "the event loop stood still"
        return verdict(*arguments)

    class Immediate(Agent):
        name = "immediate"

        async def run(self, topic, tool):
            return Trajectory(topic.qid, topic.text, "completed", Answer(exact="Ada"))

    class Folder:
        def repeat(self, number):
            return self

        def write(self, trajectory): ...

    async def run():
        folder, session = cast(RunFolder, Folder()), cast(Callable[[str], SearchTool], str)
        answering = RolloutRunner([Immediate()], session, folder, count, 1)
        task = asyncio.create_task(answering.answer([Rollout(Topic("a", "?"))]))
        while not judging.is_set() and not task.done():
            await asyncio.sleep(0.001)
        go_on.set()
        await task

    monkeypatch.setattr(ExactAnswerJudge, "verdict", slow)
    asyncio.run(run())
    assert lines == ["accuracy 1.00"]


def test_refused_calls_are_told_at_the_end_with_their_codes(clock):
    count = tally(clock, Ledger(clock=clock), [])
    errors = ("missing_argument", "", "unknown_tool", "missing_argument")
    calls = [ToolCall("search", {}, "", error=error) for error in errors]
    count.add(Trajectory("x", "?", "completed", calls=calls[:2]))
    count.add(Trajectory("y", "?", "completed", calls=calls[2:]))
    assert count.closing() == [
        "3 of 4 tool calls were refused (missing_argument 2, unknown_tool 1)"
    ]


def test_few_warnings_are_shown_and_the_others_counted(clock):
    count = tally(clock, Ledger(), [])
    for number in range(5):
        count.add(Trajectory(f"q{number}", "?", "completed", warnings=(f"warning {number}",)))
    assert count.closing()[0] == "question q0: warning 0"
    assert count.closing()[-1] == "and 2 more warnings; each trajectory holds its own"


def test_the_estimate_has_the_bounds_of_the_prediction_interval():
    costs = [{"dollars": value, "input_tokens": 1000 * value} for value in (1.0, 2.0, 3.0)]
    whole = estimate([1.0, 2.0, 3.0], 30)
    said = expected(costs, 30)
    assert said.startswith(f"${whole.total:,.2f} (${whole.low:,.2f} to ${whole.high:,.2f}); 60,000")
    assert said.endswith("input tokens")
    assert expected([{}, {}], 30) == "" and expected([], 30) == ""


def test_a_cost_that_some_question_does_not_tell_is_not_estimated():
    assert "$" not in expected([{"dollars": 1.0, "input_tokens": 5}, {"input_tokens": 7}], 30)


def test_durations_are_told_in_minutes_and_long_ones_in_hours():
    assert duration(750) == "12.5 minutes"
    assert duration(5399) == "90.0 minutes"
    assert duration(10_800) == "3.0 hours"


def test_queries_that_were_searched_as_typed_are_told_with_the_reasons():
    counts = {"queries": 52, "fell_back": 30, "prose": 2, "copied": 28, "errors": 0}
    (line,) = fallbacks({"rewriter": counts, "reranker": {"fell_back": 1}})
    assert line.startswith("30 of 52 queries were searched as they were")
    assert line.endswith("(copied 28, prose 2)")
    assert fallbacks({"rewriter": {"queries": 52, "fell_back": 0}}) == fallbacks({}) == []
