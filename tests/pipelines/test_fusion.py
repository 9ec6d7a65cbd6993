"""Fusion against values computed by hand."""

from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest

from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.fusion import Interpolation, ReciprocalRankFusion
from soundingline.pipelines.index_folder import OpenedIndex
from soundingline.pipelines.retrieve import BM25, QueryLikelihood
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


class Fixed(pt.Transformer):
    """Ranks that are given; `added` is a column of its own, and the query is rewritten."""

    def __init__(self, rankings: dict[str, dict[str, float]], query: str = "rewritten") -> None:
        self.rankings, self.query = rankings, query

    def transform(self, inp):
        pt.validate.query_frame(inp, extra_columns=["query"])
        rows = [
            {**row, "query": self.query, "docno": docno, "score": score, "rank": n, "added": 1}
            for row in inp.to_dict("records")
            for n, (docno, score) in enumerate(self.rankings.get(row["qid"], {}).items())
        ]
        columns = [*inp.columns, "docno", "score", "rank", "added"]
        return pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))


FIRST = Fixed({"b": {"x": 9.0, "y": 5.0, "z": 1.0}, "a": {"x": 3.0}}, "one")
SECOND = Fixed({"b": {"z": 0.9, "w": 0.5, "x": 0.4}}, "other")


class TwoRankings(OpenedIndex):
    """Ranks as `FIRST` for BM25, and as `SECOND` for k1=2 and for query likelihood."""

    def __init__(self) -> None:
        self.models = []

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__

    def rank(self, queries, model, depth):
        self.models.append(model)
        fixed = FIRST if getattr(model, "k1", 2) != 2 else SECOND
        found = [fixed.rankings.get(query.split()[-1], {}) for query in queries]
        return [RankedList(list(each), list(each.values())) for each in found]


def frame(*qids):
    return pd.DataFrame(
        {"qid": list(qids), "query": [f"query {qid}" for qid in qids], "reasoning": "why"}
    )


def scores(found, qid):
    hits = found[found["qid"] == qid]
    assert hits["rank"].tolist() == list(range(len(hits)))
    assert hits["score"].is_monotonic_decreasing
    return dict(zip(hits["docno"], hits["score"], strict=True))


def test_reciprocal_ranks_count_from_one():
    found = scores(ReciprocalRankFusion(FIRST, SECOND)(frame("b")), "b")
    assert found == pytest.approx(
        {"z": 1 / 63 + 1 / 61, "x": 1 / 61 + 1 / 63, "y": 1 / 62, "w": 1 / 62}
    )
    # Equal scores by docno.
    assert list(found) == ["x", "z", "w", "y"]


def test_k_weighs_the_first_ranks():
    found = scores(ReciprocalRankFusion(FIRST, SECOND, k=0)(frame("b")), "b")
    assert found == pytest.approx({"x": 1 + 1 / 3, "z": 1 / 3 + 1, "y": 1 / 2, "w": 1 / 2})


def test_ranks_are_those_of_the_ranking_also_where_scores_say_otherwise():
    odd = Fixed({"b": {"x": 1.0, "y": 2.0}})
    found = scores(ReciprocalRankFusion(odd, Fixed({}))(frame("b")), "b")
    assert found == pytest.approx({"x": 1 / 61, "y": 1 / 62})


def test_scores_are_brought_to_one_scale_and_weighted():
    found = scores(Interpolation(FIRST, SECOND, weight=0.25)(frame("b")), "b")
    # first: x 1, y 0.5, z 0; second: z 1, w 0.2, x 0. What a list lacks has its minimum, 0.
    expected = {"z": 0.75, "x": 0.25, "w": 0.75 * 0.2, "y": 0.25 * 0.5}
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_scores_may_be_taken_as_they_are_and_a_missing_document_has_the_lowest():
    found = scores(Interpolation(FIRST, SECOND, weight=0.5, normalise=None)(frame("b")), "b")
    expected = {"x": 4.5 + 0.2, "y": 2.5 + 0.2, "z": 0.5 + 0.45, "w": 0.5 + 0.25}
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_equal_scores_are_brought_to_one_and_what_was_not_found_to_zero():
    same = Fixed({"b": {"x": 7.0, "y": 7.0}})
    found = scores(Interpolation(same, Fixed({"b": {"z": 4.0}}))(frame("b")), "b")
    assert found == {"x": 0.5, "y": 0.5, "z": 0.5}


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_weight_at_its_end_keeps_one_order(weight):
    found = scores(Interpolation(FIRST, SECOND, weight=weight)(frame("b")), "b")
    alone = (FIRST if weight else SECOND).rankings["b"]
    assert [docno for docno in found if docno in alone] == list(alone)


