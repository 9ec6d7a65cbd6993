"""The link graph and the resolver of a collection, kept beside its store; what is complete is used
where nothing can be written."""

import errno
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from support.benchmarks import CORPUS, QRELS, QUERIES, write_beir

from soundingline.experiments.collection import link_graph, prepare, title_resolver
from soundingline.pipelines.lexical import forward
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.toolkit import locks
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.corpus import Passages, SqliteStore, WholeDocument
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import cached_file_hash
from soundingline.toolkit.locks import building_lock

LINKS = "docid\tlinked\nd1\td2\nd2\td3\nd3\td1\nd1\tgone\nd1\td2\nd2\td2\n"
HEADINGS = [
    Document("a1", "Attention Is All You Need", "", "https://x.org/1706.03762"),
    Document("a2", "Attention is all you need?", ""),
    Document("b", "Über die Gezeiten", "", "http://www.y.org/b#top"),
    Document("c[1]", "Lady Seithinax", ""),
]
FINDINGS = [
    "Attention is all you need",
    "see https://y.org/b.",
    "uber die gezeiten (1901)",
    "Lady Seithinex",
    "arXiv 1706.03762",
    "c[1]",
    "nobody's book",
]


@pytest.fixture
def linked(tmp_path):
    path = write_beir(tmp_path / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    (path / "links.tsv").write_text(LINKS)
    return BeirBenchmark(path)


@pytest.fixture
def store(linked, tmp_path):
    corpus = linked.corpus_fingerprint
    return SqliteStore.build(tmp_path / "store", linked.documents(), corpus_fingerprint=corpus)


def graph_of(linked, store, place):
    graph = link_graph(linked, store, linked.corpus_fingerprint, place)
    assert graph is not None
    assert graph() is graph()
    return graph()


def same(one, other):
    counts = [(graph.missing, graph.repeated, graph.own, len(graph)) for graph in (one, other)]
    rows = [
        [graph.neighbours(docid, way) for docid in one.docids for way in ("out", "in", "both")]
        for graph in (one, other)
    ]
    return counts[0] == counts[1] and rows[0] == rows[1] and one.fingerprint == other.fingerprint


def test_a_graph_is_opened_where_it_was_built_before(
    linked,
    store,
    tmp_path,
    monkeypatch,
    capsys,
):
    built = graph_of(linked, store, tmp_path)
    monkeypatch.setattr(LinkGraph, "build", None)
    opened = graph_of(BeirBenchmark(linked.path), store, tmp_path)
    assert same(built, opened) and opened.missing == 1
    assert capsys.readouterr().err.count("name documents that are missing from its corpus") == 2


def test_another_file_of_links_is_another_graph(linked, store, tmp_path):
    before = graph_of(linked, store, tmp_path)
    (linked.path / "links.tsv").write_text("d1\td3\n")
    after = graph_of(BeirBenchmark(linked.path), store, tmp_path)
    assert after.neighbours("d1", "out") == ["d3"]
    assert before.fingerprint != after.fingerprint
    assert len(list(tmp_path.glob("links-*"))) == 2


DAMAGE = {
    "emptied": lambda content: b"",
    "cut": lambda content: content[:-7],
    "flipped": lambda content: content[:-2] + bytes([content[-2] ^ 1]) + content[-1:],
}


@pytest.mark.parametrize("how", [*DAMAGE, "removed"])
def test_damaged_files_are_built_again(linked, store, tmp_path, how):
    built = graph_of(linked, store, tmp_path)
    resolver = title_resolver(store, "corpus", tmp_path)()
    for pattern, count in (("links-*/[!.]*", 3), ("headings-*/[!.]*", 6)):
        paths = sorted(tmp_path.glob(pattern))
        assert len(paths) == count
        for path in paths:
            complete = path.read_bytes()
            path.unlink()
            if how in DAMAGE:
                path.write_bytes(DAMAGE[how](complete))
            assert same(built, graph_of(linked, store, tmp_path))
            again = title_resolver(store, "corpus", tmp_path)()
            assert again.resolve("Tides") == resolver.resolve("Tides")
            assert len(path.read_bytes()) == len(complete), "it was written again"


def test_a_resolver_on_disk_means_the_same_documents(tmp_path):
    built = Resolver(HEADINGS)
    built.write(tmp_path)
    opened = Resolver.open(tmp_path)
    results = [opened.resolve(finding) for finding in FINDINGS]
    assert results == [built.resolve(finding) for finding in FINDINGS]
    assert [one.how for one in results] == [
        *("ambiguous", "url", "title", "similar title", "identifier", "id", "unknown")
    ]


def test_links_without_a_fingerprint_are_read_at_each_start(store, tmp_path):
    class Own(Benchmark):
        reads = 0

        def read_documents(self):
            return iter(())

        def links(self):
            Own.reads += 1
            return iter([Link("d1", "d2")])

    for _ in range(2):
        graph = link_graph(Own("own", [], {"evidence": {}}), store, "corpus", tmp_path)
        assert graph is not None and len(graph()) == 1
    assert Own.reads == 2 and not list(tmp_path.glob("links-*"))


# Complete stores and indexes are used where nothing can be written beside them.

HERE = Path(__file__).resolve()
QUESTIONS = pd.DataFrame({"qid": ["1", "2"], "query": ["tide", "harbour town"]})
# A mount of its own, in a namespace of its own: the folder is read-only for root as well.
MOUNT = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
READ = "import sys, test_derived as t; t.read_in_place(*sys.argv[1:])"


def used(benchmark, indexes):
    """What a store, an index with feedback, a link graph and a resolver give, and PISA where it is
    installed."""
    made = BeirBenchmark(benchmark)
    prepared = prepare(made, Passages(), LexicalEngine(), indexes)
    assert prepared.links is not None and prepared.resolver is not None
    rankers = {"bm25": prepared.index.bm25(), "rm3": prepared.index.bm25().rm3(fb_docs=2)}
    if find_spec("pyterrier_pisa"):
        from soundingline.pipelines.engines.pisa import PisaEngine

        rankers["pisa"] = prepared.indexed(PisaEngine()).bm25(1.2, 0.5)
    return {
        "text": prepared.store.document("d1").text,
        "links": prepared.links().neighbours("d1"),
        "resolved": prepared.resolver().resolve("Tides").docid,
        **{
            name: ranker(QUESTIONS)[["qid", "docno", "score"]].to_numpy().tolist()
            for name, ranker in rankers.items()
        },
    }


def read_in_place(benchmark, indexes):
    """In the process that has the folder mounted read-only."""
    with pytest.raises(OSError, match="Read-only file system"):
        (Path(indexes) / "probe").touch()
    forward._FILES_PAY = 0
    result = json.dumps(used(Path(benchmark), Path(indexes)))
    with pytest.raises(InputError) as missing:
        prepare(BeirBenchmark(Path(benchmark)), WholeDocument(), LexicalEngine(), Path(indexes))
    sys.stdout.write(f"{result}\n{missing.value}\n")


def mounts():
    command = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(HERE.parent), "true"]
    if not shutil.which("unshare"):
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(autouse=True)
def files_of_feedback(monkeypatch):
    """Feedback's files beside the index, however small that is."""
    monkeypatch.setattr(forward, "_FILES_PAY", 0)


