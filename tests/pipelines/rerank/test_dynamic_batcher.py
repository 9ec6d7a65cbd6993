import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pipelines.rerank.base import Pair, PairScorer
from pipelines.rerank.dynamic_batcher import DynamicBatcher
from toolkit.errors import InputError


class Recorder:
    """Scores a pair by the length of its text, remembers its calls, and fails on `poison`.

    `held` holds every call until it is set."""

    fingerprint = "recorder"

    def __init__(self) -> None:
        self.calls: list[list[Pair]] = []
        self.counts = {"truncated": 3}
        self.held = threading.Event()
        self.held.set()
        self.entered = threading.Event()
        self.inside = 0

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        self.inside += 1
        assert self.inside == 1, "two threads in the model"
        try:
            self.calls.append(list(pairs))
            self.entered.set()
            assert self.held.wait(30)
            for pair in pairs:
                if "poison" in pair.text:
                    raise ZeroDivisionError(pair.text)
            return [float(len(pair.text)) for pair in pairs]
        finally:
            self.inside -= 1


class Slow(Recorder):
    """Takes two milliseconds a call, so that others come meanwhile."""

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        time.sleep(0.002)
        return super().score(pairs)


def pairs(*texts: str) -> list[Pair]:
    return [Pair("q", text) for text in texts]


def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads; a minute is forever."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Crowd:
    """Requests of one thread each to `gathered`, begun in order while the first is in the model."""

    def __init__(self, recorder: Recorder, gathered: DynamicBatcher) -> None:
        self.recorder, self.gathered = recorder, gathered

    def ask(self, first: list[Pair], *others: list[Pair]) -> list[Future[list[float]]]:
        pool = ThreadPoolExecutor(1 + len(others))
        self.recorder.held.clear()
        self.recorder.entered.clear()
        futures = [pool.submit(self.gathered.score, first)]
        assert self.recorder.entered.wait(30)
        for number, other in enumerate(others, start=1):
            futures.append(pool.submit(self.gathered.score, other))
            until(lambda number=number: len(self.gathered._waiting) == number)
        self.recorder.held.set()
        pool.shutdown(wait=True)
        return futures


@pytest.fixture
def crowd() -> Crowd:
    recorder = Recorder()
    return Crowd(recorder, DynamicBatcher(recorder))


def test_it_is_a_scorer_that_scores_as_the_one_inside() -> None:
    gathered: PairScorer = DynamicBatcher(Recorder())
    assert gathered.score(pairs("a", "bbb", "cc")) == [1.0, 3.0, 2.0]
    assert gathered.fingerprint == "recorder"
    assert gathered.counts["truncated"] == 3


def test_no_pairs_are_no_call() -> None:
    recorder = Recorder()
    assert DynamicBatcher(recorder).score([]) == []
    assert recorder.calls == []


def test_requests_that_come_while_the_model_is_busy_are_the_next_batch(crowd: Crowd) -> None:
    futures = crowd.ask(pairs("a"), pairs("bb", "ccc"), pairs("d"), pairs("eeee"))
    assert [each.result() for each in futures] == [[1.0], [2.0, 3.0], [1.0], [4.0]]
    assert crowd.recorder.calls == [pairs("a"), pairs("bb", "ccc", "d", "eeee")]
    assert dict(crowd.gathered.counts) == {
        "truncated": 3,
        "batches": 2,
        "gathered_requests": 4,
        "pairs_scored": 5,
        "largest_batch": 4,
        "failed_batches": 0,
    }


def test_a_batch_holds_whole_requests_up_to_its_size() -> None:
    recorder = Recorder()
    crowd = Crowd(recorder, DynamicBatcher(recorder, max_pairs=3))
    futures = crowd.ask(pairs("a"), pairs("b", "c"), pairs("d", "e"), pairs("f"), pairs(*"ghijk"))
    assert [len(each.result()) for each in futures] == [1, 2, 2, 1, 5]
    assert recorder.calls == [pairs(*texts) for texts in ("a", "bc", "def", "ghijk")]


