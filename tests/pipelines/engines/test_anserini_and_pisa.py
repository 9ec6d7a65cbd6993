"""Anserini itself where it is installed (`make anserini`), against published figures, not ours; and
PISA where it is installed, whose scores are compared with its published formula, in float64."""

import logging
import math
import os
import pickle
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest
from support.assertions import refused
from support.engines import lucene, measured, real, sharing_engine
from support.needs import cases

from soundingline.pipelines.engines import anserini
from soundingline.pipelines.engines.anserini import AnseriniEngine, find_jar, find_java
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

UNITS = [
    Unit("d1", "", "the cat sat on the mat"),
    Unit("d2", "", "the cats sat with other cats"),
    Unit("ünit 3%p0", "Dogs", "a dog’s life"),
    Unit("empty", "", ""),
]


@pytest.fixture(scope="module")
def engine():
    return sharing_engine()


def test_each_index_has_a_machine_of_its_own(engine, tmp_path):
    own = AnseriniEngine(heap="1g")
    engine.build(UNITS, tmp_path / "i", corpus_fingerprint="c1")
    index = own.open(tmp_path / "i", corpus_fingerprint="c1")
    for one in (index, pickle.loads(pickle.dumps(index))):
        assert one.bm25().search("dogs")["docno"].tolist() == ["ünit 3%p0"]
    toks = pd.DataFrame([{"qid": "1", "query_toks": {"cat": 1.0}}])
    refused("query_toks came to RM3", lambda: index.bm25().rm3().transform(toks))


def test_a_build_closes_its_machine_however_it_ends(engine, tmp_path):
    for units in (UNITS[:1] * 2, [], UNITS):
        with suppress(InputError):
            engine.build(units, tmp_path / "i", corpus_fingerprint="")
        assert engine.processes[-1].closed


@pytest.fixture(scope="module")
def collection(engine, data_root, tmp_path_factory):
    """One collection in Anserini and in our own index, its questions and judgements."""

    @cache
    def opened(name):
        path = tmp_path_factory.mktemp(name)
        units, topics, judged = real(data_root / name)
        engine.build(units, path / "anserini", corpus_fingerprint="")
        ours = LexicalIndex.build(units, path / "lexical")
        return engine.open(path / "anserini"), ours, topics, judged

    return opened


@pytest.mark.parametrize(
    ("name", "figures"),
    [("bm25", (0.3123, 0.1942)), ("rm3", (0.3648, 0.2224)), ("ql", (0.3265, 0.1942))],
)
def test_cacm_gives_anserinis_published_figures_to_four_decimals(name, figures, collection):
    cacm, _, topics, judged = collection("cacm")
    retriever = cacm.bm25().rm3() if name == "rm3" else getattr(cacm, name)()
    values = measured(retriever.transform(topics), judged)
    assert tuple(round(value, 4) for value in values) == figures


@pytest.mark.parametrize("settings", [(10, 10, 0.5), (25, 5, 0.3)])
@pytest.mark.parametrize("name", ["bm25", "ql"])
def test_our_feedback_finds_what_anserinis_finds(name, settings, collection):
    """Anserini shows scores to four decimals and lowers equal ones by a millionth a place."""
    *indexes, topics, _ = collection("cacm")
    theirs, ours = (getattr(one, name)().rm3(*settings).transform(topics) for one in indexes)
    both = theirs.merge(ours, on=["qid", "docno"])
    assert len(theirs) > 45_000
    assert len(both) >= 0.999 * len(theirs)
    assert (both["score_x"] - both["score_y"]).abs().max() < 1e-3


def test_the_ranker_gives_lucenes_scores_rounded(collection):
    cacm, _, topics, _ = collection("cacm")
    queries = topics.head(5)
    rounded = cacm.bm25(depth=20).transform(queries).groupby("qid")
    exact_rankings = lucene(cacm, list(queries["query"]), cacm.bm25(depth=20))
    for qid, exact in zip(queries["qid"], exact_rankings, strict=True):
        group = rounded.get_group(qid)
        assert group["docno"].tolist() == exact.docnos
        assert group["score"].to_numpy() == pytest.approx(exact.scores, abs=1e-4)


@pytest.mark.parametrize("collected", ["cacm", "wikimix"])
@pytest.mark.parametrize(
    "model",
    [*({"k1": k1, "b": b} for k1, b in [(0.9, 0.4), (25.0, 1.0), (1.2, 0.75)]), {"mu": 1000.0}],
)
def test_our_index_ranks_and_scores_as_lucene_does(collection, collected, model):
    anserini, ours, topics, _ = collection(collected)
    queries = topics.head(cases(1000, few=40))
    name = "ql" if "mu" in model else "bm25"
    ours_ranked = dict(list(getattr(ours, name)(**model).transform(queries).groupby("qid")))
    common = hits = 0
    rankings = lucene(anserini, list(queries["query"]), getattr(anserini, name)(**model))
    for qid, theirs in zip(queries["qid"], rankings, strict=True):
        mine = ours_ranked.get(qid, pd.DataFrame({"docno": [], "score": []}))
        scores = dict(zip(mine["docno"], mine["score"], strict=True))
        pairs = [(scores[d], s) for d, s in zip(*theirs, strict=True) if d in scores]
        assert len(mine) == len(theirs.docnos)
        assert max((abs(a - b) for a, b in pairs), default=0) < 1e-4
        common, hits = common + len(pairs), hits + len(mine)
    assert hits > 400 * len(queries)
    assert common >= 0.999 * hits


