"""Work outside the event loop: what comes back, what is dropped, and what ends; and what the first
page of results still loads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TypeVar

import pytest

from soundingline.experiments.serve.sessions import Threads

ROOT = Path(__file__).resolve().parents[3]
T = TypeVar("T")


def finished(work):
    """What `work` gives; fails where it hangs."""
    return asyncio.run(asyncio.wait_for(work, 30))


def test_what_work_gives_or_raises_comes_back_from_another_thread():
    async def check():
        threads = Threads(2)
        assert await threads.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        assert await threads.run(lambda: "the thread goes on") == "the thread goes on"
        await threads.close()

    finished(check())


def test_as_many_pieces_run_at_once_as_there_are_threads():
    async def check():
        threads = Threads(3)
        together = threading.Barrier(3, timeout=10)
        ranks = await asyncio.gather(*(threads.run(together.wait) for _ in range(3)))
        assert sorted(ranks) == [0, 1, 2]
        await threads.close()

    finished(check())


def test_no_more_results_wait_for_the_event_loop_than_there_are_threads():
    done = []

    async def check():
        threads = Threads(2)
        work = [threads.run(lambda number=number: done.append(number)) for number in range(6)]
        tasks = [asyncio.ensure_future(each) for each in work]
        await asyncio.sleep(0)
        time.sleep(0.3)  # The loop does nothing meanwhile, as while it writes a large reply.
        assert len(done) == 2
        await asyncio.gather(*tasks)
        assert sorted(done) == list(range(6))
        await threads.close()

    finished(check())


def test_the_end_waits_for_what_runs_and_drops_what_waits():
    events = []
    begun, free = threading.Event(), threading.Event()

    def first():
        begun.set()
        free.wait(10)
        events.append("first")

    async def check():
        before = threading.active_count()
        threads = Threads(1)
        running = asyncio.create_task(threads.run(first))
        waiting = asyncio.create_task(threads.run(lambda: events.append("second")))
        await asyncio.sleep(0)
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        threading.Timer(0.1, free.set).start()
        await threads.close()
        assert events == ["first"]
        await running
        assert threading.active_count() <= before + 1  # the timer may still end

    finished(check())
    assert events == ["first"]


def test_work_that_has_begun_ends_where_nobody_waits_for_it_any_more():
    begun, free = threading.Event(), threading.Event()
    ended = []

    async def work(threads):
        await threads.run(lambda: (begun.set(), free.wait(10)))
        ended.append("done")

    async def check():
        threads = Threads(1)
        client = asyncio.create_task(threads.complete(work(threads)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        free.set()
        await threads.close()
        assert ended == ["done"]

    finished(check())


def test_work_that_ends_after_its_client_has_gone_complains_of_nothing():
    complaints = []
    begun, free = threading.Event(), threading.Event()

    async def check():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        threads = Threads(1)
        client = asyncio.create_task(threads.run(lambda: (begun.set(), free.wait(10))))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        client.cancel()
        free.set()
        assert await threads.run(lambda: "later") == "later"
        await threads.close()

    finished(check())
    assert complaints == []


FIRST_EXCERPT = """
import gc, sys
from soundingline.experiments.serve.server import prepared_process
from soundingline.toolkit.search.snippets import (QueryTerms, best_window)
with prepared_process():
    before = len(gc.get_objects())
    best_window(QueryTerms("mill"), "the mill on the river " * 50, 100)
    sys.exit(len(gc.get_objects()) - before > 1000)
"""


def test_the_first_excerpt_leaves_nothing_that_garbage_collection_would_walk():
    """Importing and loading compiled code makes some hundred thousand objects."""
    process = subprocess.run([sys.executable, "-c", FIRST_EXCERPT], cwd=ROOT, check=False)
    assert process.returncode == 0
