"""BM25 and what all retrievers of the index share: scores against a float64 computation that has no
code in common with the engine, the interface of a transformer, published figures, the grid
against single runs, and quoted phrases and exclusions against a reading of every text. Query
likelihood against a float64 computation, and RM3 against a computation from the texts;
`test_anserini_and_pisa` compares both with Anserini."""

import math
import multiprocessing
import random
import re
import shutil
import tempfile
import threading
import time
import tracemalloc
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, P, nDCG
from support.assertions import refused
from support.engines import brute_force, build, corpora, cut_length, measured, queries, real
from support.needs import cases, needs

from soundingline.pipelines import BM25, QueryLikelihood, index_folder
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.lexical import bm25, crossfit, forward
from soundingline.pipelines.lexical import grid as grid_module
from soundingline.pipelines.lexical.bm25 import ScoreBuffers, best, searches_at_once
from soundingline.pipelines.lexical.crossfit import CrossFittedBM25
from soundingline.pipelines.lexical.grid import (
    GridBM25,
    Judged,
    JudgedQuery,
    grid_tables,
    judged_scores,
    rank_judged,
)
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.lexical.storage import DECODED_LENGTHS, Arrays, Postings, encode_lengths
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import SearchRequest, Unit, parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.queries import parse_query
from soundingline.toolkit.runs.run_folder import repeat_id


def check_search(index, corpus, query, k1, b, depth):
    expected = brute_force(corpus, query, k1, b)
    documents, scores = index.search(query, k1=k1, b=b, depth=depth)
    assert documents.dtype == np.int32
    assert scores.dtype == np.float32
    assert len(documents) == min(depth, len(expected))
    assert len(set(documents.tolist())) == len(documents)
    found = dict(zip(documents.tolist(), scores.tolist(), strict=True))
    np.testing.assert_allclose(scores, [expected[number] for number in found], rtol=1e-5)
    assert list(found) == sorted(found, key=lambda number: (-found[number], number))
    if found:
        left_out = [score for number, score in expected.items() if number not in found]
        assert max(left_out, default=0.0) <= min(found.values()) * (1 + 1e-5)


k1s = st.one_of(st.sampled_from([0.0, 0.9, 25.0, 32.0]), st.floats(0, 32))
bs = st.one_of(st.sampled_from([0.0, 0.4, 1.0]), st.floats(0, 1))


@settings(max_examples=cases(60), deadline=None)
@given(corpora, st.lists(st.tuples(queries, k1s, bs, st.integers(1, 50)), max_size=8))
def test_scores_equal_brute_force(corpus, searches):
    with tempfile.TemporaryDirectory() as folder:
        index = build(corpus, folder)
        for query, k1, b, depth in searches:
            check_search(index, corpus, query, k1, b, depth)


@pytest.fixture(scope="module")
def many_documents(tmp_path_factory):
    """3000 documents: common terms (every selection path of a dense query), rare ones, doubles."""
    chance = np.random.default_rng(7)
    shares = 1 / np.arange(1, 401) ** 1.1
    shares /= shares.sum()
    corpus = []
    for _ in range(2700):
        words = chance.choice(400, chance.integers(0, 120), p=shares)
        corpus.append(dict(Counter(f"t{word}" for word in words.tolist())))
    corpus[5] = {"t1": 400}
    corpus += corpus[:300]
    return build(corpus, tmp_path_factory.mktemp("large")), corpus


@pytest.mark.parametrize("depth", [1, 7, 100, 1000, 3000, 10**7])
def test_any_depth_gives_the_best_documents(many_documents, depth):
    index, corpus = many_documents
    for query in ({"t0": 1.0, "t1": 2.0, "t40": 1.0}, {"t399": 1.0}, {"t390": 1.0, "t398": 0.5}):
        check_search(index, corpus, query, 0.9, 0.4, depth)


@pytest.mark.slow
def test_collections_beyond_one_block_of_documents_are_scored_whole(tmp_path):
    chance = np.random.default_rng(11)
    words = np.minimum(chance.geometric(0.15, (34_000, 3)), 60).tolist()
    corpus = [dict(Counter(f"t{word}" for word in row)) for row in words]
    index = build(corpus, tmp_path)
    for query in ({"t1": 1.0, "t5": 1.0, "t30": 1.0}, {"t40": 1.0}, {"t1": 0.5, "t2": 3.0}):
        check_search(index, corpus, query, 1.2, 0.75, 500)
        check_search(index, corpus, query, 1.2, 0.75, 34_000)


def test_the_order_of_the_words_does_not_change_a_score(many_documents):
    index, _ = many_documents
    words = [f"t{n}" for n in range(0, 60, 2)]
    for one, other in zip(index.search(words), index.search(words[::-1]), strict=True):
        assert np.array_equal(one, other)


def test_frequencies_of_any_width_score_as_in_brute_force_and_in_the_grid(tmp_path):
    frequencies = [1, 2, 255, 256, 300, 65_535, 65_536, 70_000]
    for most in (6, 8):  # 16 bits, and 32
        corpus = [
            {"lead": tf, "line": 1 + tf % 7, **({"tide": 260} if tf % 2 else {})}
            for tf in frequencies[:most]
        ]
        index = build(corpus, tmp_path / str(most))
        assert index.postings("lead")[1].tolist() == frequencies[:most]
        weights = {"lead": 1.0, "line": 0.5, "tide": 2.0}
        names = [f"d{number}" for number in range(most)]
        cells = [(0.9, 0.4), (25.0, 1.0), (0.0, 0.0)]
        scores = grid_scores(index, cells, JudgedQuery("q", weights, names))
        for place, (k1, b) in enumerate(cells):
            expected = brute_force(corpus, weights, k1, b)
            found = dict(zip(*map(np.ndarray.tolist, index.search(weights, k1, b)), strict=True))
            assert found == pytest.approx(expected, rel=1e-5)
            assert scores[:, place].tolist() == [found[number] for number in range(most)]
        check_all(index, weights, names, 5)
        check_scores(index, weights, names)
        vectors = index.vectors(np.arange(most))
        lead = index.vocabulary.find("lead")
        of_lead = [int(values[terms == lead][0]) for terms, values in vectors]
        assert of_lead == frequencies[:most]


@pytest.mark.parametrize("query", ["text", {"t1": -1.0}, {"t1": math.nan}])
def test_a_query_that_was_not_analysed_and_bad_weights_are_refused(many_documents, query):
    refused("valid: ", lambda: many_documents[0].search(query))


