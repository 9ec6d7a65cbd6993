"""A question whose transcript reaches the end of the model's window still ends with an answer.

The servers of these tests apply vLLM's rule: prompt and maximum of output together must not pass
the window.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.llm_model import ANSWER, ScriptedModel, call, calling, saying, used
from support.llm_server import Fail, Say, running_peer
from support.needs import cases
from support.search import WordBackend, store_of

from soundingline.agents.base import Budget
from soundingline.agents.chat import ChatAgent
from soundingline.agents.context_window import message_bytes
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import SamplingParams, Turn, Usage
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.errors import ContextOverflow, Truncated
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.openai_responses import OpenAIResponses
from soundingline.toolkit.search import TopK

FINAL = load_prompt("browsecomp_plus").sections["final"]
QUESTION = Topic("q1", "Who built Grenholm Mill?")
WINDOW, LONGEST, ANSWER_TOKENS = 24_000, 6_000, 2_000
ADAPTERS = {"chat": OpenAIChat, "responses": OpenAIResponses, "messages": AnthropicMessages}
MAXIMUM = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def tool(text):
    """Every search shows the whole of one document."""
    store = store_of({"mill": Document("mill", "Grenholm Mill", text)})
    return TopK(max_tokens=None).open(WordBackend({"mill": "Grenholm Mill"}), store)


def refused(prompt, most, window):
    """vLLM's words."""
    return (
        f"This model's maximum context length is {window} tokens. However, you requested {most} "
        f"output tokens and your prompt contains at least {prompt} input tokens, for a total of at "
        f"least {prompt + most} tokens. Please reduce the length of the input prompt or the number "
        f"of requested output tokens. (parameter=input_tokens, value={prompt})"
    )


def looking(**fields):
    return calling(call("search", query="Grenholm Mill"), **fields)


# Through each client.


class Vllm:
    """A server with a window, on which a byte of a request makes `density` tokens. It searches as
    long as it may, and its reasoning and calls take 300 tokens."""

    def __init__(self, window: int, density: float) -> None:
        self.window, self.density = window, density
        self.prompts = []
        self.refusals = 0

    def __call__(self, request):
        parts = [request.body.get(name) for name in ("system", "messages", "input", "tools")]
        text = json.dumps([part for part in parts if part], ensure_ascii=False)
        prompt = int(len(text.encode()) * self.density)
        (most,) = (request.body[name] for name in MAXIMUM if name in request.body)
        if prompt + most > self.window:
            self.refusals += 1
            return Fail(400, refused(prompt, most, self.window), "BadRequestError")
        self.prompts.append(prompt)
        counts = {"input": prompt, "cached": 0, "reasoning": 250, "output": 300}
        if json.dumps(request.body["tool_choice"]) in ('"none"', '{"type": "none"}'):
            return Say(text=ANSWER, usage=counts)
        arguments = json.dumps({"query": "Grenholm Mill"})
        number = len(self.prompts)
        return Say(reasoning="Hm. " * 60, calls=[(f"c{number}", "search", arguments)], usage=counts)


@pytest.fixture(scope="module")
def peer():
    with running_peer() as running:
        yield running


@pytest.fixture(params=list(ADAPTERS))
def asked(request, peer):
    """One question, put to the server through the client under test."""
    adapter = ADAPTERS[request.param]
    url = peer.anthropic_url if adapter is AnthropicMessages else peer.openai_url

    def ask(server, text, window):
        peer.reset()
        peer.default = server
        model = adapter(model="m", base_url=url)
        agent = ChatAgent(
            model=model,
            prompt="browsecomp_plus",
            settings=SamplingParams(max_output_tokens=LONGEST),
            budget=Budget(context_window=window, answer_tokens=ANSWER_TOKENS),
        )

        async def one():
            try:
                return await agent.run(QUESTION, tool(text))
            finally:
                await model.close()

        return asyncio.run(one())

    return ask


def answered(trajectory):
    return trajectory.status == "out_of_context" and trajectory.answer.exact == "Torvald Brekke"


def test_retrieval_ends_while_a_reply_of_full_length_still_fits(
    asked,
):
    server = Vllm(WINDOW, 0.25)
    trajectory = asked(server, "The mill. " * 200, WINDOW)
    assert answered(trajectory) and trajectory.reason == "context_window"
    assert server.refusals == 0
    # No room was given away either: one more exchange would not have fitted.
    newest = server.prompts[-1] - server.prompts[-2]
    assert server.prompts[-1] + 2 * newest + LONGEST > WINDOW
    assert trajectory.warnings == ()


def test_a_page_that_takes_the_room_of_the_reply_lowers_the_maximum(asked, peer):
    server = Vllm(WINDOW, 0.25)
    trajectory = asked(server, "The mill. " * 1_800, WINDOW)
    assert answered(trajectory) and server.refusals == 0
    maxima = [[request.body.get(name) for name in MAXIMUM] for request in peer.requests]
    asked_for = [next(filter(None, limits)) for limits in maxima]
    assert set(asked_for[:-1]) == {LONGEST}
    assert ANSWER_TOKENS / 4 <= asked_for[-1] < LONGEST
    assert trajectory.warnings == ()


