"""The tool-calling agent with many questions at once, many strange calls, and twice; and on a real
engine: llama.cpp's server with a tiny random model. A question whose transcript reaches the end of
the model's window still ends with an answer; and the agent through each real client, against a
server that misbehaves as scripted or has vLLM's rule: prompt and maximum of output together must
not pass the window."""

import asyncio
import gc
import json
import random
import re
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agents import bound
from support.benchmarks import WordBackend, store_of
from support.llm_model import ANSWER, ScriptedModel, call, calling, saying, search, used
from support.llm_server import Fail, Say, running_peer
from support.needs import cases, needs
from support.runs import ended, without_times
from support.tool_caller import WORDS

from soundingline.agents.base import Budget
from soundingline.agents.chat import message_bytes
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import FunctionCall, SamplingParams, Turn, Usage, transport
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.errors import BadRequest, ContextOverflow, Truncated
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.local_servers import LlamaCppServer, serving
from soundingline.toolkit.llm.openai import OpenAIChat, OpenAIResponses
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.trajectory import dump_trajectory, from_record

needs_llamacpp = needs(("xllamacpp", "gguf", "httpx2"), "llm,llamacpp")

CORPUS = {
    f"d{n}": Document(f"d{n}", f"Mill {n}", f"The mill {n} on the river was built in {1800 + n}.")
    for n in range(40)
}
BACKEND = WordBackend({docid: each.text for docid, each in CORPUS.items()})
STORE = store_of(CORPUS)
STRANGE = cases(50, 10)  # questions of a hundred strange calls each


def ranked_session(interface=RankedBrowsing, **settings):
    return interface(**settings).open(BACKEND, STORE)


def own_question(messages, settings):
    """Three turns of searching for the words of the question, then an answer that repeats it."""
    asked = messages[1]["content"].rpartition("Question: ")[2]
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn < 3 and settings.tool_choice != "none":
        calls = [search(f"{asked} {turn} {n}", f"c{turn}{n}") for n in range(turn + 1)]
        return calling(*calls, reasoning=f"{asked} {turn}", usage=used(100 * turn, 10, 90 * turn))
    return saying(ANSWER.replace("Torvald Brekke", asked), usage=used(400, 20, 300))


def run_rollouts(count, choose=own_question, **arguments):
    agent = bound(ScriptedModel(choose=choose), **arguments)

    async def together():
        topics = [Topic(f"q{n}", f"mill {n}") for n in range(count)]
        trajectories = await asyncio.gather(
            *(agent.run(topic, ranked_session()) for topic in topics)
        )
        assert len(asyncio.all_tasks()) == 1
        return trajectories

    return asyncio.run(together())


@pytest.mark.slow
def test_sixty_four_questions_at_once_keep_apart_twice_and_leave_nothing_behind():
    before = set(threading.enumerate())
    first, second = (run_rollouts(64, budget=Budget(seconds=60)) for _ in range(2))
    for number, trajectory in enumerate(first):
        assert trajectory.status == "completed", trajectory.traceback
        assert trajectory.answer.exact == f"mill {number}"
        assert [each.arguments["query"] for each in trajectory.calls] == [
            f"mill {number} {turn} {n}" for turn in range(3) for n in range(turn + 1)
        ]
        assert trajectory.usage["agent_calls"] == 4
    assert [*map(without_times, first)] == [*map(without_times, second)]
    gc.collect()
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_an_answer_is_read_while_the_event_loop_goes_on(monkeypatch):
    tool = ranked_session()
    read, reading, go_on = tool.answer, threading.Event(), threading.Event()

    def slow(text):
        reading.set()
        assert go_on.wait(timeout=10), "the event loop stopped"
        return read(text)

    async def question():
        agent = bound(ScriptedModel(choose=own_question))
        task = asyncio.create_task(agent.run(Topic("q", "mill 7"), tool))
        while not reading.is_set():
            await asyncio.sleep(0.001)
        go_on.set()
        return await task

    monkeypatch.setattr(tool, "answer", slow)
    trajectory = asyncio.run(question())
    assert trajectory.answer.exact == "mill 7", trajectory.traceback


