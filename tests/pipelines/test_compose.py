"""Max-P, fusion of retrievers, pipelines as the backend of a search tool, and what stages share:
counts of several threads and notes of a search. Link expansion against values computed by hand; the
oracle: judged evidence first, in the units that are indexed, and its base behind it. What
`soundingline.pipelines` exports: names, docstrings, imports, short pipelines."""

import importlib
import re
import socket
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.benchmarks import store_of

from soundingline.pipelines import LinkExpansion, OracleRetriever
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.fusion import Interpolation, ReciprocalRankFusion
from soundingline.pipelines.index_folder import OpenedIndex
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.retrieve import BM25, RM3, QueryLikelihood
from soundingline.pipelines.stage import (
    ByArguments,
    Collection,
    Counts,
    add_note,
    as_code,
    search_notes,
)
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.data import Hit, Link, SearchRequest, Unit, parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing


def ranking(*rows, **columns):
    frame = pd.DataFrame(rows, columns=["qid", "docno", "score"])
    return frame.assign(query="words", rank=range(len(rows)), **columns)


def test_extra_columns_are_those_of_the_best_passage():
    got = MaxP()(
        ranking(("q", "d%p0", 1.0), ("q", "d%p1", 2.0), text=["worse", "better"], url=["u0", "u1"])
    )
    assert got[["text", "url", "query"]].to_numpy().tolist() == [["better", "u1", "words"]]


def test_any_docno_is_taken():
    docnos = ["plain", "has%pinside", "has%pinside%p2", "x%p", "x%p1%p2", "%p7", "x%p-1"]
    got = MaxP()(ranking(*(("q", docno, 9.0 - i) for i, docno in enumerate(docnos))))
    assert got["docno"].tolist() == ["plain", "has%pinside", "x%p", "x%p1", "", "x%p-1"]


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


def test_the_depth_is_in_the_representation():
    assert (repr(MaxP()), repr(MaxP(depth=5))) == ("MaxP(depth=None)", "MaxP(depth=5)")


ROOT = Path(__file__).resolve().parents[2]


class Fixed(pt.Transformer):
    """Ranks that are given; `added` is a column of its own, and the query is rewritten."""

    def __init__(self, rankings, query="rewritten"):
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

    supports = frozenset({"bm25", "ql"})

    def __init__(self):
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


SAME = Fixed({"b": {"x": 7.0, "y": 7.0}})
BY_RANK = Fixed({"b": {"x": 1.0, "y": 2.0}})  # against its scores


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [
        # Equal scores by docno.
        (
            ReciprocalRankFusion(FIRST, SECOND),
            {"x": 1 / 61 + 1 / 63, "z": 1 / 63 + 1 / 61, "w": 1 / 62, "y": 1 / 62},
        ),
        (
            ReciprocalRankFusion(FIRST, SECOND, k=0),
            {"x": 1 + 1 / 3, "z": 1 / 3 + 1, "w": 1 / 2, "y": 1 / 2},
        ),
        (ReciprocalRankFusion(BY_RANK, Fixed({})), {"x": 1 / 61, "y": 1 / 62}),
        (
            ReciprocalRankFusion(FIRST, SECOND, BY_RANK, SAME, k=0),
            {"x": 1 + 1 / 3 + 2, "y": 1 / 2 + 1 / 2 + 1 / 2, "z": 1 / 3 + 1, "w": 1 / 2},
        ),
        # first: x 1, y 0.5, z 0; second: z 1, w 0.2, x 0. What a list lacks has its minimum, 0.
        (
            Interpolation(FIRST, SECOND, weights=[0.25, 0.75]),
            {"z": 0.75, "x": 0.25, "w": 0.75 * 0.2, "y": 0.25 * 0.5},
        ),
        (
            Interpolation(FIRST, SECOND, normalise=None),
            {"x": 4.5 + 0.2, "y": 2.5 + 0.2, "z": 0.5 + 0.45, "w": 0.5 + 0.25},
        ),
        (
            Interpolation(FIRST, SECOND, weights=[1.0, 0.0]),
            {"x": 1.0, "y": 0.5, "w": 0.0, "z": 0.0},
        ),
        (Interpolation(SAME, Fixed({"b": {"z": 4.0}})), {"x": 0.5, "y": 0.5, "z": 0.5}),
        # A fifth list: x 0, y 1 of BY_RANK as of the others.
        (
            Interpolation(FIRST, SECOND, BY_RANK, SAME, BY_RANK, weights=[0.5, 0.25, 0.1, 0, 0.1]),
            {"x": 0.5, "y": 0.25 + 0.2, "z": 0.25, "w": 0.25 * 0.2},
        ),
        (Interpolation(FIRST, SECOND, BY_RANK), {"y": 0.5, "x": 1 / 3, "z": 1 / 3, "w": 0.2 / 3}),
    ],
)
def test_scores_of_a_fusion_are_those_computed_by_hand(fusion, expected):
    fused = scores(fusion(frame("b")), "b")
    assert fused == pytest.approx(expected) and list(fused) == list(expected)


