"""Language models for threads, and coroutines run from plain code, even inside an event loop."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import ContextVar
from pathlib import Path

import pytest
from llm_clients import count_sockets
from support.assertions import refused
from support.llm_model import ScriptedModel, saying, used

from soundingline.toolkit.llm import SamplingParams, Turn
from soundingline.toolkit.llm.blocking import BlockingModel, run_coroutine
from soundingline.toolkit.llm.errors import OutOfMoney, ServerGone, Unreachable
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import user
from soundingline.toolkit.llm.openai import OpenAIChat
from soundingline.toolkit.llm.prices import Price

ROOT = Path(__file__).resolve().parents[3]


def asked(text):
    return [user(text)]


def echo(messages, settings):
    return saying(f"reply to {messages[-1]['content']}", usage=used(10, 1))


def blocking(**arguments):
    return BlockingModel("scripted", role="rewriter", **arguments)


def wait_for(reached):
    """Until it is true, or a minute has gone."""
    deadline = time.monotonic() + 60
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.001)


class Crowd(ScriptedModel):
    """Each reply takes a moment; `most` is how many were under way together."""

    def __init__(self, seconds=0.02):
        super().__init__(choose=echo)
        self.seconds, self.inside, self.most, self.cancelled = seconds, 0, 0, 0
        self.loops = set()

    async def respond(self, *arguments):
        self.loops.add(id(asyncio.get_running_loop()))
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.delay()
            return await super().respond(*arguments)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1

    async def delay(self):
        await asyncio.sleep(self.seconds)


class Assembly(Crowd):
    """Each reply comes when `size` requests are under way together."""

    def __init__(self, size):
        super().__init__()
        self.size, self.complete = size, asyncio.Event()

    async def delay(self):
        if self.inside == self.size:
            self.complete.set()
        await asyncio.wait_for(self.complete.wait(), 60)


def test_any_number_of_threads_ask_on_one_loop_together():
    model, ask = Assembly(16), blocking()
    with ask.started(model), ThreadPoolExecutor(16) as pool:
        turns = list(pool.map(lambda n: ask.respond(asked(str(n))), range(16)))
    assert [turn.text for turn in turns] == [f"reply to {n}" for n in range(16)]
    assert len(model.loops) == 1
    assert model.most == 16


def test_many_requests_are_under_way_together_and_replies_keep_the_order():
    model, ask = Crowd(), blocking()
    with ask.started(model):
        turns = ask.respond_many([asked(str(n)) for n in range(20)], [""] * 20)
        assert ask.respond_many([], []) == []
    assert [turn.text for turn in turns] == [f"reply to {n}" for n in range(20)]
    assert model.most == 20


def test_settings_are_those_it_was_made_with_unless_others_are_given():
    model, ask = ScriptedModel(choose=echo), blocking(settings=SamplingParams(seed=7))
    with ask.started(model):
        ask.respond(asked("a"))
        ask.respond(asked("b"), SamplingParams(seed=8))
    assert [request.settings.seed for request in model.requests] == [7, 8]


def test_requests_are_on_the_ledger_by_role_and_question_and_a_cap_stops_them():
    ledger = Ledger(cap=3 * 11 / 1e6)
    ask = blocking(price=Price(input=1.0, output=1.0))
    with ask.started(ScriptedModel(choose=echo), ledger):
        for qid in ("q1", "q2", "q2"):
            ask.respond_many([asked("a")], [qid])
        with pytest.raises(OutOfMoney):
            ask.respond(asked("d"))
    calls = {qid: ledger.by_role(qid)["rewriter"].calls for qid in ("q1", "q2")}
    assert calls == {"q1": 1, "q2": 2}
    assert ledger.total.dollars == pytest.approx(3 * 11 / 1e6)


def test_a_model_error_is_raised_for_one_request_and_stands_in_its_place_among_many():
    def choose(messages, settings):
        if messages[-1]["content"] == "bad":
            raise ServerGone("gone")
        return echo(messages, settings)

    ask = blocking()
    with ask.started(ScriptedModel(choose=choose)):
        with pytest.raises(ServerGone):
            ask.respond(asked("bad"))
        first, second = ask.respond_many([asked("bad"), asked("good")], ["q1", "q2"])
    assert isinstance(first, ServerGone)
    assert isinstance(second, Turn) and second.text == "reply to good"


def test_a_server_is_reached_before_the_first_request_and_none_is_sent_before():
    class Absent(ScriptedModel):
        checks, is_absent = 0, True

        def reach(self):
            self.checks += 1
            if self.is_absent:
                raise Unreachable("no connection")

    model, ask = Absent(choose=echo), blocking()
    with ask.started(model):
        errors = ask.respond_many([asked("a"), asked("b")], ["q1", "q2"])
        assert [type(error) for error in errors] == [Unreachable, Unreachable]
        assert (model.checks, model.requests) == (1, [])
        model.is_absent = False
        for text in ("a", "b"):
            assert ask.respond(asked(text)).text == f"reply to {text}"
    assert (model.checks, len(model.requests)) == (2, 2)


def test_a_defect_is_raised_and_ends_the_other_requests():
    class Broken(Crowd):
        async def respond(self, messages, *rest):
            if messages[-1]["content"] == "broken":
                raise ZeroDivisionError("a defect")
            return await super().respond(messages, *rest)

    model, ask = Broken(seconds=30), blocking()
    with ask.started(model):
        with pytest.raises(ZeroDivisionError):
            ask.respond_many([asked("slow"), asked("broken")], ["q1", "q2"])
        while model.inside:
            time.sleep(0.01)
    assert model.cancelled == 1


def test_before_it_is_started_there_is_no_thread_and_asking_tells_how():
    before = threading.active_count()
    ask = blocking(settings=SamplingParams(seed=3), price=Price(input=2.0, output=2.0))
    assert threading.active_count() <= before
    assert (ask.name, ask.settings.seed, ask.price.input) == ("scripted", 3, 2.0)
    with pytest.raises(RuntimeError, match=r"'scripted' does not run: .*blocking\.started"):
        ask.respond(asked("a"))


def test_after_the_block_nothing_is_left_and_it_may_be_started_again():
    model, ask = ScriptedModel(choose=echo), blocking()
    before = threading.active_count()
    for number, ends in enumerate((nullcontext(), pytest.raises(ZeroDivisionError)), start=1):
        with ends as raised, ask.started(model):
            ask.respond(asked("a"))
            if raised is not None:
                raise ZeroDivisionError
        assert threading.active_count() <= before
        assert model.closed == number
    with pytest.raises(RuntimeError, match="does not run"):
        ask.respond(asked("a"))


def test_starting_it_twice_is_refused():
    ask = blocking()
    with ask.started(ScriptedModel(choose=echo)):
        with pytest.raises(RuntimeError, match="started already"):
            ask.started(ScriptedModel(choose=echo)).__enter__()
        assert ask.respond(asked("a")).text == "reply to a"


def test_closing_wakes_who_waits_for_a_reply():
    model, ask = Crowd(seconds=60), blocking()
    with ThreadPoolExecutor(4) as pool:
        with ask.started(model):
            waiting = [pool.submit(ask.respond, asked(str(n))) for n in range(4)]
            while model.inside < 4:
                time.sleep(0.01)
        for future in waiting:
            with pytest.raises(RuntimeError, match="was closed before it replied"):
                future.result(timeout=5)
    assert (model.cancelled, model.closed) == (4, 1)


def test_closing_among_threads_that_ask_hangs_nobody():
    for _ in range(20):
        ask, model = blocking(), Crowd(seconds=0.0)

        def many(ask=ask):
            while True:
                ask.respond(asked("a"))

        with ThreadPoolExecutor(8) as pool:
            with ask.started(model):
                asking = [pool.submit(many) for _ in range(8)]
            for future in asking:
                with pytest.raises(RuntimeError, match=r"was closed before|does not run"):
                    future.result(timeout=5)


def test_a_request_that_meets_the_closing_is_refused_and_never_begun():
    model, ask = ScriptedModel(choose=echo), blocking()
    with ask.started(model):
        held = ask._loop
    ask._loop = held  # as a thread has it that looked just before
    with pytest.raises(RuntimeError, match="was closed before it replied"):
        ask.respond(asked("a"))
    assert model.requests == []


def test_an_interrupt_as_soon_as_a_request_is_handed_over_drops_it():
    model, ask = Crowd(seconds=60), blocking()
    with ask.started(model):
        loop = ask._loop
        assert loop
        hand_over = loop._asyncio.call_soon_threadsafe

        def interrupted(*arguments):
            first = not model.inside
            hand_over(*arguments)
            if first:
                # Ctrl-C while the model is asked already and the thread does not yet wait for it.
                wait_for(lambda: model.inside)
                raise KeyboardInterrupt

        loop._asyncio.call_soon_threadsafe = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            ask.respond(asked("a"))
        loop._asyncio.call_soon_threadsafe = hand_over  # type: ignore[method-assign]
        wait_for(lambda: model.cancelled)
        assert model.cancelled == 1
        model.seconds = 0.0
        assert ask.respond(asked("b")).text == "reply to b"


def test_an_error_of_the_models_own_closing_is_told():
    class Sticky(ScriptedModel):
        async def close(self):
            raise OSError("it sticks")

    ask, before = blocking(), threading.active_count()
    with pytest.raises(OSError, match="it sticks"), ask.started(Sticky(choose=echo)):
        pass
    assert threading.active_count() <= before


def test_a_role_that_is_missing_from_the_ledger_is_refused():
    refused(r"no role 'poet'\. valid: agent, rewriter, reranker", BlockingModel, "m", role="poet")


def test_connections_of_a_real_client_are_closed(peer):
    ask, before = blocking(), threading.active_count()
    sockets = count_sockets()
    with ask.started(OpenAIChat(model="m", base_url=peer.openai_url)):
        assert ask.respond(asked("hi")).text == "done"
        assert count_sockets() > sockets
    wait_for(lambda: threading.active_count() <= before)
    wait_for(lambda: count_sockets() <= sockets)  # the server's ends are of this process too
    assert count_sockets() <= sockets


def test_ctrl_c_while_it_waits_drops_the_request_and_leaves_the_rest_usable():
    program = f"""
