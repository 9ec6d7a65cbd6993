"""Rules of single APIs, requests that can always be sent, and the class of each server's error."""

import asyncio
import itertools
import json
import math
import re
from pathlib import Path

import llm_clients
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_clients import client, using
from support.assertions import refused
from support.llm_server import Fail, Raw, Say, messages_body
from support.needs import cases, needs

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import errors, wire
from soundingline.toolkit.llm.anthropic import AnthropicMessages, collect_reply, strict_schema
from soundingline.toolkit.llm.local_servers import LlamaCppServer, serving
from soundingline.toolkit.llm.messages import (
    FunctionCall,
    SamplingParams,
    Token,
    Turn,
    Usage,
    tool_result,
    user,
)
from soundingline.toolkit.llm.openai import (
    OpenAIChat,
    OpenAICompletions,
    OpenAIResponses,
    RecordedChat,
)
from soundingline.toolkit.llm.prompts import spotlight

DATA = Path(__file__).resolve().parents[2] / "data"
CALL = ("c1", "search", '{"query": "x"}')
WHO = user("Who?")


def ask(peer, adapter, *messages, settings=None, tools=None, **arguments):
    model = client(peer, adapter, attempts=2, **arguments)
    given = SamplingParams(**settings) if settings else None
    return llm_clients.ask(model, messages or [WHO], tools, given)


# The Responses API: each reasoning item must be followed by the item that it led to.


def paired(request):
    """OpenAI's rule, with its words."""
    for item, following in itertools.pairwise([*request.body["input"], {}]):
        follows = following.get("type") in ("reasoning", "message", "function_call")
        if item.get("type") == "reasoning" and not follows:
            said = f"Item '{item['id']}' of type 'reasoning' was provided without its required"
            return Fail(400, f"{said} following item.", "invalid_request_error")
    return Say(text="done")


@pytest.mark.parametrize("text", ["", "Ada."])
@pytest.mark.parametrize("calls", [[], [CALL]])
def test_a_turn_is_replayed_without_reasoning_that_nothing_follows(peer, text, calls):
    peer.script.append(Say(reasoning="Hm.", text=text, calls=calls))
    turn = ask(peer, OpenAIResponses)
    results = [tool_result(call.id, "page") for call in turn.tool_calls]
    peer.default = paired
    messages = [WHO, turn.message(), *results, user("Please answer.")]
    assert ask(peer, OpenAIResponses, *messages).text == "done"
    kinds = [item.get("type") for item in peer.requests[-1].body["input"]]
    assert kinds.count("reasoning") == bool(text or calls)
    # The record keeps what the model thought.
    assert turn.message()["reasoning"] == "Hm."


def test_reasoning_after_the_last_item_of_a_turn_is_not_replayed(peer):
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    call = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"}
    items = [thought, thought, call, {**thought, "id": "rs_2"}]
    provider = {"api": "openai_responses", "items": items}
    turn = Turn(tool_calls=(FunctionCall("c1", "search", "{}"),), provider=provider)
    peer.default = paired
    ask(peer, OpenAIResponses, WHO, turn.message(), tool_result("c1", "page"))
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


ONE_CALL = {"disable_parallel_tool_use": True}
ADAPTIVE = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("choice", "thinking", "sent"),
    [
        ("required", ADAPTIVE, {"type": "auto", **ONE_CALL}),
        ("search", ADAPTIVE, {"type": "auto", **ONE_CALL}),
        ("search", {"type": "enabled", "budget": 2000}, {"type": "auto", **ONE_CALL}),
        ("none", ADAPTIVE, {"type": "none"}),
        ("search", None, {"type": "tool", "name": "search", **ONE_CALL}),
        ("search", {"type": "disabled"}, {"type": "tool", "name": "search", **ONE_CALL}),
    ],
)
@pytest.mark.parametrize("place", ["client", "extra"])
def test_a_call_is_forced_only_if_claude_does_not_think(peer, choice, thinking, sent, place):
    peer.default = free_while_thinking
    extra = {"extra": {"thinking": thinking}} if place == "extra" and thinking else {}
    own = {} if extra else {"thinking": thinking}
    ask(peer, AnthropicMessages, settings={"tool_choice": choice, **extra}, **own)
    body = peer.requests[-1].body
    assert body["tool_choice"] == sent and body.get("thinking") == thinking


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("required", "auto"), ("search", "auto"), ("auto", "auto"), ("none", "none")],
)
def test_a_server_that_accepts_no_forced_call_is_sent_none(peer, choice, sent):
    ask(peer, OpenAIChat, settings={"tool_choice": choice}, calls="text")
    assert peer.requests[-1].body["tool_choice"] == sent


