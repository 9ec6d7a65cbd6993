"""Models that act by JSON objects (`llm.calls=schema`): what is sent, what is read, and servers
that do not follow the schema."""

import asyncio
import json

import jsonschema
import pytest
from llm_clients import SEARCH, ask, client
from support.agents import bound
from support.benchmarks import WordBackend, store_of
from support.llm_server import Say

from soundingline.agents.base import Budget
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.messages import FunctionCall, SamplingParams, Turn, tool_result, user
from soundingline.toolkit.llm.openai import OpenAIChat
from soundingline.toolkit.search import TopK

LABELS = ("Explanation", "Exact Answer", "Confidence")
CALL = {"search": {"query": "mill", "offset": None}}
ANSWER = {"Explanation": "It says\nso [mill].", "Exact Answer": "Brekke", "Confidence": 90}
LINES = "Explanation: It says so [mill].\nExact Answer: Brekke\nConfidence: 90%"
FINAL = {"final_answer": ANSWER}


def act(action):
    return json.dumps({"action": action})


@pytest.fixture
def model(peer):
    return client(peer, OpenAIChat, calls="schema", attempts=2)


def sent_schema(peer):
    return peer.requests[-1].body["response_format"]["json_schema"]["schema"]


def accepts(schema, action):
    return jsonschema.Draft202012Validator(schema).is_valid({"action": action})


@pytest.mark.parametrize(
    ("choice", "answer", "allowed"),
    [
        ("auto", LABELS, (True, True)),
        ("required", LABELS, (True, False)),
        ("search", LABELS, (True, False)),
        ("search", None, (True, False)),
        ("none", LABELS, (False, True)),
    ],
)
def test_the_next_action_is_constrained_by_the_schemas_of_the_tools_and_of_the_answer(
    peer, model, choice, answer, allowed
):
    ask(model, [user("Who?")], [SEARCH], SamplingParams(tool_choice=choice, answer=answer))
    body, schema = peer.requests[-1].body, sent_schema(peer)
    assert "tools" not in body and "tool_choice" not in body
    assert (accepts(schema, CALL), accepts(schema, FINAL)) == allowed
    # OpenAI's strict schemas: an object at the root, all properties required, no other ones.
    assert schema["type"] == "object" and body["response_format"]["json_schema"]["strict"] is True
    assert not accepts(schema, {"search": {"query": "mill"}})
    assert not accepts(schema, {"search": {"query": 5, "offset": None}})
    assert not accepts(schema, {"open": {"query": "mill"}})
    stated = [{"final_answer": {**ANSWER, "Confidence": value}} for value in (-1, 0, 100, 101)]
    assert [accepts(schema, final) for final in stated] == [False, allowed[1], allowed[1], False]
    assert not accepts(schema, {**CALL, **FINAL}) and "maxLength" not in json.dumps(schema)


def test_strings_have_a_longest_length_where_the_schema_need_not_be_strict(peer):
    model = client(peer, OpenAIChat, calls="schema", strict_tools=False)
    ask(model, [user("Who?")], [SEARCH], SamplingParams(answer=LABELS))
    schema = sent_schema(peer)
    assert accepts(schema, FINAL)
    assert not accepts(schema, {"final_answer": {**ANSWER, "Explanation": "so " * 1000}})
    assert not accepts(schema, {"final_answer": {**ANSWER, "Exact Answer": "so " * 40}})
    assert not accepts(schema, {"search": {"query": "mill " * 1000, "offset": None}})


@pytest.mark.parametrize(
    ("tools", "choice"), [((), "auto"), ([SEARCH], "none"), ([SEARCH], "auto")]
)
def test_nothing_is_constrained_where_the_format_of_the_reply_is_not_known(
    peer, tools, choice, model
):
    ask(model, [user("Who?")], list(tools), SamplingParams(tool_choice=choice))
    assert "response_format" not in peer.requests[-1].body


def test_the_transcript_is_sent_as_plain_messages_and_recorded_as_native_ones(peer, model):
    settings = SamplingParams(answer=LABELS)
    peer.script.append(Say(act(CALL)))
    opening = [{"role": "system", "content": "Rules."}, user("Who?")]
    turn = ask(model, opening, [SEARCH], settings)
    (call,) = turn.tool_calls
    assert (call.name, call.parsed(), call.id) == ("search", CALL["search"], "call_1")
    assert (turn.text, turn.finish_reason) == ("", "tool_calls")
    peer.script.append(Say(act(FINAL)))
    transcript = [*opening, turn.message(), tool_result("call_1", "a page"), user("Answer now.")]
    last = ask(model, transcript, [SEARCH], settings)
    assert (last.text, last.tool_calls, last.finish_reason) == (LINES, (), "stop")
    first_sent, sent = (request.body["messages"] for request in peer.requests[-2:])
    # Each request begins with the last one, so that a server finds its cached prefix.
    assert sent[:2] == first_sent
    assert [(each["role"], set(each)) for each in sent] == [
        (role, {"role", "content"}) for role in ("system", "user", "assistant", "user")
    ]
    assert sent[2]["content"] == act(CALL)
    assert sent[3]["content"] == "a page\n\nAnswer now."
    described = sent[0]["content"]
    assert described.startswith("Rules.\n\n")
    for word in ("search", "Ranks documents.", "What to look for.", "First rank.", *LABELS):
        assert word in described


