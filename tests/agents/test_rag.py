"""Retrieval-augmented generation: one search, one reading within a budget of tokens, one answer."""

import asyncio

import pytest
from support.agents import bound
from support.benchmarks import WordBackend, store_of
from support.llm_model import ScriptedModel, call, calling, saying, search
from support.runs import ended

from soundingline.agents.base import Budget
from soundingline.agents.rag import RagAgent
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.llm.errors import ContextOverflow, Truncated
from soundingline.toolkit.search import RankedBrowsing, TopK

# By the number of query words in them: a, b, c, d. The text of `a` has 100 lines of 10 words.
TEXTS = {
    "a": "mill river stone wheel\n"
    + "\n".join(["one two three four five six seven eight nine ten"] * 99),
    "b": "mill river stone\nThe mill is old.",
    "c": "mill river\nThe mill is new.",
    "d": "mill\nThere was a mill.",
}
TOPIC = Topic("q1", "mill river stone wheel")
CITED = "Explanation: as read [b]\nExact Answer: old\nConfidence: 80%"


def opened(interface=RankedBrowsing, **settings):
    documents = {docid: Document(docid, "", text) for docid, text in TEXTS.items()}
    return interface(**settings).open(WordBackend(TEXTS), store_of(documents))


def run(model, tool=None, **arguments):
    tool = tool or opened()
    return asyncio.run(bound(model, kind=RagAgent, **arguments).run(TOPIC, tool))


def test_one_search_one_reading_of_the_first_units_and_an_answer_with_citations():
    model = ScriptedModel(saying(CITED))
    trajectory = run(model, units=2, tokens=10_000)
    assert [(each.name, each.error) for each in trajectory.calls] == [
        ("search", ""),
        ("read_document", ""),
        ("read_document", ""),
    ]
    assert trajectory.calls[0].arguments["query"] == TOPIC.text
    assert [each.arguments["docid"] for each in trajectory.calls[1:]] == ["a", "b"]
    assert trajectory.tiers["surfaced"] == trajectory.tiers["previewed"] == ("a", "b", "c", "d")
    assert (trajectory.tiers["opened"], trajectory.tiers["cited"]) == (("a", "b"), ("b",))
    assert (trajectory.answer.exact, trajectory.status) == ("old", "completed")
    (request,) = model.requests
    assert request.settings.tool_choice == "none"
    # What is recorded is what the model was sent, and its reply.
    assert [message["role"] for message in trajectory.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool"),
        "assistant",
    ]
    assert request.messages == [dict(message) for message in trajectory.messages[:-1]]
    assert "The mill is old." in request.messages[-1]["content"]


@pytest.mark.parametrize("tokens", [60, 100, 300, 900, 2000])
@pytest.mark.parametrize("units", [1, 3, 50])
def test_a_reading_keeps_to_its_budget_of_tokens(tokens, units):
    calls = run(ScriptedModel(saying(CITED)), tokens=tokens, units=units).calls[1:]
    read = sum(each.tokens for each in calls)
    assert 0 < read <= tokens and len(calls) <= min(units, 4)


def test_of_a_long_text_as_much_is_read_as_fits():
    _, reading = run(ScriptedModel(saying(CITED)), tokens=900, units=1).calls
    assert reading.arguments["limit"] < 100 and 0.8 * 900 < reading.tokens <= 900


def test_a_unit_that_cannot_be_cut_is_left_out():
    lines = "one two three " * 50
    documents = {docid: Document(docid, "", lines) for docid in ("a", "b")}
    tool = RankedBrowsing().open(WordBackend({"a": "mill", "b": "mill"}), store_of(documents))
    trajectory = run(ScriptedModel(saying(CITED)), tool, tokens=50)
    assert [each.name for each in trajectory.calls] == ["search"]
    assert trajectory.tiers["opened"] == ()


@pytest.mark.parametrize("get_document", [False, True])
def test_a_search_that_shows_texts_is_the_reading(get_document):
    tool = opened(TopK, k=2, get_document=get_document)
    trajectory = run(ScriptedModel(saying(CITED)), tool)
    assert [each.name for each in trajectory.calls] == ["search"]
    assert trajectory.tiers["previewed"] == ("a", "b")
    assert trajectory.answer.citations == ("b",)


@pytest.mark.parametrize(
    ("reply", "queries"),
    [
        (calling(search("river")), ["river"]),
        (saying("I would look for the river."), [TOPIC.text]),
        (calling(search("")), ["", TOPIC.text]),  # refused
        (calling(call("read_document", reason="", docid="b")), [TOPIC.text]),
        (Truncated("cut"), [TOPIC.text]),
        (ContextOverflow("full"), [TOPIC.text]),
    ],
    ids=["a query", "no call", "a refused call", "another call", "cut", "no room"],
)
def test_the_model_may_write_the_query_and_the_question_takes_its_place(reply, queries):
    model = ScriptedModel(reply, saying(CITED))
    trajectory = run(model, query="model", units=1)
    searches = [each.arguments["query"] for each in trajectory.calls if each.name == "search"]
    assert searches == queries
    first, last = (request.settings.tool_choice for request in model.requests)
    assert (first, last) == ("search", "none")
    assert (trajectory.status, trajectory.answer.exact) == ("completed", "old")


def test_calls_after_the_reading_are_refused_and_end_the_question():
    trajectory = run(ScriptedModel(last=calling()), units=1)
    assert ended(trajectory) == ("steered", "no_answer")
    assert [each.error for each in trajectory.calls[2:]] == ["blocked"] * 3


def test_a_question_whose_search_finds_nothing_is_still_answered():
    tool = RankedBrowsing().open(WordBackend({}), store_of({}))
    trajectory = run(ScriptedModel(saying(CITED)), tool)
    assert (trajectory.answer.exact, trajectory.answer.citations) == ("old", ())


def test_budgets_end_a_question_as_those_of_other_agents():
    trajectory = run(ScriptedModel(last=saying(CITED)), query="model", budget=Budget(turns=1))
    assert ended(trajectory) == ("out_of_turns", "turns")
