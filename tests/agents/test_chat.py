"""The tool-calling agent: what it sends, what it records, and each way in which a question ends.
Models that keep to no protocol: what the harness asks of them, and what it takes."""

import asyncio
import itertools
import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.agents import bound
from support.assertions import refused
from support.benchmarks import SmallBenchmark, WordBackend, store_of
from support.llm_model import ANSWER, ScriptedModel, call, calling, saying, search, used
from support.runs import ended

from soundingline.agents import prompt
from soundingline.agents.base import Budget, RunResources
from soundingline.agents.baselines import ClosedBookAgent
from soundingline.agents.chat import ChatAgent
from soundingline.agents.prompt import FOLDER, SECTIONS, load_prompt
from soundingline.toolkit.data import Document, SearchResult, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.agent_run import evaluate_run
from soundingline.toolkit.llm import FunctionCall, ModelError, SamplingParams, Turn, Usage
from soundingline.toolkit.llm import errors as llm_errors
from soundingline.toolkit.llm.errors import ContextOverflow, OutOfMoney, Truncated
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price, UsageTotals
from soundingline.toolkit.report.measures import look_up_measure
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.trajectory import (
    RUN_OUT_OF_MONEY,
    dump_trajectory,
    final_response,
    from_record,
)

CORPUS = {
    "mill": Document("mill", "Grenholm Mill", "Grenholm Mill was built by Torvald Brekke in 1871."),
    "brekke": Document("brekke", "Torvald Brekke", "Torvald Brekke was a carpenter."),
}
TEXTS = {docid: f"{document.title}\n{document.text}" for docid, document in CORPUS.items()}
QUESTION = Topic("q1", "Who built Grenholm Mill?")
PRICE = Price(input=1.0, output=1.0)  # a dollar for a million tokens of either
LIMITS = Budget.__dataclass_fields__
PROMPT = load_prompt("pi_serini").sections
READ = call("read_document", "c2", reason="", docid="mill", offset=None, limit=None)


class Clock:
    """Seconds that pass only when a test says so."""

    now = 0.0

    def __call__(self):
        return self.now

    def then(self, seconds, step):
        """`step`, and the clock moved on before it."""

        def moved():
            self.now += seconds
            return step

        return moved


class Backend:
    """Ranks both documents, remembers its requests and their threads. `trouble` is raised, or
    called with the request."""

    def __init__(self, trouble=None):
        self.requests, self.threads, self._trouble = [], set(), trouble
        self._inner = WordBackend(TEXTS)

    def search(self, request):
        self.requests.append(request)
        self.threads.add(threading.current_thread().name)
        if isinstance(self._trouble, Exception):
            raise self._trouble
        return (self._trouble and self._trouble(request)) or self._inner.search(request)


def tool(backend=None, **arguments):
    backend = backend or Backend()
    return RankedBrowsing(**arguments).open(backend, store_of(CORPUS))


def ask(model, *, session=None, clock=None, **arguments):
    limits = {name: arguments.pop(name) for name in list(arguments) if name in LIMITS}
    agent = bound(model, budget=Budget(**limits), clock=clock, **arguments)
    return asyncio.run(agent.run(QUESTION, session or tool()))


def roles(trajectory):
    return [message["role"] for message in trajectory.messages]


# The plain course of a question.


def test_a_question_is_searched_read_and_answered_in_one_growing_transcript():
    searches = [calling(search(f"mill {n}", f"c{n}")) for n in range(4)]
    model = ScriptedModel(*searches, calling(READ), saying())
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "") and trajectory.warnings == ()
    assert (trajectory.answer.exact, trajectory.answer.confidence) == ("Torvald Brekke", 90)
    assert trajectory.tiers["opened"] == ("mill",) and trajectory.tiers["cited"] == ("mill",)
    assert [each.name for each in trajectory.calls] == [*["search"] * 4, "read_document"]
    assert roles(trajectory) == ["system", "user", *("assistant", "tool") * 5, "assistant"]
    assert trajectory.messages[1]["content"].endswith(f"Question: {QUESTION.text}")
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) > len(before.messages) and after.tools == before.tools


def test_several_calls_of_one_turn_are_served_in_order_by_other_threads():
    backend = Backend()
    calls = [search("mill", "a"), search("brekke", "b"), search("c", "c"), search("d", "d")]
    trajectory = ask(ScriptedModel(calling(*calls), saying()), session=tool(backend), tool_calls=2)
    assert [request.query for request in backend.requests] == ["mill", "brekke"]
    results = [m["tool_call_id"] for m in trajectory.messages if m["role"] == "tool"]
    assert results == ["a", "b", "c", "d"] and ended(trajectory) == ("out_of_turns", "tool_calls")
    assert [each.error for each in trajectory.calls] == ["", "", "blocked", "blocked"]
    assert threading.main_thread().name not in backend.threads


def test_the_newest_thought_goes_with_each_search_and_no_other_questions_does():
    def choose(messages, settings):
        mine = messages[1]["content"].rpartition("Question: ")[2]
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 3:
            return saying()
        thought = "" if turn == 1 else f"{mine} {turn}"
        return calling(search(f"mill {turn}", f"c{turn}"), reasoning=thought)

    backends = [Backend() for _ in range(16)]
    agent = bound(ScriptedModel(choose=choose))

    async def many():
        sessions = enumerate(backends)
        await asyncio.gather(*(agent.run(Topic(str(n), f"q{n}"), tool(b)) for n, b in sessions))

    asyncio.run(many())
    for number, backend in enumerate(backends):
        thoughts = [request.reasoning for request in backend.requests]
        # A turn without a thought of its own leaves the one before.
        assert thoughts == [f"q{number} 0", f"q{number} 0", f"q{number} 2"]
    # The text of a turn is the thought where the server gives none.
    ask(ScriptedModel(calling(text="I look."), saying()), session=tool(backends[0]))
    assert backends[0].requests[-1].reasoning == "I look."


