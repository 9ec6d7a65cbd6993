"""Query likelihood against a float64 computation and published figures. `test_anserini` holds it
against Lucene itself."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import ir_measures
import pandas as pd
import pyterrier as pt
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, P

from soundingline.pipelines import LexicalIndex, QueryLikelihood
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

Corpus = list[dict[str, int]]


def one_byte(length):
    """The largest length that Lucene's byte can say and that is not above: 24 or more is kept as
    four leading bits of what exceeds 24."""
    if length < 24:
        return length
    unit = 1
    while (length - 24) // unit >= 16:
        unit *= 2
    return 24 + (length - 24) // unit * unit


def brute_force(corpus, query, mu):
    """Score of each document with a query term, and the size of what was summed for it."""
    tokens = sum(sum(document.values()) for document in corpus)
    found = {}
    for number, document in enumerate(corpus):
        size = sum(document.values())
        length = one_byte(size)
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


def build(corpus, folder):
    texts = [" ".join(t for t, tf in document.items() for _ in range(tf)) for document in corpus]
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    return LexicalIndex.build(units, Path(folder) / "index", analyzer="whitespace")


terms = st.sampled_from([f"t{n}" for n in range(10)])
frequency = st.one_of(st.integers(1, 4), st.integers(250, 700))
corpora = st.lists(st.dictionaries(terms, frequency, max_size=6), min_size=1, max_size=30)
weights = st.one_of(st.integers(0, 3), st.floats(0.015625, 50, width=32))
queries = st.dictionaries(st.one_of(terms, st.just("unknown")), weights, max_size=8)
mus = st.one_of(st.sampled_from([0.5, 100.0, 1000.0, 2500.0]), st.floats(0.01, 1e5))


@settings(max_examples=cases(60), deadline=None)
@given(corpora, st.lists(st.tuples(queries, mus, st.integers(1, 40)), max_size=6))
def test_scores_equal_brute_force(corpus, searches):
    with tempfile.TemporaryDirectory() as folder:
        index = build(corpus, folder)
        for query, mu, depth in searches:
            expected = brute_force(corpus, query, mu)
            documents, scores = index.search_likelihood(query, mu, depth)
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
    documents, scores = index.search_likelihood(["t"], mu=10)
    assert documents.tolist()[2:] == [0, 4]
    assert scores[:2].min() > 0
    assert scores[2:].tolist() == [0.0, 0.0]
    both, sums = index.search_likelihood(["t", "u"], mu=10)
    alone, parts = index.search_likelihood(["u"], mu=10)
    assert sums[both == 4] == parts[alone == 4]  # t takes nothing from what u gives


def test_bm25_and_likelihood_on_one_index_do_not_disturb_each_other(tmp_path):
    index = build([{"a": 2, "b": 1}, {"b": 3, "c": 900}, {"a": 1, "c": 1}], tmp_path)
    before = [part.tolist() for part in index.search(["a", "b", "c"])]
    likelihood = [part.tolist() for part in index.search_likelihood(["a", "b", "c"])]
    assert [part.tolist() for part in index.search(["a", "b", "c"])] == before
    assert [part.tolist() for part in index.search_likelihood(["a", "b", "c"])] == likelihood


def test_another_mu_gives_other_scores(tmp_path):
    index = build([{"a": 1, "b": 90}, {"a": 1, "c": 200}], tmp_path)
    found = {tuple(index.search_likelihood(["b"], mu, 5)[1]) for mu in (10.0, 1000.0)}
    assert len(found) == 2


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    texts = ["alpha beta gamma", "alpha alpha delta", "beta", "omega omega", ""]
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    return LexicalIndex.build(units, tmp_path_factory.mktemp("ql") / "index")


def frame(*queries):
    return pd.DataFrame(
        [(f"q{n}", query) for n, query in enumerate(queries)], columns=["qid", "query"]
    )


def test_a_frame_holds_the_ranking_of_each_query_in_turn(index):
    out = index.ql()(frame("betas", "nothing here", "omega"))
    assert list(out.columns) == ["qid", "query", "docno", "score", "rank"]
    assert out["qid"].tolist() == ["q0", "q0", "q2"]
    assert out["docno"].tolist() == ["d2", "d0", "d3"]
    assert out["rank"].tolist() == [0, 1, 0]
    assert out["score"].tolist()[:2] == index.search_likelihood(["beta"])[1].tolist()


def test_weights_by_term_are_taken_as_index_terms(index):
    inp = pd.DataFrame([{"qid": "1", "query": "omega", "query_toks": {"beta": 2.5}}])
    out = index.ql()(inp)
    assert out["docno"].tolist() == ["d2", "d0"]
    assert out["score"].tolist() == index.search_likelihood({"beta": 2.5})[1].tolist()


def test_a_transformer_equals_another_of_the_same_index_and_settings(index):
    again = LexicalIndex.open(index.path)
    assert index.ql(mu=7) == again.ql(mu=7)
    assert hash(index.ql(mu=7)) == hash(again.ql(mu=7))
    for other in (index.ql(), index.ql(mu=7, depth=5)):
        assert index.ql(mu=7) != other
    assert index.ql() != index.bm25()
    assert repr(index.ql(mu=7, depth=3)) == (f"QueryLikelihood(depth=3, index={index!r}, mu=7)")


def test_it_works_with_pyterriers_operators(index):
    assert index.ql(depth=10).fuse_rank_cutoff(2) == index.ql(depth=2) % 2
    assert index.ql(depth=2).fuse_rank_cutoff(10) is None
    assert len((index.ql() % 1)(frame("alpha", "beta"))) == 2
    assert isinstance(QueryLikelihood(index=index, mu=100.0) >> index.bm25(), pt.Transformer)
    assert pt.inspect.transformer_outputs(index.ql(), ["qid", "query"]) == [
        *("qid", "query", "docno", "score", "rank")
    ]


@pytest.mark.parametrize(
    "setting",
    [
        *({"mu": mu} for mu in (0, -5, math.nan, math.inf, "much")),
        {"depth": 0},
    ],
)
def test_settings_without_meaning_are_refused(index, setting):
    with pytest.raises(InputError, match="valid: "):
        index.ql(**setting)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="valid: "):
        index.search_likelihood(["alpha"], **setting)  # type: ignore[arg-type]


def test_no_known_term_gives_no_document(index):
    for query in ([], {}, ["unknown"], {"alpha": 0.0}):
        documents, scores = index.search_likelihood(query)
        assert len(documents) == len(scores) == 0


def units(folder):
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Unit(row["_id"], row.get("title", ""), row["text"])


def topics(folder):
    rows = [json.loads(line) for line in (folder / "queries.jsonl").open(encoding="utf-8")]
    return pd.DataFrame([(row["_id"], row["text"]) for row in rows], columns=["qid", "query"])


def test_cacm_scores_as_anserini_publishes(data_root, tmp_path):
    """Anserini's regression, query likelihood with mu=1000: AP 0.3265, P@30 0.1942."""
    folder = data_root / "cacm"
    run = LexicalIndex.build(units(folder), tmp_path / "index").ql()(topics(folder))
    names = ["query_id", "doc_id", "relevance"]
    kinds = {"query_id": str, "doc_id": str}
    qrels = pd.read_csv(folder / "qrels/test.tsv", sep="\t", header=0, names=names, dtype=kinds)
    run = run.rename(columns={"qid": "query_id", "docno": "doc_id"})
    values = ir_measures.calc_aggregate([AP, P @ 30], qrels, run)
    assert values[AP] == pytest.approx(0.3265, abs=0.001)
    assert values[P @ 30] == pytest.approx(0.1942, abs=0.001)