# Replies with status 200 that are incomplete. vLLM's finish reasons are stop, length, abort, error
# and repetition; its Responses API has the status `cancelled` for abort.


@pytest.mark.parametrize(
    ("adapter", "word", "kind"),
    [
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
        (AnthropicMessages, "overflow", errors.ContextOverflow),
    ],
)
def test_an_incomplete_reply_is_an_error_that_holds_what_came(peer, adapter, word, kind):
    peer.default = Say(text="Ada Lov", calls=[CALL], finish=word)
    with pytest.raises(errors.ModelError) as raised:
        ask(peer, adapter)
    assert type(raised.value) is kind
    assert (raised.value.turn.text, raised.value.turn.usage.output) == ("Ada Lov", 20)
    # Only what may pass is sent again.
    assert len(peer.requests) == (2 if kind.retryable else 1)


# Anthropic's streams and blocks. Streams that end early or fail are in `test_llm_clients.py`.

ANSWER = messages_body(Say(text="Ada Lovelace.", reasoning="Hm."), "m")
START, REST = ANSWER.split("event: content_block_start", 1)


def stream(text):
    return Raw(text, "text/event-stream")


def event(**fields):
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n"


def test_the_version_of_the_api_is_sent(peer):
    ask(peer, AnthropicMessages)
    assert peer.requests[0].headers["anthropic-version"] == "2023-06-01"


def test_pings_and_unknown_events_are_ignored(peer):
    new = event(type="ping") + event(type="something_new", index=9)
    peer.script.append(stream(f"{START}{new}event: content_block_start{REST}"))
    assert ask(peer, AnthropicMessages).text == "Ada Lovelace."


def test_redacted_thinking_is_no_text_and_is_sent_back_unchanged(peer):
    secret = {"type": "redacted_thinking", "data": "opaque=="}
    block = event(type="content_block_start", index=0, content_block=secret)
    rest = REST.replace('"index": 1', '"index": 2').replace('"index": 0', '"index": 1')
    peer.script.append(stream(f"{START}{block}event: content_block_start{rest}"))
    turn = ask(peer, AnthropicMessages)
    assert (turn.text, turn.reasoning) == ("Ada Lovelace.", "Hm.")
    ask(peer, AnthropicMessages, WHO, turn.message(), user("Sure?"))
    assert peer.requests[-1].body["messages"][1]["content"] == [
        secret,
        {"type": "thinking", "thinking": "Hm.", "signature": "signed=="},
        {"type": "text", "text": "Ada Lovelace."},
    ]


def test_all_results_of_a_turn_and_what_follows_come_in_one_message(peer):
    peer.script.append(Say(calls=[("a", "search", "{}"), ("b", "search", "{}")]))
    turn = ask(peer, AnthropicMessages)
    results = [tool_result("a", "one"), tool_result("b", ""), user("Time is nearly gone.")]
    ask(peer, AnthropicMessages, WHO, turn.message(), *results)
    sent = peer.requests[-1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert sent[2]["content"][2]["cache_control"] == {"type": "ephemeral"}
    assert json.dumps(sent).count("cache_control") == 1


def test_input_counts_what_was_read_from_and_written_to_the_cache(peer):
    counts = {"cache_creation_input_tokens": 30, "cache_read_input_tokens": 50}
    usage = json.dumps({"input_tokens": 20, **counts, "output_tokens": 1})
    begin, end = ANSWER.split('"usage": ', 1)
    peer.script.append(stream(f'{begin}"usage": {usage}{end[end.index("}") + 1 :]}'))
    expected = Usage(input=100, cached=50, cache_write=30, reasoning=5, output=20)
    assert ask(peer, AnthropicMessages).usage == expected


def test_the_parts_of_a_block_are_joined():
    async def events():
        yield {"type": "message_start", "message": {"model": "m"}}
        yield {"type": "content_block_start", "content_block": {"type": "tool_use", "input": {}}}
        for part in ('{"a":', " 1"):
            delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}

    reply = {}
    asyncio.run(collect_reply(events(), reply))
    assert reply["content"] == [{"type": "tool_use", "input": '{"a": 1'}]
    assert "stop_reason" not in reply


