"""Max-P, fusion of retrievers, and pipelines as the backend of a search tool."""

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
from support.search import store_of

from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.fusion import Interpolation, ReciprocalRankFusion
from soundingline.pipelines.index_folder import OpenedIndex
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.retrieve import BM25, QueryLikelihood
from soundingline.pipelines.stage import Collection, add_note
from soundingline.toolkit.data import Hit, SearchRequest, parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing


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
        kind(BM25(), QueryLikelihood()).validate(PisaEngine())


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

    def __init__(self, *rows: tuple[str, float], ranks: list[int] | None = None) -> None:
        self.rows, self.ranks = rows, ranks
        self.asked = []

    def transform(self, inp):
        pt.validate.query_frame(inp, extra_columns=["query"])
        self.asked += inp.to_dict("records")
        frame = pd.DataFrame(self.rows, columns=["docno", "score"])
        frame = frame.assign(**{name: inp[name].iloc[0] for name in pt.model.query_columns(inp)})
        return frame if self.ranks is None else frame.assign(rank=self.ranks)


PASSAGES = [("d1%p2", 3.0), ("d2%p0", 2.0), ("d1%p0", 1.0)]


def test_hits_name_the_unit_and_its_document_with_ranks_from_one():
    backend = PipelineBackend(FixedRows(*PASSAGES), unit="passage")
    assert backend.search(SearchRequest("ships")).hits == [
        Hit("d1", "d1%p2", 1, 3.0),
        Hit("d2", "d2%p0", 2, 2.0),
        Hit("d1", "d1%p0", 3, 1.0),
    ]


def test_hits_are_read_one_by_one_in_parts_and_backwards():
    rows = [
        Hit("d1", "d1%p2", 1, 3.0),
        Hit("d2", "d2%p0", 2, 2.0),
        Hit("d1", "d1%p0", 3, 1.0),
    ]
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


def test_the_query_reaches_the_pipeline_word_for_word_with_the_reasoning():
    pipeline = FixedRows(*PASSAGES)
    words = '+ship^2 "sank in" AND (title:x) #combine(a) naïve?'
    PipelineBackend(pipeline).search(SearchRequest(words, reasoning="because"))
    PipelineBackend(pipeline).search(SearchRequest("x"))
    assert [row["query"] for row in pipeline.asked] == [words, "x"]
    assert [row["reasoning"] for row in pipeline.asked] == ["because", ""]


def test_a_rewriter_keeps_the_raw_query_as_query_0():
    last = FixedRows(*PASSAGES)
    rewriter = pt.apply.query(lambda row: f"{row['query']} because {row['reasoning']}")
    PipelineBackend(rewriter >> last).search(SearchRequest("ships", "they sink"))
    assert last.asked[0]["query"] == "ships because they sink"
    assert last.asked[0]["query_0"] == "ships"


def test_both_queries_are_noted_where_the_pipeline_ranked_by_another():
    rewriter = pt.apply.query(lambda row: f"{row['query']} at sea")
    found = PipelineBackend(rewriter >> FixedRows(*PASSAGES)).search(SearchRequest("ships"))
    assert found.notes == {"query": "ships at sea", "query_0": "ships"}


def test_a_query_that_stayed_the_same_is_not_noted():
    same = pt.apply.query(lambda row: row["query"])
    for pipeline in (FixedRows(*PASSAGES), same >> FixedRows(*PASSAGES)):
        assert PipelineBackend(pipeline).search(SearchRequest("ships")).notes == {}


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


def test_two_notes_of_one_name_are_both_kept():
    found = PipelineBackend(Noting() >> Noting() >> FixedRows()).search(SearchRequest("ships"))
    assert found.notes == {"seen": "ships", "seen_2": "ships"}


def test_a_note_outside_a_search_goes_nowhere():
    Noting()(pd.DataFrame({"qid": ["1"], "query": ["before"]}))
    assert PipelineBackend(FixedRows()).search(SearchRequest("after")).notes == {}


def test_a_broken_search_leaves_no_notes_to_the_next():
    def broken(frame):
        add_note("half", "way")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        PipelineBackend(pt.apply.generic(broken)).search(SearchRequest("x"))
    assert PipelineBackend(FixedRows()).search(SearchRequest("x")).notes == {}


