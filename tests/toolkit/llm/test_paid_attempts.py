"""Every attempt that was paid for is on the ledger, none is sent that the caps do not allow, and
nothing is done between the last byte of a reply and the file that stores it.

A reply costs a dollar: its usage has one token of output.
"""

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
from llm_clients import Waits, client, using
from support.llm_server import Cut, Fail, Raw, Say, messages_body
from support.needs import cases

from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import ModelError, OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import Turn, Usage, user
from soundingline.toolkit.llm.openai_chat import OpenAIChat, OpenAICompletions
from soundingline.toolkit.llm.openai_responses import OpenAIResponses
from soundingline.toolkit.llm.prices import Price

pytestmark = pytest.mark.slow

DOLLAR = Price(input=0.0, output=1_000_000.0)
COUNTS = {"input": 100, "cached": 0, "reasoning": 0, "output": 1}
CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 1}
RESPONSES_USAGE = {"input_tokens": 100, "output_tokens": 1}


def raw(usage=None, **fields):
    return Raw(json.dumps({**fields, **({"usage": usage} if usage else {})}))


def stream(text):
    return Raw(text, "text/event-stream")


def event(fields):
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n"


WHOLE_STREAM = messages_body(Say(text="yes", usage=COUNTS), "m")
OPENED, CLOSING = (
    WHOLE_STREAM.partition("event: content_block_start")[0],
    WHOLE_STREAM.partition("event: message_delta")[2],
)
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TEXTLESS = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
MISPLACED = {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta"}}

# Replies that cost a dollar, are of no use, and are tried again, by the client that gets them.
USELESS = {
    "chat, given up": (OpenAIChat, Say(text="ye", finish="abort", usage=COUNTS)),
    "chat, failed": (OpenAIChat, Say(finish="error", usage=COUNTS)),
    "chat, no choices": (OpenAIChat, raw(CHAT_USAGE, choices=[])),
    "chat, no message": (OpenAIChat, raw(CHAT_USAGE, choices=[{}])),
    "chat, malformed calls": (
        OpenAIChat,
        raw(CHAT_USAGE, choices=[{"message": {"tool_calls": [{"function": None}]}}]),
    ),
    "chat, malformed log-probabilities": (
        OpenAIChat,
        raw(
            CHAT_USAGE,
            choices=[
                {
                    "message": {"content": "yes"},
                    "logprobs": {
                        "content": [{"token": "a", "top_logprobs": [{"token": "a", "logprob": ""}]}]
                    },
                }
            ],
        ),
    ),
    "chat, cut JSON": (
        OpenAIChat,
        Raw(f'{{"usage": {json.dumps(CHAT_USAGE)}, "choices": [{{"mess'),
    ),
    "chat, an error with a usage": (OpenAIChat, raw(CHAT_USAGE, error={"message": "no"})),
    "completions, given up": (
        OpenAICompletions,
        raw(CHAT_USAGE, choices=[{"text": "ye", "finish_reason": "abort"}]),
    ),
    "completions, no choices": (OpenAICompletions, raw(CHAT_USAGE, choices=[])),
    "responses, cancelled": (OpenAIResponses, Say(text="ye", finish="cancelled", usage=COUNTS)),
    "responses, failed": (
        OpenAIResponses,
        raw(RESPONSES_USAGE, status="failed", error={"code": "server_error", "message": "no"}),
    ),
    "responses, malformed output": (OpenAIResponses, raw(RESPONSES_USAGE, output=[None])),
    "messages, a cut connection": (
        AnthropicMessages,
        Cut(Say(text="never whole " * 200, usage=COUNTS)),
    ),
    "messages, an early end": (AnthropicMessages, stream(OPENED)),
    "messages, an error within": (
        AnthropicMessages,
        stream(f"{OPENED}{event(OVERLOADED)}"),
    ),
    "messages, a misplaced event": (
        AnthropicMessages,
        stream(f"{OPENED}{event(MISPLACED)}"),
    ),
    "messages, a malformed event": (
        AnthropicMessages,
        stream(f"{OPENED}event: content_block_delta\ndata: {{not json\n\n"),
    ),
    "messages, a block without its text": (
        AnthropicMessages,
        stream(f"{OPENED}{event(TEXTLESS)}event: message_delta{CLOSING}"),
    ),
}


def whole(adapter):
    """A reply that can be used, and costs a dollar."""
    if adapter is OpenAICompletions:
        return raw(CHAT_USAGE, choices=[{"text": "yes", "finish_reason": "stop"}])
    return Say(text="yes", usage=COUNTS)


def ask(peer, adapter, ledger, price=DOLLAR, **arguments):
    model = client(peer, adapter, **arguments)
    metered = MeteredModel(model, ledger, role="agent", qid="q", price=price)
    return using(model, lambda _: metered.respond([user("Who?")]))


@pytest.mark.parametrize(("adapter", "step"), USELESS.values(), ids=USELESS.keys())
def test_each_of_six_useless_replies_is_entered_and_a_cap_stops_the_second(peer, adapter, step):
    peer.default = step
    lines = []
    ledger = Ledger(record=lambda role, qid, account: lines.append(account))
    with pytest.raises(ModelError):
        ask(peer, adapter, ledger)
    assert len(peer.requests) == len(lines) == 6
    assert [line.dollars for line in lines] == [1.0] * 6
    assert [line.calls for line in lines] == [1, 0, 0, 0, 0, 0]
    assert [line.retries for line in lines] == [0, 1, 1, 1, 1, 1]
    assert [line.failed for line in lines] == [0, 0, 0, 0, 0, 1]
    total = ledger.total
    assert (total.calls, total.retries, total.failed, total.dollars) == (1, 5, 1, 6.0)
    assert (total.output_tokens, total.unmetered, total.unpriced) == (6, 0, 0)

    peer.requests.clear()
    capped = Ledger(cap=1.5)
    with pytest.raises(OutOfMoney, match=r"\$1\.0000 is spent"):
        ask(peer, adapter, capped)
    assert len(peer.requests) == 1
    total = capped.total
    assert (total.calls, total.retries, total.failed, total.dollars) == (1, 0, 1, 1.0)


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAICompletions])
def test_a_reply_after_useless_ones_is_one_call_that_cost_them_all(peer, adapter):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), Fail(500), whole(adapter)])
    ledger = Ledger(question_cap=2.5)
    turn = ask(peer, adapter, ledger)
    assert (turn.text, turn.attempts) == ("yes", 3)
    total = ledger.total
    assert (total.calls, total.retries, total.failed, total.dollars) == (1, 2, 0, 2.0)


