"""Retrievers score the documents that they are given, as they score them in a whole ranking."""

import json
import random
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from support.needs import cases
from support.stub_encoder import StubSparse, vector_engine

from soundingline.pipelines.enrich.enrichment import EnrichedEngine
from soundingline.pipelines.enrich.phrases import PhraseFile
from soundingline.pipelines.learned.encoding import encode_corpus
from soundingline.pipelines.learned.impacts import ImpactIndex
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

WORDS = [f"w{number}" for number in range(60)]
QUERIES = pd.DataFrame(
    {
        "qid": ["a", "b", "c", "none"],
        "query": ["w1 w2 w40", "w0 w0 w59 unknown", "w3", "nowhere"],
    }
)


def documents(size, seed=0):
    """Documents of which some words are in nearly all, some are frequent, and some are empty."""
    chance = random.Random(seed)
    drawn = [
        [*chance.choices(WORDS, [1 / (1 + n) for n in range(60)], k=chance.randrange(60))]
        for _ in range(size)
    ]
    drawn[3] += ["w1"] * 300  # a frequency above one byte
    return [Unit(f"d{n}", "", " ".join(words)) for n, words in enumerate(drawn)]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("lexical") / "index"
    return LexicalIndex.build(documents(400), path, analyzer="whitespace")