def test_a_page_that_passes_the_window_is_left_out_of_the_last_request(asked, peer):
    server = Vllm(WINDOW, 0.25)
    trajectory = asked(server, "The mill. " * 12_000, WINDOW)
    assert answered(trajectory) and server.refusals == 0
    assert len(peer.requests) == 2 and FINAL in json.dumps(peer.requests[-1].body)
    (warning,) = trajectory.warnings
    assert "messages 2 to 3" in warning
    # What the model did and was shown stays on record.
    assert [message["role"] for message in trajectory.messages] == [
        *("user", "assistant", "tool"),
        *("user", "assistant"),
    ]
    assert len(trajectory.calls) == 1


@pytest.mark.parametrize("window", [None, 10 * WINDOW], ids=["unknown", "wrong"])
def test_the_answer_is_demanded_after_an_overflow(asked, window):
    server = Vllm(WINDOW, 0.25)
    trajectory = asked(server, "The mill. " * 200, window)
    assert answered(trajectory) and trajectory.reason == "context_overflow"
    # A shorter reply fits the whole transcript.
    assert server.refusals == 1 and trajectory.warnings == ()


def test_after_an_overflow_by_the_prompt_alone_the_newest_exchange_is_left_out(
    asked,
):
    server = Vllm(WINDOW, 0.25)
    trajectory = asked(server, "The mill. " * 12_000, None)
    assert answered(trajectory) and trajectory.reason == "context_overflow"
    assert server.refusals == 1
    assert "left out" in trajectory.warnings[0] and len(trajectory.warnings) == 1


# Any sizes of pages, any density of tokens.


def shown(messages, density):
    return int(sum(message_bytes(message) + 30 for message in messages) * density)


@given(
    pages=st.lists(st.integers(0, 90_000), min_size=1, max_size=12),
    density=st.sampled_from([0.15, 0.25, 0.33, 0.5, 1.0]),
    counted=st.booleans(),
    known=st.booleans(),
    longest=st.sampled_from([LONGEST, ANSWER_TOKENS, None]),
    output=st.integers(1, LONGEST),
)
@settings(max_examples=cases(150), deadline=None)
def test_every_question_ends_with_an_answer(
    pages,
    density,
    counted,
    known,
    longest,
    output,
):
    sizes, refusals, maxima = list(pages), 0, list[int | None]()

    def choose(messages, sampling):
        nonlocal refusals
        prompt, most = shown(messages, density), sampling.max_output_tokens
        if prompt + (most or 1) > WINDOW:
            refusals += 1
            raise ContextOverflow(refused(prompt, most or 0, WINDOW))
        maxima.append(most)
        usage = used(prompt, min(output, most or WINDOW - prompt)) if counted else Usage()
        if sampling.tool_choice == "none" or not sizes:
            return saying(usage=usage)
        return looking(usage=usage)

    class Pages(TopK):
        def call(self, name, arguments):
            result = super().call(name, arguments)
            return replace(result, call=replace(result.call, output="7" * sizes.pop(0)))

    agent = ChatAgent(
        model=ScriptedModel(choose=choose),
        prompt="browsecomp_plus",
        settings=SamplingParams(max_output_tokens=longest),
        budget=Budget(
            context_window=WINDOW if known else None,
            answer_tokens=ANSWER_TOKENS,
        ),
    )
    store = store_of({"mill": Document("mill", "", "mill")})
    session = Pages().open(WordBackend({"mill": "Grenholm Mill"}), store)
    trajectory = asyncio.run(agent.run(QUESTION, session))
    assert trajectory.answer.exact == "Torvald Brekke", (trajectory.status, trajectory.traceback)
    # Without a maximum, a request that is taken may leave no room for a further one.
    assert refusals <= (2 if longest else 2 + len(pages))
    # There was room for more than a word.
    assert longest is None or maxima[-1] >= ANSWER_TOKENS / 4
    if known and counted and density <= 1 / 3:
        assert refusals == 0


# The estimate, and what it is for.


def run(model, text="mill", **limits):
    sampling = SamplingParams(max_output_tokens=limits.pop("longest", None))
    agent = ChatAgent(model=model, settings=sampling, budget=Budget(**limits))
    return asyncio.run(agent.run(QUESTION, tool(text)))


def test_the_longer_of_answer_and_reply_is_kept_free():
    for longest, answer in ((4_000, 100), (None, 4_000), (100, 4_000)):
        for counted, status in ((5_000, "completed"), (6_000, "out_of_context")):
            model = ScriptedModel(looking(usage=used(counted, 10)), saying())
            limits = {"context_window": 10_000, "answer_tokens": answer, "longest": longest}
            assert run(model, **limits).status == status, (longest, answer, counted)


