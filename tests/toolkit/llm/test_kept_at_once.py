"""Between the last byte of a reply and the file that keeps it, no other work is done."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from effort import cases
from scripted_peer import Raw, Say, running_peer

from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import user
from soundingline.toolkit.llm.openai_chat import OpenAIChat, OpenAICompletions
from soundingline.toolkit.llm.openai_responses import OpenAIResponses

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE = 16


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    return server


@pytest.mark.parametrize(
    "adapter", [OpenAIChat, OpenAICompletions, OpenAIResponses, AnthropicMessages]
)
def test_replies_that_have_come_are_kept_before_their_tasks_go_on(peer, adapter):
    released, rounds, kept_in = threading.Event(), 0, list[int]()
    completion = Raw(json.dumps({"choices": [{"text": "yes", "finish_reason": "stop"}]}))

    def answer(request):
        released.wait(60)
        return completion if adapter is OpenAICompletions else Say(text="yes")

    async def count_rounds():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def main():
        url = peer.anthropic_url if adapter is AnthropicMessages else peer.openai_url
        model, ledger = adapter(model="m", base_url=url), Ledger()

        def kept(turn):
            kept_in.append(rounds)

        metered = MeteredModel(model, ledger, role="agent", qid="q", arrived=kept)
        asking = [asyncio.create_task(metered.respond([user("Who?")])) for _ in range(AT_ONCE)]
        while len(peer.requests) < AT_ONCE:
            await asyncio.sleep(0.01)
        counting = asyncio.create_task(count_rounds())
        await asyncio.sleep(0.1)
        released.set()
        time.sleep(0.5)  # All replies come while the loop does nothing else.
        began = rounds
        await asyncio.gather(*asking)
        counting.cancel()
        await model.close()
        return began

    peer.default = answer
    began = asyncio.run(main())
    # In one round of the loop the sockets are read, in the next one the tasks wake.
    assert len(kept_in) == AT_ONCE and max(kept_in) - began <= 2


def test_one_request_is_prepared_in_a_round_of_the_loop():
    rounds, prepared_in = 0, list[int]()

    class Immediate(OpenAIChat):
        async def _send(
            self,
            client,
            body,
            timeout,
            reply,
            arrived,
        ):
            prepared_in.append(rounds)
            arrived(b'{"choices": [{"message": {"content": "yes"}}]}')

    async def main():
        nonlocal rounds
        model = Immediate(model="m", base_url="http://127.0.0.1:9/v1")
        asking = [asyncio.create_task(model.respond([user("Who?")])) for _ in range(AT_ONCE)]
        while not all(task.done() for task in asking):
            rounds += 1
            await asyncio.sleep(0)
        assert [task.result().text for task in asking] == ["yes"] * AT_ONCE
        await model.close()

    asyncio.run(main())
    assert len(set(prepared_in)) == AT_ONCE


# Asks for replies to prompts until it is killed, and keeps them in `argv[2]`.
CLIENT = """
import sys
from pathlib import Path
from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.counts import Counts
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import open_ledger
from soundingline.toolkit.llm.openai_chat import OpenAIChat

url, place, at_once = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
model = BlockingModel("m", role="rewriter")
llm = CachedLLM(name="replies", parts=[], is_empty=lambda text: not text, counts=Counts())
client = llm.of(model, place)
api = OpenAIChat(model="m", base_url=url, concurrency=at_once)
with open_ledger(place / "ledger.jsonl") as ledger, model.started(api, ledger):
    for first in range(0, 100_000, 600):
        client.replies({f"prompt {number}": "q" for number in range(first, first + 600)})
"""


def test_kill_9_loses_few_of_the_replies_that_had_come(tmp_path, peer):
    kills, at_once, moments = cases(20, few=2), 30, random.Random(7)
    lost = []
    for kill in range(kills):
        place = tmp_path / str(kill)
        place.mkdir()
        peer.reset()
        peer.default = answer_at_once(served := list[str]())
        arguments = [peer.openai_url, str(place), str(at_once)]
        with subprocess.Popen([sys.executable, "-c", CLIENT, *arguments], cwd=ROOT) as process:
            until = time.monotonic() + 120
            while len(served) < 5 * at_once and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.1))
            process.kill()
        replied = list(served)
        (cache,) = place.glob("replies-*.sqlite")
        with sqlite3.connect(cache) as connection:
            kept = {json.loads(text)["text"] for (text,) in connection.execute(QUERY)}
        paid = (place / "ledger.jsonl").read_text().count("\n") - 1
        assert kept <= set(replied) and 0 <= len(kept) - paid <= 1
        lost.append(len(set(replied) - kept))
    # Before replies were kept at once, half of those in flight were lost on the average.
    assert sum(lost) / kills <= at_once / 3


QUERY = "SELECT value FROM results"


def answer_at_once(served):
    """Answers a prompt with itself, and notes it."""

    def answer(request):
        if not request.body:  # The client was killed behind the head of its request.
            return Say()
        prompt = request.body["messages"][0]["content"]
        served.append(prompt)
        return Say(text=prompt)

    return answer