@pytest.mark.parametrize("kind", [ReciprocalRankFusion, Interpolation])
def test_a_fusion_keeps_columns_queries_inputs_and_cuts_at_its_depth(kind):
    asked = frame("b", "c", "a").assign(query_0="before")
    before = asked.copy()
    fused = kind(FIRST, SECOND)(asked)
    columns = ["qid", "query", "reasoning", "query_0", "docno", "score", "rank"]
    assert list(fused.columns) == columns
    # Nothing was found for c, by either.
    assert fused["qid"].tolist() == ["b"] * 4 + ["a"]
    assert fused["query"].tolist() == ["query b"] * 4 + ["query a"]
    assert set(fused["reasoning"]) == {"why"} and set(fused["query_0"]) == {"before"}
    pd.testing.assert_frame_equal(asked, before)
    for alone in (kind(FIRST, Fixed({})), kind(Fixed({}), FIRST)):
        assert list(scores(alone(frame("b")), "b")) == ["x", "y", "z"]
    for nothing in (frame(), frame("c")):
        empty = kind(FIRST, SECOND)(nothing)
        assert len(empty) == 0 and set(columns) - {"query_0"} == set(empty.columns)
    cut = kind(FIRST, SECOND, depth=2)
    pd.testing.assert_frame_equal(cut(frame("b")), kind(FIRST, SECOND)(frame("b"))[:2])
    assert repr((kind(FIRST, SECOND) % 2).compile()) == repr(cut)
    again = kind(FIRST, SECOND)
    again.set_parameter("depth", 2)
    assert repr(again) == repr(cut)
    outputs = pt.inspect.transformer_outputs(cut, ["qid", "query"])
    assert set(outputs) == {"qid", "query", "docno", "score", "rank"}


@pytest.mark.parametrize("kind", [ReciprocalRankFusion, Interpolation])
def test_both_retrievers_are_bound_and_checked(kind):
    fusion = kind(BM25(k1=1), BM25(k1=2))
    bound = fusion.bind(Collection("c1", index=TwoRankings()))
    pd.testing.assert_frame_equal(bound(frame("b")), kind(FIRST, SECOND)(frame("b")))
    refused("not bound", lambda: fusion(frame("b")))
    other = kind(BM25(), QueryLikelihood())
    refused("needs ql, which engine=pisa does not", lambda: other.validate(PisaEngine()))


