"""What bounds memory where there are many documents, and that it changes no ranking."""

from __future__ import annotations

import multiprocessing
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from soundingline.pipelines.lexical import bm25, build
from soundingline.pipelines.lexical import invert as vocabulary
from soundingline.pipelines.lexical import storage as strings
from soundingline.pipelines.lexical.bm25 import ScoreBuffers, best, searches_at_once
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.storage import Postings, StringLookup
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError


def everywhere(documents):
    """Postings of one term that all documents hold."""
    return Postings(
        np.array([0, documents]),
        np.arange(documents, dtype=np.uint32),
        np.ones(documents, np.uint16),
    )


ONE_TERM = np.zeros(1, np.int64)


@settings(max_examples=cases(300))
@given(
    values=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 1e-45, 3e38]), min_size=1, max_size=200),
    depth=st.integers(1, 220),
)
def test_the_best_of_sums_that_abound_in_ties_are_those_of_a_full_sort(values, depth):
    sums = np.array(values, np.float32)
    expected = sorted((-value, number) for number, value in enumerate(sums.tolist()) if value > 0)
    documents, scores = best(everywhere(len(sums)), ONE_TERM, sums, depth)
    found = list(zip((-scores).tolist(), documents.tolist(), strict=True))
    assert found == expected[:depth]
    assert not sums.any()


@settings(max_examples=cases(200), deadline=None)
@given(
    size=st.integers(1, 3000),
    depth=st.integers(1, 120),
    kind=st.sampled_from(["rising", "falling", "random", "many powers of two"]),
    scale=st.sampled_from([1.0, 1e-30]),
    seed=st.integers(0, 1000),
)
def test_the_best_of_sums_in_an_adversarial_order_are_those_of_a_full_sort(
    size, depth, kind, scale, seed
):
    chance = np.random.default_rng(seed)
    rising = np.arange(size, dtype=np.float32)
    powers = np.exp2(chance.integers(-30, 5, size)) * chance.integers(0, 3, size)
    sums = (
        np.float32(scale)
        * {
            "rising": rising,
            "falling": rising[::-1],
            "random": chance.random(size, dtype=np.float32),
            "many powers of two": powers.astype(np.float32),
        }[kind]
    )
    order = np.lexsort((np.arange(size), -sums))
    expected = order[sums[order] > 0][:depth]
    wanted = sums[expected].tolist()
    documents, scores = best(everywhere(size), ONE_TERM, sums, depth)
    assert documents.tolist() == expected.tolist()
    assert scores.tolist() == wanted
    assert not sums.any()


@pytest.mark.parametrize("kind", ["ties", "rising", "falling", "two values"])
def test_selecting_takes_memory_by_depth_and_not_by_document(kind):
    size, depth = 2_000_000, 100
    rising = np.arange(1, size + 1, dtype=np.float32)
    sums = {
        "ties": np.ones(size, np.float32),
        "rising": rising,
        "falling": rising[::-1].copy(),
        "two values": (rising % 2 + 1).astype(np.float32),
    }[kind]
    postings = everywhere(size)
    order = np.lexsort((np.arange(size), -sums))[:depth]
    # All that is called is compiled before memory is counted.
    best(postings, ONE_TERM, sums[:32_000].copy(), depth)
    tracemalloc.start()
    try:
        documents, _ = best(postings, ONE_TERM, sums, depth)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert documents.tolist() == order.tolist()
    # The maxima of runs of 16 documents (4 bytes each) and a copy; 8 bytes a document before.
    assert peak < size


def test_no_more_searches_have_sums_than_run_at_once(monkeypatch):
    monkeypatch.setattr(bm25, "cores", lambda: 3)
    sums = ScoreBuffers(everywhere(1000), 1000)
    lock, live, most = threading.Lock(), [0], [0]

    def add(values):
        with lock:
            live[0] += 1
            most[0] = max(most[0], live[0])
        assert not values.any()
        values[7] = 1
        time.sleep(0.01)
        with lock:
            live[0] -= 1

    with ThreadPoolExecutor(24) as pool:
        results = list(pool.map(lambda _: sums.best(ONE_TERM, add, 10), range(60)))
    assert most[0] == 3
    assert all(documents.tolist() == [7] for documents, _ in results)
    assert len(sums._free) == 3


