"""The base class of re-rankers: head and tail, texts, windows, cache, batches of threads."""

import asyncio
import multiprocessing
import pickle
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import T5_WORDS as WORDS
from support.checkpoints import save_t5
from support.needs import cases
from support.search import store_of

from soundingline.pipelines import BM25, LexicalIndex
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.rerank.reranker import Pair, Reranker, merge_head_and_tail, split_head
from soundingline.toolkit.data import Document, SearchRequest, Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing


def ranked_rows(*rows, **columns):
    """Rows (qid, docno, score) without ranks."""
    return pd.DataFrame(rows, columns=["qid", "docno", "score"]).assign(query="words", **columns)


FIVE = ranked_rows(*((("q", f"d{n}", 9.0 - n)) for n in range(5)))


def new_order(frame, depth, scores):
    head, tail = split_head(frame, depth)
    return merge_head_and_tail(head.assign(score=scores), tail)


def test_the_head_comes_in_its_new_order_and_the_tail_below_it():
    got = new_order(FIVE, 3, [0.1, 0.3, 0.2])
    assert got["docno"].tolist() == ["d1", "d2", "d0", "d3", "d4"]
    assert got["score"].tolist() == [0.3, 0.2, 0.1, -0.9, -1.9]
    assert got["rank"].tolist() == [0, 1, 2, 3, 4]


def test_ranks_decide_what_the_head_is_where_there_are_ranks():
    head, tail = split_head(FIVE.assign(rank=[4, 3, 0, 2, 1]), 2)
    assert head["docno"].tolist() == ["d2", "d4"]
    assert tail["docno"].tolist() == ["d3", "d1", "d0"]


def test_scores_decide_where_there_are_none_and_equal_ones_keep_their_order():
    rows = [("q", "low", 1.0), ("q", "b", 2.0), ("q", "a", 2.0), ("q", "none", float("nan"))]
    head, tail = split_head(ranked_rows(*rows), 2)
    assert head["docno"].tolist() == ["b", "a"]
    assert tail["docno"].tolist() == ["low", "none"]


def test_equal_new_scores_keep_the_retrievers_order():
    assert new_order(FIVE, 4, [1.0, 2.0, 1.0, 2.0])["docno"].tolist() == [
        *("d1", "d3", "d0", "d2", "d4")
    ]


def test_rows_without_a_score_go_to_the_heads_end_in_the_retrievers_order():
    nan = float("nan")
    got = new_order(FIVE, 4, [nan, 0.5, nan, 0.75])
    assert got["docno"].tolist() == ["d3", "d1", "d0", "d2", "d4"]
    assert got["score"].tolist() == [0.75, 0.5, -0.5, -1.5, -2.5]


def test_a_head_without_any_score_keeps_the_retrievers_order():
    got = new_order(FIVE, 2, [float("nan")] * 2)
    assert got["docno"].tolist() == FIVE["docno"].tolist()
    assert got["score"].tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]


def test_infinite_scores_become_finite_ones_in_their_place():
    inf = float("inf")
    got = new_order(FIVE, 3, [-inf, 1.0, inf])
    assert got["docno"].tolist() == ["d2", "d1", "d0", "d3", "d4"]
    assert got["score"].tolist()[:3] == [1e30, 1.0, -1e30]
    assert np.isfinite(got["score"]).all() and got["score"].is_monotonic_decreasing


def test_equal_scores_in_the_tail_stay_equal():
    rows = [("q", f"d{n}", score) for n, score in enumerate([9.0, 5.0, 5.0, 4.0, 4.0])]
    assert new_order(ranked_rows(*rows), 1, [7.0])["score"].tolist() == [7.0, 6.0, 6.0, 5.0, 5.0]


def test_a_tail_that_scores_as_the_head_did_is_still_below_it():
    rows = [("q", f"d{n}", 5.0) for n in range(3)]
    got = new_order(ranked_rows(*rows), 1, [5.0])
    assert got["score"].tolist() == [5.0, 4.0, 4.0]


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


