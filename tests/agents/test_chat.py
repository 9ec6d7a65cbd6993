"""The tool-calling agent: what it sends, what it records, and each way in which a question ends."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.llm_model import ANSWER, ScriptedModel, call, calling, saying, search, used
from support.search import WordBackend, store_of

from soundingline.agents.base import Budget
from soundingline.agents.chat import ChatAgent
from soundingline.agents.prompt import SECTIONS, load_prompt
from soundingline.toolkit.data import Document, SearchResult, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import ModelError, SamplingParams, ToolCall, Turn, Usage
from soundingline.toolkit.llm import errors as llm_errors
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.trajectory import (
    RUN_OUT_OF_MONEY,
    dump_trajectory,
    from_record,
)

CORPUS = {
    "mill": Document("mill", "Grenholm Mill", "Grenholm Mill was built by Torvald Brekke in 1871."),
    "brekke": Document("brekke", "Torvald Brekke", "Torvald Brekke was a carpenter."),
}
TEXTS = {docid: f"{document.title}\n{document.text}" for docid, document in CORPUS.items()}
QUESTION = Topic("q1", "Who built Grenholm Mill?")
PRICE = Price(input=1.0, output=1.0)  # a dollar for a million tokens of either


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self):
        return self.now

    def then(self, seconds, step):
        """`step`, and the clock moved on before it."""

        def moved():
            self.now += seconds
            return step

        return moved


class Backend:
    """Ranks both documents; remembers what it was asked, and by which thread."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.requests = []
        self.threads = set()
        self._trouble = trouble
        self._inner = WordBackend(TEXTS)

    def search(self, request):
        self.requests.append(request)
        self.threads.add(threading.current_thread().name)
        if self._trouble:
            raise self._trouble
        return self._inner.search(request)


def tool(backend=None, **arguments):
    return RankedBrowsing(**arguments).open(
        backend or Backend(), store_of(CORPUS), clock=lambda: 0.0
    )


def ask(model, *, session=None, clock=time.monotonic, **arguments):
    limits = {name: arguments.pop(name) for name in list(arguments) if name in LIMITS}
    agent = ChatAgent(model=model, budget=Budget(**limits), clock=clock, **arguments)
    return asyncio.run(agent.run(QUESTION, session or tool()))


LIMITS = Budget.__dataclass_fields__


def ended(trajectory):
    return trajectory.status, trajectory.reason


def roles(trajectory):
    return [message["role"] for message in trajectory.messages]


# The plain course of a question.


def test_a_question_is_searched_read_and_answered():
    model = ScriptedModel(
        calling(search()),
        calling(call("read_document", "c2", reason="", docid="mill", offset=None, limit=None)),
        saying(),
    )
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "")
    assert trajectory.answer.exact == "Torvald Brekke"
    assert trajectory.answer.confidence == 90
    assert trajectory.tiers["opened"] == ("mill",) and trajectory.tiers["cited"] == ("mill",)
    assert [each.name for each in trajectory.calls] == ["search", "read_document"]
    assert roles(trajectory) == ["system", "user", *("assistant", "tool") * 2, "assistant"]
    assert trajectory.messages[1]["content"] == QUESTION.text


def test_each_request_begins_with_the_whole_of_the_one_before():
    model = ScriptedModel(*[calling(search(f"mill {n}", f"c{n}")) for n in range(6)], saying())
    trajectory = ask(model, turns=4)
    assert len(model.requests) == 5
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) > len(before.messages)
        assert after.tools == before.tools
    assert trajectory.warnings == ()


def test_several_calls_of_one_turn_are_served_in_order():
    backend = Backend()
    model = ScriptedModel(calling(search("mill", "a"), search("brekke", "b")), saying())
    trajectory = ask(model, session=tool(backend))
    assert [request.query for request in backend.requests] == ["mill", "brekke"]
    results = [m["tool_call_id"] for m in trajectory.messages if m["role"] == "tool"]
    assert results == ["a", "b"]


