"""Link expansion against values computed by hand; the oracle: judged evidence first, in the units
that are indexed, and its base behind it."""

from dataclasses import replace

import pandas as pd
import pyterrier as pt
import pytest
from support.assertions import refused

from soundingline.pipelines import LinkExpansion, OracleRetriever
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.retrieve import RM3
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.benchmark import LinkGraph
from soundingline.toolkit.data import Link, Unit
from soundingline.toolkit.errors import InputError


def graph(*pairs):
    return LinkGraph.build([Link(*pair.split(">")) for pair in pairs])


LINKS = graph("a>x", "a>y", "b>x", "z>a", "c>w", "x>c")


def ranking(**scores):
    """One query's ranking, best first; `_` in a name stands for the mark of passages."""
    rows = [(name.replace("_", "%p"), score) for name, score in scores.items()]
    frame = pd.DataFrame(rows, columns=["docno", "score"])
    query = {"qid": "q", "query": "words", "reasoning": "why", "rank": range(len(rows))}
    return frame.assign(**query)


def scores(result):
    assert result["rank"].tolist() == list(range(len(result)))
    assert result["score"].is_monotonic_decreasing
    return dict(zip(result["docno"], result["score"], strict=True))


RANKING = ranking(a=10.0, b=8.0, c=2.0)


PASSAGE_RANKING = ranking(a_3=10.0, b_1=8.0, b_0=7.0)


@pytest.mark.parametrize(
    ("links", "given", "settings", "expected"),
    [
        # x of a and b, y and z of a; c is no seed.
        (LINKS, RANKING, {"head": 2}, {"a": 10, "x": 9, "b": 8, "y": 5, "z": 5, "c": 2}),
        (LINKS, RANKING, {"direction": "out"}, {"a": 10, "b": 8, "x": 5, "y": 5, "c": 2}),
        (LINKS, RANKING, {"direction": "in"}, {"a": 10, "b": 8, "z": 5, "c": 2}),
        # A retrieved neighbour rises and stays one row; a cycle ends.
        (graph("a>c"), RANKING, {"head": 2, "damping": 1.0}, {"c": 12, "a": 10, "b": 8}),
        (graph("a>b", "b>a"), RANKING, {"head": 2}, {"a": 14, "b": 13, "c": 2}),
        # The ranking stays above what is put below it.
        (
            LINKS,
            RANKING,
            {"head": 2, "place": "below"},
            {"a": 10, "b": 8, "c": 2, "x": 1, "y": 0, "z": 0},
        ),
        (LINKS, RANKING, {"head": 2, "most": 1}, {"a": 10, "x": 9, "b": 8, "c": 2}),
        (LINKS, RANKING, {"head": 2, "depth": 3}, {"a": 10, "x": 9, "b": 8}),
        # Negative scores count from the lowest.
        (graph("a>x"), ranking(a=-1.0, b=-2.0, c=-5.0), {}, {"a": -1, "b": -2, "x": -3, "c": -5}),
        # Passages count as their documents; a new one is its first.
        (
            graph("a>x", "a>b"),
            PASSAGE_RANKING,
            {},
            {"b%p1": 13, "a%p3": 10, "b%p0": 7, "x%p0": 5},
        ),
    ],
)
def test_neighbours_of_the_head_get_its_damped_scores(links, given, settings, expected):
    result = LinkExpansion(links, **{"head": 1, "damping": 0.5, **settings})(given)
    if settings.get("place") == "below":
        assert list(result["docno"]) == list(expected)
    else:
        assert scores(result) == expected and list(result["docno"]) == list(expected)


def test_a_hub_is_not_followed_and_counted():
    hub = graph(*(f"a>n{number}" for number in range(10_000)), "b>x")
    stage = LinkExpansion(hub, largest_hub=100)
    assert set(stage(RANKING)["docno"]) == {"a", "b", "c", "x"}
    assert stage.counts["hubs"] == 1 and stage.counts["added"] == 1


def test_rows_keep_their_columns_and_new_ones_have_those_of_the_query():
    result = LinkExpansion(LINKS, head=1)(RANKING.assign(text="t")).set_index("docno")
    assert set(result["query"]) == {"words"} and set(result["qid"]) == {"q"}
    assert result.loc["a", "text"] == "t"
    assert pd.isna(result.loc["x", "text"])


def test_queries_are_apart_and_nothing_gives_nothing():
    both = pd.concat([RANKING, RANKING.assign(qid="p")[2:]], ignore_index=True)
    result = LinkExpansion(LINKS, head=1)(both)
    assert set(result[result["qid"] == "p"]["docno"]) == {"c", "w", "x"}
    assert len(LinkExpansion(LINKS)(RANKING[:0])) == 0