def test_a_fingerprint_that_is_not_a_text_is_refused_before_anything_is_built():
    class Unnamed(BM25):
        fingerprint = None

    refused("has the fingerprint None. valid: a text", lambda: Unnamed().validate(LexicalEngine()))


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
        if option == "fusion_rrf":
            three = compose("config", overrides=[*overrides, "retriever@retriever.third=bm25_rm3"])
            retrievers = [type(each).__name__ for each in instantiate(three.retriever).retrievers]
            assert retrievers == ["BM25", "QueryLikelihood", "RM3"]
        else:
            more = compose("config", overrides=[*overrides, "retriever.weight=0.25"])
            assert instantiate(more.retriever).weights == [0.25, 0.75]
    made = instantiate(config.retriever)
    first, second = made.retrievers
    assert repr(first) == repr(BM25(k1=25.0, b=1.0, depth=7))
    assert repr(second) == repr(QueryLikelihood(mu=5))
    index = TwoRankings()
    fusion = made.bind(Collection("c1", index=index))
    assert len(fusion(frame("b"))) == 4
    assert index.models == list(fusion.retrievers)


class FixedRows(pt.Transformer):
    """Gives `rows` for any query, with its query columns, and remembers what it was asked."""

    def __init__(self, *rows, ranks=None):
        self.rows, self.ranks = rows, ranks
        self.asked = []

    def transform(self, inp):
        pt.validate.query_frame(inp, extra_columns=["query"])
        self.asked += inp.to_dict("records")
        frame = pd.DataFrame(self.rows, columns=["docno", "score"])
        frame = frame.assign(**{name: inp[name].iloc[0] for name in pt.model.query_columns(inp)})
        return frame if self.ranks is None else frame.assign(rank=self.ranks)


PASSAGES = [("d1%p2", 3.0), ("d2%p0", 2.0), ("d1%p0", 1.0)]
HITS = [Hit("d1", "d1%p2", 1, 3.0), Hit("d2", "d2%p0", 2, 2.0), Hit("d1", "d1%p0", 3, 1.0)]


@pytest.mark.parametrize(
    ("pipeline", "hits"),
    [
        (FixedRows(*PASSAGES), HITS),
        (FixedRows(*reversed(PASSAGES)), HITS),
        (
            FixedRows(*PASSAGES, ranks=[2, 0, 1]),
            [Hit("d2", "d2%p0", 1, 2.0), Hit("d1", "d1%p0", 2, 1.0), Hit("d1", "d1%p2", 3, 3.0)],
        ),
        (FixedRows(*PASSAGES) >> MaxP(), [Hit("d1", "d1", 1, 3.0), Hit("d2", "d2", 2, 2.0)]),
        (FixedRows(), []),
    ],
    ids=["scores", "other order", "ranks", "documents", "none"],
)
def test_hits_are_the_rows_by_rank_or_score_to_the_depth(pipeline, hits):
    for depth in (1, 2, 9):
        result = PipelineBackend(pipeline).search(SearchRequest("ships", depth=depth))
        assert (result.hits, result.notes) == (hits[:depth], {})
    for hit in result.hits:
        assert (type(hit.rank), type(hit.score), type(hit.docid)) == (int, float, str)


def test_the_pipeline_receives_words_reasoning_and_question_and_other_queries_are_noted():
    pipeline = FixedRows(*PASSAGES)
    words = '+ship^2 "sank in" AND (title:x) #combine(a) naïve?'
    backend = PipelineBackend(pipeline)
    one = backend.for_question("q/1 é")
    one.search(SearchRequest(words, reasoning="because"))
    backend.search(SearchRequest("x"))
    rows = [(row["qid"], row["query"], row["reasoning"]) for row in pipeline.asked]
    assert rows == [("q/1 é", words, "because"), ("no-question", "x", "")]
    assert one.pipeline is pipeline
    rewriter = pt.apply.query(lambda row: f"{row['query']} because {row['reasoning']}")
    result = PipelineBackend(rewriter >> pipeline).search(SearchRequest("ships", "they sink"))
    queries = {"query": "ships because they sink", "query_0": "ships"}
    assert result.notes == queries
    assert {name: pipeline.asked[-1][name] for name in queries} == queries
    same = pt.apply.query(lambda row: row["query"]) >> pipeline
    assert PipelineBackend(same).search(SearchRequest("ships")).notes == {}


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (lambda frame: frame, r"of type function. valid: a PyTerrier transformer"),
        (MaxP(), r"begin it with a retriever"),
        (pt.apply.query(lambda row: row["query"]), r"returns no docno and no score"),
    ],
)
def test_a_pipeline_that_cannot_serve_is_refused(pipeline, message):
    refused(message, lambda: PipelineBackend(pipeline).search(SearchRequest("x")))


