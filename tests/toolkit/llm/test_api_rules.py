"""Rules of the APIs that a request must keep and a reply can tell of, as their documents, SDKs and
issue threads state them: the peer applies each rule as the server does."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from scripted_peer import Fail, Say, running_peer

from soundingline.toolkit.llm import errors
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.messages import SamplingParams, ToolCall, Turn, tool_result, user
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


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    return server


async def no_wait(seconds):
    pass


def ask(peer, adapter, messages, **arguments):
    settings = SamplingParams(**arguments.pop("settings", {}))
    url = peer.anthropic_url if adapter is AnthropicMessages else peer.openai_url
    model = adapter(model="m", base_url=url, sleep=no_wait, attempts=2, **arguments)

    async def main():
        try:
            return await model.respond(messages, [SEARCH], settings)
        finally:
            await model.close()

    return asyncio.run(main())


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


@pytest.mark.parametrize("word", ["abort", "error"])
def test_a_text_completion_that_the_server_gave_up_is_none(word):
    reply = {"choices": [{"index": 0, "text": "half", "finish_reason": word}], "model": "m"}
    model = OpenAICompletions(model="m")
    with pytest.raises(errors.ServerFailed, match=word):
        model._whole(model._turn(reply, [user("By the")]))