def test_a_machine_that_dies_is_an_error_with_its_last_words(engine, tmp_path):
    process = AnseriniEngine(heap="1k").process()
    with pytest.raises(RuntimeError, match=r"(?s)process ended.*heap"):
        process.request("open", path=str(tmp_path))


@pytest.fixture
def no_java(monkeypatch):
    for variable in ("JAVA_HOME", "ANSERINI_JAR", "ANSERINI_CLASSPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(anserini, "find_spec", lambda module: None)
    monkeypatch.setattr(anserini.shutil, "which", lambda name: None)


def make_home(path, version):
    (path / "lib" / "server").mkdir(parents=True)
    (path / "lib" / "server" / "libjvm.so").touch()
    (path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return path


@pytest.mark.usefixtures("no_java")
def test_a_jar_is_found_by_argument_then_by_environment(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"jar was not found.*make anserini"):
        AnseriniEngine().build(UNITS, tmp_path / "x", corpus_fingerprint="")
    for name in ("other.jar", "anserini-1.7.1-fatjar.jar"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("Main.class", b"")
    monkeypatch.setenv("ANSERINI_CLASSPATH", str(tmp_path))
    assert find_jar(tmp_path / "other.jar") == tmp_path / "other.jar"
    assert find_jar() == tmp_path / "anserini-1.7.1-fatjar.jar"
    monkeypatch.setenv("ANSERINI_JAR", str(tmp_path / "other.jar"))
    assert find_jar() == tmp_path / "other.jar"
    (tmp_path / "text.jar").write_text("no archive")
    for name in ("absent.jar", "text.jar"):
        refused("not a jar file", find_jar, tmp_path / name)


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("version", ["21", "25.0.2", "17.0.15", "1.8.0_392"])
def test_the_first_java_new_enough_is_taken(tmp_path, monkeypatch, version):
    with pytest.raises(InputError, match="none was found"):
        find_java()
    old, other = make_home(tmp_path / "old", "17.0.1"), make_home(tmp_path / "other", version)
    (other / "bin").mkdir()
    (other / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setattr(anserini.shutil, "which", lambda name: str(other / "bin" / "java"))
    major = int(version.removeprefix("1.").split(".")[0])
    if major >= 21:
        assert find_java() == other
        with pytest.raises(InputError, match=r"Java 17 at .*old"):
            find_java(old)
    else:
        refused = rf"Java 17 at .*old.*Java {major} at .*other.*Java 21 or newer.*make anserini"
        with pytest.raises(InputError, match=refused):
            find_java()


# PISA.

needs_pisa = pytest.mark.skipif(
    find_spec("pyterrier_pisa") is None, reason="PISA is optional: pip install -e '.[bench]'"
)

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


@needs_pisa
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


@needs_pisa
def test_processes_that_first_open_one_setting_together_agree(index):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(own_number).result() != own_number()  # has imported what it needs
        theirs = [pool.submit(top, index.path) for _ in range(2)]
        rankings = [top(index.path), top(index.path), *(ranking.result() for ranking in theirs)]
    assert len(rankings[0]) > 10
    assert all(ranking == rankings[0] for ranking in rankings)


@needs_pisa
def test_a_preparation_that_was_interrupted_is_made_again(index):
    expected = index.bm25(k1=2.5, b=0.1).search("alpha")
    folder = index.path / "prepared" / "k1=2.5,b=0.1"
    (folder / "manifest.json").unlink()
    next(folder.glob("*.bmw.64")).write_bytes(b"cut short")
    again = PisaEngine().open(index.path, corpus_fingerprint="c1")
    assert again.bm25(k1=2.5, b=0.1).search("alpha").equals(expected)


@needs_pisa
def test_building_and_preparing_print_nothing(tmp_path, capfd, caplog, monkeypatch):
    logger = logging.getLogger("ir_datasets")  # which pyterrier_pisa writes to
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    PisaEngine().build(corpus(), tmp_path / "index", corpus_fingerprint="")
    PisaEngine().open(tmp_path / "index", corpus_fingerprint="").bm25().search("alpha")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records and not logger.disabled


@needs_pisa
def test_an_id_with_a_line_break_is_refused(tmp_path):
    with pytest.raises(InputError, match="line break"):
        PisaEngine().build([Unit("a\nb", "", "x")], tmp_path / "x", corpus_fingerprint="")
    assert list(tmp_path.iterdir()) == []


@needs_pisa
def test_an_engine_knows_its_settings():
    assert PisaEngine(analyzer="standard").fingerprint != PisaEngine().fingerprint
    assert PisaEngine(threads=2).fingerprint == PisaEngine().fingerprint
    refused("threads=0", PisaEngine, threads=0)
