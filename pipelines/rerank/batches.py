"""Requests of concurrent threads for one model, computed in batches by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from itertools import islice
from typing import Any, TypeAlias

Compute: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


class _BatchRequest(Future[list[Any]]):
    """The items of one thread, and their results. `wanted` while the thread waits for them."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__()
        self.items, self.wanted = items, True


class SharedBatches:
    """One thread that computes for all others. The requests that come while it computes are its
    next batch; it ends when none waits, and the next request starts it again. Thread-safe; a
    pickled one is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_BatchRequest] = []
        self._in_work: list[_BatchRequest] = []
        self._running = False

    def __reduce__(self) -> Any:
        return SharedBatches, ()

    def results(self, items: Sequence[Any], compute: Compute) -> list[Any]:
        """One result for each item, by `compute`, which receives the items of other requests too.
        If it fails, it is called for one request after the other, so that an error is raised only
        in the thread whose items cause it."""
        request = _BatchRequest(items)
        with self._lock:
            if not self._running:
                threading.Thread(target=self._work, args=(compute,), name="batches").start()
                self._running = True
            self._waiting.append(request)
        try:
            return request.result()
        finally:
            # After Ctrl-C: a request that still waits is not computed.
            request.wanted = False
            request.cancel()

    def check_wanted(self) -> None:
        """Raise `CancelledError` if the batch in work was interrupted (Ctrl-C) in every thread that
        waited for it. Call it between the parts of a long computation."""
        requests = self._in_work
        if requests and not any(request.wanted for request in requests):
            raise CancelledError

    def _work(self, compute: Compute) -> None:
        while requests := self._taken():
            self._answer(requests, compute)

    def _taken(self) -> list[_BatchRequest]:
        with self._lock:
            requests = [each for each in self._waiting if each.set_running_or_notify_cancel()]
            self._waiting, self._running = [], bool(requests)
            return requests

    def _answer(self, requests: list[_BatchRequest], compute: Compute) -> None:
        """Answer the requests by one batch, or one by one if it fails."""
        self._in_work = requests
        try:
            results = iter(compute([item for request in requests for item in request.items]))
        except BaseException as error:
            self._in_work = []
            if len(requests) == 1:
                requests[0].set_exception(error)
            else:
                for request in requests:
                    self._answer([request], compute)
        else:
            self._in_work = []
            for request in requests:
                request.set_result(list(islice(results, len(request.items))))
