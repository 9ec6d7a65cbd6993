"""Base classes of re-rankers: the top and the rest, texts, windows, cache, batches of threads."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import until
from support.documents import ROOT
from support.needs import cases
from support.pairs import sides

from soundingline.pipelines.rerank.batches import SharedBatches, _BatchRequest
from soundingline.pipelines.rerank.reranker import (
    Pair,
    RerankTop,
    Scorer,
    merge_top_and_rest,
    split_top,
)
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError


def ranked_rows(*rows, **columns):
    """Rows (qid, docno, score) without ranks."""
    return pd.DataFrame(rows, columns=["qid", "docno", "score"]).assign(query="words", **columns)


FIVE = ranked_rows(*((("q", f"d{n}", 9.0 - n)) for n in range(5)))


def new_order(frame, depth, scores):
    top, rest = split_top(frame, depth)
    return merge_top_and_rest(top.assign(score=scores), rest)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("old", "depth", "new", "order", "scores"),
    [
        ([9, 8, 7, 6, 5], 3, [0.1, 0.3, 0.2], "12034", [0.3, 0.2, 0.1, -0.9, -1.9]),
        ([9, 8, 7, 6], 3, [1, 2, 1], "1023", [2, 1, 1, 0]),
        ([9, 8, 7, 6, 5], 4, [NAN, 0.5, NAN, 0.75], "31024", [0.75, 0.5, -0.5, -1.5, -2.5]),
        ([9, 8, 7], 2, [NAN, NAN], "012", [-1, -2, -3]),
        ([9, 8, 7], 3, [-INF, 1, INF], "210", [1e30, 1, -1e30]),
        ([9, 5, 5, 4, 4], 1, [7], "01234", [7, 6, 6, 5, 5]),
        ([5, 5, 5], 1, [5], "012", [5, 4, 4]),
        ([1, 2, 2, NAN], 2, [0, 1], "2103", [1, 0, -1, -2]),
        ([], 3, [], "", []),
    ],
)
def test_the_top_has_its_new_scores_and_the_rest_falling_ones(old, depth, new, order, scores):
    got = new_order(ranked_rows(*(("q", str(n), float(o)) for n, o in enumerate(old))), depth, new)
    assert "".join(got["docno"]) == order and got["score"].tolist() == scores
    assert got["rank"].tolist() == list(range(len(old)))


def test_ranks_decide_what_the_top_is_where_there_are_ranks():
    top, rest = split_top(FIVE.set_index(pd.Index([7] * 5)).assign(rank=[4, 3, 0, 2, 1]), 2)
    assert (top["docno"].tolist(), rest["docno"].tolist()) == (["d2", "d4"], ["d3", "d1", "d0"])


def test_queries_of_different_lengths_stay_apart_and_in_their_order():
    rows = [("b", "d1", 5.0), ("a", "d1", 4.0), ("b", "d2", 3.0), ("b", "d3", 2.0), ("c", "x", 1.0)]
    got = new_order(ranked_rows(*rows), 2, [1.0, 2.0, 8.0, 9.0])
    assert got[["qid", "docno", "score", "rank"]].to_numpy().tolist() == [
        ["b", "d2", 2.0, 0],
        ["b", "d1", 1.0, 1],
        ["b", "d3", 0.0, 2],
        ["a", "d1", 8.0, 0],
        ["c", "x", 9.0, 0],
    ]


SCORES = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-2, 2).map(float)
ROWS = st.lists(st.tuples(st.sampled_from("abc"), SCORES, SCORES), min_size=1, max_size=40)


@given(ROWS, st.integers(1, 12), st.booleans())
def test_nothing_is_lost_and_every_order_is_kept(rows, depth, ranked):
    frame = ranked_rows(*((qid, f"d{n}", old) for n, (qid, old, _) in enumerate(rows)))
    if ranked:
        frame["rank"] = frame.groupby("qid").cumcount()
    new = dict(zip(frame["docno"], [new for _, _, new in rows], strict=True))
    top, rest = split_top(frame, depth)
    got = merge_top_and_rest(top.assign(score=[new[docno] for docno in top["docno"]]), rest)

    assert got["qid"].drop_duplicates().tolist() == frame["qid"].drop_duplicates().tolist()
    assert np.isfinite(got["score"]).all()
    for qid, mine in got.groupby("qid", sort=False):
        docnos, scores = mine["docno"].tolist(), mine["score"].tolist()
        assert mine["rank"].tolist() == list(range(len(mine)))
        given_rows = frame[frame["qid"] == qid]
        old = dict(zip(given_rows["docno"], given_rows["score"], strict=True))
        if ranked:
            before = given_rows["docno"].tolist()
        else:
            # A stable sort, worst (and what is no number) last.
            before = sorted(old, key=lambda each: (old[each] != old[each], -old[each]))
        # The top: the same documents, by falling new score, ties as before, no numbers last.
        expected = sorted(before[:depth], key=lambda each: (new[each] != new[each], -new[each]))
        assert docnos == expected + before[depth:]
        # Scores: as computed in the top, falling below it, in 32 bits as well.
        scored = sum(new[each] == new[each] for each in expected)
        assert scores[:scored] == [min(max(new[each], -1e30), 1e30) for each in expected[:scored]]
        for at in range(max(1, scored), len(docnos)):
            tied = at > depth and old[docnos[at]] == old[docnos[at - 1]]
            above, here = np.float32(scores[at - 1]), np.float32(scores[at])
            assert above == here if tied else above > here


class Lengths(Scorer):
    """Scores a pair by the length of its text and of its query, or as it is `told` for a text."""

    def __init__(self, named="lengths", told=None, **settings):
        self.named, self.told = named, told or {}
        self.calls = []
        super().__init__(**settings)

    @property
    def fingerprint(self):
        return self.named

    def score(self, queries, texts):
        pairs = list(map(Pair, queries, texts))
        self.calls.append(pairs)
        return [self.told.get(p.text, len(p.text) + len(p.query) / 1000) for p in pairs]


class Windows(Lengths):
    """The same, with windows of three characters."""

    def windows(self, query, text):
        return [text[start : start + 3] for start in range(0, len(text), 3)]


def ranking(*rows, **columns):
    """Rows (qid, docno, text), best first; the query of a qid is its name."""
    frame = pd.DataFrame(rows, columns=["qid", "docno", "text"], dtype=object)
    ranks = frame.groupby("qid").cumcount()
    return frame.assign(query=frame["qid"], score=100.0 - ranks, rank=ranks, **columns)


THREE = ranking(("q", "d1", "a"), ("q", "d2", "ccc"), ("q", "d3", "bb"))
WITHOUT_TEXT = THREE.drop(columns="text")


class Store:
    """Texts by docno, and what was asked for."""

    def __init__(self, **texts):
        self.texts, self.asked = texts, []

    def __call__(self, docnos):
        self.asked.append(list(docnos))
        return [Unit(docno, "", self.texts[docno]) for docno in docnos]


STORE = {"d1": "a", "d2": "ccc", "d3": "bb"}


def test_texts_come_from_the_store_for_the_top_alone_and_each_once():
    store = Store(**STORE)
    frame = pd.concat([WITHOUT_TEXT, WITHOUT_TEXT.assign(qid="r", query="r")])
    got = RerankTop(Lengths(), texts=store, depth=2)(frame)
    assert store.asked == [["d1", "d2"]]
    assert got["docno"].tolist() == ["d2", "d1", "d3"] * 2
    assert "text" not in got.columns


def test_the_title_stands_in_front_of_the_text_as_it_was_indexed():
    scorer = Lengths()
    texts = lambda docnos: [Unit(each, "Mills", "a") for each in docnos]  # noqa: E731
    RerankTop(scorer, texts=texts)(WITHOUT_TEXT.iloc[:1])
    assert scorer.calls == [[Pair("q", "Mills\na")]]


def test_all_queries_of_a_frame_are_scored_in_one_call_and_equal_pairs_once():
    scorer = Lengths()
    frame = ranking(("q", "d1", "same"), ("r", "d1", "same"), ("q", "d2", "same"))
    got = scorer(frame)
    assert scorer.calls == [[Pair("q", "same"), Pair("r", "same")]]
    assert got[["qid", "docno"]].to_numpy().tolist() == [["q", "d1"], ["q", "d2"], ["r", "d1"]]


def test_a_scorer_alone_puts_the_best_rows_first_and_equal_ones_by_their_ranks():
    rows = [
        ("q", "d1", "a"),
        ("r", "d2", "bb"),
        ("q", "d3", "cc"),
        ("q", "d4", "dd"),
        ("r", "d5", "e"),
    ]
    told = {"a": NAN, "e": NAN}
    frame = ranking(*rows).iloc[[3, 0, 4, 2, 1]]
    got = Lengths(told=told)(frame)
    assert got[["qid", "docno", "rank"]].to_numpy().tolist() == [
        ["q", "d3", 0],
        ["q", "d4", 1],
        ["q", "d1", 2],
        ["r", "d2", 0],
        ["r", "d5", 1],
    ]
    # No made-up score, which a cache of scores would keep.
    assert got["score"].isna().tolist() == [False, False, True, False, True]
    assert RerankTop(Lengths(told=told))(frame)["score"].notna().all()


# Long documents


def test_a_long_document_scores_as_its_best_window_and_all_windows_go_in_one_call():
    told = {"def": 0.0, "abc": 1.0, "ghi": 9.0, "xyz": 5.0, "zzz": float("nan")}
    stage = Windows(told=told, long_documents="max_passage")
    frame = ranking(("q", "short", "xyz"), ("q", "long", "abcghixyz"), ("q", "odd", "zzzabc"))
    got = stage(frame)
    assert got[["docno", "score"]].to_numpy().tolist() == [
        ["long", 9.0],
        ["short", 5.0],
        ["odd", 1.0],
    ]
    assert [len(call) for call in stage.calls] == [6]
    assert stage.counts["windows"] == 6
    assert stage.counts["pairs_scored"] == 3


def test_a_document_without_a_window_is_scored_as_it_is():
    stage = Windows(long_documents="max_passage")
    assert stage(ranking(("q", "d", "")))["score"].tolist() == [0.001]


# Caching


@pytest.mark.parametrize(
    "changed",
    [
        {"fingerprint": "another model"},
        {"long_documents": "max_passage"},
        {"query": "another query"},
        {"docno": "another document"},
        {"text": "another text"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_changed_model_setting_query_document_or_text_never_gives_an_old_score(tmp_path, changed):
    row = ranking(("q", "d", "text of d"))
    Windows(cache=tmp_path)(row)
    named = changed.pop("fingerprint", "lengths")
    long_documents = changed.pop("long_documents", "truncate")
    stage = Windows(named, cache=tmp_path, long_documents=long_documents)
    fresh = Windows(long_documents=long_documents)
    row = row.assign(**changed)
    assert stage(row)["score"].tolist() == fresh(row)["score"].tolist()
    assert stage.counts["cache_hits"] == 0
    assert len(stage.calls) == 1


def test_a_score_that_is_no_number_is_not_kept(tmp_path):
    Lengths(told={"ccc": float("nan")}, cache=tmp_path)(THREE)
    again = Lengths(told={"ccc": 7.0}, cache=tmp_path)
    assert again(THREE)["score"].tolist()[0] == 7.0
    assert again.calls == [[Pair("q", "ccc")]]


TEXT = st.text(st.characters(exclude_categories=[]), max_size=3)


@settings(max_examples=cases(30))  # each makes a file
@given(st.lists(st.tuples(st.sampled_from("qr"), st.sampled_from("abc"), TEXT), max_size=12))
def test_a_cache_never_changes_a_ranking(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("cache")
    frame = ranking(*rows).astype({"qid": str, "query": str, "docno": str})
    expected = RerankTop(Lengths(), depth=3)(frame)
    for _ in range(2):
        got = RerankTop(Lengths(cache=folder), depth=3)(frame)
        pd.testing.assert_frame_equal(got, expected, check_exact=True)


def test_long_frames_are_kept_piece_by_piece(tmp_path):
    class Killed(Lengths):
        def score(self, queries, texts):
            if self.calls:
                raise KeyboardInterrupt
            return super().score(queries, texts)

    frame = ranking(*(("q", f"d{n}", "x" * (n % 50)) for n in range(5000)))
    with pytest.raises(KeyboardInterrupt):
        Killed(cache=tmp_path)(frame)
    again = Lengths(cache=tmp_path)
    assert len(again(frame)) == 5000
    assert again.counts["cache_hits"] == 4096


# As a PyTerrier stage


def test_pyterrier_sees_what_it_needs_and_gives():
    without, with_store = RerankTop(Lengths()), RerankTop(Lengths(), texts=Store())
    needed = ["qid", "docno", "query"]
    assert pt.inspect.transformer_inputs(with_store) == [needed]
    assert pt.inspect.transformer_inputs(RerankTop(pt.Transformer.identity())) == [needed]
    assert pt.inspect.transformer_inputs(without) == [[*needed, "text"]]
    assert pt.inspect.transformer_inputs(Lengths()) == [[*needed, "text"]]
    assert set(pt.inspect.transformer_outputs(with_store, needed)) == {*needed, "score", "rank"}


QUERIES = pd.DataFrame({"qid": ["q", "r"], "query": ["q", "r"]})


def test_an_experiment_runs_a_stage_that_pipelines_share_once():
    retriever = pt.Transformer.from_df(THREE, uniform=False)
    one, every = Lengths(), Lengths()
    deep = retriever >> every
    result = pt.Experiment(
        [retriever, retriever >> RerankTop(one, depth=1), deep, deep % 2],
        QUERIES.iloc[:1],
        pd.DataFrame({"qid": ["q"], "docno": ["d2"], "label": [1]}),
        ["recip_rank"],
        names=["retriever", "one", "all", "cut"],
        plan="tree",
        validate="error",
    )
    assert result["recip_rank"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert [len(call) for call in one.calls + every.calls] == [1, 3]


def test_without_shared_batches_threads_call_the_model_at_the_same_time():
    together = threading.Barrier(4)

    class Remote(Lengths):
        shares_batches = False

        def score(self, queries, texts):
            together.wait(30)
            return super().score(queries, texts)

    stage = Remote()
    with ThreadPoolExecutor(4) as pool:
        frames = [ranking((f"q{n}", "d", "text")) for n in range(4)]
        assert [len(got) for got in pool.map(stage.transform, frames)] == [1] * 4
    assert stage.counts["batches"] == 4


def test_cached_pairs_wait_for_nobody(tmp_path):
    stage = Lengths(cache=tmp_path)
    expected = stage(THREE)
    entered, free = threading.Event(), threading.Event()

    def held(queries, texts):
        entered.set()
        assert free.wait(30)
        return [0.0] * len(texts)

    stage.score = held
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(stage, THREE.assign(query="another"))
        assert entered.wait(30)
        pd.testing.assert_frame_equal(pool.submit(stage, THREE).result(30), expected)
        assert not other.done()
        free.set()


class Recorder(Scorer):
    """Scores a pair by the length of its text, remembers its calls, and fails on `poison`.

    `held` holds every call until it is set."""

    fingerprint = "recorder"

    def __init__(self):
        super().__init__()
        self.calls = []
        self.held = threading.Event()
        self.held.set()
        self.entered = threading.Event()
        self.inside = 0

    def score(self, queries, texts):
        pairs = list(map(Pair, queries, texts))
        self.inside += 1
        assert self.inside == 1, "two threads in the model"
        try:
            self.calls.append(pairs)
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

    def score(self, queries, texts):
        time.sleep(0.002)
        return super().score(queries, texts)


def scored_together(recorder, pairs):
    return recorder.score_pairs(*sides(pairs))


def pairs(*texts):
    return [Pair("q", text) for text in texts]


def waiting(recorder):
    return recorder._batches._waiting


class Crowd:
    """Requests of one thread each, begun in order while the first is in the model."""

    def __init__(self, recorder):
        self.recorder = recorder

    def ask(self, first, *others):
        pool = ThreadPoolExecutor(1 + len(others))
        self.recorder.held.clear()
        self.recorder.entered.clear()
        futures = [pool.submit(scored_together, self.recorder, first)]
        assert self.recorder.entered.wait(30)
        for number, other in enumerate(others, start=1):
            futures.append(pool.submit(scored_together, self.recorder, other))
            until(lambda number=number: len(waiting(self.recorder)) == number)
        self.recorder.held.set()
        pool.shutdown(wait=True)
        return futures


@pytest.fixture
def crowd():
    return Crowd(Recorder())


def test_requests_that_come_while_the_model_is_busy_are_the_next_batch(crowd):
    futures = crowd.ask(pairs("a"), pairs("bb", "ccc"), pairs("d"), pairs("eeee"))
    assert [each.result() for each in futures] == [[1.0], [2.0, 3.0], [1.0], [4.0]]
    assert crowd.recorder.calls == [pairs("a"), pairs("bb", "ccc", "d", "eeee")]
    counts = crowd.recorder.counts
    assert (counts["batches"], counts["pairs_scored"]) == (2, 5)


def test_an_error_reaches_those_alone_whose_pairs_cause_it(crowd):
    good, bad, other = crowd.ask(pairs("a"), pairs("bb"), pairs("poison"), pairs("ccc"))[1:]
    assert good.result() == [2.0]
    assert other.result() == [3.0]
    with pytest.raises(ZeroDivisionError, match=r"^poison$"):
        bad.result()
    assert scored_together(crowd.recorder, pairs("again")) == [5.0]


def test_everyone_is_told_where_every_request_fails(crowd):
    futures = crowd.ask(pairs("poison"), pairs("poison 1"), pairs("poison 2"))
    assert [str(each.exception()) for each in futures] == ["poison", "poison 1", "poison 2"]
    assert not waiting(crowd.recorder) and scored_together(crowd.recorder, pairs("a")) == [1.0]


class Stopped(BaseException):
    """What Ctrl-C is to the thread that it hits."""


def test_an_interruption_inside_the_model_reaches_the_thread_whose_pairs_are_scored(crowd):
    score = crowd.recorder.score

    def stopping(queries, texts):
        if "bb" in texts:
            raise Stopped
        return score(queries, texts)

    crowd.recorder.score = stopping
    first, stopped, other = crowd.ask(pairs("a"), pairs("bb"), pairs("ccc"))
    assert (first.result(), other.result()) == ([1.0], [3.0])
    assert isinstance(stopped.exception(), Stopped)
    assert scored_together(crowd.recorder, pairs("again")) == [5.0]


INTERRUPTED = """
import os, signal, threading, time
from soundingline.pipelines.rerank.reranker import Scorer