def test_retrievers_work_with_pyterrier_and_without_java(tmp_path):
    index = build([{"a": 1, "b": 2}, {"b": 1}, {"c": 1}], tmp_path)
    assert repr(index.bm25(k1=25, depth=7)) == (
        f"BM25(depth=7, index=LexicalIndex({str(index.path)!r}), k1=25, b=0.4, source=None, "
        "fold_parameters=None, operators=None)"
    )
    topics = pd.DataFrame([("q0", "A b"), ("q1", "c")], columns=["qid", "query"])
    lower = pt.apply.query(lambda row: row["query"].lower())
    pipelines = [lower >> index.bm25(), lower >> index.ql(depth=3)]
    assert len((index.bm25() | index.ql())(topics)) == 3
    qrels = pd.DataFrame({"qid": ["q0", "q1"], "docno": ["d0", "d2"], "label": [1, 1]})
    table = pt.Experiment(pipelines, topics, qrels, [AP, P @ 1])
    assert table["AP"].tolist()[0] == table["P@1"].tolist()[0] == 1.0
    assert not pt.java.started()


@pytest.fixture(scope="module")
def cacm(data_root, tmp_path_factory):
    units, topics, judged = real(data_root / "cacm")
    assert len(judged) == 52
    return LexicalIndex.build(units, tmp_path_factory.mktemp("cacm") / "i"), topics, judged


@pytest.mark.parametrize(
    ("name", "ap", "p30"),
    [("bm25", 0.3123, 0.1942), ("ql", 0.3265, 0.1942), ("rm3", 0.3648, 0.2224)],
)
def test_cacm_scores_as_anserini_publishes(cacm, name, ap, p30):
    """Anserini's regressions: BM25, query likelihood with mu=1000, BM25 with RM3."""
    index, topics, judged = cacm
    retriever = index.bm25().rm3() if name == "rm3" else getattr(index, name)()
    assert measured(retriever(topics), judged) == pytest.approx((ap, p30), abs=0.001)


# BM25 with parameters by fold.

OF_FIRST = {"k1": 0.3, "b": 0.9, "questions": ["1"]}
AXES = {"k1": [1.2, 2, 2.5, 3, 4], "b": [0.2, 0.4, 0.6]}


def collection_of(cacm, judged=None, **more):
    index, topics, own = cacm
    questions = dict(zip(topics["qid"], topics["query"], strict=True))
    return Collection(
        "c", index=index, questions=questions, qrels={"evidence": judged or own}, **more
    )


@pytest.fixture(scope="module")
def fitted(cacm):
    return CrossFittedBM25(grid=AXES, folds=4, depth=200).bind(collection_of(cacm))


def by_question(ranking):
    pairs = ranking.assign(pair=list(zip(ranking["docno"], ranking["score"], strict=True)))
    return pairs.groupby("qid")["pair"].apply(list).to_dict()


def test_each_fold_has_the_best_point_of_the_other_folds(cacm, fitted):
    """Against plain rankings at every point, measured by ir_measures."""
    index, topics, judged = cacm
    values = {}
    for point in [(k1, b) for k1 in AXES["k1"] for b in AXES["b"]]:
        ranking = index.bm25(*point, depth=200)(topics)
        run = ranking.rename(columns={"qid": "query_id", "docno": "doc_id"})
        found = {m.query_id: m.value for m in ir_measures.iter_calc([nDCG @ 10], judged, run)}
        values[point] = {qid: found.get(qid, 0.0) for qid in judged}
    folds = fitted.fold_parameters
    members = [qid for fold in folds for qid in fold["questions"]]
    assert sorted(members) == sorted(judged) and len(folds) == 4
    assert {len(fold["questions"]) for fold in folds} == {13}
    chosen = [(fold["k1"], fold["b"]) for fold in folds]
    assert len(set(chosen)) > 1
    for point, fold in zip(
        [*chosen, (fitted.k1, fitted.b)], [*folds, {"questions": []}], strict=True
    ):
        others = set(judged) - set(fold["questions"])
        means = {p: np.mean([of[qid] for qid in others]) for p, of in values.items()}
        assert means[point] == pytest.approx(max(means.values()), abs=1e-12)


def test_each_question_is_ranked_as_by_plain_bm25_with_the_parameters_of_its_fold(cacm, fitted):
    index, topics, _ = cacm
    found, checked = by_question(fitted(topics)), 0
    candidates = (fitted % 20)(topics)[["qid", "query", "docno"]]
    scored = by_question(fitted(candidates))
    for fold in fitted.fold_parameters:
        mine = topics[topics["qid"].isin(fold["questions"])]
        expected = by_question(index.bm25(fold["k1"], fold["b"], depth=200)(mine))
        assert {qid: found[qid] for qid in expected} == expected
        assert all(scored[qid] == rows[:20] for qid, rows in expected.items())
        checked += len(expected)
    assert checked == len(topics)
    assert fitted(topics)["qid"].drop_duplicates().tolist() == topics["qid"].tolist()


@needs(["pyterrier_caching"], "dev")
def test_a_cache_of_rankings_does_not_mix_folds(cacm, fitted, tmp_path):
    from pyterrier_caching import RetrieverCache

    topics = cacm[1].assign(query="computer systems")
    cache = RetrieverCache(tmp_path / "cache", fitted)
    for _ in range(2):
        assert by_question(cache(topics)) == by_question(fitted(topics))
    assert len({str(rows) for rows in by_question(fitted(topics)).values()}) > 1


def test_an_agents_query_is_searched_with_the_parameters_of_its_question(cacm, fitted):
    index, *_ = cacm
    request = SearchRequest("compilers for parallel computers", depth=30)

    def hits(retriever, qid=""):
        return [(hit.docid, hit.score) for hit in searched(retriever, qid).hits]

    def searched(retriever, qid):
        return PipelineBackend(retriever).for_question(qid).search(request)

    for fold in fitted.fold_parameters:
        expected = hits(index.bm25(fold["k1"], fold["b"]))
        mine = [name for qid in fold["questions"] for name in (qid, repeat_id(qid, 2))]
        assert {str(hits(fitted, qid)) for qid in mine} == {str(expected)}
    # A session of no question is in no fold, although PyTerrier searches with the id 1.
    own = index.bm25(fitted.k1, fitted.b)
    one = BM25(index=index, k1=fitted.k1, b=fitted.b, fold_parameters=[OF_FIRST])
    assert hits(one) == hits(one, "2") == hits(own) != hits(one, "1")
    assert hits(one, "1") == hits(index.bm25(0.3, 0.9))


