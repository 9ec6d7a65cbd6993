import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from soundingline.pipelines.rerank.reranker import Pair, Reranker


class Recorder(Reranker):
    """Scores a pair by the length of its text, remembers its calls, and fails on `poison`.

    `held` holds every call until it is set."""

    fingerprint = "recorder"

    def __init__(self) -> None:
        super().__init__()
        self.calls = []
        self.held = threading.Event()
        self.held.set()
        self.entered = threading.Event()
        self.inside = 0

    def score(self, pairs):
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

    def score(self, pairs):
        time.sleep(0.002)
        return super().score(pairs)


def pairs(*texts):
    return [Pair("q", text) for text in texts]


def until(condition):
    """Wait for other threads; a minute is forever."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def waiting(recorder):
    return recorder._queue.waiting[False]


class Crowd:
    """Requests of one thread each, begun in order while the first is in the model."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def ask(self, first, *others):
        pool = ThreadPoolExecutor(1 + len(others))
        self.recorder.held.clear()
        self.recorder.entered.clear()
        futures = [pool.submit(self.recorder.score_pairs, first)]
        assert self.recorder.entered.wait(30)
        for number, other in enumerate(others, start=1):
            futures.append(pool.submit(self.recorder.score_pairs, other))
            until(lambda number=number: len(waiting(self.recorder)) == number)
        self.recorder.held.set()
        pool.shutdown(wait=True)
        return futures


@pytest.fixture
def crowd():
    return Crowd(Recorder())


def test_no_pairs_are_no_call():
    recorder = Recorder()
    assert recorder.score_pairs([]) == []
    assert recorder.calls == []


def test_requests_that_come_while_the_model_is_busy_are_the_next_batch(crowd):
    futures = crowd.ask(pairs("a"), pairs("bb", "ccc"), pairs("d"), pairs("eeee"))
    assert [each.result() for each in futures] == [[1.0], [2.0, 3.0], [1.0], [4.0]]
    assert crowd.recorder.calls == [pairs("a"), pairs("bb", "ccc", "d", "eeee")]
    counts = crowd.recorder.counts
    assert (counts["batches"], counts["gathered_requests"], counts["pairs_scored"]) == (2, 4, 5)
    assert (counts["largest_batch"], counts["failed_batches"]) == (4, 0)


def test_equal_pairs_of_a_batch_are_scored_once(crowd):
    futures = crowd.ask(pairs("a"), pairs("bb", "bb"), pairs("ccc", "bb"))
    assert [each.result() for each in futures] == [[1.0], [2.0, 2.0], [3.0, 2.0]]
    assert crowd.recorder.calls[1] == pairs("bb", "ccc")


def test_an_error_reaches_those_alone_whose_pairs_cause_it(crowd):
    good, bad, other = crowd.ask(pairs("a"), pairs("bb"), pairs("poison"), pairs("ccc"))[1:]
    assert good.result() == [2.0]
    assert other.result() == [3.0]
    with pytest.raises(ZeroDivisionError, match=r"^poison$"):
        bad.result()
    assert crowd.recorder.counts["failed_batches"] == 2
    assert crowd.recorder.score_pairs(pairs("again")) == [5.0]


def test_a_leaders_error_does_not_stop_those_who_wait(crowd):
    first, second = crowd.ask(pairs("poison"), pairs("bb"))
    assert isinstance(first.exception(), ZeroDivisionError)
    assert second.result() == [2.0]


def test_everyone_is_told_where_every_request_fails(crowd):
    futures = crowd.ask(pairs("poison"), pairs("poison 1"), pairs("poison 2"))
    assert [str(each.exception()) for each in futures] == ["poison", "poison 1", "poison 2"]


class Stopped(BaseException):
    """What Ctrl-C is to the thread that it hits."""


def test_a_stopped_leader_leaves_the_others_to_another(crowd):
    score, stops = crowd.recorder.score, iter([False, True])

    def stopped_once(given):
        if next(stops, False):
            raise Stopped
        return score(given)

    crowd.recorder.score = stopped_once  # type: ignore[method-assign]
    futures = crowd.ask(pairs("a"), pairs("bb"), pairs("ccc"), pairs("dddd"))
    assert futures[0].result() == [1.0]
    stopped = [isinstance(each.exception(), Stopped) for each in futures]
    assert sum(stopped) == 1
    for number, future in enumerate(futures, start=1):
        assert stopped[number - 1] or future.result() == [float(number)]
    assert crowd.recorder.score_pairs(pairs("again")) == [5.0]


def test_the_next_request_is_scored_after_a_failure_of_all(crowd):
    crowd.ask(pairs("poison"), pairs("poison 1"))
    assert not waiting(crowd.recorder) and not crowd.recorder._queue.busy
    assert crowd.recorder.score_pairs(pairs("a")) == [1.0]


def test_many_threads_get_their_own_scores_and_the_model_one_thread_at_a_time():
    recorder = Slow()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def agent(number):
        for turn in range(40):
            lengths = [1 + (number * 7 + turn * 3 + at) % 90 for at in range(1 + turn % 5)]
            texts = ["x" * length for length in lengths]
            yield recorder.score_pairs(pairs(*texts)), [float(length) for length in lengths]

    try:
        with ThreadPoolExecutor(32) as pool:
            for seen in pool.map(lambda number: list(agent(number)), range(32), timeout=120):
                for got, expected in seen:
                    assert got == expected
    finally:
        sys.setswitchinterval(interval)
    counts = recorder.counts
    assert counts["gathered_requests"] == 32 * 40
    assert counts["batches"] == len(recorder.calls) < 32 * 40 / 4
    assert counts["largest_batch"] == max(map(len, recorder.calls))
    assert not waiting(recorder)


def test_time_in_the_model_is_counted_once_however_many_wait():
    slow = Slow()
    with ThreadPoolExecutor(8) as pool:
        started = time.perf_counter()
        list(pool.map(lambda number: slow.score_pairs(pairs(str(number))), range(8)))
        passed = time.perf_counter() - started
    assert 0.002 * slow.counts["batches"] <= slow.counts["seconds"] + 0.001 <= passed + 0.001


def test_a_scorer_that_gives_another_number_of_scores_is_a_defect():
    class Wrong(Recorder):
        def score(self, pairs):
            return [0.0]

    with pytest.raises(ValueError, match=r"1 scores for 2 pairs"):
        Wrong().score_pairs(pairs("a", "b"))


def test_who_has_scores_does_not_wait_for_the_next_batch(crowd):
    recorder = crowd.recorder
    recorder.held.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(recorder.score_pairs, pairs("a"))
        assert recorder.entered.wait(30)
        second = pool.submit(recorder.score_pairs, pairs("bb"))
        until(lambda: len(waiting(recorder)) == 1)
        score, free = recorder.score, threading.Event()

        def blocked(given):
            assert free.wait(30)
            return score(given)

        recorder.score = blocked  # type: ignore[method-assign]
        recorder.held.set()
        assert first.result(30) == [1.0] and not second.done()
        free.set()
        assert second.result(30) == [2.0]
