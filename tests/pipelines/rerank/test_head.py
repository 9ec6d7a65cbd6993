import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.pipelines.rerank.reranker import merge_head_and_tail, split_head
from soundingline.toolkit.errors import InputError


def ranking(*rows, **columns):
    """Rows (qid, docno, score) without ranks."""
    return pd.DataFrame(rows, columns=["qid", "docno", "score"]).assign(query="words", **columns)


FIVE = ranking(*((("q", f"d{n}", 9.0 - n)) for n in range(5)))


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
    head, tail = split_head(ranking(*rows), 2)
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
    assert new_order(ranking(*rows), 1, [7.0])["score"].tolist() == [7.0, 6.0, 6.0, 5.0, 5.0]


def test_a_tail_that_scores_as_the_head_did_is_still_below_it():
    rows = [("q", f"d{n}", 5.0) for n in range(3)]
    got = new_order(ranking(*rows), 1, [5.0])
    assert got["score"].tolist() == [5.0, 4.0, 4.0]


def test_queries_of_different_lengths_stay_apart_and_in_their_order():
    rows = [("b", "d1", 5.0), ("a", "d1", 4.0), ("b", "d2", 3.0), ("b", "d3", 2.0), ("c", "x", 1.0)]
    got = new_order(ranking(*rows), 2, [1.0, 2.0, 8.0, 9.0])
    assert got[["qid", "docno", "score", "rank"]].to_numpy().tolist() == [
        ["b", "d2", 2.0, 0],
        ["b", "d1", 1.0, 1],
        ["b", "d3", 0.0, 2],
        ["a", "d1", 8.0, 0],
        ["c", "x", 9.0, 0],
    ]


def test_a_docno_that_comes_twice_in_a_query_is_two_rows():
    got = new_order(ranking(("q", "d", 3.0), ("q", "d", 2.0), ("q", "e", 1.0)), 2, [0.0, 1.0])
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
    frame = ranking(*((qid, f"d{n}", old) for n, (qid, old, _) in enumerate(rows)))
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
    frame = ranking(*(("q", f"d{n}", 1000.0 - n) for n in range(1000))).assign(rank=range(1000))
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        got = new_order(frame, 50, [float(n % 7) for n in range(50)])
        seconds.append(time.perf_counter() - started)
    assert len(got) == 1000
    assert min(seconds) < 0.01