def test_a_failed_search_gives_its_turn_back(monkeypatch):
    monkeypatch.setattr(bm25, "cores", lambda: 1)
    sums = ScoreBuffers(everywhere(10), 10)

    def fail(values):
        values[3] = 1
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            sums.best(ONE_TERM, fail, 5)
    documents, _ = sums.best(ONE_TERM, lambda values: values.__setitem__(4, 1), 5)
    assert documents.tolist() == [4]


def test_a_forked_process_searches_although_its_parents_threads_had_all_turns(monkeypatch):
    monkeypatch.setattr(bm25, "cores", lambda: 1)
    sums = ScoreBuffers(everywhere(10), 10)
    begun, end = threading.Event(), threading.Event()

    def wait(values):
        begun.set()
        end.wait(60)

    thread = threading.Thread(target=sums.best, args=(ONE_TERM, wait, 5))
    thread.start()
    assert begun.wait(60)
    child = multiprocessing.get_context("fork").Process(
        target=sums.best, args=(ONE_TERM, lambda values: None, 5)
    )
    child.start()
    child.join(30)
    end.set()
    thread.join()
    exitcode = child.exitcode
    child.kill()
    assert exitcode == 0


def test_sums_of_searches_at_once_stay_within_two_gibibytes():
    assert searches_at_once(0) >= 1
    for documents in (10**6, 10**7, 10**8):
        assert searches_at_once(documents) * 4 * documents <= 2 << 30
    assert searches_at_once(2**31 - 1) == 1


@settings(max_examples=cases(200))
@given(names=st.lists(st.text(max_size=3), max_size=40), looked_for=st.text(max_size=3))
def test_places_are_those_of_a_list_whatever_the_hashes(names, looked_for):
    for hashed in (hash, len, lambda text: 0, lambda text: 2**63 - 1 - len(text)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strings, "hash", hashed, raising=False)
            values = np.array([hashed(name) for name in names], np.int64)
            places = StringLookup(values, names.__getitem__)
            for name in [*names, looked_for]:
                assert places.find(name) == (names.index(name) if name in names else -1)
            doubled = places.doubled()
        if doubled is None:
            assert len(set(names)) == len(names)
        else:
            assert names[doubled[0]] == names[doubled[1]]
            assert doubled[0] < doubled[1]


class Sized:
    """Units of a known number that must not be read."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self):
        return self._number

    def __iter__(self):
        raise AssertionError("work has begun")
        yield


def test_more_units_than_an_index_numbers_are_refused_before_work_begins(tmp_path):
    with pytest.raises(InputError, match=r"2,147,483,648 units or more.*at most 2,147,483,647"):
        LexicalIndex.build(Sized(2**31), tmp_path / "index")
    with pytest.raises(InputError, match=r"3,000,000,000 units or more"):
        LexicalIndex.build(iter(()), tmp_path / "index", total=3 * 10**9)
    assert list(tmp_path.iterdir()) == []


def test_too_many_units_of_unknown_number_are_refused_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "LARGEST_INDEX", 3)
    units = (Unit(f"d{number}", "", "tide") for number in range(4))
    with pytest.raises(InputError, match=r"4 units or more.*at most 3 in one lexical index"):
        LexicalIndex.build(units, tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_tells_in_one_line_what_very_many_units_take():
    engine = LexicalEngine(memory_mb=64)
    assert engine.notice(999_999) == ""
    line = engine.notice(10_000_000)
    assert line.startswith("10,000,000 units to index: building keeps about 350 MB beside")
    assert "each search takes 40 MB while it runs" in line
    assert "\n" not in line


def test_more_terms_than_can_be_numbered_are_refused_in_one_line_and_leave_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(vocabulary, "LARGEST_VOCABULARY", 4)
    units = [Unit("d1", "", "a b c"), Unit("d2", "", "c d e")]
    with pytest.raises(InputError, match=r"more than 4 index terms\. valid: at most 4") as error:
        LexicalIndex.build(units, tmp_path / "index", analyzer="whitespace")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    LexicalIndex.build(units[:1], tmp_path / "index", analyzer="whitespace")
