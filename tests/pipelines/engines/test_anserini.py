"""Anserini itself where it is installed (`make anserini`); published figures, not ours."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
import zipfile
from contextlib import suppress
from dataclasses import replace
from functools import cache

import ir_measures
import pandas as pd
import pytest
from ir_measures import AP, P
from support.engines import sharing_engine
from support.needs import cases

from soundingline.pipelines.engines import anserini
from soundingline.pipelines.engines.anserini import (
    AnseriniEngine,
    AnseriniRestEngine,
    AnseriniRestIndex,
    find_jar,
    find_java,
)
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.retrieve import BM25, QueryLikelihood
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
    own.build(UNITS, tmp_path / "i", corpus_fingerprint="c1")
    index = own.open(tmp_path / "i", corpus_fingerprint="c1")
    for one in (index, pickle.loads(pickle.dumps(index))):
        assert one.bm25().search("dogs")["docno"].tolist() == ["ünit 3%p0"]
    toks = pd.DataFrame([{"qid": "1", "query_toks": {"cat": 1.0}}])
    with pytest.raises(InputError, match="query_toks came to RM3"):
        index.bm25().rm3().transform(toks)


def test_a_build_closes_its_machine_however_it_ends(engine, tmp_path):
    for units in (UNITS[:1] * 2, [], UNITS):
        with suppress(InputError):
            engine.build(units, tmp_path / "i", corpus_fingerprint="")
        assert engine.processes[-1].closed


def units(folder):
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Unit(row["_id"], row["title"], row["text"])


def topics(folder):
    rows = [json.loads(line) for line in (folder / "queries.jsonl").open(encoding="utf-8")]
    return pd.DataFrame([{"qid": row["_id"], "query": row["text"]} for row in rows])


@pytest.fixture(scope="module")
def cacm(engine, data_root, tmp_path_factory):
    path = tmp_path_factory.mktemp("anserini") / "cacm"
    engine.build(units(data_root / "cacm"), path, corpus_fingerprint="cacm")
    return engine.open(path, corpus_fingerprint="cacm")


@pytest.fixture(scope="module")
def our_cacm(data_root, tmp_path_factory):
    path = tmp_path_factory.mktemp("lexical") / "cacm"
    return LexicalIndex.build(units(data_root / "cacm"), path)


@pytest.fixture(scope="module")
def ranked(data_root):
    """Cacm's questions, ranked once by each retriever."""
    questions = topics(data_root / "cacm")
    return cache(lambda retriever: retriever.transform(questions))


@pytest.fixture(scope="module", params=["cacm", "wikimix"])
def pair(request, engine, data_root, tmp_path_factory):
    """One collection in Anserini and in our own index, and its questions."""
    folder = data_root / request.param
    questions = topics(folder).head(cases(1000, few=40))
    if request.param == "cacm":
        built = (request.getfixturevalue(name) for name in ("cacm", "our_cacm"))
        return (*built, questions)
    path = tmp_path_factory.mktemp("pair")
    engine.build(units(folder), path / "anserini", corpus_fingerprint="")
    ours = LexicalIndex.build(units(folder), path / "lexical")
    return engine.open(path / "anserini"), ours, questions


def measured(ranking, folder):
    qrels = pd.read_csv(
        folder / "qrels" / "test.tsv",
        sep="\t",
        header=0,
        names=["query_id", "doc_id", "relevance"],
        dtype={"query_id": str, "doc_id": str},
    )
    run = ranking.rename(columns={"qid": "query_id", "docno": "doc_id"})
    found = ir_measures.calc_aggregate([AP, P @ 30], qrels, run)
    return round(found[AP], 4), round(found[P @ 30], 4)


def test_cacm_gives_anserinis_published_figures_to_four_decimals(cacm, ranked, data_root):
    folder = data_root / "cacm"
    assert measured(ranked(cacm.bm25()), folder) == (0.3123, 0.1942)
    assert measured(ranked(cacm.bm25().rm3()), folder) == (0.3648, 0.2224)
    assert measured(ranked(cacm.ql()), folder) == (0.3265, 0.1942)


