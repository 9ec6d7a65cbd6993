"""Searches that leave out what cannot be in the ranking: equal to those that add every posting."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.lexical import LexicalIndex, pruning
from pipelines.lexical.pruning import PrunedSearch
from pipelines.lexical.scoring import best
from toolkit.contracts import Unit

NEW_FILES = ("frequent.bin", "large_documents.bin")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3300 documents with terms of every frequency, some above 255 in a document; 300 are doubles,
    whose scores tie."""
    chance = np.random.default_rng(11)
    shares = 1 / np.arange(1, 401)
    shares /= shares.sum()
    texts = []
    for number in range(3000):
        words = chance.choice(400, chance.integers(1, 200), p=shares).tolist()
        words += [0] * 300 * (number % 500 == 7)
        texts.append(" ".join(f"t{word}" for word in words))
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts + texts[:300])]
    folder = tmp_path_factory.mktemp("pruning") / "index"
    LexicalIndex.build(units, folder, analyzer="whitespace", processes=1)
    return folder


@pytest.fixture
def pruned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each search that may leave documents out did."""
    outcomes: list[bool] = []
    search = PrunedSearch.search

    def noting(self: PrunedSearch, *arguments: Any) -> Any:
        ranking = search(self, *arguments)
        outcomes.append(ranking is not None)
        return ranking

    monkeypatch.setattr(PrunedSearch, "search", noting)
    monkeypatch.setattr(pruning, "_PAYS", -(1 << 30))
    monkeypatch.setattr(pruning, "_PATIENCE", 1 << 30)
    return outcomes


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (0.0, 0.0), (2.0, 1.0)])
def test_rankings_are_those_of_all_postings_to_the_last_bit(
    path: Path, pruned: list[bool], k1: float, b: float
) -> None:
    index = LexicalIndex.open(path)
    arrays, top = index._arrays, index._top_documents
    chance = np.random.default_rng(3)
    for _ in range(150):
        words = Counter(chance.zipf(1.3, chance.integers(1, 40)) % 400)
        query = {f"t{word}": float(count) for word, count in words.items()}
        depth = int(chance.choice([1, 10, 100]))
        terms, weights = index._weighted(query)
        sums = np.zeros(len(index), np.float32)
        top._saturation(k1, b, "lucene").add(arrays, terms, weights, sums)
        documents, scores = best(arrays, terms, sums, depth)
        numbers, values = index.search(query, k1=k1, b=b, depth=depth)
        assert numbers.tolist() == documents.tolist()
        assert values.tobytes() == scores.tobytes()
    assert len(pruned) == 150
    assert sum(pruned) > 20


def test_a_search_leaves_the_sums_clear_whether_it_paid_or_not(
    path: Path, pruned: list[bool]
) -> None:
    index = LexicalIndex.open(path)
    for query in (["t0", "t1"], ["t0", "t399"], ["t0", "t1", "t250", "t300"]):
        for depth in (1, 20, 3300):
            index.search(query, depth=depth)
    assert set(pruned) == {True, False}
    assert not any(sums.any() for sums in index._top_documents._sums._free)


def test_searches_in_vain_are_given_up(
    path: Path, pruned: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PATIENCE", 4)
    monkeypatch.setattr(pruning, "_WORTH", 0.0)
    tried: list[int] = []
    threshold = pruning._Query.threshold

    def counting(self: Any, depth: int, sizes: Any) -> float:
        tried.append(depth)
        return threshold(self, depth, sizes)

    monkeypatch.setattr(pruning._Query, "threshold", counting)
    index = LexicalIndex.open(path)
    for _ in range(100):
        index.search(["t0", "t1", "t300"], depth=5)
    assert len(pruned) == 100
    assert len(tried) == 4 + 96 // 16


@pytest.mark.parametrize("release", ["without rows", "rows of other terms"])
def test_an_index_of_another_release_ranks_as_one_of_this(
    path: Path, tmp_path: Path, release: str
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    for file in path.iterdir():
        if file.name not in NEW_FILES:
            (older / file.name).write_bytes(file.read_bytes())
    manifest = json.loads((path / "manifest.json").read_text())
    for name in NEW_FILES:
        del manifest["files"][name]
    (older / "manifest.json").write_text(json.dumps(manifest))
    if release == "rows of other terms":
        (older / "frequent.bin").write_bytes(bytes(3300 * 7))
    for query in (["t0", "t1", "t2"], ["t0", "t350"]):
        new, old = (LexicalIndex.open(folder).search(query) for folder in (path, older))
        assert old[0].tolist() == new[0].tolist()
        assert old[1].tobytes() == new[1].tobytes()


def test_a_row_holds_the_frequencies_of_a_term_in_every_document(path: Path) -> None:
    index = LexicalIndex.open(path)
    frequent = index._top_documents._frequent
    assert frequent is not None
    expected = [
        number
        for number, term in enumerate(index.vocabulary)
        if 3 * index.document_frequency(term) >= len(index)
    ]
    assert frequent.numbers.tolist() == expected
    for number, row in zip(expected, frequent.rows, strict=True):
        documents, frequencies = index.postings(index.vocabulary[number])
        whole = np.zeros(len(index), np.int64)
        whole[documents] = np.where(frequencies > 255, 0, frequencies)
        assert row.tolist() == whole.tolist()