def test_without_reserved_tokens_replies_are_shortened_to_what_is_left():
    steps = [looking(usage=used(5_000, 10)), looking(usage=used(9_000, 10)), saying()]
    model = ScriptedModel(*steps)
    limits = {"context_window": 10_000, "answer_tokens": 0, "longest": 4_000}
    assert run(model, **limits).status == "completed"
    first, second, third = (asked.settings.max_output_tokens for asked in model.requests)
    assert first == second == 4_000 and third is not None and 16 <= third < 1_000


def test_without_reserved_tokens_a_question_ends_once_no_reply_fits():
    model = ScriptedModel(looking(usage=used(9_990, 10)), saying())
    limits = {"context_window": 10_000, "answer_tokens": 0, "longest": 4_000}
    assert run(model, **limits).status == "out_of_context"


def test_text_without_latin_letters_is_not_taken_for_less_than_it_is():
    # 6,000 ideographs are about as many tokens, and 18,000 bytes.
    model = ScriptedModel(looking(usage=used(3_000, 10)), saying())
    trajectory = run(model, "水" * 6_000, context_window=10_000, answer_tokens=2_000)
    assert (trajectory.status, trajectory.reason) == ("out_of_context", "context_window")


def test_a_tokenizer_with_more_tokens_is_learned_from_the_servers_counts():
    # The first page took a token a byte; a second one of 6,000 would not fit any more.
    steps = [looking(usage=used(1_000, 10)), looking(usage=used(7_200, 10)), saying()]
    model = ScriptedModel(*steps)
    trajectory = run(model, "7" * 6_000, context_window=14_000, answer_tokens=2_000)
    assert trajectory.status == "out_of_context"
    assert len(model.requests) == 3


def test_a_reply_is_taken_to_be_as_long_as_it_is_when_it_is_sent_back():
    # 9,000 bytes of arguments that the server wrote in 50 tokens.
    long = call("search", query="mill " * 1_800)
    model = ScriptedModel(calling(long, usage=used(5_000, 50)), saying())
    assert run(model, context_window=10_000, answer_tokens=2_000).status == "out_of_context"


def test_an_answer_that_too_little_room_cut_off_is_asked_for_with_more_room():
    empty = Truncated("cut", turn=Turn(reasoning="Hm", usage=used(7_000, 2_900)))
    model = ScriptedModel(looking(usage=used(500, 10)), empty, saying())
    limits = {"context_window": 10_000, "answer_tokens": 1_000, "longest": 5_000}
    trajectory = run(model, "mill " * 3_400, **limits)
    assert trajectory.answer.exact == "Torvald Brekke"
    second, third = (asked.settings.max_output_tokens for asked in model.requests[1:])
    assert second is not None and second < 5_000 and third == 5_000
    assert len(model.requests[2].messages) < len(model.requests[1].messages)


def test_a_reply_that_filled_the_window_is_no_answer_but_what_it_says_last_is():
    half = Turn(text="I think th", usage=used(5_000, 5_000))
    full = ContextOverflow("full", turn=half)
    trajectory = run(ScriptedModel(looking(), full, saying()), context_window=10_000)
    assert (trajectory.status, trajectory.reason) == ("out_of_context", "context_overflow")
    assert trajectory.answer.exact == "Torvald Brekke"
    cut = ContextOverflow("full", turn=Turn(text=ANSWER + "\nAnd"))
    trajectory = run(ScriptedModel(looking(), cut), turns=1)
    assert trajectory.answer.exact == "Torvald Brekke"


def test_an_overflow_of_a_stage_is_not_the_agents():
    class Broken(TopK):
        def call(self, name, arguments):
            raise ContextOverflow("the re-ranker's prompt")

    session = Broken().open(WordBackend({}), store_of({}))
    agent = ChatAgent(model=ScriptedModel(looking()))
    trajectory = asyncio.run(agent.run(QUESTION, session))
    assert (trajectory.status, trajectory.reason) == ("failed", "context_overflow")


@pytest.mark.parametrize(("longest", "answer"), [(8_000, 100), (100, 8_000)])
def test_a_window_without_room_for_a_transcript_is_refused(longest, answer):
    with pytest.raises(InputError, match="8000"):
        run(ScriptedModel(), context_window=8_000, answer_tokens=answer, longest=longest)


def test_the_maximum_that_an_api_demands_is_known_to_whoever_budgets():
    model = AnthropicMessages(model="m", key_env="NOWHERE")
    assert model.settings.max_output_tokens == 32_000
    given = AnthropicMessages(model="m", settings=SamplingParams(max_output_tokens=5))
    assert given.settings.max_output_tokens == 5
    assert (
        OpenAIChat(
            model="m",
        ).settings.max_output_tokens
        is None
    )
