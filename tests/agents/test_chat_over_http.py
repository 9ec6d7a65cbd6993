"""The agent through each real client against a server that misbehaves as scripted."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.llm_server import Cut, Fail, Say, Stall, running_peer
from support.search import WordBackend, store_of

from soundingline.agents.base import Budget
from soundingline.agents.chat import ChatAgent
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.openai_responses import OpenAIResponses
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.trajectory import dump_trajectory, from_record

pytestmark = pytest.mark.slow

CORPUS = {"mill": Document("mill", "Grenholm Mill", "Torvald Brekke built Grenholm Mill in 1871.")}
TEXT = "Explanation: told there [mill]\nExact Answer: Torvald Brekke\nConfidence: 80%"
ARGUMENTS = json.dumps({"reason": "to find it", "query": "Grenholm Mill"})
LOOK = Say(reasoning="I look for it.", calls=(("c1", "search", ARGUMENTS),))
ADAPTERS = {"chat": OpenAIChat, "responses": OpenAIResponses, "messages": AnthropicMessages}


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture(params=list(ADAPTERS))
def asked(request, server):
    """One question through the adapter under test, the peer saying the steps."""
    adapter = ADAPTERS[request.param]
    url = server.anthropic_url if adapter is AnthropicMessages else server.openai_url
    server.reset()

    async def no_wait(seconds):
        pass

    def ask(*steps, settings=None, **limits):
        server.script.extend(steps)
        model = adapter(model="m", base_url=url, sleep=no_wait, attempts=2)
        agent = ChatAgent(model=model, settings=settings, budget=Budget(**limits))
        tool = RankedBrowsing().open(
            WordBackend({"mill": "Grenholm Mill Brekke"}), store_of(CORPUS)
        )

        async def one():
            try:
                return await agent.run(Topic("q1", "Who built Grenholm Mill?"), tool)
            finally:
                await model.close()

        return asyncio.run(one())

    return ask


def test_a_question_is_answered_and_its_reasoning_reaches_the_search(asked, server):
    trajectory = asked(LOOK, Say(text=TEXT))
    assert trajectory.status == "completed", trajectory.traceback
    assert trajectory.answer.exact == "Torvald Brekke" and trajectory.tiers["cited"] == ("mill",)
    assert trajectory.messages[2]["reasoning"] == "I look for it."
    assert trajectory.usage["input_tokens"] == 200 and trajectory.usage["cached_tokens"] == 160
    assert len(server.requests) == 2
    # Our own notes on a message are not sent.
    assert '"usage"' not in json.dumps(server.requests[1].body)
    assert trajectory.warnings == ()


CASES = {
    "busy, then well": (
        [Fail(429, headers={"retry-after": "1"}), LOOK, Fail(500), Say(text=TEXT)],
        {},
        ("completed", ""),
    ),
    "busy for ever": ([LOOK, Fail(429), Fail(429)], {}, ("failed", "rate_limited")),
    "broken for ever": ([LOOK, Fail(500), Fail(503)], {}, ("failed", "server_failed")),
    "cut twice": ([LOOK, Cut(), Cut()], {}, ("failed", "server_gone")),
    "malformed arguments": (
        [Say(calls=(("c1", "search", '{"reason": "x", "que'),)), Say(text=TEXT)],
        {},
        ("completed", ""),
    ),
    "an unknown tool": (
        [Say(calls=(("c1", "browse the web", "{}"),)), Say(text=TEXT)],
        {},
        ("completed", ""),
    ),
    "several calls at once": (
        [Say(calls=(("a", "search", ARGUMENTS), ("b", "search", ARGUMENTS))), Say(text=TEXT)],
        {},
        ("completed", ""),
    ),
    "overflow": (
        [LOOK, Fail(400, "maximum context length is 10", "context_length_exceeded")],
        {},
        ("out_of_context", "context_overflow"),
    ),
    "refusal": ([LOOK, Say(text="I cannot", finish="refusal")], {}, ("failed", "refused")),
    "truncation": ([Say(text="cut", finish="length")] * 2, {}, ("failed", "truncated")),
    "emptiness": ([LOOK, Say(), Say()], {}, ("failed", "empty_answer")),
    "a wrong key": ([Fail(401)], {}, ("failed", "authentication_failed")),
    "turns": ([LOOK, Say(text=TEXT)], {"turns": 1}, ("out_of_turns", "turns")),
    "a stall": ([LOOK, Stall(20)], {"seconds": 1.0}, ("timed_out", "seconds")),
}


@pytest.mark.parametrize(("steps", "limits", "wanted"), CASES.values(), ids=CASES.keys())
def test_each_fault_of_a_server_ends_as_it_should_with_the_trajectory_whole(
    asked,
    steps,
    limits,
    wanted,
):
    trajectory = asked(*steps, **limits)
    assert (trajectory.status, trajectory.reason) == wanted, trajectory.traceback
    searched = sum(len(step.calls) for step in steps if isinstance(step, Say))
    assert len(trajectory.calls) == searched
    stored = from_record(json.loads(dump_trajectory(trajectory)))
    assert stored == trajectory