@pytest.mark.parametrize("fold", range(4))
def test_no_judgement_of_a_question_has_an_influence_on_its_ranking(cacm, fitted, fold):
    index, topics, judged = cacm
    mine = fitted.fold_parameters[fold]["questions"]
    drawn = random.Random(fold)
    documents = [index.docnos[n] for n in range(len(index))]
    other = {**judged, **{qid: dict.fromkeys(drawn.sample(documents, 9), 1) for qid in mine}}
    again = CrossFittedBM25(grid=AXES, folds=4, depth=200).bind(collection_of(cacm, other))
    assert [f["questions"] for f in again.fold_parameters] == [
        f["questions"] for f in fitted.fold_parameters
    ]
    asked = topics[topics["qid"].isin(mine)]
    assert by_question(again(asked)) == by_question(fitted(asked))
    rest = topics[~topics["qid"].isin(mine)]
    assert by_question(again(rest)) != by_question(fitted(rest))


def test_ranks_of_a_tuning_are_kept_by_what_they_depend_on(cacm, fitted, tmp_path, monkeypatch):
    *_, judged = cacm
    collection = collection_of(cacm, caches=tmp_path)
    stage = CrossFittedBM25(grid=AXES, folds=4, depth=200)
    assert stage.bind(collection).chosen_parameters == fitted.chosen_parameters
    monkeypatch.setattr(crossfit, "GridBM25", None)
    assert stage.bind(collection).chosen_parameters == fitted.chosen_parameters
    assert len(CrossFittedBM25(grid=AXES, folds=2, depth=200).bind(collection).fold_parameters) == 2
    fewer = {qid: dict(list(grades.items())[:1]) for qid, grades in judged.items()}
    for other, where in [
        (CrossFittedBM25(grid={**AXES, "b": [0.5]}, depth=200), collection),
        (CrossFittedBM25(grid=AXES), collection),
        (stage, collection_of(cacm, fewer, caches=tmp_path)),
    ]:
        with pytest.raises(TypeError):  # ranks anew
            other.bind(where)


def test_questions_without_judgements_get_the_parameters_of_all_and_a_line_counts_them(
    cacm, fitted, capsys
):
    index, topics, judged = cacm
    few = {qid: grades for qid, grades in judged.items() if int(qid) > 20}
    bound = CrossFittedBM25(grid=AXES, folds=100).bind(collection_of(cacm, few))
    outside = [qid for qid in topics["qid"] if qid not in few]
    told = " ".join(capsys.readouterr().err.split())
    assert f"{len(outside)} of 52 questions are in no fold" in told
    chosen = bound.chosen_parameters
    assert chosen["in_no_fold"] == {"k1": bound.k1, "b": bound.b, "questions": outside}
    assert [len(fold["questions"]) for fold in chosen["folds"]] == [1] * len(few)
    assert chosen["fingerprint"] not in ("", fitted.fingerprint) and not index.bm25().fingerprint
    asked = topics[topics["qid"].isin(outside)]
    assert by_question(bound(asked)) == by_question(index.bm25(bound.k1, bound.b)(asked))


def test_what_cannot_be_cross_fitted_is_refused(cacm):
    one = collection_of(cacm, {"1": cacm[2]["1"]})
    own = collection_of(cacm, exclude_own=True)
    steep = {**OF_FIRST, "b": 2}
    other = BM25(fold_parameters=[{**OF_FIRST, "questions": ["x"]}], source="runs/t")
    for message, act in {
        "1 of 52 questions have judgements": lambda: CrossFittedBM25().bind(one),
        "own document": lambda: CrossFittedBM25().bind(own),
        "folds=1": lambda: CrossFittedBM25(folds=1),
        "valid: k1, b": lambda: CrossFittedBM25(grid={"k1": [1]}),
        "the grid's b": lambda: CrossFittedBM25(grid={"k1": [1], "b": [2]}),
        "is not a measure": lambda: CrossFittedBM25(objective="nDGC@10"),
        "needs grid, which engine=pisa": lambda: CrossFittedBM25().validate(PisaEngine()),
        "question '1' is in two folds": lambda: BM25(fold_parameters=[OF_FIRST] * 2),
        "b=2": lambda: BM25(fold_parameters=[steep]),
        "none of the 52 questions .* runs/t": lambda: other.bind(collection_of(cacm)),
        "by fold": other.rm3,
    }.items():
        refused(message, act)


def byte4(length):
    """Lucene's SmallFloat.intToByte4, bit by bit as its source describes it."""

    def long_to_int4(value):
        bits = value.bit_length()
        if bits < 4:
            return value
        shift = bits - 4
        return ((value >> shift) & 0x07) | ((shift + 1) << 3)

    free = 255 - long_to_int4(2**31 - 1)
    return length if length < free else free + long_to_int4(length - free)


@given(st.integers(0, 2**31 - 1) | st.sampled_from([0, 39, 40, 2**31 - 1]))
def test_codes_are_those_of_lucene(length):
    assert encode_lengths(np.array([length]))[0] == byte4(length)


def test_every_code_decodes_to_a_length_of_that_code():
    assert [byte4(int(length)) for length in DECODED_LENGTHS] == list(range(256))


def everywhere(documents):
    """Postings of one term that all documents hold."""
    return Postings(
        np.array([0, documents]),
        np.arange(documents, dtype=np.uint32),
        np.ones(documents, np.uint16),
    )


ONE_TERM = np.zeros(1, np.int64)


@settings(max_examples=cases(200), deadline=None)
@given(
    size=st.integers(1, 3000),
    depth=st.integers(1, 120),
    kind=st.sampled_from(["rising", "falling", "random", "many powers of two", "ties"]),
    scale=st.sampled_from([1.0, 1e-30]),
    seed=st.integers(0, 1000),
)
def test_the_best_of_sums_in_an_adversarial_order_are_those_of_a_full_sort(
    size, depth, kind, scale, seed
):
    chance = np.random.default_rng(seed)
    rising = np.arange(size, dtype=np.float32)
    powers = np.exp2(chance.integers(-30, 5, size)) * chance.integers(0, 3, size)
    orders = {
        "rising": rising,
        "falling": rising[::-1],
        "random": chance.random(size, dtype=np.float32),
        "many powers of two": powers.astype(np.float32),
        "ties": chance.choice([0.0, 0.5, 1.0, 1.5, 1e-8, 3e8], size).astype(np.float32),
    }
    sums = np.float32(scale) * orders[kind]
    order = np.lexsort((np.arange(size), -sums))
    expected = order[sums[order] > 0][:depth]
    wanted = sums[expected].tolist()
    documents, scores = best(everywhere(size), ONE_TERM, sums, depth)
    assert documents.tolist() == expected.tolist()
    assert scores.tolist() == wanted
    assert not sums.any()


