"""The contracts of all clients, one row a class, whatever its wire format.

Every attempt that was paid for is on the ledger, none is sent that the caps do not allow, and
nothing is done between the last byte of a reply and the file that stores it.
"""

import asyncio
import hashlib
import itertools
import json
import random
import re
import socket
import sqlite3
import sys
import threading
import time
import traceback
from functools import partial

import llm_clients
import pytest
from llm_clients import ADAPTERS, SEARCH, ChatFromThreads, client, count_sockets, using
from support.assertions import refused
from support.commands import forked
from support.llm_server import RENDER, Cut, Fail, Raw, Say, Stall, messages_body
from support.needs import cases

from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.stage import Counts
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import errors, transport
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import (
    BadReply,
    ModelError,
    OutOfMoney,
    ServerFailed,
    ServerGone,
)
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel, open_ledger
from soundingline.toolkit.llm.messages import (
    FunctionCall,
    SamplingParams,
    Turn,
    Usage,
    system,
    tool_result,
    user,
)
from soundingline.toolkit.llm.openai import OpenAIChat, OpenAICompletions, OpenAIResponses
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.llm.prompts import spotlight

pytestmark = pytest.mark.slow

QUESTION = [user("Who?")]
TRANSCRIPT = [system("Answer."), user("Who?")]
KEY = "sk-very-secret-0123456789"


def making(adapters):
    @pytest.fixture(params=adapters.values(), ids=adapters.keys())
    def make(request, peer):
        """Makes the client under test, aimed at the fake server."""
        return partial(client, peer, request.param)

    return make


# The blocking model has the contracts of one request; the event loop's contracts are not its own.
make_any = making({**ADAPTERS, "blocking": ChatFromThreads})
make = making(ADAPTERS)
make_openai = making({name: ADAPTERS[name] for name in ADAPTERS if name != "messages"})
make_chat = making({name: ADAPTERS[name] for name in ADAPTERS if name != "completions"})


def ask(model, messages=QUESTION, **settings):
    given = SamplingParams(**settings) if settings else None
    return llm_clients.ask(model, messages, settings=given)


def wrong(model, kind, **settings):
    with pytest.raises(errors.ModelError) as raised:
        ask(model, **settings)
    assert type(raised.value) is kind
    assert "\n" not in str(raised.value)
    return raised.value


def test_a_reply_comes_back_with_its_usage_and_its_model(peer, make_any):
    peer.script.append(Say(text="Ada Lovelace."))
    turn = ask(make_any())
    assert (turn.text, turn.tool_calls, turn.finish_reason) == ("Ada Lovelace.", (), "stop")
    counts = turn.usage.input, turn.usage.cached, turn.usage.reasoning, turn.usage.output
    assert counts == (100, 80, 5, 20)
    assert turn.model == "m-served" and len(peer.requests) == 1


def test_tokens_written_to_a_cache_come_back_by_lifetime(peer, make):
    counts = {"input": 100, "cached": 20, "written": 70, "written_long": 30}
    peer.script.append(Say(text="x", usage={**counts, "reasoning": 0, "output": 9}))
    model = make()
    usage = ask(model).usage
    assert (usage.input, usage.cached, usage.cache_write) == (100, 20, 70)
    # Chat and text completions do not report lifetimes.
    completions = (OpenAIChat, OpenAICompletions)
    assert usage.cache_write_long == (None if isinstance(model, completions) else 30)


def test_reasoning_and_several_calls_come_back_in_order(peer, make_chat):
    arguments = ['{"query": "x", "offset": null}', '{"query": "é", "offset": 2}']
    calls = [("a", "search", arguments[0]), ("b", "search", arguments[1])]
    peer.script.append(Say(text="I look.", reasoning="First, who wrote it?", calls=calls))
    turn = ask(make_chat())
    assert (turn.text, turn.reasoning) == ("I look.", "First, who wrote it?")
    assert turn.finish_reason == "tool_calls"
    assert [(call.id, call.name) for call in turn.tool_calls] == [("a", "search"), ("b", "search")]
    assert [call.parsed() for call in turn.tool_calls] == list(map(json.loads, arguments))


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        (("a", "search", '{"query": '), ("a", "search", {"malformed": '{"query": '})),
        (("a", "search", "plain words"), ("a", "search", {"malformed": "plain words"})),
        (("a", "search", "[1]"), ("a", "search", {"malformed": "[1]"})),
        (("a", "search", '{"query": NaN}'), ("a", "search", {"malformed": '{"query": NaN}'})),
        (("a", "browser.search", "{}"), ("a", "browser_search", {})),
        (("a", "search", '{"query": "\ud83d"}'), ("a", "search", {"query": "�"})),
    ],
)
def test_a_malformed_call_is_recorded_as_it_is_and_sent_back_repaired(peer, make_chat, call, sent):
    peer.script.append(Say(text="x\udc00y", calls=[call]))
    model = make_chat()
    turn = ask(model)
    assert [(each.id, each.name) for each in turn.tool_calls] == [call[:2]]
    # JSON may write half a character as an escape.
    assert turn.tool_calls[0].arguments.replace(r"\ud83d", "�") == call[2].replace("\ud83d", "�")
    ask(model, [*TRANSCRIPT, turn.message(), tool_result("a", "[error] half")])
    assert sent_calls(peer) == [sent]
    text = json.dumps(peer.requests[-1].body, ensure_ascii=False)
    assert "x�y" in text


def sent_calls(peer):
    """The tool calls in the last request, whatever its wire format."""
    body = peer.requests[-1].body
    messages = body.get("messages", [])
    items = [item for item in body.get("input", []) if item.get("type") == "function_call"]
    functions = [
        {"call_id": call["id"], **call["function"]}
        for message in messages
        for call in message.get("tool_calls") or []
    ]
    blocks = [block for message in messages for block in message["content"] or []]
    uses = [each for each in blocks if isinstance(each, dict) and each["type"] == "tool_use"]
    called = [(it["call_id"], it["name"], json.loads(it["arguments"])) for it in items + functions]
    return called + [(use["id"], use["name"], use["input"]) for use in uses]