@pytest.mark.parametrize(
    ("adapter", "step"),
    [
        (OpenAIChat, raw(choices=[])),
        (OpenAIChat, Raw('{"choices": [{"message": {"content": "y')),
        (OpenAIChat, Raw('{"usage": {"prompt_tokens": ' + "1" * 5000 + "}}")),
        (OpenAICompletions, raw({"prompt_tokens": 5}, choices=[])),
        (OpenAIResponses, raw(output=[None])),
        (
            AnthropicMessages,
            stream(
                WHOLE_STREAM.replace('"output_tokens": 1', '"output_tokens": -1').replace(
                    "end_turn", "abort"
                )
            ),
        ),
    ],
)
def test_a_useless_reply_of_unknown_usage_closes_a_capped_ledger_before_it_is_tried_again(
    peer, adapter, step
):
    peer.default = step
    ledger = Ledger(cap=1000.0)
    with pytest.raises(OutOfMoney, match="reported no usage for 1 replies"):
        ask(peer, adapter, ledger)
    assert len(peer.requests) == 1
    assert ledger.total.unpriced == ledger.total.unmetered == 1
    free = Ledger()
    with pytest.raises(ModelError):
        ask(peer, adapter, free, attempts=3)
    assert free.total.unpriced == 3 and "dollars" not in free.usage("q")