def test_calls_that_the_model_did_not_write_as_actions_are_sent_as_such(peer, model):
    calls = (
        FunctionCall("c1", "search", '{"query": "a"}'),
        FunctionCall("c2", "search", "not JSON"),
    )
    results = [tool_result("c1", "one"), tool_result("c2", "two")]
    transcript = [user("Who?"), Turn(text="I look.", tool_calls=calls).message(), *results]
    ask(model, transcript, [SEARCH], SamplingParams(answer=LABELS))
    sent = peer.requests[-1].body["messages"]
    wrote = ["I look.", act({"search": {"query": "a"}}), act({"search": "not JSON"})]
    assert sent[2]["content"] == "\n".join(wrote)
    assert sent[3]["content"] == "one\n\ntwo"


@pytest.mark.parametrize(
    "text",
    [
        f"\n {act(CALL)}\n",
        f"```json\n{act(CALL)}\n```",
        f"I search {{for}} the mill first. {act(CALL)} Then I read.",
        f"{act(CALL)}{act(FINAL)}",
        f'{{"thought": {{}}}} {act(CALL)}',
        json.dumps({"name": "search", "arguments": CALL["search"]}),
    ],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_action_is_read_with_prose_around_it(peer, model, text, finish):
    peer.script.append(Say(text, finish=finish))
    (call,) = ask(model, [user("Who?")], [SEARCH], SamplingParams(answer=LABELS)).tool_calls
    assert (call.name, call.parsed()) == ("search", CALL["search"])


DEEP = 40 * '{"query": ' + "1" + 40 * "}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (act({"open": {"docid": "mill"}}), "unknown_tool"),
        (act({"search": "mill"}), "arguments_not_an_object"),
        (act({"search": ["mill"]}), "arguments_not_an_object"),
        (act({"search": None}), "arguments_not_an_object"),
        (act("search"), "missing_argument"),
        (act({"search": {"query": {"a": 1}}}), "wrong_type"),
        (act({"search": {"where": "mill"}}), "unknown_argument"),
        (f'{{"action": {{"search": {DEEP}}}}}', "wrong_type"),
    ],
)
def test_an_action_that_no_tool_takes_is_refused_and_the_question_goes_on(peer, text, error):
    trajectory = run(peer, [Say(text), Say(act(FINAL))])
    (call,) = trajectory.calls
    assert (call.error, trajectory.status) == (error, "completed")
    assert trajectory.answer.exact == "Brekke"


@pytest.mark.parametrize(
    "text",
    [
        "I would search for the mill.",
        '{"action": 5}',
        '{"action": {}}',
        '{"action": []}',
        '{"action":' * 5000,
        act({"final_answer": "Brekke"}),
        act({"final_answer": {"Exact Answer": ""}}),
    ],
)
def test_a_reply_without_an_action_is_an_answer_without_the_format(peer, text):
    trajectory = run(peer, [Say(text), Say(act(FINAL))], remind=True)
    assert trajectory.calls == ()
    assert (trajectory.status, trajectory.answer.exact) == ("completed", "Brekke")


@pytest.mark.parametrize("levels", [300, 900, 980, 990, 1000])
def test_no_depth_of_an_action_loses_a_question(peer, levels):
    nested = levels * '{"a":' + "1" + levels * "}"
    steps = [Say(f'{{"action": {{"search": {nested}}}}}'), Say(act(FINAL))]
    trajectory = run(peer, steps, remind=True)
    assert (trajectory.status, trajectory.answer.exact) == ("completed", "Brekke")


def run(peer, steps, **arguments):
    """The trajectory of a question to a chat agent behind the fake server."""
    store = store_of({"mill": Document("mill", "Grenholm Mill", "Brekke built it.")})
    tool = TopK(k=1).open(WordBackend({"mill": "Grenholm Mill"}), store)
    peer.script.extend(steps)
    limits = {name: arguments.pop(name) for name in ("turns",) if name in arguments}
    model = client(peer, OpenAIChat, calls="schema")
    agent = bound(model, prompt="neutral", budget=Budget(**limits), **arguments)
    return asyncio.run(agent.run(Topic("q1", "Who built Grenholm Mill?"), tool))


def test_a_question_begins_with_a_search_and_ends_with_an_answer_within_its_budget(peer):
    def valid(request):
        """The first action that the schema accepts."""
        schema = request.body["response_format"]["json_schema"]["schema"]
        search = {"search": {"query": "Grenholm Mill"}}
        return Say(act(next(each for each in (FINAL, search) if accepts(schema, each))))

    def eager(request):
        """A search wherever the schema accepts one."""
        schema = request.body["response_format"]["json_schema"]["schema"]
        search = {"search": {"query": "Grenholm Mill"}}
        return Say(act(next(each for each in (search, FINAL) if accepts(schema, each))))

    peer.default = valid
    trajectory = run(peer, [], first_call="search")
    assert [call.name for call in trajectory.calls] == ["search"]
    assert (trajectory.status, trajectory.answer.citations) == ("completed", ("mill",))
    roles = [message["role"] for message in trajectory.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.messages[-1]["content"] == LINES
    peer.default = eager
    trajectory = run(peer, [], turns=2)
    assert (trajectory.status, trajectory.reason) == ("out_of_turns", "turns")
    assert [call.error for call in trajectory.calls] == ["", ""]
    assert trajectory.answer.exact == "Brekke"


def test_the_labels_of_an_answer_are_those_of_the_prompts_format():
    assert load_prompt("closed_book").answer_labels == LABELS
    assert load_prompt("document_list").answer_labels == ("Explanation", "Confidence", "Documents")
    assert load_prompt("search_r1").answer_labels == ()


def test_calls_have_three_values(peer):
    with pytest.raises(InputError, match=r"llm\.calls is 'json'. valid: native, schema, text"):
        client(peer, OpenAIChat, calls="json")
