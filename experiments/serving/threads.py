"""Work outside the event loop, and work that ends once it has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

from experiments.serving.errors import RequestRefused

T = TypeVar("T")
_MOST_PENDING = 2000  # pieces of work that run or wait


class Threads:
    """As many threads as there may be searches at once. Every method belongs to the event loop.

    All are started here: starting one holds up the event loop, and with it every other request.
    """

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "search")
        all_started = Barrier(count + 1)
        for _ in range(count):
            self._pool.submit(all_started.wait)
        all_started.wait()
        self._pending = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, in a thread."""
        if self._pending >= _MOST_PENDING:
            raise RequestRefused(503, "busy", "the server has too much to do. Try again later.")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._pending -= 1

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Let work end that has begun, also where its client has gone: its session must not be used
        by two calls at a time, and an answer must not be lost."""
        task = self.task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_consume)
            raise

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work that `close` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for what has begun; what waits for a thread is dropped."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=True, cancel_futures=True)


def _consume(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more; asyncio complains of an error that nobody has seen."""
    if not task.cancelled():
        task.exception()
