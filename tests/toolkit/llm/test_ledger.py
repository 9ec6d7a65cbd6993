"""Money: prices, caps, counts under many threads, and the file of a run's ledger."""

import asyncio
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.assertions import refused
from support.commands import forked
from support.llm_model import ScriptedModel
from support.llm_server import Fail, Say
from support.runs import starts

from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.llm.errors import (
    LedgerFailed,
    ModelError,
    OutOfMoney,
    ServerGone,
    Truncated,
)
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel, last_cap, open_ledger
from soundingline.toolkit.llm.messages import Turn, Usage, user
from soundingline.toolkit.llm.openai import OpenAIChat
from soundingline.toolkit.llm.prices import (
    UNKNOWN,
    Price,
    UsageTotals,
    estimate,
    reprice,
)
from soundingline.toolkit.trajectory import known_usage, readable_usage

GPT = Price(
    input=5.0,
    cached_input=0.5,
    output=30.0,
    long_context={"above": 272_000, "input": 10.0, "cached_input": 1.0, "output": 45.0},
)
DOLLAR = Price(input=0.0, output=1_000_000.0)  # An output token costs a dollar.


def spent(tokens, **more):
    return Turn(text="x", usage=Usage(input=0, output=tokens, **more))


def spend(ledger, turn, role="agent", qid="q", price=DOLLAR):
    """A reply, or the number of dollars that it costs, on the ledger; None: one without usage."""
    with ledger.request(role, qid, price) as entry:
        entry.reply(spent(turn) if isinstance(turn, int) else turn or Turn(text="x"))


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Usage(input=1_000_000, output=0), 10.0),  # Above the long-context mark.
        (Usage(input=200_000, output=1_000), 1.0 + 0.03),
        (Usage(input=200_000, cached=180_000, output=1_000), 0.1 + 0.09 + 0.03),
        (Usage(input=272_000, output=0), 1.36),
        (Usage(input=300_000, cached=300_000, output=1_000), 0.3 + 0.045),
        (Usage(input=10, output=100, reasoning=90), 50e-6 + 3e-3),
        (Usage(input=0, output=0), 0.0),
    ],
)
def test_a_request_costs_what_the_table_says(usage, dollars):
    assert GPT.cost(usage) == pytest.approx(dollars, rel=1e-12)


@pytest.mark.parametrize(
    ("rates", "usage", "dollars"),
    [
        (
            {"cached_input": 0.5, "cache_write": 6.25},
            {"cached": 600, "cache_write": 300},
            100 * 5 + 600 * 0.5 + 300 * 6.25,
        ),
        ({}, {"cached": 900}, 1_000 * 5),
        ({}, {"cache_write": 300}, 700 * 5 + 300 * 2 * 5),  # the highest price that is published
        (
            {"cache_write": 6.25, "cache_write_long": 10.0},
            {"cache_write": 700, "cache_write_long": 200},
            300 * 5 + 500 * 6.25 + 200 * 10,
        ),
    ],
)
def test_tokens_of_a_cache_have_their_own_price_or_that_of_others(rates, usage, dollars):
    price = Price(input=5.0, output=25.0, **rates)
    assert price.cost(Usage(input=1_000, output=0, **usage)) == pytest.approx(dollars / 1e6)


# Dollars for a million tokens written to a cache, for each dollar of input: for five minutes and
# an hour (Anthropic), for thirty minutes (OpenAI, from GPT-5.6 on), and nothing above the input.
PUBLISHED_WRITES = [(1.25, 2.0), (1.25, 1.25), (1.0, 1.0)]


@given(
    rate=st.floats(0.01, 100),
    fresh=st.integers(0, 10**6),
    cached=st.integers(0, 10**6),
    short=st.integers(0, 10**6),
    long=st.integers(0, 10**6),
    published=st.sampled_from(PUBLISHED_WRITES),
    short_is_known=st.booleans(),
    above=st.sampled_from([None, 0, 10**6]),
)
def test_a_cost_is_never_too_little_if_the_price_of_cache_writes_is_unknown(
    rate, fresh, cached, short, long, published, short_is_known, above
):
    cache_write = {"cache_write": rate * published[0]} if short_is_known else {}
    table = None if above is None else {"above": above, "input": rate, "output": 0.0, **cache_write}
    price = Price(input=rate, output=0.0, long_context=table, **cache_write)
    usage = Usage(
        input=fresh + cached + short + long,
        cached=cached,
        cache_write=short + long,
        cache_write_long=long,
        output=0,
    )
    billed = rate * (fresh + 0.1 * cached + short * published[0] + long * published[1]) / 1e6
    cost = price.cost(usage)
    assert cost is not None and cost >= billed * (1 - 1e-9)


