"""Coroutines and language models for code that is not asynchronous: commands, the stages of a
pipeline, threads and notebooks."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import ChatModel, Message, SamplingParams, Turn
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.trajectory import ROLES

T = TypeVar("T")


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, as from `asyncio.run`, even if an event loop already runs in this
    thread. `KeyboardInterrupt` if the coroutine was cancelled.

    A notebook executes its cells inside an event loop, which waits until the cell ends. There the
    coroutine runs on an event loop in a new thread, with the context variables of this thread.
    Ctrl-C cancels it, and this function waits for its end; a second Ctrl-C is raised at once.
    """
    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(coroutine)
        return _run_on_thread(coroutine)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _run_on_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    interrupted: Future[None] = Future()

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task

        def cancel(_: Future[None]) -> None:
            with suppress(RuntimeError):  # The loop has ended already.
                loop.call_soon_threadsafe(task.cancel)

        interrupted.add_done_callback(cancel)
        return await coroutine

    threads = ThreadPoolExecutor(1, "event loop")
    with _calling_on_interrupt(interrupted.cancel), threads as pool:
        return pool.submit(copy_context().run, asyncio.run, cancellable()).result()


@contextmanager
def _calling_on_interrupt(function: Callable[[], Any]) -> Iterator[None]:
    """The first Ctrl-C calls `function`, further ones raise `KeyboardInterrupt`. An exception at
    the first one could come while a thread is being started, which nobody would wait for then. Only
    the main thread receives signals; if they are ignored, they stay so."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        function()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside a coroutine: Ctrl-C cancels the current task. Before Python 3.11 it would raise
    `KeyboardInterrupt` at any point of any task. No effect outside the main thread, which alone
    receives signals."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, lambda: task and task.cancel())
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)


def identity(model: Any) -> str:
    """A model's name, with the fingerprint of its weights if it has one because the name does not
    identify them. It is part of the keys under which replies are cached."""
    weights = getattr(model, "weights_fingerprint", "")
    return f"{model.name}@{weights}" if weights else str(model.name)


class BlockingModel:
    """A language model for code without coroutines. All its requests run on one event loop in a
    separate thread; any number of threads may call it.

    It is created before the model is running. `with blocking.started(model):` makes it ready;
    before and after the block, a request raises `RuntimeError`. It may be started again.

    Args:
        name: The name of the model.
        role: The role of its requests on the ledger.
        settings: How to sample. None: the choice of the server.
        price: What the tokens cost.
        weights_fingerprint: The fingerprint of the weights if the name does not identify them.
    """

    def __init__(
        self,
        name: str,
        *,
        role: str,
        settings: SamplingParams | None = None,
        price: Price = UNKNOWN,
        weights_fingerprint: str = "",
    ) -> None:
        if role not in ROLES:
            raise InputError(f"the ledger has no role {role!r}", valid=", ".join(ROLES))
        self.name = name
        self.weights_fingerprint = weights_fingerprint
        self.role = role
        self.settings = settings or SamplingParams()
        self.price = price
        self.run = ""  # the id of the run that it was started for
        self._loop: _Loop | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"BlockingModel({self.name!r}, role={self.role!r})"

    @contextmanager
    def started(
        self, model: ChatModel, ledger: Ledger | None = None, run: str = ""
    ) -> Iterator[BlockingModel]:
        """Send requests to `model` while the block runs, and record them on `ledger` (None: a new
        one without caps) for the run with the id `run`, which caches note beside sampled replies.

        The end of the block drops the requests under way (whoever waits for one gets a
        `RuntimeError`), closes the model's connections and the loop, and ends its thread."""
        with self._lock:
            if self._loop:
                raise RuntimeError(f"{self!r} has been started already")
            loop = self._loop = _Loop(model, Ledger() if ledger is None else ledger)
            self.run = run
        try:
            yield self
        finally:
            self._loop = None
            loop.close()

    def respond(self, messages: Sequence[Message], settings: SamplingParams | None = None) -> Turn:
        """The reply to one transcript, which belongs to no question; `ModelError` if there is none.
        `settings` say how to sample. None: the settings of this object."""
        (turn,) = self.respond_many([messages], [""], settings)
        if isinstance(turn, ModelError):
            raise turn
        return turn

    def respond_many(
        self,
        requests: Sequence[Sequence[Message]],
        qids: Sequence[str],
        settings: SamplingParams | None = None,
        arrived: Callable[[int, Turn], None] | None = None,
    ) -> list[Turn | ModelError]:
        """The reply to each request in their order, or the `ModelError` in its place. Any other
        exception is raised and ends the other requests.

        Args:
            requests: The transcripts.
            qids: The question that each request belongs to.
            settings: How to sample. None: the settings of this object.
            arrived: Called with the position of a request and its reply as soon as that has
                arrived, before it is on the ledger. One call at a time, in the thread of the
                requests: it must be quick.
        """
        if (loop := self._loop) is None:
            raise RuntimeError(
                f"the language model {self.name!r} does not run: it can be used only inside "
                "`with blocking.started(model):`"
            )

        async def respond_one(
            position: int, messages: Sequence[Message], qid: str
        ) -> Turn | ModelError:
            model = MeteredModel(
                loop.model,
                loop.ledger,
                role=self.role,
                qid=qid,
                price=self.price,
                arrived=None if arrived is None else partial(arrived, position),
            )
            try:
                return await model.respond(messages, (), settings or self.settings)
            except ModelError as error:
                return error

        async def respond_all() -> list[Turn | ModelError]:
            """The outcomes; the first exception ends the others."""
            tasks = [asyncio.ensure_future(respond_one(n, *pair)) for n, pair in enumerate(pairs)]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

        pairs = list(zip(requests, qids, strict=True))
        if not pairs:
            return []
        try:
            loop.reach()
        except ModelError as error:
            return [error] * len(pairs)
        return loop.run(respond_all())