def test_a_docno_that_comes_twice_in_a_query_is_two_rows():
    got = new_order(ranked_rows(("q", "d", 3.0), ("q", "d", 2.0), ("q", "e", 1.0)), 2, [0.0, 1.0])
    assert got["docno"].tolist() == ["d", "d", "e"]
    assert got["score"].tolist() == [1.0, 0.0, -1.0]


def test_extra_columns_stay_with_their_rows_and_keep_their_kinds():
    frame = FIVE.assign(url=[f"u{n}" for n in range(5)], year=range(5)).set_index(pd.Index([7] * 5))
    before = frame.copy()
    got = new_order(frame, 2, [0.0, 1.0])
    assert got["url"].tolist() == ["u1", "u0", "u2", "u3", "u4"]
    assert got["year"].tolist() == [1, 0, 2, 3, 4]
    assert got["year"].dtype == frame["year"].dtype
    assert got.index.tolist() == [0, 1, 2, 3, 4]
    pd.testing.assert_frame_equal(frame, before)


def test_an_empty_frame_gives_an_empty_ranking():
    got = new_order(FIVE.iloc[:0], 3, [])
    assert len(got) == 0
    assert {*FIVE.columns, "rank"} == set(got.columns)


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, "10", None])
def test_a_depth_that_is_not_a_positive_whole_number_is_refused(depth):
    with pytest.raises(InputError, match=r"depth=.* valid: a whole number, 1 or more"):
        split_head(FIVE, depth)


SCORES = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-2, 2).map(float)
ROWS = st.lists(st.tuples(st.sampled_from("abc"), SCORES, SCORES), min_size=1, max_size=40)


@given(ROWS, st.integers(1, 12), st.booleans())
def test_nothing_is_lost_and_every_order_is_kept(rows, depth, ranked):
    frame = ranked_rows(*((qid, f"d{n}", old) for n, (qid, old, _) in enumerate(rows)))
    if ranked:
        frame["rank"] = frame.groupby("qid").cumcount()
    new = dict(zip(frame["docno"], [new for _, _, new in rows], strict=True))
    head, tail = split_head(frame, depth)
    got = merge_head_and_tail(head.assign(score=[new[docno] for docno in head["docno"]]), tail)

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
        # The head: the same documents, by falling new score, ties as before, no numbers last.
        expected = sorted(before[:depth], key=lambda each: (new[each] != new[each], -new[each]))
        assert docnos == expected + before[depth:]
        # Scores: as computed in the head, falling below it, in 32 bits as well.
        scored = sum(new[each] == new[each] for each in expected)
        assert scores[:scored] == [min(max(new[each], -1e30), 1e30) for each in expected[:scored]]
        for at in range(max(1, scored), len(docnos)):
            tied = at > depth and old[docnos[at]] == old[docnos[at - 1]]
            above, here = np.float32(scores[at - 1]), np.float32(scores[at])
            assert above == here if tied else above > here


def test_a_thousand_rows_take_milliseconds():
    # About 1 ms on an idle core; the bound leaves room for a shared machine.
    frame = ranked_rows(*(("q", f"d{n}", 1000.0 - n) for n in range(1000))).assign(rank=range(1000))
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        got = new_order(frame, 50, [float(n % 7) for n in range(50)])
        seconds.append(time.perf_counter() - started)
    assert len(got) == 1000
    assert min(seconds) < 0.01


class Lengths(Reranker):
    """Scores a pair by the length of its text and of its query, and keeps the calls.

    `told` are scores to give to texts instead."""

    counted = ("truncated",)

    def __init__(
        self, named: str = "lengths", told: Mapping[str, float] | None = None, **settings: Any
    ) -> None:
        self.named, self.told = named, told or {}
        self.calls = []
        super().__init__(**settings)

    @property
    def fingerprint(self):
        return self.named

    def score(self, pairs):
        self.calls.append(list(pairs))
        self.count.add(truncated=len(pairs))
        return [self.told.get(p.text, len(p.text) + len(p.query) / 1000) for p in pairs]


class Windows(Lengths):
    """The same, with windows of three characters."""

    def windows(self, pair):
        return [pair.text[start : start + 3] for start in range(0, len(pair.text), 3)]