@pytest.mark.parametrize(
    ("price", "usage"),
    [
        (UNKNOWN, Usage(input=1, output=1)),
        (Price(input=1.0), Usage(input=1, output=1)),
        (GPT, Usage()),
        (GPT, Usage(input=5)),
    ],
)
def test_an_unknown_cost_is_none_and_not_zero(price, usage):
    assert price.cost(usage) is None


@pytest.mark.parametrize(
    ("message", "make", "wrong"),
    [
        ("price input=-1.0", Price, {"input": -1.0}),
        ("price output=nan", Price, {"output": float("nan")}),
        ("price input=inf", Price, {"input": float("inf")}),
        ("price input=10", Price, {"input": 10**400}),
        ("long_context has above", Price, {"long_context": {"above": 1}}),
        (
            "long_context has above, input, output, outputs",
            Price,
            {"long_context": {"above": 1, "input": 1.0, "output": 1.0, "outputs": 2.0}},
        ),
        ("cap=0.0", Ledger, {"cap": 0.0}),
        ("question_cap=-1.0", Ledger, {"question_cap": -1.0}),
        ("cap=nan", Ledger, {"cap": float("nan")}),
        ("0 values are given for 3", estimate, {"values": [], "questions": 3}),
        ("2 values are given for 1", estimate, {"values": [1.0, 2.0], "questions": 1}),
    ],
)
def test_impossible_prices_caps_and_estimates_are_refused(message, make, wrong):
    refused(message, make, **wrong)


def test_the_ledger_sums_by_question_and_role():
    clock = iter(range(100))
    ledger = Ledger(clock=lambda: float(next(clock)))
    for role, qid, tokens in (("agent", "q1", 3), ("agent", "q1", 4), ("judge", "q2", 5)):
        spend(ledger, spent(tokens, cached=0, reasoning=1), role, qid)
    counted = {"replies_with_cached": 2, "replies_with_reasoning": 2}
    tokens = {"reasoning_tokens": 2, "output_tokens": 7}
    agent = UsageTotals(calls=2, **tokens, seconds=2.0, dollars=7.0, **counted)
    assert ledger.by_role("q1") == {"agent": agent}
    assert set(ledger.by_role()) == {"agent", "judge"}
    assert (ledger.total.dollars, ledger.total.calls) == (12.0, 3)
    usage = ledger.usage("q1")
    assert usage["dollars"] == usage["agent_dollars"] == 7.0
    assert usage["agent_output_tokens"] == 7
    assert ledger.usage("never asked") == {}


def test_what_is_unknown_is_left_out_of_the_flat_numbers():
    ledger = Ledger()
    spend(ledger, 3, price=UNKNOWN)
    spend(ledger, 2, "judge")
    usage = ledger.usage("q")
    assert usage["judge_dollars"] == 2.0 and usage["output_tokens"] == 5
    assert "dollars" not in usage and "agent_dollars" not in usage
    assert (usage["unpriced"], usage["agent_unpriced"]) == (1, 1)
    spend(ledger, Turn(text="x"), qid="without usage")
    usage = ledger.usage("without usage")
    assert usage["unreported"] == 1
    assert not any(name.endswith("_tokens") for name in usage)


def test_what_no_reply_reports_is_unknown_and_what_one_reports_is_a_sum():
    ledger = Ledger()
    spend(ledger, Turn(usage=Usage(input=100, output=1)), "judge")
    assert ledger.total.cached_share is None
    assert not {"cached_tokens", "reasoning_tokens"} & set(ledger.usage("q"))
    spend(ledger, Turn(usage=Usage(input=300, cached=200, reasoning=0, output=1)))
    assert ledger.total.cached_share == 0.5
    usage = ledger.usage("q")
    assert (usage["cached_tokens"], usage["reasoning_tokens"]) == (200, 0)
    assert "judge_cached_tokens" not in usage and usage["judge_input_tokens"] == 100