import asyncio, signal, sys, threading
# A job that a shell started in the background inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from support.llm_model import ScriptedModel, saying
from soundingline.toolkit.llm.blocking import BlockingModel, run_coroutine
from soundingline.toolkit.llm.messages import user

dropped = threading.Event()

class Stalled(ScriptedModel):
    async def respond(self, *arguments):
        if dropped.is_set():
            return saying("again")
        print("asked", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            dropped.set()

model, ask = Stalled(), BlockingModel("m", role="rewriter")
with ask.started(model):
    try:
        ask.respond([user("a")])
    except KeyboardInterrupt:
        print("dropped", dropped.wait(60), model.closed, ask.respond([user("b")]).text)
print("closed", model.closed, threading.active_count())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (out, err) == ("dropped True 0 again\nclosed 1 1\n", "")


# Coroutines.

COUNTED = ContextVar("COUNTED", default=0)


def plainly(function):
    return function()


def inside_a_loop(function):
    """As a notebook calls it: from code that an event loop runs."""

    async def cell():
        return function()

    return asyncio.run(cell())


def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


everywhere = pytest.mark.parametrize("call", [plainly, inside_a_loop, in_a_thread])


async def doubled(number):
    await asyncio.sleep(0)
    return 2 * await asyncio.to_thread(int, number)


@everywhere
def test_the_result_comes_back_and_no_thread_stays(call):
    before = threading.active_count()
    assert call(lambda: run_coroutine(doubled(21))) == 42
    assert threading.active_count() <= before  # a thread of another test may have ended


def test_a_coroutine_may_run_another_one():
    async def outer():
        return run_coroutine(doubled(1)) + await doubled(2)

    assert inside_a_loop(lambda: run_coroutine(outer())) == 6


@everywhere
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("cancelled", [False, True])
def test_what_the_coroutine_raises_is_raised_and_a_cancelled_one_is_an_interrupt(
    call, kind, cancelled
):
    async def fail():
        await asyncio.sleep(0)
        raise asyncio.CancelledError if cancelled else kind("it broke")

    # The last two would stop the loop around it, so that they are caught inside.
    def caught():
        with pytest.raises(KeyboardInterrupt if cancelled else kind):
            run_coroutine(fail())
        return 1

    assert call(caught) == 1


@pytest.mark.parametrize("call", [plainly, inside_a_loop])
def test_the_coroutine_sees_the_context_of_its_caller(call):
    async def read():
        return COUNTED.get()

    def counted():
        COUNTED.set(7)
        return run_coroutine(read())

    assert call(counted) == 7


INTERRUPTED = """
import asyncio, signal, sys, threading
# A job that a shell started in the background inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from soundingline.toolkit.llm.blocking import interruptible, run_coroutine

async def work():
    with interruptible():
        print("begun", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            print("cleaned up", flush=True)

def cell():
    try:
        run_coroutine(work())
    except KeyboardInterrupt:
        print("interrupted", threading.active_count())

async def notebook():
    cell()
    cell()

if sys.argv[2] == "notebook":
    asyncio.run(notebook())
else:
    cell()
    cell()
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["script", "notebook"])
def test_ctrl_c_cancels_the_coroutine_and_waits_for_its_end(place):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(ROOT), place],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    lines = []
    for _ in range(2):  # The second shows that the first one left nothing.
        lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        lines += [process.stdout.readline(), process.stdout.readline()]
    _, errors = process.communicate(timeout=60)
    assert lines == ["begun\n", "cleaned up\n", "interrupted 1\n"] * 2
    assert (process.returncode, errors) == (0, "")