def test_the_newest_thought_goes_with_each_search_and_no_other_questions_does():
    def choose(messages, settings):
        mine = messages[1]["content"]
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 3:
            return saying()
        thought = "" if turn == 1 else f"{mine} {turn}"
        return calling(search(f"mill {turn}", f"c{turn}"), reasoning=thought)

    backends = [Backend() for _ in range(16)]
    agent = ChatAgent(model=ScriptedModel(choose=choose))

    async def many():
        sessions = enumerate(backends)
        await asyncio.gather(*(agent.run(Topic(str(n), f"q{n}"), tool(b)) for n, b in sessions))

    asyncio.run(many())
    for number, backend in enumerate(backends):
        thoughts = [request.reasoning for request in backend.requests]
        # A turn without a thought of its own leaves the one before.
        assert thoughts == [f"q{number} 0", f"q{number} 0", f"q{number} 2"]


def test_text_beside_a_call_stands_for_a_thought_where_the_server_gives_none():
    backend = Backend()
    ask(ScriptedModel(calling(text="I look for the mill."), saying()), session=tool(backend))
    assert backend.requests[0].reasoning == "I look for the mill."


def test_tools_run_outside_the_event_loops_thread():
    backend = Backend()
    ask(ScriptedModel(calling(), saying()), session=tool(backend))
    assert threading.main_thread().name not in backend.threads


def test_the_models_settings_are_sent_and_only_a_demanded_answer_changes_the_tool_choice():
    model = ScriptedModel(calling(), saying())
    settings = SamplingParams(temperature=0.3, seed=7, tool_choice="required")
    ask(model, settings=settings, turns=1)
    assert [asked.settings for asked in model.requests] == [
        settings,
        replace(settings, tool_choice="none"),
    ]


def test_usage_is_entered_by_role_and_on_each_message():
    ledger = Ledger(clock=lambda: 0.0)
    model = ScriptedModel(calling(usage=used(100, 10, 0)), saying(usage=used(150, 20, 96)))
    trajectory = ask(model, ledger=ledger, price=PRICE)
    assert trajectory.usage["input_tokens"] == 250 and trajectory.usage["agent_calls"] == 2
    assert trajectory.usage["dollars"] == pytest.approx(280e-6)
    said = [m["usage"] for m in trajectory.messages if m["role"] == "assistant"]
    assert said[1] == {"input": 150, "cached": 96, "output": 20}


# Budgets, one after the other.


def test_at_seven_tenths_of_the_time_the_model_is_told_and_tools_are_refused():
    clock = Clock()
    model = ScriptedModel(
        clock.then(60, calling(search("a"))),
        clock.then(10, calling(search("b"))),
        clock.then(1, saying()),
    )
    backend = Backend()
    trajectory = ask(model, session=tool(backend), clock=clock, seconds=100)
    assert ended(trajectory) == ("steered", "")
    assert trajectory.answer.exact == "Torvald Brekke"
    # The clock stood at 70 when the second call came.
    assert [request.query for request in backend.requests] == ["a"]
    assert [each.error for each in trajectory.calls] == ["", "blocked"]
    steer = load_prompt("pi_serini").sections["steer"]
    assert [m["content"] for m in trajectory.messages if m["role"] == "user"][1:] == [steer]
    assert trajectory.messages[-2]["content"] == steer


def test_below_seven_tenths_nothing_is_said():
    clock = Clock()
    model = ScriptedModel(clock.then(69.9, calling()), clock.then(0, saying()))
    assert ended(ask(model, clock=clock, seconds=100)) == ("completed", "")


def test_a_steer_at_one_never_comes():
    clock = Clock()
    model = ScriptedModel(clock.then(99, calling()), clock.then(0, saying()))
    assert ended(ask(model, clock=clock, seconds=100, steer_at=1)) == ("completed", "")


def test_a_model_that_goes_on_calling_closed_tools_is_made_to_answer():
    clock = Clock()
    model = ScriptedModel(clock.then(80, calling()), calling(search("x")), saying())
    trajectory = ask(model, clock=clock, seconds=100)
    assert ended(trajectory) == ("steered", "")
    assert [asked.settings.tool_choice for asked in model.requests] == ["auto", "auto", "none"]


