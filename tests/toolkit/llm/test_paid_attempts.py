"""Every attempt that was paid for is on the ledger, none is sent that the caps do not allow, and
nothing is done between the last byte of a reply and the file that stores it.

A reply costs a dollar: its usage has one token of output.
"""

import asyncio
import json
import random
import re
import sqlite3
import threading
import time

import pytest
from llm_clients import ADAPTERS, client, using
from support.commands import forked
from support.llm_server import Cut, Fail, Raw, Say, messages_body
from support.needs import cases

from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.stage import Counts
from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import (
    BadReply,
    ModelError,
    OutOfMoney,
    ServerFailed,
    ServerGone,
)
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel, open_ledger
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

# Replies that cost a dollar, are of no use, and are sent again, by the client that gets them.
TEXTLESS_TOP = {"content": [{"token": "a", "top_logprobs": [{"token": "a", "logprob": ""}]}]}
ABORTED = {"text": "ye", "finish_reason": "abort"}
FAILED = {"code": "server_error", "message": "no"}
USELESS = {
    "chat, given up": (OpenAIChat, Say(text="ye", finish="abort", usage=COUNTS), ServerFailed),
    "chat, no choices": (OpenAIChat, raw(CHAT_USAGE, choices=[]), BadReply),
    "chat, no message": (OpenAIChat, raw(CHAT_USAGE, choices=[{}]), BadReply),
    "chat, malformed calls": (
        OpenAIChat,
        raw(CHAT_USAGE, choices=[{"message": {"tool_calls": [{"function": None}]}}]),
        BadReply,
    ),
    "chat, malformed log-probabilities": (
        OpenAIChat,
        raw(CHAT_USAGE, choices=[{"message": {"content": "yes"}, "logprobs": TEXTLESS_TOP}]),
        BadReply,
    ),
    "chat, cut JSON": (
        OpenAIChat,
        Raw(f'{{"usage": {json.dumps(CHAT_USAGE)}, "choices": [{{"mess'),
        BadReply,
    ),
    "chat, an error with a usage": (OpenAIChat, raw(CHAT_USAGE, error={"message": "no"}), BadReply),
    "completions, given up": (OpenAICompletions, raw(CHAT_USAGE, choices=[ABORTED]), ServerFailed),
    "completions, no choices": (OpenAICompletions, raw(CHAT_USAGE, choices=[]), BadReply),
    "responses, cancelled": (
        OpenAIResponses,
        Say(text="ye", finish="cancelled", usage=COUNTS),
        ServerFailed,
    ),
    "responses, failed": (
        OpenAIResponses,
        raw(RESPONSES_USAGE, status="failed", error=FAILED),
        ServerFailed,
    ),
    "responses, malformed output": (OpenAIResponses, raw(RESPONSES_USAGE, output=[None]), BadReply),
    "messages, a cut connection": (
        AnthropicMessages,
        Cut(Say(text="never whole " * 200, usage=COUNTS)),
        ServerGone,
    ),
    "messages, an early end": (AnthropicMessages, stream(OPENED), ServerGone),
    "messages, an error within": (
        AnthropicMessages,
        stream(f"{OPENED}{event(OVERLOADED)}"),
        ServerFailed,
    ),
    "messages, a misplaced event": (
        AnthropicMessages,
        stream(f"{OPENED}{event(MISPLACED)}"),
        BadReply,
    ),
    "messages, a malformed event": (
        AnthropicMessages,
        stream(f"{OPENED}event: content_block_delta\ndata: {{not json\n\n"),
        BadReply,
    ),
    "messages, a block without its text": (
        AnthropicMessages,
        stream(f"{OPENED}{event(TEXTLESS)}event: message_delta{CLOSING}"),
        BadReply,
    ),
}


def whole(adapter):
    """A reply that can be used, and costs a dollar."""
    if adapter is OpenAICompletions:
        return raw(CHAT_USAGE, choices=[{"text": "yes", "finish_reason": "stop"}])
    return Say(text="yes", usage=COUNTS)


def ask(peer, adapter, ledger, *, over=lambda model: model, store=None, **arguments):
    """The reply; `over` lays somebody's own model over the client, `store` receives each reply."""
    model = client(peer, adapter, **arguments)
    account = {"role": "agent", "qid": "q", "price": DOLLAR}
    metered = MeteredModel(over(model), ledger, **account, arrived=store)
    return using(model, lambda _: metered.respond([user("Who?")]))


def counts(ledger):
    total = ledger.total
    return total.calls, total.retries, total.failed, total.dollars


@pytest.mark.parametrize(("adapter", "step", "kind"), USELESS.values(), ids=USELESS.keys())
def test_each_of_six_useless_replies_is_entered_and_a_cap_stops_the_second(
    peer, adapter, step, kind
):
    peer.default = step
    lines = []
    ledger = Ledger(record=lambda role, qid, account: lines.append(account))
    with pytest.raises(kind):
        ask(peer, adapter, ledger)
    assert len(peer.requests) == len(lines) == 6
    assert [line.dollars for line in lines] == [1.0] * 6
    assert [line.calls for line in lines] == [1, 0, 0, 0, 0, 0]
    assert [line.retries for line in lines] == [0, 1, 1, 1, 1, 1]
    assert [line.failed for line in lines] == [0, 0, 0, 0, 0, 1]
    assert counts(ledger) == (1, 5, 1, 6.0)
    total = ledger.total
    assert (total.output_tokens, total.unmetered, total.unpriced) == (6, 0, 0)

    peer.requests.clear()
    capped = Ledger(cap=1.5)
    with pytest.raises(OutOfMoney, match=r"\$1\.0000 is spent"):
        ask(peer, adapter, capped)
    assert len(peer.requests) == 1
    assert counts(capped) == (1, 0, 1, 1.0)


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAICompletions])
def test_a_reply_after_useless_ones_is_one_call_that_cost_them_all(peer, adapter):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), Fail(500), whole(adapter)])
    ledger = Ledger(question_cap=2.5)
    turn = ask(peer, adapter, ledger)
    assert (turn.text, turn.attempts) == ("yes", 3)
    assert counts(ledger) == (1, 2, 0, 2.0)


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
    assert counts(ledger) == (1, 2, 0, 1.0) and ledger.total.unpriced == 0