@pytest.mark.parametrize("kind", ["ties", "rising", "falling", "two values"])
def test_selecting_takes_memory_by_depth_and_not_by_document(kind):
    size, depth = 2_000_000, 100
    rising = np.arange(1, size + 1, dtype=np.float32)
    sums = {
        "ties": np.ones(size, np.float32),
        "rising": rising,
        "falling": rising[::-1].copy(),
        "two values": (rising % 2 + 1).astype(np.float32),
    }[kind]
    postings = everywhere(size)
    order = np.lexsort((np.arange(size), -sums))[:depth]
    # All that is called is compiled before memory is counted.
    best(postings, ONE_TERM, sums[:32_000].copy(), depth)
    tracemalloc.start()
    try:
        documents, _ = best(postings, ONE_TERM, sums, depth)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert documents.tolist() == order.tolist()
    # The maxima of runs of 16 documents (4 bytes each) and a copy; 8 bytes a document before.
    assert peak < size


def test_no_more_searches_have_sums_than_run_at_once(monkeypatch):
    monkeypatch.setattr(bm25, "cores", lambda: 3)
    sums = ScoreBuffers(everywhere(1000), 1000)
    lock, live, most = threading.Lock(), [0], [0]

    def add(values):
        with lock:
            live[0] += 1
            most[0] = max(most[0], live[0])
        assert not values.any()
        values[7] = 1
        time.sleep(0.01)
        with lock:
            live[0] -= 1

    with ThreadPoolExecutor(24) as pool:
        results = list(pool.map(lambda _: sums.best(ONE_TERM, add, 10), range(60)))
    assert most[0] == 3
    assert all(documents.tolist() == [7] for documents, _ in results)
    assert len(sums._free) == 3


def test_a_failed_search_gives_its_turn_back(monkeypatch):
    monkeypatch.setattr(bm25, "cores", lambda: 1)
    sums = ScoreBuffers(everywhere(10), 10)

    def fail(values):
        values[3] = 1
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            sums.best(ONE_TERM, fail, 5)
    documents, _ = sums.best(ONE_TERM, lambda values: values.__setitem__(4, 1), 5)
    assert documents.tolist() == [4]


def test_a_forked_process_searches_although_its_parents_threads_had_all_turns(monkeypatch):
    monkeypatch.setattr(bm25, "cores", lambda: 1)
    sums = ScoreBuffers(everywhere(10), 10)
    begun, end = threading.Event(), threading.Event()

    def wait(values):
        begun.set()
        end.wait(60)

    thread = threading.Thread(target=sums.best, args=(ONE_TERM, wait, 5))
    thread.start()
    assert begun.wait(60)
    child = multiprocessing.get_context("fork").Process(
        target=sums.best, args=(ONE_TERM, lambda values: None, 5)
    )
    child.start()
    child.join(30)
    end.set()
    thread.join()
    exitcode = child.exitcode
    child.kill()
    assert exitcode == 0


def test_sums_of_searches_at_once_stay_within_two_gibibytes(monkeypatch):
    monkeypatch.setattr("soundingline.pipelines.lexical.bm25.cores", lambda: 64)
    searches = {0: 64, 10**6: 64, 10**7: 53, 10**8: 5, 2**31 - 1: 1}
    assert {documents: searches_at_once(documents) for documents in searches} == searches


CELLS = [(k1, b) for k1 in (0.0, 0.3, 0.9, 2.0, 25.0) for b in (0.0, 0.4, 1.0)]
LETTERS = [f"w{number}" for number in range(6)]


def build_texts(texts, folder):
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


def grid_scores(index, cells, question):
    """The scores of the documents of a question in all cells, which the kernel begins with."""
    grid = GridBM25(index, cells)
    terms, weights = index._weighted(question.query)
    tables = grid_tables(grid.cells, index.statistics.average_length, grid._arrays, terms)
    scores = np.zeros((len(question.docids), tables.norms.shape[1]), np.float32)
    judged = Judged(terms, weights, *grid._units.spans(question.docids), scores)
    judged_scores(grid._arrays, tables, judged)
    return scores[:, : len(cells)]


def check_all(index, query, docids, depth):
    made = GridBM25(index, CELLS, depth=depth)
    (qid, ranks), *rest = made.ranks([JudgedQuery("q", query, docids)])
    assert (qid, rest) == ("q", [])
    assert ranks.shape == (len(docids), len(CELLS))
    for place, cell in enumerate(CELLS):
        expected = single_run(index, query, cell, depth)
        assert ranks[:, place].tolist() == [expected.get(docid, 0) for docid in docids], cell


def check_scores(index, query, docids):
    scores = grid_scores(index, CELLS, JudgedQuery("q", query, docids))
    for place, cell in enumerate(CELLS):
        numbers, found = index.search(query, *cell, len(index))
        best = {}
        for name, score in zip(index.docnos.take(numbers), found.tolist(), strict=True):
            best[parent(name)] = max(best.get(parent(name), 0.0), score)
        # Bit by bit; the issue with ties is that nothing less keeps their order.
        assert scores[:, place].tolist() == [best.get(docid, 0.0) for docid in docids], cell


# Few words and short documents, so that equal scores abound.
short_texts = st.lists(st.sampled_from(LETTERS), max_size=12).map(" ".join)
few_weights = st.dictionaries(
    st.sampled_from([*LETTERS, "unknown"]), st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=5
)