def test_the_models_settings_are_sent_and_only_a_demanded_answer_changes_them():
    model = ScriptedModel(calling(), saying())
    extra = {"top_k": 20, "min_p": 0.1}
    settings = SamplingParams(temperature=0.3, seed=7, tool_choice="required", extra=extra)
    ask(model, settings=settings, turns=1, answer_extra={"top_k": 1, "grammar": "root"})
    first, last = (request.settings for request in model.requests)
    asked = replace(settings, answer=("Explanation", "Exact Answer", "Confidence"))
    assert first == asked
    changed = {"top_k": 1, "min_p": 0.1, "grammar": "root"}
    assert last == replace(asked, tool_choice="none", extra=changed)


def test_usage_is_entered_by_role_and_on_each_message():
    model = ScriptedModel(calling(usage=used(100, 10, 0)), saying(usage=used(150, 20, 96)))
    trajectory = ask(model, ledger=Ledger(clock=lambda: 0.0), price=PRICE)
    assert trajectory.usage["input_tokens"] == 250 and trajectory.usage["agent_calls"] == 2
    assert trajectory.usage["dollars"] == pytest.approx(280e-6)
    usages = [m["usage"] for m in trajectory.messages if m["role"] == "assistant"]
    assert usages[1] == {"input": 150, "cached": 96, "output": 20}


# Budgets, one after the other.


def test_at_seven_tenths_of_the_time_the_model_is_informed_and_tools_are_refused():
    clock, backend = Clock(), Backend()
    steps = [(60, calling(search("a"))), (10, calling(search("b"))), (1, saying())]
    model = ScriptedModel(*(clock.then(*step) for step in steps))
    trajectory = ask(model, session=tool(backend), clock=clock, seconds=100)
    assert ended(trajectory) == ("steered", "")
    assert trajectory.answer.exact == "Torvald Brekke"
    # The clock showed 70 when the second call came.
    assert [request.query for request in backend.requests] == ["a"]
    assert [each.error for each in trajectory.calls] == ["", "blocked"]
    words = [m["content"] for m in trajectory.messages if m["role"] == "user"][1:]
    assert words == [PROMPT["steer"]] == [trajectory.messages[-2]["content"]]


@pytest.mark.parametrize(
    ("steps", "steer_at", "wanted", "choices"),
    [
        ([(69.9, calling()), (0, saying())], 0.7, ("completed", ""), ["auto"] * 2),
        ([(99, calling()), (0, saying())], 1, ("completed", ""), ["auto"] * 2),
        (
            [(80, calling()), (0, calling(search("x"))), (0, saying())],
            *(0.7, ("steered", ""), ["auto", "auto", "none"]),
        ),
        (
            [(80, calling()), *[(0, calling())] * 3],
            *(0.7, ("steered", "no_answer"), ["auto", "auto", "none", "none"]),
        ),
        ([(100, saying())], 0.7, ("timed_out", "seconds"), ["auto"]),
    ],
    ids=["before", "never", "closed", "never answers", "late answer"],
)
def test_time_closes_the_tools_and_ends_the_question(steps, steer_at, wanted, choices):
    clock = Clock()
    model = ScriptedModel(*(clock.then(*step) for step in steps))
    trajectory = ask(model, clock=clock, seconds=100, steer_at=steer_at)
    assert ended(trajectory) == wanted
    assert (trajectory.answer.exact != "") == (wanted[1] == "")
    assert [request.settings.tool_choice for request in model.requests] == choices
    answers = sum(step == saying() for _, step in steps)  # a late one is recorded too
    assert (trajectory.messages[-1]["content"] == ANSWER) == answers


def test_a_server_or_a_search_that_stalls_is_left_when_time_is_over():
    clock, release = Clock(), threading.Event()

    async def stall():
        await asyncio.sleep(60)

    def late(request):
        clock.now = 99.9  # by the agent's clock a tenth of a second is left to the server

    began = time.monotonic()
    model = ScriptedModel(calling(), stall)
    trajectory = ask(model, session=tool(Backend(late)), clock=clock, seconds=100, steer_at=1)
    assert ended(trajectory) == ("timed_out", "seconds") and len(trajectory.calls) == 1

    async def one():
        stalled = Backend(lambda request: release.wait(10) and SearchResult([]))
        agent = bound(ScriptedModel(calling()), budget=Budget(seconds=0.1))
        trajectory = await agent.run(QUESTION, tool(stalled))
        release.set()
        return trajectory

    assert ended(asyncio.run(one())) == ("timed_out", "seconds")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("error", [TimeoutError("x"), RuntimeError("broken")])
def test_a_broken_backend_ends_the_question_as_failed(error):
    trajectory = ask(ScriptedModel(calling()), session=tool(Backend(error)), seconds=9)
    assert ended(trajectory) == ("failed", "defect")
    assert f"{type(error).__name__}: {error}" in trajectory.traceback


TURNS, CONTEXT = "out_of_turns", ("out_of_context", "context_window")