def test_a_transcript_only_grows_at_its_end(peer, make_chat):
    model = make_chat()
    messages = list(TRANSCRIPT)

    async def episode(it):
        for number in range(4):
            calls = [(f"c{number}", "search", '{"query": "x", "offset": null}')]
            peer.script.append(Say(text=f"t{number}", reasoning=f"r{number}", calls=calls))
            turn = await it.respond(messages, [SEARCH])
            messages.append(turn.message())
            messages.append(tool_result(f"c{number}", f"page {number}"))
        messages.append(user("Time is nearly gone."))
        await it.respond(messages, [SEARCH], SamplingParams(tool_choice="none"))

    using(model, episode)
    sent = [flattened(request.body) for request in peer.requests]
    assert len(sent) == 5
    for before, after in itertools.pairwise(sent):
        assert len(after) > len(before)
        assert after[: len(before)] == before
    assert all(f"r{number}" in json.dumps(sent[-1]) for number in range(4))


def flattened(body):
    """A request's tools and content in the order in which servers read them, cache marks aside."""
    parts = [body["tools"], body.get("system"), *body.get("input", [])]
    for message in body.get("messages", []):
        content = message["content"] if isinstance(message["content"], list) else [message]
        parts += [(message["role"], part) for part in content]
    text = json.dumps(parts).replace(', "cache_control": {"type": "ephemeral"}', "")
    return list(json.loads(text))


def test_a_turn_of_another_api_is_understood(peer, make_chat):
    foreign = Turn(
        text="I look.",
        reasoning="Hm.",
        tool_calls=(FunctionCall("a", "search", '{"query": "x", "offset": null}'),),
        provider={"api": "elsewhere", "items": [{"type": "secret"}]},
    )
    ask(make_chat(), [*TRANSCRIPT, foreign.message(), tool_result("a", "page")])
    assert sent_calls(peer) == [("a", "search", {"query": "x", "offset": None})]
    text = json.dumps(peer.requests[-1].body)
    assert "I look." in text and "page" in text and "secret" not in text


@pytest.mark.parametrize(
    ("choice", "forms"),
    [
        ("auto", ["auto", {"type": "auto", "disable_parallel_tool_use": True}]),
        ("none", ["none", {"type": "none"}]),
        ("required", ["required", {"type": "any", "disable_parallel_tool_use": True}]),
        (
            "search",
            [
                {"type": "function", "function": {"name": "search"}},
                {"type": "function", "name": "search"},
                {"type": "tool", "name": "search", "disable_parallel_tool_use": True},
            ],
        ),
    ],
)
def test_tools_are_strict_with_the_choice_and_one_call_a_turn(peer, make_chat, choice, forms):
    ask(make_chat(), tool_choice=choice)
    body = peer.requests[0].body
    assert body["tool_choice"] in forms
    tool = body["tools"][0]
    function = tool.get("function", tool)
    schema = function.get("parameters") or function["input_schema"]
    assert function["strict"] is True
    assert (schema["additionalProperties"], schema["required"]) == (False, ["query", "offset"])
    assert "input_schema" in function or body["parallel_tool_calls"] is False


def test_settings_reach_the_server_and_unset_ones_do_not(peer, make_any):
    numbers = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 77}
    ask(make_any(), **numbers, reasoning_effort="low", extra={"top_k": 20})
    body = peer.requests[-1].body
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.9, 20)
    names = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    assert [body.get(name) for name in names].count(77) == 1
    efforts = [
        body.get("reasoning_effort"),
        (body.get("reasoning") or {}).get("effort"),
        (body.get("output_config") or {}).get("effort"),
    ]
    assert efforts.count("low") == 1
    ask(make_any())
    unset = {"temperature", "top_p", "seed", "reasoning_effort", "output_config", "thinking"}
    assert not unset & set(peer.requests[-1].body)


def test_a_seed_and_log_probabilities_are_sent_or_refused_and_never_dropped(peer, make):
    model = make()
    for settings, refusal in (({"seed": 7}, "a seed"), ({"logprobs": 1}, "log-probabilities")):
        if isinstance(model, (OpenAIChat, OpenAICompletions)):
            ask(model, **settings)
            assert set(settings) <= set(peer.requests[-1].body)
        else:
            refused(refusal, ask, model, **settings)
            assert not model.gives_logprobs and peer.requests == []


def test_absent_usage_is_unknown_and_not_zero(peer, make_any):
    peer.script.append(Say(text="x", usage=None))
    model = make_any()
    usage = ask(model).usage
    if isinstance(model, AnthropicMessages):  # Its protocol has no reply without counts.
        assert (usage.cached, usage.reasoning) == (None, None)
    else:
        assert usage == Usage()


def test_an_empty_reply_is_a_turn_and_can_be_sent_back(peer, make_chat):
    peer.script.append(Say(reasoning="Hm."))
    model = make_chat()
    turn = ask(model)
    assert turn.empty and turn.finish_reason == "stop"
    ask(model, [*TRANSCRIPT, turn.message(), user("Please answer.")])
    body = peer.requests[-1].body
    *_, before, last = body.get("messages") or body["input"]
    assert last["role"] == "user" and "Please answer." in json.dumps(last)
    if isinstance(model, AnthropicMessages):  # It refuses blank blocks of text.
        kinds = [block["type"] for block in before["content"]]
        assert kinds == ["thinking", "text"] and before["content"][1]["text"].strip()
    elif isinstance(model, OpenAIResponses):  # It refuses reasoning that nothing follows.
        assert before == {"role": "user", "content": "Who?"}
    else:
        assert before == {"role": "assistant", "content": "", "reasoning": "Hm."}


