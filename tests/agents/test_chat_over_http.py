"""The agent through each real client, against a server that misbehaves as scripted and one with
vLLM's rule: prompt and maximum of output together must not pass the window."""

import asyncio
import json

import pytest
from support.llm_model import ANSWER
from support.llm_server import Cut, Fail, Say, Stall, running_peer
from support.search import WordBackend, store_of
from test_context_window import ANSWER_TOKENS, LONGEST, WINDOW, refused, tool

from soundingline.agents.base import Budget
from soundingline.agents.chat import ChatAgent
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.llm import SamplingParams
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.openai_responses import OpenAIResponses
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.trajectory import dump_trajectory, from_record

CORPUS = {"mill": Document("mill", "Grenholm Mill", "Torvald Brekke built Grenholm Mill in 1871.")}
ARGUMENTS = json.dumps({"reason": "to find it", "query": "Grenholm Mill"})
LOOK = Say(reasoning="I look for it.", calls=(("c1", "search", ARGUMENTS),))
DONE = Say(text=ANSWER)
MAXIMUM = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture(params=[OpenAIChat, OpenAIResponses, AnthropicMessages])
def asked(request, server):
    """One question through the adapter under test."""
    url = server.anthropic_url if request.param is AnthropicMessages else server.openai_url
    server.reset()

    async def no_wait(seconds):
        pass

    def ask(*steps, session=None, settings=None, prompt="pi_serini", **limits):
        server.script.extend(steps)
        model = request.param(model="m", base_url=url, sleep=no_wait, attempts=2)
        agent = ChatAgent(model=model, prompt=prompt, settings=settings, budget=Budget(**limits))
        backend = WordBackend({"mill": "Grenholm Mill Brekke"})
        session = session or RankedBrowsing().open(backend, store_of(CORPUS))

        async def one():
            try:
                return await agent.run(Topic("q1", "Who built Grenholm Mill?"), session)
            finally:
                await model.close()

        return asyncio.run(one())

    return ask


@pytest.mark.slow
def test_a_question_is_answered_and_its_reasoning_reaches_the_search(asked, server):
    trajectory = asked(LOOK, DONE)
    assert trajectory.status == "completed", trajectory.traceback
    assert trajectory.answer.exact == "Torvald Brekke" and trajectory.tiers["cited"] == ("mill",)
    assert trajectory.messages[2]["reasoning"] == "I look for it."
    assert trajectory.usage["input_tokens"] == 200 and trajectory.usage["cached_tokens"] == 160
    assert len(server.requests) == 2 and trajectory.warnings == ()
    # Our own notes on a message are not sent.
    assert '"usage"' not in json.dumps(server.requests[1].body)


DONE_AFTER_ALL = {}, ("completed", "")
CASES = {
    "busy": ([Fail(429, headers={"retry-after": "1"}), LOOK, Fail(500), DONE], *DONE_AFTER_ALL),
    "malformed": (
        [Say(calls=(("c1", "search", '{"reason": "x", "que'),)), DONE],
        *DONE_AFTER_ALL,
    ),
    "unknown tool": ([Say(calls=(("c1", "browse the web", "{}"),)), DONE], *DONE_AFTER_ALL),
    "several calls": (
        [Say(calls=(("a", "search", ARGUMENTS), ("b", "search", ARGUMENTS))), DONE],
        *DONE_AFTER_ALL,
    ),
    "busy for ever": ([LOOK, Fail(429), Fail(429)], {}, ("failed", "rate_limited")),
    "broken for ever": ([LOOK, Fail(500), Fail(503)], {}, ("failed", "server_failed")),
    "cut twice": ([LOOK, Cut(), Cut()], {}, ("failed", "server_gone")),
    "overflow": (
        [LOOK, Fail(400, "maximum context length is 10", "context_length_exceeded")],
        *({}, ("out_of_context", "context_overflow")),
    ),
    "refusal": ([LOOK, Say(text="I cannot", finish="refusal")], {}, ("failed", "refused")),
    "truncation": ([Say(text="cut", finish="length")] * 2, {}, ("failed", "truncated")),
    "emptiness": ([LOOK, Say(), Say()], {}, ("failed", "empty_answer")),
    "a wrong key": ([Fail(401)], {}, ("failed", "authentication_failed")),
    "turns": ([LOOK, DONE], {"turns": 1}, ("out_of_turns", "turns")),
    "a stall": ([LOOK, Stall(20)], {"seconds": 1.0}, ("timed_out", "seconds")),
}


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "limits", "wanted"), CASES.values(), ids=CASES.keys())
def test_each_fault_of_a_server_ends_as_it_should_with_a_complete_trajectory(
    asked, steps, limits, wanted
):
    trajectory = asked(*steps, **limits)
    assert (trajectory.status, trajectory.reason) == wanted, trajectory.traceback
    searches = sum(len(step.calls) for step in steps if isinstance(step, Say))
    assert len(trajectory.calls) == searches
    assert from_record(json.loads(dump_trajectory(trajectory))) == trajectory