@pytest.mark.parametrize(
    ("adapter", "step"),
    [
        (OpenAIChat, Fail(500)),
        (OpenAIChat, Raw("<html>bad gateway</html>")),
        (OpenAIChat, Cut()),
        (OpenAIChat, raw(error={"message": "overloaded"})),
        (OpenAIResponses, raw(status="failed", error={"code": "server_error"}, usage=None)),
        (AnthropicMessages, stream(event(OVERLOADED))),
    ],
)
def test_attempts_that_brought_no_reply_have_no_price_and_no_cap_stops_them(peer, adapter, step):
    peer.script.extend([step, step])
    peer.default = whole(adapter)
    ledger = Ledger(cap=1.5)
    assert ask(peer, adapter, ledger).attempts == 3
    total = ledger.total
    assert (total.calls, total.retries, total.failed, total.unpriced) == (1, 2, 0, 0)
    assert total.dollars == 1.0


def test_the_seconds_of_a_request_are_those_of_its_attempts_and_of_the_waits_between(
    peer,
):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), whole(OpenAIChat)])
    lines = []
    ledger = Ledger(record=lambda role, qid, account: lines.append(account))

    async def wait(seconds):
        await asyncio.sleep(0.5)

    ask(peer, OpenAIChat, ledger, sleep=wait)
    first, second = lines
    assert first.seconds < 0.5 <= second.seconds
    assert ledger.total.seconds == pytest.approx(first.seconds + second.seconds)


class Layer:
    """Somebody's own layer on a client: it knows nothing of ledgers, and changes the reply."""

    def __init__(self, model: LanguageModel) -> None:
        self.name = model.name
        self._model = model

    def ready(self):
        self._model.ready()

    async def respond(
        self,
        messages,
        tools=(),
        settings=None,
    ):
        turn = await self._model.respond(messages, tools, settings)
        return Turn(text=turn.text.upper(), usage=turn.usage, attempts=turn.attempts)

    async def close(self):
        await self._model.close()


def test_attempts_below_a_layer_of_somebody_elses_are_entered_and_its_own_reply_is_kept(
    peer,
):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), whole(OpenAIChat)])
    ledger, kept = Ledger(), list[str]()

    async def main():
        layer = Layer(OpenAIChat(model="m", base_url=peer.openai_url, sleep=Waits()))
        metered = MeteredModel(
            layer,
            ledger,
            role="agent",
            qid="q",
            price=DOLLAR,
            arrived=lambda turn: kept.append(turn.text),
        )
        try:
            return await metered.respond([user("Who?")])
        finally:
            await layer.close()

    assert asyncio.run(main()).text == "YES" and kept == ["YES"]
    total = ledger.total
    assert (total.calls, total.retries, total.failed, total.dollars) == (1, 1, 0, 2.0)


def test_a_reply_that_cannot_be_kept_is_paid_for_all_the_same(peer):
    peer.default = whole(OpenAIChat)
    ledger = Ledger()

    def full(turn):
        raise OSError(28, "No space left on device")

    async def main():
        model = OpenAIChat(model="m", base_url=peer.openai_url)
        metered = MeteredModel(model, ledger, role="agent", qid="q", price=DOLLAR, arrived=full)
        try:
            await metered.respond([user("Who?")])
        finally:
            await model.close()

    with pytest.raises(OSError, match="No space left"):
        asyncio.run(main())
    assert (ledger.total.calls, ledger.total.dollars) == (1, 1.0)
    assert len(peer.requests) == 1