# Which answer is which error is the table of `test_llm_apis.py`.
@pytest.mark.parametrize(
    ("status", "message", "kind", "error"),
    [
        (401, "wrong key", "authentication_error", errors.AuthenticationFailed),
        (400, "'temperature' is too hot", "invalid_request_error", errors.BadRequest),
        (400, "prompt is too long: 9 > 8", "invalid_request_error", errors.ContextOverflow),
        (429, "You exceeded your current quota", "insufficient_quota", errors.OutOfQuota),
    ],
)
def test_what_cannot_succeed_is_not_sent_again(peer, make_any, status, message, kind, error):
    peer.script.append(Fail(status, message, kind))
    raised = wrong(make_any(), error)
    assert message in str(raised) and str(status) in str(raised)
    assert len(peer.requests) == 1


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Fail(429, "slow down", "rate_limit_error"), errors.RateLimited),
        (Fail(500, "oh no", "api_error"), errors.ServerFailed),
        (Fail(529, "overloaded", "overloaded_error"), errors.ServerFailed),
        (Fail(503, raw="<html>bad gateway</html>"), errors.ServerFailed),
        (Fail(504, "late", "timeout_error"), errors.ServerTimeout),
        (Cut(), errors.ServerGone),
        (Cut(Say(calls=[("a", "search", '{"query": "x"}')] * 20)), errors.ServerGone),
    ],
)
def test_what_may_pass_is_sent_again_and_then_raised(peer, make_any, step, error):
    peer.script.extend([step, step, Say(text="at last")])
    assert ask(make_any()).text == "at last" and len(peer.requests) == 3
    peer.default = step
    peer.requests.clear()
    wrong(make_any(attempts=4), error)
    assert len(peer.requests) == 4


def rendered(request, mark=""):
    """A reply in the form of the request's API."""
    text = RENDER[request.path.partition("?")[0]](Say(text="Ada."), "m")
    kind = "text/event-stream" if request.body.get("stream") else "application/json"
    return Raw(f"{mark}{text}", kind)


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, OpenAICompletions])
def test_a_body_with_a_byte_order_mark_is_read(peer, adapter):
    peer.script.append(lambda request: rendered(request, "\ufeff"))
    assert ask(client(peer, adapter)).text == "Ada."
    assert len(peer.requests) == 1


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_that_cannot_be_decompressed_is_sent_for_again(peer, make_any, status):
    headers = {"content-encoding": "gzip", "content-type": "text/event-stream"}
    broken = Fail(status, raw="no gzip", headers=headers)
    peer.script.extend([broken, Say(text="at last")])
    assert ask(make_any()).text == "at last" and len(peer.requests) == 2
    peer.default = broken
    assert "compressed body is damaged" in str(wrong(make_any(attempts=2), errors.BadReply))


@pytest.mark.parametrize("status", [302, 307])
def test_a_prompt_does_not_follow_a_redirection(peer, make_any, status):
    location = "https://elsewhere.invalid/v2/chat?key=1"
    peer.default = Fail(status, raw="", headers={"location": location})
    raised = wrong(make_any(), errors.UnknownModel)
    assert len(peer.requests) == 1 and raised.stops_run
    assert "redirects to https://elsewhere.invalid/v2/chat, and" in str(raised)
    assert "base_url" in str(raised)


@pytest.mark.parametrize("body", ["<html>hello</html>", "[]", "null", "{}", '{"choices": [{}]}'])
def test_a_reply_out_of_protocol_is_a_bad_reply(peer, make_any, body):
    peer.default = Raw(body)
    wrong(make_any(attempts=2), errors.BadReply)
    assert len(peer.requests) == 2


def test_a_stalled_server_is_given_up_after_the_timeout(peer, make_any):
    peer.script.extend([Stall(60), Say(text="awake")])
    began = time.monotonic()
    assert ask(make_any(), timeout=0.3).text == "awake" and len(peer.requests) == 2
    peer.script.append(Stall(60))
    wrong(make_any(attempts=1), errors.ServerTimeout, timeout=0.1)
    assert time.monotonic() - began < 20


def test_a_server_that_is_not_there_is_gone(make, waits):
    wrong(make(base_url="http://127.0.0.1:9", attempts=2), errors.ServerGone)
    assert len(waits) == 1


def test_any_server_that_takes_a_connection_can_be_reached(peer, make, monkeypatch):
    monkeypatch.setattr(transport, "_PATIENCE", 0.2)
    make().reach()  # The peer has no list of models, and says so with 501.
    assert peer.requests == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        make(base_url=url).reach()
    with pytest.raises(errors.Unreachable) as raised:
        make(base_url=f"{url}/v1?key={KEY}").reach()
    assert str(raised.value).startswith(f"no connection to the server of m at {url}/v1: ")
    assert KEY not in str(raised.value) and raised.value.stops_run


NO_SUCH = '{"error": {"message": "m is not a valid model ID", "code": 400}}'
UNEXPECTED = '{"error": "Unexpected endpoint or method. (POST /chat/completions)"}'


@pytest.mark.parametrize(
    ("step", "came"),
    [
        (Fail(400, raw=NO_SUCH), "HTTP 400, m is not a valid model ID"),
        (Fail(404, raw="404 page not found"), "HTTP 404, 404 page not found"),
        (Fail(405, raw='{"detail": "Method Not Allowed"}'), "HTTP 405, Method Not Allowed"),
    ],
    ids=["no such model", "no such path", "no such method"],
)
def test_a_model_or_path_that_is_not_there_is_named_with_what_to_set(
    peer, make, step, came, monkeypatch
):
    monkeypatch.setenv("PEER_KEY", KEY)
    peer.script.append(step)
    model = make(key_env="PEER_KEY")
    line = str(wrong(model, errors.UnknownModel))
    assert line.startswith(f"POST {model.address}{model.path} for m at ") and came in line
    assert f"set base_url to the address before {model.path}" in line
    assert line.endswith("or model to a model of that server") and KEY not in line
    assert len(peer.requests) == 1


def test_a_path_that_a_server_answers_with_status_200_is_named_too(peer, make_openai):
    peer.script.append(Raw(UNEXPECTED))  # LM Studio's
    line = str(wrong(make_openai(), errors.UnknownModel))
    assert "HTTP 200, Unexpected endpoint or method." in line and "set base_url" in line