IMPOSSIBLE = [-3.2, -1, 10**400, float("nan"), float("inf"), True, "3", None, [3]]


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_an_impossible_number_in_a_file_is_unknown_and_not_zero(value):
    usage = readable_usage({"calls": 2, "dollars": value, "judge_calls": 0})
    assert usage == {"calls": 2, "judge_calls": 0, "unreported": 1}
    assert known_usage(usage, "dollars") is None and known_usage(usage, "calls") == 2
    # Also where it is the only number of a role, or of a question.
    assert known_usage(readable_usage({"agent_dollars": value}), "agent_dollars") is None
    assert known_usage(readable_usage({"dollars": value}), "dollars") is None
    refused("usage: dollars is", parse, UsageTotals, {"calls": 1, "dollars": value}, where="usage")


def test_an_account_in_a_file_is_read_as_it_was_written():
    account = UsageTotals(calls=3, retries=1, output_tokens=7, dollars=0.5)
    assert parse(UsageTotals, account.nonzero(), where="usage") == account
    refused("usage: euros is 2", parse, UsageTotals, {"calls": 1, "euros": 2}, where="usage")


def test_failures_are_counted_and_what_they_cost_is_kept():
    ledger = Ledger()
    with pytest.raises(ServerGone), ledger.request("agent", "q", DOLLAR) as entry:
        entry.again(ServerGone("no"))
        entry.again(ServerGone("no"))
        raise ServerGone("no")
    with pytest.raises(Truncated), ledger.request("agent", "q", DOLLAR):
        raise Truncated("half", turn=spent(4))
    with pytest.raises(ZeroDivisionError), ledger.request("agent", "q", DOLLAR):
        raise ZeroDivisionError
    total = ledger.total
    assert (total.calls, total.failed, total.retries) == (3, 3, 2)
    assert (total.dollars, total.output_tokens, total.unpriced) == (4.0, 4, 0)


def test_seconds_leave_out_the_wait_for_a_place_in_flight():
    clock = iter([0.0, 10.0, 20.0, 25.0])
    ledger = Ledger(clock=lambda: next(clock))
    with ledger.request("agent", "q1") as entry:
        entry.waited(7.0)
        entry.reply(Turn())
    assert ledger.by_role()["agent"].seconds == 3.0
    with pytest.raises(ServerGone), ledger.request("agent", "q1") as entry:
        entry.waited(4.0)
        raise ServerGone("gone")
    assert ledger.by_role()["agent"].seconds == 3.0 + 1.0


class Queue:
    """One concurrency slot at a server that replies when `replied` is set."""

    def __init__(self, peer):
        self.ledger, self.replied = Ledger(), threading.Event()
        self.model = OpenAIChat(model="m", base_url=peer.openai_url, concurrency=1)

    def answer(self, request):
        self.replied.wait(60)
        return Say(text="yes")

    def ask(self, qid):
        model = MeteredModel(self.model, self.ledger, role="reranker", qid=qid)
        return asyncio.ensure_future(model.respond([user("?")]))

    def seconds(self, qid):
        return self.ledger.by_role(qid)["reranker"].seconds


@pytest.mark.parametrize("fails", [False, True])
def test_requests_that_take_turns_have_no_seconds_of_waiting(peer, fails):
    queue = Queue(peer)

    def answer(request):
        time.sleep(0.1)
        return Fail(400) if fails else Say(text="yes")

    async def ask_all():
        requests = [queue.ask(str(number)) for number in range(4)]
        replies = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(reply, ModelError) == fails for reply in replies)
        await queue.model.close()

    peer.default = answer
    began = time.monotonic()
    asyncio.run(ask_all())
    passed = time.monotonic() - began
    # The end of one overlaps with the next one's start; with their waits they would take 2.5 times
    # what passes.
    assert 4 * 0.1 <= queue.ledger.total.seconds <= 1.5 * passed


def test_a_cancelled_request_has_its_seconds_in_flight_and_none_of_waiting(peer):
    queue = Queue(peer)

    async def cancel_both():
        first, second = queue.ask("first"), queue.ask("second")
        await asyncio.sleep(0.5)
        second.cancel()
        queue.replied.set()
        assert (await first).text == "yes"
        with pytest.raises(asyncio.CancelledError):
            await second
        # The slot that the second never had is free.
        queue.replied.clear()
        third = queue.ask("third")
        while len(peer.requests) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        queue.replied.set()
        await queue.model.close()

    peer.default = queue.answer
    asyncio.run(cancel_both())
    assert queue.seconds("second") < 0.25 < 0.5 <= queue.seconds("first")
    assert queue.seconds("third") >= 0.3
    second = queue.ledger.by_role("second")["reranker"]
    assert (second.calls, second.failed) == (1, 1)


