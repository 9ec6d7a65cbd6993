"""BM25 of the engine against a float64 computation that shares nothing with it."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

Corpus = list[dict[str, int]]


def cut_length(length):
    """The length that Lucene's one byte keeps: all but the four leading bits of length - 24."""
    if length < 24:
        return length
    rest = length - 24
    shift = max(rest.bit_length() - 4, 0)
    return 24 + (rest >> shift << shift)


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


def build(corpus, folder):
    texts = [
        " ".join(term for term, tf in document.items() for _ in range(tf)) for document in corpus
    ]
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    return LexicalIndex.build(units, Path(folder) / "index", analyzer="whitespace")


def check(
    index,
    corpus,
    query,
    k1,
    b,
    depth,
):
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


terms = st.sampled_from([f"t{n}" for n in range(12)])
frequency = st.one_of(st.integers(1, 4), st.integers(250, 700))
corpora = st.lists(st.dictionaries(terms, frequency, max_size=6), min_size=1, max_size=40)
weights = st.one_of(st.integers(0, 3), st.floats(0.015625, 50, width=32))
queries = st.dictionaries(st.one_of(terms, st.just("unknown")), weights, max_size=8)
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


def lucene_float_scores(query, documents, corpus, k1, b):
    """Step by step in single precision, as Lucene's BM25Similarity computes it (version 8 on)."""
    one, single = np.float32(1), np.float32
    sizes = [sum(other.values()) for other in corpus if other]
    average = single(sum(sizes) / len(sizes))
    weights = {}
    for term in query:
        holders = sum(term in other for other in corpus)
        weights[term] = single(math.log(1 + (len(sizes) - holders + 0.5) / (holders + 0.5)))
    for document in documents:
        length = single(cut_length(sum(document.values())))
        inverse = one / (single(k1) * ((one - single(b)) + single(b) * length / average))
        total = 0.0
        for term, weight in weights.items():
            if term in document:
                frequency = single(document[term])
                total += float(weight - weight / (one + frequency * inverse))
        yield float(single(total))


def test_scores_agree_with_lucenes_single_precision_arithmetic(
    large,
):
    index, corpus = large
    query = ["t0", "t2", "t17", "t230"]
    documents, scores = index.search(query, k1=0.9, b=0.4, depth=150)
    ranked = [corpus[document] for document in documents.tolist()]
    expected = list(lucene_float_scores(query, ranked, corpus, 0.9, 0.4))
    assert scores.tolist() == pytest.approx(expected, rel=1e-6)


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


def test_equal_scores_stand_in_the_order_of_the_documents(tmp_path):
    index = build([{"a": 1, "b": 1}] * 50 + [{"a": 2}] + [{"a": 1, "b": 1}] * 50, tmp_path)
    documents, _ = index.search(["a"], depth=20)
    assert documents.tolist() == [50, *range(19)]


def test_the_order_of_the_words_does_not_change_a_score(
    large,
):
    index, _ = large
    words = [f"t{n}" for n in range(0, 60, 2)]
    first, second = index.search(words), index.search(words[::-1])
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_a_repeated_term_counts_as_often_as_it_stands(large):
    index, _ = large
    repeated, weighted = index.search(["t3", "t9", "t3"]), index.search({"t3": 2, "t9": 1})
    assert np.array_equal(repeated[0], weighted[0])
    assert np.array_equal(repeated[1], weighted[1])


def test_a_term_in_every_document_still_scores_above_zero(tmp_path):
    documents, scores = build([{"a": 1}, {"a": 3}], tmp_path).search(["a"])
    assert documents.tolist() == [1, 0]
    assert scores.min() > 0


def test_no_known_term_gives_no_document(large):
    index, _ = large
    for query in ([], {}, ["unknown"], {"t1": 0.0}):
        documents, scores = index.search(query)
        assert len(documents) == len(scores) == 0


def test_many_threads_on_one_index_get_what_one_gets(large):
    index, _ = large
    wanted = [([f"t{n}", f"t{n * 3}", "t1"], 0.5 + n % 3, n % 5 + 20) for n in range(64)]

    def search(item):
        documents, scores = index.search(item[0], k1=item[1], depth=item[2])
        return documents.tolist(), scores.tolist()

    alone = [search(item) for item in wanted]
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(search, wanted * 8)) == alone * 8


@pytest.mark.parametrize(
    "query, setting",
    [
        (["t1"], {"k1": -0.1}),
        (["t1"], {"k1": math.nan}),
        (["t1"], {"k1": math.inf}),
        (["t1"], {"b": 1.01}),
        (["t1"], {"b": -0.01}),
        (["t1"], {"depth": 0}),
        (["t1"], {"depth": 2.5}),
        (["t1"], {"k1": "much"}),
        ("t1", {}),
        ({"t1": -1.0}, {}),
        ({"t1": math.nan}, {}),
    ],
)
def test_settings_without_meaning_are_refused(large, query, setting):
    with pytest.raises(InputError, match="valid: "):
        large[0].search(query, **setting)  # type: ignore[arg-type]


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