@pytest.mark.parametrize(
    "model",
    [*({"k1": k1, "b": b} for k1, b in [(0.9, 0.4), (25.0, 1.0), (1.2, 0.75)]), {"mu": 1000.0}],
)
def test_our_index_ranks_and_scores_as_lucene_does(pair, model):
    anserini, ours, queries = pair
    name = "ql" if "mu" in model else "bm25"
    ours_ranked = dict(list(getattr(ours, name)(**model).transform(queries).groupby("qid")))
    common = hits = 0
    rankings = anserini.lucene(list(queries["query"]), getattr(anserini, name)(**model))
    for qid, theirs in zip(queries["qid"], rankings, strict=True):
        mine = ours_ranked.get(qid, pd.DataFrame({"docno": [], "score": []}))
        scores = dict(zip(mine["docno"], mine["score"], strict=True))
        pairs = [(scores[d], s) for d, s in zip(*theirs, strict=True) if d in scores]
        assert len(mine) == len(theirs.docnos)
        assert max((abs(a - b) for a, b in pairs), default=0) < 1e-4
        common, hits = common + len(pairs), hits + len(mine)
    assert hits > 400 * len(queries)
    assert common >= 0.999 * hits


@pytest.mark.parametrize("settings", [(10, 10, 0.5), (25, 5, 0.3)])
@pytest.mark.parametrize("name", ["bm25", "ql"])
def test_our_feedback_finds_what_anserinis_finds(name, settings, cacm, our_cacm, ranked):
    """Anserini shows scores to four decimals and lowers equal ones by a millionth a place."""
    theirs = ranked(getattr(cacm, name)().rm3(*settings))
    both = theirs.merge(ranked(getattr(our_cacm, name)().rm3(*settings)), on=["qid", "docno"])
    assert len(theirs) > 50_000
    assert len(both) >= 0.999 * len(theirs)
    assert (both["score_x"] - both["score_y"]).abs().max() < 1e-3


def test_the_ranker_gives_lucenes_scores_rounded(cacm, data_root):
    queries = topics(data_root / "cacm").head(5)
    rounded = cacm.bm25(depth=20).transform(queries).groupby("qid")
    exact_rankings = cacm.lucene(list(queries["query"]), cacm.bm25(depth=20))
    for qid, exact in zip(queries["qid"], exact_rankings, strict=True):
        group = rounded.get_group(qid)
        assert group["docno"].tolist() == exact.docnos
        assert group["score"].to_numpy() == pytest.approx(exact.scores, abs=1e-4)


def test_an_index_without_document_vectors_says_what_rm3_needs(engine, tmp_path):
    plain = sharing_engine(document_vectors=False)
    plain.build(UNITS[:2], tmp_path / "index", corpus_fingerprint="")
    index = plain.open(tmp_path / "index", corpus_fingerprint="")
    assert index.bm25().search("cat")["docno"].tolist()
    with pytest.raises(InputError, match="document_vectors=true"):
        index.bm25().rm3()
    assert plain.fingerprint != engine.fingerprint


def test_a_machine_that_dies_is_an_error_with_its_last_words(engine, tmp_path):
    process = AnseriniEngine(heap="1k").process()
    with pytest.raises(RuntimeError, match=r"(?s)process ended.*heap"):
        process.request("open", path=str(tmp_path))