def test_a_schema_for_strict_tools_of_anthropic_has_no_bounds_and_no_lists_of_types():
    strict = strict_schema(llm_clients.SEARCH["parameters"])
    bounds = {"type": "integer", "description": "minimum: 1, maximum: 1000"}
    offset = {"anyOf": [bounds, {"type": "null"}], "description": "First rank."}
    query = {"type": "string", "description": "What to look for."}
    rest = {"type": "object", "required": ["query", "offset"], "additionalProperties": False}
    assert strict == {**rest, "properties": {"query": query, "offset": offset}}


# Chat completions: where reasoning is, and calls that a model writes as text.


def chat_reply(message, **more):
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
def test_reasoning_is_read_and_sent_back_as_it_came_or_not_at_all(peer, message, text, reasoning):
    peer.script.append(chat_reply(message))
    turn = ask(peer, OpenAIChat)
    assert (turn.text, turn.reasoning) == (text, reasoning)
    ask(peer, OpenAIChat, WHO, turn.message(), user("Sure?"))
    # Reasoning that was cut is closed, and nothing is an empty text.
    written = {"<think>Hm.": {"content": "<think>Hm.</think>"}, None: {"content": ""}}
    sent = written.get(message["content"], message)
    assert peer.requests[-1].body["messages"][1] == {"role": "assistant", **sent}
    ask(peer, OpenAIChat, WHO, turn.message(), user("Sure?"), replay_reasoning=False)
    assert peer.requests[-1].body["messages"][1] == {"role": "assistant", "content": text}


def text_part(text):
    return {"type": "text", "text": text}


# Mistral's documentation of its reasoning models has this form.
THOUGHT = {"type": "thinking", "thinking": [text_part("Who "), text_part("wrote it?")]}
SEARCH_CALL = {"type": "tool_use", "id": "a", "name": "search", "input": {"query": "x"}}


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": [text_part("Ada "), text_part("Lovelace.")]}, "Ada Lovelace.", ""),
        ({"content": [THOUGHT, text_part("Ada.")]}, "Ada.", "Who wrote it?"),
        ({"content": [{**THOUGHT, "thinking": "Hm."}, "Ada."]}, "Ada.", "Hm."),
        ({"content": text_part("Ada.")}, "Ada.", ""),
        ({"content": {"text": "Ada."}}, "Ada.", ""),
        ({"content": [text_part("<think>Hm.</think>Ada.")]}, "Ada.", "Hm."),
        ({"content": [text_part("Ada.")], "reasoning_content": [text_part("Hm.")]}, "Ada.", "Hm."),
        ({"content": "Ada.", "reasoning_content": {"type": "text", "text": "Hm."}}, "Ada.", "Hm."),
        ({"content": "Ada.", "reasoning": [THOUGHT]}, "Ada.", "Who wrote it?"),
        (
            {"content": [{"type": "reasoning", "summary": [text_part("Hm.")]}, text_part("Ada.")]},
            "Ada.",
            "Hm.",
        ),
        ({"content": [{"type": "redacted_thinking", "data": "x="}, text_part("Ada.")]}, "Ada.", ""),
        ({"content": []}, "", ""),
    ],
)
@pytest.mark.parametrize("by", ["agent", "stage"])
def test_parts_of_a_reply_are_read_by_their_types(peer, message, text, reasoning, by):
    adapter = OpenAIChat if by == "agent" else llm_clients.ChatFromThreads
    peer.script.append(chat_reply(message))
    turn = ask(peer, adapter)
    assert (turn.text, turn.reasoning) == (text, reasoning)


def test_thinking_parts_are_sent_back_as_they_came_or_not_at_all(peer):
    content = [THOUGHT, text_part("Ada.")]
    peer.script.append(chat_reply({"content": content}))
    turn = ask(peer, OpenAIChat)
    for replay, sent in ((True, content), (False, "Ada.")):
        ask(peer, OpenAIChat, WHO, turn.message(), user("Sure?"), replay_reasoning=replay)
        assert peer.requests[-1].body["messages"][1] == {"role": "assistant", "content": sent}