@pytest.mark.slow
@settings(max_examples=cases(40), deadline=None)
@given(
    corpus=st.lists(st.lists(short_texts, min_size=1, max_size=5), min_size=1, max_size=25)
    | st.lists(short_texts, min_size=1, max_size=60),
    query=few_weights,
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
        index = build_texts(named, folder)
        check_all(index, query, documents, depth)
        check_scores(index, query, documents)


@pytest.mark.parametrize("depth", [10, 1000])
def test_cells_agree_with_single_runs_on_cacm(cacm, depth):
    index, topics, judged = cacm
    questions = [
        JudgedQuery(qid, index.analyzer.terms(text), [*judged[qid]])
        for qid, text in topics.itertuples(index=False)
        if qid in judged
    ]
    found = dict(GridBM25(index, CELLS, depth=depth).ranks(questions))
    assert len(found) == 52
    for qid, query, docids in questions:
        for place in (0, 5, 7, 14):
            expected = defaultdict(int, single_run(index, query, CELLS[place], depth))
            ranks = found[qid][:, place].tolist()
            assert ranks == [expected[docid] for docid in docids], (qid, CELLS[place])


@pytest.fixture(scope="module")
def lettered(tmp_path_factory):
    chance = np.random.default_rng(3)
    texts = {
        f"d{number}": " ".join(chance.choice(LETTERS, chance.integers(1, 60)).tolist())
        for number in range(3000)
    }
    return build_texts(texts, tmp_path_factory.mktemp("lettered"))


@pytest.mark.parametrize("depth", [1, 20, 5000])
def test_documents_that_are_settled_early_or_never_have_their_single_runs_ranks(lettered, depth):
    docids = [f"d{number}" for number in range(0, 3000, 40)]
    check_all(lettered, {"w1": 1.0, "w4": 3.0, "w5": 0.1}, docids, depth)


def questions_of(index):
    docids = [f"d{number}" for number in range(0, 3000, 300)]
    return [JudgedQuery(f"q{n}", [LETTERS[n], LETTERS[-1], LETTERS[n]], docids) for n in range(5)]


def test_threads_and_company_change_no_rank(lettered):
    questions = questions_of(lettered)
    made = GridBM25(lettered, CELLS, depth=100)
    together = dict(made.ranks(questions, threads=4))
    for question in questions:
        alone = dict(made.ranks([question], threads=1))
        assert (alone[question.qid] == together[question.qid]).all()
    assert any((ranks > 0).any() for ranks in together.values())


def test_a_grid_of_many_cells_is_the_same_in_portions(lettered, monkeypatch):
    questions = questions_of(lettered)
    whole = dict(GridBM25(lettered, CELLS).ranks(questions))
    monkeypatch.setattr(grid_module, "_CELLS_AT_ONCE", 4)
    portions = dict(GridBM25(lettered, CELLS).ranks(questions))
    assert all((whole[qid] == portions[qid]).all() for qid in whole)


def test_arrays_in_memory_need_no_second_compilation(lettered, monkeypatch):
    def signatures():
        grid = GridBM25(lettered, CELLS)
        assert len(list(grid.ranks([JudgedQuery("q", ["w1"], ["d1"])]))) == 1
        return [*judged_scores.signatures, *rank_judged.signatures]  # type: ignore[attr-defined]

    before = signatures()
    monkeypatch.setattr(lettered, "_arrays", Arrays(*map(np.copy, lettered._arrays)))
    assert lettered._arrays.documents.flags.writeable
    assert signatures() == before


def test_a_question_without_known_terms_or_documents_finds_nothing(lettered):
    queries = [JudgedQuery("a", ["unknown"], ["d1"]), JudgedQuery("b", ["w1"], [])]
    ranks = dict(GridBM25(lettered, CELLS).ranks(queries))
    assert ranks["a"].tolist() == [[0] * len(CELLS)]
    assert ranks["b"].shape == (0, len(CELLS))
    assert dict(GridBM25(lettered, CELLS).ranks([])) == {}


def test_scattered_passages_and_a_depth_of_nothing_are_refused(tmp_path):
    scattered = build_texts({"d1%p0": "a", "d2%p0": "a", "d1%p1": "a"}, tmp_path / "scattered")
    refused("'d1' do not follow each other", GridBM25, scattered, CELLS)
    refused("depth=0", GridBM25, scattered, CELLS, depth=0)


def test_the_worked_example_of_the_kernel_comes_out_as_by_hand(tmp_path):
    texts = {"d1": "mill", "d2": "mill mill by the river", "d3": "river river river"}
    index = build_texts(texts, tmp_path)
    assert index.statistics.average_length == 3
    grid = GridBM25(index, [(1, 0), (1, 1)], depth=10)
    question = JudgedQuery("q", ["mill"], ["d1", "d2", "d3"])
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    by_hand = [[1 / 2, 3 / 4], [2 / 3, 6 / 11], [0, 0]]
    scores = grid_scores(index, grid.cells, question)
    np.testing.assert_allclose(scores / idf, by_hand, rtol=1e-6)
    judged = question._replace(docids=["d1", "d3"])
    assert dict(grid.ranks([judged], threads=1))["q"].tolist() == [[2, 1], [0, 0]]


STOP = {"of", "the"}
WORDS = ["tide", "mill", "harbour", "pier", *STOP]


def drawn_units():
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(150)]
    return [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]


UNITS = drawn_units()