def ranking(*rows, **columns):
    """Rows (qid, docno, text), best first; the query of a qid is its name."""
    frame = pd.DataFrame(rows, columns=["qid", "docno", "text"], dtype=object)
    ranks = frame.groupby("qid").cumcount()
    return frame.assign(query=frame["qid"], score=100.0 - ranks, rank=ranks, **columns)


THREE = ranking(("q", "d1", "a"), ("q", "d2", "ccc"), ("q", "d3", "bb"))
WITHOUT_TEXT = THREE.drop(columns="text")


class Store:
    """Texts by docno, and what was asked for."""

    def __init__(self, **texts: str) -> None:
        self.texts, self.asked = texts, []  # type: ignore[var-annotated]

    def __call__(self, docnos):
        self.asked.append(list(docnos))
        return [Unit(docno, "", self.texts[docno]) for docno in docnos]


STORE = {"d1": "a", "d2": "ccc", "d3": "bb"}


def test_the_head_is_in_the_scorers_order_and_the_tail_in_the_retrievers():
    got = Lengths(depth=2)(THREE)
    assert got["docno"].tolist() == ["d2", "d1", "d3"]
    assert got["score"].tolist() == [3.001, 1.001, 0.0009999999999998899]
    assert got["rank"].tolist() == [0, 1, 2]
    assert set(got.columns) == set(THREE.columns)


def test_texts_come_from_the_store_for_the_head_alone_and_each_once():
    store = Store(**STORE)
    frame = pd.concat([WITHOUT_TEXT, WITHOUT_TEXT.assign(qid="r", query="r")])
    got = Lengths(texts=store, depth=2)(frame)
    assert store.asked == [["d1", "d2"]]
    assert got["docno"].tolist() == ["d2", "d1", "d3"] * 2
    assert "text" not in got.columns


def test_the_title_stands_in_front_of_the_text_as_it_was_indexed():
    scorer = Lengths(texts=lambda docnos: [Unit(each, "Mills", "a") for each in docnos])
    scorer(WITHOUT_TEXT.iloc[:1])
    assert scorer.calls == [[Pair("q", "Mills\na")]]


def test_a_text_column_is_taken_before_the_store():
    store = Store()
    scorer = Lengths(texts=store)
    scorer(THREE)
    assert store.asked == []
    assert scorer.calls == [[Pair("q", "a"), Pair("q", "ccc"), Pair("q", "bb")]]


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, ""])
def test_missing_text_counts_as_empty_text_and_is_counted(missing):
    stage = Lengths()
    frame = THREE.assign(text=pd.Series(["a", missing, "bb"], dtype=object))
    assert stage(frame)["docno"].tolist() == ["d3", "d1", "d2"]
    assert Pair("q", "") in stage.calls[0]
    assert stage.counts["missing_text"] == 1


def test_a_ranking_without_any_text_is_told_what_to_do():
    with pytest.raises(InputError, match=r"no text .* texts=store.texts, or put pt.text.get_text"):
        Lengths()(WITHOUT_TEXT)


def test_a_document_that_the_store_lacks_is_told():
    store = Store(d1="a", d2="b")
    with pytest.raises(InputError, match=r"names 'd3', which the document store lacks.*same corp"):
        Lengths(texts=store)(WITHOUT_TEXT)


@pytest.mark.parametrize("query", [None, float("nan")])
def test_a_query_that_is_no_text_is_told(query):
    with pytest.raises(InputError, match=r"the query 'q' is (None|nan)\. give each query as text"):
        Lengths()(THREE.assign(query=pd.Series([query] * 3, dtype=object)))


def test_scores_that_are_no_numbers_are_counted_and_put_at_the_heads_end():
    stage = Lengths(told={"ccc": float("nan")}, depth=2)
    got = stage(THREE)
    assert got["docno"].tolist() == ["d1", "d2", "d3"]
    assert stage.counts["unscored"] == 1