@pytest.mark.parametrize(
    "content",
    [
        [THOUGHT, text_part("I look."), SEARCH_CALL],
        [THOUGHT, text_part("I look."), {**SEARCH_CALL, "type": "tool_call"}],
        [
            THOUGHT,
            text_part("I look."),
            {"type": "function", "id": "a", "function": {"name": "search", "arguments": CALL[2]}},
        ],
    ],
)
def test_a_call_among_the_parts_is_a_call(peer, content):
    peer.script.append(chat_reply({"content": content}))
    turn = ask(peer, OpenAIChat)
    assert (turn.text, turn.reasoning) == ("I look.", "Who wrote it?")
    assert [(call.id, call.name) for call in turn.tool_calls] == [("a", "search")]
    assert turn.tool_calls[0].parsed() == {"query": "x"}
    ask(peer, OpenAIChat, WHO, turn.message(), tool_result("a", "page"))
    sent = peer.requests[-1].body["messages"][1]
    assert (sent["content"], len(sent["tool_calls"])) == (content[:2], 1)


def test_calls_beside_a_list_of_parts_are_those_of_the_field(peer):
    function = {"name": "search", "arguments": "{}"}
    calls = [{"id": "a", "type": "function", "function": function}]
    peer.script.append(chat_reply({"content": [text_part("I look.")], "tool_calls": calls}))
    turn = ask(peer, OpenAIChat)
    assert (turn.text, turn.tool_calls) == ("I look.", (FunctionCall("a", "search", "{}"),))


@pytest.mark.parametrize(
    ("adapter", "reply", "problem"),
    [
        (OpenAIChat, {"content": [{"type": "image_url", "image_url": {}}]}, "type 'image_url'"),
        (OpenAIChat, {"content": {"answer": "Ada"}}, "an object with the keys answer"),
        (OpenAIChat, {"content": [text_part(["Ada"])]}, "in place of text"),
        (OpenAIChat, {"content": [5]}, "a value of the type int"),
        (OpenAIChat, {"content": 5}, "a value of the type int"),
        (OpenAIChat, {"content": "Ada", "reasoning_content": {"effort": 1}}, "keys effort"),
        (OpenAICompletions, {"text": {"answer": "Ada"}}, "an object with the keys answer"),
        (
            OpenAIResponses,
            {"type": "message", "content": [{"type": "output_text", "text": {"a": 1}}]},
            "an object with the keys a",
        ),
    ],
)
def test_a_part_of_another_kind_is_refused_in_one_line(peer, adapter, reply, problem):
    if adapter is OpenAIResponses:
        peer.default = Raw(json.dumps({"output": [reply], "status": "completed"}))
    elif adapter is OpenAICompletions:
        peer.default = Raw(json.dumps({"choices": [reply]}))
    else:
        peer.default = chat_reply(reply)
    with pytest.raises(errors.BadReply, match=problem) as raised:
        ask(peer, adapter)
    assert "\n" not in str(raised.value) and str(raised.value).startswith("m at 127.0.0.1:")


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, AnthropicMessages])
@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("search<|channel|>commentary", "search"),
        ("functions.search", "search"),
        ("functions.search<|channel|>commentary json", "search"),
        ("browser.search", "browser.search"),  # A tool of another name.
        ("<|channel|>", "<|channel|>"),
    ],
)
def test_the_marks_of_a_format_are_no_part_of_a_tools_name(peer, adapter, written, name):
    peer.script.append(Say(calls=[("a", written, "{}")]))
    turn = ask(peer, adapter)
    assert [call.name for call in turn.tool_calls] == [name]
    ask(peer, adapter, WHO, turn.message(), tool_result("a", "page"))
    sent = json.dumps(peer.requests[-1].body)
    assert written == name or written not in sent


def test_a_field_that_a_model_refuses_can_be_left_out(peer):
    for adapter in (OpenAIChat, OpenAIResponses, AnthropicMessages):
        for allowed in (None, False, True):
            ask(peer, adapter, parallel_calls=allowed)
            body = peer.requests[-1].body
            sent = body.get("parallel_tool_calls")
            if adapter is AnthropicMessages:
                disabled = body["tool_choice"].get("disable_parallel_tool_use")
                sent = None if disabled is None else not disabled
            assert sent is allowed
            assert allowed is not None or "parallel_tool" not in json.dumps(body)


def test_cached_tokens_of_deepseek_are_read(peer):
    counts = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_cache_hit_tokens": 4}
    peer.script.append(chat_reply({"content": "x"}, usage=counts))
    assert ask(peer, OpenAIChat).usage == Usage(input=9, cached=4, output=3)


def test_absent_call_ids_become_numbers_that_go_on_through_the_transcript(peer):
    function = {"name": "search", "arguments": {"query": "x"}}
    calls = [{"type": "function", "function": function}] * 2
    peer.script.append(chat_reply({"content": None, "tool_calls": calls}))
    earlier = Turn(tool_calls=(FunctionCall("call_1", "s", "{}"),)).message()
    turn = ask(peer, OpenAIChat, WHO, earlier)
    assert [call.id for call in turn.tool_calls] == ["call_2", "call_3"]
    assert [call.parsed() for call in turn.tool_calls] == [{"query": "x"}] * 2


