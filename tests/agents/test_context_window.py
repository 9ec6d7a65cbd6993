"""A question whose transcript reaches the end of the model's window still ends with an answer."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.llm_model import ANSWER, ScriptedModel, call, calling, saying, used
from support.needs import cases
from support.search import WordBackend, store_of

from soundingline.agents.base import Budget
from soundingline.agents.chat import ChatAgent
from soundingline.agents.context_window import message_bytes
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import SamplingParams, Turn, Usage
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.errors import ContextOverflow, Truncated
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.search import TopK

QUESTION = Topic("q1", "Who built Grenholm Mill?")
WINDOW, LONGEST, ANSWER_TOKENS = 24_000, 6_000, 2_000


def tool(text, interface=TopK):
    """Every search shows one complete document."""
    store = store_of({"mill": Document("mill", "Grenholm Mill", text)})
    return interface(max_tokens=None).open(WordBackend({"mill": "Grenholm Mill"}), store)


def refused(prompt, most):
    """vLLM's words."""
    return (
        f"This model's maximum context length is {WINDOW} tokens. However, you requested {most} "
        f"output tokens and your prompt contains at least {prompt} input tokens, for a total of at "
        f"least {prompt + most} tokens. Please reduce the length of the input prompt or the number "
        f"of requested output tokens. (parameter=input_tokens, value={prompt})"
    )


def looking(*usage, **fields):
    return calling(call("search", query="Grenholm Mill"), usage=used(*usage), **fields)


def run(model, session, longest=None, prompt="pi_serini", **limits):
    sampling = SamplingParams(max_output_tokens=longest)
    agent = ChatAgent(model=model, prompt=prompt, settings=sampling, budget=Budget(**limits))
    return asyncio.run(agent.run(QUESTION, session))


# Any sizes of pages, any density of tokens.


@given(
    pages=st.lists(st.integers(0, 90_000), min_size=1, max_size=12),
    density=st.sampled_from([0.15, 0.25, 0.33, 0.5, 1.0]),
    counted=st.booleans(),
    known=st.booleans(),
    longest=st.sampled_from([LONGEST, ANSWER_TOKENS, None]),
    output=st.integers(1, LONGEST),
)
@settings(max_examples=cases(150), deadline=None)
def test_every_question_ends_with_an_answer(pages, density, counted, known, longest, output):
    sizes, refusals, maxima = list(pages), 0, []

    def choose(messages, sampling):
        nonlocal refusals
        most = sampling.max_output_tokens
        prompt = int(sum(message_bytes(message) + 30 for message in messages) * density)
        if prompt + (most or 1) > WINDOW:
            refusals += 1
            raise ContextOverflow(refused(prompt, most or 0))
        maxima.append(most)
        usage = used(prompt, min(output, most or WINDOW - prompt)) if counted else Usage()
        if sampling.tool_choice == "none" or not sizes:
            return saying(usage=usage)
        return calling(call("search", query="Grenholm Mill"), usage=usage)

    class Pages(TopK):
        def call(self, name, arguments):
            result = super().call(name, arguments)
            return replace(result, call=replace(result.call, output="7" * sizes.pop(0)))

    trajectory = run(
        ScriptedModel(choose=choose),
        tool("mill", Pages),
        longest,
        "browsecomp_plus",
        context_window=WINDOW if known else None,
        answer_tokens=ANSWER_TOKENS,
    )
    assert trajectory.answer.exact == "Torvald Brekke", (trajectory.status, trajectory.traceback)
    # Without a maximum, a request that is taken may leave no room for a further one.
    assert refusals <= (2 if longest else 2 + len(pages))
    # There was room for more than a word.
    assert longest is None or maxima[-1] >= ANSWER_TOKENS / 4
    if known and counted and density <= 1 / 3:
        assert refusals == 0


# The estimate, and what it is for.

TEN = {"context_window": 10_000}
OUT = "out_of_context"


