"""The tool-calling agent with many questions at once, many strange calls, and twice; and on a real
engine: llama.cpp's server with a tiny random model."""

import asyncio
import gc
import json
import random
import re
import threading
from dataclasses import replace

import pytest
from support.benchmarks import WordBackend, store_of
from support.llm_model import ANSWER, ScriptedModel, calling, saying, search, used
from support.needs import cases, needs
from support.tool_caller import WORDS

from soundingline.agents.base import Budget
from soundingline.agents.chat import ChatAgent
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.llm import SamplingParams, ToolCall, Turn
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.local_servers import LlamaCppServer
from soundingline.toolkit.llm.messages import user
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.llm.server import serving
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.trajectory import dump_trajectory, from_record

needs_llamacpp = needs(("xllamacpp", "gguf", "openai"), "llm,llamacpp")

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
    asked = messages[1]["content"]
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn < 3 and settings.tool_choice != "none":
        calls = [search(f"{asked} {turn} {n}", f"c{turn}{n}") for n in range(turn + 1)]
        return calling(*calls, reasoning=f"{asked} {turn}", usage=used(100 * turn, 10, 90 * turn))
    return saying(ANSWER.replace("Torvald Brekke", asked), usage=used(400, 20, 300))


def run_rollouts(count, choose=own_question, **arguments):
    agent = ChatAgent(model=ScriptedModel(choose=choose), **arguments)

    async def together():
        topics = [Topic(f"q{n}", f"mill {n}") for n in range(count)]
        trajectories = await asyncio.gather(
            *(agent.run(topic, ranked_session()) for topic in topics)
        )
        assert len(asyncio.all_tasks()) == 1
        return trajectories

    return asyncio.run(together())


def without_times(trajectory):
    """The record of a trajectory, its times taken out."""
    calls = tuple(replace(each, seconds=0.0) for each in trajectory.calls)
    usage = {name: value for name, value in trajectory.usage.items() if "seconds" not in name}
    return dump_trajectory(replace(trajectory, started="", seconds=0.0, calls=calls, usage=usage))


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
        agent = ChatAgent(model=ScriptedModel(choose=own_question))
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
    return ToolCall(identifier, name, draw.choice(JUNK) if draw.random() < 0.03 else text)


class Plain(ScriptedModel):
    """Copies no request, which a surrogate would break."""

    async def respond(self, messages, tools=(), settings=None):
        return self._choose(messages, settings)


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

    agent = ChatAgent(model=Plain(choose=choose))
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
        agent = ChatAgent(model=ScriptedModel(stall), budget=Budget(seconds=60))
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
    with serving(lambda port: server.command("tiny", port), log=log, start_seconds=120) as url:
        yield url


def client(address):
    return OpenAIChat(model="tiny", base_url=f"{address}/v1", key_env=None, concurrency=4)


def session():
    return RankedBrowsing(page=3).open(WordBackend(TOWNS), store_of(TOWNS))


@pytest.fixture(scope="module")
def run(address):
    """Questions answered at once, each turn a call that is forced, the answer by a grammar."""
    ledger = Ledger()

    async def answered():
        model = client(address)
        agent = ChatAgent(
            model=model,
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
def test_a_forced_call_follows_the_schema_and_an_answer_the_grammar(run):
    for trajectory in run[0]:
        assert (trajectory.status, trajectory.reason) == ("out_of_turns", "turns"), trajectory
        assert len(trajectory.calls) >= TURNS
        for call in trajectory.calls:
            # What a tool itself may refuse: ids that exist nowhere, places past an end.
            assert call.error in ("", "unknown_search_id", "past_the_end"), call.output
        assert re.fullmatch(ANSWER_FORM, trajectory.messages[-1]["content"])
        assert trajectory.answer.exact in WORDS


@pytest.mark.slow
@needs_llamacpp
def test_calls_reach_the_collection(run):
    calls = [call for trajectory in run[0] for call in trajectory.calls if not call.error]
    assert any(call.ranking for call in calls)
    assert any(trajectory.tiers.get("previewed") for trajectory in run[0])


@pytest.mark.slow
@needs_llamacpp
def test_every_request_is_metered_and_the_prefix_is_reused(run):
    trajectories, ledger = run
    total = ledger.total
    assert (total.calls, total.failed) == (QUESTIONS * (TURNS + 1), 0)
    assert total.unmetered == 0
    assert total.replies_with_cached == total.calls
    for name in ("input_tokens", "cached_tokens", "output_tokens"):
        assert getattr(total, name) == sum(each.usage[name] for each in trajectories) > 0


@pytest.mark.slow
@needs_llamacpp
def test_without_tools_it_only_talks(address):
    async def ask():
        model = client(address)
        try:
            settings = SamplingParams(extra={"grammar": 'root ::= "town" | "river"'})
            return await model.respond([user("Which?")], [], settings)
        finally:
            await model.close()

    turn = asyncio.run(ask())
    assert turn.text in ("town", "river")
    assert turn.finish_reason == "stop"
    assert not turn.tool_calls
