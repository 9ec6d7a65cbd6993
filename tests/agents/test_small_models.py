"""Models that keep to no protocol: what the harness asks of them, and what it takes."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from support.benchmarks import SmallBenchmark
from support.llm_model import ANSWER, ScriptedModel, call, calling, saying, search
from support.search import WordBackend, store_of
from test_chat import CORPUS, TEXTS, Clock, ask, ended, roles, tool

from soundingline.agents import prompt
from soundingline.agents.baselines import ClosedBookAgent
from soundingline.agents.chat import ChatAgent
from soundingline.agents.prompt import FOLDER, load_prompt
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.agent_run import evaluate_run
from soundingline.toolkit.llm import errors as llm_errors
from soundingline.toolkit.llm.messages import Turn
from soundingline.toolkit.search import Grep, RankedBrowsing, TopK
from soundingline.toolkit.trajectory import final_response

PROSE = "Torvald Brekke built the mill."
CALL_AS_TEXT = '{"name": "search", "arguments": {"reason": "", "query": "mill"}}'


def demands(trajectory):
    return [message["demand"] for message in trajectory.messages if message.get("demand")]


def counts(trajectory, *names):
    topics = [Topic("q1", "Who built Grenholm Mill?")]
    evaluation = evaluate_run([trajectory], SmallBenchmark(topics))
    return {name: evaluation.counts[name] for name in names or ("no_call", "reminded")}


# The reminder of the answer format.


def test_an_answer_without_the_format_is_accepted_after_one_reminder():
    model = ScriptedModel(calling(), saying(PROSE), saying())
    trajectory = ask(model, remind=True)
    assert ended(trajectory) == ("completed", "")
    assert trajectory.answer.exact == "Torvald Brekke"
    assert demands(trajectory) == ["reminder"]
    reminder = model.requests[2].messages[-1]
    assert reminder["role"] == "user" and "Exact Answer:" in reminder["content"]
    assert counts(trajectory) == {"no_call": 0, "reminded": 1}


def test_a_second_answer_without_the_format_is_taken_as_it_is():
    trajectory = ask(ScriptedModel(calling(), saying(PROSE), saying("It was Brekke.")), remind=True)
    assert ended(trajectory) == ("completed", "")
    assert (trajectory.answer.exact, trajectory.answer.explanation) == ("", "It was Brekke.")
    assert demands(trajectory) == ["reminder"]


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        "Exact Answer: N/A",
        "**Exact Answer:** Brekke",
        "Explanation: three of them\nDocuments: [mill] [brekke]",
    ],
)
def test_an_answer_with_the_format_is_accepted_at_once(text):
    trajectory = ask(ScriptedModel(calling(), saying(text)), remind=True)
    assert ended(trajectory) == ("completed", "") and demands(trajectory) == []


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "Exact Answer:\nConfidence: 90%",
        CALL_AS_TEXT,
        # As Qwen2.5-Coder-0.5B-Instruct wrote them.
        f"Explanation: your reasoning in brief\nExact Answer: {CALL_AS_TEXT}\nConfidence: 90%",
        "Explanation: the answer alone\nExact Answer: the answer alone\nConfidence: 0% to 100%",
        "Exact Answer: the answer alone\nConfidence: how sure you are, from 0% to 100%",
    ],
)
def test_whatever_names_no_answer_is_no_answer_yet(text):
    assert demands(ask(ScriptedModel(calling(), saying(text), saying()), remind=True)) == [
        "reminder"
    ]


@pytest.mark.parametrize(
    ("after", "lacking"),
    [
        (saying(), False),
        (saying(PROSE), True),
        (saying("Exact Answer: the answer alone\nConfidence: 0% to 100%"), True),
        (saying(f"Exact Answer: {CALL_AS_TEXT}\nConfidence: 90%"), True),
        (llm_errors.OutOfMoney("gone"), True),
        (llm_errors.Truncated("cut", turn=Turn(text="and and", finish_reason="length")), True),
    ],
    ids=["format", "prose", "placeholder", "call", "no money", "cut"],
)
@pytest.mark.parametrize("limits", [{}, {"turns": 1}], ids=["by itself", "demanded"])
def test_answers_that_lack_the_format_behind_the_reminder_are_counted(after, lacking, limits):
    trajectory = ask(ScriptedModel(calling(), saying(PROSE), after, after), remind=True, **limits)
    assert counts(trajectory, "no_format", "answered") == {
        "no_format": lacking,
        "answered": not lacking,
    }
    assert counts(ask(ScriptedModel(calling(), saying(PROSE))), "no_format") == {"no_format": 0}


def test_without_the_option_the_first_reply_without_a_call_is_the_answer():
    model = ScriptedModel(calling(), saying(PROSE))
    trajectory = ask(model)
    assert ended(trajectory) == ("completed", "") and demands(trajectory) == []
    assert trajectory.answer.explanation == PROSE and len(model.requests) == 2
    assert {request.settings.tool_choice for request in model.requests} == {"auto"}


def test_after_the_reminder_the_model_may_search_on():
    model = ScriptedModel(calling(), saying(PROSE), calling(search("Brekke", "c2")), saying())
    trajectory = ask(model, remind=True)
    assert trajectory.answer.exact == "Torvald Brekke"
    assert [each.name for each in trajectory.calls] == ["search", "search"]


@pytest.mark.parametrize(
    "useless",
    [
        (saying(""), saying("")),
        2 * (llm_errors.Truncated("cut", turn=Turn(text="and and and", finish_reason="length")),),
        (llm_errors.ContextOverflow("full"),),
        (llm_errors.OutOfMoney("gone"),),
    ],
    ids=["empty", "repeats itself", "no room", "no money"],
)
def test_a_reminder_never_costs_the_answer_that_was_there(useless):
    trajectory = ask(ScriptedModel(calling(), saying(PROSE), *useless), remind=True)
    assert ended(trajectory) == ("completed", "")
    assert trajectory.answer.explanation == PROSE
    assert final_response(trajectory) == PROSE
    assert any("reminder" in warning for warning in trajectory.warnings)


def test_time_that_runs_out_behind_the_reminder_leaves_the_answer():
    clock = Clock()
    model = ScriptedModel(calling(), saying(PROSE), clock.then(400, saying("too late")))
    trajectory = ask(model, clock=clock, seconds=300, steer_at=1, remind=True)
    assert ended(trajectory) == ("completed", "")
    assert trajectory.answer.explanation == PROSE


def test_the_last_turn_s_answer_may_be_put_into_the_format():
    # Without the reminder it would end as completed; so it does with it.
    trajectory = ask(ScriptedModel(calling(), saying(PROSE), saying()), turns=2, remind=True)
    assert ended(trajectory) == ("completed", "") and trajectory.answer.exact == "Torvald Brekke"


def test_an_answer_that_was_demanded_is_reminded_of_the_format_too():
    model = ScriptedModel(calling(), saying(PROSE), saying())
    trajectory = ask(model, turns=1, remind=True)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert trajectory.answer.exact == "Torvald Brekke"
    assert [request.settings.tool_choice for request in model.requests[1:]] == ["none", "none"]


@pytest.mark.parametrize("prompt", ["pi_serini", "document_list"])
@pytest.mark.parametrize(
    ("turns", "may_call"), [(None, True), (2, False), (1, False)], ids=["open", "last", "demanded"]
)
def test_the_reminder_offers_a_call_only_where_tools_are_open(prompt, turns, may_call):
    model = ScriptedModel(calling(), saying(PROSE), saying())
    trajectory = ask(model, prompt=prompt, remind=True, turns=turns)
    assert demands(trajectory) == ["reminder"]
    reminder = model.requests[2].messages[-1]["content"]
    assert "Your last reply is no answer yet" in reminder
    assert ("call it now" in reminder) == may_call
    assert ("no tools to call now" in reminder) == (not may_call)
    assert load_prompt(prompt).words("reminder").splitlines()[1:] == reminder.splitlines()[1:]


def test_the_reminder_offers_no_call_when_time_is_nearly_over():
    clock = Clock()
    model = ScriptedModel(clock.then(250, calling()), saying(PROSE), saying())
    ask(model, clock=clock, seconds=300, remind=True)
    assert model.requests[1].messages[-1]["content"] == load_prompt("pi_serini").sections["steer"]
    assert "no tools to call now" in model.requests[2].messages[-1]["content"]


def test_an_agent_without_tools_is_reminded_of_the_format_alone():
    model = ScriptedModel(saying(PROSE), saying())
    agent = ClosedBookAgent(model=model, remind=True)
    trajectory = asyncio.run(agent.run(Topic("q1", "Who?"), tool()))
    assert ended(trajectory) == ("completed", "")
    assert trajectory.answer.exact == "Torvald Brekke"
    assert "no tools to call now" in model.requests[1].messages[-1]["content"]


# A search first.


def test_no_search_is_demanded_once_tools_are_closed():
    clock = Clock()
    browse = call("read_document", "c1", reason="", docid="mill", offset=None, limit=None)
    model = ScriptedModel(clock.then(250, calling(browse)), saying())
    trajectory = ask(model, clock=clock, seconds=300, first_call="search")
    assert ended(trajectory) == ("steered", "") and demands(trajectory) == []
    assert [request.settings.tool_choice for request in model.requests] == ["search", "auto"]


def test_the_first_call_is_forced_to_be_a_search_and_the_model_is_free_then():
    model = ScriptedModel(calling(), calling(search("Brekke", "c2")), saying())
    trajectory = ask(model, first_call="search")
    choices = [request.settings.tool_choice for request in model.requests]
    assert choices == ["search", "auto", "auto"]
    assert demands(trajectory) == []


def test_a_model_that_answers_before_it_searched_is_told_so_once():
    model = ScriptedModel(saying(PROSE), calling(), saying())
    trajectory = ask(model, first_call="search")
    assert ended(trajectory) == ("completed", "")
    assert demands(trajectory) == ["first_call"]
    assert roles(trajectory)[:5] == ["system", "user", "assistant", "user", "assistant"]
    assert counts(trajectory) == {"no_call": 0, "reminded": 0}


@pytest.mark.parametrize(
    ("interface", "form", "argument"),
    [
        (RankedBrowsing, 'search(reason="...", query="...")', "query"),
        (TopK, 'search(query="...")', "query"),
        (partial(Grep, syntax="words"), 'grep(reason="...", words="...")', "words"),
    ],
)
def test_the_demand_shows_the_call_that_the_tool_takes(interface, form, argument):
    """Told in words alone, Qwen2.5-Coder-0.5B-Instruct repeated them as the reason, without query;
    shown the call, it searched."""
    session = interface().open(WordBackend(TEXTS), store_of(CORPUS))
    trajectory = ask(ScriptedModel(saying(PROSE), saying()), session=session, first_call="search")
    (demand,) = [message for message in trajectory.messages if message.get("demand")]
    assert f"Call {form} now: the {argument} is" in demand["content"]


def test_a_demand_in_words_of_ones_own_shows_the_call_where_it_wants_to(tmp_path):
    path = tmp_path / "mine.txt"
    text = (FOLDER / "pi_serini.txt").read_text()
    path.write_text(f"{text}\n=== first_call ===\nSearch {{braces}} by {{argument}}: {{call}}\n")
    trajectory = ask(ScriptedModel(saying(PROSE), saying()), prompt=str(path), first_call="search")
    (demand,) = [message for message in trajectory.messages if message.get("demand")]
    assert demand["content"] == 'Search {braces} by query: search(reason="...", query="...")'


def test_one_that_never_searches_is_heard_and_counted():
    trajectory = ask(ScriptedModel(last=saying(PROSE)), first_call="search", remind=True)
    assert ended(trajectory) == ("completed", "")
    assert demands(trajectory) == ["first_call", "reminder"]
    assert trajectory.answer.explanation == PROSE and trajectory.calls == ()
    assert counts(trajectory) == {"no_call": 1, "reminded": 1}


def test_another_tool_is_no_search():
    browse = call("read_document", "c1", reason="", docid="mill", offset=None, limit=None)
    model = ScriptedModel(calling(browse), calling(), saying())
    ask(model, first_call="search")
    choices = [request.settings.tool_choice for request in model.requests]
    assert choices == ["search", "search", "auto"]


def test_an_agent_without_tools_demands_no_search():
    model = ScriptedModel(saying())
    agent = ClosedBookAgent(model=model, first_call="search")
    trajectory = asyncio.run(agent.run(Topic("q1", "Who?"), tool()))
    assert ended(trajectory) == ("completed", "") and demands(trajectory) == []
    assert model.requests[0].settings.tool_choice == "auto"


def test_only_a_search_can_be_demanded():
    with pytest.raises(InputError, match=r"first_call.*'browse'"):
        ChatAgent(first_call="browse")


# What small models do.


def test_calls_of_tools_that_do_not_exist_are_refused_and_the_question_goes_on():
    ghosts = [calling(call("google", f"c{n}", query="mill")) for n in range(3)]
    model = ScriptedModel(*ghosts, calling(search(identifier="c3")), saying())
    trajectory = ask(model, first_call="search", remind=True)
    assert ended(trajectory) == ("completed", "")
    assert [each.error for each in trajectory.calls] == ["unknown_tool"] * 3 + [""]
    assert "search" in model.requests[1].messages[-1]["content"]
    # A model that cannot be forced is not forced for ever.
    choices = [request.settings.tool_choice for request in model.requests]
    assert choices == ["search", "search", "search", "auto", "auto"]


def test_one_call_that_is_refused_again_and_again_ends_with_the_budget():
    # As Qwen2.5-Coder-0.5B-Instruct did: the demand as the reason, and no query.
    wrong = [calling(call("search", f"c{n}", reason="You have not searched")) for n in range(8)]
    trajectory = ask(ScriptedModel(*wrong, last=saying()), turns=8, first_call="search")
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert {each.error for each in trajectory.calls} == {"missing_argument"}
    assert trajectory.answer.exact == "Torvald Brekke"


def test_the_same_call_again_and_again_ends_with_the_budget_and_an_answer():
    model = ScriptedModel(*[calling(search(identifier=f"c{n}")) for n in range(8)], last=saying())
    trajectory = ask(model, turns=8, first_call="search", remind=True)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert counts(trajectory, "calls", "repeated") == {"calls": 8, "repeated": 7}
    assert len(trajectory.calls) == 8 and trajectory.answer.exact == "Torvald Brekke"


@pytest.mark.parametrize(
    "useless",
    [saying(""), llm_errors.Truncated("cut", turn=Turn(text="mill " * 50, finish_reason="length"))],
    ids=["empty", "repeats itself"],
)
def test_after_a_useless_reply_in_the_last_turn_the_answer_alone_is_demanded(useless):
    # As Qwen2.5-Coder-0.5B-Instruct did: it was told to call a tool, and that tools are closed.
    model = ScriptedModel(calling(), useless, saying())
    trajectory = ask(model, turns=2, remind=True)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert trajectory.answer.exact == "Torvald Brekke"
    said = [message["content"] for message in model.requests[2].messages[1:]]
    assert said[-1] == load_prompt("pi_serini").sections["final"]
    assert not {load_prompt("pi_serini").sections[name] for name in ("empty", "truncated")} & set(
        said
    )


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
    assert len(model.requests) == requests
    assert {request.settings.tool_choice for request in model.requests[1:]} == {"none"}
    assert final_response(trajectory) == ""
    assert counts(trajectory, "answered", "no_format", "failed") == {
        "answered": 0,
        "no_format": 0,
        "failed": 0,
    }


def test_a_reply_that_repeats_itself_twice_without_any_answer_fails_as_truncated():
    endless = llm_errors.Truncated("cut", turn=Turn(text="mill " * 50, finish_reason="length"))
    trajectory = ask(ScriptedModel(calling(), endless, endless), remind=True)
    assert ended(trajectory) == ("failed", "truncated")
    assert counts(trajectory) == {"no_call": 0, "reminded": 0}


# Prompts, fingerprints.


def test_a_prompt_may_have_words_of_its_own_for_the_demands(tmp_path):
    path = tmp_path / "mine.txt"
    text = (FOLDER / "pi_serini.txt").read_text()
    path.write_text(f"{text}\n=== reminder ===\nThree lines, please.\n")
    model = ScriptedModel(calling(), saying(PROSE), saying())
    ask(model, prompt=str(path), remind=True)
    assert model.requests[2].messages[-1]["content"] == "Three lines, please."
    assert said_when_closed(path) == "Three lines, please."
    path.write_text(f"{path.read_text()}=== reminder_closed ===\nNo tools, please.\n")
    assert said_when_closed(path) == "No tools, please."


def said_when_closed(prompt):
    """The reminder that a model gets after its last turn with tools."""
    model = ScriptedModel(calling(), saying(PROSE), saying())
    ask(model, prompt=str(prompt), remind=True, turns=1)
    return str(model.requests[2].messages[-1]["content"])


def test_what_may_be_demanded_stands_in_the_fingerprints_of_agents_that_demand_it():
    plain, both = ChatAgent(), ChatAgent(remind=True, first_call="search")
    assert set(plain.fingerprints) == {"prompt"}
    assert set(both.fingerprints) == {"prompt", "prompt.reminder", "prompt.first_call"}
    assert both.fingerprints["prompt"] == plain.fingerprints["prompt"]
    demanded = {"reminder", "reminder_closed", "first_call"}
    assert not demanded & set(load_prompt("pi_serini").sections)


@pytest.mark.parametrize("section", ["reminder", "reminder_closed"])
def test_the_fingerprint_of_the_reminder_holds_its_words_in_either_state(section, monkeypatch):
    before = ChatAgent(remind=True).fingerprints
    monkeypatch.setitem(prompt._OPTIONAL, section, "Other words.")
    changed = {
        name
        for name, hashed in ChatAgent(remind=True).fingerprints.items()
        if hashed != before[name]
    }
    assert changed == {"prompt.reminder"}