@pytest.mark.parametrize(
    ("limits", "steps", "wanted"),
    [
        ({"turns": 2}, [calling(), calling()], (TURNS, "turns")),
        ({"tool_calls": 2}, [calling(), calling()], (TURNS, "tool_calls")),
        ({"exposed_tokens": 60}, [calling(), calling()], (TURNS, "exposed_tokens")),
        (
            {"output_tokens": 100},
            [calling(usage=used(50, 60)), calling(usage=used(99, 60))],
            (TURNS, "output_tokens"),
        ),
        ({"output_tokens": 100}, [calling(reasoning="x" * 400)], (TURNS, "output_tokens")),
        ({"context_window": 10_000}, [calling(usage=used(6100, 10))], CONTEXT),
        ({"context_window": 10_000}, [calling(reasoning="x" * 20_000)], CONTEXT),
        (
            {"dollars": 5.0, "price": PRICE},
            [calling(usage=used(1_000_000, 0))] * 3,
            ("out_of_money", "dollars"),
        ),
    ],
    ids=[
        "turns",
        "calls",
        "exposed",
        "output",
        "uncounted output",
        "context",
        "uncounted context",
        "dollars",
    ],
)
def test_a_used_up_budget_closes_the_tools_and_demands_the_answer(limits, steps, wanted):
    model = ScriptedModel(*steps, saying())
    trajectory = ask(model, **limits)
    assert ended(trajectory) == wanted and trajectory.answer.exact == "Torvald Brekke"
    last = model.requests[-1]
    assert last.settings.tool_choice == "none"
    assert last.messages[-1]["content"] == PROMPT["final"]
    assert len(model.requests) == len(steps) + 1


def test_the_result_that_reaches_the_limit_of_exposed_tokens_is_shown_in_full():
    free = ask(ScriptedModel(calling(READ), saying()))
    measures = evaluate_run([free], SmallBenchmark([QUESTION])).per_question
    exposed = int(measures["tokens_exposed"][QUESTION.qid])
    for limit, codes in ((exposed, ["", "blocked"]), (exposed + 1, ["", ""])):
        trajectory = ask(ScriptedModel(calling(READ, READ), saying()), exposed_tokens=limit)
        assert [each.error for each in trajectory.calls] == codes
        assert trajectory.calls[0].output == free.calls[0].output
        assert ended(trajectory) == (TURNS, "exposed_tokens")


# The virtual clock: 50 tokens of new input, and 10 tokens of a reply, take a second each.
VIRTUAL = {"clock": "virtual", "seconds": 10, "speed": {"input": 50, "output": 10}}


def virtually(model, session, budget, clock=None, stages=("retriever",)):
    resources = RunResources(Budget(**budget), model=model, stages=stages)
    agent = ChatAgent()
    agent.clock = clock or agent.clock
    agent = agent.bind(resources)
    return asyncio.run(agent.run(QUESTION, session))


@pytest.mark.parametrize(
    ("output", "stages", "calls", "seconds", "wanted", "codes"),
    [
        (10, {}, 2, 6, ("completed", ""), ["", ""]),  # 2 + 2 + 2
        (10, {}, 9, 10, ("timed_out", "seconds"), ["", "", "", "blocked"]),  # told at 8
        (10, {"retriever": 1.5}, 9, 9, ("steered", ""), ["", ""]),  # told at 2 x (2 + 1.5)
        (10, {"retriever": 1, "reranker": 9}, 9, 8, ("completed", ""), ["", ""]),  # none is there
        (30, {}, 9, 12, ("timed_out", "seconds"), ["", "blocked"]),  # told at 8
    ],
)
def test_a_question_takes_its_declared_seconds_whatever_the_clock_shows(
    output, stages, calls, seconds, wanted, codes
):
    def choose(messages, settings):
        done = sum(message["role"] == "assistant" for message in messages)
        counted = used(50 * (done + 1) + output * done, output)  # 50 new ones
        told = messages[-1]["role"] == "user" and done
        return saying(usage=counted) if told or done == calls else calling(usage=counted)

    calls = 2 if "reranker" in stages else calls
    years = itertools.count(0, 1e9).__next__  # of the wall clock go by at each look
    model = ScriptedModel(choose=choose)
    budget = {**VIRTUAL, "stage_seconds": stages}
    trajectory = virtually(model, tool(), budget, clock=years)
    assert ended(trajectory) == wanted
    assert [each.error for each in trajectory.calls] == codes
    assert trajectory.virtual_seconds == pytest.approx(seconds) and trajectory.seconds >= 1e9
    assert from_record(json.loads(dump_trajectory(trajectory))) == trajectory
    # By the wall clock it is too late to ask anything.
    model = ScriptedModel(choose=choose)
    trajectory = virtually(model, tool(), {**budget, "clock": "wall"}, clock=years)
    assert ended(trajectory) == ("timed_out", "seconds") and not model.requests
    assert trajectory.virtual_seconds is None and "virtual" not in dump_trajectory(trajectory)


def test_a_reply_that_no_server_counts_takes_virtual_seconds_by_its_bytes():
    model = ScriptedModel(calling(reasoning="x" * 300), saying())
    budget = {**VIRTUAL, "seconds": None, "speed": {"input": 1e9, "output": 1}}
    # 300 bytes of reasoning are 100 tokens.
    assert 100 < virtually(model, tool(), budget).virtual_seconds < 300


def test_by_a_virtual_clock_a_slow_server_and_a_slow_search_are_awaited():
    async def slow():
        await asyncio.sleep(0.05)
        return calling()

    backend = Backend(lambda request: time.sleep(0.05))
    budget = {**VIRTUAL, "seconds": 0.01, "speed": {"input": 1e9, "output": 1e9}}
    trajectory = virtually(ScriptedModel(slow, saying()), tool(backend), budget)
    assert ended(trajectory) == ("completed", "") and trajectory.seconds > 0.1
    wall = virtually(ScriptedModel(slow), tool(backend), {**budget, "clock": "wall"})
    assert ended(wall) == ("timed_out", "seconds")