def test_the_output_limit_has_the_name_that_the_server_knows(peer):
    for arguments in ({}, {"output_limit": "max_tokens"}):
        ask(peer, OpenAIChat, settings={"max_output_tokens": 5}, **arguments)
    new, old = (request.body for request in peer.requests)
    assert new["max_completion_tokens"] == 5 and "max_tokens" not in new
    assert old["max_tokens"] == 5 and "max_completion_tokens" not in old


ARGUMENTS = {"reason": "to find it", "query": 'a mill {of "Brel"}'}
WRITTEN = json.dumps({"name": "search", "arguments": ARGUMENTS})


@pytest.mark.parametrize(
    "text",
    [
        WRITTEN,
        f"\n {WRITTEN}\n",
        f"```json\n{WRITTEN}\n```",
        f"<tool_call>\n{WRITTEN}\n</tool_call>",
        f"<|python_tag|>{WRITTEN}",
        f"{WRITTEN}. This function searches the collection for the mill. This function searches",
        WRITTEN[:-1],  # as Qwen2.5-Coder-0.5B-Instruct ended some
        f"{WRITTEN[:-1]}\n",
        json.dumps({"name": "search", "parameters": ARGUMENTS}),
        json.dumps({"type": "function", "name": "search", "arguments": ARGUMENTS}, indent=2),
    ],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_reply_that_begins_with_a_call_is_that_call(peer, text, finish):
    peer.script.append(Say(text, finish=finish))
    turn = ask(peer, OpenAIChat, calls="text")
    (call,) = turn.tool_calls
    assert (call.name, call.parsed(), call.id) == ("search", ARGUMENTS, "call_1")
    assert (turn.text, turn.finish_reason) == ("", "tool_calls")
    # What it wrote stays on record, and goes back as a call, which the template writes as one.
    assert turn.message()["provider"]["text"] == text
    ask(peer, OpenAIChat, WHO, turn.message(), tool_result("call_1", "page"), calls="text")
    sent = peer.requests[-1].body["messages"][1]
    assert sent["content"] is None and set(sent) == {"role", "content", "tool_calls"}
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Torvald Brekke built the mill.",
        f"I call the tool: {WRITTEN}",
        WRITTEN[:-2],
        WRITTEN[:-1] + ", and so on",
        '{"name": "Torvald Brekke"}',
        '{"name": "Torvald Brekke"',
        '{"name": "Torvald Brekke", "arguments": "none"}',
        '{"arguments": {}}',
        "[1, 2]",
        '{"a":' * 5000,
    ],
)
def test_anything_else_is_text(peer, text):
    peer.script.append(Say(text))
    turn = ask(peer, OpenAIChat, calls="text")
    assert (turn.text, turn.tool_calls, turn.provider) == (text, (), {})


def test_a_call_as_text_is_text_without_the_option_and_an_error_if_it_was_cut(peer):
    peer.script.extend([Say(WRITTEN), Say(WRITTEN[:-3], finish="length")])
    assert ask(peer, OpenAIChat).text == WRITTEN
    with pytest.raises(errors.Truncated):
        ask(peer, OpenAIChat, calls="text")


def test_log_probabilities_of_chat_completions_come_with_the_tokens_if_they_are_requested(peer):
    shares = {"Yes": 0.5, " yes": 0.25, "no": 0.125}
    peer.default = Say(text="Yes", finish="length", top=[shares])
    turn = ask(peer, OpenAIChat, tools=(), settings={"logprobs": 3, "max_output_tokens": 1})
    body = peer.requests[-1].body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    (token,) = turn.tokens
    assert (token.text, math.exp(token.logprob)) == ("Yes", pytest.approx(0.5))
    assert {text: math.exp(value) for text, value in token.top.items()} == pytest.approx(shares)
    assert turn.finish_reason == "length"  # complete: the token is what was requested
    peer.default = Say(text="Yes")
    assert ask(peer, OpenAIChat).tokens == () and "logprobs" not in peer.requests[-1].body


# Text completions, as vLLM sends them.

