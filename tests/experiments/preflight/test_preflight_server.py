"""The check of a language model's server: each fault is found and named in one line with what to
do, and good servers of every kind pass."""

import json
from dataclasses import replace

import pytest
from support.checked_server import (
    arguments,
    as_text,
    changed,
    counting,
    healthy,
    plain,
    second,
    with_usage,
)
from support.llm_server import Fail, Raw, Say, Stall, chat_body, running_peer

from soundingline.agents.base import Budget
from soundingline.experiments.preflight.server import check_server, check_text_model
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import SamplingParams
from soundingline.toolkit.llm.openai import OpenAIChat, OpenAIResponses
from soundingline.toolkit.llm.prices import Price

KINDS = {"chat": OpenAIChat, "responses": OpenAIResponses, "messages": AnthropicMessages}
PRICE = Price(input=1.0, output=1.0)


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    server.default = healthy
    return server


def client(peer, kind="chat", **arguments):
    url = peer.anthropic_url if kind == "messages" else peer.openai_url
    given = {"model": "m", "base_url": url, "context_window": 32_000, "attempts": 1, **arguments}
    return KINDS[kind](**given)


def checked(llm, ledger=None, **arguments):
    ledger = ledger or Ledger()
    return check_server(llm, llm, ledger, budget=arguments.pop("budget", Budget()), **arguments)


def marked(said):
    return replace(said, text="<|channel|>final<|message|>So.")


def swallowed(said):
    """A server that drops the calls and says something."""
    return replace(said, calls=(), text="I will do that.")