def _settle(outcome: Future[T], task: asyncio.Task[T]) -> None:
    """Pass the result or exception of a task that is done to whoever waits for it."""
    if task.cancelled():
        outcome.cancel()
    elif outcome.set_running_or_notify_cancel():
        if error := task.exception():
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())


class _Loop:
    """A running event loop in a thread, with the model that is called on it."""

    def __init__(self, model: ChatModel, ledger: Ledger) -> None:
        self.model = model
        self.ledger = ledger
        self._lock = threading.Lock()
        self._reaching, self._reached = threading.Lock(), False
        self._ready = threading.Event()
        self._closed = False
        self._failure: BaseException | None = None
        # A daemon: a program that forgets to close it must still end.
        self._thread = threading.Thread(
            target=self._run, name=f"{model.name} requests", daemon=True
        )
        self._thread.start()
        self._ready.wait()
        if self._failure:
            raise self._failure

    def reach(self) -> None:
        """Check before the first request whether the model's server can be reached, so that a
        caller does not wait for one attempt after the other."""
        with self._reaching:
            if not self._reached:
                getattr(self.model, "reach", lambda: None)()
                self._reached = True

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. It is cancelled if this thread is interrupted."""
        closed = RuntimeError(
            f"the language model {self.model.name!r} was closed before it replied"
        )
        # Not `asyncio.run_coroutine_threadsafe`: if this thread is interrupted before that returns,
        # nobody has the future that would end the request.
        outcome: Future[T] = Future()

        def begin() -> None:
            """Start the task that settles `outcome`, and that ends if `outcome` is cancelled."""
            task = self._asyncio.create_task(coroutine)
            task.add_done_callback(partial(_settle, outcome))
            # A task that is done ignores it.
            outcome.add_done_callback(lambda _: self._asyncio.call_soon_threadsafe(task.cancel))

        try:
            with self._lock:
                if self._closed:
                    coroutine.close()
                    raise closed
                self._asyncio.call_soon_threadsafe(begin)
            return outcome.result()
        except CancelledError:
            raise closed from None
        finally:
            outcome.cancel()

    def close(self) -> None:
        with self._lock:
            # What was handed over before is in the loop's queue before this.
            self._closed = True
            self._asyncio.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            # It also ends the loop's own threads, which look up addresses.
            run_coroutine(self._serve())
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
