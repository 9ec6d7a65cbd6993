"""Max-P, fusion of retrievers, pipelines as the backend of a search tool, and what stages share:
counts of several threads and notes of a search."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.benchmarks import store_of

from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.fusion import Interpolation, ReciprocalRankFusion
from soundingline.pipelines.index_folder import OpenedIndex
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.retrieve import BM25, QueryLikelihood
from soundingline.pipelines.stage import Collection, Counts, add_note, search_notes
from soundingline.toolkit.data import Hit, SearchRequest, parent
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


def test_equal_settings_are_equal_stages():
    assert MaxP(5) == MaxP(5)
    assert hash(MaxP(5)) == hash(MaxP(5))
    assert MaxP(5) != MaxP()
    assert (repr(MaxP()), repr(MaxP(depth=5))) == ("MaxP(depth=None)", "MaxP(depth=5)")


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, "10"])
def test_a_depth_that_is_not_a_positive_whole_number_is_refused(depth):
    refused(r"depth of MaxP=.* valid: a whole number, 1 or more", lambda: MaxP(depth))


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
        # first: x 1, y 0.5, z 0; second: z 1, w 0.2, x 0. What a list lacks has its minimum, 0.
        (
            Interpolation(FIRST, SECOND, weight=0.25),
            {"z": 0.75, "x": 0.25, "w": 0.75 * 0.2, "y": 0.25 * 0.5},
        ),
        (
            Interpolation(FIRST, SECOND, weight=0.5, normalise=None),
            {"x": 4.5 + 0.2, "y": 2.5 + 0.2, "z": 0.5 + 0.45, "w": 0.5 + 0.25},
        ),
        (Interpolation(FIRST, SECOND, weight=1.0), {"x": 1.0, "y": 0.5, "w": 0.0, "z": 0.0}),
        (Interpolation(SAME, Fixed({"b": {"z": 4.0}})), {"x": 0.5, "y": 0.5, "z": 0.5}),
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
    assert (kind(FIRST, SECOND) % 2).compile() == cut
    assert hash((kind(FIRST, SECOND) % 2).compile()) == hash(cut)
    assert kind(FIRST, SECOND) == kind(FIRST, SECOND) != kind(SECOND, FIRST)
    outputs = pt.inspect.transformer_outputs(cut, ["qid", "query"])
    assert set(outputs) == {"qid", "query", "docno", "score", "rank"}


def test_wrong_settings_are_refused_with_what_is_valid():
    refused(r"weight=1\.5", lambda: Interpolation(FIRST, SECOND, weight=1.5))
    refused("null, minmax", lambda: Interpolation(FIRST, SECOND, normalise="z"))
    refused("k=-1", lambda: ReciprocalRankFusion(FIRST, SECOND, k=-1))
    refused("depth=0", lambda: Interpolation(FIRST, SECOND, depth=0))


@pytest.mark.parametrize("kind", [ReciprocalRankFusion, Interpolation])
def test_both_retrievers_are_bound_and_checked(kind):
    fusion = kind(BM25(k1=1), BM25(k1=2))
    bound = fusion.bind(Collection("c1", index=TwoRankings()))
    pd.testing.assert_frame_equal(bound(frame("b")), kind(FIRST, SECOND)(frame("b")))
    refused("not bound", lambda: fusion(frame("b")))
    refused("pisa offers no ql", lambda: kind(BM25(), QueryLikelihood()).validate(PisaEngine()))


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
    backend = PipelineBackend(pipeline, "passage")
    one = backend.for_question("q/1 é")
    one.search(SearchRequest(words, reasoning="because"))
    backend.search(SearchRequest("x"))
    rows = [(row["qid"], row["query"], row["reasoning"]) for row in pipeline.asked]
    assert rows == [("q/1 é", words, "because"), ("1", "x", "")]
    assert (one.pipeline, one.unit) == (pipeline, "passage")
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


def test_only_the_hits_that_a_page_shows_are_made():
    rows = [(f"d{number}", 1000.0 - number) for number in range(1000)]
    store = store_of({docid: f"A ship, {docid}." for docid, _ in rows})
    session = RankedBrowsing(page=5).open(PipelineBackend(FixedRows(*rows)), store)
    before = sum(type(thing) is Hit for thing in gc.get_objects())
    result = session.call("search", {"reason": "", "query": "ship"})
    after = sum(type(thing) is Hit for thing in gc.get_objects())
    assert result.call.ranking == tuple(docid for docid, _ in rows)
    assert session.exposures.tiers["surfaced"] == result.call.ranking
    assert after - before <= 10  # the page's, as it was made and as it is told


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


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("questions", [1, 4])
def test_an_exclusive_pipeline_serves_one_search_at_a_time(exclusive, questions):
    inside, most, guard = 0, 0, threading.Lock()

    def slow(frame):
        nonlocal inside, most
        with guard:
            inside += 1
            most = max(most, inside)
        time.sleep(0.05)
        with guard:
            inside -= 1
        return frame.assign(docno="d", score=1.0)

    backend = PipelineBackend(pt.apply.generic(slow), exclusive=exclusive)
    asked = [backend.for_question(str(number)) for number in range(questions)] * (8 // questions)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.search(SearchRequest("x")), asked))
    assert (most == 1) == exclusive


def test_half_a_surrogate_pair_in_a_query_is_searched_as_any_other_character(
    tmp_path,
):
    units = [{"docno": "d1", "text": "Brel is a harbour town."}]
    index = LexicalIndex.build(units, tmp_path / "index")
    backend = PipelineBackend(index.bm25() >> MaxP(), unit="passage")
    hits = backend.search(SearchRequest("harbour \ud800 town")).hits
    assert [hit.docid for hit in hits] == ["d1"]


def test_no_addition_of_any_thread_is_lost():
    counts = Counts("asked", "found", "never")

    def work(number):
        for _ in range(2000):
            counts.add(asked=1, found=2)
        counts.raise_to("largest", number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert counts() == {"asked": 16_000, "found": 32_000, "never": 0, "largest": 7}


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
