"""N-grams of terms beside the terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.lexical import LexicalIndex, make_analyzer
from toolkit.errors import InputError


def test_pairs_stand_on_terms_and_span_stop_words() -> None:
    analyzer = make_analyzer("english:3")
    assert analyzer.terms("The keepers of the old lamps") == [
        *("keeper", "old", "lamp"),
        *("keeper old", "old lamp"),
        "keeper old lamp",
    ]
    assert analyzer.terms("keepers") == ["keeper"]
    assert analyzer.terms("") == []


@pytest.mark.parametrize("processes", [1, 2])
def test_an_index_with_pairs_counts_words_alone_in_lengths(tmp_path: Path, processes: int) -> None:
    units = [{"docno": "d1", "text": "old lamp, old lamp"}, {"docno": "d2", "text": "lamp"}]
    index = LexicalIndex.build(units, tmp_path / "index", analyzer="english:2", processes=processes)
    assert list(index.vocabulary) == ["lamp", "lamp old", "old", "old lamp"]
    assert index.lengths.tolist() == [4, 1]
    assert index.statistics.tokens == 5
    numbers, frequencies = index.postings("old lamp")
    assert (numbers.tolist(), frequencies.tolist()) == ([0], [2])
    assert index.bm25().search("old lamp")["docno"].tolist() == ["d1", "d2"]
    plain = LexicalIndex.build(units, tmp_path / "plain", processes=1)
    assert plain.lengths.tolist() == index.lengths.tolist()
    assert plain.analyzer.fingerprint != index.analyzer.fingerprint


def test_pairs_in_slots_are_numbers_below_the_number_of_slots() -> None:
    murmur = pytest.importorskip("sklearn.utils").murmurhash3_32
    analyzer = make_analyzer("english:2:hashed")
    slot = murmur(b"old lamp", positive=True) % 2**23
    assert analyzer.terms("old lamps") == ["old", "lamp", f" {slot}"]


@pytest.mark.parametrize("name", ["english:1", "english:5", "english:", "english:2:", "klingon:2"])
def test_other_shapes_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="english:2"):
        make_analyzer(name)