@pytest.fixture(scope="module", params=["english", "english:2"])
def phrase_index(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "index"
    return LexicalIndex.build(UNITS, path, analyzer=request.param, keep_texts=True)


def words_of(text):
    return [word for word in re.findall("[a-z]+", text.lower()) if word not in STOP]


def occurs(phrase, text):
    """Whether the words of a phrase are adjacent, by strings instead of lists of terms."""
    return f" {' '.join(words_of(phrase))} " in f" {' '.join(words_of(text))} "


def ranked(retriever, query):
    found = retriever(pd.DataFrame({"qid": ["q"], "query": [query]}))
    return dict(zip(found["docno"], found["score"], strict=True))


# query, its words without operators, required and excluded phrases
QUERIES = [
    ('"tide mill" pier', "tide mill pier", ["tide mill"], []),
    ('"tide of the mill"', "tide mill", ["tide mill"], []),
    ('"of the" pier', "pier", [], []),
    ('"tide mill" "harbour pier"', "tide mill harbour pier", ["tide mill", "harbour pier"], []),
    ("“tide mill” pier", "tide mill pier", ["tide mill"], []),
    ("pier -mill", "pier", [], ["mill"]),
    ("pier -mill -harbour", "pier", [], ["mill", "harbour"]),
    ('pier -"tide mill"', "pier", [], ["tide mill"]),
    ('"pier tide" -"tide mill" -harbour', "pier tide", ["pier tide"], ["tide mill", "harbour"]),
    ('pier -"tide', "pier tide", [], []),
    ('pier "tide mill', "pier tide mill", [], []),
    ('"tide mill" pier "harbour', "tide mill pier harbour", ["tide mill"], []),
    ("tide-mill - pier", "tide mill pier", [], []),
    ("pier -tide-mill", "pier", [], ["tide mill"]),
    ('"" pier', "pier", [], []),
    ('"pier"', "pier", ["pier"], []),
    ('"unknown pier"', "pier", ["unknown pier"], []),
    ("pier -unknown -the", "pier", [], ["unknown"]),
    ("-mill", "", [], []),
    ('-"tide mill" -pier', "", [], []),
]


@pytest.mark.parametrize(("query", "plain", "required", "excluded"), QUERIES)
def test_phrases_and_exclusions_are_those_of_brute_force(
    query, plain, required, excluded, phrase_index
):
    whole = ranked(phrase_index.bm25(depth=1000), plain)
    expected = {
        unit.unit_id: whole[unit.unit_id]
        for unit in UNITS
        if unit.unit_id in whole
        and all(occurs(phrase, unit.text) for phrase in required)
        and not any(occurs(phrase, unit.text) for phrase in excluded)
    }
    if phrase_index.analyzer.longest == 2:  # pairs of words count in scores, and not in filters
        expected = dict.fromkeys(expected)
    found = ranked(BM25(operators="phrases", index=phrase_index), query)
    if phrase_index.analyzer.longest == 1:
        assert found == expected
    else:
        assert found.keys() == expected.keys()
    assert list(found.values()) == sorted(found.values(), reverse=True)
    # A shallower ranking is the beginning of the whole one, and candidates get the same scores.
    shallow = ranked(BM25(operators="phrases", depth=3, index=phrase_index), query)
    assert list(shallow.items()) == list(found.items())[:3]
    frame = pd.DataFrame({"qid": "q", "query": query, "docno": [unit.unit_id for unit in UNITS]})
    scored = BM25(operators="phrases", index=phrase_index)(frame)
    positive = scored[scored["score"] > 0]
    assert dict(zip(positive["docno"], positive["score"], strict=True)) == found


def test_the_queries_of_these_tests_let_some_pass_and_stop_some(phrase_index):
    counts = [
        len(ranked(BM25(operators="phrases", index=phrase_index), query)) for query, *_ in QUERIES
    ]
    plain = [len(ranked(phrase_index.bm25(), query)) for query, *_ in QUERIES]
    assert sum(0 < left < whole for left, whole in zip(counts, plain, strict=True)) >= 8


def test_operators_are_ignored_unless_they_are_chosen(phrase_index):
    default = ranked(phrase_index.bm25(), '"tide mill" -pier')
    assert default == ranked(phrase_index.bm25(), "tide mill pier")


def test_the_text_without_operators_keeps_its_other_words():
    parsed = parse_query('who built the "tide mill" -pier in 1900')
    assert parsed.text.split() == ["who", "built", "the", "tide", "mill", "in", "1900"]
    assert (parsed.phrases, parsed.excluded) == (("tide mill",), ("pier",))


def test_texts_come_from_the_collection_if_the_index_has_none(tmp_path):
    made = LexicalIndex.build(UNITS, tmp_path / "index", keep_texts=False)
    by_id = {unit.unit_id: unit for unit in UNITS}
    collection = Collection("c", made, texts=lambda ids: [by_id[name] for name in ids])
    found = ranked(BM25(operators="phrases").bind(collection), '"tide mill"')
    assert found.keys() == {name for name, u in by_id.items() if occurs("tide mill", u.text)}
    refused("stores no texts", lambda: ranked(BM25(operators="phrases", index=made), '"tide mill"'))


# Query likelihood and RM3.


def brute_force_likelihood(corpus, query, mu):
    """Score of each document with a query term, and the size of what was summed for it."""
    tokens = sum(sum(document.values()) for document in corpus)
    found = {}
    for number, document in enumerate(corpus):
        size = sum(document.values())
        length = cut_length(size)
        held = [term for term in query if query[term] > 0 and term in document]
        score = magnitude = 0.0
        for term in held:
            collection = sum(other.get(term, 0) for other in corpus)
            rate = mu * (collection + 1) / (tokens + 1)
            gain, loss = math.log(1 + document[term] / rate), math.log(mu / (length + mu))
            score += query[term] * max(gain + loss, 0.0)
            magnitude += query[term] * (gain - loss)
        if held:
            found[number] = score, magnitude
    return found


def by_likelihood(index, query, mu=1000.0, depth=1000):
    """The numbers of the documents that query likelihood ranks, and their scores."""
    (found,) = index.rank([query], QueryLikelihood(mu=mu, depth=depth), depth)
    places = {docno: number for number, docno in enumerate(index.docnos)}
    return np.array([places[docno] for docno in found.docnos], int), np.array(found.scores)


mus = st.one_of(st.sampled_from([0.5, 100.0, 1000.0, 2500.0]), st.floats(0.01, 1e5))


@settings(max_examples=cases(60), deadline=None)
@given(corpora, st.lists(st.tuples(queries, mus, st.integers(1, 40)), max_size=6))
def test_scores_of_query_likelihood_equal_brute_force_likelihood(corpus, searches):
    with tempfile.TemporaryDirectory() as folder:
        index = build(corpus, folder)
        for query, mu, depth in searches:
            expected = brute_force_likelihood(corpus, query, mu)
            documents, scores = by_likelihood(index, query, mu, depth)
            found = dict(zip(documents.tolist(), scores.tolist(), strict=True))
            assert len(found) == len(documents) == min(depth, len(expected))
            assert list(found) == sorted(found, key=lambda number: (-found[number], number))
            for number, score in found.items():
                wanted, magnitude = expected[number]
                assert score == pytest.approx(wanted, abs=1e-6 * magnitude + 1e-30)
            lowest = min(found.values(), default=0.0)
            for number in expected.keys() - found.keys():
                wanted, magnitude = expected[number]
                assert wanted <= lowest + 2e-6 * magnitude + 1e-30


def test_a_part_below_zero_is_cut_and_the_document_is_still_a_hit(tmp_path):
    """t fills the collection, so that the long document holds it less often than chance."""
    corpus = [{"t": 1, "u": 600}, {"t": 500}, {"t": 1}, {"u": 3}, {"t": 1, "u": 700}]
    index = build(corpus, tmp_path)
    documents, scores = by_likelihood(index, ["t"], mu=10)
    assert documents.tolist()[2:] == [0, 4]
    assert scores[:2].min() > 0
    assert scores[2:].tolist() == [0.0, 0.0]
    both, sums = by_likelihood(index, ["t", "u"], mu=10)
    alone, parts = by_likelihood(index, ["u"], mu=10)
    assert sums[both == 4] == parts[alone == 4]  # t takes nothing from what u gives


def test_bm25_and_likelihood_on_one_index_do_not_disturb_each_other(tmp_path):
    index = build([{"a": 2, "b": 1}, {"b": 3, "c": 900}, {"a": 1, "c": 1}], tmp_path)
    before = [part.tolist() for part in index.search(["a", "b", "c"])]
    likelihood = [part.tolist() for part in by_likelihood(index, ["a", "b", "c"])]
    assert [part.tolist() for part in index.search(["a", "b", "c"])] == before
    assert [part.tolist() for part in by_likelihood(index, ["a", "b", "c"])] == likelihood


def indexed(texts, folder, analyzer="whitespace"):
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    return LexicalIndex.build(units, Path(folder) / "index", analyzer=analyzer)


def ranking(scores, query="q", qid="1"):
    rows = [(qid, query, docno, score) for docno, score in scores.items()]
    frame = pd.DataFrame(rows, columns=["qid", "query", "docno", "score"])
    return frame.assign(rank=range(len(frame)))


def expected_query(texts, query, scores, fb_terms, fb_docs, weight):
    """RM3 from texts and scores, in single precision, on which it depends what is equal."""
    bags = [Counter(text.split()) for text in texts]
    filled = sum(1 for bag in bags if bag)
    single = np.float32

    def chosen(term):
        holders = sum(term in bag for bag in bags)
        plain = all("a" <= letter <= "z" or "0" <= letter <= "9" for letter in term)
        return plain and 2 <= len(term) <= 20 and 10 * holders <= filled

    def heaviest(weights):
        return sorted(weights, key=lambda term: (-weights[term], term))[:fb_terms]

    model = {}
    for docno in list(scores)[:fb_docs]:
        bag = {term: tf for term, tf in bags[int(docno[1:])].items() if chosen(term)}
        total = sum(bag[term] for term in heaviest(bag))
        for term in heaviest(bag):
            part = single(bag[term]) / single(total) * single(scores[docno])
            model[term] = model.get(term, single(0)) + part
    words = query.split()
    mixed = {word: weight * words.count(word) / len(words) for word in words}
    whole = sum(float(model[term]) for term in heaviest(model))
    for term in heaviest(model):
        mixed[term] = mixed.get(term, 0.0) + (1 - weight) * float(model[term]) / whole
    return mixed


# Half are no feedback terms: one letter, not plain, too long.
words = st.sampled_from(["aa", "bb", "Cc", "d4", "42", "a", "né", "up_to", "x" * 20, "x" * 21])
feedback_texts = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=1, max_size=6)


