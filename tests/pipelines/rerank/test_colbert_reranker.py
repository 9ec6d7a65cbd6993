"""MaxSim of any first stage's candidates."""

import os

import numpy as np
import pandas as pd
import pytest
import tiny_embedder

from soundingline.pipelines.learned.colbert import ColBERT, ColBERTReranker
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit

EXACT = {"dtype": "float32", "device": "cpu"}
TEXTS = ["the old mill.", "", "by the river " * 9, "who built the bridge", "town ,", "x\ud800"]
QUERIES = ["who built the mill", "river"]
PAIRS = [Pair(query, text) for query in QUERIES for text in TEXTS]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import torch

    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    return tiny_embedder.save_multi_vector(tmp_path_factory.mktemp("models"))


def encoder(model, **changed):
    return ColBERT(str(model), **{**EXACT, "storage": "float32", **changed})


def stage_of(model, **changed):
    return ColBERTReranker(str(model), **{**EXACT, **changed})


def loops(model, pair):
    made = encoder(model)
    query, text = made.encode_queries([pair.query])[0], made.encode([pair.text])[0]
    return sum(max(float(token @ row) for row in text) for token in query)


def test_scores_are_those_of_loops_and_of_each_pair_alone(model):
    scorer = stage_of(model)
    together = scorer.score(PAIRS)
    np.testing.assert_allclose(together, [loops(model, pair) for pair in PAIRS], atol=1e-4)
    np.testing.assert_allclose(together, [scorer.score([pair])[0] for pair in PAIRS], atol=1e-4)
    np.testing.assert_allclose(together, scorer.score(PAIRS[::-1])[::-1], atol=1e-4)
    assert scorer.score([]) == []


def test_a_text_of_several_queries_is_encoded_once_and_cut_ones_are_counted(model):
    scorer = stage_of(model, max_length=16)
    scorer.score(PAIRS)
    assert scorer.count() == {"pairs": 12, "encoded": 6, "truncated": 1}


def test_the_fingerprint_tells_settings_that_change_a_score(model):
    own = stage_of(model).fingerprint
    assert stage_of(model, batch_tokens=64).fingerprint == own
    assert stage_of(model, max_length=16).fingerprint != own
    assert stage_of(model, query_max_length=16).fingerprint != own


def test_the_head_of_a_ranking_comes_in_the_order_of_maxsim(model, tmp_path):
    units = {f"d{n}": Unit(f"d{n}", "", text) for n, text in enumerate(TEXTS)}
    ranking = pd.DataFrame(
        {
            "qid": "q",
            "query": QUERIES[0],
            "docno": list(units),
            "score": [float(len(units) - n) for n in range(len(units))],
            "rank": range(len(units)),
            "reasoning": "why",
        }
    )
    stage = ColBERTReranker(
        str(model),
        texts=lambda ids: [units[docno] for docno in ids],
        cache=tmp_path,
        depth=4,
        **EXACT,
    )
    exact = {f"d{n}": loops(model, Pair(QUERIES[0], text)) for n, text in enumerate(TEXTS)}
    found = stage(ranking)
    head = sorted(list(units)[:4], key=lambda docno: -exact[docno])
    assert found["docno"].tolist() == [*head, "d4", "d5"]
    np.testing.assert_allclose(found["score"][:4], [exact[docno] for docno in head], atol=1e-4)
    assert set(found["reasoning"]) == {"why"}
    again = stage(ranking)
    pd.testing.assert_frame_equal(found, again)
    assert stage.counts["cache_hits"] == 4
    assert stage.counts["pairs"] == 4
    assert len(stage(ranking.iloc[:0])) == 0


def test_a_whole_document_scores_as_its_best_window(model):
    window, rest = "who built the mill", "of a town . "
    text = rest * 20 + window + " " + rest * 20
    ranking = pd.DataFrame(
        {"qid": ["1"], "query": [window], "docno": ["d"], "score": [1.0], "text": [text]}
    )
    stage = ColBERTReranker(str(model), max_length=20, **EXACT)
    whole = stage.bind(Collection("documents", whole_documents=True))(ranking)
    cut = stage.bind(Collection("passages"))(ranking)
    scorer = stage_of(model, max_length=20)
    parts = scorer.windows(Pair(window, text))
    windows = [loops(model, Pair(window, part)) for part in parts]
    assert len(windows) > 5
    assert whole["score"].iloc[0] == pytest.approx(max(windows), abs=1e-4)
    assert cut["score"].iloc[0] == pytest.approx(windows[0], abs=1e-4)