# What has been spent, by role and question, and the next request: let through, or refused by a cap.
CAPS = {
    "the run": (
        {"cap": 10.0},
        [("agent", "q1", 3), ("agent", "q2", 3), ("agent", "q3", 3)],
        [("agent", "q4", "run")],
    ),
    "the question": (
        {"question_cap": 3.0},
        [("agent", "q1", 2), ("reranker", "q1", 2)],
        [("agent", "q1", "question"), ("rewriter", "q1", "question"), ("agent", "q2", "")],
    ),
    "not its judge": ({"question_cap": 3.0}, [("agent", "q1", 4)], [("judge", "q1", "")]),
    "no question": (
        {"cap": 10.0, "question_cap": 3.0},
        [("reranker", "", 3)] * 3,
        [("reranker", "", "run")],
    ),
    "all is spent": (
        {"cap": 5.0, "earlier": {"judge": UsageTotals(dollars=5.0)}},
        [],
        [("agent", "q", "run")],
    ),
    "as an earlier start": (
        {
            "cap": 10.0,
            "earlier": {"agent": UsageTotals(dollars=7.5)},
            "highest_cost": {"agent": 3.0},
        },
        [],
        [("agent", "q", "run"), ("judge", "q", "")],
    ),
    "as much as the most expensive": (
        {
            "cap": 10.0,
            "earlier": {"agent": UsageTotals(dollars=4.0, unreported=2, unpriced=2)},
            "highest_cost": {"agent": 3.0},
        },
        [],
        [("agent", "q", "run"), ("judge", "q", "run")],
    ),
    "less than the cap": (
        {
            "cap": 10.5,
            "earlier": {"agent": UsageTotals(dollars=1.0, unreported=2, unpriced=2)},
            "highest_cost": {"agent": 3.0},
        },
        [],
        [("agent", "q", ""), ("judge", "q", "")],
    ),
    "no reply with usage": (
        {"cap": 1000.0, "earlier": {"agent": UsageTotals(unreported=2, unpriced=2)}},
        [],
        [("agent", "q", "run"), ("judge", "q", "")],
    ),
    "no reply with usage, for a question": (
        {"question_cap": 1000.0, "earlier": {"agent": UsageTotals(unreported=2, unpriced=2)}},
        [],
        [("agent", "q", "run"), ("judge", "q", "")],
    ),
    "of an unknown price": (
        {"cap": 10.0, "earlier": {"agent": UsageTotals(unpriced=2)}},
        [],
        [("agent", "q", "")],
    ),
}


@pytest.mark.parametrize(("caps", "replies", "requests"), CAPS.values(), ids=CAPS.keys())
def test_a_cap_refuses_the_request_that_could_exceed_it(caps, replies, requests):
    ledger = Ledger(**caps)
    for role, qid, dollars in replies:
        spend(ledger, dollars, role, qid)
    for role, qid, scope in requests:
        if scope:
            with pytest.raises(OutOfMoney) as raised:
                ledger.request(role, qid, DOLLAR).__enter__()
            assert raised.value.scope == scope
        else:
            spend(ledger, 1, role, qid)
    assert ledger.total.dollars == sum(d for *_, d in replies) + sum(not s for *_, s in requests)


def test_a_refusal_says_what_is_spent_and_expected():
    ledger = Ledger(cap=10.0)
    spend(ledger, 4)
    with ledger.request("agent", "q", DOLLAR) as first:
        told = r"cap is \$10\.0000: \$4\.0000 is spent, \$4\.0000 is under way.*take \$4\.0000"
        with pytest.raises(OutOfMoney, match=told):
            ledger.request("agent", "r", DOLLAR).__enter__()
        first.reply(spent(1))
    spend(ledger, 1, qid="r")
    assert ledger.total.dollars == 6.0


def test_a_request_that_cannot_be_put_on_record_is_the_last():
    def full(role, qid, account):
        raise OSError(28, "No space left on device")

    ledger = Ledger(record=full)
    with pytest.raises(LedgerFailed, match="No space left"):
        spend(ledger, 3)
    assert ledger.total.dollars == 3.0
    with pytest.raises(LedgerFailed, match="No space left"):
        ledger.request("agent", "q", DOLLAR).__enter__()


