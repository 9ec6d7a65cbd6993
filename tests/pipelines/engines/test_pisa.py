"""PISA where it is installed. Its scores are compared with its published formula, in float64."""

import math
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

pytest.importorskip("pyterrier_pisa", reason="PISA is optional: pip install -e '.[bench]'")

WORDS = ["alpha", "beta", "gamma", "delta", "naïve", "3.14"]


def corpus():
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS, size=random.integers(1, 40))) for _ in range(60)]
    return [Unit(f"ünit {n}%p0", "", text) for n, text in enumerate(texts)] + [Unit("none", "", "")]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("pisa") / "index"
    PisaEngine().build(corpus(), path, corpus_fingerprint="c1")
    return PisaEngine().open(path, corpus_fingerprint="c1")


def scores(query, k1, b):
    """PISA's bm25.hpp: idf = max(1e-6, ln((N - df + 0.5) / (df + 0.5))), tf (k1 + 1) over
    tf + k1 (1 - b + b length / average)."""
    analyzer = make_analyzer()
    documents = {unit.unit_id: Counter(analyzer.terms(unit.contents)) for unit in corpus()}
    average = sum(sum(terms.values()) for terms in documents.values()) / len(documents)
    found = {}
    for term in analyzer.terms(query):
        df = sum(term in terms for terms in documents.values())
        idf = max(1e-6, math.log((len(documents) - df + 0.5) / (df + 0.5)))
        for docid, terms in documents.items():
            if terms[term]:
                length = k1 * (1 - b + b * sum(terms.values()) / average)
                gain = idf * terms[term] * (k1 + 1) / (terms[term] + length)
                found[docid] = found.get(docid, 0.0) + gain
    return found


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (25.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("query", ["alpha", "beta beta gamma", "naïve 3.14 unknown"])
def test_scores_follow_pisas_formula(index, query, k1, b):
    expected = scores(query, k1, b)
    found = index.bm25(k1=k1, b=b).search(query)
    assert dict(zip(found["docno"], found["score"], strict=True)) == pytest.approx(
        expected, rel=1e-4, abs=1e-5
    )
    assert found["score"].is_monotonic_decreasing


def top(path):
    index = PisaEngine().open(path, corpus_fingerprint="c1")
    return list(index.bm25(k1=1.7, b=0.3).search("alpha beta")["docno"])


def own_number():
    return os.getpid()


def test_processes_that_first_open_one_setting_together_agree(index):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(own_number).result() != own_number()  # has imported what it needs
        theirs = [pool.submit(top, index.path) for _ in range(2)]
        rankings = [top(index.path), top(index.path), *(ranking.result() for ranking in theirs)]
    assert len(rankings[0]) > 10
    assert all(ranking == rankings[0] for ranking in rankings)


def test_a_preparation_that_was_interrupted_is_made_again(index):
    expected = index.bm25(k1=2.5, b=0.1).search("alpha")
    folder = index.path / "prepared" / "k1=2.5,b=0.1"
    (folder / "manifest.json").unlink()
    next(folder.glob("*.bmw.64")).write_bytes(b"cut short")
    again = PisaEngine().open(index.path, corpus_fingerprint="c1")
    assert again.bm25(k1=2.5, b=0.1).search("alpha").equals(expected)


def test_building_and_preparing_print_nothing(tmp_path, capfd):
    PisaEngine().build(corpus(), tmp_path / "index", corpus_fingerprint="")
    PisaEngine().open(tmp_path / "index", corpus_fingerprint="").bm25().search("alpha")
    assert capfd.readouterr() == ("", "")


def test_an_id_with_a_line_break_is_refused(tmp_path):
    with pytest.raises(InputError, match="line break"):
        PisaEngine().build([Unit("a\nb", "", "x")], tmp_path / "x", corpus_fingerprint="")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_knows_its_settings():
    assert PisaEngine(analyzer="standard").fingerprint != PisaEngine().fingerprint
    assert PisaEngine(threads=2).fingerprint == PisaEngine().fingerprint
    with pytest.raises(InputError, match="threads=0"):
        PisaEngine(threads=0)