def test_equal_pairs_of_a_batch_are_scored_once(crowd: Crowd) -> None:
    futures = crowd.ask(pairs("a"), pairs("bb", "bb"), pairs("ccc", "bb"))
    assert [each.result() for each in futures] == [[1.0], [2.0, 2.0], [3.0, 2.0]]
    assert crowd.recorder.calls[1] == pairs("bb", "ccc")


def test_an_error_reaches_those_alone_whose_pairs_cause_it(crowd: Crowd) -> None:
    good, bad, other = crowd.ask(pairs("a"), pairs("bb"), pairs("poison"), pairs("ccc"))[1:]
    assert good.result() == [2.0]
    assert other.result() == [3.0]
    with pytest.raises(ZeroDivisionError, match=r"^poison$"):
        bad.result()
    assert crowd.gathered.counts["failed_batches"] == 2
    assert crowd.gathered.score(pairs("again")) == [5.0]


def test_a_leaders_error_does_not_stop_those_who_wait(crowd: Crowd) -> None:
    first, second = crowd.ask(pairs("poison"), pairs("bb"))
    assert isinstance(first.exception(), ZeroDivisionError)
    assert second.result() == [2.0]


def test_everyone_is_told_where_every_request_fails(crowd: Crowd) -> None:
    futures = crowd.ask(pairs("poison"), pairs("poison 1"), pairs("poison 2"))
    assert [str(each.exception()) for each in futures] == ["poison", "poison 1", "poison 2"]


class Stopped(BaseException):
    """What Ctrl-C is to the thread that it hits."""


def test_a_stopped_leader_leaves_the_others_to_another(crowd: Crowd) -> None:
    score, stops = crowd.recorder.score, iter([False, True])

    def stopped_once(given: Sequence[Pair]) -> list[float]:
        if next(stops, False):
            raise Stopped
        return score(given)

    crowd.recorder.score = stopped_once  # type: ignore[method-assign]
    futures = crowd.ask(pairs("a"), pairs("bb"), pairs("ccc"), pairs("dddd"))
    assert futures[0].result() == [1.0]
    assert isinstance(futures[1].exception(), Stopped)
    assert [each.result() for each in futures[2:]] == [[3.0], [4.0]]
    assert crowd.gathered.score(pairs("again")) == [5.0]


