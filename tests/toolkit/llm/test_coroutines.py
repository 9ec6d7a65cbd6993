"""Coroutines run from plain code, also where an event loop runs already."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import pytest

from soundingline.toolkit.llm.blocking import run_coroutine

ROOT = Path(__file__).resolve().parents[3]
T = TypeVar("T")
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
def test_what_the_coroutine_raises_is_raised(call, kind):
    async def fail():
        await asyncio.sleep(0)
        raise kind("it broke")

    # The last two would stop the loop around it, so that they are caught inside.
    def caught():
        with pytest.raises(kind, match="it broke"):
            run_coroutine(fail())
        return 1

    assert call(caught) == 1


@everywhere
def test_a_cancelled_coroutine_is_an_interrupt(call):
    async def cancelled():
        raise asyncio.CancelledError

    def caught():
        with pytest.raises(KeyboardInterrupt):
            run_coroutine(cancelled())
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
    for _ in range(2):  # The second shows that the first one left nothing behind.
        lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        lines += [process.stdout.readline(), process.stdout.readline()]
    _, errors = process.communicate(timeout=60)
    assert lines == ["begun\n", "cleaned up\n", "interrupted 1\n"] * 2
    assert (process.returncode, errors) == (0, "")
