"""Chat completions: where reasoning is found, and that it goes back to the same place."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_peer import Raw, running_peer

from soundingline.toolkit.llm.messages import SamplingParams, Usage, user
from soundingline.toolkit.llm.openai_chat import OpenAIChat


@pytest.fixture(scope="module")
def peer():
    with running_peer() as running:
        yield running


def ask(peer, messages, **arguments):
    async def main():
        model = OpenAIChat(model="m", base_url=peer.openai_url, **arguments)
        try:
            return await model.respond(messages, (), SamplingParams(max_output_tokens=5))
        finally:
            await model.close()

    return asyncio.run(main())


def reply(message, **more):
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return Raw(json.dumps({"model": "m", "choices": [choice], **more}))


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": "Ada.", "reasoning": "Hm."}, "Ada.", "Hm."),
        ({"content": "Ada.", "reasoning_content": "Hm."}, "Ada.", "Hm."),
        ({"content": "<think>\nHm.\n</think>\n\nAda."}, "Ada.", "\nHm.\n"),
        ({"content": "Hm.</think>Ada."}, "Ada.", "Hm."),
        ({"content": "<think>Hm."}, "", "Hm."),
        ({"content": "<think>Hm.</think>\nAda.\n"}, "Ada.\n", "Hm."),
        ({"content": "2 < 3 and <b>bold</b>"}, "2 < 3 and <b>bold</b>", ""),
        ({"content": None, "reasoning": None}, "", ""),
    ],
)
def test_reasoning_is_found_where_servers_put_it(peer, message, text, reasoning):
    peer.script.append(reply(message))
    turn = ask(peer, [user("Who?")])
    assert (turn.text, turn.reasoning) == (text, reasoning)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "Ada.", "reasoning": "Hm."},
        {"content": "Ada.", "reasoning_content": "Hm."},
        {"content": "<think>\nHm.\n</think>\n\nAda."},
        {"content": "Hm.</think>Ada."},
    ],
)
def test_reasoning_goes_back_as_it_came_or_not_at_all(peer, message):
    peer.script.append(reply(message))
    turn = ask(peer, [user("Who?")])
    ask(peer, [user("Who?"), turn.message(), user("Sure?")])
    assert peer.requests[-1].body["messages"][1] == {"role": "assistant", **message}
    ask(peer, [user("Who?"), turn.message(), user("Sure?")], replay_reasoning=False)
    assert peer.requests[-1].body["messages"][1] == {"role": "assistant", "content": "Ada."}


def test_cached_tokens_of_deepseek_are_read(peer):
    counts = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_cache_hit_tokens": 4}
    peer.script.append(reply({"content": "x"}, usage=counts))
    assert ask(peer, [user("Who?")]).usage == Usage(input=9, cached=4, output=3)


def test_absent_call_ids_become_numbers_that_go_on_through_the_transcript(peer):
    calls = [{"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}] * 2
    earlier = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "s", "arguments": "{}"}}
        ],
    }
    peer.script.append(reply({"content": None, "tool_calls": calls}))
    turn = ask(peer, [user("Who?"), earlier])
    assert [call.id for call in turn.tool_calls] == ["call_2", "call_3"]
    assert [call.parsed() for call in turn.tool_calls] == [{"query": "x"}] * 2


def test_the_output_limit_has_the_name_that_the_server_knows(peer):
    peer.requests.clear()
    ask(peer, [user("Who?")])
    ask(peer, [user("Who?")], output_limit="max_tokens")
    new, old = (request.body for request in peer.requests)
    assert new["max_completion_tokens"] == 5 and "max_tokens" not in new
    assert old["max_tokens"] == 5 and "max_completion_tokens" not in old