def test_an_empty_frame_gives_an_empty_frame_of_the_same_columns_and_asks_nobody():
    scorer = Lengths(texts=Store())
    for frame in (THREE.iloc[:0], WITHOUT_TEXT.iloc[:0].drop(columns="rank")):
        got = scorer(frame)
        assert len(got) == 0
        assert set(got.columns) == {*frame.columns, "rank"}
        assert (got["score"].dtype, got["rank"].dtype) == ("float64", "int64")
    assert scorer.calls == []


def test_all_queries_of_a_frame_are_scored_in_one_call_and_equal_pairs_once():
    scorer = Lengths()
    frame = ranking(("q", "d1", "same"), ("r", "d1", "same"), ("q", "d2", "same"))
    got = scorer(frame)
    assert scorer.calls == [[Pair("q", "same"), Pair("r", "same")]]
    assert got[["qid", "docno"]].to_numpy().tolist() == [["q", "d1"], ["q", "d2"], ["r", "d1"]]


def test_lists_of_different_lengths_and_a_depth_beyond_them():
    rows = [("q", f"d{n}", "x" * n) for n in range(1, 5)] + [("r", "d1", "x")]
    got = Lengths(depth=50)(ranking(*rows))
    assert got["docno"].tolist() == ["d4", "d3", "d2", "d1", "d1"]
    assert got["rank"].tolist() == [0, 1, 2, 3, 0]


def test_a_docno_that_comes_twice_keeps_both_of_its_rows():
    got = Lengths()(ranking(("q", "d", "a"), ("q", "d", "bb")))
    assert got[["docno", "text"]].to_numpy().tolist() == [["d", "bb"], ["d", "a"]]


def test_extra_columns_stay_and_the_input_is_left_as_it_was():
    frame = THREE.assign(url=["u1", "u2", "u3"], query_0="raw", reasoning="because")
    before = frame.copy()
    got = Lengths()(frame)
    assert got["url"].tolist() == ["u2", "u3", "u1"]
    assert got["query_0"].tolist() == ["raw"] * 3
    pd.testing.assert_frame_equal(frame, before)


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


def test_a_model_without_windows_is_refused_by_max_passage():
    with pytest.raises(InputError, match=r"Lengths has no windows.*valid: truncate"):
        Lengths(long_documents="max_passage")


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"depth": 2.0}, {"long_documents": "cut"}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError):
        Lengths(**wrong)


# Caching


def test_a_score_from_the_cache_is_the_computed_one_and_asks_nobody(tmp_path):
    first = Lengths(told={"a": 0.1 + 0.2, "ccc": -1 / 3, "bb": 5e-324}, cache=tmp_path)
    again = Lengths(cache=tmp_path)
    pd.testing.assert_frame_equal(first(THREE), again(THREE), check_exact=True)
    assert again.calls == []
    assert (first.counts["cache_hits"], first.counts["cache_misses"]) == (0, 3)
    assert (again.counts["cache_hits"], again.counts["cache_misses"]) == (3, 0)
    assert again.counts["pairs_scored"] == 0


def test_what_is_not_known_alone_is_scored(tmp_path):
    Lengths(cache=tmp_path, depth=2)(THREE)
    deeper = Lengths(cache=tmp_path, depth=3)
    deeper(THREE)
    assert deeper.calls == [[Pair("q", "bb")]]


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


def test_without_a_cache_there_are_no_hits_to_count():
    stage = Lengths()
    stage(THREE)
    assert "cache_hits" not in stage.counts
    assert stage.counts["truncated"] == stage.counts["pairs_scored"] == 3


TEXT = st.text(st.characters(exclude_categories=[]), max_size=3)