REASONING = {"settings": SamplingParams(reasoning_effort="high")}
CAPPED = {"price": PRICE}
# By the fault: the rule of the server, arguments of the client, those of the check, whether it is a
# fault or a note, a part of the message, and a part of what to do.
SCHEMA = {"calls": "schema"}
UNCONSTRAINED = ("fault", "m does not constrain replies by a JSON schema", "llm.calls=native")
FAULTS = {
    "a schema that is ignored": (
        *(lambda r: Say(text="Hello! How can I help you today?"), SCHEMA, {}, *UNCONSTRAINED),
    ),
    "a schema that is any JSON object": (
        *(lambda r: Say(text='{"greeting": "hello"}'), SCHEMA, {}, *UNCONSTRAINED),
    ),
    "a schema that the model follows as it likes": (
        *(lambda r: Say(text='{"action": {"note": {"word": "hello"}}}'), SCHEMA, {}),
        *UNCONSTRAINED,
    ),
    "a schema that is refused": (
        *(lambda r: Fail(422, "extra fields not permitted"), SCHEMA, {}, *UNCONSTRAINED),
    ),
    "a schema that is ignored without tools": (
        *(lambda r: Say(text="Hello!"), SCHEMA, {"tools": False}, *UNCONSTRAINED),
    ),
    "a call that arrives as text": (
        *(changed(as_text, plain), {}, {}, "fault"),
        *("arrived as text", "llm.calls=schema, which works here"),
    ),
    "a call that arrives as text, on a server without schemas": (
        *(changed(as_text), {}, {}, "fault"),
        *("arrived as text", "correct the server's parser of tool calls"),
    ),
    "calls that are dropped": (
        *(changed(swallowed), {}, {}, "fault"),
        *("there is none, although it was asked for", "parser of tool calls"),
    ),
    "an integer that arrives as text": (
        *(changed(arguments(year="1048")), {}, {}, "fault"),
        *("year is a value of type string. valid: a valid integer", "parser of tool calls"),
    ),
    "a list that arrives as text": (
        *(changed(arguments(aliases='["Kristiania"]')), {}, {}, "fault"),
        *("aliases is a value of type string. valid: a valid list", "parser of tool calls"),
    ),
    "a list of other values": (
        *(changed(arguments(aliases=[1])), {}, {}, "fault"),
        *("aliases.0 is 1. valid: a valid string", "parser of tool calls"),
    ),
    "all arguments but the first are lost": (
        *(changed(arguments(year=None, aliases=None)), {}, {}, "fault"),
        *("has no field 'year'", "parser of tool calls"),
    ),
    "arguments that are cut": (
        *(changed(lambda said: replace(said, calls=[("c", "record_place", '{"name')])),),
        *({}, {}, "fault", "arguments are not JSON", "parser of tool calls"),
    ),
    "another tool's name": (
        *(changed(lambda said: replace(said, calls=[("c", "search", "{}")])), {}, {}, "fault"),
        *("names 'search' in place of 'record_place'", "parser of tool calls"),
    ),
    "the second call of a conversation": (
        *(changed(swallowed, second), {}, {}, "fault"),
        *("the second call", "parser of tool calls"),
    ),
    "a server that knows no tools": (
        *(lambda r: Fail(400, "tools need --enable-auto-tool-choice") if plain(r) else healthy(r),),
        *({}, {}, "fault", "the request with a tool failed", "llm.calls=schema"),
    ),
    "marks of the channels in the content": (
        *(changed(marked), {}, {}, "fault"),
        *("writes <|channel|>", "--reasoning-parser"),
    ),
    "reasoning in the content": (
        *(changed(lambda said: replace(said, text="analysisHm.assistantfinalSo.")), {}, {}),
        *("fault", "writes assistantfinal", "--reasoning-parser"),
    ),
    "reasoning that is not returned": (
        *(healthy, REASONING, {}, "fault"),
        *("no reply of m has reasoning", "llm.settings.reasoning_effort=null"),
    ),
    "no usage under a cap": (
        *(changed(lambda said: replace(said, usage=None)), CAPPED, {"ledger": Ledger(cap=9.0)}),
        *("fault", "reports no usage", "choose a server that reports it"),
    ),
    "no usage": (
        *(changed(lambda said: replace(said, usage=None)), {}, {}, "note"),
        *("reports no usage", "choose a server"),
    ),
    "a prompt that is dropped in part": (
        *(changed(with_usage(input=2000, cached=0)), {}, {}, "fault"),
        *("2,000 tokens of a prompt with 6,000 words", "num_ctx"),
    ),
    "a prompt that does not fit": (
        *(healthy, {"context_window": 5000}, {"opening": ["word " * 2500]}, "fault"),
        *("do not fit the context window of 5,000", "budget.answer_tokens"),
    ),
    "a window that is refused": (
        *(lambda r: Fail(400, "maximum context length is 2048 tokens"), {}, {}, "fault"),
        *("words is too long", "set llm.context_window=2048"),
    ),
    "every reply is cut": (
        *(changed(lambda said: replace(said, finish="length")), {}, {}, "fault"),
        *("a short reply was cut", "llm.settings.max_output_tokens"),
    ),
    "a cut reply that passes for complete": (
        *(changed(lambda said: replace(said, finish="stop"), counting), {}, {}, "fault"),
        *("cut after 16 tokens has the finish reason 'stop'", "another version of the server"),
    ),
    "a limit that is ignored": (
        *(lambda r: Say(text="1, 2", usage=LONG) if counting(r) else healthy(r), {}, {}, "note"),
        *("wrote 900 tokens where 16 were the limit", "llm.output_limit"),
    ),
    "a forced call that is not made": (
        *(changed(swallowed, lambda request: not plain(request)), {}, {"forced": True}, "fault"),
        *("does not make a call that is forced", "agent.first_call=null"),
    ),
    "a forced call that nobody needs": (
        *(changed(swallowed, lambda request: not plain(request)), {}, {}, "note"),
        *("does not make a call that is forced", "judges"),
    ),
    "an unknown finish reason": (
        *(changed(lambda said: replace(said, finish="eos"), second), {}, {}, "note"),
        *("finish reason eos", "may be incomplete"),
    ),
    "no prefix cache": (
        *(changed(with_usage(cached=0)), {}, {}, "note", "nothing from a prefix cache", "switch"),
    ),
    "another model": (
        *(lambda r: Raw(chat_body(healthy(r), "other/x")), {}, {}, "note"),
        *("replies to requests for", "serves that model"),
    ),
    "a wrong key": (
        *(lambda r: Fail(401, "no such key"), {}, {}, "fault", "m does not reply", "correct it"),
    ),
    "a server that fails": (
        *(lambda r: Fail(500, "out of memory"), {}, {}, "fault", "m does not reply", "correct"),
    ),
    "a server that stalls": (
        *(lambda r: Stall(5.0), {}, {"seconds": 0.3}, "note", "more than 0 s", "slow replies"),
    ),
}
LONG = {"input": 30, "cached": 0, "reasoning": 0, "output": 900}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_with_what_to_do(peer, fault):
    rule, configured, called, level, message, do = FAULTS[fault]
    peer.default = rule
    found = checked(client(peer, **configured), **dict(called))
    expected = [each for each in found if message in each.message]
    assert [each.level for each in expected] == [level], found
    assert do in expected[0].do and "\n" not in expected[0].message
    assert len(peer.requests) <= 8