@settings(max_examples=cases(80), deadline=None)
@given(
    feedback_texts,
    st.lists(words, min_size=1, max_size=4).map(" ".join),
    st.integers(1, 6),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.data(),
)
def test_the_new_query_equals_that_computed_from_the_texts(
    texts, query, fb_terms, fb_docs, weight, data
):
    texts = [*texts, *["filler"] * data.draw(st.integers(1, 60))]
    some = data.draw(st.permutations(range(len(texts) - 1)))[:8]
    scores = {f"d{number}": float(len(some) - place) for place, number in enumerate(some)}
    with tempfile.TemporaryDirectory() as folder:
        index = indexed(texts, folder)
        rm3 = Feedback(index, fb_terms=fb_terms, fb_docs=fb_docs, original_weight=weight)
        found = rm3(ranking(scores, query))["query_toks"].iloc[0]
    expected = expected_query(texts, query, scores, fb_terms, fb_docs, weight)
    assert found == {term: pytest.approx(part, abs=1e-6) for term, part in expected.items()}


def test_a_document_counts_by_its_score_and_within_the_first_few(tmp_path):
    index = indexed(["aa", "bb", "cc", *["pad"] * 40], tmp_path)
    rm3 = Feedback(index, fb_docs=2, original_weight=0.0)
    out = rm3(ranking({"d1": 3.0, "d0": 1.0, "d2": 1.0}))
    assert out["query_toks"].tolist() == [{"q": 0.0, "bb": 0.75, "aa": 0.25}]
    shuffled = ranking({"d1": 3.0, "d0": 1.0, "d2": 1.0}).iloc[[2, 0, 1]]
    assert rm3(shuffled)["query_toks"].tolist() == out["query_toks"].tolist()


def test_each_query_gets_feedback_from_its_own_documents(tmp_path):
    index = indexed(["aa", "bb", *["pad"] * 20], tmp_path)
    inp = pd.concat([ranking({"d0": 1.0}, "x", "one"), ranking({"d1": 1.0}, "y", "two")])
    out = Feedback(index)(inp)
    assert out["qid"].tolist() == ["one", "two"]
    assert out["query_toks"].tolist() == [{"x": 0.5, "aa": 0.5}, {"y": 0.5, "bb": 0.5}]


def test_the_query_stays_and_its_copies_move_on(tmp_path):
    index = indexed(["aa", *["pad"] * 20], tmp_path)
    inp = ranking({"d0": 1.0}, "x").assign(query_0="older", reasoning="why", text="of d0", qx=1)
    out = Feedback(index)(inp)
    assert set(out.columns) == {"qid", "query", "query_0", "query_1", "query_toks"} | {
        *("reasoning", "qx")
    }
    row = out.iloc[0]
    assert (row["query"], row["query_0"], row["query_1"]) == ("x", "x", "older")


def test_weights_that_came_are_the_original_query(tmp_path):
    index = indexed(["aa", *["pad"] * 20], tmp_path)
    inp = ranking({"d0": 1.0}).assign(query_toks=[{"u": 3.0, "v": 1.0}])
    wanted = {"u": 0.375, "v": 0.125, "aa": 0.5}
    assert Feedback(index)(inp)["query_toks"].tolist() == [wanted]
    assert Feedback(index)(inp.drop(columns="query"))["query_toks"].tolist() == [wanted]


