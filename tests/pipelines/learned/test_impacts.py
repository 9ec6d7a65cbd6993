"""The impact index against sums over a dense matrix, and what it refuses."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from soundingline.pipelines.learned.encoding import SPARSE, Shard
from soundingline.pipelines.learned.impacts import ImpactIndex
from soundingline.toolkit.errors import InputError

TERMS = [f"term{n}" for n in range(60)]
DEPTH = 100


def weights(documents, seed=1):
    """A sparse matrix of weights, most of them below 2.55 and some above; frequent and rare terms,
    and a few documents without any."""
    random = np.random.default_rng(seed)
    chance = np.linspace(0.9, 0.002, len(TERMS))
    held = random.random((documents, len(TERMS))) < chance
    held[random.integers(0, documents, max(documents // 50, 1))] = False
    return np.where(held, random.gamma(1.2, 0.6, held.shape), 0).astype(np.float32)


def shards(matrix, size=300):
    made = []
    for first in range(0, len(matrix), size):
        rows = matrix[first : first + size]
        values = np.empty(np.count_nonzero(rows), SPARSE)
        values["term"], values["weight"] = np.nonzero(rows)[1], rows[np.nonzero(rows)]
        ends = np.cumsum(np.count_nonzero(rows, axis=1))
        names = [f"d{n}" for n in range(first, first + len(rows))]
        made.append(Shard(names, values, np.concatenate([[0], ends])))
    return made


def build(matrix, path, **others):
    return ImpactIndex.build(shards(matrix), TERMS, path, **others)


def query(random, whole):
    chosen = random.choice(len(TERMS), random.integers(1, 40), replace=False)
    drawn = random.gamma(1.2, 0.6, len(chosen)).astype(np.float32)
    values = np.rint(drawn * 100) if whole else drawn
    return {TERMS[n]: float(value) for n, value in zip(chosen.tolist(), values, strict=True)}


def brute_force(impacts, asked, depth=DEPTH):
    """Sums over columns, in the type of `impacts`, term after term in the order of their numbers;
    then a stable sort of every document."""
    sums = np.zeros(len(impacts), impacts.dtype)
    for number in sorted(TERMS.index(term) for term in asked):
        sums += impacts[:, number] * impacts.dtype.type(asked[TERMS[number]])
    order = np.argsort(-sums, kind="stable")[:depth]
    order = order[sums[order] > 0]
    return order.tolist(), sums[order].tolist()


@pytest.mark.parametrize("documents", [1, 40, 2500, 40_000])
@pytest.mark.parametrize("scale", [100, None, 1000], ids=["hundredths", "exact", "thousandths"])
def test_the_best_are_those_of_brute_force(documents, scale, tmp_path):
    matrix = weights(documents)
    index = build(matrix, tmp_path / "index", scale=scale)
    impacts = matrix if scale is None else np.rint(matrix.astype(float) * scale).astype(np.int64)
    random = np.random.default_rng(3)
    for _ in range(20):
        asked = query(random, whole=scale is not None)
        found, scores = index.search(asked, DEPTH)
        assert (found.tolist(), scores.tolist()) == brute_force(impacts, asked)


def test_the_corpus_of_these_tests_has_impacts_above_one_byte_and_equal_scores(
    tmp_path,
):
    matrix = weights(2500)
    index = build(matrix, tmp_path / "index")
    assert sum((index.postings(term)[1] > 255).sum() for term in TERMS) > 100
    _, scores = index.search({"term5": 1.0}, 1000)
    assert len(set(scores.tolist())) < len(scores)


def test_postings_hold_rounded_weights_and_drop_those_that_round_to_nothing(
    tmp_path,
):
    matrix = np.zeros((4, len(TERMS)), np.float32)
    matrix[:, 7] = [0.004, 0.0051, 2.549, 3.141]
    index = build(matrix, tmp_path / "index")
    documents, impacts = index.postings("term7")
    assert (documents.tolist(), impacts.tolist()) == ([1, 2, 3], [1.0, 255.0, 314.0])
    assert index.document_frequency("term7") == 3
    assert index.document_frequency("unheard of") == 0
    assert len(index.postings("unheard of")[0]) == 0


def test_exact_weights_are_kept_bit_for_bit(tmp_path):
    matrix = weights(500)
    index = build(matrix, tmp_path / "index", scale=None)
    for number in (0, 30, 59):
        documents, impacts = index.postings(TERMS[number])
        assert documents.tolist() == np.flatnonzero(matrix[:, number]).tolist()
        np.testing.assert_array_equal(impacts, matrix[documents, number])


def test_a_build_in_many_passes_gives_the_same_bytes(tmp_path, monkeypatch):
    matrix = weights(700)
    build(matrix, tmp_path / "one", memory_mb=16)
    monkeypatch.setattr("soundingline.pipelines.learned.impacts._MB", 1000)
    build(matrix, tmp_path / "many", memory_mb=1)
    for path in sorted((tmp_path / "one").glob("[!.]*")):
        assert path.read_bytes() == (tmp_path / "many" / path.name).read_bytes()


def test_threads_at_once_find_what_one_finds(tmp_path):
    index = build(weights(3000), tmp_path / "index")
    random = np.random.default_rng(5)
    asked = [query(random, whole=True) for _ in range(60)]
    alone = [index.search(each, DEPTH)[0].tolist() for each in asked]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: index.search(each, DEPTH)[0].tolist(), asked))
    assert together == alone


def test_a_pickled_index_opens_the_same_folder(tmp_path):
    index = build(weights(50), tmp_path / "index", corpus_fingerprint="c1")
    again = pickle.loads(pickle.dumps(index))
    assert again == index and hash(again) == hash(index)
    assert again.search({"term1": 2.0})[0].tolist() == index.search({"term1": 2.0})[0].tolist()


def test_unknown_terms_and_weights_of_nothing_find_nothing(tmp_path):
    index = build(weights(50), tmp_path / "index")
    for asked in ({}, {"unheard of": 3.0}, {"term1": 0.0}):
        assert len(index.search(asked)[0]) == 0


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_without_meaning_are_refused(weight, tmp_path):
    index = build(weights(50), tmp_path / "index")
    with pytest.raises(InputError, match="of term 'term1'"):
        index.search({"term1": weight})


@pytest.mark.parametrize("scale", [0, -1, float("inf"), 10**7, "100"])
def test_scales_without_meaning_are_refused(scale, tmp_path):
    with pytest.raises(InputError, match="scale="):
        build(weights(5), tmp_path / "index", scale=scale)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_whole_index_of_the_corpus_is_refused(tmp_path):
    path = tmp_path / "index"
    with pytest.raises(InputError, match="there is no impacts index"):
        ImpactIndex.open(path)
    build(weights(50), path, corpus_fingerprint="c1")
    with pytest.raises(InputError, match=r"another corpus \('c1'\)"):
        ImpactIndex.open(path, corpus_fingerprint="c2")
    (path / "documents.bin").write_bytes(b"short")
    with pytest.raises(InputError, match=r"damaged: documents\.bin"):
        ImpactIndex.open(path)


class Table:
    """An encoder of known queries; counts its calls."""

    def __init__(self, known: Mapping[str, Mapping[str, float]]) -> None:
        self.known, self.calls = known, 0

    def queries(self, texts):
        self.calls += 1
        return [self.known[text] for text in texts]


def test_a_frame_keeps_its_columns_and_ranks_each_query(tmp_path):
    matrix = weights(300)
    index = build(matrix, tmp_path / "index")
    encoder = Table({"first": {"term3": 1.234, "term9": 0.5}, "second": {"nothing": 1.0}})
    frame = pd.DataFrame(
        [["q1", "first", "a"], ["q2", "second", "b"], ["q3", "first", "c"]],
        columns=["qid", "query", "note"],
    )
    out = index.retriever(encoder, depth=7)(frame)
    assert list(out.columns) == ["qid", "query", "note", "docno", "score", "rank"]
    assert out.groupby("qid").size().to_dict() == {"q1": 7, "q3": 7}
    assert out["rank"].tolist() == [*range(7), *range(7)]
    numbers, scores = brute_force(
        np.rint(matrix.astype(float) * 100).astype(np.int64), {"term3": 123, "term9": 50}, 7
    )
    first = out[out["qid"] == "q1"]
    assert first["docno"].tolist() == [f"d{n}" for n in numbers]
    assert first["score"].tolist() == scores
    assert encoder.calls == 1


def test_exact_impacts_take_exact_query_weights(tmp_path):
    matrix = weights(300)
    index = build(matrix, tmp_path / "index", scale=None)
    asked = {"term3": 1.234375, "term9": 0.125}
    frame = pd.DataFrame([["q1", "first"]], columns=["qid", "query"])
    out = index.retriever(Table({"first": asked}), depth=7)(frame)
    assert out["score"].tolist() == brute_force(matrix, asked, 7)[1]


def test_given_weights_are_taken_as_they_are_and_need_no_encoder(tmp_path):
    index = build(weights(300), tmp_path / "index")
    given = {"term3": 1.25, "term9": 0.5}
    frame = pd.DataFrame({"qid": ["q1"], "query": ["ignored"], "query_toks": [given]})
    out = index.retriever(depth=5)(frame)
    numbers, scores = index.search(given, 5)
    assert out["docno"].tolist() == [f"d{n}" for n in numbers]
    assert out["score"].tolist() == scores.tolist()


def test_an_empty_frame_gives_an_empty_ranking(tmp_path):
    retriever = build(weights(50), tmp_path / "index").retriever(Table({}))
    out = retriever(pd.DataFrame({"qid": [], "query": []}))
    assert list(out.columns) == ["qid", "query", "docno", "score", "rank"]
    assert len(out) == 0


def test_bad_frames_are_refused(tmp_path):
    retriever = build(weights(50), tmp_path / "index").retriever()
    with pytest.raises(InputError, match="no encoder for the queries"):
        retriever(pd.DataFrame({"qid": ["q1"], "query": ["text"]}))
    with pytest.raises(InputError, match="a dict of index terms to weights"):
        retriever(pd.DataFrame({"qid": ["q1"], "query_toks": ["term1"]}))
    with pytest.raises(Exception, match="query"):
        retriever(pd.DataFrame({"qid": ["q1"], "docno": ["d1"]}))


def test_a_cutoff_becomes_the_depth_of_the_search(tmp_path):
    index = build(weights(50), tmp_path / "index")
    retriever = index.retriever(depth=50)
    assert (retriever % 5).compile() == index.retriever(depth=5) % 5
    assert retriever != index.retriever(Table({}), depth=50)
    assert hash(retriever) == hash(index.retriever(depth=50))
    assert "depth=50" in repr(retriever)
    with pytest.raises(InputError, match="depth=0"):
        index.retriever(depth=0)