def test_a_model_that_never_answers_after_the_steer_is_given_up():
    clock = Clock()
    model = ScriptedModel(clock.then(80, calling()), last=calling())
    trajectory = ask(model, clock=clock, seconds=100)
    assert ended(trajectory) == ("steered", "no_answer")
    assert len(model.requests) == 4 and trajectory.answer.exact == ""


def test_an_answer_after_the_end_of_the_time_does_not_count():
    clock = Clock()
    trajectory = ask(ScriptedModel(clock.then(100, saying())), clock=clock, seconds=100)
    assert ended(trajectory) == ("timed_out", "seconds")
    assert trajectory.answer.exact == "" and trajectory.messages[-1]["content"] == ANSWER


def test_a_server_that_stalls_is_left_when_time_is_over():
    async def stall():
        await asyncio.sleep(60)
        return saying()

    clock = Clock()

    class Slow(Backend):
        def search(self, request):
            clock.now = 99.9  # by the agent's clock a tenth of a second is left to the server
            return super().search(request)

    model = ScriptedModel(calling(), stall)
    began = time.monotonic()
    trajectory = ask(model, session=tool(Slow()), clock=clock, seconds=100, steer_at=1)
    assert ended(trajectory) == ("timed_out", "seconds")
    assert time.monotonic() - began < 30
    assert len(trajectory.calls) == 1


def test_a_search_that_stalls_is_left_when_time_is_over():
    release = threading.Event()

    class Stalled(Backend):
        def search(self, request):
            release.wait(10)
            return SearchResult([])

    async def one():
        agent = ChatAgent(model=ScriptedModel(calling()), budget=Budget(seconds=0.1))
        trajectory = await agent.run(QUESTION, tool(Stalled()))
        release.set()
        return trajectory

    assert ended(asyncio.run(one())) == ("timed_out", "seconds")


def test_a_time_out_inside_a_tool_is_no_time_out_of_the_question():
    trajectory = ask(ScriptedModel(calling()), session=tool(Backend(TimeoutError("x"))), seconds=9)
    assert ended(trajectory) == ("failed", "defect")
    assert "TimeoutError: x" in trajectory.traceback


LIMITED = {
    "turns": ({"turns": 2}, [calling(), calling()], ("out_of_turns", "turns")),
    "tool calls": ({"tool_calls": 2}, [calling(), calling()], ("out_of_turns", "tool_calls")),
    "output tokens": (
        {"output_tokens": 100},
        [calling(usage=used(50, 60)), calling(usage=used(99, 60))],
        ("out_of_turns", "output_tokens"),
    ),
    "output tokens that no server counts": (
        {"output_tokens": 100},
        [calling(reasoning="x" * 400)],
        ("out_of_turns", "output_tokens"),
    ),
    "context": (
        {"context_window": 10_000},
        [calling(usage=used(6100, 10))],
        ("out_of_context", "context_window"),
    ),
    "context that no server counts": (
        {"context_window": 10_000},
        [calling(reasoning="x" * 20_000)],
        ("out_of_context", "context_window"),
    ),
}


@pytest.mark.parametrize(("limits", "steps", "wanted"), LIMITED.values(), ids=LIMITED.keys())
def test_a_used_up_budget_closes_the_tools_and_demands_the_answer(limits, steps, wanted):
    model = ScriptedModel(*steps, saying())
    trajectory = ask(model, **limits)
    assert ended(trajectory) == wanted
    assert trajectory.answer.exact == "Torvald Brekke"
    last = model.requests[-1]
    assert last.settings.tool_choice == "none"
    assert last.messages[-1]["content"] == load_prompt("pi_serini").sections["final"]
    assert len(model.requests) == len(steps) + 1


def test_what_a_server_needs_to_bind_an_answer_is_sent_with_that_request_alone():
    model = ScriptedModel(calling(), saying())
    settings = SamplingParams(tool_choice="required", extra={"top_k": 20, "min_p": 0.1})
    ask(model, turns=1, settings=settings, answer_extra={"top_k": 1, "grammar": "root"})
    first, last = (request.settings for request in model.requests)
    assert (first.tool_choice, first.extra) == ("required", {"top_k": 20, "min_p": 0.1})
    assert last.extra == {"top_k": 1, "min_p": 0.1, "grammar": "root"}


