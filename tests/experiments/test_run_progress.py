"""What a run tells of itself while it works, and what stops it."""

import asyncio
import threading

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
from soundingline.toolkit.trajectory import Answer, ToolCall, Trajectory


class Tally:
    """A progress of questions `a` and `b`, its clock, its ledger and the lines that it told."""

    def __init__(self):
        self.now, self.lines = 0.0, []
        self.ledger = Ledger(clock=lambda: self.now)
        accepted = {"a": ["Ada"], "b": ["Bob"]}
        self.progress = Progress(self.ledger, accepted, self.lines.append, lambda: self.now)

    def spend(self, usage, price=UNKNOWN):
        with self.ledger.request("agent", "q", price) as entry:
            entry.reply(Turn(usage=usage))

    def add(self, qid, status="completed", exact="", **fields):
        self.progress.add(Trajectory(qid, "?", status, Answer(exact=exact), **fields))


@pytest.fixture
def tally():
    return Tally()


def test_the_line_tells_failures_accuracy_money_and_speed(tally):
    usage = Usage(input=1_000_000, cached=250_000, output=500)
    tally.spend(usage, Price(input=2.0, output=0.0))
    tally.now = 10.0
    assert tally.progress.line() == "$2.00 · 50 tokens/s", "before the first question ends"
    tally.add("a", exact="Ada")
    tally.add("b", "failed", "Bob")
    tally.add("c")  # no accepted answer
    assert tally.lines[0] == "accuracy 1.00 · $2.00 · 50 tokens/s"
    assert tally.lines[-1] == "1 failed · accuracy 0.50 · $2.00 · 50 tokens/s"
    assert tally.progress.closing() == ["25.0% of the input tokens came from the prefix cache"]


def test_what_is_unknown_is_left_out_of_the_line(tally):
    tally.add("x")
    assert tally.lines == [""] and tally.progress.closing() == []
    tally.spend(Usage(input=10, output=0))
    tally.add("y")
    assert "$" not in tally.lines[-1]


def test_an_answer_is_judged_while_the_event_loop_goes_on(tally, monkeypatch):
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
        answering = RolloutRunner([Immediate()], str, Folder(), tally.progress, 1)
        task = asyncio.create_task(answering.answer([Rollout(Topic("a", "?"))]))
        while not judging.is_set() and not task.done():
            await asyncio.sleep(0.001)
        go_on.set()
        await task

    monkeypatch.setattr(ExactAnswerJudge, "verdict", slow)
    asyncio.run(run())
    assert tally.lines == ["accuracy 1.00"]


def test_refused_calls_and_few_warnings_are_told_at_the_end(tally):
    errors = ("missing_argument", "", "unknown_tool", "missing_argument")
    calls = [ToolCall("search", {}, "", error=error) for error in errors]
    for number in range(5):
        warnings = (f"warning {number}",)
        tally.add(f"q{number}", calls=calls[number : number + 1], warnings=warnings)
    assert tally.progress.closing() == [
        "3 of 4 tool calls were refused (missing_argument 2, unknown_tool 1)",
        *(f"question q{number}: warning {number}" for number in range(3)),
        "and 2 more warnings; each trajectory holds its own",
    ]


def test_the_estimate_has_the_bounds_of_the_prediction_interval():
    costs = [{"dollars": value, "input_tokens": 1000 * value} for value in (1.0, 2.0, 3.0)]
    whole = estimate([1.0, 2.0, 3.0], 30)
    text = expected(costs, 30)
    assert text.startswith(f"${whole.total:,.2f} (${whole.low:,.2f} to ${whole.high:,.2f}); 60,000")
    assert text.endswith("input tokens")
    assert expected([{}, {}], 30) == "" and expected([], 30) == ""
    # A cost that some question does not tell is not estimated.
    assert "$" not in expected([{"dollars": 1.0, "input_tokens": 5}, {"input_tokens": 7}], 30)
    assert [duration(seconds) for seconds in (750, 5399, 10_800)] == [
        *("12.5 minutes", "90.0 minutes", "3.0 hours")
    ]


def test_queries_that_were_searched_as_typed_are_told_with_the_reasons():
    counts = {"queries": 52, "fell_back": 30, "prose": 2, "copied": 28, "errors": 0}
    (line,) = fallbacks({"rewriter": counts, "reranker": {"fell_back": 1}})
    assert line.startswith("30 of 52 queries were searched as they were")
    assert line.endswith("(copied 28, prose 2)")
    assert fallbacks({"rewriter": {"queries": 52, "fell_back": 0}}) == fallbacks({}) == []