@pytest.fixture(scope="module")
def enriched(index, tmp_path_factory):
    folder = tmp_path_factory.mktemp("enriched")
    rows = [{"id": f"d{n}", "phrases": [f"w{n % 60} w1 extra", "w40"]} for n in range(0, 400, 3)]
    (folder / "phrases.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    source = PhraseFile(path=str(folder / "phrases.jsonl"))
    collection = Collection("c", index=index)
    engine = EnrichedEngine(LexicalEngine("whitespace"), source, None, collection)
    engine.build(documents(400), folder / "index", corpus_fingerprint="c")
    return engine.open(folder / "index", corpus_fingerprint="c")


class Weights:
    """A query's words as impacts' terms."""

    def queries(self, texts):
        return [{f"t{n}": (1 + n) / len(text) for n in range(0, 52, 2)} for text in texts]


def learned(kind, folder):
    if kind == "impacts":
        made = encode_corpus(
            documents(400), StubSparse(), folder / "encoding", corpus_fingerprint="c"
        )
        names = [f"t{number}" for number in range(52)]
        return ImpactIndex.build(made, names, folder / "index").retriever(Weights())
    engine = vector_engine(kind)
    engine.build(documents(400), folder / "index", corpus_fingerprint="c")
    return engine.open(folder / "index", corpus_fingerprint="c").retriever()


def given(seed, size=50):
    """Candidates of each query, in no order, some of them twice."""
    chance = random.Random(seed)
    rows = [
        (*query, f"d{chance.randrange(400)}", f"text {n}")
        for query in QUERIES.itertuples(index=False)
        for n in range(size)
    ]
    chance.shuffle(rows)
    return pd.DataFrame(rows, columns=["qid", "query", "docno", "text"])


def assert_as_ranked(make, seed, tolerance=0.0):
    """Given documents have scores and order of a ranking of all; 0 where that lacks them."""
    ranking, inp = make(400)(QUERIES), given(seed)
    whole = {(row.qid, row.docno): row.score for row in ranking.itertuples()}
    out = make(5)(inp)
    assert sorted(zip(out["qid"], out["docno"], out["text"], strict=True)) == sorted(
        zip(inp["qid"], inp["docno"], inp["text"], strict=True)
    )
    expected = [whole.get(key, 0.0) for key in zip(out["qid"], out["docno"], strict=True)]
    np.testing.assert_allclose(out["score"], expected, rtol=tolerance, atol=tolerance)
    assert len(set(out["score"])) > 20
    places = {key: place for place, key in enumerate(whole)}
    for qid, rows in out.groupby("qid", sort=False):
        assert rows["rank"].tolist() == list(range(len(rows)))
        assert rows["score"].is_monotonic_decreasing
        found = [places[qid, docno] for docno in rows["docno"] if (qid, docno) in places]
        assert found == sorted(found)


LEXICAL = {
    "bm25": lambda index, depth: index.bm25(depth=depth),
    "ql": lambda index, depth: index.ql(mu=50, depth=depth),
    "rm3": lambda index, depth: index.bm25(depth=depth).rm3(fb_docs=4),
    "ql with rm3": lambda index, depth: index.ql(depth=depth).rm3(fb_terms=3, fb_docs=2),
}


@pytest.mark.parametrize("name", LEXICAL)
def test_given_documents_have_the_bits_of_the_whole_ranking(name, index):
    for seed in range(cases(50, 4)):
        assert_as_ranked(lambda depth: LEXICAL[name](index, max(depth, 4)), seed)


def test_phrases_count_for_given_documents(enriched):
    for seed in range(cases(50, 4)):
        assert_as_ranked(lambda depth: enriched.bm25(depth=depth), seed)


@pytest.mark.parametrize("kind", ["impacts", "dense", "colbert"])
def test_learned_retrievers_score_given_documents(kind, tmp_path):
    if kind != "impacts":
        for package in ("torch", "sentence_transformers"):
            pytest.importorskip(package)
    retriever = learned(kind, tmp_path)
    for seed in range(cases(20, 3)):
        # Matrix products round by their shape; one vector a document has its own kernel.
        assert_as_ranked(retriever.at_depth, seed, 1e-5 if kind == "colbert" else 0.0)


def test_features_are_written_as_pyterrier_writes_them(index):
    bm25, ql = index.bm25(depth=10), index.ql()
    first = bm25(QUERIES)
    out = (bm25 >> (index.bm25(k1=2) ** ql))(QUERIES)
    assert len(out) == len(first) == 30
    assert out["score"].tolist() == first["score"].tolist()
    for position, retriever in enumerate((index.bm25(k1=2, depth=400), index.ql(depth=400))):
        whole = {(row.qid, row.docno): row.score for row in retriever(QUERIES).itertuples()}
        for row in out.itertuples():
            assert row.features[position] == whole[row.qid, row.docno]
    compiled = (bm25 >> (index.bm25(k1=2) ** ql) % 3).compile()(QUERIES)
    assert np.array_equal(
        np.stack(compiled["features"]), np.stack(out[out["rank"] < 3]["features"])
    )


def test_a_cutoff_cuts_given_documents_and_the_depth_does_not(index):
    inp = given(1)
    assert len(index.bm25(depth=2)(inp)) == len(inp)
    for retriever in (index.bm25(), index.ql(), index.bm25().rm3()):
        expected = retriever(inp)
        expected = expected[expected["rank"] < 3].reset_index(drop=True)
        for pipeline in (retriever % 3, (retriever % 3).compile()):
            pd.testing.assert_frame_equal(pipeline(inp), expected)


def test_columns_of_the_input_stay_and_the_first_row_says_the_query(index):
    inp = given(2).assign(score=7.0, rank=1, features=None).set_index(pd.Index(range(200, 400)))
    out = index.bm25()(inp)
    assert list(out.columns) == ["qid", "query", "docno", "text", "features", "score", "rank"]
    assert out.attrs == index.bm25()(QUERIES).attrs
    # As PyTerrier has it, one row with the query is enough.
    sparse = inp.assign(query=inp["query"].where(~inp["qid"].duplicated(), None))
    left, right = (frame.drop(columns="query") for frame in (index.bm25()(sparse), out))
    pd.testing.assert_frame_equal(left, right)


def test_weights_of_terms_are_taken_and_stay_after_feedback(index):
    weights = {"a": {"w1": 2.0}, "b": {"w2": 1.0, "w3": 0.5}, "c": {}, "none": {"nowhere": 1.0}}
    inp = given(3).assign(query_toks=lambda rows: rows["qid"].map(weights))
    queries = QUERIES.assign(query_toks=QUERIES["qid"].map(weights))
    for retriever in (index.bm25(depth=400), index.bm25(depth=400).rm3(fb_docs=3)):
        out, ranking = retriever(inp), retriever(queries)
        whole = {(row.qid, row.docno): row.score for row in ranking.itertuples()}
        keys = zip(out["qid"], out["docno"], strict=True)
        assert out["score"].tolist() == [whole.get(key, 0.0) for key in keys]
        assert out["query_toks"].tolist() == [weights[qid] for qid in out["qid"]]


@pytest.mark.parametrize("name", LEXICAL)
def test_no_candidates_give_no_rows(name, index):
    retriever = LEXICAL[name](index, 10)
    out = retriever(given(0)[:0])
    assert len(out) == 0
    assert list(out.columns) == ["qid", "query", "docno", "text", "score", "rank"]
    assert len((index.bm25() >> (retriever**retriever))(QUERIES[:0])) == 0


def test_a_document_that_the_index_lacks_is_refused(index, tmp_path):
    inp = given(0)
    inp.loc[17, "docno"] = "d7%p3"
    message = r"docno 'd7%p3' is not in LexicalIndex\(.*before any aggregation"
    for retriever in (index.bm25(), index.ql(), index.bm25().rm3()):
        with pytest.raises(InputError, match=message):
            retriever(inp)


@pytest.mark.skipif(not find_spec("pyterrier_pisa"), reason="PISA is not installed")
def test_an_engine_that_only_ranks_refuses_them(tmp_path):
    from soundingline.pipelines.engines.pisa import PisaEngine

    engine = PisaEngine()
    engine.build(documents(20), tmp_path / "pisa", corpus_fingerprint="c")
    retriever = engine.open(tmp_path / "pisa").bm25()
    with pytest.raises(pt.validate.InputValidationError, match="docno"):
        retriever(given(0))
