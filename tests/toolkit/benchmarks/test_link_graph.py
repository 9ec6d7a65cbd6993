"""The link graph: counts, neighbours, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.benchmarks import BeirBenchmark
from toolkit.benchmarks.links import LinkGraph, read_links
from toolkit.contracts import Link, links_of
from toolkit.errors import InputError

CORPUS = {"a", "b", "c", "d"}


def graph(*pairs: str, corpus: set[str] = CORPUS) -> LinkGraph:
    return LinkGraph.build([Link(*pair.split(">")) for pair in pairs], corpus)


def test_neighbours_go_out_in_or_both_ways() -> None:
    links = graph("a>b", "a>c", "c>a", "d>a")
    assert set(links.neighbours("a", "out")) == {"b", "c"}
    assert set(links.neighbours("a", "in")) == {"c", "d"}
    assert sorted(links.neighbours("a")) == ["b", "c", "d"]
    assert links.neighbours("b", "out") == []
    assert links.neighbours("nobody") == []


def test_what_is_left_out_is_counted() -> None:
    links = graph("a>b", "a>b", "a>ghost", "ghost>a", "ghost>spirit", "c>c")
    assert (len(links), links.missing, links.repeated, links.own) == (1, 3, 1, 1)
    assert "ghost" not in links
    assert links.neighbours("a") == ["b"]


def test_a_cycle_and_a_hub_of_ten_thousand_links_are_a_graph_like_any_other() -> None:
    corpus = {f"d{number}" for number in range(10_001)}
    spokes = [f"d0>d{number}" for number in range(1, 10_001)]
    links = graph(*spokes, "d1>d0", "d1>d2", "d2>d1", corpus=corpus)
    assert len(links.neighbours("d0", "out")) == 10_000
    assert links.neighbours("d0", "in") == ["d1"]
    assert set(links.neighbours("d1", "both")) == {"d0", "d2"}


def test_no_links_are_a_graph_too() -> None:
    links = graph()
    assert len(links) == 0
    assert links.neighbours("a") == []


def test_the_fingerprint_is_of_the_links() -> None:
    assert graph("a>b").fingerprint == graph("a>b", "a>b").fingerprint
    assert graph("a>b").fingerprint != graph("b>a").fingerprint


@pytest.mark.parametrize("line", ["a", "a\tb\tc", "\tb", "a\t"])
def test_a_line_that_is_no_link_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "links.tsv"
    path.write_text(f"docid\tlinked\na\tb\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"links\.tsv:3 is no link"):
        list(read_links(path))


def test_cacm_has_the_links_that_its_file_tells(data_root: Path) -> None:
    benchmark = BeirBenchmark(data_root / "cacm")
    corpus = {document.docid for document in benchmark.documents()}
    links = LinkGraph.build(links_of(benchmark) or (), corpus)
    assert (len(links), len(links.docids)) == (2720, 1751)
    assert (links.missing, links.repeated, links.own) == (0, 0, 0)
    assert set(links.neighbours("CACM-0001", "out")) >= {"CACM-0100", "CACM-0123"}
    assert "CACM-0001" in links.neighbours("CACM-0100", "in")