@pytest.mark.parametrize(
    ("limits", "usage", "wanted"),
    [
        ({"context_window": 10_000}, used(9_999, 10), CONTEXT),
        ({"dollars": 2.0, "price": PRICE}, used(2_000_000, 0), ("out_of_money", "dollars")),
    ],
)
def test_no_answer_is_demanded_without_room_or_money_for_one(limits, usage, wanted):
    model = ScriptedModel(calling(usage=usage))
    trajectory = ask(model, **limits)
    assert ended(trajectory) == wanted and trajectory.warnings == ()
    assert len(model.requests) == 1 and trajectory.answer.exact == ""


def test_the_end_of_the_runs_money_is_distinguished():
    ledger = Ledger(cap=1.0, earlier={"agent": UsageTotals(dollars=1.0)})
    trajectory = ask(ScriptedModel(), price=PRICE, ledger=ledger)
    assert ended(trajectory) == ("out_of_money", RUN_OUT_OF_MONEY)


# What a model can do wrong.


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("search", '{"reason": "x", "query": ', "arguments_not_an_object"),
        ("search", "[1, 2]", "arguments_not_an_object"),
        ("search", "", "missing_argument"),
        ("browse_web", "{}", "unknown_tool"),
        ("", "{}", "unknown_tool"),
        ("search", '{"reason": "", "query": 1.5}', "wrong_type"),
        ("search", '{"reason": "", "query": NaN}', "arguments_not_an_object"),
    ],
)
def test_a_wrong_call_comes_back_as_a_tool_error(name, arguments, code):
    model = ScriptedModel(calling(FunctionCall("c", name, arguments)), saying())
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "")
    (made,) = trajectory.calls
    result = model.requests[1].messages[-1]
    assert made.error == code and f"code={code}" in result["content"]
    assert result["role"] == "tool" and result["content"] == made.output


def cut(text="I think th"):
    half = Turn(text=text, tool_calls=(search(),), usage=used(100, 50), provider={"api": "x"})
    return llm_errors.Truncated("cut", turn=half)


UNUSABLE = {"empty": Turn(), "truncated": cut()}


def test_a_truncated_reply_is_stored_without_its_half_call():
    model = ScriptedModel(cut(), saying(usage=used(120, 7)))
    trajectory = ask(model)
    stored = model.requests[1].messages[-2]
    # Half a call cannot be answered, so it is not sent back.
    assert stored["content"] == "I think th" and not {"tool_calls", "provider"} & set(stored)
    assert trajectory.usage["output_tokens"] == 57


@pytest.mark.parametrize("prompt", ["pi_serini", "browsecomp_plus", "document_list", "neutral"])
@pytest.mark.parametrize("section", UNUSABLE)
@pytest.mark.parametrize("closed", [False, True])
def test_a_useless_reply_is_asked_for_again_and_offered_a_call_only_while_tools_are_open(
    prompt, section, closed
):
    sections, clock = load_prompt(prompt).sections, Clock()
    model = ScriptedModel(clock.then(80 * closed, calling()), UNUSABLE[section], saying())
    trajectory = ask(model, clock=clock, seconds=100, prompt=prompt)
    last_words = model.requests[2].messages[-1]["content"]
    assert last_words == sections[f"{section}_closed" if closed else section]
    offers = ("call a tool", "call the search tool")
    assert any(offer in last_words.lower() for offer in offers) != closed
    assert last_words.split(".")[0] == sections[section].split(".")[0]
    assert ended(trajectory) == ("steered" if closed else "completed", "")


def test_a_prompt_without_words_for_closed_tools_says_that_they_are_closed(tmp_path):
    sections = dict.fromkeys(SECTIONS, "Call a tool.")
    sections |= {"question": "{question}", "blocked": "No tools."}
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"=== {name} ===\n{text}\n" for name, text in sections.items()))
    for unusable in UNUSABLE.values():
        clock = Clock()
        model = ScriptedModel(clock.then(80, calling()), unusable, saying())
        ask(model, clock=clock, seconds=100, prompt=str(path))
        assert model.requests[2].messages[-1]["content"] == "No tools."


@pytest.mark.parametrize(
    ("steps", "limits", "wanted", "exact"),
    [
        ([Turn(), Turn(text=" \n")], {}, ("failed", "empty_answer"), ""),
        ([cut(), cut()], {}, ("failed", "truncated"), ""),
        ([cut(ANSWER + "\nAnd also")], {"turns": 1}, (TURNS, "turns"), "Torvald Brekke"),
        # A fault while the last word is awaited leaves the first cause.
        ([llm_errors.ContextOverflow("full")] * 2, {"turns": 1}, (TURNS, "turns"), ""),
        ([llm_errors.ServerGone("gone")], {"turns": 1}, ("failed", "server_gone"), ""),
    ],
)
def test_replies_without_use_end_the_question(steps, limits, wanted, exact):
    trajectory = ask(ScriptedModel(calling(), *steps), **limits)
    assert ended(trajectory) == wanted
    assert trajectory.answer.exact == exact and len(trajectory.calls) == 1


