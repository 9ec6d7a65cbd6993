"""The tool-calling agent on a real engine: llama.cpp's server with a tiny random model."""

import asyncio
import re

import pytest
from support.needs import needs
from support.search import WordBackend, store_of
from support.tool_caller import WORDS

from soundingline.agents.base import Budget
from soundingline.agents.chat import ChatAgent
from soundingline.toolkit.data import Topic
from soundingline.toolkit.llm import SamplingParams
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.local_servers import LlamaCppServer
from soundingline.toolkit.llm.messages import user
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.server import serving
from soundingline.toolkit.search import RankedBrowsing

pytestmark = needs(("xllamacpp", "gguf", "openai"), "llm,llamacpp")

QUESTIONS, TURNS = 6, 3
DOCUMENTS = {
    f"fw{number:07d}": f"The {one} of the {two} was built of {three}."
    for number, (one, two, three) in enumerate(
        zip(WORDS, WORDS[3:] + WORDS[:3], WORDS[7:] + WORDS[:7], strict=True)
    )
}
GRAMMAR = rf"""
root ::= "Explanation:" word word word " [fw00000" [0-9] [0-9] "]\nExact Answer:" word "\nConfidence: " [1-9] [0-9] "%"
word ::= {" | ".join(f'" {word}"' for word in WORDS)}
"""  # noqa: E501
ANSWER = r"Explanation:( \w+){3} \[fw\d{7}\]\nExact Answer: \w+\nConfidence: \d\d%"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The server of the tiny model, until the module ends."""
    from support.tool_caller import save_gguf

    place = tmp_path_factory.mktemp("llamacpp")
    weights = save_gguf(place / "tiny.gguf", list(DOCUMENTS))

    # Several threads wait for each other by spinning, which a busy machine punishes.
    server = LlamaCppServer(gguf=str(weights), context_length=16_384, parallel=4, threads=1)
    log = place / "server.log"
    with serving(lambda port: server.command("tiny", port), log=log, start_seconds=120) as url:
        yield url


def client(address):
    return OpenAIChat(model="tiny", base_url=f"{address}/v1", key_env=None, concurrency=4)


def session():
    return RankedBrowsing(page=3).open(WordBackend(DOCUMENTS), store_of(DOCUMENTS))


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


def test_a_forced_call_follows_the_schema_and_an_answer_the_grammar(run):
    for trajectory in run[0]:
        assert (trajectory.status, trajectory.reason) == ("out_of_turns", "turns"), trajectory
        assert len(trajectory.calls) >= TURNS
        for call in trajectory.calls:
            # What a tool itself may refuse: ids that exist nowhere, places past an end.
            assert call.error in ("", "unknown_search_id", "past_the_end"), call.output
        assert re.fullmatch(ANSWER, trajectory.messages[-1]["content"])
        assert trajectory.answer.exact in WORDS


def test_calls_reach_the_collection(run):
    calls = [call for trajectory in run[0] for call in trajectory.calls if not call.error]
    assert any(call.ranking for call in calls)
    assert any(trajectory.tiers.get("previewed") for trajectory in run[0])


def test_every_request_is_metered_and_the_prefix_is_reused(run):
    trajectories, ledger = run
    total = ledger.total
    assert (total.calls, total.failed) == (QUESTIONS * (TURNS + 1), 0)
    assert total.unmetered == 0
    assert total.replies_with_cached == total.calls
    for name in ("input_tokens", "cached_tokens", "output_tokens"):
        assert getattr(total, name) == sum(each.usage[name] for each in trajectories) > 0


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
