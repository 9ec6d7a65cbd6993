"""BM25 and what all retrievers of the index share: scores against a float64 computation that has
no code in common with the engine, the interface of a transformer, and published figures."""

import math
import multiprocessing
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, P
from support.lexical_corpora import build, corpora, cut_length, measured, queries, real
from support.needs import cases

from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.lexical import bm25
from soundingline.pipelines.lexical.bm25 import ScoreBuffers, best, searches_at_once
from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.pipelines.lexical.storage import DECODED_LENGTHS, Postings, encode_lengths
from soundingline.toolkit.errors import InputError


def brute_force(corpus, query, k1, b):
    sizes = [sum(document.values()) for document in corpus]
    filled = [size for size in sizes if size]
    average = sum(filled) / len(filled) if filled else 1.0
    scores = {}
    for term, weight in query.items():
        holders = [number for number, document in enumerate(corpus) if term in document]
        idf = math.log(1 + (len(filled) - len(holders) + 0.5) / (len(holders) + 0.5))
        for number in holders:
            size = cut_length(sizes[number])
            tf = corpus[number][term]
            part = weight * idf * tf / (tf + k1 * (1 - b + b * size / average))
            if weight > 0:
                scores[number] = scores.get(number, 0.0) + part
    return scores


def check(index, corpus, query, k1, b, depth):
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
            check(index, corpus, query, k1, b, depth)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
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
def test_any_depth_gives_the_best_documents(large, depth):
    index, corpus = large
    for query in ({"t0": 1.0, "t1": 2.0, "t40": 1.0}, {"t399": 1.0}, {"t390": 1.0, "t398": 0.5}):
        check(index, corpus, query, 0.9, 0.4, depth)


@pytest.mark.slow
def test_collections_beyond_one_block_of_documents_are_scored_whole(tmp_path):
    chance = np.random.default_rng(11)
    words = np.minimum(chance.geometric(0.15, (34_000, 3)), 60).tolist()
    corpus = [dict(Counter(f"t{word}" for word in row)) for row in words]
    index = build(corpus, tmp_path)
    for query in ({"t1": 1.0, "t5": 1.0, "t30": 1.0}, {"t40": 1.0}, {"t1": 0.5, "t2": 3.0}):
        check(index, corpus, query, 1.2, 0.75, 500)
        check(index, corpus, query, 1.2, 0.75, 34_000)


def test_the_order_of_the_words_does_not_change_a_score(large):
    index, _ = large
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
        scores = GridBM25(index, cells, depth=most).scores(JudgedQuery("q", weights, names))
        for place, (k1, b) in enumerate(cells):
            expected = brute_force(corpus, weights, k1, b)
            found = dict(zip(*map(np.ndarray.tolist, index.search(weights, k1, b)), strict=True))
            assert found == pytest.approx(expected, rel=1e-5)
            assert scores[:, place].tolist() == [found[number] for number in range(most)]
        vectors = index.vectors(np.arange(most))
        lead = index.vocabulary.find("lead")
        of_lead = [int(values[terms == lead][0]) for terms, values in vectors]
        assert of_lead == frequencies[:most]


@pytest.mark.parametrize("query", ["text", {"t1": -1.0}, {"t1": math.nan}])
def test_a_query_that_was_not_analysed_and_bad_weights_are_refused(large, query):
    with pytest.raises(InputError, match="valid: "):
        large[0].search(query)


def test_retrievers_work_with_pyterrier_and_without_java(tmp_path):
    index = build([{"a": 1, "b": 2}, {"b": 1}, {"c": 1}], tmp_path)
    assert repr(index.bm25(k1=25, depth=7)) == (
        f"BM25(depth=7, index=LexicalIndex({str(index.path)!r}), k1=25, b=0.4, source=None, "
        "operators=None)"
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


def test_sums_of_searches_at_once_stay_within_two_gibibytes():
    assert searches_at_once(0) >= 1
    for documents in (10**6, 10**7, 10**8):
        assert searches_at_once(documents) * 4 * documents <= 2 << 30
    assert searches_at_once(2**31 - 1) == 1
