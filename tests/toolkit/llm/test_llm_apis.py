"""Rules of single APIs that a request must follow and a reply can break, as their documents, SDKs
and issue threads state them: the fake server applies each rule as the server does."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from llm_clients import client, using
from support.llm_server import Fail, Raw, Say, messages_body

from soundingline.toolkit.llm import errors
from soundingline.toolkit.llm.anthropic import AnthropicMessages, gather
from soundingline.toolkit.llm.errors import BadReply, ContextOverflow, ServerFailed, ServerGone
from soundingline.toolkit.llm.messages import (
    SamplingParams,
    ToolCall,
    Turn,
    Usage,
    tool_result,
    user,
)
from soundingline.toolkit.llm.openai_chat import OpenAIChat, OpenAICompletions
from soundingline.toolkit.llm.openai_responses import OpenAIResponses

SEARCH = {
    "name": "search",
    "description": "Ranks documents.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    },
}
CALL = ("c1", "search", '{"query": "x"}')


def ask(peer, adapter, messages, **arguments):
    settings = SamplingParams(**arguments.pop("settings", {}))
    model = client(peer, adapter, attempts=2, **arguments)
    tools = [] if model.continues_text else [SEARCH]
    return using(model, lambda it: it.respond(messages, tools, settings))


# The Responses API: each reasoning item must be followed by the item that it led to.


def paired(request):
    """OpenAI's rule, with its words."""
    items = [*request.body["input"], {}]
    for item, following in itertools.pairwise(items):
        follows = following.get("type") in ("reasoning", "message", "function_call")
        if item.get("type") == "reasoning" and not follows:
            name = item["id"]
            said = f"Item '{name}' of type 'reasoning' was provided without its required following"
            return Fail(400, f"{said} item.", "invalid_request_error")
    return Say(text="done")


@pytest.mark.parametrize(
    "said",
    [
        Say(reasoning="Hm."),
        Say(reasoning="Hm.", text="Ada."),
        Say(reasoning="Hm.", calls=[CALL]),
        Say(reasoning="Hm.", text="I look.", calls=[CALL]),
    ],
)
def test_a_turn_is_replayed_without_reasoning_that_nothing_follows(peer, said):
    peer.script.append(said)
    turn = ask(peer, OpenAIResponses, [user("Who?")])
    results = [tool_result(call.id, "page") for call in turn.tool_calls]
    peer.default = paired
    messages = [user("Who?"), turn.message(), *results, user("Please answer.")]
    assert ask(peer, OpenAIResponses, messages).text == "done"
    kinds = [item.get("type") for item in peer.requests[-1].body["input"]]
    assert kinds.count("reasoning") == bool(said.text or said.calls)
    # The record keeps what the model thought.
    assert turn.message()["reasoning"] == "Hm."


def test_reasoning_behind_the_last_item_of_a_turn_is_not_replayed(peer):
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    call = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"}
    items = [thought, thought, call, {**thought, "id": "rs_2"}]
    turn = Turn(
        tool_calls=(ToolCall("c1", "search", "{}"),),
        provider={"api": "openai_responses", "items": items},
    )
    peer.default = paired
    ask(peer, OpenAIResponses, [user("Who?"), turn.message(), tool_result("c1", "page")])
    sent = peer.requests[-1].body["input"]
    assert [item.get("id") for item in sent if item.get("type") == "reasoning"] == ["rs_1", "rs_1"]


# A call cannot be forced while Claude, or DeepSeek, thinks.


def free_while_thinking(request):
    """Anthropic's rule, with its words."""
    thinking = request.body.get("thinking", {"type": "disabled"})["type"] != "disabled"
    if thinking and request.body["tool_choice"]["type"] not in ("auto", "none"):
        said = "Thinking may not be enabled when tool_choice forces tool use."
        return Fail(400, said, "invalid_request_error")
    return Say(calls=[CALL])


