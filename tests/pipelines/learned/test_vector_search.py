"""MaxSim against loops over every pair of tokens."""

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from soundingline.pipelines.learned import vectors as module
from soundingline.pipelines.learned.vectors import (
    DocumentVectors,
    NumpySearch,
    TorchSearch,
    maxsim,
)


def collection(rng, lengths, kind="float32"):
    vectors = rng.standard_normal((sum(lengths), 8)).astype(kind)
    return DocumentVectors(vectors, np.cumsum([0, *lengths]))


def naive(query, documents):
    scores = []
    for first, last in zip(documents.offsets[:-1], documents.offsets[1:], strict=True):
        rows = documents.vectors[first:last].astype(np.float64)
        scores.append(sum(max(float(token @ row) for row in rows) for token in query))
    return scores


@settings(max_examples=cases(40))
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    queries=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    products=st.integers(1, 200),
    kind=st.sampled_from(["float32", "float16"]),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_loops_whatever_the_blocks(lengths, queries, products, kind, seed):
    rng = np.random.default_rng(seed)
    documents = collection(rng, lengths, kind)
    asked = [rng.standard_normal((count, 8)).astype(np.float32) for count in queries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PRODUCTS", products)
        found = maxsim(asked, documents)
    np.testing.assert_allclose(found, [naive(query, documents) for query in asked], atol=1e-4)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("products", [100, 1 << 24])
def test_both_searches_give_the_top_100_of_loops(kind, products, monkeypatch):
    import torch

    monkeypatch.setattr(module, "_PRODUCTS", products)
    rng = np.random.default_rng(1)
    documents = collection(rng, rng.integers(1, 20, 400).tolist(), kind)
    asked = [rng.standard_normal((count, 8)).astype(np.float32) for count in (4, 1, 7)]
    searches = NumpySearch(documents), TorchSearch(documents, torch.device("cpu"))
    for search in searches:
        for query, found in zip(asked, search(asked, 100), strict=True):
            exact = np.array(naive(query, documents))
            order = np.argsort(-exact, kind="stable")[:100]
            assert found.numbers.tolist() == order.tolist()
            np.testing.assert_allclose(found.scores, exact[order], atol=1e-4)


def test_equal_scores_stand_in_the_order_of_the_documents():
    import torch

    documents = DocumentVectors(np.ones((60, 4), np.float32), np.arange(0, 61, 2))
    for search in (NumpySearch(documents), TorchSearch(documents, torch.device("cpu"))):
        found = search([np.ones((3, 4), np.float32)], 5)[0]
        assert found.numbers.tolist() == [0, 1, 2, 3, 4]
        assert found.scores.tolist() == [12.0] * 5


def test_a_depth_beyond_the_documents_gives_them_all():
    import torch

    documents = collection(np.random.default_rng(2), [2, 3])
    for search in (NumpySearch(documents), TorchSearch(documents, torch.device("cpu"))):
        assert len(search([np.ones((1, 8), np.float32)], 1000)[0].numbers) == 2


@pytest.mark.parametrize("scores", [1, 1 << 26])
def test_a_vector_is_a_text_of_one_token(scores, monkeypatch):
    import torch

    monkeypatch.setattr(module, "_SCORES", scores)
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((50, 8)).astype(np.float32)
    queries = rng.standard_normal((4, 8)).astype(np.float32)
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    one_a_text = DocumentVectors(vectors)
    as_tokens = DocumentVectors(vectors, np.arange(51))
    for search in (NumpySearch, lambda documents: TorchSearch(documents, torch.device("cpu"))):
        rankings = search(one_a_text)(list(queries), 10)
        by_tokens = search(as_tokens)([query[None] for query in queries], 10)
        for query, ranking, other in zip(exact, rankings, by_tokens, strict=True):
            order = np.argsort(-query, kind="stable")[:10].tolist()
            assert ranking.numbers.tolist() == other.numbers.tolist() == order
            np.testing.assert_allclose(ranking.scores, query[order], atol=1e-5)
            np.testing.assert_allclose(other.scores, query[order], atol=1e-5)


@pytest.mark.parametrize("queries", [1, 3, 16, 17])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("part", [64, 1 << 23])
def test_one_vector_a_document_is_searched_by_dot_products(queries, kind, part, monkeypatch):
    monkeypatch.setattr(module, "_PART", part)  # several threads, or one
    rng = np.random.default_rng(queries)
    vectors = rng.standard_normal((301, 33)).astype(kind)
    vectors.flags.writeable = False  # as those that are mapped from disk
    asked = [rng.standard_normal(33).astype(np.float32) for _ in range(queries)]
    exact = np.array(asked, np.float64) @ vectors.astype(np.float64).T
    rankings = NumpySearch(DocumentVectors(vectors))(asked, 20)
    for row, ranking in zip(exact, rankings, strict=True):
        order = np.argsort(-row, kind="stable")[:20]
        assert ranking.numbers.tolist() == order.tolist()
        np.testing.assert_allclose(ranking.scores, row[order], rtol=1e-5)
    if kind == "float32" and queries < 17:
        # A score does not depend on what else is asked.
        (alone,) = NumpySearch(DocumentVectors(vectors))(asked[-1:], 20)
        assert alone.scores.tolist() == rankings[-1].scores.tolist()