@settings(max_examples=cases(30))  # each makes a file
@given(st.lists(st.tuples(st.sampled_from("qr"), st.sampled_from("abc"), TEXT), max_size=12))
def test_a_cache_never_changes_a_ranking(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("cache")
    frame = ranking(*rows).astype({"qid": str, "query": str, "docno": str})
    expected = Lengths(depth=3)(frame)
    for _ in range(2):
        got = Lengths(depth=3, cache=folder)(frame)
        pd.testing.assert_frame_equal(got, expected, check_exact=True)


def test_long_frames_are_kept_piece_by_piece(tmp_path):
    class Killed(Lengths):
        def score(self, pairs):
            if self.calls:
                raise KeyboardInterrupt
            return super().score(pairs)

    frame = ranking(*(("q", f"d{n}", "x" * (n % 50)) for n in range(5000)))
    with pytest.raises(KeyboardInterrupt):
        Killed(depth=5000, cache=tmp_path)(frame)
    again = Lengths(depth=5000, cache=tmp_path)
    assert len(again(frame)) == 5000
    assert again.counts["cache_hits"] == 4096


def _in_another_process(folder, done):
    stage = Lengths(cache=folder)
    got = stage(THREE)
    done.put((got["score"].tolist(), stage.counts["cache_hits"]))


def test_processes_share_a_cache_however_they_began(tmp_path):
    expected = Lengths(cache=tmp_path)(THREE)["score"].tolist()
    for start in ("fork", "spawn"):
        context = multiprocessing.get_context(start)
        done = context.Queue()
        worker = context.Process(target=_in_another_process, args=(tmp_path, done))
        worker.start()
        assert done.get(timeout=60) == (expected, 3)
        worker.join(60)


# As a PyTerrier stage


def test_settings_make_it_equal_and_the_cache_does_not(tmp_path):
    stage = Windows(depth=5)
    assert stage == Windows(depth=5, cache=tmp_path)
    assert hash(stage) == hash(Windows(depth=5, cache=tmp_path))
    store = Store()
    for other in (
        Windows(depth=6),
        Windows("other", depth=5),
        Windows(depth=5, long_documents="max_passage"),
        Windows(depth=5, texts=store),
    ):
        assert stage != other
    assert Windows(texts=store) == Windows(texts=store)


def test_pyterrier_sees_what_it_needs_and_gives():
    without, with_store = Lengths(), Lengths(texts=Store())
    needed = ["qid", "docno", "query", "score"]
    assert pt.inspect.transformer_inputs(with_store) == [needed]
    assert pt.inspect.transformer_inputs(without) == [[*needed, "text"]]
    assert set(pt.inspect.transformer_outputs(with_store, needed)) == {*needed, "rank"}
    drawn = pt.schematic.transformer_schematic(with_store)
    assert drawn["label"] == "Lengths %50"


def test_queries_without_results_are_refused_as_pyterrier_does():
    with pytest.raises(pt.validate.InputValidationError):
        Lengths()(pd.DataFrame({"qid": ["1"], "query": ["x"]}))


QUERIES = pd.DataFrame({"qid": ["q", "r"], "query": ["q", "r"]})


def test_it_composes_and_is_cut_after_the_tail_was_put_below():
    retriever = pt.Transformer.from_df(THREE, uniform=False)
    got = (retriever >> Lengths(depth=2) % 2)(QUERIES)
    assert got["docno"].tolist() == ["d2", "d1"]
    got = (retriever % 2 >> Lengths(depth=3))(QUERIES)
    assert got["docno"].tolist() == ["d2", "d1"]
    got = (retriever >> Lengths() >> MaxP())(QUERIES)
    assert got["docno"].tolist() == ["d2", "d3", "d1"]


def test_an_experiment_asks_equal_stages_once():
    retriever = pt.Transformer.from_df(THREE, uniform=False)
    one, every = Lengths(depth=1), Lengths()
    deep = retriever >> every
    result = pt.Experiment(
        [retriever, retriever >> one, deep, deep % 2],
        QUERIES.iloc[:1],
        pd.DataFrame({"qid": ["q"], "docno": ["d2"], "label": [1]}),
        ["recip_rank"],
        names=["retriever", "one", "all", "cut"],
        plan="tree",
        validate="error",
    )
    assert result["recip_rank"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert [len(call) for call in one.calls + every.calls] == [1, 3]


# Behind the search tool


SUBJECTS = ("harbour", "mill", "bridge", "lighthouse", "orchard", "quarry", "chapel", "ferry")


def corpus(size):
    """Every document speaks of the town, and of a subject as often as its number says."""
    documents = {}
    for n in range(size):
        subject = SUBJECTS[n % len(SUBJECTS)]
        words = f"town {subject} " * (1 + n % 5) + f"number{n} " * (1 + n % 3)
        documents[f"d{n}"] = Document(f"d{n}", f"The {subject}", words)
    return documents


def bm25(documents, path):
    units = (Unit(each.docid, each.title, each.text) for each in documents.values())
    return BM25(index=LexicalIndex.build(units, path), depth=1000)


def browse(tool, query):
    """All documents of a ranking, by search and page after page."""
    result = tool.call("search", {"reason": "", "query": query})
    shown = list(result.call.shown)
    total = len(result.call.ranking)
    while len(shown) < total:
        arguments = {"search_id": "s1", "offset": len(shown) + 1, "limit": 50}
        shown += tool.call("read_search_results", {"reason": "", **arguments}).call.shown
    return shown


def test_a_thousand_deep_ranking_pages_unchanged_below_the_head(tmp_path):
    documents = corpus(1200)
    store = store_of(documents)
    retriever = bm25(documents, tmp_path / "index")
    scorer = Lengths(texts=store.texts, depth=20)
    pipeline = retriever >> scorer
    before, after = (
        browse(RankedBrowsing().open(PipelineBackend(each), store), "town")
        for each in (retriever, pipeline)
    )
    assert len(before) == 1000
    assert before[20:] == after[20:]
    assert sorted(before[:20]) == sorted(after[:20])
    assert before[:20] != after[:20]
    lengths = [len(documents[docid].title + documents[docid].text) for docid in after[:20]]
    assert lengths == sorted(lengths, reverse=True)
    assert [len(call) for call in scorer.calls] == [20]


class Busy(Lengths):
    """A scorer that takes 50 ms for a batch, during which other threads run. Many searches arrive
    in this time on a slow or busy machine too."""

    def score(self, pairs):
        time.sleep(0.05)
        return super().score(pairs)


AGENTS = 32


async def agents(pipeline, searches):
    """The rankings of 32 questions, each of which searches again when it has its results, in the
    threads that a run gives to them."""
    backend = PipelineBackend(pipeline)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2 * AGENTS, "question"))

    async def ask(number):
        rankings = []
        for turn in range(searches):
            query = f"town {SUBJECTS[(number + turn) % len(SUBJECTS)]} number{number}"
            result = await asyncio.to_thread(backend.search, SearchRequest(query, depth=50))
            rankings.append([(hit.docid, hit.score) for hit in result.hits])
        return rankings

    asked = await asyncio.gather(*(ask(number) for number in range(AGENTS)))
    return [ranking for rankings in asked for ranking in rankings]


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    documents = corpus(400)
    yield store_of(documents), bm25(documents, tmp_path_factory.mktemp("town") / "index")