@pytest.mark.parametrize("path", ["/chat/completions", "/completions/", "/responses", "/messages"])
def test_the_address_of_one_kind_of_request_is_refused(make, path):
    with pytest.raises(InputError) as raised:
        make(base_url=f"http://host:8000/v1{path}")
    assert re.search(r"valid: http://host:8000/v1(\.|;| |$)", str(raised.value))
    assert f"leave out {path}" in str(raised.value)


@pytest.mark.parametrize(
    ("steps", "arguments", "chance", "expected"),
    [
        (
            [
                Fail(429, headers={"retry-after": "7"}),
                Fail(429, headers={"retry-after-ms": "1500"}),
                *[Fail(500)] * 2,
            ],
            {},
            0.0,
            [7.0, 1.5, 0.0, 0.0],
        ),
        ([Fail(500)] * 7, {"attempts": 8, "longest_wait": 10.0}, 1.0, [1.0, 2, 4, 8, 10, 10, 10]),
        ([Fail(500)] * 2, {}, 0.5, [0.5, 1.0]),
    ],
    ids=["as the server asks", "doubled up to the bound", "with jitter"],
)
def test_waits_between_attempts(peer, make, steps, arguments, chance, expected, waits, monkeypatch):
    monkeypatch.setattr(transport, "_chance", lambda: chance)
    peer.script.extend(steps)
    ask(make(**arguments))
    assert waits == expected


QUOTA = "You exceeded your current quota, please check your plan. Please retry in 45.5s."
RETRY_INFO = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "30s"}]


@pytest.mark.parametrize(
    ("headers", "details", "wait"),
    [({"retry-after": "7"}, RETRY_INFO, 7.0), ({}, RETRY_INFO, 30.0), ({}, [], 45.5)],
    ids=["header", "body", "text"],
)
def test_a_quota_of_a_minute_is_waited_for(peer, make_any, headers, details, wait):
    error = {"code": 429, "message": QUOTA, "status": "RESOURCE_EXHAUSTED", "details": details}
    failed = Fail(429, raw=json.dumps([{"error": error}]), headers=headers)
    peer.script.append(failed)
    ask(make_any())
    assert len(peer.requests) == 2
    peer.default = failed
    raised = wrong(make_any(attempts=1), errors.RateLimited)
    assert raised.retry_after == wait and not raised.stops_run


def test_an_error_with_status_200_is_what_it_says(peer, make_openai):
    overflow = {"code": 400, "message": "This model's maximum context length is 8192 tokens."}
    peer.script.append(Raw(json.dumps({"error": overflow})))
    assert wrong(make_openai(), errors.ContextOverflow).window == 8192


def test_a_wait_beyond_the_bound_is_not_waited_for(peer, make_any):
    peer.default = Fail(429, headers={"retry-after": "3600"})
    raised = wrong(make_any(), errors.RateLimited)
    assert (len(peer.requests), raised.retry_after) == (1, 3600.0)


@pytest.mark.parametrize(
    ("finish", "error"), [("length", errors.Truncated), ("refusal", errors.Refused)]
)
def test_truncation_and_refusal_are_errors_that_hold_the_paid_turn(peer, make_chat, finish, error):
    peer.script.append(Say(text="I cannot", finish=finish))
    raised = wrong(make_chat(), error)
    assert (raised.turn.text, raised.turn.usage.output) == ("I cannot", 20)
    assert len(peer.requests) == 1


# The event loop.


def test_no_more_requests_are_in_flight_than_allowed(peer, make):
    peer.default, peer.gathered = Stall(0.02), 3

    async def crowd(it):
        await asyncio.gather(*(it.respond(QUESTION) for _ in range(12)))

    using(make(concurrency=3), crowd)
    assert len(peer.requests) == 12
    assert peer.most_in_flight == 3


def test_waiting_for_a_place_is_no_part_of_an_attempts_time(peer, make):
    peer.default = Stall(0.15)

    async def queue(it):
        asked = (it.respond(QUESTION, (), SamplingParams(timeout=0.6)) for _ in range(6))
        return await asyncio.gather(*asked)

    assert len(using(make(concurrency=1, attempts=1), queue)) == len(peer.requests) == 6


def test_a_cancelled_request_frees_its_place(peer, make):
    peer.script.append(Stall(60))

    async def cancel(it):
        task = asyncio.create_task(it.respond(QUESTION))
        while not peer.requests:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await asyncio.wait_for(it.respond(QUESTION), 20)).text

    assert using(make(concurrency=1), cancel) == "done"


def test_one_model_serves_one_event_loop_after_another(make):
    model = make()
    assert [ask(model).text for _ in range(3)] == ["done"] * 3


def test_closing_leaves_no_socket_and_no_task(make):
    async def crowd():
        model = make(concurrency=16)
        await asyncio.gather(*(model.respond(QUESTION) for _ in range(48)))
        during = count_sockets()
        await model.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return during, count_sockets()

    before = count_sockets()
    during, after = asyncio.run(crowd())
    assert during >= before + 16
    until_fewer = time.monotonic() + 5
    while count_sockets() > before and time.monotonic() < until_fewer:
        time.sleep(0.01)  # The peer's ends of them, which are in this process too.
    assert count_sockets() <= before
    assert after < during


# Keys.


def test_the_key_is_sent_and_shown_nowhere(peer, make_any, monkeypatch, caplog):
    monkeypatch.setenv("PEER_KEY", KEY)
    model = make_any(key_env="PEER_KEY", attempts=2)
    caplog.set_level("DEBUG")
    echo = f"Incorrect API key provided: {KEY}."
    failed = [Fail(401, echo, "invalid_api_key"), Fail(500, raw=f"<p>{echo}</p>")]
    peer.script.extend([Say(text="fine"), *failed, Raw(f"key {KEY}")])
    turn = ask(model)
    shown = [repr(model), repr(vars(model)), repr(turn), json.dumps(turn.message())]
    for kind in (errors.AuthenticationFailed, errors.ModelError):
        with pytest.raises(kind) as raised:
            ask(model)
        shown += [str(raised.value), repr(raised.value), *map(str, raised.value.args)]
        shown += traceback.format_exception(raised.value)
    headers = peer.requests[0].headers.items()
    (sent,) = (value for name, value in headers if name.lower() in ("authorization", "x-api-key"))
    assert KEY in sent
    assert KEY not in "".join(shown)
    assert KEY not in caplog.text


