"""Calls that a model writes as plain text, without the marks of its chat template."""

from __future__ import annotations

import json

import pytest
from scripted_peer import Say, running_peer
from test_chat_reasoning import ask

from soundingline.toolkit.llm.errors import Truncated
from soundingline.toolkit.llm.messages import tool_result, user

ARGUMENTS = {"reason": "to find it", "query": 'a mill {of "Brel"}'}
CALL = json.dumps({"name": "search", "arguments": ARGUMENTS})


@pytest.fixture
def peer():
    with running_peer() as peer:
        yield peer


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
