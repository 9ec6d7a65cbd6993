"""N-grams of terms beside the terms."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from effort import cases
from hypothesis import example, given, settings
from hypothesis import strategies as st

from soundingline.pipelines.lexical.analyzers import SEPARATOR, make_analyzer
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.errors import InputError


def test_pairs_stand_on_terms_and_span_stop_words():
    analyzer = make_analyzer("english:3")
    assert analyzer.terms("The keepers of the old lamps") == [
        *("keeper", "old", "lamp"),
        *("keeper old", "old lamp"),
        "keeper old lamp",
    ]
    assert analyzer.terms("keepers") == ["keeper"]
    assert analyzer.terms("") == []


LETTERS = "ab9 _.,'\"\u202f\u200d\u0301\u05d0\u30a2\u4e00\u0e01\U0001f600\U0001f1e6\u2014\u00e9"


@pytest.mark.parametrize(
    "name", ["english", "standard", "whitespace", "sira", "english:3", "english:2:hashed", "sira:2"]
)
@settings(max_examples=cases(60), deadline=None)
@given(parts=st.lists(st.text() | st.text(LETTERS) | st.just("a _" * 90), max_size=4))
@example(parts=['\u05d0\u202f"', "\u05d0"])
def test_no_term_spans_a_separator(name, parts):
    if name.startswith("sira"):
        pytest.importorskip("snowballstemmer")
    if name.endswith("hashed"):
        pytest.importorskip("sklearn.utils")
    analyzer = make_analyzer(name)
    apart = [
        term for part in parts for piece in part.split(SEPARATOR) for term in analyzer.terms(piece)
    ]
    assert analyzer.terms(SEPARATOR.join(parts)) == apart


def test_an_index_with_pairs_counts_words_alone_in_lengths(tmp_path):
    units = [{"docno": "d1", "text": "old lamp, old lamp"}, {"docno": "d2", "text": "lamp"}]
    index = LexicalIndex.build(units, tmp_path / "index", analyzer="english:2")
    assert list(index.vocabulary) == ["lamp", "lamp old", "old", "old lamp"]
    assert index.lengths.tolist() == [4, 1]
    assert index.statistics.tokens == 5
    numbers, frequencies = index.postings("old lamp")
    assert (numbers.tolist(), frequencies.tolist()) == ([0], [2])
    assert index.bm25().search("old lamp")["docno"].tolist() == ["d1", "d2"]
    plain = LexicalIndex.build(units, tmp_path / "plain")
    assert plain.lengths.tolist() == index.lengths.tolist()
    assert plain.analyzer.fingerprint != index.analyzer.fingerprint


@pytest.mark.parametrize("name", ["english:2", "english:4", "english:3:hashed"])
def test_vectors_of_documents_have_all_terms_and_n_grams(tmp_path, name):
    if name.endswith("hashed"):
        pytest.importorskip("sklearn.utils")
    # Hardly a word comes twice, so that a document has more terms than words.
    texts = [" ".join(f"word{(7 * n + d) % 23}" for n in range(20)) for d in range(40)]
    units = [{"docno": f"d{d}", "text": text} for d, text in enumerate(texts)]
    index = LexicalIndex.build(units, tmp_path / "index", analyzer=name)
    vectors = index.vectors(np.arange(len(texts)))
    for text, (terms, frequencies) in zip(texts, vectors, strict=True):
        names = [index.vocabulary[int(term)] for term in terms]
        held = dict(zip(names, frequencies.tolist(), strict=True))
        assert held == Counter(make_analyzer(name).terms(text))


def test_pairs_in_slots_are_numbers_below_the_number_of_slots():
    murmur = pytest.importorskip("sklearn.utils").murmurhash3_32
    analyzer = make_analyzer("english:2:hashed")
    slot = murmur(b"old lamp", positive=True) % 2**23
    assert analyzer.terms("old lamps") == ["old", "lamp", f" {slot}"]


@pytest.mark.parametrize("name", ["english:1", "english:5", "english:", "english:2:", "klingon:2"])
def test_other_shapes_are_refused(name):
    with pytest.raises(InputError, match="english:2"):
        make_analyzer(name)
