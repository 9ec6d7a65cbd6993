"""Chat and text completions: where reasoning is, calls written as text, and log-probabilities."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from llm_clients import client, using
from support.llm_server import Raw, Say
from support.needs import needs

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import Truncated
from soundingline.toolkit.llm.local_servers import LlamaCppServer
from soundingline.toolkit.llm.messages import SamplingParams, Token, Usage, tool_result, user
from soundingline.toolkit.llm.openai_chat import OpenAIChat, OpenAICompletions
from soundingline.toolkit.llm.server import serving


def ask(peer, messages, **arguments):
    model = client(peer, OpenAIChat, **arguments)
    settings = SamplingParams(max_output_tokens=5)
    return using(model, lambda it: it.respond(messages, (), settings))


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
def test_reasoning_is_found_where_servers_put_it(peer, message, text, reasoning):
    peer.script.append(chat_reply(message))
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
    peer.script.append(chat_reply(message))
    turn = ask(peer, [user("Who?")])
    ask(peer, [user("Who?"), turn.message(), user("Sure?")])
    assert peer.requests[-1].body["messages"][1] == {"role": "assistant", **message}
    ask(peer, [user("Who?"), turn.message(), user("Sure?")], replay_reasoning=False)
    assert peer.requests[-1].body["messages"][1] == {"role": "assistant", "content": "Ada."}


def test_cached_tokens_of_deepseek_are_read(peer):
    counts = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_cache_hit_tokens": 4}
    peer.script.append(chat_reply({"content": "x"}, usage=counts))
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
    peer.script.append(chat_reply({"content": None, "tool_calls": calls}))
    turn = ask(peer, [user("Who?"), earlier])
    assert [call.id for call in turn.tool_calls] == ["call_2", "call_3"]
    assert [call.parsed() for call in turn.tool_calls] == [{"query": "x"}] * 2


def test_the_output_limit_has_the_name_that_the_server_knows(peer):
    ask(peer, [user("Who?")])
    ask(peer, [user("Who?")], output_limit="max_tokens")
    new, old = (request.body for request in peer.requests)
    assert new["max_completion_tokens"] == 5 and "max_tokens" not in new
    assert old["max_tokens"] == 5 and "max_completion_tokens" not in old


# Calls that a model writes as plain text, without the marks of its chat template.

ARGUMENTS = {"reason": "to find it", "query": 'a mill {of "Brel"}'}
CALL = json.dumps({"name": "search", "arguments": ARGUMENTS})


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n {CALL}\n",
        f"```json\n{CALL}\n```",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<|python_tag|>{CALL}",
        f"{CALL}. This function searches the collection for the mill. This function searches",
        CALL[:-1],  # as Qwen2.5-Coder-0.5B-Instruct ended some
        f"{CALL[:-1]}\n",
        json.dumps({"name": "search", "parameters": ARGUMENTS}),
        json.dumps({"type": "function", "name": "search", "arguments": ARGUMENTS}, indent=2),
    ],
)
def test_a_reply_that_begins_with_a_call_is_that_call(peer, text):
    peer.script.append(Say(text))
    turn = ask(peer, [user("?")], text_calls=True)
    (call,) = turn.tool_calls
    assert (call.name, call.parsed(), call.id) == ("search", ARGUMENTS, "call_1")
    assert (turn.text, turn.finish_reason) == ("", "tool_calls")
    # What it wrote stays on record.
    assert turn.message()["provider"]["text"] == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Torvald Brekke built the mill.",
        f"I call the tool: {CALL}",
        CALL[:-2],
        CALL[:-1] + ", and so on",
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
    turn = ask(peer, [user("?")], text_calls=True)
    assert (turn.text, turn.tool_calls, turn.provider) == (text, (), {})


def test_without_the_option_it_is_text(peer):
    peer.script.append(Say(CALL))
    assert ask(peer, [user("?")]).text == CALL


def test_a_call_is_whole_where_the_reply_behind_it_was_cut(peer):
    peer.script.append(Say(f"{CALL} and and and", finish="length"))
    assert ask(peer, [user("?")], text_calls=True).tool_calls[0].name == "search"
    peer.script.append(Say(CALL[:-3], finish="length"))
    with pytest.raises(Truncated):
        ask(peer, [user("?")], text_calls=True)


def test_it_goes_back_as_a_call_so_that_the_template_writes_it_as_one(peer):
    peer.script.extend([Say(CALL), Say("done")])
    turn = ask(peer, [user("?")], text_calls=True)
    ask(peer, [user("?"), turn.message(), tool_result("call_1", "found")], text_calls=True)
    sent = peer.requests[-1].body["messages"][1]
    assert sent["content"] is None and set(sent) == {"role", "content", "tool_calls"}
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS


# Text completions.


def reply(text="sea", finish="stop", logprobs=None, usage=None):
    """A text completion as vLLM sends it."""
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "m-served",
        "choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}],
        "usage": usage or {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34},
    }
    return Raw(json.dumps(body))


LOGPROBS = {
    "text_offset": [0, 4],
    "tokens": [" the", " sea"],
    "token_logprobs": [-0.25, -1.5],
    "top_logprobs": [{" the": -0.25, " a": -1.75}, {" sky": -0.5, " sea": -1.5}],
}


def complete(model, prompt="By the", **settings):
    sampling = replace(model.settings, **settings)
    return using(model, lambda it: it.respond([user(prompt)], (), sampling))


def test_text_tokens_usage_and_the_reason_of_the_end_come_back(peer):
    counts = {
        "prompt_tokens": 30,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    peer.script.append(reply(" the sea", "length", LOGPROBS, counts))
    found = complete(client(peer, OpenAICompletions), logprobs=2)
    assert (found.text, found.finish_reason, found.attempts) == (" the sea", "length", 1)
    assert found.usage == Usage(input=30, cached=16, output=2)
    assert found.tokens == [
        Token(" the", -0.25, {" the": -0.25, " a": -1.75}),
        Token(" sea", -1.5, {" sky": -0.5, " sea": -1.5}),
    ]


def test_the_request_is_the_prompt_as_it_is_with_what_was_asked(peer):
    model = client(
        peer,
        OpenAICompletions,
        settings=SamplingParams(temperature=0.0, seed=3, extra={"top_k": 1}),
    )
    complete(
        model,
        "q\n<think>",
        logprobs=20,
        max_output_tokens=9,
        extra={"top_k": 1, "stop": ["</think> true"]},
    )
    assert peer.requests[0].body == {
        "model": "m",
        "prompt": "q\n<think>",
        "temperature": 0.0,
        "seed": 3,
        "top_k": 1,
        "stop": ["</think> true"],
        "logprobs": 20,
        "max_tokens": 9,
    }


def test_what_is_not_asked_is_not_sent(peer):
    peer.default = reply()
    complete(client(peer, OpenAICompletions))
    assert peer.requests[0].body == {"model": "m", "prompt": "By the"}


def test_half_a_surrogate_pair_in_a_prompt_does_not_break_the_request(peer):
    complete(client(peer, OpenAICompletions), "caf\ud83d")
    assert peer.requests[0].body["prompt"] == "caf�"


def test_log_probabilities_as_llama_cpp_gives_them(peer):
    content = [
        {
            "token": " the",
            "logprob": -0.25,
            "top_logprobs": [{"token": " the", "logprob": -0.25}, {"token": " a", "logprob": -2}],
        }
    ]
    peer.script.append(reply(" the", logprobs={"content": content}))
    found = complete(client(peer, OpenAICompletions), logprobs=2)
    assert found.tokens == [Token(" the", -0.25, {" the": -0.25, " a": -2.0})]


@pytest.mark.parametrize(
    "logprobs", [None, {}, {"tokens": [], "token_logprobs": [], "top_logprobs": None}]
)
def test_a_server_without_log_probabilities_gives_no_tokens(peer, logprobs):
    peer.script.append(reply("sea", logprobs=logprobs))
    assert complete(client(peer, OpenAICompletions), logprobs=5).tokens == []


def test_tokens_without_alternatives_have_none(peer):
    peer.script.append(reply(logprobs={**LOGPROBS, "top_logprobs": None}))
    assert [
        token.top for token in complete(client(peer, OpenAICompletions), logprobs=0).tokens
    ] == [{}, {}]


def test_only_the_last_tokens_are_kept_where_that_is_asked(peer):
    peer.default = reply(" the sea", logprobs=LOGPROBS)
    one = complete(client(peer, OpenAICompletions, kept_tokens=1))
    assert [token.text for token in one.tokens] == [" sea"]
    assert one.text == " the sea"
    assert len(complete(client(peer, OpenAICompletions, kept_tokens=9)).tokens) == 2


@pytest.mark.parametrize(
    ("messages", "tools"), [([], ()), ([user("a"), user("b")], ()), ([user("a")], [{"name": "x"}])]
)
def test_a_conversation_is_refused(peer, messages, tools):
    with pytest.raises(InputError, match="one message, which is the prompt, and no tools"):
        using(client(peer, OpenAICompletions), lambda it: it.respond(messages, tools))
    assert peer.requests == []


@needs(("xllamacpp", "gguf"), "llamacpp")
def test_a_real_engine_tells_what_it_wrote_and_how_likely_that_was(tmp_path):
    from support.tool_caller import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", ["fw0000001"])

    local = LlamaCppServer(gguf=str(weights), threads=1)
    log = tmp_path / "server.log"
    with serving(lambda port: local.command("tiny", port), log=log, start_seconds=120) as url:
        model = OpenAICompletions(model="tiny", base_url=f"{url}/v1")
        settings = SamplingParams(temperature=0.0)
        found = complete(model, "The mill of", temperature=0.0, logprobs=5, max_output_tokens=4)
        chat = OpenAIChat(model="tiny", base_url=f"{url}/v1")
        one_token = replace(settings, logprobs=5, max_output_tokens=1)
        turn = using(chat, lambda it: it.respond([user("Which mill?")], (), one_token))
    assert "".join(token.text for token in found.tokens) == found.text
    assert (found.finish_reason, found.usage.output, len(found.tokens)) == ("length", 4, 4)
    for token in found.tokens:
        # Greedy: what was written is the likeliest.
        assert token.logprob == max(token.top.values()) == token.top[token.text]
        assert len(token.top) == 5
        assert math.fsum(map(math.exp, token.top.values())) <= 1 + 1e-5
    assert len(turn.tokens) == 1 and len(turn.tokens[0].top) == 5
    assert turn.tokens[0].logprob == max(turn.tokens[0].top.values())