def test_hits_are_read_one_by_one_in_parts_and_backwards():
    rows = HITS
    hits = PipelineBackend(FixedRows(*PASSAGES)).search(SearchRequest("ships")).hits
    assert [hits[0], hits[2], hits[-2]] == [rows[0], rows[2], rows[1]]
    for part in (slice(1, None), slice(5), slice(3, None), slice(None, None, -1)):
        assert hits[part] == rows[part]
        assert list(hits[part]) == rows[part]
    assert hits[1:][1:] == rows[2:]
    assert hits != rows[:2] and hits != [*rows[:2], rows[0]]
    assert rows[1] in hits and list(reversed(hits)) == rows[::-1]
    with pytest.raises(IndexError):
        hits[3]


def test_only_the_hits_that_a_page_shows_are_made(monkeypatch):
    made = []

    def counted(*fields):
        made.append(fields)
        return Hit(*fields)

    monkeypatch.setattr("soundingline.toolkit.data.Hit", counted)
    rows = [(f"d{number}", 1000.0 - number) for number in range(1000)]
    store = store_of({docid: f"A ship, {docid}." for docid, _ in rows})
    session = RankedBrowsing(page=5).open(PipelineBackend(FixedRows(*rows)), store)
    result = session.call("search", {"reason": "", "query": "ship"})
    assert result.call.ranking == tuple(docid for docid, _ in rows)
    assert session.exposures.tiers["surfaced"] == result.call.ranking
    assert 5 <= len(made) <= 10


class Noting(pt.Transformer):
    """Notes the query under `seen`, after a while, so that threads meet."""

    def transform(self, inp):
        time.sleep(0.02)
        add_note("seen", inp["query"].iloc[0])
        return inp


def test_what_stages_note_is_told_of_their_own_search_even_if_it_finds_nothing():
    backend = PipelineBackend(Noting() >> FixedRows())
    requests = [SearchRequest(f"query {number}") for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(backend.search, requests))
    assert found == [([], {"seen": request.query}) for request in requests]


def test_a_broken_search_leaves_no_notes_to_the_next():
    def broken(frame):
        add_note("half", "way")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        PipelineBackend(pt.apply.generic(broken)).search(SearchRequest("x"))
    assert PipelineBackend(FixedRows()).search(SearchRequest("x")).notes == {}