def test_a_cap_needs_a_price_and_usage():
    refused("price", Ledger(cap=1.0).request("agent", "q", UNKNOWN).__enter__)
    ledger = Ledger(cap=1.0)
    spend(ledger, Turn(text="x"))
    with pytest.raises(OutOfMoney, match="no usage"):
        ledger.request("agent", "q", DOLLAR).__enter__()


def test_an_unknown_role_is_refused():
    refused("rewriter", Ledger().request("cook", "q").__enter__)


def test_no_count_is_lost_between_threads():
    ledger = Ledger()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: spend(ledger, 1, qid=f"q{number % 3}"), range(1600)))
    assert (ledger.total.calls, ledger.total.dollars) == (1600, 1600.0)


def test_a_metered_model_never_exceeds_its_cap_by_more_than_what_began_unknown():
    ledger = Ledger(cap=50.0)

    async def question(number):
        scripted = ScriptedModel(choose=lambda messages, settings: spent(1))
        model = MeteredModel(scripted, ledger, role="agent", qid=f"q{number}", price=DOLLAR)
        for _ in range(20):
            await model.respond([user("?")])

    async def main():
        return await asyncio.gather(*map(question, range(8)), return_exceptions=True)

    ends = asyncio.run(main())
    assert all(isinstance(end, OutOfMoney) for end in ends)
    assert ledger.total.dollars == 50.0


@pytest.mark.parametrize(
    ("values", "questions", "expected"),
    [
        ([2.0, 2.0, 2.0], 10, (20.0, 20.0, 20.0)),
        # Mean 2, deviation 1, t(2 degrees, 97.5 %) = 4.302653: 6 + 7 * 2, and 4.302653 *
        # sqrt(49 / 3 + 7); not below what is spent.
        ([1.0, 2.0, 3.0], 10, (20.0, 6.0, 40.7838)),
        ([3.0], 4, (12.0, None, None)),
    ],
)
def test_an_estimate_by_hand(values, questions, expected):
    assert estimate(values, questions) == pytest.approx(expected, abs=1e-3)


def test_an_estimate_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(5)
    costs = generator.normal(100.0, 20.0, size=(2000, 60))
    covered = 0
    for row in costs:
        result = estimate(row[:8].tolist(), 60)
        assert result.low is not None and result.high is not None
        covered += result.low <= row.sum() <= result.high
    assert 0.935 <= covered / 2000 <= 0.965


def test_what_a_question_spent_before_counts_towards_its_cap_and_not_the_runs():
    ledger = Ledger(cap=1.0, question_cap=0.5, earlier={"agent": UsageTotals(dollars=0.4)})
    ledger.add_prior_usage("q", {"librarian": UsageTotals(calls=3, input_tokens=7, dollars=0.5)})
    usage = ledger.usage("q")
    assert usage["librarian_calls"] == 3 and usage["dollars"] == pytest.approx(0.5)
    assert ledger.total.dollars == 0
    with pytest.raises(OutOfMoney), ledger.request("librarian", "q", DOLLAR):
        raise AssertionError("it was let through")
    with ledger.request("librarian", "another", DOLLAR):
        pass


def test_a_finished_question_is_priced_by_another_list():
    # 1,000,000 input tokens, of which 800,000 cached, and 10,000 output tokens.
    usage = {
        "calls": 4, "agent_calls": 3, "agent_input_tokens": 1_000_000,
        "agent_cached_tokens": 800_000, "agent_output_tokens": 10_000,
        "rewriter_calls": 1, "rewriter_dollars": 0.5,
    }  # fmt: skip
    paper = {"input": 0.14, "cached_input": 0.028, "output": 0.28}
    today = Price(input=0.30, cached_input=0.006, output=1.20, lists={"2026-05": paper})
    tables = {"agent": (today, today.listed("2026-05"))}
    by_hand = 0.2 * 0.14 + 0.8 * 0.028 + 0.01 * 0.28
    repriced = reprice(usage, tables)
    assert repriced["agent_dollars"] == pytest.approx(by_hand)
    assert repriced["dollars"] == pytest.approx(by_hand + 0.5)
    # What was billed beyond the counted tokens, such as writes to a cache, stays in proportion.
    billed = 0.2 * 0.30 + 0.8 * 0.006 + 0.01 * 1.20
    twice = reprice({**usage, "agent_dollars": 2 * billed}, tables)
    assert twice["agent_dollars"] == pytest.approx(2 * by_hand)
    unknown = reprice({**usage, "dollars": 1.0}, {"agent": (today, UNKNOWN)})
    assert "agent_dollars" not in unknown and "dollars" not in unknown
    assert reprice({"dollars": 1.0}, {}) == {"dollars": 1.0}