@pytest.mark.slow
def test_a_runs_cap_ends_all_questions_that_are_under_way():
    ledger = Ledger(cap=0.0008)
    ended = run_rollouts(16, ledger=ledger, price=Price(input=1.0, output=1.0))
    assert {each.status for each in ended} == {"out_of_money"}
    assert 0 < ledger.total.dollars <= 0.0008 + 16 * 300e-6


NAMES = ("search", "read_search_results", "read_document", "get_document", "", "Search", "\ud800")
KEYS = ("reason", "query", "search_id", "docid", "offset", "limit", "extra", "", "é\u202e")
TEXTS = (
    *("mill", "", " ", "s1", "s999", "d1", "d1%p2", "d1%p99999999999999", "\x00"),
    *("\ud800\udc00", "\udfff", "日本語 mill", "🏭" * 50, "x" * 20_000, "mill " * 3_000),
    *('{"query": "mill"}', "%s %(a)s {0} {question}"),
)
VALUES = (0, 1, -1, 5, 10**18, 2**63, 10**200, 0.5, -0.0, 1e308, None, True, False, [], {})
JUNK = ("[" * 50_000, "NaN", '{"offset": 1e999}', "9" * 6_000, '{"a":' * 2_000, "\ud83d")


def value(draw, depth=0):
    kind = draw.randrange(9 if depth < 3 else 7)
    if kind < 7:
        return draw.choice(TEXTS if kind < 3 else VALUES)
    if kind == 7:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice(KEYS): value(draw, depth + 1) for _ in range(draw.randrange(4))}


def strange_call(draw, identifier, right):
    """A call between right and absurd: some as they should be, some with one argument changed, many
    of anything, some no JSON at all."""
    kind = draw.random()
    name, arguments = draw.choice(right)
    if 0.2 < kind < 0.4:
        arguments = {**arguments, draw.choice(list(arguments)): value(draw)}
    elif 0.4 <= kind < 0.8:
        name = draw.choice(NAMES)
        arguments = {draw.choice(KEYS): value(draw) for _ in range(draw.randrange(6))}
    elif kind >= 0.8:
        name = "".join(draw.choices(TEXTS, k=2))[:300]
        arguments = value(draw)
    text = json.dumps(arguments, ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.15:
        text = text[: draw.randrange(len(text) + 1)]
    return FunctionCall(identifier, name, draw.choice(JUNK) if draw.random() < 0.03 else text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "right"),
    [
        (
            {},
            [
                ("search", {"reason": "", "query": "mill"}),
                (
                    "read_search_results",
                    {"reason": "", "search_id": "s1", "offset": 2, "limit": None},
                ),
                ("read_document", {"reason": "", "docid": "d7", "offset": None, "limit": 3}),
            ],
        ),
        (
            {"interface": TopK, "get_document": True},
            [("search", {"query": "mill"}), ("get_document", {"docid": "d7"})],
        ),
    ],
    ids=["ranked browsing", "top k"],
)
def test_thousands_of_strange_calls_end_in_results_or_tool_errors(tool, right):
    draw = random.Random(4)

    def choose(messages, settings):
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 25:
            return saying()
        calls = tuple(strange_call(draw, f"c{turn}-{n}", right) for n in range(4))
        return Turn(tool_calls=calls, reasoning=draw.choice(TEXTS))

    agent = bound(ScriptedModel(choose=choose))
    errors = 0
    for number in range(STRANGE):
        topic = Topic(f"q{number}", "Which mill?")
        trajectory = asyncio.run(agent.run(topic, ranked_session(**tool)))
        assert trajectory.status == "completed", trajectory.traceback
        assert len(trajectory.calls) == 100
        results = [m for m in trajectory.messages if m["role"] == "tool"]
        assert [m["content"] for m in results] == [each.output for each in trajectory.calls]
        assert from_record(json.loads(dump_trajectory(trajectory))).qid == trajectory.qid
        errors += sum(bool(each.error) for each in trajectory.calls)
    # Neither half is empty, or nothing was tried.
    assert 40 * STRANGE < errors < 90 * STRANGE


@pytest.mark.slow
def test_a_cancelled_question_ends_at_once_and_takes_its_request_with_it():
    ended = []

    async def stall():
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("request")

    async def cancelled():
        agent = bound(ScriptedModel(stall), budget=Budget(seconds=60))
        task = asyncio.create_task(agent.run(Topic("q", "mill?"), ranked_session()))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert ended == ["request"]