def test_a_collection_gives_its_links_to_a_retriever_with_expansion():
    retriever = LinkExpansion(retriever=pt.Transformer.from_df(RANKING), head=1)
    assert retriever.fingerprint == ""
    bound = retriever.bind(Collection("c", links=lambda: LINKS))
    queries = pd.DataFrame({"qid": ["q"], "query": ["words"]})
    assert set(bound.transform(queries)["docno"]) == {"a", "b", "c", "x", "y", "z"}
    assert bound.fingerprint == LINKS.fingerprint
    assert retriever == LinkExpansion(retriever=retriever.retriever, head=1) != bound


def test_a_collection_without_links_is_refused():
    refused("no links between its documents", lambda: LinkExpansion().bind(Collection("c")))
    refused("not bound", lambda: LinkExpansion()(RANKING))


WRONG = [("head", 0), ("direction", "up"), ("damping", 0), ("damping", 1.5), ("largest_hub", 0)]


@pytest.mark.parametrize(("name", "value"), [*WRONG, ("most", 0), ("place", "above"), ("depth", 0)])
def test_impossible_settings_are_refused(name, value):
    refused(name, lambda: LinkExpansion(LINKS, **{name: value}))


QUERIES = pd.DataFrame({"qid": ["1", "2", "3"], "query": ["a", "b", "c"], "note": ["x", "y", "z"]})
JUDGEMENTS = {
    "evidence": {"1": {"d1": 1, "d2": 2, "d9": 0, "gone": 3}, "2": {"d5": 1}},
    "gold": {"1": {"d2": 1}},
}


def texts(known):
    def units(unit_ids):
        for unit_id in unit_ids:
            if unit_id not in known:
                raise KeyError(unit_id)
        return [Unit(unit_id, "", "text") for unit_id in unit_ids]

    return units


DOCUMENTS = Collection("c", texts=texts([f"d{n}" for n in range(1, 10)]), qrels=JUDGEMENTS)
PASSAGES = replace(DOCUMENTS, texts=texts([f"d{n}%p{p}" for n in range(1, 10) for p in range(3)]))


def base(docnos):
    """A base that ranks the same for every query."""

    def rows(queries):
        each = [
            {**row, "docno": docno, "score": 9.0 - place, "rank": place}
            for row in queries.to_dict("records")
            for place, docno in enumerate(docnos)
        ]
        return pd.DataFrame(each)

    return pt.apply.generic(rows, required_columns=["qid", "query"])


def by_qid(oracle, collection):
    found = oracle.bind(collection).transform(QUERIES)
    assert (found.groupby("qid")["score"].diff().dropna() < 0).all(), "scores must fall"
    assert found["rank"].tolist() == found.groupby("qid").cumcount().tolist()
    return {qid: rows["docno"].tolist() for qid, rows in found.groupby("qid")}


def test_evidence_comes_by_grade_and_alone_without_a_base():
    assert by_qid(OracleRetriever(), DOCUMENTS) == {"1": ["d2", "d1"], "2": ["d5"]}


def test_the_base_comes_behind_it_each_unit_once():
    oracle = OracleRetriever(base(["d7", "d1", "d9"]))
    assert by_qid(oracle, DOCUMENTS) == {
        "1": ["d2", "d1", "d7", "d9"],
        "2": ["d5", "d7", "d1", "d9"],
        "3": ["d7", "d1", "d9"],
    }


def test_a_passage_is_the_one_that_the_base_ranks_best_or_the_first():
    oracle = OracleRetriever(base(["d7%p1", "d1%p2", "d1%p0"]))
    assert by_qid(oracle, PASSAGES)["1"] == ["d2%p0", "d1%p2", "d7%p1", "d1%p0"]


def test_depth_and_tier_are_kept():
    assert by_qid(OracleRetriever(base(["d7", "d8"]), depth=2), DOCUMENTS)["2"] == ["d5", "d7"]
    assert by_qid(OracleRetriever(tier="gold"), DOCUMENTS) == {"1": ["d2"]}


def test_columns_of_the_queries_stay():
    found = OracleRetriever().bind(DOCUMENTS).transform(QUERIES)
    assert found["note"].tolist() == ["x", "x", "y"]


def test_what_cannot_work_is_told():
    with pytest.raises(InputError, match=r"the tier 'expert'. valid: evidence, gold"):
        OracleRetriever(tier="expert").bind(DOCUMENTS)
    refused("no judgements", lambda: OracleRetriever().bind(Collection("c")))
    refused("not bound", lambda: OracleRetriever().transform(QUERIES))
    refused("depth", lambda: OracleRetriever(depth=0))
    OracleRetriever(RM3()).validate(LexicalEngine())