def test_secrets_in_the_settings_are_sent_and_hidden_in_errors_alone(peer, make_any):
    extra = {"gateway": {"headers": [{"Authorization": f"Bearer {KEY}"}]}, "top_k": 20}
    model = make_any(settings=SamplingParams(extra=extra), attempts=1)
    peer.script.extend([Fail(400, f"gateway refused {KEY}", "invalid_request"), Say(text=KEY)])
    with pytest.raises(errors.BadRequest, match=r"gateway refused \*\*\*") as raised:
        ask(model)
    assert KEY not in str(raised.value)
    assert ask(model).text == KEY
    assert peer.requests[-1].body["gateway"] == extra["gateway"]
    assert KEY not in json.dumps(SamplingParams(extra=extra).as_dict()) and KEY not in repr(model)


@pytest.mark.parametrize("key", ["test", "e", "authentication", KEY])
def test_no_key_changes_a_reply_and_a_word_changes_no_error(peer, make_chat, monkeypatch, key):
    monkeypatch.setenv("PEER_KEY", key)
    text, reasoning = f"The latest contest: {key}", f"Think of {key}, the testament"
    arguments = json.dumps({"query": f"authentication in the latest {key}", "offset": 1})
    peer.script.append(Say(text=text, reasoning=reasoning, calls=[("c1", "search", arguments)]))
    turn = ask(make_chat(key_env="PEER_KEY"))
    assert (turn.text, turn.reasoning) == (text, reasoning)
    assert [call.parsed() for call in turn.tool_calls] == [json.loads(arguments)]
    said = "the latest contest has an internal error of authentication"
    peer.script.append(Fail(400, said, "invalid_request"))
    assert said in str(wrong(make_chat(key_env="PEER_KEY"), errors.BadRequest))


@pytest.mark.parametrize("key", ["sk-" + "a" * 40, "0123456789abcdef", "x" * 32, KEY])
def test_a_key_at_the_place_where_an_error_is_cut_leaves_no_part_of_itself(
    peer, make_any, monkeypatch, key
):
    monkeypatch.setenv("PEER_KEY", key)
    messages = []
    for answer in (
        Raw("#" * 75 + key),
        Fail(400, "#" * 380 + key, "invalid_request"),
        Say(text="#" * 195 + key, finish="refusal"),
    ):
        peer.script.append(answer)
        with pytest.raises(errors.ModelError) as raised:
            ask(make_any(key_env="PEER_KEY", attempts=1))
        messages.append(str(raised.value))
    # A stream without events quotes nothing, the others quote up to where the key begins.
    assert sum("#" * 60 in message for message in messages) >= 2
    assert not any(key[:5] in message for message in messages)


@pytest.mark.parametrize(("value", "told"), [(None, "PEER_KEY"), (f"{KEY}\n{KEY}", "characters")])
def test_an_absent_or_broken_key_is_refused_before_anything_is_sent(
    peer, make_any, monkeypatch, value, told
):
    monkeypatch.delenv("PEER_KEY", raising=False)
    if value:
        monkeypatch.setenv("PEER_KEY", value)
    model = make_any(key_env="PEER_KEY")
    for attempt in (model.ready, lambda: ask(model)):
        with pytest.raises(InputError, match=told) as raised:
            attempt()
        assert KEY not in str(raised.value)
    assert peer.requests == []


def test_a_key_in_the_configuration_is_refused_without_repeating_it(make):
    for arguments in ({"key_env": KEY}, {"base_url": f"http://user:{KEY}@host/v1"}):
        with pytest.raises(InputError) as raised:
            make(**arguments)
        assert KEY not in str(raised.value)


def test_addresses_and_keys_of_other_variables_change_nothing(peer, make_any, monkeypatch):
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, KEY)
    assert ask(make_any()).text == "done"
    assert not {"authorization", "x-api-key"} & set(map(str.lower, peer.requests[0].headers))


def test_a_missing_http_library_is_named_with_the_way_to_install_it(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    refused(r"httpx2 is not installed.*\.\[llm\]", make().ready)


def test_a_section_of_a_prompt_is_on_lines_of_its_own():
    template, parts = "Q: {question} .\n{response}", {"question": "a\nb", "response": "c"}
    prompt = spotlight(template, parts)
    nonce = hashlib.sha256(json.dumps([template, parts]).encode()).hexdigest()[:16]
    assert prompt.partition("Q: ")[2] == (
        f"\n===== begin question {nonce} =====\n> a\n> b\n===== end question {nonce} =====\n .\n"
        f"===== begin response {nonce} =====\n> c\n===== end response {nonce} ====="
    )


# Attempts that were paid for. A reply costs a dollar: its usage has one token of output.


DOLLAR = Price(input=0.0, output=1_000_000.0)
COUNTS = {"input": 100, "cached": 0, "reasoning": 0, "output": 1}
CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 1}
RESPONSES_USAGE = {"input_tokens": 100, "output_tokens": 1}


def raw(usage=None, **fields):
    return Raw(json.dumps({**fields, **({"usage": usage} if usage else {})}))


def stream(text):
    return Raw(text, "text/event-stream")


def event(fields):
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n"