def test_without_a_feedback_term_the_query_keeps_its_own_terms(tmp_path):
    index = indexed(["é", "aa"], tmp_path)
    for scores in ({"d0": 1.0}, {"d1": 0.0}):
        out = Feedback(index)(ranking(scores, "u u v"))["query_toks"].iloc[0]
        assert {term for term, part in out.items() if part > 0} == {"u", "v"}
        assert out["u"] == 2 * out["v"]


def test_a_query_without_documents_is_not_in_the_result(tmp_path):
    index = indexed(["aa aa", *["pad"] * 20], tmp_path)
    pipeline = index.bm25() >> Feedback(index) >> index.bm25()
    inp = pd.DataFrame({"qid": ["1", "2"], "query": ["nothing", "aa"]})
    assert pipeline(inp)["qid"].tolist() == ["2"]
    none = pipeline(inp.head(1))
    assert len(none) == 0
    assert {"qid", "query", "docno", "score", "rank"} <= set(none.columns)


def test_passages_are_units_and_aggregated_documents_are_refused(tmp_path):
    units = [Unit(f"d%p{n}", "", text) for n, text in enumerate(["aa bb", "aa", *["pad"] * 30])]
    index = LexicalIndex.build(units, tmp_path / "i", analyzer="whitespace")
    inp = pd.DataFrame({"qid": ["1"], "query": ["bb"]})
    assert index.bm25().rm3()(inp)["docno"].tolist() == ["d%p0", "d%p1"]
    with pytest.raises(InputError, match=r"docno 'd' came to RM3.*before any aggregation"):
        (index.bm25() >> MaxP() >> Feedback(index))(inp)


@pytest.mark.parametrize("score", [-1.0, float("nan"), float("inf")])
def test_scores_that_are_no_weights_are_refused(score, tmp_path):
    index = indexed(["aa"], tmp_path)
    refused(f"score {score} came to RM3", lambda: Feedback(index)(ranking({"d0": score})))


def test_a_retriever_with_feedback_is_a_pipeline_that_can_be_inspected(tmp_path):
    index = indexed([f"aa w{n} w{n + 1}" for n in range(3)] + ["pad"] * 40, tmp_path)
    inp = pd.DataFrame({"qid": ["1"], "query": ["aa w1"]})
    for retriever in (index.bm25(k1=2, depth=30), index.ql(mu=50, depth=30)):
        feedback = Feedback(index, fb_terms=3, fb_docs=2, original_weight=0.4)
        short = retriever.rm3(fb_terms=3, fb_docs=2, original_weight=0.4)
        columns = ["qid", "query", "docno", "score", "rank"]
        assert short(inp).equals((retriever >> feedback >> retriever)(inp)[columns])
        assert list(short(inp).columns) == columns and len(short(inp)) == 3
    again = Feedback(LexicalIndex(index.path), fb_docs=3)
    assert repr(again) == f"Feedback({index!r}, fb_terms=10, fb_docs=3, original_weight=0.5)"
    columns = ["qid", "query", "docno", "score", "rank"]
    outputs = pt.inspect.transformer_outputs(Feedback(index), columns)
    assert {"qid", "query", "query_0", "query_toks"} == set(outputs)
    with pytest.raises(pt.validate.InputValidationError):
        Feedback(index)(inp)


@pytest.fixture(scope="module")
def bags():
    """400 documents: lists shorter and longer than those that are searched, large frequencies."""
    chance = np.random.default_rng(3)
    drawn = [chance.zipf(1.3, chance.integers(0, 60)) % 300 for _ in range(400)]
    return [
        Counter({f"t{w}": tf * (300 if w == 7 else 1) for w, tf in Counter(row.tolist()).items()})
        for row in drawn
    ]


@pytest.fixture
def files_pay(monkeypatch):
    """Terms by document are written for any index, in pieces of a few documents."""
    monkeypatch.setattr(forward, "_FILES_PAY", 0)
    monkeypatch.setattr(forward, "_PIECE", 100)


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.1, 0.05])
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_vectors_are_the_documents_terms(bags, count, share, files, tmp_path, request):
    if files:
        request.getfixturevalue("files_pay")
    index = indexed([" ".join(bag.elements()) for bag in bags], tmp_path)
    numbers = np.random.default_rng(count).integers(0, 400, count)
    frequency = Counter(term for bag in bags for term in bag)
    filled = sum(1 for bag in bags if bag)
    found = index.vectors(numbers, share)
    assert len(found) == count
    for number, (terms, frequencies) in zip(numbers.tolist(), found, strict=True):
        names = [index.vocabulary[term] for term in terms.tolist()]
        assert names == sorted(names)
        expected = {t: tf for t, tf in bags[number].items() if frequency[t] <= share * filled}
        assert dict(zip(names, frequencies.tolist(), strict=True)) == expected


def rare_terms(index):
    """Terms and frequencies of all documents, as feedback asks for them."""
    rows = index.vectors(np.arange(len(index)), 0.1)
    return [list(zip(t.tolist(), f.tolist(), strict=True)) for t, f in rows]


@pytest.mark.usefixtures("files_pay")
@pytest.mark.parametrize("damage", ["other index", "cut", "no manifest"])
def test_terms_by_document_of_another_index_or_damaged_are_written_again(bags, damage, tmp_path):
    index = indexed([" ".join(bag.elements()) for bag in bags], tmp_path)
    expected = rare_terms(index)
    files = index.path / "forward"
    if damage == "other index":
        text = (index.path / "manifest.json").read_text()
        (index.path / "manifest.json").write_text(text + " ")
        (files / "terms.bin").write_bytes(bytes((files / "terms.bin").stat().st_size))
    elif damage == "cut":
        (files / "terms.bin").write_bytes(b"1234")
    else:
        (files / "manifest.json").unlink()
    assert rare_terms(LexicalIndex(index.path)) == expected
    assert any(expected)


@pytest.mark.usefixtures("files_pay")
def test_feedback_goes_on_where_its_files_cannot_be_written(bags, tmp_path, monkeypatch):
    index = indexed([" ".join(bag.elements()) for bag in bags], tmp_path)
    expected = rare_terms(index)
    shutil.rmtree(index.path / "forward")

    def refused(folder, **settings):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(index_folder, "atomic_folder", refused)
    assert rare_terms(LexicalIndex(index.path)) == expected
    assert not (index.path / "forward").exists()
