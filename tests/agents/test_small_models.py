"""Models that keep to no protocol: what the harness asks of them, and what it takes."""

import asyncio
from functools import partial

import pytest
from support.benchmarks import SmallBenchmark, WordBackend, store_of
from support.llm_model import ANSWER, ScriptedModel, call, calling, saying, search
from test_chat import CORPUS, PROMPT, QUESTION, READ, TEXTS, Clock, ask, ended, roles, tool

from soundingline.agents import prompt
from soundingline.agents.baselines import ClosedBookAgent
from soundingline.agents.chat import ChatAgent
from soundingline.agents.prompt import FOLDER, load_prompt
from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation.agent_run import evaluate_run
from soundingline.toolkit.llm.errors import ContextOverflow, OutOfMoney, Truncated
from soundingline.toolkit.llm.messages import Turn
from soundingline.toolkit.search import Grep, RankedBrowsing, TopK
from soundingline.toolkit.trajectory import final_response

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


def last_words(model, number):
    return str(model.requests[number].messages[-1]["content"])


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
    if reminded:
        assert trajectory.answer.exact == "Torvald Brekke"
        assert "Exact Answer:" in last_words(model, 2)


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
    reminder = last_words(model, 2)
    assert "Your last reply is no answer yet" in reminder
    assert ("call it now" in reminder) == (turns is None)
    assert ("no tools to call now" in reminder) == (turns is not None)
    assert load_prompt(prompt).words("reminder").splitlines()[1:] == reminder.splitlines()[1:]


def test_no_call_is_offered_when_time_is_nearly_over_and_to_an_agent_without_tools():
    clock = Clock()
    model = ScriptedModel(clock.then(250, calling()), saying(PROSE), saying())
    ask(model, clock=clock, seconds=300, remind=True)
    assert last_words(model, 1) == PROMPT["steer"]
    assert "no tools to call now" in last_words(model, 2)
    model = ScriptedModel(saying(PROSE), saying())
    agent = ClosedBookAgent(model=model, remind=True, first_call="search")
    trajectory = asyncio.run(agent.run(Topic("q1", "Who?"), tool()))
    assert ended(trajectory) == ("completed", "") and demands(trajectory) == ["reminder"]
    assert trajectory.answer.exact == "Torvald Brekke" and choices(model) == ["auto", "auto"]
    assert "no tools to call now" in last_words(model, 1)


# A search first.


@pytest.mark.parametrize(
    ("steps", "sent", "demanded", "counted"),
    [
        ([calling(), calling(search("Brekke", "c2"))], ["search", "auto", "auto"], [], [0, 0]),
        # Another tool is no search.
        ([calling(READ), calling()], ["search", "search", "auto"], [], [0, 0]),
        ([saying(PROSE), calling()], ["search", "search", "auto"], ["first_call"], [0, 0]),
        (
            [saying(PROSE)] * 2,
            ["search", "search", "search"],
            ["first_call", "reminder"],
            [1, 1],
        ),
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
        (partial(Grep, syntax="words"), 'grep(reason="...", words="...")', "words"),
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


def test_a_reply_that_repeats_itself_twice_without_any_answer_fails_as_truncated():
    trajectory = ask(ScriptedModel(calling(), ENDLESS, ENDLESS), remind=True)
    assert ended(trajectory) == ("failed", "truncated") and counts(trajectory) == [0, 0]


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
        assert last_words(model, 2) == words


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