def test_a_price_list_is_named_by_its_month():
    price = Price(
        input=1.0, output=2.0, dated="2026-11-21", lists={"2026-05": {"input": 3.0, "output": 4.0}}
    )
    assert price.listed("2026-05") == Price(input=3.0, output=4.0, dated="2026-05")
    assert price.listed("2026-11") is price and UNKNOWN.listed("2026-05") is UNKNOWN
    refused(r"list 2025-01\. valid: 2026-05, 2026-11-21", price.listed, "2025-01")


# The file of a run's ledger: starts, their attempts, and what must never be overwritten.


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def rows(path):
    return starts(path.parent)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_without_requests_leaves_no_file(path):
    with open_ledger(path, cap=1.0):
        pass
    assert list(path.parent.iterdir()) == []


def test_a_request_is_on_disk_as_soon_as_it_has_ended(path):
    with open_ledger(path, cap=9.0) as ledger:
        spend(ledger, 3, qid="q1")
        assert lines(path)[0]["cap"] == 9.0
        assert lines(path)[1]["dollars"] == 3.0 and lines(path)[1]["qid"] == "q1"
        with pytest.raises(ServerGone), ledger.request("agent", "q2", DOLLAR):
            raise ServerGone("gone")
        assert lines(path)[2]["failed"] == 1
        with pytest.raises(Truncated), ledger.request("judge", "q3", DOLLAR):
            raise Truncated("cut", turn=Turn(usage=Usage(input=0, output=2)))
        assert lines(path)[3]["dollars"] == 2.0 and lines(path)[3]["failed"] == 1
    (row,) = rows(path)
    assert (row["calls"], row["failed"], row["dollars"]) == (3, 2, 5.0)
    assert row["known_dollars"] == {"agent": 3.0, "judge": 2.0}


def test_what_earlier_starts_have_spent_counts_towards_the_cap(path):
    for dollars in (1, 3):
        with open_ledger(path) as ledger:
            spend(ledger, dollars)
    with open_ledger(path, cap=7.0) as ledger:
        assert ledger.spent_before == 4.0
        spend(ledger, 3)
        with pytest.raises(OutOfMoney):
            spend(ledger, 1)
    assert [row["dollars"] for row in rows(path)] == [1.0, 3.0, 3.0]


def test_one_reply_without_usage_does_not_make_the_known_money_forgotten(path):
    with open_ledger(path) as ledger:
        spend(ledger, 4)
        spend(ledger, None)
    (row,) = rows(path)
    # All of it is not known, and what is known is told apart.
    assert "dollars" not in row and row["unpriced"] == 1
    assert row["known_dollars"] == {"agent": 4.0}
    with open_ledger(path, cap=5.0) as ledger:
        assert (ledger.spent_before, ledger.unpriced_before) == (4.0, 1)
        with pytest.raises(OutOfMoney):
            spend(ledger, 1)


@pytest.mark.parametrize("caps", [{"cap": 1000.0}, {"question_cap": 1000.0}])
def test_replies_without_usage_are_paid_once_and_not_at_every_start(path, caps):
    for requests in (1, 0, 0):
        sent = 0
        with open_ledger(path, **caps) as ledger, pytest.raises(OutOfMoney, match="no usage"):
            for _ in range(3):
                spend(ledger, None)
                sent += 1
        assert (sent, ledger.unpriced) == (requests, 1)
    with open_ledger(path) as ledger:  # Without a cap, the run goes on.
        spend(ledger, None)


def test_the_most_expensive_request_of_an_earlier_start_is_expected_again(path):
    with open_ledger(path) as ledger:
        spend(ledger, 1)
        spend(ledger, 4)
        spend(ledger, 2, role="judge")
    with open_ledger(path, cap=10.5) as ledger:
        spend(ledger, 1, role="judge")  # 7 dollars are spent, and one more may take 2.
        with pytest.raises(OutOfMoney, match=r"\$8\.0000 is spent.*may take \$4\.0000"):
            spend(ledger, 1)


