"""The benchmark of exact search on few vectors."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from soundingline.experiments.bench import vectors
from soundingline.pipelines.models import choose_device

pytest.importorskip("torch")


@pytest.fixture
def small(tmp_path):
    documents, queries = vectors.draw(400, 8, seed=1)
    return documents, queries, vectors.systems(documents, 120, choose_device("cpu"), tmp_path)


def test_all_systems_find_the_best_documents_and_are_timed(small):
    documents, queries, named = small
    assert list(named)[:2] == ["ours, numpy", "ours, torch on cpu"]
    assert ("pyterrier_dr, numpy" in named) == bool(find_spec("pyterrier_dr"))
    vectors.check_same(named, documents, queries[:16])
    rows = vectors.rows_of(vectors.measure(documents, queries, 2, named))
    assert [row[0] for row in rows] == list(named)
    assert all(len(row) == 1 + 2 * len(vectors.BATCHES) for row in rows)
    assert rows[0][2::2] == ["1.00 (1.00–1.00)"] * len(vectors.BATCHES)


def test_a_system_that_loses_documents_is_not_timed(small):
    documents, queries, named = small
    exact = named["ours, numpy"]
    lossy = {"lossy": lambda queries: [numbers[1:] for numbers in exact(queries)]}
    with pytest.raises(RuntimeError, match="lossy does not find the best documents"):
        vectors.check_same(lossy, documents, queries[:2])


def test_a_query_lies_near_a_document_and_vectors_have_length_1():
    documents, queries = vectors.draw(50, 16, seed=2)
    np.testing.assert_allclose(np.linalg.norm(documents, axis=1), 1, rtol=1e-5)
    assert (queries @ documents.T).max(axis=1).min() > 0.4
