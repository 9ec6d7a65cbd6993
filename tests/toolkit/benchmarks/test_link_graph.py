"""The link graph: counts, neighbours, and what is left out."""

from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.benchmark import LinkGraph
from soundingline.toolkit.data import Link

CORPUS = {"a", "b", "c", "d"}


def graph(*pairs, corpus=CORPUS):
    return LinkGraph.build([Link(*pair.split(">")) for pair in pairs], corpus)


def test_neighbours_go_out_in_or_both_ways():
    links = graph("a>b", "a>c", "c>a", "d>a")
    assert set(links.neighbours("a", "out")) == {"b", "c"}
    assert set(links.neighbours("a", "in")) == {"c", "d"}
    assert sorted(links.neighbours("a")) == ["b", "c", "d"]
    assert links.neighbours("b", "out") == links.neighbours("nobody") == []
    assert len(graph()) == 0 and graph().neighbours("a") == []


def test_a_hub_of_ten_thousand_links_is_a_graph_like_any_other():
    corpus = {f"d{number}" for number in range(10_001)}
    spokes = [f"d0>d{number}" for number in range(1, 10_001)]
    links = graph(*spokes, "d1>d0", "d1>d2", "d2>d1", corpus=corpus)
    assert len(links.neighbours("d0", "out")) == 10_000
    assert links.neighbours("d0", "in") == ["d1"]
    assert set(links.neighbours("d1", "both")) == {"d0", "d2"}


def test_the_fingerprint_is_of_the_links():
    assert graph("a>b").fingerprint == graph("a>b", "a>b").fingerprint
    assert graph("a>b").fingerprint != graph("b>a").fingerprint
    # Runs record it. The arrays that the sparse matrix replaced gave this value.
    assert graph("a>b", "c>a", "a>d", "d>c", "a>b").fingerprint == "6b547b2e96fa"


def test_what_is_left_out_is_counted_and_a_graph_is_written_and_opened(tmp_path):
    links = graph("a>b", "c>a", "a>d", "d>c", "a>b", "b>ghost", "ghost>spirit", "c>c")
    links.write(tmp_path)
    opened = LinkGraph.open(tmp_path)
    for each in (links, opened):
        assert (len(each), each.missing, each.repeated, each.own) == (4, 2, 1, 1)
        assert "ghost" not in each
    assert opened.docids == links.docids and opened.fingerprint == links.fingerprint
    for docid in CORPUS:
        for direction in ("out", "in", "both"):
            assert opened.neighbours(docid, direction) == links.neighbours(docid, direction)


def test_cacm_has_the_links_that_its_file_tells(data_root):
    benchmark = BeirBenchmark(data_root / "cacm")
    corpus = {document.docid for document in benchmark.documents()}
    links = LinkGraph.build(benchmark.links() or (), corpus)
    assert (len(links), len(links.docids)) == (2720, 1751)
    assert (links.missing, links.repeated, links.own) == (0, 0, 0)
    assert set(links.neighbours("CACM-0001", "out")) >= {"CACM-0100", "CACM-0123"}
    assert "CACM-0001" in links.neighbours("CACM-0100", "in")