@pytest.mark.parametrize(
    ("steps", "text", "limits", "status"),
    [
        # The longer of answer and reply stays free.
        *(
            (
                [looking(counted, 10)],
                *("mill", {**TEN, "answer_tokens": answer, "longest": longest}, status),
            )
            for longest, answer in ((4_000, 100), (None, 4_000), (100, 4_000))
            for counted, status in ((5_000, "completed"), (6_000, OUT))
        ),
        # Without reserved tokens a question ends once no reply fits.
        ([looking(9_990, 10)], "mill", {**TEN, "answer_tokens": 0, "longest": 4_000}, OUT),
        # 6,000 ideographs are about as many tokens, and 18,000 bytes.
        ([looking(3_000, 10)], "水" * 6_000, {**TEN, "answer_tokens": 2_000}, OUT),
        # The first page took a token a byte; a second one of 6,000 would not fit any more.
        (
            [looking(1_000, 10), looking(7_200, 10)],
            *("7" * 6_000, {"context_window": 14_000, "answer_tokens": 2_000}, OUT),
        ),
        # 9,000 bytes of arguments that the server wrote in 50 tokens are sent back.
        (
            [calling(call("search", query="mill " * 1_800), usage=used(5_000, 50))],
            *("mill", {**TEN, "answer_tokens": 2_000}, OUT),
        ),
    ],
)
def test_the_room_that_is_left_is_estimated(steps, text, limits, status):
    model = ScriptedModel(*steps, saying())
    trajectory = run(model, tool(text), **limits)
    assert trajectory.status == status
    assert trajectory.reason == ("context_window" if status == OUT else "")
    assert len(model.requests) == len(steps) + (limits.get("answer_tokens") != 0)


def test_without_reserved_tokens_replies_are_shortened_to_what_is_left():
    model = ScriptedModel(looking(5_000, 10), looking(9_000, 10), saying())
    trajectory = run(model, tool("mill"), longest=4_000, answer_tokens=0, **TEN)
    assert trajectory.status == "completed"
    first, second, third = (asked.settings.max_output_tokens for asked in model.requests)
    assert first == second == 4_000 and 16 <= third < 1_000


def test_an_answer_that_too_little_room_cut_off_is_asked_for_with_more_room():
    empty = Truncated("cut", turn=Turn(reasoning="Hm", usage=used(7_000, 2_900)))
    model = ScriptedModel(looking(500, 10), empty, saying())
    trajectory = run(model, tool("mill " * 3_400), longest=5_000, answer_tokens=1_000, **TEN)
    assert trajectory.answer.exact == "Torvald Brekke"
    second, third = (asked.settings.max_output_tokens for asked in model.requests[1:])
    assert second < 5_000 and third == 5_000
    assert len(model.requests[2].messages) < len(model.requests[1].messages)


def test_a_reply_that_filled_the_window_is_no_answer_but_what_it_says_last_is():
    half = Turn(text="I think th", usage=used(5_000, 5_000))
    model = ScriptedModel(looking(), ContextOverflow("full", turn=half), saying())
    trajectory = run(model, tool("mill"), **TEN)
    assert (trajectory.status, trajectory.reason) == (OUT, "context_overflow")
    assert trajectory.answer.exact == "Torvald Brekke"
    cut = ContextOverflow("full", turn=Turn(text=ANSWER + "\nAnd"))
    trajectory = run(ScriptedModel(looking(), cut), tool("mill"), turns=1)
    assert trajectory.answer.exact == "Torvald Brekke"


def test_an_overflow_of_a_stage_is_not_the_agents():
    class Broken(TopK):
        def call(self, name, arguments):
            raise ContextOverflow("the re-ranker's prompt")

    trajectory = run(ScriptedModel(looking()), tool("mill", Broken))
    assert (trajectory.status, trajectory.reason) == ("failed", "context_overflow")


@pytest.mark.parametrize(("longest", "answer"), [(8_000, 100), (100, 8_000)])
def test_a_window_without_room_for_a_transcript_is_refused(longest, answer):
    with pytest.raises(InputError, match="8000"):
        run(ScriptedModel(), tool(""), longest, context_window=8_000, answer_tokens=answer)


@pytest.mark.parametrize(
    ("client", "settings", "most"),
    [
        (AnthropicMessages, {}, 32_000),
        (AnthropicMessages, {"settings": SamplingParams(max_output_tokens=5)}, 5),
        (OpenAIChat, {}, None),
    ],
)
def test_the_maximum_that_an_api_demands_is_known_to_whoever_budgets(client, settings, most):
    assert client(model="m", key_env=None, **settings).settings.max_output_tokens == most