def test_no_addition_of_any_thread_is_lost():
    counts = Counts("asked", "found", "never")

    def work(number):
        for _ in range(2000):
            counts.add(asked=1, found=2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert counts() == {"asked": 16_000, "found": 32_000, "never": 0}


def test_what_was_read_does_not_change():
    counts = Counts("asked")
    before = counts()
    counts.add(asked=1)
    assert (before, counts()) == ({"asked": 0}, {"asked": 1})


def test_a_note_goes_to_the_innermost_block_and_outer_ones_go_on_after_it():
    with search_notes() as outer:
        add_note("first", 1)
        with search_notes() as inner:
            add_note("second", 2)
        add_note("third", 3)
    add_note("fourth", 4)
    assert outer == {"first": 1, "third": 3}
    assert inner == {"second": 2}


def test_notes_of_one_name_are_numbered():
    with search_notes() as notes:
        for value in "abc":
            add_note("rewrite", value)
        add_note("other", 1)
    assert notes == {"rewrite": "a", "rewrite_2": "b", "rewrite_3": "c", "other": 1}


# Link expansion and the oracle.


def graph(*pairs):
    return LinkGraph.build([Link(*pair.split(">")) for pair in pairs])


LINKS = graph("a>x", "a>y", "b>x", "z>a", "c>w", "x>c")


def ranked_by(**scores):
    """One query's ranking, best first; `_` in a name stands for the mark of passages."""
    rows = [(name.replace("_", "%p"), score) for name, score in scores.items()]
    frame = pd.DataFrame(rows, columns=["docno", "score"])
    query = {"qid": "q", "query": "words", "reasoning": "why", "rank": range(len(rows))}
    return frame.assign(**query)


def scored(result):
    assert result["rank"].tolist() == list(range(len(result)))
    assert result["score"].is_monotonic_decreasing
    return dict(zip(result["docno"], result["score"], strict=True))


RANKING = ranked_by(a=10.0, b=8.0, c=2.0)


PASSAGE_RANKING = ranked_by(a_3=10.0, b_1=8.0, b_0=7.0)


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
        (LINKS, RANKING, {"head": 2, "depth": 3}, {"a": 10, "x": 9, "b": 8}),
        # Negative scores count from the lowest.
        (graph("a>x"), ranked_by(a=-1.0, b=-2.0, c=-5.0), {}, {"a": -1, "b": -2, "x": -3, "c": -5}),
        # Passages count as their documents; a new one is its first.
        (graph("a>x", "a>b"), PASSAGE_RANKING, {}, {"b%p1": 13, "a%p3": 10, "b%p0": 7, "x%p0": 5}),
    ],
)
def test_neighbours_of_the_head_get_its_damped_scores(links, given, settings, expected):
    result = LinkExpansion(links, **{"head": 1, "damping": 0.5, **settings})(given)
    assert scored(result) == expected and list(result["docno"]) == list(expected)


def test_a_hub_is_not_followed_and_counted():
    hub = graph(*(f"a>n{number}" for number in range(10_000)), "b>x")
    stage = LinkExpansion(hub)
    assert set(stage(RANKING)["docno"]) == {"a", "b", "c", "x"}
    assert stage.counts["hubs"] == 1 and stage.counts["added"] == 1


def test_at_most_a_hundred_documents_are_new():
    neighbours = [f"a>n{number:03}" for number in range(100)]
    result = LinkExpansion(graph(*neighbours, "b>m", "b>n000"), head=2, damping=1.0)(RANKING)
    new = [docno for docno in result["docno"] if docno not in ("a", "b", "c")]
    # m has the lowest score of the 101.
    assert new == ["n000", *(f"n{number:03}" for number in range(1, 100))]


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
IN_PASSAGES = replace(
    DOCUMENTS, texts=texts([f"d{n}%p{p}" for n in range(1, 10) for p in range(3)])
)


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
    assert by_qid(oracle, IN_PASSAGES)["1"] == ["d2%p0", "d1%p2", "d7%p1", "d1%p0"]


def test_depth_and_tier_are_kept():
    assert by_qid(OracleRetriever(base(["d7", "d8"]), depth=2), DOCUMENTS)["2"] == ["d5", "d7"]
    alone = OracleRetriever(base(["d7", "d5"]), rest=False)
    assert by_qid(alone, DOCUMENTS) == {"1": ["d2", "d1"], "2": ["d5"]}
    assert by_qid(OracleRetriever(tier="gold"), DOCUMENTS) == {"1": ["d2"]}


def test_columns_of_the_queries_stay():
    found = OracleRetriever().bind(DOCUMENTS).transform(QUERIES)
    assert found["note"].tolist() == ["x", "x", "y"]


def test_what_cannot_work_is_told():
    with pytest.raises(InputError, match=r"the tier 'expert'. valid: evidence, gold"):
        OracleRetriever(tier="expert").bind(DOCUMENTS)
    refused("not bound", lambda: OracleRetriever().transform(QUERIES))
    refused("not bound", lambda: LinkExpansion()(RANKING))
    OracleRetriever(RM3()).validate(LexicalEngine())


# Public names.