FIRST, SECOND = {" the": -0.25, " a": -1.75}, {" sky": -0.5, " sea": -1.5}
LOGPROBS = {
    "text_offset": [0, 4],
    "tokens": [" the", " sea"],
    "token_logprobs": [-0.25, -1.5],
    "top_logprobs": [FIRST, SECOND],
}
LLAMA = {
    "token": " the",
    "logprob": -0.25,
    "top_logprobs": [{"token": " the", "logprob": -0.25}, {"token": " a", "logprob": -2}],
}


def completion(text="sea", finish="stop", logprobs=None, **usage):
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}
    counts = {"prompt_tokens": 30, "completion_tokens": 2, **usage}
    return Raw(json.dumps({"model": "m-served", "choices": [choice], "usage": counts}))


@pytest.mark.parametrize(
    ("logprobs", "tokens"),
    [
        (LOGPROBS, [Token(" the", -0.25, FIRST), Token(" sea", -1.5, SECOND)]),
        ({**LOGPROBS, "top_logprobs": None}, [Token(" the", -0.25, {}), Token(" sea", -1.5, {})]),
        ({"content": [LLAMA]}, [Token(" the", -0.25, {" the": -0.25, " a": -2.0})]),
        (None, []),
        ({}, []),
        ({"tokens": [], "token_logprobs": [], "top_logprobs": None}, []),
    ],
    ids=["vLLM", "no alternatives", "llama.cpp", "null", "empty", "empty lists"],
)
def test_a_text_completion_comes_with_its_tokens(peer, logprobs, tokens):
    cached = {"prompt_tokens_details": {"cached_tokens": 16}}
    peer.default = completion(" the sea", "length", logprobs, **cached)
    turn = ask(peer, OpenAICompletions, settings={"logprobs": 2})
    assert (turn.text, turn.finish_reason) == (" the sea", "length")
    assert turn.usage == Usage(input=30, cached=16, output=2)
    assert turn.tokens == tokens
    for number in (1, 9):
        limited = ask(peer, OpenAICompletions, kept_tokens=number)
        assert limited.tokens == tokens[-number:] and limited.text == " the sea"


def test_the_request_of_a_text_completion_is_the_prompt_and_the_settings(peer):
    ask(peer, OpenAICompletions, user("café"))
    assert peer.requests[-1].body == {"model": "m", "prompt": "café"}
    settings = {"temperature": 0.0, "seed": 3, "logprobs": 20, "max_output_tokens": 9}
    settings |= {"extra": {"stop": ["x"]}}
    ask(peer, OpenAICompletions, user("q\n<think>"), settings=settings)
    sent = {"temperature": 0.0, "seed": 3, "logprobs": 20, "max_tokens": 9, "stop": ["x"]}
    assert peer.requests[-1].body == {"model": "m", "prompt": "q\n<think>", **sent}


@pytest.mark.parametrize(
    ("messages", "tools"), [([], ()), ([user("a"), user("b")], ()), ([user("a")], [{"name": "x"}])]
)
def test_a_conversation_is_no_text_completion(peer, messages, tools):
    with pytest.raises(InputError, match="one message, which is the prompt, and no tools"):
        using(client(peer, OpenAICompletions), lambda it: it.respond(messages, tools))
    assert peer.requests == []


@needs(("xllamacpp", "gguf"), "llamacpp")
def test_a_real_engine_returns_log_probabilities(tmp_path):
    from support.tool_caller import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", ["fw0000001"])
    local = LlamaCppServer(gguf=str(weights), threads=1)
    log = tmp_path / "server.log"
    with serving(local, "tiny", log=log) as url:

        def greedy(adapter, tokens):
            settings = SamplingParams(temperature=0.0, logprobs=5, max_output_tokens=tokens)
            model = adapter(model="tiny", base_url=f"{url}/v1")
            return llm_clients.ask(model, [user("The mill of")], (), settings)

        text, chat = greedy(OpenAICompletions, 4), greedy(OpenAIChat, 1)
    assert "".join(token.text for token in text.tokens) == text.text
    assert (text.finish_reason, text.usage.output, len(text.tokens)) == ("length", 4, 4)
    assert len(chat.tokens) == 1
    for token in (*text.tokens, *chat.tokens):
        # Greedy: what was written is the likeliest.
        assert token.logprob == max(token.top.values())
        assert len(token.top) == 5
        assert math.fsum(map(math.exp, token.top.values())) <= 1 + 1e-5
    assert all(token.logprob == token.top[token.text] for token in text.tokens)


# What is sent can always be sent, whatever a model wrote, and which error each answer is.


ANY_TEXT = st.text(max_size=60)
JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
).map(json.dumps)


