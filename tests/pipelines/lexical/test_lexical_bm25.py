from __future__ import annotations

import pandas as pd
import pyterrier as pt
import pytest
from ir_measures import AP, P

from soundingline.pipelines import BM25, LexicalIndex
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

TEXTS = ["alpha beta gamma", "alpha alpha delta", "beta", "omega omega", "", "alphas"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(TEXTS)]
    return LexicalIndex.build(units, tmp_path_factory.mktemp("bm25") / "index")


def frame(*queries):
    return pd.DataFrame(
        [(f"q{n}", query) for n, query in enumerate(queries)], columns=["qid", "query"]
    )


def test_a_frame_holds_the_ranking_of_each_query_in_turn(index):
    out = index.bm25()(frame("Betas", "nothing here", "the alpha"))
    assert list(out.columns) == ["qid", "query", "docno", "score", "rank"]
    assert out["qid"].tolist() == ["q0", "q0", "q2", "q2", "q2"]
    assert out["docno"].tolist()[:2] == ["d2", "d0"]
    assert set(out["docno"][2:]) == {"d0", "d1", "d5"}
    assert out["rank"].tolist() == [0, 1, 0, 1, 2]
    assert out["query"].tolist() == ["Betas", "Betas", *["the alpha"] * 3]
    _, scores = index.search(["beta"])
    assert out["score"].tolist()[:2] == scores.tolist()
    assert out["score"].dtype == "float64"
    assert out["rank"].dtype == "int64"


def test_weights_by_term_are_taken_as_index_terms(index):
    inp = pd.DataFrame([{"qid": "1", "query": "omega", "query_toks": {"beta": 2.5, "Beta": 9.0}}])
    out = index.bm25()(inp)
    _, scores = index.search({"beta": 2.5})
    assert out["docno"].tolist() == ["d2", "d0"]
    assert out["score"].tolist() == scores.tolist()
    assert index.bm25()(inp.drop(columns="query"))["docno"].tolist() == ["d2", "d0"]


def test_weights_that_are_no_mapping_are_refused(index):
    with pytest.raises(InputError, match="query_toks holds"):
        index.bm25()(pd.DataFrame([{"qid": "1", "query_toks": "beta"}]))


def test_other_columns_are_kept_and_an_earlier_ranking_is_not(index):
    inp = frame("alpha", "beta").assign(query_0="raw", reasoning=["r0", "r1"], score=1.0, rank=7)
    out = index.bm25(depth=1)(inp)
    assert set(out.columns) == {*inp.columns, "docno"}
    assert out["reasoning"].tolist() == ["r0", "r1"]
    assert out["rank"].tolist() == [0, 0]


@pytest.mark.parametrize("queries", [[], ["nothing"]])
def test_no_result_is_an_empty_frame_of_the_same_columns_and_types(index, queries):
    full, out = index.bm25()(frame("alpha")), index.bm25()(frame(*queries))
    assert len(out) == 0
    assert list(out.columns) == list(full.columns)
    assert (out["score"].dtype, out["rank"].dtype) == (full["score"].dtype, full["rank"].dtype)


def test_an_input_without_its_columns_is_refused(index):
    for columns in (["qid"], ["query"], ["query", "docno"], ["qid", "docno"]):
        with pytest.raises(pt.validate.InputValidationError):
            index.bm25()(pd.DataFrame(columns=columns))


def test_a_transformer_equals_another_of_the_same_index_and_settings(index):
    again = LexicalIndex.open(index.path)
    assert index.bm25(k1=2) == again.bm25(k1=2)
    assert hash(index.bm25(k1=2)) == hash(again.bm25(k1=2))
    for other in (index.bm25(), index.bm25(k1=2, b=1), index.bm25(k1=2, depth=5)):
        assert index.bm25(k1=2) != other


def test_the_settings_are_in_the_representation(index):
    assert repr(index.bm25(k1=25, b=1.0, depth=7)) == (
        f"BM25(depth=7, index=LexicalIndex({str(index.path)!r}), k1=25, b=1.0, source=None)"
    )


@pytest.mark.parametrize("setting", [{"k1": -1}, {"b": 1.5}, {"depth": 0}])
def test_settings_without_meaning_are_refused(index, setting):
    with pytest.raises(InputError, match="valid: "):
        index.bm25(**setting)  # type: ignore[arg-type]


def test_it_works_with_pyterriers_operators(index):
    upper = pt.apply.query(lambda row: row["query"].upper())
    piped = (upper >> index.bm25())(frame("alpha beta"))
    assert piped["docno"].tolist() == index.bm25()(frame("alpha beta"))["docno"].tolist()
    assert len((index.bm25() % 1)(frame("alpha", "beta"))) == 2
    assert index.bm25(depth=10).fuse_rank_cutoff(2) == index.bm25(depth=2) % 2
    assert index.bm25(depth=2).fuse_rank_cutoff(10) is None
    assert len((index.bm25() | index.bm25(b=0))(frame("alpha"))) == 3


def test_pyterrier_can_inspect_it(index):
    assert ["qid", "query"] in pt.inspect.transformer_inputs(index.bm25())
    assert pt.inspect.transformer_outputs(index.bm25(), ["qid", "query"]) == [
        "qid",
        "query",
        "docno",
        "score",
        "rank",
    ]


def test_it_works_in_an_experiment(index):
    qrels = pd.DataFrame({"qid": ["q0", "q1"], "docno": ["d2", "d3"], "label": [1, 1]})
    table = pt.Experiment(
        [index.bm25()], frame("beta", "omega"), qrels, [AP, P @ 1], names=["bm25"]
    )
    assert table.iloc[0]["AP"] == 1.0
    assert table.iloc[0]["P@1"] == 1.0


def test_it_needs_no_java(index):
    index.bm25()(frame("alpha"))
    assert not pt.java.started()


def test_it_is_made_from_an_open_index(index, tmp_path):
    assert isinstance(BM25(index=LexicalIndex.open(index.path), k1=25, b=1.0), pt.Transformer)
    with pytest.raises(InputError, match="build it: soundingline index"):
        LexicalIndex.open(tmp_path / "none")
