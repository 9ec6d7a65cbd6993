"""The link graph and the resolver of a collection, kept beside its store."""

import json

import pytest
from experiment_samples import CORPUS, QRELS, QUERIES, folder

from soundingline.experiments.collection import link_graph, title_resolver
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.benchmark import Benchmark, LinkGraph
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link

LINKS = "docid\tlinked\nd1\td2\nd2\td3\nd3\td1\nd1\tgone\nd1\td2\nd2\td2\n"
HEADINGS = [
    Document("a1", "Attention Is All You Need", "", "https://x.org/1706.03762"),
    Document("a2", "Attention is all you need?", ""),
    Document("b", "Über die Gezeiten", "", "http://www.y.org/b#top"),
    Document("c[1]", "Lady Seithinax", ""),
    Document("\ud800", "", ""),
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
def benchmark(tmp_path):
    path = folder(tmp_path / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    (path / "links.tsv").write_text(LINKS)
    return BeirBenchmark(path)


@pytest.fixture
def store(benchmark, tmp_path):
    corpus = benchmark.corpus_fingerprint
    return SqliteStore.build(tmp_path / "store", benchmark.documents(), corpus_fingerprint=corpus)


def graph_of(benchmark, store, place):
    graph = link_graph(benchmark, store, benchmark.corpus_fingerprint, place)
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
    benchmark,
    store,
    tmp_path,
    monkeypatch,
    capsys,
):
    built = graph_of(benchmark, store, tmp_path)
    monkeypatch.setattr(LinkGraph, "build", None)
    opened = graph_of(BeirBenchmark(benchmark.path), store, tmp_path)
    assert same(built, opened) and opened.missing == 1
    assert capsys.readouterr().err.count("name documents that its corpus lacks") == 2


def test_another_file_of_links_is_another_graph(benchmark, store, tmp_path):
    before = graph_of(benchmark, store, tmp_path)
    (benchmark.path / "links.tsv").write_text("d1\td3\n")
    after = graph_of(BeirBenchmark(benchmark.path), store, tmp_path)
    assert after.neighbours("d1", "out") == ["d3"]
    assert before.fingerprint != after.fingerprint
    assert len(list(tmp_path.glob("links-*"))) == 2


DAMAGE = {
    "emptied": lambda content: b"",
    "cut": lambda content: content[:-7],
    "flipped": lambda content: content[:-2] + bytes([content[-2] ^ 1]) + content[-1:],
}


@pytest.mark.parametrize("how", [*DAMAGE, "removed"])
def test_damaged_files_are_built_again(benchmark, store, tmp_path, how):
    built = graph_of(benchmark, store, tmp_path)
    resolver = title_resolver(store, "corpus", tmp_path)()
    for pattern, files in (("links-*/[!.]*", 3), ("headings-*/[!.]*", 6)):
        paths = sorted(tmp_path.glob(pattern))
        assert len(paths) == files
        for path in paths:
            complete = path.read_bytes()
            path.unlink()
            if how in DAMAGE:
                path.write_bytes(DAMAGE[how](complete))
            assert same(built, graph_of(benchmark, store, tmp_path))
            again = title_resolver(store, "corpus", tmp_path)()
            assert again.resolve("Tides") == resolver.resolve("Tides")
            assert len(path.read_bytes()) == len(complete), "it was written again"


def test_a_graph_of_other_documents_is_refused(tmp_path):
    LinkGraph.build([Link("a", "b"), Link("b", "c")]).write(tmp_path)
    record = json.loads((tmp_path / "links.json").read_text())
    (tmp_path / "links.json").write_text(json.dumps({**record, "docids": ["a", "b"]}))
    with pytest.raises(ValueError, match="no graph of 2 documents"):
        LinkGraph.open(tmp_path)


def test_a_resolver_on_disk_means_the_same_documents(tmp_path):
    built = Resolver(HEADINGS)
    built.write(tmp_path)
    opened = Resolver.open(tmp_path)
    results = [opened.resolve(finding) for finding in FINDINGS]
    assert results == [built.resolve(finding) for finding in FINDINGS]
    assert [one.how for one in results] == [
        *("ambiguous", "url", "title", "similar title", "identifier", "id", "unknown")
    ]
    strict = Resolver.open(tmp_path, threshold=0.99)
    assert strict.resolve("Lady Seithinex").how == "unknown"


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