@settings(max_examples=cases(300), deadline=None)
@given(ANY_TEXT | JSON_TEXT)
def test_whatever_a_model_writes_becomes_an_object_that_utf8_holds(text):
    sent = wire.sendable_arguments(text)
    sent.encode()
    assert isinstance(json.loads(sent), dict)
    assert wire.sendable_arguments(sent) == sent
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wire.sendable_name(text))
    try:
        FunctionCall("a", "search", text).parsed()
    except ValueError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1" * 9999])
def test_hostile_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        FunctionCall("a", "search", text).parsed()
    assert wire.sendable_object(text) == {"malformed": text}


def test_valid_text_is_sent_unchanged():
    text = '{"query": "Zoë  😀",\n "offset": 1.0}'
    assert wire.sendable_arguments(text) == text
    # Escapes of Unicode would be other tokens than the model wrote.
    assert wire.sendable_arguments("Zoë") == '{"malformed": "Zoë"}'
    (call,) = wire.tool_calls([{"name": "search", "input": {"query": "Zoë"}}], [])
    assert call.arguments == '{"query": "Zoë"}'


def test_a_turn_becomes_the_message_that_trajectories_record():
    turn = Turn(text="I look.", tool_calls=(FunctionCall("a", "search", '{"query": "x"}'),))
    function = {"name": "search", "arguments": '{"query": "x"}'}
    assert turn.message() == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    assert Turn(text="Ada.").message() == {"role": "assistant", "content": "Ada."}
    assert Turn(text=" \n").empty
    assert not Turn(tool_calls=(FunctionCall("a", "search", ""),)).empty


@pytest.mark.parametrize(
    "wrong",
    [
        *({"temperature": value} for value in (3.0, "hot")),
        *({"top_p": value} for value in (-0.1, 1.1)),
        *({"max_output_tokens": 0}, {"timeout": 0}, {"tool_choice": ""}),
    ],
)
def test_impossible_settings_are_refused_by_name(wrong):
    refused(next(iter(wrong)), SamplingParams, **wrong)


def test_settings_record_what_was_set():
    recorded = SamplingParams(temperature=0.0, seed=3).as_dict()
    assert recorded["temperature"] == 0.0 and recorded["seed"] == 3
    assert "top_p" not in recorded


def test_errors_are_short_lines_with_codes_of_their_own():
    error = errors.ModelError("a\nb\t c " + "x" * 1000)
    assert str(error).startswith("a b c xxx") and len(str(error)) <= 401
    kinds = errors.ModelError.__subclasses__()
    assert len({kind.code for kind in kinds} | {errors.ModelError.code}) == len(kinds) + 1
    assert set(errors.ERRORS.values()) == set(kinds)
    assert not errors.Truncated.retryable
    assert not any(kind.retryable and kind.stops_run for kind in kinds)


ERRORS = yaml.safe_load((DATA / "error_replies.yaml").read_text(encoding="utf-8"))
REPLIES = {
    f"{section}: {reply['from']}": {"status": 400} | kind | reply
    for section, kind in (("overflows", {"is": "ContextOverflow"}), ("others", {}))
    for reply in ERRORS[section]
}
assert len(ERRORS["overflows"]) >= 50 and len(ERRORS["others"]) >= 40
assert len(REPLIES) == len(ERRORS["overflows"]) + len(ERRORS["others"])
assert all("source" in reply or "after" in reply for reply in REPLIES.values())


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
def test_which_error_the_reply_of_a_server_is(reply):
    status, body = reply["status"], reply["body"]
    text = body if isinstance(body, str) else json.dumps(body)
    for form in (body, text):
        error = errors.error_of_reply(status, form, {}, where="m at host", now=0.0)
        assert type(error).__name__ == reply["is"]
        assert str(error).startswith(f"m at host: HTTP {status}")
        if isinstance(error, errors.ContextOverflow):
            assert error.window == reply.get("window")
        else:
            assert error.retry_after == reply.get("retry_after")


ANSWERS = {
    "Anthropic, in a stream": (
        200,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "ServerFailed",
    ),
    "OpenAI, a failed response": (200, {"code": "rate_limit_exceeded"}, "RateLimited"),
    "a missing field": (422, {"detail": "field required"}, "BadRequest"),
    "a proxy without words": (502, None, "ServerFailed"),
    "a proxy with a page": (503, "<html>no</html>", "ServerFailed"),
    "something new": (418, "teapot", "BadRequest"),
    "nothing": (400, {}, "BadRequest"),
    "numbers": (400, {"error": {"message": 5, "code": [1, {"type": 2}]}}, "BadRequest"),
}


