"""The grid against single runs of the engine, which `test_bm25` holds against a
computation of its own."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lexical_corpora import real
from support.needs import cases

from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.lexical import grid as grid_module
from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery, judged_scores, rank_judged
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.storage import Arrays
from soundingline.toolkit.data import Unit, parent
from soundingline.toolkit.errors import InputError

CELLS = [(k1, b) for k1 in (0.0, 0.3, 0.9, 2.0, 25.0) for b in (0.0, 0.4, 1.0)]
WORDS = [f"w{number}" for number in range(6)]


def build(texts, folder):
    units = [Unit(unit_id, "", text) for unit_id, text in texts.items()]
    return LexicalIndex.build(units, Path(folder) / "index", analyzer="whitespace")


def single_run(index, query, cell, depth):
    """Ranks of documents by one search and, for passages, Max-P's own transformer."""
    numbers, scores = index.search(query, *cell, depth)
    names = index.docnos.take(numbers)
    frame = pd.DataFrame({"qid": "q", "query": "", "docno": names, "score": scores})
    frame["rank"] = range(len(frame))
    ranked = MaxP().transform(frame) if len(frame) else frame
    return {docno: rank + 1 for docno, rank in zip(ranked["docno"], ranked["rank"], strict=True)}


def check_all(index, query, docids, depth):
    made = GridBM25(index, CELLS, depth=depth)
    (qid, ranks), *rest = made.ranks([JudgedQuery("q", query, docids)])
    assert (qid, rest) == ("q", [])
    assert ranks.shape == (len(docids), len(CELLS))
    for place, cell in enumerate(CELLS):
        expected = single_run(index, query, cell, depth)
        assert ranks[:, place].tolist() == [expected.get(docid, 0) for docid in docids], cell


def check_scores(index, query, docids):
    scores = GridBM25(index, CELLS).scores(JudgedQuery("q", query, docids))
    for place, cell in enumerate(CELLS):
        numbers, found = index.search(query, *cell, len(index))
        best = {}
        for name, score in zip(index.docnos.take(numbers), found.tolist(), strict=True):
            best[parent(name)] = max(best.get(parent(name), 0.0), score)
        # Bit by bit; the issue with ties is that nothing less keeps their order.
        assert scores[:, place].tolist() == [best.get(docid, 0.0) for docid in docids], cell


# Few words and short documents, so that equal scores abound.
texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
weights = st.dictionaries(
    st.sampled_from([*WORDS, "unknown"]), st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=5
)


@pytest.mark.slow
@settings(max_examples=cases(40), deadline=None)
@given(
    corpus=st.lists(st.lists(texts, min_size=1, max_size=5), min_size=1, max_size=25)
    | st.lists(texts, min_size=1, max_size=60),
    query=weights,
    depth=st.integers(1, 70),
    block=st.sampled_from([1, 7, 512]),
)
def test_every_cell_ranks_as_its_single_run_and_passages_as_max_p_does(corpus, query, depth, block):
    named = {}
    for number, text in enumerate(corpus):
        passages = [text] if isinstance(text, str) else text
        names = [f"d{number}%p{place}" for place in range(len(passages))]
        named |= zip([f"d{number}"] if isinstance(text, str) else names, passages, strict=True)
    documents = [*(f"d{number}" for number in range(len(corpus))), "absent"]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_module, "_BLOCK", block)
        index = build(named, folder)
        check_all(index, query, documents, depth)
        check_scores(index, query, documents)


def test_frequencies_above_255_are_added_as_in_a_single_run(tmp_path):
    counts = [0, 1, 254, 255, 256, 257, 1000, 70_000, 256]
    named = {
        f"d{number}": "b " + "a " * count + "c " * (number % 3)
        for number, count in enumerate(counts)
    }
    index = build(named, tmp_path)
    for query in ({"a": 1.0}, {"a": 0.7, "b": 1.0, "c": 2.0}):
        check_all(index, query, list(named), 5)
        check_scores(index, query, list(named))


@pytest.mark.parametrize("depth", [10, 1000])
def test_cells_agree_with_single_runs_on_cacm(data_root, tmp_path, depth):
    units, topics, judged = real(data_root / "cacm")
    index = LexicalIndex.build(units, tmp_path / "index")
    questions = [
        JudgedQuery(qid, index.analyzer.terms(text), [*judged[qid]])
        for qid, text in topics.itertuples(index=False)
        if qid in judged
    ]
    found = dict(GridBM25(index, CELLS, depth=depth).ranks(questions))
    assert len(found) == 52
    for qid, query, docids in questions:
        for place in (0, 5, 7, 14):
            expected = single_run(index, query, CELLS[place], depth)
            ranks = found[qid][:, place].tolist()
            assert ranks == [expected.get(docid, 0) for docid in docids], (qid, CELLS[place])


