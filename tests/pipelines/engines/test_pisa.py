"""PISA where it is installed. Its scores are compared with its published formula, in float64."""

from __future__ import annotations

import math
import os
import pickle
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest

from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

pytest.importorskip("pyterrier_pisa", reason="PISA is optional: pip install -e '.[bench]'")

WORDS = ["alpha", "beta", "gamma", "delta", "naïve", "3.14", "omega"]


def corpus():
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS[:-1], size=random.integers(1, 40))) for _ in range(60)]
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


def test_document_frequencies_are_counted_from_the_units(index):
    analyzer = make_analyzer()
    terms = [set(analyzer.terms(unit.contents)) for unit in corpus()]
    for word in WORDS:
        (term,) = analyzer.terms(word)
        assert index.document_frequency(term) == sum(term in held for held in terms)
    assert [index.document_frequency(term) for term in ("absent", "")] == [0, 0]
    assert len(index) == 61


def test_every_column_comes_back_and_queries_without_terms_find_nothing(index):
    frame = pd.DataFrame(
        [
            {"qid": "q1", "query": "the of", "extra": 1},
            {"qid": "q2", "query": "alpha", "extra": 2},
            {"qid": "q2b", "query": "nowhere", "extra": 3},
        ]
    )
    found = index.bm25(depth=3).transform(frame)
    assert list(found.columns) == ["qid", "query", "extra", "docno", "score", "rank"]
    assert found[["qid", "extra", "rank"]].to_numpy().tolist() == [["q2", 2, n] for n in range(3)]
    assert len(index.bm25().transform(frame.iloc[:0])) == 0


def test_weights_by_term_count(index):
    frame = pd.DataFrame([{"qid": "1", "query_toks": {"beta": 2.0, "gamma": 1.0}}])
    weighted = index.bm25().transform(frame)
    assert weighted["score"].tolist() == pytest.approx(
        index.bm25().search("beta beta gamma")["score"].tolist()
    )


def test_retrievers_are_equal_when_index_and_settings_are(index):
    assert index.bm25(k1=1) == index.bm25(k1=1)
    assert hash(index.bm25()) == hash(index.bm25())
    assert index.bm25() != index.bm25(b=0.5)
    assert pickle.loads(pickle.dumps(index)) == index
    assert index.bm25(depth=9).fuse_rank_cutoff(4) == index.bm25(depth=4)


@pytest.mark.parametrize("settings", [{"k1": -1.0}, {"b": 1.5}, {"depth": 0}])
def test_bad_settings_are_refused(index, settings):
    with pytest.raises(InputError):
        index.bm25(**settings)  # type: ignore[arg-type]


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


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def broken():
        yield from corpus()[:5]
        raise OSError("the disk went away")

    engine, path = PisaEngine(), tmp_path / "x"
    with pytest.raises(OSError, match="went away"):
        engine.build(broken(), path, corpus_fingerprint="")
    with pytest.raises(InputError, match="comes twice"):
        engine.build(corpus()[:1] * 2, path, corpus_fingerprint="")
    with pytest.raises(InputError, match="empty"):
        engine.build([], path, corpus_fingerprint="")
    with pytest.raises(InputError, match="line break"):
        engine.build([Unit("a\nb", "", "x")], path, corpus_fingerprint="")
    assert list(tmp_path.iterdir()) == []


def test_an_index_cut_short_or_of_another_corpus_is_refused(tmp_path):
    path = tmp_path / "index"
    PisaEngine().build(corpus(), path, corpus_fingerprint="c1")
    with pytest.raises(InputError, match="another corpus"):
        PisaEngine().open(path, corpus_fingerprint="c2")
    with pytest.raises(InputError, match="another analyzer"):
        PisaEngine(analyzer="whitespace").open(path, corpus_fingerprint="c1")
    lists = path / "pisa" / "inv.docs"
    lists.write_bytes(lists.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"damaged.*inv\.docs"):
        PisaEngine().open(path, corpus_fingerprint="c1")


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


def test_an_engine_knows_its_settings():
    assert PisaEngine(analyzer="standard").fingerprint != PisaEngine().fingerprint
    assert PisaEngine(threads=2).fingerprint == PisaEngine().fingerprint
    with pytest.raises(InputError, match="threads=0"):
        PisaEngine(threads=0)