def test_calls_of_one_turn_beyond_their_budget_are_refused():
    calls = [search(str(n), f"c{n}") for n in range(4)]
    trajectory = ask(ScriptedModel(calling(*calls), saying()), tool_calls=2)
    assert [each.error for each in trajectory.calls] == ["", "", "blocked", "blocked"]
    assert ended(trajectory) == ("out_of_turns", "tool_calls")


def test_no_answer_is_demanded_of_a_transcript_that_no_longer_fits():
    model = ScriptedModel(calling(usage=used(9_999, 10)))
    trajectory = ask(model, context_window=10_000)
    assert ended(trajectory) == ("out_of_context", "context_window")
    assert len(model.requests) == 1 and trajectory.answer.exact == ""
    assert trajectory.warnings == ()


def test_what_came_since_the_servers_count_is_estimated():
    model = ScriptedModel(calling(usage=used(100, 10)), calling(usage=used(500, 10)), saying())
    # The result of the first search is far below the window, a page of 30,000 characters is not.
    assert ended(ask(model, context_window=9_000)) == ("completed", "")
    long = {"long": Document("long", "", "mill " * 6_000)}
    session = TopK(max_tokens=None).open(WordBackend({"long": "mill"}), store_of(long))
    model = ScriptedModel(calling(call(query="mill"), usage=used(100, 10)), saying())
    trajectory = ask(model, session=session, context_window=9_000)
    assert ended(trajectory) == ("out_of_context", "context_window")


def test_the_answer_is_demanded_while_there_is_money_for_it():
    costly = used(1_000_000, 0)  # a dollar
    model = ScriptedModel(*[calling(usage=costly)] * 3, saying(usage=costly))
    trajectory = ask(model, price=PRICE, dollars=5.0)
    assert ended(trajectory) == ("out_of_money", "dollars")
    assert trajectory.usage["dollars"] == 4.0
    assert trajectory.answer.exact == "Torvald Brekke"


def test_a_question_whose_first_turn_takes_its_money_ends_without_an_answer():
    model = ScriptedModel(calling(usage=used(2_000_000, 0)))
    trajectory = ask(model, price=PRICE, dollars=2.0)
    assert ended(trajectory) == ("out_of_money", "dollars")
    assert trajectory.answer.exact == "" and len(model.requests) == 1


def test_the_end_of_the_runs_money_is_told_apart():
    ledger = Ledger(cap=1.0, spent_before=1.0)
    trajectory = ask(ScriptedModel(), price=PRICE, ledger=ledger)
    assert ended(trajectory) == ("out_of_money", RUN_OUT_OF_MONEY)


# What a model can do wrong.


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (ToolCall("c", "search", '{"reason": "x", "query": '), "arguments_not_an_object"),
        (ToolCall("c", "search", "[1, 2]"), "arguments_not_an_object"),
        (ToolCall("c", "search", ""), "missing_argument"),
        (ToolCall("c", "browse_web", "{}"), "unknown_tool"),
        (ToolCall("c", "", "{}"), "unknown_tool"),
        (ToolCall("c", "search", '{"reason": "", "query": 1.5}'), "wrong_type"),
        (ToolCall("c", "search", '{"reason": "", "query": NaN}'), "arguments_not_an_object"),
        (ToolCall("c", "search", "[" * 100_000), "arguments_not_an_object"),
    ],
)
def test_a_wrong_call_comes_back_as_a_tool_error(bad, code):
    model = ScriptedModel(calling(bad), saying())
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "")
    (made,) = trajectory.calls
    assert made.error == code
    result = model.requests[1].messages[-1]
    assert result["role"] == "tool" and result["content"] == made.output
    assert f"code={code}" in result["content"]


def test_an_empty_reply_is_asked_for_again_once():
    model = ScriptedModel(calling(), Turn(), saying())
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "")
    assert model.requests[2].messages[-1]["content"] == load_prompt("pi_serini").sections["empty"]