def corpus_of(rng, count):
    return {
        f"d{number}": " ".join(rng.choice(WORDS, rng.integers(1, 60)).tolist())
        for number in range(count)
    }


@pytest.fixture
def index(tmp_path):
    return build(corpus_of(np.random.default_rng(3), 3000), tmp_path)


@pytest.mark.parametrize("depth", [1, 20, 5000])
def test_documents_that_are_settled_early_or_never_have_their_single_runs_ranks(index, depth):
    docids = [f"d{number}" for number in range(0, 3000, 40)]
    check_all(index, {"w1": 1.0, "w4": 3.0, "w5": 0.1}, docids, depth)


def questions_of(index):
    docids = [f"d{number}" for number in range(0, 3000, 300)]
    return [JudgedQuery(f"q{n}", [WORDS[n], WORDS[-1], WORDS[n]], docids) for n in range(5)]


def by_qid(made, questions, **more):
    return dict(made.ranks(questions, **more))


def test_threads_and_company_change_no_rank(index):
    questions = questions_of(index)
    made = GridBM25(index, CELLS, depth=100)
    together = by_qid(made, questions, threads=4)
    for question in questions:
        alone = by_qid(made, [question], threads=1)
        assert (alone[question.qid] == together[question.qid]).all()
    assert any((ranks > 0).any() for ranks in together.values())


def test_a_grid_of_many_cells_is_the_same_in_portions(index, monkeypatch):
    questions = questions_of(index)
    whole = by_qid(GridBM25(index, CELLS), questions)
    scores = GridBM25(index, CELLS).scores(questions[0])
    monkeypatch.setattr(grid_module, "_CELLS_AT_ONCE", 4)
    portions = by_qid(GridBM25(index, CELLS), questions)
    assert all((whole[qid] == portions[qid]).all() for qid in whole)
    assert (GridBM25(index, CELLS).scores(questions[0]) == scores).all()


def test_arrays_in_memory_need_no_second_compilation(index, monkeypatch):
    def signatures():
        grid = GridBM25(index, CELLS)
        assert len(list(grid.ranks([JudgedQuery("q", ["w1"], ["d1"])]))) == 1
        return [*judged_scores.signatures, *rank_judged.signatures]  # type: ignore[attr-defined]

    before = signatures()
    monkeypatch.setattr(index, "_arrays", Arrays(*map(np.copy, index._arrays)))
    assert index._arrays.documents.flags.writeable
    assert signatures() == before


def test_a_question_without_known_terms_or_documents_finds_nothing(index):
    queries = [JudgedQuery("a", ["unknown"], ["d1"]), JudgedQuery("b", ["w1"], [])]
    ranks = by_qid(GridBM25(index, CELLS), queries)
    assert ranks["a"].tolist() == [[0] * len(CELLS)]
    assert ranks["b"].shape == (0, len(CELLS))
    assert by_qid(GridBM25(index, CELLS), []) == {}


def test_bad_settings_and_scattered_passages_are_refused(index, tmp_path):
    scattered = build({"d1%p0": "a", "d2%p0": "a", "d1%p1": "a"}, tmp_path / "scattered")
    for made, cells, depth, message in [
        (scattered, CELLS, 5, "'d1' do not follow each other"),
        (index, [], 5, "no cell"),
        (index, [(-1.0, 0.4)], 5, "k1=-1"),
        (index, [(0.9, 1.5)], 5, "b=1.5"),
        (index, CELLS, 0, "depth=0"),
    ]:
        with pytest.raises(InputError, match=message):
            GridBM25(made, cells, depth=depth)


def test_the_worked_example_of_the_kernel_comes_out_as_by_hand(tmp_path):
    texts = {"d1": "mill", "d2": "mill mill by the river", "d3": "river river river"}
    index = build(texts, tmp_path)
    assert index.statistics.average_length == 3
    grid = GridBM25(index, [(1, 0), (1, 1)], depth=10)
    question = JudgedQuery("q", ["mill"], ["d1", "d2", "d3"])
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    by_hand = [[1 / 2, 3 / 4], [2 / 3, 6 / 11], [0, 0]]
    np.testing.assert_allclose(grid.scores(question) / idf, by_hand, rtol=1e-6)
    judged = question._replace(docids=["d1", "d3"])
    assert dict(grid.ranks([judged], threads=1))["q"].tolist() == [[2, 1], [0, 0]]