@pytest.fixture
def benchmark(tmp_path):
    path = write_beir(tmp_path / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    (path / "links.tsv").write_text("docid\tlinked\nd1\td2\nd2\td3\n")
    return path


def state(root):
    paths = [root, *root.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


@pytest.mark.slow
@pytest.mark.skipif(not mounts(), reason="this machine lets nobody mount in a namespace")
def test_what_is_complete_is_used_on_a_read_only_mount(benchmark, tmp_path):
    indexes, cache = tmp_path / "indexes", tmp_path / "cache"
    expected = used(benchmark, indexes)
    for record in indexes.rglob(".verified.json"):
        record.unlink()
    for lock in indexes.rglob("*.lock"):
        lock.unlink()
    before = state(indexes)
    paths = os.pathsep.join([str(HERE.parents[2]), str(HERE.parents[1]), str(HERE.parent)])
    reading = [sys.executable, "-c", READ, str(benchmark), str(indexes)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(indexes), *reading],
        env={**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result, missing = done.stdout.splitlines()
    assert json.loads(result) == json.loads(json.dumps(expected))
    assert "is not there" in missing and "cannot be written (Read-only file system)" in missing
    assert state(indexes) == before
    # What was found whole is remembered elsewhere.
    assert len(list((cache / "soundingline").glob("verified-*.json"))) >= 5


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_lock_that_cannot_be_made_stops_only_what_must_be_built(
    number, benchmark, tmp_path, monkeypatch
):
    indexes = tmp_path / "indexes"
    expected = used(benchmark, indexes)

    def refused(path, **_):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(locks, "open_own", refused)
    assert used(benchmark, indexes) == expected
    shutil.rmtree(next(indexes.rglob("headings-*")))
    shutil.rmtree(next(indexes.rglob("links-*")))
    assert used(benchmark, indexes) == expected
    shutil.rmtree(next(path for path in indexes.rglob("*-lexical-*") if path.is_dir()))
    with pytest.raises(
        InputError, match=r"the index '.*' is not there, and '.*' cannot be written"
    ):
        used(benchmark, indexes)


def test_another_error_of_a_lock_is_not_taken_for_a_missing_right(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), building_lock(tmp_path / "file" / "lock", "the index"):
        pass


def test_a_hash_whose_record_cannot_be_written_is_given_all_the_same(tmp_path):
    (tmp_path / "weights").write_bytes(b"weights")
    plain = cached_file_hash(tmp_path / "weights", None)
    (tmp_path / "file").touch()
    assert cached_file_hash(tmp_path / "weights", tmp_path / "file" / "record") == plain