def test_two_empty_replies_fail_as_such():
    trajectory = ask(ScriptedModel(calling(), Turn(), Turn(text=" \n")))
    assert ended(trajectory) == ("failed", "empty_answer")
    assert len(trajectory.calls) == 1


def cut(text="I think th"):
    half = Turn(text=text, tool_calls=(search(),), usage=used(100, 50), provider={"api": "x"})
    return llm_errors.Truncated("cut", turn=half)


def test_a_truncated_reply_is_kept_and_asked_for_again_once():
    model = ScriptedModel(cut(), saying(usage=used(120, 7)))
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "")
    kept, said = model.requests[1].messages[-2:]
    # Half a call cannot be answered, so it is not sent back.
    assert kept["content"] == "I think th" and "tool_calls" not in kept and "provider" not in kept
    assert said["content"] == load_prompt("pi_serini").sections["truncated"]
    assert trajectory.usage["output_tokens"] == 57


PROMPTS_OF_TOOLS = ("pi_serini", "browsecomp_plus", "document_list", "grep")


@pytest.mark.parametrize("prompt", PROMPTS_OF_TOOLS)
@pytest.mark.parametrize(
    ("section", "unusable"), [("empty", Turn()), ("truncated", cut())], ids=["empty", "truncated"]
)
def test_a_reply_of_no_use_is_offered_a_call_only_while_tools_are_open(prompt, section, unusable):
    sections = load_prompt(prompt).sections
    offers = ("call a tool", "call the search tool")
    for closed in (False, True):
        clock = Clock()
        model = ScriptedModel(clock.then(80 * closed, calling()), unusable, saying())
        trajectory = ask(model, clock=clock, seconds=100, prompt=prompt)
        last_words = model.requests[2].messages[-1]["content"]
        assert last_words == sections[f"{section}_closed" if closed else section]
        assert any(offer in last_words.lower() for offer in offers) != closed
        assert last_words.split(".")[0] == sections[section].split(".")[0]
        assert ended(trajectory) == ("steered" if closed else "completed", "")


def test_a_prompt_without_words_for_closed_tools_says_that_they_are_closed(tmp_path):
    sections = dict.fromkeys(SECTIONS, "Call a tool.")
    sections |= {"question": "{question}", "blocked": "No tools."}
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"=== {name} ===\n{text}\n" for name, text in sections.items()))
    for unusable in (Turn(), cut()):
        clock = Clock()
        model = ScriptedModel(clock.then(80, calling()), unusable, saying())
        ask(model, clock=clock, seconds=100, prompt=str(path))
        assert model.requests[2].messages[-1]["content"] == "No tools."


def test_two_truncated_replies_fail_as_such():
    assert ended(ask(ScriptedModel(cut(), cut()))) == ("failed", "truncated")


def test_what_there_is_of_a_truncated_last_word_is_taken():
    trajectory = ask(ScriptedModel(calling(), cut(ANSWER + "\nAnd also")), turns=1)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert trajectory.answer.exact == "Torvald Brekke"


FAULTS = {
    "overflow": (llm_errors.ContextOverflow("full"), ("out_of_context", "context_overflow")),
    "refusal": (llm_errors.Refused("no", turn=Turn(text="I cannot")), ("failed", "refused")),
    **{
        kind.code: (kind("no"), ("failed", kind.code))
        for kind in ModelError.__subclasses__()
        if kind.code not in ("context_overflow", "refused", "truncated", "out_of_money")
    },
}