QUESTIONS, TURNS = 4, 3
TOWNS = {
    f"fw{number:07d}": f"The {one} of the {two} was built of {three}."
    for number, (one, two, three) in enumerate(
        zip(WORDS, WORDS[3:] + WORDS[:3], WORDS[7:] + WORDS[:7], strict=True)
    )
}
GRAMMAR = rf"""
root ::= "Explanation:" word word word " [fw00000" [0-9] [0-9] "]\nExact Answer:" word "\nConfidence: " [1-9] [0-9] "%"
word ::= {" | ".join(f'" {word}"' for word in WORDS)}
"""  # noqa: E501
ANSWER_FORM = r"Explanation:( \w+){3} \[fw\d{7}\]\nExact Answer: \w+\nConfidence: \d\d%"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The server of the tiny model, until the module ends."""
    from support.tool_caller import save_gguf

    place = tmp_path_factory.mktemp("llamacpp")
    weights = save_gguf(place / "tiny.gguf", list(TOWNS))

    # Several threads wait for each other by spinning, which a busy machine punishes.
    server = LlamaCppServer(gguf=str(weights), context_length=16_384, parallel=4, threads=1)
    log = place / "server.log"
    with serving(server, "tiny", log=log) as url:
        yield url


def client(address):
    return OpenAIChat(model="tiny", base_url=f"{address}/v1", key_env=None, concurrency=4)


def session():
    return RankedBrowsing(page=3).open(WordBackend(TOWNS), store_of(TOWNS))


@pytest.fixture(scope="module")
def forced(address):
    """Questions answered at once, each turn a call that is forced, the answer by a grammar."""
    ledger = Ledger()

    async def answered():
        model = client(address)
        agent = bound(
            model,
            budget=Budget(turns=TURNS),
            settings=SamplingParams(tool_choice="required", max_output_tokens=2000, timeout=120),
            answer_extra={"grammar": GRAMMAR},
            ledger=ledger,
        )
        topics = [Topic(f"q{n}", f"What was the {WORDS[n]} built of?") for n in range(QUESTIONS)]
        try:
            return await asyncio.gather(*(agent.run(topic, session()) for topic in topics))
        finally:
            await model.close()

    return asyncio.run(answered()), ledger


@pytest.mark.slow
@needs_llamacpp
def test_a_forced_call_follows_the_schema_and_an_answer_the_grammar(forced):
    for trajectory in forced[0]:
        assert ended(trajectory) == ("out_of_turns", "turns"), trajectory
        assert len(trajectory.calls) >= TURNS
        for made in trajectory.calls:
            # What a tool itself may refuse: ids that exist nowhere, places past an end.
            assert made.error in ("", "unknown_search_id", "past_the_end"), made.output
        assert re.fullmatch(ANSWER_FORM, trajectory.messages[-1]["content"])
        assert trajectory.answer.exact in WORDS
    calls = [call for trajectory in forced[0] for call in trajectory.calls if not call.error]
    assert any(call.ranking for call in calls)
    assert any(trajectory.tiers.get("previewed") for trajectory in forced[0])


@pytest.mark.slow
@needs_llamacpp
def test_every_request_is_metered_and_the_prefix_is_reused(forced):
    trajectories, ledger = forced
    total = ledger.total
    assert (total.calls, total.failed) == (QUESTIONS * (TURNS + 1), 0)
    assert total.unreported == 0
    assert total.replies_with_cached == total.calls
    for name in ("input_tokens", "cached_tokens", "output_tokens"):
        assert getattr(total, name) == sum(each.usage[name] for each in trajectories) > 0


# The end of the model's window.

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
    agent = bound(model, prompt=prompt, settings=sampling, budget=Budget(**limits))
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
    estimated = known and counted and density <= 1 / 3
    assert refusals <= (0 if estimated else 2 if longest else 2 + len(pages))
    # There was room for more than a word.
    assert longest is None or maxima[-1] >= ANSWER_TOKENS / 4


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


def overflow(window=None):
    error = ContextOverflow("too long")
    error.window = window
    return error


def questions(model, session, count=1, longest=None, **limits):
    """Questions of one run, one after the other."""
    sampling = SamplingParams(max_output_tokens=longest)
    agent = bound(model, settings=sampling, budget=Budget(**limits))
    return [asyncio.run(agent.run(QUESTION, session())) for _ in range(count)]


def test_the_window_that_a_refusal_names_is_kept_for_the_run():
    model = ScriptedModel(
        *(looking(2_000, 10), looking(7_500, 10), overflow(10_000), saying(usage=used(2_000, 9))),
        *(looking(2_000, 10), looking(7_500, 10), saying(usage=used(7_600, 9))),
    )
    first, second = questions(model, lambda: tool("mill"), 2, answer_tokens=2_500)
    assert (first.status, first.reason) == (OUT, "context_overflow")
    # The second question ends before a refusal.
    assert (second.status, second.reason) == (OUT, "context_window")
    assert first.answer.exact == second.answer.exact == "Torvald Brekke"
    assert len(model.requests) == 7


def test_a_question_under_way_knows_the_window_that_another_one_met():
    met = []

    def choose(messages, settings):
        if settings.tool_choice == "none":
            return saying()
        turn = sum(message["role"] == "assistant" for message in messages)
        if "Which bridge?" in json.dumps(messages) and turn == 1:
            met.append(turn)
            raise overflow(10_000)
        if len(met) == 1:  # the other question has begun, and the window is known from now on
            met.append(turn)
            return looking(7_500, 10)
        assert not met, "the window is known by now"
        return looking(2_000, 10)

    agent = bound(ScriptedModel(choose=choose), budget=Budget(answer_tokens=2_500))

    async def together():
        asked = (Topic("a", "Which bridge?"), Topic("b", "Which mill?"))
        return await asyncio.gather(*(agent.run(topic, tool("mill")) for topic in asked))

    ends = [ended(each) for each in asyncio.run(together())]
    assert ends == [(OUT, "context_overflow"), (OUT, "context_window")]


def test_exchanges_are_left_out_until_there_is_room_for_the_answer():
    accepted = [2_000, 5_000, 9_000, 9_700]
    model = ScriptedModel(*(looking(tokens, 10) for tokens in accepted), overflow(10_000), saying())
    (trajectory,) = questions(model, lambda: tool("mill"), answer_tokens=4_000)
    assert trajectory.answer.exact == "Torvald Brekke"
    # A quarter of the answer's tokens does not fit behind 9,700 nor 9,000.
    opening = len(model.requests[0].messages)
    assert len(model.requests[-1].messages) == opening + 2 + 1
    assert f"messages {opening + 3} to" in trajectory.warnings[0]


@pytest.mark.parametrize("named", [5_000, 300], ids=["below what it accepted", "absurd"])
def test_a_window_that_cannot_be_true_is_not_believed(named):
    model = ScriptedModel(looking(8_000, 10), overflow(named), saying(), looking(), saying())
    first, second = questions(model, lambda: tool("mill"), 2, answer_tokens=1_000)
    assert first.answer.exact == "Torvald Brekke" and second.status == "completed"


def test_replies_longer_than_the_window_that_a_refusal_names_are_an_error_with_what_to_set():
    model = ScriptedModel(last=overflow(16_384))
    (trajectory,) = questions(model, lambda: tool("mill"), longest=20_000)
    assert ended(trajectory) == ("failed", "bad_request")
    assert "window of 16384 tokens" in trajectory.traceback
    assert "llm.context_window=16384" in trajectory.traceback and len(model.requests) == 1


def test_a_refusal_in_unknown_words_near_the_end_of_the_window_is_an_overflow_once():
    refusal = BadRequest("something is off")
    model = ScriptedModel(looking(2_000, 10), looking(8_000, 10), refusal, saying())
    (trajectory,) = questions(model, lambda: tool("mill"), answer_tokens=1_000, **TEN)
    assert ended(trajectory) == (OUT, "context_overflow")
    assert trajectory.answer.exact == "Torvald Brekke"
    assert "something is off" in trajectory.warnings[0]
    # Not far from the end, not without a window, and not a second time.
    for steps, limits in (
        ([looking(2_000, 10), refusal, saying()], TEN),
        ([looking(2_000, 10), looking(8_000, 10), refusal, saying()], {}),
        ([looking(2_000, 10), looking(8_000, 10), refusal, refusal, saying()], TEN),
        ([refusal, saying()], {"context_window": 1_500}),
    ):
        model = ScriptedModel(*steps)
        (trajectory,) = questions(model, lambda: tool("mill"), answer_tokens=1_000, **limits)
        assert ended(trajectory) == ("failed", "bad_request")
        assert len(model.requests) == len(steps) - 1


CUT_OFF = Truncated("cut", turn=Turn(text="I think th", finish_reason="length"))


@pytest.mark.parametrize(
    ("again", "answered"),
    [(saying(), True), (CUT_OFF, False), (ContextOverflow("full"), False)],
    ids=["answered", "cut again", "refused"],
)
def test_a_forced_answer_that_ends_by_length_is_demanded_once_more_with_less(again, answered):
    model = ScriptedModel(looking(1_000, 10), looking(2_000, 10), CUT_OFF, again, CUT_OFF)
    (trajectory,) = questions(model, lambda: tool("mill"), turns=2)
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert trajectory.answer.exact == ("Torvald Brekke" if answered else "")
    assert answered or trajectory.answer.explanation == "I think th"
    cut, shorter = model.requests[2], model.requests[3]
    assert len(shorter.messages) < len(cut.messages) and shorter.settings.tool_choice == "none"


@pytest.mark.parametrize(
    "reply",
    [
        Truncated("cut", turn=Turn(text=f"{ANSWER}\nAnd", finish_reason="length")),
        Truncated("again", turn=Turn(text="mill mill mill", finish_reason="repetition")),
    ],
    ids=["after its last line", "because it repeats itself"],
)
def test_a_forced_answer_that_is_complete_or_repeats_itself_is_not_demanded_again(reply):
    model = ScriptedModel(looking(1_000, 10), looking(2_000, 10), reply, saying("other"))
    questions(model, lambda: tool("mill"), turns=2)
    assert len(model.requests) == 3


def test_a_reply_that_filled_the_window_is_no_answer_but_what_it_says_last_is():
    half = Turn(text="I think th", usage=used(5_000, 5_000))
    model = ScriptedModel(looking(), ContextOverflow("full", turn=half), saying())
    trajectory = run(model, tool("mill"), **TEN)
    assert ended(trajectory) == (OUT, "context_overflow")
    assert trajectory.answer.exact == "Torvald Brekke"
    cut = ContextOverflow("full", turn=Turn(text=ANSWER + "\nAnd"))
    trajectory = run(ScriptedModel(looking(), cut), tool("mill"), turns=1)
    assert trajectory.answer.exact == "Torvald Brekke"


def test_an_overflow_of_a_stage_is_not_the_agents():
    class Broken(TopK):
        def call(self, name, arguments):
            raise ContextOverflow("the re-ranker's prompt")

    trajectory = run(ScriptedModel(looking()), tool("mill", Broken))
    assert ended(trajectory) == ("failed", "context_overflow")


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


ONE_MILL = {
    "mill": Document("mill", "Grenholm Mill", "Torvald Brekke built Grenholm Mill in 1871.")
}
ARGUMENTS = json.dumps({"reason": "to find it", "query": "Grenholm Mill"})
LOOK = Say(reasoning="I look for it.", calls=(("c1", "search", ARGUMENTS),))
DONE = Say(text=ANSWER)
MAXIMUM = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture(params=[OpenAIChat, OpenAIResponses, AnthropicMessages])
def asked(request, server, monkeypatch):
    """One question through the adapter under test."""
    monkeypatch.setattr(transport, "_sleep", lambda seconds: asyncio.sleep(0))
    url = server.anthropic_url if request.param is AnthropicMessages else server.openai_url
    server.reset()

    def ask(*steps, session=None, settings=None, prompt="pi_serini", **limits):
        server.script.extend(steps)
        model = request.param(model="m", base_url=url, attempts=2)
        agent = bound(model, prompt=prompt, settings=settings, budget=Budget(**limits))
        backend = WordBackend({"mill": "Grenholm Mill Brekke"})
        session = session or RankedBrowsing().open(backend, store_of(ONE_MILL))

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


@pytest.mark.slow
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
    assert ended(trajectory) == ("out_of_context", reason)
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
    else:
        assert vllm.refusals == 1
