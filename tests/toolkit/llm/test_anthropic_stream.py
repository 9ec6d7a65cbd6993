"""Anthropic's streams: what ends early, what fails within, and blocks that only go back."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_peer import Raw, Say, messages_body, running_peer

from soundingline.toolkit.llm.anthropic import AnthropicMessages, gather
from soundingline.toolkit.llm.errors import (
    BadReply,
    ContextOverflow,
    ServerFailed,
    ServerGone,
)
from soundingline.toolkit.llm.messages import Usage, tool_result, user

pytestmark = pytest.mark.slow

ANSWER = messages_body(Say(text="Ada Lovelace.", reasoning="Hm."), "m")


@pytest.fixture(scope="module")
def peer():
    with running_peer() as running:
        yield running


async def no_wait(seconds):
    """The wait between two attempts, which takes no time here."""


def ask(peer, messages, **arguments):
    async def main():
        common = {"model": "m", "base_url": peer.anthropic_url, "sleep": no_wait, **arguments}
        model = AnthropicMessages(**common)
        try:
            return await model.respond(messages)
        finally:
            await model.close()

    return asyncio.run(main())


def stream(text):
    return Raw(text, "text/event-stream")


def event(**fields):
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n"


def wrong(peer, text, kind):
    peer.reset()
    peer.default = stream(text)
    with pytest.raises(kind):
        ask(peer, [user("Who?")], attempts=2)
    assert len(peer.requests) == (2 if kind.retryable else 1)


def test_a_stream_that_ends_cleanly_but_early_is_tried_again(peer):
    events = ANSWER.split("event: message_delta")[0]
    peer.reset()
    peer.script.append(stream(events))
    assert ask(peer, [user("Who?")]).attempts == 2
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
    peer.reset()
    start, rest = ANSWER.split("event: content_block_start", 1)
    new = event(type="ping") + event(type="something_new", index=9)
    peer.script.append(stream(f"{start}{new}event: content_block_start{rest}"))
    assert ask(peer, [user("Who?")]).text == "Ada Lovelace."


def test_redacted_thinking_is_no_text_and_goes_back_untouched(peer):
    peer.reset()
    start, rest = ANSWER.split("event: content_block_start", 1)
    secret = {"type": "redacted_thinking", "data": "opaque=="}
    block = event(type="content_block_start", index=0, content_block=secret)
    rest = rest.replace('"index": 1', '"index": 2').replace('"index": 0', '"index": 1')
    peer.script.append(stream(f"{start}{block}event: content_block_start{rest}"))
    turn = ask(peer, [user("Who?")])
    assert (turn.text, turn.reasoning) == ("Ada Lovelace.", "Hm.")
    ask(peer, [user("Who?"), turn.message(), user("Sure?")])
    assert peer.requests[-1].body["messages"][1]["content"] == [
        secret,
        {"type": "thinking", "thinking": "Hm.", "signature": "signed=="},
        {"type": "text", "text": "Ada Lovelace."},
    ]


def test_all_results_of_a_turn_and_what_follows_come_in_one_message(peer):
    peer.reset()
    calls = [("a", "search", "{}"), ("b", "search", "{}")]
    peer.script.append(Say(calls=calls))
    turn = ask(peer, [user("Who?")])
    results = [tool_result("a", "one"), tool_result("b", ""), user("Time is nearly gone.")]
    ask(peer, [user("Who?"), turn.message(), *results])
    sent = peer.requests[-1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert sent[2]["content"][2]["cache_control"] == {"type": "ephemeral"}
    marks = json.dumps(sent).count("cache_control")
    assert marks == 1


def test_input_counts_what_was_read_from_and_written_to_the_cache(peer):
    peer.reset()
    counts = {"cache_creation_input_tokens": 30, "cache_read_input_tokens": 50}
    usage = json.dumps({"input_tokens": 20, **counts, "output_tokens": 1})
    begin, end = ANSWER.split('"usage": ', 1)
    peer.script.append(stream(f'{begin}"usage": {usage}{end[end.index("}") + 1 :]}'))
    assert ask(peer, [user("Who?")]).usage == Usage(
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