def test_rows_carry_the_question_that_asks():
    pipeline = FixedRows(*PASSAGES)
    backend = PipelineBackend(pipeline, "passage")
    one = backend.asked_by("q/1 é")
    one.search(SearchRequest("x"))
    backend.search(SearchRequest("x"))
    assert [row["qid"] for row in pipeline.asked] == ["q/1 é", "1"]
    assert (one.pipeline, one.unit) == (pipeline, "passage")


def test_at_most_depth_hits_come_back():
    backend = PipelineBackend(FixedRows(*PASSAGES))
    found = [backend.search(SearchRequest("x", depth=depth)).hits for depth in (1, 2, 9)]
    assert list(map(len, found)) == [1, 2, 3]


def test_ranks_order_the_hits_where_the_pipeline_gives_them():
    backend = PipelineBackend(FixedRows(*PASSAGES, ranks=[2, 0, 1]))
    assert [hit.unit_id for hit in backend.search(SearchRequest("x")).hits] == [
        "d2%p0",
        "d1%p0",
        "d1%p2",
    ]


def test_scores_order_the_hits_where_it_gives_no_ranks():
    backend = PipelineBackend(FixedRows(*reversed(PASSAGES), ("d9", 2.0)))
    got = [hit.unit_id for hit in backend.search(SearchRequest("x")).hits]
    assert got == ["d1%p2", "d2%p0", "d9", "d1%p0"]


def test_no_results_are_no_hits():
    assert PipelineBackend(FixedRows()).search(SearchRequest("x")) == ([], {})


def test_max_p_gives_documents():
    backend = PipelineBackend(FixedRows(*PASSAGES) >> MaxP())
    assert backend.search(SearchRequest("x")).hits == [
        Hit("d1", "d1", 1, 3.0),
        Hit("d2", "d2", 2, 2.0),
    ]


def test_numbers_are_plain_python_numbers():
    backend = PipelineBackend(FixedRows(*PASSAGES, ranks=[0, 1, 2]))
    hit = backend.search(SearchRequest("x")).hits[0]
    assert (type(hit.rank), type(hit.score), type(hit.docid)) == (int, float, str)


def test_what_is_not_a_transformer_is_refused():
    with pytest.raises(InputError, match=r"of type function. valid: a PyTerrier transformer"):
        PipelineBackend(lambda frame: frame)


def test_a_pipeline_that_begins_with_a_re_ranker_is_told_as_such():
    with pytest.raises(InputError, match=r"begin it with a retriever"):
        PipelineBackend(MaxP()).search(SearchRequest("x"))


def test_a_pipeline_that_gives_no_documents_is_told_as_such():
    rewriter = pt.apply.query(lambda row: row["query"])
    with pytest.raises(InputError, match=r"returns no docno and no score"):
        PipelineBackend(rewriter).search(SearchRequest("x"))


def test_defects_pass_through():
    def broken(frame):
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError, match=r"a defect"):
        PipelineBackend(pt.apply.generic(broken)).search(SearchRequest("x"))


def test_questions_take_turns_at_an_exclusive_pipeline():
    assert _most_at_once(exclusive=True, questions=4) == 1


def _most_at_once(exclusive, questions=1):
    """The largest number of searches that were inside the pipeline together."""
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
    asked = [backend.asked_by(str(number)) for number in range(questions)] * (8 // questions)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.search(SearchRequest("x")), asked))
    return most


def test_an_exclusive_pipeline_serves_one_search_at_a_time():
    assert _most_at_once(exclusive=True) == 1


def test_other_pipelines_serve_threads_together():
    assert _most_at_once(exclusive=False) > 1


def test_half_a_surrogate_pair_in_a_query_is_searched_as_any_other_character(
    tmp_path,
):
    units = [{"docno": "d1", "text": "Brel is a harbour town."}]
    index = LexicalIndex.build(units, tmp_path / "index")
    backend = PipelineBackend(index.bm25() >> MaxP(), unit="passage")
    hits = backend.search(SearchRequest("harbour \ud800 town")).hits
    assert [hit.docid for hit in hits] == ["d1"]