def one_by_one(pipeline, searches):
    backend = PipelineBackend(pipeline)
    rankings = []
    for number in range(AGENTS):
        for turn in range(searches):
            query = f"town {SUBJECTS[(number + turn) % len(SUBJECTS)]} number{number}"
            hits = backend.search(SearchRequest(query, depth=50)).hits
            rankings.append([(hit.docid, hit.score) for hit in hits])
    return rankings


def test_32_agents_fill_batches_and_get_the_scores_of_one_by_one(town):
    store, retriever = town
    alone = Lengths(texts=store.texts, depth=10)
    stage = Busy(texts=store.texts, depth=10)
    got = asyncio.run(agents(retriever >> stage, searches=6))
    assert got == one_by_one(retriever >> alone, searches=6)
    counts = stage.counts
    assert counts["gathered_requests"] == 6 * AGENTS == alone.counts["batches"]
    # The first request is scored alone. Requests that arrive while the scorer works share the next
    # batch: about half of the agents, and a quarter of them at least on a busy machine.
    assert counts["batches"] <= 6 * AGENTS / 4
    assert counts["largest_batch"] >= 10 * AGENTS / 4


def test_32_agents_get_the_scores_of_one_by_one_from_a_model(town, tmp_path):
    torch = pytest.importorskip("torch")
    from soundingline.pipelines.rerank.monot5 import MonoT5

    torch.set_num_threads(1)
    store, retriever = town
    model = str(save_t5(tmp_path, words=(*WORDS, *SUBJECTS)))
    stage = MonoT5(model, dtype="float32", texts=store.texts, depth=10)
    got = asyncio.run(agents(retriever >> stage, searches=2))
    gathered = stage.counts["batches"]
    expected = one_by_one(retriever >> stage, searches=2)
    assert gathered <= 2 * AGENTS / 2
    for mine, alone in zip(got, expected, strict=True):
        # Sums of another batch's shape differ in the last bit, and so may the order of equals.
        assert dict(mine) == pytest.approx(dict(alone), abs=1e-5)
        head = [score for _, score in mine[:10]]
        assert head == sorted(head, reverse=True)
        assert len(set(head)) > 1