WITHOUT_PAPER = (
    "Interpolation",
    "LearnedRetriever",
    "LinkExpansion",
    "OracleRetriever",
    "RerankTop",
    "Reranker",
    "Retriever",
    "Scorer",
)


def test_every_public_name_is_importable_and_has_a_docstring():
    from soundingline import pipelines

    parts = {name: getattr(pipelines, name) for name in pipelines.__all__}
    assert all((part.__doc__ or "").strip() for part in parts.values())
    stages = {name: part for name, part in parts.items() if issubclass(part, pt.Transformer)}
    texts = {name: stages[name].__doc__ for name in {*stages} - {"Stage"}}

    def without(pattern):
        return {name for name, text in texts.items() if not re.search(pattern, text)}

    assert not without(r"\bIn: |[Cc]olumns") and not without(r"InputError|errors as in")
    assert without(r"\b20\d\d[);]") <= {*WITHOUT_PAPER}


@pytest.mark.parametrize("name", ["agents", "experiments", "pipelines", "toolkit"])
def test_a_package_lists_its_public_names_alone(name):
    package = importlib.import_module(f"soundingline.{name}")
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, public) for public in package.__all__)


def test_an_unknown_name_or_argument_is_answered_with_the_nearest():
    from soundingline import agents, pipelines

    with pytest.raises(AttributeError, match=r"no attribute 'Monot5'; did you mean MonoT5\?$"):
        _ = pipelines.Monot5
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        _ = agents.zzz
    wrong = [(pipelines.BM25, "dept", "depth"), (pipelines.MaxP, "Depth", "depth")]
    wrong += [(pipelines.MonoT5, "device_", "device"), (pipelines.LinkExpansion, "hed", "head")]
    for stage, name, meant in wrong:
        told = f"^{stage.__name__} has no argument '{name}'. valid: .*did you mean {meant}\\?$"
        with pytest.raises(TypeError, match=told):
            stage(**{name: 1})


class Doubled(ByArguments, pt.Transformer):
    """A stage of one's own, without constructor arguments."""

    def transform(self, inp):
        return inp


@pytest.fixture
def instances(tmp_path):
    """One instance of each exported stage, with arguments that are not the defaults; none loads a
    model."""
    from soundingline import pipelines
    from soundingline.pipelines import Dense, LexicalIndex, VectorEngine

    rows = [{"docno": "d1", "text": "the old mill"}]
    index = LexicalIndex.build(rows, tmp_path / "index")
    phrases = LexicalIndex.build(rows, tmp_path / "phrases").over(index)
    graph = {"direction": "out", "depth": None}
    arguments = {
        "BM25": {"index": index, "k1": 25.0, "operators": "phrases"},
        "ColBERT": {"model": "some/model", "storage": "float32"},
        "Dense": {"model": "some/model", "pooling": "last"},
        "Interpolation": {"weights": [0.25, 0.75]},
        "LearnedRetriever": {"engine": VectorEngine(Dense("some/model"))},
        "LinkExpansion": {"retriever": index.bm25() >> Doubled(), **graph},
        "MaxP": {"depth": 3},
        "Q2Q": {"cache": tmp_path / "cache", "max_output_tokens": 7},
        "RM3": {"index": index, "fb_docs": 3},
        "ReciprocalRankFusion": {"k": 7},
        "RerankTop": {"scorer": Doubled(), "depth": 5, "texts": index.texts},
        "Retriever": {"index": phrases, "depth": 9},
    }
    fused = {
        "Interpolation": (index.bm25(), index.ql(mu=7)),
        "ReciprocalRankFusion": (index.ql(), index.bm25(), phrases.bm25(depth=2) >> Doubled()),
    }
    abstract = {"Stage", "Reranker", "Scorer"}
    found = [(name, getattr(pipelines, name)) for name in pipelines.__all__]
    stages = {name: kind for name, kind in found if issubclass(kind, pt.Transformer)}
    assert set(arguments) <= set(stages)
    return {
        "LexicalIndex": index,
        "over": phrases,
        **{
            n: kind(*fused.get(n, ()), **arguments.get(n, {}))
            for n, kind in stages.items()
            if n not in abstract
        },
    }