@pytest.mark.parametrize(("error", "wanted"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_ends_in_its_own_way_with_the_trajectory_whole(error, wanted):
    trajectory = ask(ScriptedModel(calling(), last=error))
    assert ended(trajectory) == wanted
    assert len(trajectory.calls) == 1 and trajectory.tiers["surfaced"]
    assert trajectory.messages[3]["role"] == "tool"
    # After an overflow the answer is demanded, and once more without the newest exchange.
    assert trajectory.usage["failed"] == (3 if error.code == "context_overflow" else 1)
    assert from_record(json.loads(dump_trajectory(trajectory))) == trajectory


def test_there_is_more_than_one_fault():
    assert len(FAULTS) >= 10
    assert len({wanted for _, wanted in FAULTS.values()}) == len(FAULTS)


def test_a_broken_backend_ends_the_question_alone():
    trajectory = ask(ScriptedModel(calling()), session=tool(Backend(RuntimeError("broken"))))
    assert ended(trajectory) == ("failed", "defect")
    assert "RuntimeError: broken" in trajectory.traceback


def test_a_fault_while_the_last_word_is_awaited_leaves_the_first_cause():
    overflow = llm_errors.ContextOverflow("full")
    model = ScriptedModel(calling(), last=overflow)
    assert ended(ask(model, turns=1)) == ("out_of_turns", "turns")
    gone = llm_errors.ServerGone("gone")
    assert ended(ask(ScriptedModel(calling(), gone), turns=1)) == ("failed", "server_gone")


# The prefix.


def test_a_drop_of_cached_tokens_is_told_with_its_request():
    model = ScriptedModel(
        calling(usage=used(100, 10, 0)),
        calling(usage=used(200, 10, 96)),
        calling(usage=used(300, 10, 16)),
        saying(usage=used(400, 10, 288)),
    )
    (warning,) = ask(model).warnings
    assert "request 3" in warning and "96" in warning and "16" in warning


def test_no_cached_counts_no_warning():
    model = ScriptedModel(calling(usage=used()), saying(usage=Usage()))
    assert ask(model).warnings == ()


# Prompts, settings, repetition.


@pytest.mark.parametrize(
    ("name", "more"), [("pi_serini", []), ("browsecomp_plus", ["question_with_reader"])]
)
def test_each_policy_has_all_sections_and_asks_for_the_answer_format(name, more):
    prompt = load_prompt(name)
    assert set(prompt.sections) == {*SECTIONS, "empty_closed", "truncated_closed", *more}
    opening = prompt.opening("Who? {question} {why}")
    assert opening[-1]["role"] == "user" and "Who? {question} {why}" in opening[-1]["content"]
    told = " ".join(message["content"] for message in opening)
    for text in (told, prompt.sections["steer"], prompt.sections["final"]):
        assert all(label in text for label in ("Explanation", "Exact Answer", "Confidence"))


def test_every_word_of_a_prompt_counts_in_its_fingerprint(tmp_path):
    source = Path(load_prompt.__code__.co_filename).parent / "prompts" / "pi_serini.txt"
    same, other = tmp_path / "same.txt", tmp_path / "other.txt"
    same.write_text(source.read_text())
    other.write_text(source.read_text().replace("Do not call a tool again", "Call no tool"))
    prints = [
        ChatAgent(model=ScriptedModel(), prompt=name).fingerprints["prompt"]
        for name in ("pi_serini", str(same), str(other))
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"prompt": "pi_seryni"}, "pi_serini"),
        ({"prompt": "/nowhere/mine.txt"}, "browsecomp_plus"),
        ({"budget": {"seconds": 0}}, "seconds=0"),
        ({"budget": {"turns": 1.5}}, "turns=1.5"),
        ({"budget": {"turns": math.inf}}, "turns=inf"),
        ({"budget": {"seconds": math.inf}}, "seconds=inf"),
        ({"budget": {"steer_at": 70}}, "steer_at=70"),
        ({"budget": {"tool_calls": True}}, "tool_calls=True"),
        ({"budget": {"dollars": 1.0}}, "price"),
        ({"budget": {"answer_tokens": None}}, "answer_tokens=None"),
    ],
)
def test_impossible_settings_are_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        if "budget" in arguments:
            arguments = {"budget": Budget(**arguments["budget"])}
        ChatAgent(model=ScriptedModel(), **arguments)


def test_a_prompt_without_a_section_is_refused(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("=== system ===\nBe good.\n=== question ===\n{question}\n")
    with pytest.raises(InputError, match=r"system, question\. valid: .*truncated"):
        load_prompt(str(path))