def test_the_newest_starts_cap_is_told(path):
    assert last_cap(path) is None
    for cap in (9.0, None, 7.0):
        with open_ledger(path, cap=cap) as ledger:
            spend(ledger, 1)
        assert last_cap(path) == cap


# Killed processes.


def spend_until_killed(ready, path, told):
    with open_ledger(path, cap=100_000.0) as ledger:
        while True:
            spend(ledger, 2)
            os.write(told, b".")
            ready()


def test_kill_9_loses_no_request_that_had_ended(path):
    told, telling = os.pipe()
    process = forked(spend_until_killed, path, telling)
    os.close(telling)
    while path.read_bytes().count(b"\n") < 50:
        time.sleep(0.001)
    process.kill()
    process.join(30)
    with os.fdopen(told, "rb") as stream:
        count = len(stream.read())
    with open_ledger(path, cap=100_000.0) as ledger:
        # One more may have ended that the process could not tell of any more.
        assert count >= 48 and 2 * count <= ledger.spent_before <= 2 * (count + 1)
        spend(ledger, 1)
    assert [row["calls"] for row in rows(path)] == [ledger.spent_before / 2, 1]


def killed(path, *amounts):
    """The lines of a start that has spent the amounts and was killed."""
    with open_ledger(path) as ledger:
        for amount in amounts:
            spend(ledger, amount)
        content = path.read_bytes()
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("cut", [1, 10, 50])
def test_a_line_cut_short_by_kill_9_costs_no_whole_one(path, capsys, cut):
    content = killed(path, 3, None, 4, 5)
    path.write_bytes(content[:-cut])
    with open_ledger(path, cap=8.0) as ledger:
        assert (ledger.spent_before, ledger.unpriced_before) == (7.0, 1)
    rest = content[:-cut].rpartition(b"\n")[2]
    assert path.with_name("ledger.jsonl.damaged-1").read_bytes() == rest
    assert capsys.readouterr().err.count("\n") == 1


# Damaged files.

DAMAGED = {
    "a number": "3",
    "a list": "[]",
    "nothing in it": "{}",
    "a cap as text": '{"started": "2026-01-01T00:00:00+00:00", "cap": "5"}',
    "a negative cap": '{"started": "2026-01-01T00:00:00+00:00", "cap": -5}',
    "no time": '{"cap": 3}',
    "a time that is a number": '{"started": 3, "cap": null}',
    "a file of an unknown form": '{"starts": []}',
    "an attempt before any start": '{"role": "agent", "qid": "q", "calls": 1}',
    "no text at all": b"\xff\xfe\x00\n",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_ledger_stops_the_run_and_stays_as_it_is(path, content):
    data = content if isinstance(content, bytes) else content.encode() + b"\n"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"ledger\.jsonl") as raised, open_ledger(path):
        pass
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == data
    assert [item.name for item in path.parent.iterdir()] == ["ledger.jsonl"]


@pytest.mark.parametrize(
    "line",
    [
        '{"role":"agent","qid":"q","calls":1,"dollars":"3"}',
        '{"role":"agent","qid":"q","calls":1,"dollars":-3}',
        '{"role":"cook","qid":"q","calls":1}',
        '{"role":"agent","calls":1}',
        '{"role":"agent","qid":"q","calls":1,"euros":3}',
        '{"role":"agent","qid":"q","calls":true}',
        '{"role":"agent","qid":"q","calls":1,"dollars":NaN}',
        f'{{"role":"agent","qid":"q","calls":1,"dollars":1{"0" * 400}}}',
        "\x00\x00\x00",
        '{"role":"agent","qid":',
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_damaged_lines_stop_the_run_and_stay_as_they_are(path, line, place):
    content = killed(path, 3, 4).decode().splitlines()
    content.insert({"first": 0, "middle": 2, "last": 3}[place], line)
    path.write_text("\n".join(content) + "\n")
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"ledger\.jsonl.*line"), open_ledger(path):
        pass
    assert path.read_bytes() == before


def test_a_ledger_that_may_not_be_read_stops_the_run(path):
    path.mkdir()
    told = pytest.raises(InputError, match=r"cannot read the ledger.*ledger\.jsonl")
    with told, open_ledger(path):
        pass
