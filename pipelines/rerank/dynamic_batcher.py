"""Requests of many threads, scored together."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice

from pipelines.rerank.base import Pair, PairScorer
from pipelines.rerank.scorer_stats import ScorerStats
from toolkit.checks import check_integer, check_number


class _Request:
    """One caller's pairs. It is woken once: answered, or to lead the next batch, its own pairs in
    it."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.leads = False
        self.woken = threading.Event()
        self.scores: list[float] | None = None
        self.error: Exception | None = None

    @property
    def answered(self) -> bool:
        return self.scores is not None or self.error is not None


def check_wait(wait_ms: float | None) -> None:
    """`InputError` for a time that requests cannot wait for each other; None: they do not."""
    if wait_ms is not None:
        check_number("max_wait_ms", wait_ms, do="set 5 milliseconds, or null")


class DynamicBatcher:
    """A `PairScorer` that gathers the requests of concurrent threads into single calls of
    `scorer`, which one thread at a time enters.

    A caller that finds the scorer free leads: it scores for all who wait. Requests that come
    meanwhile pile up and are the next batch, which one of them leads at once. A leader waits for
    others only as long as fewer have come than there were last time, and at most `wait_ms`
    milliseconds: who is alone goes at once, and many who come again together share a batch. There
    is no thread of its own.

    A batch holds whole requests, in the order in which they came, of at most `max_pairs` pairs
    together; a larger request is a batch by itself. Equal pairs of a batch are scored once. Where
    a batch fails, its requests are scored one by one, so that an error reaches those alone whose
    pairs cause it.

    `counts` and `seconds` are as of `ScorerStats`, and `gathered_requests` the requests answered.
    """

    def __init__(self, scorer: PairScorer, wait_ms: float = 5.0, max_pairs: int = 1024) -> None:
        check_wait(wait_ms)
        check_integer("max_pairs", max_pairs)
        self.scorer, self.wait_ms, self.max_pairs = scorer, wait_ms, max_pairs
        self._metered = ScorerStats(scorer)
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._led = False
        self._expected = 0
        self._gathered = 0

    @property
    def fingerprint(self) -> str:
        return self.scorer.fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        return {**self._metered.counts, "gathered_requests": self._gathered}

    @property
    def seconds(self) -> float:
        return self._metered.seconds

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """The scorer's scores of `pairs`; what it raises for them is raised here."""
        if not pairs:
            return []
        request = _Request(pairs)
        try:
            if not self._leads(request):
                request.woken.wait()
            if request.leads:
                self._lead(request)
        except BaseException:
            self._withdraw(request)
            raise
        if request.error:
            raise request.error
        return request.scores or []

    def _leads(self, request: _Request) -> bool:
        with self._changed:
            self._waiting.append(request)
            request.leads = not self._led
            self._led = True
            self._changed.notify()  # the leader, where it waits
            return request.leads

    def _lead(self, request: _Request) -> None:
        batch = [request]
        try:
            batch = self._next_batch(at_once=request.woken.is_set())
            self._score(batch)
        finally:
            request.leads = False
            self._hand_on(batch)

    def _next_batch(self, at_once: bool) -> list[_Request]:
        until = time.monotonic() + self.wait_ms / 1000
        with self._changed:
            while not at_once and self._more_expected():
                at_once = not self._changed.wait(until - time.monotonic())
            size = self._fitting()
            batch = self._waiting[:size]
            del self._waiting[:size]
        return batch

    def _more_expected(self) -> bool:
        pairs = sum(len(request.pairs) for request in self._waiting)
        return len(self._waiting) < self._expected and pairs < self.max_pairs

    def _fitting(self) -> int:
        """How many of those who wait fit into a batch; one, whatever its size."""
        pairs = 0
        for size, request in enumerate(self._waiting):
            pairs += len(request.pairs)
            if size and pairs > self.max_pairs:
                return size
        return len(self._waiting)

    def _score(self, batch: Sequence[_Request]) -> None:
        try:
            scores = iter(
                self._metered.score([pair for request in batch for pair in request.pairs])
            )
        except Exception as error:
            if len(batch) > 1:
                for request in batch:
                    self._score([request])
            else:
                batch[0].error = error
        else:
            for request in batch:
                request.scores = list(islice(scores, len(request.pairs)))
            self._gathered += len(batch)

    def _hand_on(self, batch: Sequence[_Request]) -> None:
        """Wake the batch, and the next leader. Whoever has no answer, because the leader itself
        was stopped (Ctrl-C), waits on in front; the leader alone does not."""
        with self._changed:
            self._waiting[:0] = [request for request in batch[1:] if not request.answered]
            self._expected = len(batch) + len(self._waiting)
            self._led = bool(self._waiting)
            for first in self._waiting[:1]:
                first.leads = True
                first.woken.set()
        for request in batch:
            if request.answered:
                request.woken.set()

    def _withdraw(self, request: _Request) -> None:
        """The caller of `request` was stopped: nobody may wait for it to lead."""
        with self._changed:
            if request in self._waiting:
                self._waiting.remove(request)
        if request.leads:
            self._hand_on([])

    def close(self) -> None:
        """See `PairScorer`."""
        self.scorer.close()

    def __repr__(self) -> str:
        return (
            f"DynamicBatcher({self.scorer!r}, wait_ms={self.wait_ms}, max_pairs={self.max_pairs})"
        )