class Vllm:
    """A server with a window, on which four bytes of a request make a token. It searches as long as
    it may, and its reasoning and calls take 300 tokens."""

    def __init__(self):
        self.prompts, self.refusals = [], 0

    def __call__(self, request):
        parts = [request.body.get(name) for name in ("system", "messages", "input", "tools")]
        text = json.dumps([part for part in parts if part], ensure_ascii=False)
        prompt = len(text.encode()) // 4
        (most,) = (request.body[name] for name in MAXIMUM if name in request.body)
        if prompt + most > WINDOW:
            self.refusals += 1
            return Fail(400, refused(prompt, most), "BadRequestError")
        self.prompts.append(prompt)
        counts = {"input": prompt, "cached": 0, "reasoning": 250, "output": 300}
        if json.dumps(request.body["tool_choice"]) in ('"none"', '{"type": "none"}'):
            return Say(text=ANSWER, usage=counts)
        call = (f"c{len(self.prompts)}", "search", json.dumps({"query": "Grenholm Mill"}))
        return Say(reasoning="Hm. " * 60, calls=[call], usage=counts)


@pytest.mark.parametrize(
    ("size", "window", "reason", "refusals", "left_out"),
    [
        (200, WINDOW, "context_window", 0, False),
        (1_800, WINDOW, "context_window", 0, False),
        (12_000, WINDOW, "context_window", 0, True),
        (200, None, "context_overflow", 1, False),
        (200, 10 * WINDOW, "context_overflow", 1, False),
        (12_000, None, "context_overflow", 1, True),
    ],
    ids=["small", "shortened", "left out", "unknown", "wrong", "unknown and left out"],
)
def test_a_question_that_fills_the_window_ends_with_an_answer(
    asked, server, size, window, reason, refusals, left_out
):
    vllm = server.default = Vllm()
    trajectory = asked(
        session=tool("The mill. " * size),
        prompt="browsecomp_plus",
        settings=SamplingParams(max_output_tokens=LONGEST),
        context_window=window,
        answer_tokens=ANSWER_TOKENS,
    )
    assert (trajectory.status, trajectory.reason) == ("out_of_context", reason)
    assert trajectory.answer.exact == "Torvald Brekke" and vllm.refusals == refusals
    assert [("left out" in warning) for warning in trajectory.warnings] == [True] * left_out
    maxima = [next(filter(None, map(one.body.get, MAXIMUM))) for one in server.requests]
    assert set(maxima[:-1]) == {LONGEST}
    if (size, window) == (200, WINDOW):
        # No room was given away: one more exchange would not have fitted.
        newest = vllm.prompts[-1] - vllm.prompts[-2]
        assert vllm.prompts[-1] + 2 * newest + LONGEST > WINDOW
    elif size == 1_800:
        assert ANSWER_TOKENS / 4 <= maxima[-1] < LONGEST
    elif left_out and window:
        # What the model did and was shown stays on record.
        roles = [message["role"] for message in trajectory.messages]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]
        final = load_prompt("browsecomp_plus").sections["final"]
        assert len(maxima) == 2 and final in json.dumps(server.requests[-1].body)
        assert "messages 2 to 3" in trajectory.warnings[0] and len(trajectory.calls) == 1