WHOLE_STREAM = messages_body(Say(text="yes", usage=COUNTS), "m")
OPENED, CLOSING = (
    WHOLE_STREAM.partition("event: content_block_start")[0],
    WHOLE_STREAM.partition("event: message_delta")[2],
)
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TEXTLESS = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
MISPLACED = {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta"}}

# Replies that cost a dollar, are of no use, and are sent again, by the client that gets them.
TEXTLESS_TOP = {"content": [{"token": "a", "top_logprobs": [{"token": "a", "logprob": ""}]}]}
ABORTED = {"text": "ye", "finish_reason": "abort"}
FAILED = {"code": "server_error", "message": "no"}
USELESS = {
    "chat, given up": (OpenAIChat, Say(text="ye", finish="abort", usage=COUNTS), ServerFailed),
    "chat, no choices": (OpenAIChat, raw(CHAT_USAGE, choices=[]), BadReply),
    "chat, no message": (OpenAIChat, raw(CHAT_USAGE, choices=[{}]), BadReply),
    "chat, malformed calls": (
        OpenAIChat,
        raw(CHAT_USAGE, choices=[{"message": {"tool_calls": [{"function": None}]}}]),
        BadReply,
    ),
    "chat, malformed log-probabilities": (
        OpenAIChat,
        raw(CHAT_USAGE, choices=[{"message": {"content": "yes"}, "logprobs": TEXTLESS_TOP}]),
        BadReply,
    ),
    "chat, cut JSON": (
        OpenAIChat,
        Raw(f'{{"usage": {json.dumps(CHAT_USAGE)}, "choices": [{{"mess'),
        BadReply,
    ),
    "chat, an error with a usage": (
        OpenAIChat,
        raw(CHAT_USAGE, error={"message": "no"}),
        ServerFailed,
    ),
    "completions, given up": (OpenAICompletions, raw(CHAT_USAGE, choices=[ABORTED]), ServerFailed),
    "completions, no choices": (OpenAICompletions, raw(CHAT_USAGE, choices=[]), BadReply),
    "responses, cancelled": (
        OpenAIResponses,
        Say(text="ye", finish="cancelled", usage=COUNTS),
        ServerFailed,
    ),
    "responses, failed": (
        OpenAIResponses,
        raw(RESPONSES_USAGE, status="failed", error=FAILED),
        ServerFailed,
    ),
    "responses, malformed output": (OpenAIResponses, raw(RESPONSES_USAGE, output=[None]), BadReply),
    "messages, a cut connection": (
        AnthropicMessages,
        Cut(Say(text="never whole " * 200, usage=COUNTS)),
        ServerGone,
    ),
    "messages, an early end": (AnthropicMessages, stream(OPENED), ServerGone),
    "messages, an error within": (
        AnthropicMessages,
        stream(f"{OPENED}{event(OVERLOADED)}"),
        ServerFailed,
    ),
    "messages, a misplaced event": (
        AnthropicMessages,
        stream(f"{OPENED}{event(MISPLACED)}"),
        BadReply,
    ),
    "messages, a malformed event": (
        AnthropicMessages,
        stream(f"{OPENED}event: content_block_delta\ndata: {{not json\n\n"),
        BadReply,
    ),
    "messages, a block without its text": (
        AnthropicMessages,
        stream(f"{OPENED}{event(TEXTLESS)}event: message_delta{CLOSING}"),
        BadReply,
    ),
}


def whole(adapter):
    """A reply that can be used, and costs a dollar."""
    if adapter is OpenAICompletions:
        return raw(CHAT_USAGE, choices=[{"text": "yes", "finish_reason": "stop"}])
    return Say(text="yes", usage=COUNTS)


def ask_metered(peer, adapter, ledger, *, over=lambda model: model, store=None, **arguments):
    """The reply; `over` lays somebody's own model over the client, `store` receives each reply."""
    model = client(peer, adapter, **arguments)
    account = {"role": "agent", "qid": "q", "price": DOLLAR}
    metered = MeteredModel(over(model), ledger, **account, arrived=store)
    return using(model, lambda _: metered.respond([user("Who?")]))


def counts(ledger):
    total = ledger.total
    return total.calls, total.retries, total.failed, total.dollars


@pytest.mark.parametrize(("adapter", "step", "kind"), USELESS.values(), ids=USELESS.keys())
def test_each_of_six_useless_replies_is_entered_and_a_cap_stops_the_second(
    peer, adapter, step, kind
):
    peer.default = step
    lines = []
    ledger = Ledger(record=lambda role, qid, account: lines.append(account))
    with pytest.raises(kind):
        ask_metered(peer, adapter, ledger)
    assert len(peer.requests) == len(lines) == 6
    assert [line.dollars for line in lines] == [1.0] * 6
    assert [line.calls for line in lines] == [1, 0, 0, 0, 0, 0]
    assert [line.retries for line in lines] == [0, 1, 1, 1, 1, 1]
    assert [line.failed for line in lines] == [0, 0, 0, 0, 0, 1]
    assert counts(ledger) == (1, 5, 1, 6.0)
    total = ledger.total
    assert (total.output_tokens, total.unreported, total.unpriced) == (6, 0, 0)

    peer.requests.clear()
    capped = Ledger(cap=1.5)
    with pytest.raises(OutOfMoney, match=r"\$1\.0000 is spent"):
        ask_metered(peer, adapter, capped)
    assert len(peer.requests) == 1
    assert counts(capped) == (1, 0, 1, 1.0)


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAICompletions])
def test_a_reply_after_useless_ones_is_one_call_that_cost_them_all(peer, adapter):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), Fail(500), whole(adapter)])
    ledger = Ledger(question_cap=2.5)
    turn = ask_metered(peer, adapter, ledger)
    assert turn.text == "yes" and len(peer.requests) == 3
    assert counts(ledger) == (1, 2, 0, 2.0)


@pytest.mark.parametrize(
    ("adapter", "step"),
    [
        (OpenAIChat, raw(choices=[])),
        (OpenAIChat, Raw('{"choices": [{"message": {"content": "y')),
        (OpenAIChat, Raw('{"usage": {"prompt_tokens": ' + "1" * 5000 + "}}")),
        (OpenAICompletions, raw({"prompt_tokens": 5}, choices=[])),
        (OpenAIResponses, raw(output=[None])),
        (
            AnthropicMessages,
            stream(
                WHOLE_STREAM.replace('"output_tokens": 1', '"output_tokens": -1').replace(
                    "end_turn", "abort"
                )
            ),
        ),
    ],
)
def test_a_useless_reply_of_unknown_usage_closes_a_capped_ledger_before_it_is_tried_again(
    peer, adapter, step
):
    peer.default = step
    ledger = Ledger(cap=1000.0)
    with pytest.raises(OutOfMoney, match="reported no usage for 1 replies"):
        ask_metered(peer, adapter, ledger)
    assert len(peer.requests) == 1
    assert ledger.total.unpriced == ledger.total.unreported == 1
    free = Ledger()
    with pytest.raises(ModelError):
        ask_metered(peer, adapter, free, attempts=3)
    assert free.total.unpriced == 3 and "dollars" not in free.usage("q")