@pytest.mark.parametrize("kind", [ReciprocalRankFusion, Interpolation])
class TestEveryFusion:
    def test_keeps_the_input_s_columns_and_its_order_of_queries(self, kind):
        found = kind(FIRST, SECOND)(frame("b", "c", "a").assign(query_0="before"))
        assert list(found.columns) == [
            *("qid", "query", "reasoning", "query_0", "docno", "score", "rank")
        ]
        # Nothing was found for c, by either.
        assert found["qid"].tolist() == ["b"] * 4 + ["a"]
        assert found["query"].tolist() == ["query b"] * 4 + ["query a"]
        assert set(found["reasoning"]) == {"why"}
        assert set(found["query_0"]) == {"before"}

    def test_takes_a_ranking_of_one_alone(self, kind):
        assert list(scores(kind(FIRST, Fixed({}))(frame("b")), "b")) == ["x", "y", "z"]
        assert list(scores(kind(Fixed({}), FIRST)(frame("b")), "b")) == ["x", "y", "z"]

    def test_gives_an_empty_frame_for_none_and_for_nothing_found(self, kind):
        for fusion, asked in ((kind(FIRST, SECOND), frame()), (kind(FIRST, SECOND), frame("c"))):
            found = fusion(asked)
            assert len(found) == 0
            assert {"qid", "query", "reasoning", "docno", "score", "rank"} <= set(found.columns)

    def test_cuts_at_the_depth(self, kind):
        whole = kind(FIRST, SECOND)(frame("b"))
        cut = kind(FIRST, SECOND, depth=2)
        pd.testing.assert_frame_equal(cut(frame("b")), whole[:2])
        assert (kind(FIRST, SECOND) % 2).compile() == cut
        assert hash((kind(FIRST, SECOND) % 2).compile()) == hash(cut)

    def test_leaves_its_input_and_the_rankings_as_they_were(self, kind):
        asked = frame("b")
        before = asked.copy()
        kept = FIRST(asked)

        class Keeps(pt.Transformer):
            def transform(self, inp):
                return kept

        copied = kept.copy()
        kind(Keeps(), SECOND)(asked)
        pd.testing.assert_frame_equal(asked, before)
        pd.testing.assert_frame_equal(kept, copied)

    def test_differs_from_one_of_other_retrievers_or_settings(self, kind):
        assert kind(FIRST, SECOND) == kind(FIRST, SECOND)
        assert kind(FIRST, SECOND) != kind(SECOND, FIRST)
        assert kind(FIRST, SECOND) != kind(FIRST, SECOND, depth=5)

    def test_is_inspected_and_continued_by_pyterrier(self, kind):
        fusion = kind(FIRST, SECOND)
        assert set(pt.inspect.transformer_outputs(fusion, ["qid", "query"])) == {
            *("qid", "query", "docno", "score", "rank")
        }
        assert len((fusion >> pt.apply.doc_score(lambda row: 1.0))(frame("b"))) == 4


def test_wrong_settings_are_refused_with_what_is_valid():
    with pytest.raises(InputError, match=r"weight=1\.5"):
        Interpolation(FIRST, SECOND, weight=1.5)
    with pytest.raises(InputError, match="null, minmax"):
        Interpolation(FIRST, SECOND, normalise="z")
    with pytest.raises(InputError, match="k=-1"):
        ReciprocalRankFusion(FIRST, SECOND, k=-1)
    with pytest.raises(InputError, match="depth=0"):
        Interpolation(FIRST, SECOND, depth=0)


@pytest.mark.parametrize("kind", [ReciprocalRankFusion, Interpolation])
def test_both_retrievers_are_bound_and_checked(kind):
    fusion = kind(BM25(k1=1), BM25(k1=2))
    bound = fusion.bind(Collection("c1", index=TwoRankings()))
    pd.testing.assert_frame_equal(bound(frame("b")), kind(FIRST, SECOND)(frame("b")))
    with pytest.raises(InputError, match="not bound"):
        fusion(frame("b"))
    with pytest.raises(InputError, match="pisa offers no ql"):
        kind(BM25(), QueryLikelihood()).check(PisaEngine())


@pytest.mark.parametrize("option", ["fusion_rrf", "fusion_interpolation"])
def test_options_nest_any_two_retrievers(option):
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from soundingline.experiments.config import register

    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        overrides = [
            f"retriever={option}",
            "retriever@retriever.second=ql",
            "retriever.first.depth=7",
            "retriever.second.mu=5",
        ]
        config = compose("config", overrides=overrides)
    made = instantiate(config.retriever)
    assert made.first == BM25(k1=25.0, b=1.0, depth=7)
    assert made.second == QueryLikelihood(mu=5)
    index = TwoRankings()
    fusion = made.bind(Collection("c1", index=index))
    assert len(fusion(frame("b"))) == 4
    assert index.models == [fusion.first, fusion.second]