# Counts that no request can have, as they stand in a reply.
IMPOSSIBLE = {
    "negative": "-5",
    "beyond all floats": "1" + "0" * 400,
    "above a billion": "1000000001",
    "true": "true",
    "a float": "7.0",
    "text": '"7"',
    "not a number": "NaN",
    "infinite": "Infinity",
    "a list": "[7]",
}
FIELDS = [
    *((OpenAIChat, name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")),
    *((OpenAIChat, name) for name in ("reasoning_tokens", "cache_write_tokens")),
    *((OpenAICompletions, name) for name in ("prompt_tokens", "completion_tokens")),
    *((OpenAIResponses, name) for name in ("input_tokens", "output_tokens", "cached_tokens")),
    *((OpenAIResponses, name) for name in ("reasoning_tokens", "ttl_12h_tokens")),
    *((AnthropicMessages, name) for name in ("input_tokens", "cache_read_input_tokens")),
    *((AnthropicMessages, name) for name in ("cache_creation_input_tokens", "thinking_tokens")),
]


@pytest.mark.parametrize("count", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize(("adapter", "field"), FIELDS)
def test_an_impossible_count_makes_the_usage_unknown_and_closes_a_capped_ledger(
    adapter, field, count
):
    reply = json.loads(f'{{"usage": {usage_with(adapter, field, count)}}}')
    model = adapter(model="m", base_url="http://127.0.0.1:9")
    assert model._usage(reply["usage"]) == Usage()
    ledger = Ledger(cap=100.0)
    with ledger.request("agent", "q", DOLLAR) as entry:
        entry.reply(Turn(usage=model._usage(reply["usage"])))
    assert (ledger.total.dollars, ledger.total.unpriced, ledger.total.unmetered) == (0.0, 1, 1)
    with pytest.raises(OutOfMoney, match="reported no usage"):
        ledger.request("agent", "q", DOLLAR).__enter__()


def usage_with(adapter, field, count):
    """The usage that a server sends, as text, with one count replaced."""
    details = {"cached_tokens": 3, "cache_write_tokens": 2}
    lifetimes = {"cache_write_tokens_details": {"ttl_12h_tokens": 1}}
    usage = {
        OpenAIChat: {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "prompt_tokens_details": details,
            "completion_tokens_details": {"reasoning_tokens": 4},
        },
        OpenAICompletions: {"prompt_tokens": 11, "completion_tokens": 7},
        OpenAIResponses: {
            "input_tokens": 11,
            "output_tokens": 7,
            "input_tokens_details": {**details, **lifetimes},
            "output_tokens_details": {"reasoning_tokens": 4},
        },
        AnthropicMessages: {
            "input_tokens": 11,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 2,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 4},
        },
    }
    text = json.dumps(usage[adapter])
    before, _, after = text.partition(f'"{field}": ')
    assert after, f"{field} is in no usage of {adapter.__name__}"
    return f'{before}"{field}": {count}{after.lstrip("0123456789")}'


WITH_COUNT = {
    OpenAIChat: '{"choices": [{"message": {"content": "yes"}}], "usage": '
    '{"prompt_tokens": 100, "completion_tokens": COUNT}}',
    OpenAICompletions: '{"choices": [{"text": "yes"}], "usage": '
    '{"prompt_tokens": 100, "completion_tokens": COUNT}}',
    OpenAIResponses: '{"output": [{"type": "message", "content": [{"type": "output_text", '
    '"text": "yes"}]}], "usage": {"input_tokens": 100, "output_tokens": COUNT}}',
    AnthropicMessages: WHOLE_STREAM.replace('"output_tokens": 1,', '"output_tokens": COUNT,'),
}


@pytest.mark.parametrize(("adapter", "body"), WITH_COUNT.items())
def test_a_reply_with_an_impossible_count_comes_and_its_money_is_unknown(peer, adapter, body):
    kind = "text/event-stream" if adapter is AnthropicMessages else "application/json"
    for count in ("-5", "1" + "0" * 400):
        peer.script.append(Raw(body.replace("COUNT", count), kind))
        ledger = Ledger()
        assert ask(peer, adapter, ledger).text == "yes"
        usage = ledger.usage("q")
        assert usage["unpriced"] == usage["unmetered"] == 1
        assert not {"dollars", "output_tokens"} & set(usage)


@pytest.mark.parametrize("count", [-1, 10**9 + 1, 10**400, True, 1.0, float("nan"), "1", [1]])
def test_a_usage_of_somebody_elses_client_is_known_only_where_it_is_possible(count):
    assert Usage(input=5, output=count) == Usage() == Usage(input=5, cached=count, output=1)
    assert Usage(input=0, output=10**9).output == 10**9


# Replies are stored as soon as they have arrived.

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE = 16


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
        model, ledger = client(peer, adapter), Ledger()

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