def test_the_word_that_a_schema_demands_is_not_in_the_prompt_and_a_cut_reply_shows_nothing(peer):
    peer.script.append(Say(text="Let me think", finish="length"))
    assert checked(client(peer, **SCHEMA)) == []
    first = peer.requests[0].body
    assert "cormorant" in json.dumps(first["response_format"])
    assert "cormorant" not in json.dumps(first["messages"])


def test_the_window_that_the_server_reports_is_compared_with_the_one_that_is_set(peer):
    peer.models, peer.window = ["m"], 16_384
    (found,) = checked(client(peer))
    assert "has 16,384 tokens, and llm.context_window=32000" in found.message
    assert found.level == "fault" and "set llm.context_window=16384" in found.do
    peer.window, peer.properties = None, {"default_generation_settings": {"n_ctx": 4096}}
    (found,) = checked(client(peer))
    assert "has 4,096 tokens" in found.message
    # A server that reports its window is not sent the longer prompt that would show it.
    longest = max(len(json.dumps(request.body)) for request in peer.requests)
    assert longest < 20_000
    peer.models = peer.properties = None
    assert not checked(client(peer))
    assert max(len(json.dumps(request.body)) for request in peer.requests) > 30_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_requests_are_entered_in_the_ledger_under_a_role_of_their_own(peer, kind):
    ledger = Ledger(cap=1.0)
    assert not checked(client(peer, kind, price=PRICE, context_window=200_000), ledger)
    books = ledger.by_role()
    assert set(books) == {"preflight"} and books["preflight"].calls == len(peer.requests) == 4
    words = [step.body for step in peer.requests]
    counted = [healthy(request).usage for request in peer.requests]
    tokens = sum(usage["input"] + usage["output"] for usage in counted)
    assert books["preflight"].dollars == pytest.approx(tokens / 1e6) and len(words) == 4


def test_a_model_of_a_stage_is_asked_once(peer):
    ledger = Ledger()
    blocking = BlockingModel("m", role="rewriter")
    for rule, levels, words in (
        (healthy, [], ""),
        (changed(marked), ["fault"], "writes <|channel|> into its replies"),
        (lambda request: Fail(401, "no"), ["fault"], "m, which the rewriter asks, does not reply"),
    ):
        peer.default = rule
        with blocking.started(client(peer), ledger):
            found = check_text_model(blocking, "rewriter")
        assert [each.level for each in found] == levels
        assert not found or words in found[0].message
    assert ledger.by_role()["rewriter"].calls == len(peer.requests) == 3
    gone = OpenAIChat(model="m", base_url="http://127.0.0.1:9/v1", attempts=1)
    with blocking.started(gone, ledger):
        (found,) = check_text_model(blocking, "rewriter")
    assert found.level == "note" and "cannot be reached" in found.message


HEALTHY = [
    (kind, calls, tools, window, cached)
    for kind, calls in (
        *(("chat", "native"), ("chat", "schema"), ("chat", "text")),
        *(("responses", ""), ("messages", "")),
    )
    for tools in (True, False)
    for window in (0, 2000, 8192, 40_000, 200_000)
    for cached in (True, False)
]


def test_a_hundred_good_starts_bring_no_fault(peer):
    """Of every API, with and without tools, with windows that are reported and not, and with and
    without a prefix cache and reasoning."""
    assert len(HEALTHY) == 100
    for kind, calls, tools, window, cached in HEALTHY:
        peer.reset()
        peer.models, peer.window = (["m"], window) if window else (None, None)
        change = with_usage(cached=0) if not cached else (lambda said: said)
        peer.default = changed(change)
        arguments = {"calls": calls} if calls else {}
        declared = {"context_window": None if window == 2000 else min(window or 32_000, 32_000)}
        budget = Budget(answer_tokens=500)
        settings = SamplingParams(max_output_tokens=400)
        llm = client(peer, kind, **arguments, **declared, settings=settings)
        found = checked(llm, tools=tools, budget=budget)
        assert all(each.level == "note" for each in found), (kind, calls, tools, window, found)
        assert bool(found) is not cached, (kind, calls, tools, window, found)
        assert len(peer.requests) <= 4