def test_cached_pairs_wait_for_nobody(town, tmp_path):
    store, retriever = town
    scorer = Lengths(texts=store.texts, depth=10, cache=tmp_path)
    pipeline = retriever >> scorer
    expected = one_by_one(pipeline, searches=1)
    asked = len(scorer.calls)
    scorer._queue.busy = True  # as while another batch is in the model
    assert asyncio.run(asyncio.wait_for(agents(pipeline, searches=1), 30)) == expected
    assert len(scorer.calls) == asked


def test_without_shared_batches_threads_call_the_model_at_the_same_time():
    together = threading.Barrier(4)

    class Remote(Lengths):
        shares_batches = False

        def score(self, pairs):
            together.wait(30)
            return super().score(pairs)

    stage = Remote()
    with ThreadPoolExecutor(4) as pool:
        frames = [ranking((f"q{n}", "d", "text")) for n in range(4)]
        assert [len(got) for got in pool.map(stage.transform, frames)] == [1] * 4
    assert stage.counts["batches"] == 4
    assert "gathered_requests" not in stage.counts


def test_an_agents_missing_document_is_its_own_error(town):
    store, retriever = town
    stage = Busy(texts=store.texts, depth=10)
    broken = pt.apply.generic(
        lambda frame: frame.assign(docno="gone") if "chapel" in frame["query"].iloc[0] else frame
    )
    backend = PipelineBackend(retriever >> broken >> stage)

    def ask(subject):
        try:
            return str(len(backend.search(SearchRequest(f"town {subject}", depth=20)).hits))
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(len(SUBJECTS)) as pool:
        told = dict(zip(SUBJECTS, pool.map(ask, SUBJECTS), strict=True))
    assert "'gone', which the document store lacks" in told.pop("chapel")
    assert set(told.values()) == {"20"}


# A model without a fingerprint of its own


@dataclass(kw_only=True, eq=False, repr=False)
class Declared(Reranker):
    """A re-ranker as a user writes it."""

    weight: float = 1.0

    def score(self, pairs):
        return [self.weight * len(pair.text) for pair in pairs]


def test_arguments_and_source_name_the_scores_of_a_model(tmp_path):
    one, two = Declared(depth=2, cache=tmp_path), Declared(weight=2.0)
    assert one.fingerprint == Declared(depth=3).fingerprint != two.fingerprint
    assert one == Declared(depth=2) != Declared(depth=2, weight=2.0)
    assert repr(two).startswith("Declared(") and "weight=2.0" in repr(two)


def test_a_re_ranker_travels_to_another_process_without_its_model():
    stage = Declared(weight=2.0, depth=2)
    stage(THREE)
    copied = pickle.loads(pickle.dumps(stage))
    assert copied == stage and copied.counts["batches"] == 0
    pd.testing.assert_frame_equal(copied(THREE), stage(THREE))


def test_a_model_that_does_not_score_is_refused():
    with pytest.raises(TypeError, match=r"abstract.*score"):
        Reranker()  # type: ignore[abstract]


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


def test_a_scorer_that_gives_another_number_of_scores_is_refused():
    class Wrong(Recorder):
        def score(self, pairs):
            return [0.0]

    with pytest.raises(InputError, match=r"1 scores for 2 pairs"):
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
