import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soundingline.pipelines.compose import MaxP
from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import InputError


def ranking(*rows, **columns):
    frame = pd.DataFrame(rows, columns=["qid", "docno", "score"])
    return frame.assign(query="words", rank=range(len(rows)), **columns)


def test_a_document_gets_its_best_passage_and_a_new_rank():
    got = MaxP()(
        ranking(
            ("q1", "d1%p3", 1.0),
            ("q1", "d2%p0", 5.0),
            ("q1", "d1%p0", 4.0),
            ("q1", "d3%p1", 2.0),
            ("q1", "d2%p9", 3.0),
        )
    )
    assert got["docno"].tolist() == ["d2", "d1", "d3"]
    assert got["score"].tolist() == [5.0, 4.0, 2.0]
    assert got["rank"].tolist() == [0, 1, 2]
    assert got["passage"].tolist() == ["d2%p0", "d1%p0", "d3%p1"]


def test_extra_columns_are_those_of_the_best_passage():
    got = MaxP()(
        ranking(("q", "d%p0", 1.0), ("q", "d%p1", 2.0), text=["worse", "better"], url=["u0", "u1"])
    )
    assert got[["text", "url", "query"]].to_numpy().tolist() == [["better", "u1", "words"]]


def test_any_docno_is_taken():
    docnos = ["plain", "has%pinside", "has%pinside%p2", "x%p", "x%p1%p2", "%p7", "x%p-1"]
    got = MaxP()(ranking(*(("q", docno, 9.0 - i) for i, docno in enumerate(docnos))))
    assert got["docno"].tolist() == ["plain", "has%pinside", "x%p", "x%p1", "", "x%p-1"]


def test_equal_scores_keep_the_order_in_which_they_came():
    rows = [("q", f"d{i}%p{n}", 1.0) for i, n in [(5, 0), (2, 1), (5, 9), (9, 0), (2, 0)]]
    got = MaxP()(ranking(*rows))
    assert got["passage"].tolist() == ["d5%p0", "d2%p1", "d9%p0"]


def test_queries_stay_apart_and_in_their_order():
    got = MaxP()(
        ranking(("b", "d1%p0", 1.0), ("a", "d1%p1", 7.0), ("b", "d2%p0", 2.0), ("a", "d1%p0", 8.0))
    )
    assert got[["qid", "docno", "rank"]].to_numpy().tolist() == [
        ["b", "d2", 0],
        ["b", "d1", 1],
        ["a", "d1", 0],
    ]


def test_depth_keeps_the_best_documents_of_each_query():
    frame = ranking(*((q, f"d{i}%p0", float(i)) for q in "ab" for i in range(5)))
    got = MaxP(depth=2)(frame)
    assert got["docno"].tolist() == ["d4", "d3"] * 2
    assert got["rank"].tolist() == [0, 1] * 2


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["q1", "q2", "q3"]),
        st.sampled_from(["d1", "d1%p0", "d1%p1", "d2%p0", "d2%p1", "d3%p12"]),
        st.integers(-3, 3).map(float),
    ),
    min_size=1,
)


@settings(deadline=None)
@given(ROWS, st.none() | st.integers(1, 3))
def test_it_agrees_with_the_definition(rows, depth):
    expected = []
    for qid in dict.fromkeys(row[0] for row in rows):
        best = {}
        for row in sorted((row for row in rows if row[0] == qid), key=lambda row: -row[2]):
            best.setdefault(parent(row[1]), row)
        documents = list(best.items())[:depth]
        expected += [[qid, doc, *row[1:], rank] for rank, (doc, row) in enumerate(documents)]
    got = MaxP(depth)(ranking(*rows))
    columns = ["qid", "docno", "passage", "score", "rank"]
    assert got[columns].to_numpy().tolist() == expected


def test_the_input_is_left_as_it_was_whatever_its_row_labels():
    frame = ranking(("q", "d%p0", 1.0), ("q", "d%p1", 2.0)).set_index(pd.Index([7, 7]))
    before = frame.copy()
    assert MaxP()(frame)["passage"].tolist() == ["d%p1"]
    pd.testing.assert_frame_equal(frame, before)


def test_an_empty_frame_gives_an_empty_frame_of_the_same_columns():
    empty = ranking(("q", "d%p0", 1.0)).iloc[:0]
    got = MaxP()(empty)
    assert len(got) == 0
    assert set(got.columns) == {*empty.columns, "passage"}


def test_queries_without_results_are_refused_as_pyterrier_does():
    with pytest.raises(pt.validate.InputValidationError):
        MaxP()(pd.DataFrame({"qid": ["1"], "query": ["x"]}))


def test_pyterrier_sees_what_it_gives():
    given_columns = ["qid", "query", "docno", "score", "rank", "text"]
    assert set(pt.inspect.transformer_outputs(MaxP(), given_columns)) == {*given_columns, "passage"}


def test_equal_settings_are_equal_stages():
    assert MaxP(5) == MaxP(5)
    assert hash(MaxP(5)) == hash(MaxP(5))
    assert MaxP(5) != MaxP()
    assert (repr(MaxP()), repr(MaxP(depth=5))) == ("MaxP(depth=None)", "MaxP(depth=5)")


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, "10"])
def test_a_depth_that_is_not_a_positive_whole_number_is_refused(depth):
    with pytest.raises(InputError, match=r"depth of MaxP=.* valid: a whole number, 1 or more"):
        MaxP(depth)


def test_it_takes_part_in_a_pipeline():
    frame = ranking(("q", "d1%p0", 3.0), ("q", "d1%p1", 2.0), ("q", "d2%p0", 1.0))
    pipeline = pt.Transformer.from_df(frame, uniform=True) >> MaxP() % 1
    got = pipeline(pd.DataFrame({"qid": ["q"], "query": ["words"]}))
    assert got["docno"].tolist() == ["d1"]
