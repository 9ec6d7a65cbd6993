"""A language model for code that is not asynchronous: the stages of a pipeline, and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from toolkit.errors import InputError
from toolkit.llm.accounts import ROLES
from toolkit.llm.errors import ModelError
from toolkit.llm.ledger import Ledger, LedgeredModel
from toolkit.llm.prices import UNKNOWN, Price
from toolkit.llm.protocol import ChatModel, Message, Settings, Turn

T = TypeVar("T")


def content_of(model: Any) -> str:
    """What a model's weights are where its name does not tell; empty where it does, or where the
    class of the model is somebody else's and has no such attribute."""
    return str(getattr(model, "content", ""))


def identity(model: Any) -> str:
    """A model's name, with the content of its weights where the name does not tell: for keys of
    what it replied."""
    content = content_of(model)
    return f"{model.name}@{content}" if content else str(model.name)


class BlockingModel:
    """Asked from any number of threads; all its requests run on one event loop, in a thread of its
    own.

    Made from what is known before a model runs: its `name`, `settings` and `price`, the `content`
    of its weights where the name does not tell, and the `role` that its requests have on the
    ledger. `start(model)`, or `with blocking.started(model):`, makes
    it ready; before, and after `close`, asking is a `RuntimeError`. It may be started again.
    """

    def __init__(
        self,
        name: str,
        *,
        role: str,
        settings: Settings | None = None,
        price: Price = UNKNOWN,
        content: str = "",
    ) -> None:
        if role not in ROLES:
            raise InputError(f"the ledger has no role {role!r}", valid=", ".join(ROLES))
        self.name = name
        self.content = content
        self.role = role
        self.settings = settings or Settings()
        self.price = price
        self._loop: _Loop | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"BlockingModel({self.name!r}, role={self.role!r})"

    def start(self, model: ChatModel, ledger: Ledger | None = None) -> None:
        """Requests go to `model` and are entered in `ledger` (None: a new one without caps)."""
        with self._lock:
            if self._loop:
                raise RuntimeError(f"{self!r} has been started already")
            self._loop = _Loop(model, Ledger() if ledger is None else ledger)

    def close(self) -> None:
        """Drop the requests under way (whoever waits for one gets a `RuntimeError`), close the
        model's connections and the loop, and end its thread. Nothing where it does not run."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop:
            loop.close()

    @contextmanager
    def started(self, model: ChatModel, ledger: Ledger | None = None) -> Iterator[BlockingModel]:
        """Started as long as the block, however that ends."""
        self.start(model, ledger)
        try:
            yield self
        finally:
            self.close()

    def respond(
        self, messages: Sequence[Message], settings: Settings | None = None, qid: str = ""
    ) -> Turn:
        """The reply; a `ModelError` where there is none. `settings` None: those it was made with.
        `qid` is the question on whose account it is."""
        (turn,) = self.respond_many([messages], [qid], settings)
        if isinstance(turn, ModelError):
            raise turn
        return turn

    def respond_many(
        self,
        requests: Sequence[Sequence[Message]],
        qids: Sequence[str] | None = None,
        settings: Settings | None = None,
        concurrency: int | None = None,
        arrived: Callable[[int, Turn], None] | None = None,
    ) -> list[Turn | ModelError]:
        """The reply to each request, or the `ModelError` in its place, in the order given; any
        other exception is raised and ends the others. `qids`: one a request. At most `concurrency`
        are under way (None: as many as the model itself allows).

        `arrived` is called with a request's position and its reply as soon as that is there, before
        the ledger has it, one call at a time, in the thread of the requests: it must be quick.
        """
        with self._lock:
            loop = self._loop
        if loop is None:
            raise RuntimeError(
                f"the language model {self.name!r} does not run: it can be asked only inside "
                "`with blocking.started(model):`"
            )
        accounts = [""] * len(requests) if qids is None else qids
        slots = asyncio.Semaphore(concurrency or max(1, len(requests)))

        async def one(position: int, messages: Sequence[Message], qid: str) -> Turn | ModelError:
            model = LedgeredModel(
                loop.model,
                loop.ledger,
                role=self.role,
                qid=qid,
                price=self.price,
                arrived=None if arrived is None else partial(arrived, position),
            )
            async with slots:
                try:
                    return await model.respond(messages, (), settings or self.settings)
                except ModelError as error:
                    return error

        pairs = list(zip(requests, accounts, strict=True))
        if not pairs:
            return []
        return loop.run(_all(one(position, *pair) for position, pair in enumerate(pairs)))


async def _all(coroutines: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results; the first exception ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _settle(outcome: Future[T], task: asyncio.Task[T]) -> None:
    """Hand a finished task's result or exception to whoever waits, if anybody still does."""
    if task.cancelled():
        outcome.cancel()
        return
    error = task.exception()
    if not outcome.set_running_or_notify_cancel():
        return
    if error:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


class _Loop:
    """A running event loop in a thread, with the model that is asked on it."""

    def __init__(self, model: ChatModel, ledger: Ledger) -> None:
        self.model = model
        self.ledger = ledger
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._closed = False
        self._failure: BaseException | None = None
        # A daemon: who forgets to close it can still leave Python.
        self._thread = threading.Thread(
            target=self._run, name=f"{model.name} requests", daemon=True
        )
        self._thread.start()
        self._ready.wait()
        if self._failure:
            raise self._failure

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result; it is cancelled where this thread is interrupted while it waits."""
        closed = RuntimeError(
            f"the language model {self.model.name!r} was closed before it replied"
        )
        # Not `asyncio.run_coroutine_threadsafe`: where this thread is interrupted before that has
        # returned, nobody has the future that would end the request.
        outcome: Future[T] = Future()
        try:
            with self._lock:
                if self._closed:
                    coroutine.close()
                    raise closed
                self._asyncio.call_soon_threadsafe(self._begin, coroutine, outcome)
            return outcome.result()
        except CancelledError:
            raise closed from None
        finally:
            outcome.cancel()

    def _begin(self, coroutine: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
        """A task of the loop, which ends when `outcome` is cancelled, and that gets its result."""
        task = self._asyncio.create_task(coroutine)
        task.add_done_callback(partial(_settle, outcome))

        def drop(outcome: Future[T]) -> None:
            if outcome.cancelled():
                self._asyncio.call_soon_threadsafe(task.cancel)

        outcome.add_done_callback(drop)

    def close(self) -> None:
        with self._lock:
            # What was handed in before stands before this in the loop's queue, so none is missed.
            self._closed = True
            self._asyncio.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            # It also ends the loop's own threads, which look up addresses.
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._asyncio = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._ready.set()
        await self._closing.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.model.close()