@pytest.mark.parametrize(("status", "body", "kind"), ANSWERS.values(), ids=ANSWERS.keys())
def test_which_error_any_other_reply_is(status, body, kind):
    error = errors.error_of_reply(status, body, {}, where="m at host", now=0.0)
    assert type(error).__name__ == kind
    assert str(error).startswith(f"m at host: HTTP {status}")


def test_what_a_server_says_is_quoted_without_a_key():
    inner = json.dumps({"error": {"message": "the key SECRET is old"}})
    body = [{"error": {"message": inner}}]
    error = errors.error_of_reply(
        400, body, {}, where="m", now=0.0, hide=lambda text: text.replace("SECRET", "*")
    )
    assert str(error) == "m: HTTP 400, the key * is old"


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Please try again in 20s.", 20.0),
        ("Please try again in 1m30.5s", 90.5),
        ("try again in 6m0s", 360.0),
        ("Please retry after 30 seconds.", 30.0),
        ("retry in 120ms", 0.12),
        ("Please retry your request later, 5 times at most", None),
        ("Please try again", None),
    ],
)
def test_the_wait_that_a_server_asks_for_in_words_is_read(words, seconds):
    error = errors.error_of_reply(429, {"message": words}, {}, where="m", now=0.0)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Mon, 21 Sep 2026 14:13:25 GMT"}, 5.0),
        ({"retry-after": "Mon, 21 Sep 2020 13:33:25 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_the_wait_that_a_server_asks_for_is_read(headers, seconds):
    assert errors.retry_after(headers, 1_790_000_000.0) == seconds


# Recorded replies.


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    path = tmp_path / "recordings.jsonl"
    first = {"model": "m", "licence": "MIT", "sha256": "0123456789abcdef"}
    path.write_text(json.dumps(first) + "\n")
    monkeypatch.setattr(RecordedChat, "recordings", path)
    return path


def recorded(peer, text, served=False, **arguments):
    """The turn of a recorded model, which is served or not."""
    server = LlamaCppServer(gguf="weights.gguf" if served else None)
    model = client(peer, RecordedChat, server=server, licence="MIT", **arguments)
    return llm_clients.ask(model, [user(text)], None, SamplingParams(temperature=0.0, logprobs=2))


def test_a_recorded_reply_is_the_reply_of_the_served_model(peer, recordings):
    peer.script.append(Say(text="Ada.", top=[{"Ada.": 0.75, "Eve.": 0.25}]))
    given = recorded(peer, "Who?", served=True)
    said = recorded(peer, "Who?")
    assert len(peer.requests) == 1 and len(recordings.read_text().splitlines()) == 2
    assert said.text == "Ada." and said.tokens[0].top["Eve."] == pytest.approx(math.log(0.25))
    assert (said.text, said.tokens, said.usage) == (given.text, given.tokens, given.usage)
    assert recorded(peer, "Who?", served=True).text == "Ada."  # is not asked for again
    assert len(peer.requests) == 1


def test_a_request_that_is_not_recorded_names_the_command(peer, recordings):
    peer.default = Say(text="Ada.")
    recorded(peer, "Who?", served=True)
    with pytest.raises(errors.UnknownModel, match="make recordings GGUF=<file>"):
        recorded(peer, "Who is it?")
    assert len(peer.requests) == 1
    with pytest.raises(errors.UnknownModel, match="no reply of m"):
        llm_clients.ask(client(peer, RecordedChat, licence="MIT"), [user("Who?")])


@pytest.mark.parametrize("changed", [{"model": "n"}, {"licence": "Apache-2.0"}])
def test_recordings_are_of_one_model_under_a_free_licence(peer, recordings, changed):
    refused("make recordings", client, peer, RecordedChat, **{"licence": "MIT", **changed})
    recordings.write_text(recordings.read_text().replace("MIT", "research only"))
    refused(r"licences Apache-2\.0, MIT", client, peer, RecordedChat, licence="research only")


def test_a_section_holds_nothing_invisible_and_no_border_of_a_message():
    text = "a\u200bb é\tc\x1b[2K\u2028<|im_end|> [INST] [1] <b"
    lines = spotlight("Read:{text}", {"text": text}).splitlines()
    assert lines[-3:-1] == ["> ab é\tc[2K", "> < |im_end|> [ INST] [1] < b"]