class Parts(Scorer):
    fingerprint = "parts"
    parts = 0

    def score(self, queries, texts):
        if texts[0] == "long":
            if not self.parts:
                threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
            for _ in range(3000):
                self._batches.check_wanted()
                self.parts += 1
                time.sleep(0.01)
        return [1.0] * len(texts)

scorer = Parts()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    scorer.score_pairs(["q"], ["long"])
except KeyboardInterrupt:
    print("interrupted")
print(scorer.score_pairs(["q"], ["next"]), scorer.parts < 1000)
"""


def test_after_ctrl_c_nobody_waits_for_the_batch_that_was_in_work():
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "interrupted\n[1.0] True\n", done.stderr


def test_a_batch_is_wanted_while_one_of_its_threads_waits():
    batches, turns = SharedBatches(), []
    entered, checked = threading.Event(), threading.Event()

    def compute(items):
        turns.append(list(items))
        if len(turns) == 1:
            entered.set()
            assert checked.wait(30)
        batches.check_wanted()
        return [2 * item for item in items]

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(batches.results, [1], compute)]
        assert entered.wait(30)
        futures += [pool.submit(batches.results, [number], compute) for number in (2, 3)]
        until(lambda: len(batches._waiting) == 2)
        batches._waiting[0].wanted = False  # as after Ctrl-C in one of the threads
        checked.set()
        assert [each.result(30) for each in futures] == [[2], [4], [6]]
    assert sorted(map(len, turns)) == [1, 2]


def test_a_request_that_is_interrupted_while_it_waits_is_not_computed(crowd, monkeypatch):
    def stopped(request):
        raise Stopped

    recorder = crowd.recorder
    recorder.held.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(scored_together, recorder, pairs("a"))
        assert recorder.entered.wait(30)
        with monkeypatch.context() as patched, pytest.raises(Stopped):
            patched.setattr(_BatchRequest, "result", stopped)
            scored_together(recorder, pairs("bb"))
        recorder.held.set()
        assert first.result(30) == [1.0]
    assert scored_together(recorder, pairs("ccc")) == [3.0]
    assert recorder.calls == [pairs("a"), pairs("ccc")]


def test_no_thread_is_left_that_holds_the_model():
    scorer = Recorder()
    assert scored_together(scorer, pairs("a")) == [1.0]
    kept = weakref.ref(scorer)
    del scorer
    until(lambda: not [each for each in threading.enumerate() if each.name == "batches"])
    gc.collect()
    assert kept() is None


def test_many_threads_get_their_own_scores_and_the_model_one_thread_at_a_time():
    recorder = Slow()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def agent(number):
        for turn in range(40):
            lengths = [1 + (number * 7 + turn * 3 + at) % 90 for at in range(1 + turn % 5)]
            texts = ["x" * length for length in lengths]
            yield scored_together(recorder, pairs(*texts)), [float(length) for length in lengths]

    try:
        with ThreadPoolExecutor(32) as pool:
            for seen in pool.map(lambda number: list(agent(number)), range(32), timeout=120):
                for got, expected in seen:
                    assert got == expected
    finally:
        sys.setswitchinterval(interval)
    counts = recorder.counts
    assert counts["batches"] == len(recorder.calls) < 32 * 40 / 4
    assert not waiting(recorder)


def test_time_in_the_model_is_counted_once_however_many_wait():
    slow = Slow()
    with ThreadPoolExecutor(8) as pool:
        started = time.perf_counter()
        list(pool.map(lambda number: scored_together(slow, pairs(str(number))), range(8)))
        passed = time.perf_counter() - started
    assert 0.002 * slow.counts["batches"] <= slow.counts["seconds"] + 0.001 <= passed + 0.001


def test_a_scorer_that_gives_another_number_of_scores_is_refused():
    class Wrong(Recorder):
        def score(self, queries, texts):
            return [0.0]

    with pytest.raises(InputError, match=r"1 scores for 2 pairs"):
        scored_together(Wrong(), pairs("a", "b"))


def test_who_has_scores_does_not_wait_for_the_next_batch(crowd):
    recorder = crowd.recorder
    recorder.held.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(scored_together, recorder, pairs("a"))
        assert recorder.entered.wait(30)
        second = pool.submit(scored_together, recorder, pairs("bb"))
        until(lambda: len(waiting(recorder)) == 1)
        score, free = recorder.score, threading.Event()

        def blocked(queries, texts):
            assert free.wait(30)
            return score(queries, texts)

        recorder.score = blocked
        recorder.held.set()
        assert first.result(30) == [1.0] and not second.done()
        free.set()
        assert second.result(30) == [2.0]