def test_replies_without_text_and_call_are_sampled_again_and_count_no_turn():
    """As search_agent/oss_client.py of ChuanMeng/text-ranking-in-deep-research at b546046, whose
    loop goes on without counting an iteration or keeping the reply."""
    thought = Turn(reasoning="I should search.", usage=used(10, 5))
    endless = llm_errors.Truncated("cut", turn=replace(thought, finish_reason="length"))
    steps = [thought, endless, calling(usage=used(20, 5)), thought, saying(usage=used(30, 5))]
    model = ScriptedModel(*steps)
    trajectory = ask(model, resample=2, turns=2)
    assert ended(trajectory) == ("completed", "") and trajectory.answer.exact == "Torvald Brekke"
    assert roles(trajectory) == ["system", "user", "assistant", "tool", "assistant"]
    # Each is asked what the one before it was asked, and all are paid.
    first, second, third, fourth, fifth = (request.messages for request in model.requests)
    assert first == second == third and fourth == fifth
    assert (trajectory.usage["agent_calls"], trajectory.usage["agent_resampled"]) == (5, 3)
    assert trajectory.usage["output_tokens"] == 25
    stored = from_record(json.loads(dump_trajectory(trajectory)))
    assert stored.usage["agent_resampled"] == 3
    assert "sampled again" in look_up_measure("usage_agent_resampled").definition


@pytest.mark.parametrize(("resample", "counted"), [(0, None), (2, 2)])
def test_resampling_ends_and_the_model_is_then_told_that_its_reply_was_empty(resample, counted):
    model = ScriptedModel(*[Turn()] * (resample + 1), calling(), saying())
    trajectory = ask(model, resample=resample)
    assert ended(trajectory) == ("completed", "")
    told = [PROMPT["empty"] in str(request.messages) for request in model.requests]
    assert told == [False] * (resample + 1) + [True, True]
    assert trajectory.usage.get("agent_resampled") == counted


def test_output_tokens_of_replies_that_were_sampled_again_count():
    steps = Turn(usage=used(9, 60)), calling(), saying()
    assert ended(ask(ScriptedModel(*steps), resample=9)) == ("completed", "")
    assert ended(ask(ScriptedModel(*steps), resample=9, output_tokens=50))[1] == "output_tokens"


FAULTS = {
    "overflow": (llm_errors.ContextOverflow("full"), ("out_of_context", "context_overflow")),
    "refusal": (llm_errors.Refused("no", turn=Turn(text="I cannot")), ("failed", "refused")),
    **{
        kind.code: (kind("no"), ("failed", kind.code))
        for kind in ModelError.__subclasses__()
        if kind.code not in ("context_overflow", "refused", "truncated", "out_of_money")
    },
}
assert len({wanted for _, wanted in FAULTS.values()}) == len(FAULTS) >= 10


