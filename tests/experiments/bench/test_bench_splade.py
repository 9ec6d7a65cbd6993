"""The benchmark of impact search on a corpus of its own."""

from __future__ import annotations

import numpy as np
import pytest

from soundingline.experiments.bench import splade
from soundingline.experiments.bench.splade_corpus import (
    SIZES,
    VOCABULARY,
    draw_queries,
    drawn_passages,
    encoding,
    term,
)
from soundingline.pipelines.learned.impacts import ImpactIndex
from soundingline.toolkit.errors import InputError


def test_passages_have_the_statistics_that_they_are_said_to_have():
    passages = drawn_passages(2000, (7, 0))
    sizes = [len(passage) for passage in passages]
    assert np.mean(sizes) == pytest.approx(200, abs=8)
    assert np.std(sizes) == pytest.approx(40, abs=5)
    values = np.concatenate(passages)
    frequencies = np.bincount(values["term"], minlength=VOCABULARY) / 2000
    assert frequencies.max() == pytest.approx(0.45, abs=0.05)
    assert np.argmax(frequencies) < 5
    assert values["weight"].mean() == pytest.approx(0.6, abs=0.01)
    assert (values["weight"] > 2.555).mean() == pytest.approx(1 / 200, rel=0.5)
    for passage in passages[:50]:
        assert (np.diff(passage["term"]) > 0).all()


def test_the_same_seed_draws_the_same_and_another_draws_another(tmp_path):
    one, two = drawn_passages(30, (7, 0)), drawn_passages(30, (7, 0))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    other = drawn_passages(30, (8, 0))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    encoded = encoding(tmp_path / "shards", 3000, 7)
    assert len(encoded) == 3000
    assert draw_queries(encoded, 7) == draw_queries(encoded, 7)


def test_queries_hold_known_terms_of_whole_weights(tmp_path):
    queries = draw_queries(encoding(tmp_path / "shards", 1000, 7), 7)
    assert set(queries) == set(SIZES)
    for size, asked in queries.items():
        for query in asked:
            assert len(query) == size
            assert all(weight >= 1 and weight == int(weight) for weight in query.values())


@pytest.fixture
def index(tmp_path):
    encoded = encoding(tmp_path / "shards", 1000, 7)
    splade.build(encoded.folder, tmp_path / "index", 100.0)
    return ImpactIndex.open(tmp_path / "index")


def test_search_is_timed_beside_brute_force_that_ranks_the_same(index, tmp_path):
    queries = draw_queries(encoding(tmp_path / "shards", 1000, 7), 7)
    rows = splade.engine_rows("x100", index, {size: queries[size][:5] for size in SIZES})
    assert [row[0] for row in rows if "GB/s" not in row[0]] == [
        "ours, x100",
        "times that",
        "scipy brute force",
    ]
    postings = np.median(
        [sum(map(index.document_frequency, query)) for query in queries[SIZES[0]][:5]]
    )
    assert splade._bytes_read(index, queries[SIZES[0]][:5]) == 6 * postings


def test_a_search_that_finds_something_else_is_not_timed(index):
    class Wrong(splade.BruteForce):
        def search(self, query):
            documents, sums = super().search(query)
            return documents[::-1], sums

    with pytest.raises(RuntimeError, match=r"rank .* differently"):
        splade.check_same_ranking(index, Wrong(index), [{term(3): 5.0, term(80): 2.0}])


def test_brute_force_adds_what_a_dense_matrix_adds(index):
    sums = np.zeros(len(index))
    for number, weight in ((3, 5), (80, 2)):
        documents, impacts = index.postings(term(number))
        sums[documents] += weight * impacts
    documents, scores = splade.BruteForce(index).search({term(3): 5.0, term(80): 2.0})
    assert scores.tolist() == np.sort(sums)[::-1][: splade.COMPARED].tolist()
    assert sums[documents].tolist() == scores.tolist()


def test_too_few_documents_are_refused():
    with pytest.raises(InputError, match="documents=10"):
        splade.main(["--documents", "10"])