@pytest.mark.parametrize("choice", ["required", "search"])
@pytest.mark.parametrize(
    "thinking", [{"type": "adaptive", "display": "summarized"}, {"type": "enabled", "budget": 2000}]
)
@pytest.mark.parametrize("place", ["client", "extra"])
def test_claude_chooses_freely_where_it_thinks(peer, choice, thinking, place):
    peer.default = free_while_thinking
    settings = {"tool_choice": choice}
    if place == "extra":
        turn = ask(
            peer,
            AnthropicMessages,
            [user("Who?")],
            settings={**settings, "extra": {"thinking": thinking}},
        )
    else:
        turn = ask(peer, AnthropicMessages, [user("Who?")], settings=settings, thinking=thinking)
    assert turn.tool_calls
    body = peer.requests[-1].body
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert body["thinking"] == thinking


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
def test_claude_is_forced_where_it_does_not_think(peer, thinking):
    peer.default = free_while_thinking
    settings = {"tool_choice": "search"}
    ask(peer, AnthropicMessages, [user("Who?")], settings=settings, thinking=thinking)
    assert peer.requests[-1].body["tool_choice"]["name"] == "search"


def test_tools_stay_closed_where_claude_thinks(peer):
    settings = {"tool_choice": "none"}
    ask(peer, AnthropicMessages, [user("Who?")], settings=settings, thinking={"type": "adaptive"})
    assert peer.requests[-1].body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("required", "auto"), ("search", "auto"), ("auto", "auto"), ("none", "none")],
)
def test_a_server_that_takes_no_forced_call_is_sent_none(peer, choice, sent):
    ask(
        peer,
        OpenAIChat,
        [user("Who?")],
        settings={"tool_choice": choice},
        forced_calls=False,
    )
    assert peer.requests[-1].body["tool_choice"] == sent


# Replies with status 200 that are not whole. vLLM's finish reasons are stop, length, abort, error
# and repetition; its Responses API has the status `cancelled` for abort.


BROKEN = [
    (OpenAIChat, "abort", errors.ServerFailed),
    (OpenAIChat, "error", errors.ServerFailed),
    (OpenAIChat, "insufficient_system_resource", errors.ServerFailed),
    (OpenAIChat, "repetition", errors.Truncated),
    (OpenAICompletions, "abort", errors.ServerFailed),
    (OpenAICompletions, "error", errors.ServerFailed),
    (OpenAIResponses, "cancelled", errors.ServerFailed),
    (OpenAIResponses, "incomplete:steered", errors.Truncated),
    (OpenAIResponses, "incomplete", errors.Truncated),
    (OpenAIResponses, "incomplete:content_filter", errors.Refused),
    (AnthropicMessages, "abort", errors.ServerFailed),
    (AnthropicMessages, "error", errors.ServerFailed),
]


@pytest.mark.parametrize(("adapter", "word", "kind"), BROKEN)
def test_half_a_reply_is_an_error_that_keeps_what_came(peer, adapter, word, kind):
    peer.default = Say(text="Ada Lov", calls=[CALL], finish=word)
    with pytest.raises(errors.ModelError) as raised:
        ask(peer, adapter, [user("Who?")])
    assert type(raised.value) is kind
    assert raised.value.turn is not None
    assert (raised.value.turn.text, raised.value.turn.usage.output) == ("Ada Lov", 20)
    # Only what may pass is sent again.
    assert len(peer.requests) == (2 if kind.retryable else 1)


@pytest.mark.parametrize(
    ("adapter", "word"),
    [(OpenAIChat, "abort"), (OpenAIResponses, "cancelled"), (AnthropicMessages, "abort")],
)
def test_a_reply_that_the_server_gave_up_is_asked_for_again(peer, adapter, word):
    peer.script.extend([Say(text="Ada Lov", finish=word), Say(text="Ada Lovelace.")])
    turn = ask(peer, adapter, [user("Who?")])
    assert (turn.text, turn.attempts) == ("Ada Lovelace.", 2)


# Anthropic's streams: what ends early, what fails within, and blocks that only go back.

ANSWER = messages_body(Say(text="Ada Lovelace.", reasoning="Hm."), "m")


def stream(text):
    return Raw(text, "text/event-stream")


def event(**fields):
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n"


def wrong(peer, text, kind):
    peer.requests.clear()
    peer.default = stream(text)
    with pytest.raises(kind):
        ask(peer, AnthropicMessages, [user("Who?")])
    assert len(peer.requests) == (2 if kind.retryable else 1)