def test_the_seconds_of_a_request_are_those_of_its_attempts_and_of_the_waits_between(peer):
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

    def __init__(self, model):
        self.name, self._model = model.name, model

    async def respond(self, messages, tools=(), settings=None):
        turn = await self._model.respond(messages, tools, settings)
        return Turn(text=turn.text.upper(), usage=turn.usage, attempts=turn.attempts)


def test_attempts_below_a_layer_of_somebody_elses_are_entered_and_its_own_reply_is_stored(peer):
    peer.script.extend([raw(CHAT_USAGE, choices=[]), whole(OpenAIChat)])
    ledger, stored = Ledger(), []
    assert ask(peer, OpenAIChat, ledger, over=Layer, store=stored.append).text == "YES"
    assert [turn.text for turn in stored] == ["YES"]
    assert counts(ledger) == (1, 1, 0, 2.0)


def test_a_reply_that_cannot_be_stored_is_paid_for_all_the_same(peer):
    peer.default = whole(OpenAIChat)
    ledger = Ledger()

    def full(turn):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        ask(peer, OpenAIChat, ledger, store=full)
    assert counts(ledger) == (1, 0, 0, 1.0)
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
DETAILS = {"cached_tokens": 3, "cache_write_tokens": 2}
USAGES = {
    OpenAIChat: {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "prompt_tokens_details": DETAILS,
        "completion_tokens_details": {"reasoning_tokens": 4},
    },
    OpenAICompletions: {"prompt_tokens": 11, "completion_tokens": 7},
    OpenAIResponses: {
        "input_tokens": 11,
        "output_tokens": 7,
        "input_tokens_details": {
            "cached_tokens": 3,
            "cache_write_tokens_details": {"ttl_12h_tokens": 1},
        },
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
_COUNT = re.compile(r'"(\w+)": \d+')
FIELDS = [
    (adapter, match.span(), match[1])
    for adapter, usage in USAGES.items()
    for match in _COUNT.finditer(json.dumps(usage))
]


@pytest.mark.parametrize("count", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize(("adapter", "place", "field"), FIELDS)
def test_an_impossible_count_makes_the_usage_unknown_and_closes_a_capped_ledger(
    adapter, place, field, count
):
    text = json.dumps(USAGES[adapter])
    usage = json.loads(f'{text[: place[0]]}"{field}": {count}{text[place[1] :]}')
    model = adapter(model="m", base_url="http://127.0.0.1:9")
    assert model._usage(usage) == Usage()
    ledger = Ledger(cap=100.0)
    with ledger.request("agent", "q", DOLLAR) as entry:
        entry.reply(Turn(usage=model._usage(usage)))
    assert (ledger.total.dollars, ledger.total.unpriced, ledger.total.unmetered) == (0.0, 1, 1)
    with pytest.raises(OutOfMoney, match="reported no usage"):
        ledger.request("agent", "q", DOLLAR).__enter__()


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

AT_ONCE = 16


@pytest.mark.parametrize("adapter", ADAPTERS.values())
def test_replies_that_have_come_are_stored_before_their_tasks_go_on(peer, adapter):
    released, rounds, stored_in = threading.Event(), 0, []

    def answer(request):
        released.wait(60)
        return whole(adapter)

    async def count_rounds():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def main():
        model, ledger = client(peer, adapter), Ledger()
        metered = MeteredModel(
            model, ledger, role="agent", qid="q", arrived=lambda turn: stored_in.append(rounds)
        )
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
    assert len(stored_in) == AT_ONCE and max(stored_in) - began <= 2


def test_one_request_is_prepared_in_a_round_of_the_loop():
    rounds, prepared_in = 0, []

    class Immediate(OpenAIChat):
        async def _send(self, client, body, timeout, reply, arrived):
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


def ask_until_killed(ready, url, place, at_once):
    """Asks for replies to prompts, and keeps them below the folder `place`."""
    model = BlockingModel("m", role="rewriter")
    llm = CachedLLM(name="replies", parts=[], is_empty=lambda text: not text, counts=Counts())
    client = llm.of(model, place)
    api = OpenAIChat(model="m", base_url=url, concurrency=at_once)
    with open_ledger(place / "ledger.jsonl") as ledger, model.started(api, ledger):
        ready()
        for first in range(0, 100_000, 600):
            client.replies({f"prompt {number}": "q" for number in range(first, first + 600)})


def test_kill_9_loses_few_of_the_replies_that_had_come(tmp_path, peer):
    kills, at_once, moments = cases(20, few=2), 30, random.Random(7)
    lost = []
    for kill in range(kills):
        place = tmp_path / str(kill)
        place.mkdir()
        peer.reset()
        peer.default = answer_at_once(served := [])
        process = forked(ask_until_killed, peer.openai_url, place, at_once)
        until = time.monotonic() + 120
        while len(served) < 5 * at_once and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.join(30)
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
