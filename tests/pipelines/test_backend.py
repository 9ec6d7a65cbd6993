import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pyterrier as pt
import pytest
from toy_search import store_of

from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.stage import add_note
from soundingline.toolkit.data import Hit, SearchRequest
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing


class Fixed(pt.Transformer):
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
    backend = PipelineBackend(Fixed(*PASSAGES), unit="passage")
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
    hits = PipelineBackend(Fixed(*PASSAGES)).search(SearchRequest("ships")).hits
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
    session = RankedBrowsing(page=5).open(PipelineBackend(Fixed(*rows)), store)
    before = sum(type(thing) is Hit for thing in gc.get_objects())
    result = session.call("search", {"reason": "", "query": "ship"})
    after = sum(type(thing) is Hit for thing in gc.get_objects())
    assert result.call.ranking == tuple(docid for docid, _ in rows)
    assert session.exposures.tiers["surfaced"] == result.call.ranking
    assert after - before <= 10  # the page's, as it was made and as it is told


def test_the_query_reaches_the_pipeline_word_for_word_with_the_reasoning():
    pipeline = Fixed(*PASSAGES)
    words = '+ship^2 "sank in" AND (title:x) #combine(a) naïve?'
    PipelineBackend(pipeline).search(SearchRequest(words, reasoning="because"))
    PipelineBackend(pipeline).search(SearchRequest("x"))
    assert [row["query"] for row in pipeline.asked] == [words, "x"]
    assert [row["reasoning"] for row in pipeline.asked] == ["because", ""]


def test_a_rewriter_keeps_the_raw_query_as_query_0():
    last = Fixed(*PASSAGES)
    rewriter = pt.apply.query(lambda row: f"{row['query']} because {row['reasoning']}")
    PipelineBackend(rewriter >> last).search(SearchRequest("ships", "they sink"))
    assert last.asked[0]["query"] == "ships because they sink"
    assert last.asked[0]["query_0"] == "ships"


def test_both_queries_are_noted_where_the_pipeline_ranked_by_another():
    rewriter = pt.apply.query(lambda row: f"{row['query']} at sea")
    found = PipelineBackend(rewriter >> Fixed(*PASSAGES)).search(SearchRequest("ships"))
    assert found.notes == {"query": "ships at sea", "query_0": "ships"}


def test_a_query_that_stayed_the_same_is_not_noted():
    same = pt.apply.query(lambda row: row["query"])
    for pipeline in (Fixed(*PASSAGES), same >> Fixed(*PASSAGES)):
        assert PipelineBackend(pipeline).search(SearchRequest("ships")).notes == {}


class Noting(pt.Transformer):
    """Notes the query under `seen`, after a while, so that threads meet."""

    def transform(self, inp):
        time.sleep(0.02)
        add_note("seen", inp["query"].iloc[0])
        return inp


def test_what_stages_note_is_told_of_their_own_search_even_if_it_finds_nothing():
    backend = PipelineBackend(Noting() >> Fixed())
    requests = [SearchRequest(f"query {number}") for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(backend.search, requests))
    assert found == [([], {"seen": request.query}) for request in requests]


def test_two_notes_of_one_name_are_both_kept():
    found = PipelineBackend(Noting() >> Noting() >> Fixed()).search(SearchRequest("ships"))
    assert found.notes == {"seen": "ships", "seen_2": "ships"}


def test_a_note_outside_a_search_goes_nowhere():
    Noting()(pd.DataFrame({"qid": ["1"], "query": ["before"]}))
    assert PipelineBackend(Fixed()).search(SearchRequest("after")).notes == {}


def test_a_broken_search_leaves_no_notes_to_the_next():
    def broken(frame):
        add_note("half", "way")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        PipelineBackend(pt.apply.generic(broken)).search(SearchRequest("x"))
    assert PipelineBackend(Fixed()).search(SearchRequest("x")).notes == {}


def test_rows_carry_the_question_that_asks():
    pipeline = Fixed(*PASSAGES)
    backend = PipelineBackend(pipeline, "passage")
    one = backend.asked_by("q/1 é")
    one.search(SearchRequest("x"))
    backend.search(SearchRequest("x"))
    assert [row["qid"] for row in pipeline.asked] == ["q/1 é", "1"]
    assert (one.pipeline, one.unit) == (pipeline, "passage")


def test_at_most_depth_hits_come_back():
    backend = PipelineBackend(Fixed(*PASSAGES))
    found = [backend.search(SearchRequest("x", depth=depth)).hits for depth in (1, 2, 9)]
    assert list(map(len, found)) == [1, 2, 3]


def test_ranks_order_the_hits_where_the_pipeline_gives_them():
    backend = PipelineBackend(Fixed(*PASSAGES, ranks=[2, 0, 1]))
    assert [hit.unit_id for hit in backend.search(SearchRequest("x")).hits] == [
        "d2%p0",
        "d1%p0",
        "d1%p2",
    ]


def test_scores_order_the_hits_where_it_gives_no_ranks():
    backend = PipelineBackend(Fixed(*reversed(PASSAGES), ("d9", 2.0)))
    got = [hit.unit_id for hit in backend.search(SearchRequest("x")).hits]
    assert got == ["d1%p2", "d2%p0", "d9", "d1%p0"]


def test_no_results_are_no_hits():
    assert PipelineBackend(Fixed()).search(SearchRequest("x")) == ([], {})


def test_max_p_gives_documents():
    backend = PipelineBackend(Fixed(*PASSAGES) >> MaxP())
    assert backend.search(SearchRequest("x")).hits == [
        Hit("d1", "d1", 1, 3.0),
        Hit("d2", "d2", 2, 2.0),
    ]


def test_numbers_are_plain_python_numbers():
    backend = PipelineBackend(Fixed(*PASSAGES, ranks=[0, 1, 2]))
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