@pytest.mark.parametrize(("error", "wanted"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_ends_in_its_own_way_with_a_complete_trajectory(error, wanted):
    trajectory = ask(ScriptedModel(calling(), last=error))
    assert ended(trajectory) == wanted
    assert len(trajectory.calls) == 1 and trajectory.tiers["surfaced"]
    assert trajectory.messages[3]["role"] == "tool"
    # After an overflow the answer is demanded, and once more without the newest exchange.
    assert trajectory.usage["failed"] == (3 if error.code == "context_overflow" else 1)
    assert from_record(json.loads(dump_trajectory(trajectory))) == trajectory


def test_a_drop_of_cached_tokens_is_reported_with_its_request():
    cached = enumerate([0, 96, 16, 288], start=1)
    usages = [used(100 * n, 10, tokens) for n, tokens in cached]
    model = ScriptedModel(*(calling(usage=each) for each in usages[:3]), saying(usage=usages[3]))
    (warning,) = ask(model).warnings
    assert "request 3" in warning and "96" in warning and "16" in warning
    assert ask(ScriptedModel(calling(usage=used()), saying(usage=Usage()))).warnings == ()


# Prompts and settings.


@pytest.mark.parametrize(
    ("name", "more"), [("pi_serini", ["tools"]), ("browsecomp_plus", ["question_with_reader"])]
)
def test_each_policy_has_all_sections_and_asks_for_the_answer_format(name, more):
    prompt = load_prompt(name)
    assert set(prompt.sections) == {*SECTIONS, "empty_closed", "truncated_closed", *more}
    opening = prompt.opening("Who? {question} {why}")
    assert opening[-1]["role"] == "user" and "Who? {question} {why}" in opening[-1]["content"]
    rules = " ".join(message["content"] for message in opening)
    for text in (rules, prompt.sections["steer"], prompt.sections["final"]):
        assert all(label in text for label in ("Explanation", "Exact Answer", "Confidence"))


def test_every_word_of_a_prompt_counts_in_its_fingerprint(tmp_path):
    source = Path(load_prompt.__code__.co_filename).parent / "prompts" / "pi_serini.txt"
    same, other = tmp_path / "same.txt", tmp_path / "other.txt"
    same.write_text(source.read_text())
    other.write_text(source.read_text().replace("Do not call a tool again", "Call no tool"))
    names = ("pi_serini", str(same), str(other))
    prints = [ChatAgent(prompt=name).fingerprints["prompt"] for name in names]
    assert prints[0] == prints[1] != prints[2]


def opened(interface, matching="unknown", **settings):
    tool = interface(**settings)
    return tool.open(WordBackend(TEXTS), store_of(CORPUS), matching=matching)


def rules_of(session, **arguments):
    system, _ = ChatAgent(**arguments).open(QUESTION, session).messages
    return system["content"]


def test_a_composed_prompt_has_the_sentences_of_the_tools_and_of_no_retriever():
    browsing, top_k = opened(RankedBrowsing, reason_words=7), opened(TopK, k=3)
    for session in (browsing, top_k):
        rules = rules_of(session, prompt="neutral")
        assert session.instructions() in rules and "\n\n\n" not in rules
        assert "matched" not in rules
        names = [spec["name"] for spec in session.specs()]
        assert re.findall("^- (\\w+): ", rules, re.MULTILINE) == names
    assert rules_of(browsing, prompt="neutral").count("in at most 7 words") == 1
    assert "reason" not in top_k.instructions() and "3 best texts" in top_k.instructions()
    told = {each: rules_of(top_k, prompt="neutral", queries=each) for each in ("words", "meaning")}
    assert "\nQueries are matched by words: " in told["words"]
    assert "\nQueries are matched by meaning: " in told["meaning"]
    # What the tools say counts in the fingerprints of a run, where it is sent.
    agent, paper = ChatAgent(prompt="neutral"), ChatAgent(prompt="pi_serini")
    prints = {agent.tool_fingerprints(each)["prompt.tools"] for each in (browsing, top_k)}
    assert len(prints) == 2 and paper.tool_fingerprints(browsing) == {}
    # Of `matched`, what is said counts, and not how it came to be.
    matched = [
        ChatAgent(prompt="neutral", queries="matched").tool_fingerprints(
            opened(TopK, matching=kind)
        )
        for kind in ("lexical", "learned", "mixed")
    ]
    words = ChatAgent(prompt="neutral", queries="words").tool_fingerprints(top_k)
    assert matched[0]["prompt.queries"] == words["prompt.queries"]
    assert matched[1]["prompt.queries"] != words["prompt.queries"]
    assert matched[2].keys() == {"prompt.tools"}
    for queries in ("words", "matched"):
        with pytest.raises(InputError, match=f"queries={queries}, and the prompt pi_serini has no"):
            ChatAgent(prompt="pi_serini", queries=queries)


def test_an_own_prompt_is_sent_as_it_is_and_names_only_tools_that_the_session_has(tmp_path):
    text, own = (FOLDER / "pi_serini.txt").read_text(), tmp_path / "own.txt"
    own.write_text(text)
    session = opened(RankedBrowsing)
    assert rules_of(session, prompt=str(own)) == PROMPT["system"]
    refused = r"names search\(reason\), read_search_results, read_document, which .*search\(query\)"
    with pytest.raises(InputError, match=refused):
        ChatAgent(prompt=str(own)).check_tool(opened(TopK))
    # Without the section `tools`, names with an underscore count.
    own.write_text(re.sub("=== tools ===.*?(?====)", "", text, flags=re.DOTALL))
    ChatAgent(prompt=str(own)).check_tool(session)
    with pytest.raises(InputError, match="names search_id, read_search_results, read_document"):
        ChatAgent(prompt=str(own)).check_tool(opened(TopK))
    # An empty one names none.
    own.write_text(text.replace(f"=== tools ===\n{PROMPT['tools']}", "=== tools ==="))
    ChatAgent(prompt=str(own)).check_tool(opened(TopK))
    for name in ("neutral", "pi_serini"):
        with pytest.raises(InputError, match=r"an agent without tools.*agent.prompt=closed_book"):
            ClosedBookAgent(prompt=name).check_tool(session)


def test_a_prompt_without_a_section_is_refused(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("=== system ===\nBe good.\n=== question ===\n{question}\n")
    refused(r"system, question\. valid: .*truncated", lambda: load_prompt(str(path)))


# Models that keep to no protocol.

PROSE = "Torvald Brekke built the mill."
CALL_AS_TEXT = '{"name": "search", "arguments": {"reason": "", "query": "mill"}}'
ENDLESS = Truncated("cut", turn=Turn(text="and and and", finish_reason="length"))


def demands(trajectory):
    return [message["demand"] for message in trajectory.messages if message.get("demand")]


def counts(trajectory, *names):
    evaluation = evaluate_run([trajectory], SmallBenchmark([QUESTION]))
    return [evaluation.counts[name] for name in names or ("no_call", "reminded")]


def choices(model):
    return [request.settings.tool_choice for request in model.requests]


# The reminder of the answer format.


@pytest.mark.parametrize(
    ("text", "after", "reminded"),
    [
        (ANSWER, [], False),
        ("Exact Answer: N/A", [], False),
        ("**Exact Answer:** Brekke", [], False),
        ("Explanation: three of them\nDocuments: [mill] [brekke]", [], False),
        (PROSE, [saying()], True),
        (PROSE, [calling(search("Brekke", "c2")), saying()], True),
        ("Exact Answer:\nConfidence: 90%", [saying()], True),
        (CALL_AS_TEXT, [saying()], True),
        # As Qwen2.5-Coder-0.5B-Instruct wrote them.
        (f"Explanation: your reasoning in brief\nExact Answer: {CALL_AS_TEXT}", [saying()], True),
        ("Exact Answer: the answer alone\nConfidence: 0% to 100%", [saying()], True),
        ("Exact Answer: the answer alone\nConfidence: how sure you are", [saying()], True),
    ],
)
def test_an_answer_without_the_format_is_accepted_after_one_reminder(text, after, reminded):
    model = ScriptedModel(calling(), saying(text), *after)
    trajectory = ask(model, remind=True)
    assert ended(trajectory) == ("completed", "")
    assert demands(trajectory) == ["reminder"] * reminded
    assert counts(trajectory) == [0, reminded]
    assert len(trajectory.calls) == max(1, len(after))
    assert (trajectory.answer.exact == "Torvald Brekke") == (reminded or text == ANSWER)
    asked = [model.last_message(number) for number in range(2, len(model.requests))]
    assert ["Exact Answer:" in words for words in asked] == [True, False][: len(asked)]


@pytest.mark.parametrize(
    ("after", "lacking"),
    [
        (saying(), False),
        (saying(PROSE), True),
        (saying("Exact Answer: the answer alone\nConfidence: 0% to 100%"), True),
        (saying(f"Exact Answer: {CALL_AS_TEXT}\nConfidence: 90%"), True),
        (OutOfMoney("gone"), True),
        (ENDLESS, True),
    ],
    ids=["format", "prose", "placeholder", "call", "no money", "cut"],
)
@pytest.mark.parametrize("limits", [{}, {"turns": 1}], ids=["by itself", "demanded"])
def test_answers_that_lack_the_format_behind_the_reminder_are_counted(after, lacking, limits):
    trajectory = ask(ScriptedModel(calling(), saying(PROSE), after, after), remind=True, **limits)
    assert counts(trajectory, "no_format", "answered") == [lacking, not lacking]
    assert demands(trajectory) == ["reminder"]


def test_without_the_option_the_first_reply_without_a_call_is_the_answer():
    model = ScriptedModel(calling(), saying(PROSE))
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "") and demands(trajectory) == []
    assert trajectory.answer.explanation == PROSE and choices(model) == ["auto", "auto"]
    assert counts(trajectory, "no_format") == [0]


@pytest.mark.parametrize(
    "useless",
    [(saying(""), saying("")), (ENDLESS, ENDLESS), (ContextOverflow("full"),), (OutOfMoney("x"),)],
    ids=["empty", "repeats itself", "no room", "no money"],
)
def test_a_reminder_never_costs_the_answer_that_was_there(useless):
    trajectory = ask(ScriptedModel(calling(), saying(PROSE), *useless), remind=True)
    assert ended(trajectory) == ("completed", "")
    assert trajectory.answer.explanation == final_response(trajectory) == PROSE
    assert any("reminder" in warning for warning in trajectory.warnings)


def test_time_that_runs_out_behind_the_reminder_leaves_the_answer():
    clock = Clock()
    model = ScriptedModel(calling(), saying(PROSE), clock.then(400, saying("too late")))
    trajectory = ask(model, clock=clock, seconds=300, steer_at=1, remind=True)
    assert ended(trajectory) == ("completed", "")
    assert trajectory.answer.explanation == PROSE


@pytest.mark.parametrize("prompt", ["pi_serini", "document_list"])
@pytest.mark.parametrize(
    ("turns", "wanted", "last_choice"),
    [
        (None, ("completed", ""), "auto"),
        # Without the reminder it would end as completed; so it does with it.
        (2, ("completed", ""), "none"),
        (1, ("out_of_turns", "turns"), "none"),
    ],
    ids=["open", "last", "demanded"],
)
def test_the_reminder_offers_a_call_only_where_tools_are_open(prompt, turns, wanted, last_choice):
    model = ScriptedModel(calling(), saying(PROSE), saying())
    trajectory = ask(model, prompt=prompt, remind=True, turns=turns)
    assert ended(trajectory) == wanted and demands(trajectory) == ["reminder"]
    assert trajectory.answer.exact == "Torvald Brekke" and choices(model)[2] == last_choice
    reminder = model.last_message(2)
    assert "Your last reply is no answer yet" in reminder
    assert ("call it now" in reminder) == (turns is None)
    assert ("no tools to call now" in reminder) == (turns is not None)
    assert load_prompt(prompt).words("reminder").splitlines()[1:] == reminder.splitlines()[1:]


def test_no_call_is_offered_when_time_is_nearly_over_and_to_an_agent_without_tools():
    clock = Clock()
    model = ScriptedModel(clock.then(250, calling()), saying(PROSE), saying())
    ask(model, clock=clock, seconds=300, remind=True)
    assert model.last_message(1) == PROMPT["steer"]
    assert "no tools to call now" in model.last_message(2)
    model = ScriptedModel(saying(PROSE), saying())
    agent = bound(model, kind=ClosedBookAgent, remind=True, first_call="search")
    trajectory = asyncio.run(agent.run(Topic("q1", "Who?"), tool()))
    assert ended(trajectory) == ("completed", "") and demands(trajectory) == ["reminder"]
    assert trajectory.answer.exact == "Torvald Brekke" and choices(model) == ["auto", "auto"]
    assert "no tools to call now" in model.last_message(1)


# A search first.


@pytest.mark.parametrize(
    ("steps", "sent", "demanded", "counted"),
    [
        ([calling(), calling(search("Brekke", "c2"))], ["search", "auto", "auto"], [], [0, 0]),
        # Another tool is no search.
        ([calling(READ), calling()], ["search", "search", "auto"], [], [0, 0]),
        ([saying(PROSE), calling()], ["search", "search", "auto"], ["first_call"], [0, 0]),
        ([saying(PROSE)] * 2, ["search", "search", "search"], ["first_call", "reminder"], [1, 1]),
        # A model that cannot be forced is not forced for ever.
        (
            [calling(call("google", f"c{n}", query="mill")) for n in range(3)] + [calling()],
            [*["search"] * 3, "auto", "auto"],
            *([], [0, 0]),
        ),
    ],
    ids=["search", "another tool", "answer", "never", "ghosts"],
)
def test_the_first_call_is_forced_and_demanded_to_be_a_search(steps, sent, demanded, counted):
    model = ScriptedModel(*steps, saying())
    trajectory = ask(model, first_call="search", remind=True)
    assert ended(trajectory) == ("completed", "")
    assert choices(model) == sent and demands(trajectory) == demanded
    assert counts(trajectory) == counted
    assert trajectory.answer.exact == "Torvald Brekke"


def test_no_search_is_demanded_once_tools_are_closed():
    clock = Clock()
    model = ScriptedModel(clock.then(250, calling(READ)), saying())
    trajectory = ask(model, clock=clock, seconds=300, first_call="search")
    assert ended(trajectory) == ("steered", "") and demands(trajectory) == []
    assert choices(model) == ["search", "auto"]


@pytest.mark.parametrize(
    ("interface", "form", "argument"),
    [
        (RankedBrowsing, 'search(reason="...", query="...")', "query"),
        (TopK, 'search(query="...")', "query"),
    ],
)
def test_the_demand_shows_the_call_that_the_tool_takes(interface, form, argument, tmp_path):
    """In words alone, Qwen2.5-Coder-0.5B-Instruct repeated them as the reason, without query; shown
    the call, it searched."""
    own = tmp_path / "mine.txt"
    text = (FOLDER / "pi_serini.txt").read_text()
    own.write_text(f"{text}\n=== first_call ===\nSearch {{braces}} by {{argument}}: {{call}}\n")
    for name, words in (
        ("pi_serini", f"Call {form} now: the {argument} is"),
        (str(own), f"Search {{braces}} by {argument}: {form}"),
    ):
        session = interface().open(WordBackend(TEXTS), store_of(CORPUS))
        model = ScriptedModel(saying(PROSE), saying())
        trajectory = ask(model, session=session, first_call="search", prompt=name)
        (demand,) = [message for message in trajectory.messages if message.get("demand")]
        assert words in demand["content"] and demand["role"] == "user"


# What small models do.


@pytest.mark.parametrize(
    ("steps", "error", "counted"),
    [
        # As Qwen2.5-Coder-0.5B-Instruct did: the demand as the reason, and no query.
        (
            [calling(call("search", f"c{n}", reason="You have not searched")) for n in range(8)],
            *("missing_argument", [8, 7]),
        ),
        ([calling(search(identifier=f"c{n}")) for n in range(8)], "", [8, 7]),
    ],
    ids=["refused", "repeated"],
)
def test_one_call_again_and_again_ends_with_the_budget_and_an_answer(steps, error, counted):
    trajectory = ask(ScriptedModel(*steps, last=saying()), turns=8, first_call="search")
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert {each.error for each in trajectory.calls} == {error}
    assert counts(trajectory, "calls", "repeated") == counted
    assert trajectory.answer.exact == "Torvald Brekke"


@pytest.mark.parametrize("useless", [saying(""), ENDLESS], ids=["empty", "repeats itself"])
def test_after_a_useless_reply_in_the_last_turn_the_answer_alone_is_demanded(useless):
    # As Qwen2.5-Coder-0.5B-Instruct did: it was told to call a tool, and that tools are closed.
    model = ScriptedModel(calling(), useless, saying())
    trajectory = ask(model, turns=2, remind=True)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert trajectory.answer.exact == "Torvald Brekke"
    contents = [message["content"] for message in model.requests[2].messages[1:]]
    assert contents[-1] == PROMPT["final"]
    assert not {PROMPT["empty"], PROMPT["truncated"]} & set(contents)


def test_a_call_where_the_answer_was_demanded_is_refused_and_the_answer_asked_for_once_more():
    # As Qwen2.5-Coder-0.5B-Instruct did, whose server cannot keep it from calling.
    again = calling(search("Brekke", "c2"))
    trajectory = ask(ScriptedModel(calling(), again, saying()), turns=1, remind=True)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert [each.error for each in trajectory.calls] == ["", "blocked"]
    assert roles(trajectory)[-4:] == ["assistant", "tool", "user", "assistant"]
    assert demands(trajectory) == ["reminder"]
    assert trajectory.answer.exact == "Torvald Brekke"


@pytest.mark.parametrize(("remind", "requests"), [(True, 3), (False, 2)])
def test_a_model_that_calls_instead_of_any_answer_ends_without_one(remind, requests):
    model = ScriptedModel(calling(), last=calling(search("Brekke", "c2")))
    trajectory = ask(model, turns=1, remind=remind)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert choices(model) == ["auto", *["none"] * (requests - 1)]
    assert final_response(trajectory) == ""
    assert counts(trajectory, "answered", "no_format", "failed") == [0, 0, 0]


# Prompts, fingerprints.


def test_a_prompt_may_have_words_of_its_own_for_the_reminder(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text((FOLDER / "pi_serini.txt").read_text())
    for section, turns, words in (
        ("reminder", None, "Three lines, please."),
        ("", 1, "Three lines, please."),
        ("reminder_closed", 1, "No tools, please."),
    ):
        own = f"\n=== {section} ===\n{words}\n" if section else ""
        path.write_text(f"{path.read_text()}{own}")
        model = ScriptedModel(calling(), saying(PROSE), saying())
        ask(model, prompt=str(path), remind=True, turns=turns)
        assert model.last_message(2) == words


def test_what_may_be_demanded_is_in_the_fingerprints_of_agents_that_demand_it(monkeypatch):
    plain, both = ChatAgent().fingerprints, ChatAgent(remind=True, first_call="search").fingerprints
    assert set(plain) == {"prompt"} and both["prompt"] == plain["prompt"]
    assert set(both) == {"prompt", "prompt.reminder", "prompt.first_call"}
    assert not {"reminder", "reminder_closed", "first_call"} & set(PROMPT)
    for section in ("reminder", "reminder_closed"):
        with monkeypatch.context() as patch:
            patch.setitem(prompt._OPTIONAL, section, "Other words.")
            changed = ChatAgent(remind=True, first_call="search").fingerprints
        assert {name for name in both if changed[name] != both[name]} == {"prompt.reminder"}