def test_importing_and_making_the_engine_loads_no_java():
    code = (
        "import sys; from soundingline.pipelines.engines.anserini import AnseriniEngine; "
        "AnseriniEngine().fingerprint; print('jnius' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def no_java(monkeypatch):
    for variable in ("JAVA_HOME", "ANSERINI_JAR", "ANSERINI_CLASSPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(anserini, "find_spec", lambda module: None)
    monkeypatch.setattr(anserini.shutil, "which", lambda name: None)


def make_jar(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("Main.class", b"")
    return path


def make_home(path, version):
    (path / "lib" / "server").mkdir(parents=True)
    (path / "lib" / "server" / "libjvm.so").touch()
    (path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return path


@pytest.mark.usefixtures("no_java")
def test_an_engine_without_a_jar_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match=r"jar was not found.*make anserini"):
        AnseriniEngine().build(UNITS, tmp_path / "x", corpus_fingerprint="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_java")
def test_a_jar_is_found_by_argument_then_by_environment(tmp_path, monkeypatch):
    other = make_jar(tmp_path / "other.jar")
    named = make_jar(tmp_path / "anserini-1.7.1-fatjar.jar")
    monkeypatch.setenv("ANSERINI_CLASSPATH", str(tmp_path))
    assert find_jar(other) == other
    assert find_jar() == named
    monkeypatch.setenv("ANSERINI_JAR", str(other))
    assert find_jar() == other


def test_a_jar_that_is_absent_or_no_archive_is_refused(tmp_path):
    (tmp_path / "text.jar").write_text("no archive")
    for name in ("absent.jar", "text.jar"):
        with pytest.raises(InputError, match="no jar file"):
            find_jar(tmp_path / name)


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("version", ["21", "21.0.1", "25.0.2"])
def test_the_first_java_new_enough_is_taken(tmp_path, monkeypatch, version):
    old, new = make_home(tmp_path / "old", "17.0.1"), make_home(tmp_path / "new", version)
    (new / "bin").mkdir()
    (new / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setattr(anserini.shutil, "which", lambda name: str(new / "bin" / "java"))
    assert find_java() == new


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8)])
def test_older_java_is_refused_with_its_version(tmp_path, monkeypatch, version, major):
    old = make_home(tmp_path / "old", version)
    refused = rf"Java {major} at .*old.*Java 21 or newer.*make anserini"
    monkeypatch.setenv("JAVA_HOME", str(make_home(tmp_path / "new", "25.0.1")))
    with pytest.raises(InputError, match=refused):
        find_java(old)
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(InputError, match=refused):
        find_java()


@pytest.mark.usefixtures("no_java")
def test_no_java_at_all_is_one_clear_line():
    with pytest.raises(InputError, match="none was found"):
        find_java()


@pytest.mark.slow
def test_the_rest_server_ranks_as_anserini_does(engine, tmp_path):
    """Anserini's own server, as docs/lexical.md starts it."""
    units = [*UNITS, Unit("d 5/x", "", "cats and dogs")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rest = AnseriniRestEngine(url=f"http://127.0.0.1:{port}", timeout_s=30)
    replace(engine, document_vectors=False).build(units, tmp_path / "i", corpus_fingerprint="c")
    index = rest.open(tmp_path / "i", corpus_fingerprint="c")
    with pytest.raises(InputError, match=r"gave no answer.*io.anserini.api.RestServer --host"):
        index.bm25().search("cats")
    java = [str(find_java() / "bin" / "java"), "-cp", str(find_jar()), "io.anserini.api.RestServer"]
    with subprocess.Popen(
        [*java, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert any("listening" in line for line in server.stdout)
            local = engine.open(tmp_path / "i")
            queries = ["cats and dogs", "the", " ", "a dog's life & 100%", "mat"]
            found = index.rank(queries, index.bm25(), 3)
            expected = local.rank(["cats and dogs", "the", "the", *queries[3:]], local.bm25(), 3)
            assert [list(one.docnos) for one in found] == [list(one.docnos) for one in expected]
            assert [len(one.docnos) for one in found] == [3, 0, 0, 2, 1]
            for one, other in zip(found, expected, strict=True):
                assert list(one.scores) == pytest.approx(list(other.scores))
            elsewhere = AnseriniRestIndex(tmp_path / "none", index.manifest, rest)
            with pytest.raises(InputError, match=r"Anserini's server answers [45]\d\d"):
                elsewhere.bm25().search("cats")
        finally:
            server.terminate()


def test_the_rest_server_offers_only_its_own_bm25(tmp_path):
    with pytest.raises(InputError, match=r"engine.url=None. valid: http://host:port"):
        AnseriniRestEngine().open(tmp_path)
    index = AnseriniRestIndex.__new__(AnseriniRestIndex)
    for model in (BM25(k1=25.0, b=1.0), QueryLikelihood()):
        with pytest.raises(InputError, match=r"does not offer \w+.*bm25_default"):
            index.rank(["cats"], model, 5)
    with pytest.raises(InputError, match="query_toks came to Anserini's server"):
        index.rank([{"cat": 1.0}], BM25(), 5)