def test_the_representation_of_every_stage_is_code_that_makes_it_again(instances):
    from soundingline import pipelines

    public = {name: getattr(pipelines, name) for name in pipelines.__all__}
    names = {**public, "Path": Path, "Doubled": Doubled}
    assert len(instances) > 20

    def arguments(stage):
        given = stage._arguments() if isinstance(stage, pt.Transformer) else {}
        return {key: as_code(value) for key, value in given.items()}

    for name, stage in instances.items():
        again = eval(repr(stage), names)
        assert repr(again) == repr(stage) and type(again) is type(stage), name
        assert arguments(again) == arguments(stage), name
    assert eval(repr(instances["over"]), names).base == instances["LexicalIndex"]


def test_every_stage_is_drawn_without_a_network(instances, monkeypatch):
    """PyTerrier's schematics draw a pipeline as HTML, which loads nothing."""
    from soundingline.pipelines import MaxP, MonoT5, RerankTop

    monkeypatch.setattr(pt.documentation, "objects_inv", lambda: pytest.fail("a page is looked up"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("a host is looked up"))
    stages = [each for each in instances.values() if isinstance(each, pt.Transformer)]
    assert len(stages) > 20
    for stage in stages:
        assert type(stage).__name__ in pt.schematic.draw(stage)
    drawn = pt.schematic.draw(instances["BM25"] >> RerankTop(MonoT5(), depth=50) >> MaxP())
    assert all(label in drawn for label in ("BM25", "RerankTop", "MonoT5", "MaxP"))
    assert not re.search(r"(src|href)=.https?:", drawn)


IMPORTS = """
import sys
others = len(sys.modules)  # those of Python itself, and of a measurement of coverage
import soundingline.pipelines
print(len(sys.modules) - others)
from soundingline.pipelines import Collection, LexicalIndex
from soundingline.pipelines.engines.anserini import AnseriniEngine
AnseriniEngine().fingerprint
libraries = {"torch", "transformers", "pyterrier_dr", "sentence_transformers", "jnius"}
print(*libraries & set(sys.modules))
"""


def test_importing_the_package_loads_no_library_of_models_and_no_java():
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split("\n", 1)
    assert int(count) < 135 and loaded == "\n"


@pytest.fixture
def tiny_monot5(tmp_path):
    """A folder with weights for `MonoT5`, in the place of those that it downloads."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from support import checkpoints

    torch.set_num_threads(1)
    return str(checkpoints.save_t5(tmp_path / "model"))


EXPERIMENT = """
import pyterrier as pt
from soundingline.pipelines import LexicalIndex, MonoT5, MaxP, RerankTop
index = LexicalIndex.build([{"docno": "d1%p0", "text": "the old mill"}], "my-index")
top = RerankTop(MonoT5(), depth=50, texts=index.texts)
pipe = index.bm25(k1=25, b=1.0, depth=1000) >> top >> MaxP()
table = pt.Experiment([index.bm25() >> MaxP(), pipe], topics, qrels, ["map", "ndcg_cut_10"])
"""


def test_an_experiment_of_two_pipelines_is_five_lines_and_validated_without_a_warning(
    tiny_monot5, tmp_path, monkeypatch
):
    from soundingline import pipelines

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipelines, "MonoT5", partial(pipelines.MonoT5, tiny_monot5), raising=False)
    names = {
        "topics": pd.DataFrame({"qid": ["1"], "query": ["mill"]}),
        "qrels": pd.DataFrame({"qid": ["1"], "docno": ["d1"], "label": [1]}),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(EXPERIMENT, names)
    table = names["table"]
    assert isinstance(table, pd.DataFrame)
    assert table[["map", "ndcg_cut_10"]].to_numpy().tolist() == [[1.0, 1.0]] * 2
    assert not [str(item.message) for item in caught if "validated" in str(item.message)]
