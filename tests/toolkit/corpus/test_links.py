"""The link graph, and how references and findings of others become documents of the corpus."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.benchmark import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link
from soundingline.toolkit.errors import InputError

RESNET = "Deep Residual Learning for Image Recognition"
HEADINGS = [
    Document("p1", "Attention Is All You Need", "", "https://arxiv.org/abs/1706.03762"),
    Document("p2", RESNET, "", "https://www.Example.org/resnet/"),
    Document("p3", "Café culture: a survey", "", "https://doi.org/10.1145/3397271.3401075"),
    Document("p4", "Notes on tides", ""),
    Document("p5", "Notes on tides", ""),
    Document("p6", "Rice", ""),
    Document("p7", "Лингвистика и поиск", ""),
]
RESOLVER = Resolver(HEADINGS)


@pytest.mark.parametrize(
    ("finding", "docid", "how"),
    [
        ("p4", "p4", "id"),
        ("see [p4], page 3", "p4", "id"),
        ("docid=p4", "p4", "id"),
        ("http://example.org/resnet#top", "p2", "url"),
        ("Read it at <https://arxiv.org/abs/1706.03762>.", "p1", "url"),
        ("arXiv:1706.03762v5 [cs.CL]", "p1", "identifier"),
        ("https://dl.acm.org/doi/10.1145/3397271.3401075", "p3", "identifier"),
        ("attention is  all you NEED", "p1", "title"),
        ("CAFE CULTURE - A SURVEY", "p3", "title"),
        ('Vaswani et al., "Attention is all you need", NeurIPS 2017', "p1", "title"),
        ("Vaswani et al. (2017). Attention is all you need. NeurIPS.", "p1", "title"),
        ("лингвистика и поиск", "p7", "title"),
        ("Atention is all you need", "p1", "similar title"),
        ("Deep residual learning for image recogntion", "p2", "similar title"),
    ],
)
def test_a_finding_is_recognised_by_the_surest_of_its_marks(finding, docid, how):
    assert RESOLVER.resolve(finding)[:3] == (finding, docid, how)


@pytest.mark.parametrize(
    ("finding", "how", "candidates"),
    [
        ("Notes on tides", "ambiguous", ["p4", "p5"]),
        ("Notes on tide", "ambiguous", ["p4", "p5"]),
        ("[p1] or [p2]", "ambiguous", ["p1", "p2"]),
        ("Quantum gravity for cats", "unknown", []),
        ("Where rice is grown in Asia", "unknown", []),
        ("p99", "unknown", []),
        ("https://example.org/other", "unknown", []),
        ("", "unknown", []),
    ],
)
def test_a_finding_that_is_none_or_two_is_refused(finding, how, candidates):
    *resolution, documents = RESOLVER.resolve(finding)
    assert (resolution, list(documents)) == ([finding, "", how], candidates)
    assert Resolver([]).resolve(finding).how == "unknown"


def test_titles_that_are_nearly_alike_are_told_apart_exactly_or_not_at_all():
    resolver = Resolver([Document("a", "Lady Seithinax", ""), Document("b", "Lady Seithinex", "")])
    assert resolver.resolve("Lady Seithinex").docid == "b"
    assert resolver.resolve("Lady Seithinix").how == "ambiguous"


def test_lines_are_findings_with_or_without_list_marks():
    text = "- Rice\n\n2. Notes on tides\n * nobody knows this one\n"
    resolutions = RESOLVER.resolve_lines(text)
    assert [one.docid for one in resolutions] == ["p6", "", ""]
    assert [one.how for one in resolutions] == ["title", "ambiguous", "unknown"]


@given(st.text(max_size=300))
def test_whatever_the_text_no_document_is_invented(finding):
    docid = RESOLVER.resolve(finding).docid
    assert docid == "" or docid in {heading.docid for heading in HEADINGS}


@pytest.mark.parametrize("settings", [{"threshold": 0}, {"threshold": 1.1}, {"margin": -0.1}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InputError):
        Resolver(HEADINGS, **settings)


WRITE = """
import sys
from pathlib import Path
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document
titles = ("The Harbour of Brel", "The tides at Brel", "A customs house", "Slate roofs", "The mill")
Resolver([Document(f"d{n}", title, "") for n, title in enumerate(titles)]).write(Path(sys.argv[1]))
"""


def test_the_files_do_not_depend_on_the_seed_of_hashes(tmp_path):
    contents = []
    for seed in ("0", "1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", WRITE, str(folder)], check=True, env=environment)
        contents.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert contents[0] and contents[0] == contents[1] == contents[2]


# The link graph: counts, neighbours, and what is left out.


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
