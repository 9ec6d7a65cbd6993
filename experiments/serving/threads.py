"""Work outside the event loop, and work that ends once it has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from soundingline.experiments.serving.errors import RequestRefused

T = TypeVar("T")
_MOST_PENDING = 2000  # pieces of work that run or wait


class _Piece(NamedTuple):
    """Work for a thread, and the future of an event loop that gets what it gives or raises."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]


class Threads:
    """As many threads as there may be searches at once. Every method belongs to the event loop.

    All are started here: starting one holds up the event loop, and with it every other request. A
    result goes straight to the loop's future; an executor's own one between them, with its lock,
    costs as much as the rest of handing work over.
    """

    def __init__(self, count: int) -> None:
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        self._threads = [
            Thread(target=_work, args=(self._pieces,), name=f"search_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        self._pending = 0
        self._free = asyncio.Semaphore(count)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, in a thread. A thread begins nothing new before the event
        loop has taken what it gave, so that no more results wait for the loop than there are
        threads."""
        if self._pending >= _MOST_PENDING:
            raise RequestRefused(503, "busy", "the server has too much to do. Try again later.")
        self._pending += 1
        try:
            async with self._free:
                loop = asyncio.get_running_loop()
                future: asyncio.Future[T] = loop.create_future()
                self._pieces.put(_Piece(loop, future, work))
                return await future
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
        while not self._pieces.empty():
            self._pieces.get()
        for _ in self._threads:
            self._pieces.put(None)
        for thread in self._threads:
            thread.join()


def _work(pieces: SimpleQueue[_Piece | None]) -> None:
    while (piece := pieces.get()) is not None:
        try:
            result = piece.work()
        except BaseException as error:
            piece.loop.call_soon_threadsafe(_settle, piece.future, None, error)
        else:
            piece.loop.call_soon_threadsafe(_settle, piece.future, result, None)
            del result
        del piece


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Nobody waits for a future that was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _consume(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more; asyncio complains of an error that nobody has seen."""
    if not task.cancelled():
        task.exception()