@pytest.mark.parametrize(
    ("adapter", "step"),
    [
        (OpenAIChat, Fail(500)),
        (OpenAIChat, Raw("<html>bad gateway</html>")),
        (OpenAIChat, Cut()),
        (OpenAIChat, raw(error={"message": "overloaded"})),
        (OpenAIResponses, raw(status="failed", error={"code": "server_error"}, usage=None)),
        (AnthropicMessages, stream(event(OVERLOADED))),
    ],
)
def test_attempts_that_brought_no_reply_have_no_price_and_no_cap_stops_them(peer, adapter, step):
    peer.script.extend([step, step])
    peer.default = whole(adapter)
    ledger = Ledger(cap=1.5)
    assert ask_metered(peer, adapter, ledger).text == "yes"
    assert counts(ledger) == (1, 2, 0, 1.0) and ledger.total.unpriced == 0


def test_the_seconds_of_a_request_are_those_of_its_attempts_and_of_the_waits_between(
    peer, monkeypatch
):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), whole(OpenAIChat)])
    lines = []
    ledger = Ledger(record=lambda role, qid, account: lines.append(account))

    monkeypatch.setattr(transport, "_sleep", lambda seconds: asyncio.sleep(0.5))
    ask_metered(peer, OpenAIChat, ledger)
    first, second = lines
    assert first.seconds < 0.5 <= second.seconds
    assert ledger.total.seconds == pytest.approx(first.seconds + second.seconds)


class Layer:
    """Somebody's own layer on a client: it knows nothing of ledgers, and changes the reply."""

    def __init__(self, model):
        self.name, self._model = model.name, model

    async def respond(self, messages, tools=(), settings=None):
        turn = await self._model.respond(messages, tools, settings)
        return Turn(text=turn.text.upper(), usage=turn.usage)


def test_attempts_below_a_layer_of_somebody_elses_are_entered_and_its_own_reply_is_stored(peer):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), whole(OpenAIChat)])
    ledger, stored = Ledger(), []
    assert ask_metered(peer, OpenAIChat, ledger, over=Layer, store=stored.append).text == "YES"
    assert [turn.text for turn in stored] == ["YES"]
    assert counts(ledger) == (1, 1, 0, 2.0)


def test_a_reply_that_cannot_be_stored_is_paid_for_all_the_same(peer):
    peer.default = whole(OpenAIChat)
    ledger = Ledger()

    def full(turn):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        ask_metered(peer, OpenAIChat, ledger, store=full)
    assert counts(ledger) == (1, 0, 0, 1.0)
    assert len(peer.requests) == 1


# Counts that no request can have, as they stand in a reply.
IMPOSSIBLE = {
    "negative": "-5",
    "beyond all floats": "1" + "0" * 400,
    "above a billion": "1000000001",
    "true": "true",
    "a float": "7.0",
    "text": '"7"',
    "not a number": "NaN",
    "infinite": "Infinity",
    "a list": "[7]",
}
DETAILS = {"cached_tokens": 3, "cache_write_tokens": 2}
USAGES = {
    OpenAIChat: {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "prompt_tokens_details": DETAILS,
        "completion_tokens_details": {"reasoning_tokens": 4},
    },
    OpenAICompletions: {"prompt_tokens": 11, "completion_tokens": 7},
    OpenAIResponses: {
        "input_tokens": 11,
        "output_tokens": 7,
        "input_tokens_details": {
            "cached_tokens": 3,
            "cache_write_tokens_details": {"ttl_12h_tokens": 1},
        },
        "output_tokens_details": {"reasoning_tokens": 4},
    },
    AnthropicMessages: {
        "input_tokens": 11,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 2,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 4},
    },
}
_COUNT = re.compile(r'"(\w+)": \d+')
FIELDS = [
    (adapter, match.span(), match[1])
    for adapter, usage in USAGES.items()
    for match in _COUNT.finditer(json.dumps(usage))
]