def test_a_stream_that_ends_cleanly_but_early_is_tried_again(peer):
    events = ANSWER.split("event: message_delta")[0]
    peer.script.append(stream(events))
    assert ask(peer, AnthropicMessages, [user("Who?")]).attempts == 2
    wrong(peer, events, ServerGone)


def test_an_error_within_a_stream_is_the_servers(peer):
    start = ANSWER.split("event: content_block_start")[0]
    error = {"type": "overloaded_error", "message": "Overloaded"}
    wrong(peer, start + event(type="error", error=error), ServerFailed)


def test_a_full_window_is_an_overflow_with_what_was_said(peer):
    wrong(peer, messages_body(Say(text="Ada", finish="overflow"), "m"), ContextOverflow)


@pytest.mark.parametrize(
    "events",
    [
        event(type="content_block_delta", index=3, delta={"type": "text_delta", "text": "x"}),
        "event: message_start\ndata: {not json\n\n",
    ],
)
def test_events_that_do_not_fit_are_a_bad_reply(peer, events):
    wrong(peer, events, BadReply)


def test_pings_and_unknown_events_are_passed_over(peer):
    start, rest = ANSWER.split("event: content_block_start", 1)
    new = event(type="ping") + event(type="something_new", index=9)
    peer.script.append(stream(f"{start}{new}event: content_block_start{rest}"))
    assert ask(peer, AnthropicMessages, [user("Who?")]).text == "Ada Lovelace."


def test_redacted_thinking_is_no_text_and_goes_back_untouched(peer):
    start, rest = ANSWER.split("event: content_block_start", 1)
    secret = {"type": "redacted_thinking", "data": "opaque=="}
    block = event(type="content_block_start", index=0, content_block=secret)
    rest = rest.replace('"index": 1', '"index": 2').replace('"index": 0', '"index": 1')
    peer.script.append(stream(f"{start}{block}event: content_block_start{rest}"))
    turn = ask(peer, AnthropicMessages, [user("Who?")])
    assert (turn.text, turn.reasoning) == ("Ada Lovelace.", "Hm.")
    ask(peer, AnthropicMessages, [user("Who?"), turn.message(), user("Sure?")])
    assert peer.requests[-1].body["messages"][1]["content"] == [
        secret,
        {"type": "thinking", "thinking": "Hm.", "signature": "signed=="},
        {"type": "text", "text": "Ada Lovelace."},
    ]


def test_all_results_of_a_turn_and_what_follows_come_in_one_message(peer):
    calls = [("a", "search", "{}"), ("b", "search", "{}")]
    peer.script.append(Say(calls=calls))
    turn = ask(peer, AnthropicMessages, [user("Who?")])
    results = [tool_result("a", "one"), tool_result("b", ""), user("Time is nearly gone.")]
    ask(peer, AnthropicMessages, [user("Who?"), turn.message(), *results])
    sent = peer.requests[-1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert sent[2]["content"][2]["cache_control"] == {"type": "ephemeral"}
    marks = json.dumps(sent).count("cache_control")
    assert marks == 1


def test_input_counts_what_was_read_from_and_written_to_the_cache(peer):
    counts = {"cache_creation_input_tokens": 30, "cache_read_input_tokens": 50}
    usage = json.dumps({"input_tokens": 20, **counts, "output_tokens": 1})
    begin, end = ANSWER.split('"usage": ', 1)
    peer.script.append(stream(f'{begin}"usage": {usage}{end[end.index("}") + 1 :]}'))
    assert ask(peer, AnthropicMessages, [user("Who?")]).usage == Usage(
        input=100, cached=50, cache_write=30, reasoning=5, output=20
    )


def test_gathering_joins_the_parts_of_a_block():
    async def events():
        yield {"type": "message_start", "message": {"model": "m"}}
        yield {"type": "content_block_start", "content_block": {"type": "tool_use", "input": {}}}
        for part in ('{"a":', " 1"):
            delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}

    reply = {}
    asyncio.run(gather(events(), reply))
    assert reply["content"] == [{"type": "tool_use", "input": '{"a": 1'}]
    assert "stop_reason" not in reply