def test_a_stopped_waiter_is_not_made_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    crowd = Crowd(recorder, DynamicBatcher(recorder))
    wait = threading.Event.wait

    def stopped(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "stopped":
            until(lambda: len(crowd.gathered._waiting) == 2)
            raise Stopped
        return wait(event, timeout)

    class Caller(threading.Thread):
        def run(self) -> None:
            with pytest.raises(Stopped):
                crowd.gathered.score(pairs("never"))

    monkeypatch.setattr(threading.Event, "wait", stopped)
    recorder.held.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(crowd.gathered.score, pairs("a"))
        assert recorder.entered.wait(30)
        caller = Caller(name="stopped")
        caller.start()
        until(lambda: len(crowd.gathered._waiting) == 1)
        last = pool.submit(crowd.gathered.score, pairs("bb"))
        caller.join(60)
        recorder.held.set()
        assert (first.result(60), last.result(60)) == ([1.0], [2.0])
    assert recorder.calls == [pairs("a"), pairs("bb")]


def waits(gathered: DynamicBatcher, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which its leaders agreed to wait, as they come."""
    asked: list[float] = []
    wait = gathered._changed.wait

    def recorded(timeout: float | None = None) -> bool:
        asked.append(timeout or 0.0)
        return wait(timeout)

    monkeypatch.setattr(gathered._changed, "wait", recorded)
    return asked


def test_a_caller_that_is_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = DynamicBatcher(Recorder(), wait_ms=60_000)
    asked = waits(gathered, monkeypatch)
    for _ in range(3):
        gathered.score(pairs("a"))
    assert asked == []


def test_after_company_a_caller_waits_once_and_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    gathered = DynamicBatcher(recorder, wait_ms=20)
    Crowd(recorder, gathered).ask(pairs("a"), pairs("b"), pairs("c"))
    asked = waits(gathered, monkeypatch)
    started = time.monotonic()
    gathered.score(pairs("d"))
    assert time.monotonic() - started >= 0.015
    assert asked and max(asked) <= 0.02
    asked.clear()
    gathered.score(pairs("e"))
    assert asked == []


def test_those_who_come_back_together_share_a_batch_and_wait_for_no_more_than_they_were() -> None:
    recorder = Recorder()
    gathered = DynamicBatcher(recorder, wait_ms=60_000)
    Crowd(recorder, gathered).ask(pairs("a"), *(pairs(f"b{n}") for n in range(7)))
    recorder.calls.clear()
    with ThreadPoolExecutor(7) as pool:
        futures = [pool.submit(gathered.score, pairs(f"c{n}")) for n in range(7)]
        assert [each.result(30) for each in futures] == [[2.0]] * 7
    assert [len(call) for call in recorder.calls] == [7]


def test_a_full_batch_waits_for_nobody() -> None:
    recorder = Recorder()
    gathered = DynamicBatcher(recorder, wait_ms=60_000, max_pairs=2)
    Crowd(recorder, gathered).ask(pairs("a"), pairs("b"), pairs("c"), pairs("d"), pairs("e"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(gathered.score, pairs("f", "g")).result(30) == [1.0, 1.0]


def test_many_threads_get_their_own_scores_and_the_model_one_thread_at_a_time() -> None:
    recorder = Slow()
    gathered = DynamicBatcher(recorder, wait_ms=1, max_pairs=64)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def agent(number: int) -> Iterable[tuple[list[float], list[float]]]:
        for turn in range(40):
            lengths = [1 + (number * 7 + turn * 3 + at) % 90 for at in range(1 + turn % 5)]
            texts = ["x" * length for length in lengths]
            yield gathered.score(pairs(*texts)), [float(length) for length in lengths]

    try:
        with ThreadPoolExecutor(32) as pool:
            for seen in pool.map(lambda number: list(agent(number)), range(32), timeout=120):
                for got, expected in seen:
                    assert got == expected
    finally:
        sys.setswitchinterval(interval)
    counts = gathered.counts
    assert counts["gathered_requests"] == 32 * 40
    assert counts["batches"] == len(recorder.calls) < 32 * 40 / 4
    assert counts["largest_batch"] == max(map(len, recorder.calls)) <= 64
    assert not gathered._led and not gathered._waiting


def test_time_in_the_model_is_counted_once_however_many_wait() -> None:
    gathered = DynamicBatcher(Slow())
    with ThreadPoolExecutor(8) as pool:
        started = time.perf_counter()
        list(pool.map(lambda number: gathered.score(pairs(str(number))), range(8)))
        passed = time.perf_counter() - started
    assert 0.002 * gathered.counts["batches"] <= gathered.seconds <= passed


def test_a_scorer_that_gives_another_number_of_scores_is_a_defect() -> None:
    class Wrong(Recorder):
        def score(self, pairs: Sequence[Pair]) -> list[float]:
            return [0.0]

    with pytest.raises(ValueError, match=r"1 scores for 2 pairs"):
        DynamicBatcher(Wrong()).score(pairs("a", "b"))


@pytest.mark.parametrize(
    ("wait_ms", "max_pairs"), [(-1, 9), (float("inf"), 9), (float("nan"), 9), (5, 0)]
)
def test_impossible_settings_are_refused(wait_ms: float, max_pairs: int) -> None:
    with pytest.raises(InputError, match=r"valid: (0 or more, finite|a whole number, 1 or more)"):
        DynamicBatcher(Recorder(), wait_ms, max_pairs)