@pytest.mark.parametrize("count", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize(("adapter", "place", "field"), FIELDS)
def test_an_impossible_count_makes_the_usage_unknown_and_closes_a_capped_ledger(
    adapter, place, field, count
):
    text = json.dumps(USAGES[adapter])
    usage = json.loads(f'{text[: place[0]]}"{field}": {count}{text[place[1] :]}')
    model = adapter(model="m", base_url="http://127.0.0.1:9")
    assert model._usage(usage) == Usage()
    ledger = Ledger(cap=100.0)
    with ledger.request("agent", "q", DOLLAR) as entry:
        entry.reply(Turn(usage=model._usage(usage)))
    assert (ledger.total.dollars, ledger.total.unpriced, ledger.total.unreported) == (0.0, 1, 1)
    with pytest.raises(OutOfMoney, match="reported no usage"):
        ledger.request("agent", "q", DOLLAR).__enter__()


WITH_COUNT = {
    OpenAIChat: '{"choices": [{"message": {"content": "yes"}}], "usage": '
    '{"prompt_tokens": 100, "completion_tokens": COUNT}}',
    OpenAICompletions: '{"choices": [{"text": "yes"}], "usage": '
    '{"prompt_tokens": 100, "completion_tokens": COUNT}}',
    OpenAIResponses: '{"output": [{"type": "message", "content": [{"type": "output_text", '
    '"text": "yes"}]}], "usage": {"input_tokens": 100, "output_tokens": COUNT}}',
    AnthropicMessages: WHOLE_STREAM.replace('"output_tokens": 1,', '"output_tokens": COUNT,'),
}


@pytest.mark.parametrize(("adapter", "body"), WITH_COUNT.items())
def test_a_reply_with_an_impossible_count_comes_and_its_money_is_unknown(peer, adapter, body):
    kind = "text/event-stream" if adapter is AnthropicMessages else "application/json"
    for count in ("-5", "1" + "0" * 400):
        peer.script.append(Raw(body.replace("COUNT", count), kind))
        ledger = Ledger()
        assert ask_metered(peer, adapter, ledger).text == "yes"
        usage = ledger.usage("q")
        assert usage["unpriced"] == usage["unreported"] == 1
        assert not {"dollars", "output_tokens"} & set(usage)


@pytest.mark.parametrize("count", [-1, 10**9 + 1, 10**400, True, 1.0, float("nan"), "1", [1]])
def test_a_usage_of_somebody_elses_client_is_known_only_where_it_is_possible(count):
    assert Usage(input=5, output=count) == Usage() == Usage(input=5, cached=count, output=1)


def test_a_usage_with_more_cached_tokens_than_its_input_is_unknown():
    assert Usage(input=10, cached=10_000, output=3) == Usage()
    assert Usage(input=10, cached=10, output=3).cached == Usage(cached=10).cached == 10
    # xAI counts reasoning apart from the output.
    assert Usage(input=10, output=3, reasoning=7).reasoning == 7


def test_zero_and_the_largest_count_are_possible():
    assert Usage(input=0, output=10**9).output == 10**9


# Replies are stored as soon as they have arrived.

AT_ONCE = 16


@pytest.mark.parametrize("adapter", ADAPTERS.values())
def test_replies_that_have_come_are_stored_before_their_tasks_go_on(peer, adapter):
    released, rounds, stored_in = threading.Event(), 0, []

    def answer(request):
        released.wait(60)
        return whole(adapter)

    async def count_rounds():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def main():
        model, ledger = client(peer, adapter), Ledger()
        metered = MeteredModel(
            model, ledger, role="agent", qid="q", arrived=lambda turn: stored_in.append(rounds)
        )
        asking = [asyncio.create_task(metered.respond([user("Who?")])) for _ in range(AT_ONCE)]
        while len(peer.requests) < AT_ONCE:
            await asyncio.sleep(0.01)
        counting = asyncio.create_task(count_rounds())
        await asyncio.sleep(0.1)
        released.set()
        time.sleep(0.5)  # All replies come while the loop does nothing else.
        began = rounds
        await asyncio.gather(*asking)
        counting.cancel()
        await model.close()
        return began

    peer.default = answer
    began = asyncio.run(main())
    # In one round of the loop the sockets are read, in the next one the tasks wake.
    assert len(stored_in) == AT_ONCE and max(stored_in) - began <= 2


def test_one_request_is_prepared_in_a_round_of_the_loop():
    rounds, prepared_in = 0, []

    class Immediate(OpenAIChat):
        async def _send(self, client, body, timeout, reply, arrived):
            prepared_in.append(rounds)
            reply["choices"] = [{"message": {"content": "yes"}}]
            arrived()

    async def main():
        nonlocal rounds
        model = Immediate(model="m", base_url="http://127.0.0.1:9/v1")
        asking = [asyncio.create_task(model.respond([user("Who?")])) for _ in range(AT_ONCE)]
        while not all(task.done() for task in asking):
            rounds += 1
            await asyncio.sleep(0)
        assert [task.result().text for task in asking] == ["yes"] * AT_ONCE
        await model.close()

    asyncio.run(main())
    assert len(set(prepared_in)) == AT_ONCE


def test_what_a_cancelled_attempt_had_cost_by_then_is_on_the_ledger():
    class Stalled(OpenAIChat):
        async def _send(self, client, body, timeout, reply, arrived):
            reply["usage"] = CHAT_USAGE
            sending.set()
            await asyncio.sleep(60)

    async def main():
        model = Stalled(model="m", base_url="http://127.0.0.1:9/v1")
        metered = MeteredModel(model, ledger, role="agent", qid="q", price=DOLLAR)
        asking = asyncio.create_task(metered.respond([user("Who?")]))
        await sending.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await model.close()

    ledger, sending = Ledger(), asyncio.Event()
    asyncio.run(main())
    assert counts(ledger) == (1, 0, 1, 1.0)


def ask_until_killed(ready, url, place, at_once):
    """Asks for replies to prompts, and keeps them below the folder `place`."""
    model = BlockingModel("m", role="rewriter")
    llm = CachedLLM(name="replies", parts=[], is_empty=lambda text: not text, counts=Counts())
    client = llm.of(model, place)
    api = OpenAIChat(model="m", base_url=url, concurrency=at_once)
    with open_ledger(place / "ledger.jsonl") as ledger, model.started(api, ledger):
        ready()
        for first in range(0, 100_000, 600):
            client.replies({f"prompt {number}": "q" for number in range(first, first + 600)})


def test_kill_9_loses_few_of_the_replies_that_had_come(tmp_path, peer):
    kills, at_once, moments = cases(20, few=2), 30, random.Random(7)
    lost = []
    for kill in range(kills):
        place = tmp_path / str(kill)
        place.mkdir()
        peer.reset()
        peer.default = answer_at_once(served := [])
        process = forked(ask_until_killed, peer.openai_url, place, at_once)
        until = time.monotonic() + 120
        while len(served) < 5 * at_once and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.join(30)
        replied = list(served)
        (cache,) = place.glob("replies-*.sqlite")
        with sqlite3.connect(cache) as connection:
            kept = {json.loads(text)["text"] for (text,) in connection.execute(QUERY)}
        paid = (place / "ledger.jsonl").read_text().count("\n") - 1
        assert kept <= set(replied) and 0 <= len(kept) - paid <= 1
        lost.append(len(set(replied) - kept))
    # Before replies were kept at once, half of those in flight were lost on the average.
    assert sum(lost) / kills <= at_once / 3


QUERY = "SELECT value FROM results"


def answer_at_once(served):
    """Answers a prompt with itself, and notes it."""

    def answer(request):
        if not request.body:  # The client was killed after the head of its request.
            return Say()
        prompt = request.body["messages"][0]["content"]
        served.append(prompt)
        return Say(text=prompt)

    return answer
