"""The interface of literature search: pages, layers, exposures, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from toolkit.benchmarks.links import LinkGraph
from toolkit.contracts import Document, DocumentPage, Link, ResultsPage
from toolkit.corpus.resolve import Heading, Resolver
from toolkit.errors import InputError
from toolkit.search import (
    DictionaryBackend,
    DictionaryStore,
    Literature,
    LiteratureSession,
    Located,
    Operators,
)

DOCUMENTS = {
    "a": Document("a", "Tides of Brel", "The tide rises nine metres. " * 40, "http://x/a"),
    "b": Document("b", "Mills", "A mill stands at Brel. It grinds barley."),
    "c": Document("c", "Ferries", "No such word."),
}
PASSAGES = DictionaryStore(
    DOCUMENTS, {"a%p0": "The tide rises nine metres.", "a%p1": "More of it."}
)


class Fixed:
    """Locates the first passages of `a`, and nothing elsewhere."""

    def locate(
        self, docids: Sequence[str], requirements: Sequence[str], most: int = 3
    ) -> list[list[list[Located]]]:
        passages = [Located("a%p0", 2.0), Located("a%p1", 1.0)][:most]
        return [[passages if docid == "a" else [] for _ in requirements] for docid in docids]


OPERATORS = Operators(
    links=LinkGraph.build([Link("a", "b"), Link("c", "a"), Link("c", "b")]),
    locator=Fixed(),
    passages=PASSAGES,
    resolver=Resolver(Heading(d.docid, d.title, d.url) for d in DOCUMENTS.values()),
)


def session(operators: Operators = OPERATORS, **settings: int) -> LiteratureSession:
    backend = DictionaryBackend({docid: document.text for docid, document in DOCUMENTS.items()})
    store = DictionaryStore(DOCUMENTS)
    return Literature(**settings).bind(operators).session(backend, store)  # type: ignore[arg-type]


def test_a_search_shows_titles_and_exposes_metadata() -> None:
    tool = session(hits=1)
    result = tool.call("search", {"query": "tide at Brel"})
    assert "docid=b Mills" in result.text
    assert isinstance(result.details, ResultsPage) and result.details.layer == "metadata"
    assert set(tool.evidence.tiers["surfaced"]) == {"a", "b"}
    assert tool.evidence.tiers["previewed"] == ("b",)


def test_each_layer_that_is_read_is_an_exposure_with_its_tokens() -> None:
    tool = session(abstract_tokens=12)
    tool.call("search", {"query": "tide"})
    for layer in ("metadata", "abstract", "text"):
        assert not tool.call("read", {"docid": "a", "layer": layer}).failed
    tool.call("locate", {"docid": "a", "requirement": "It tells of tides."})
    rows = [(row.tier, row.docid, row.layer) for row in tool.evidence.exposures]
    assert rows == [
        ("previewed", "a", "metadata"),
        ("opened", "a", "abstract"),
        ("opened", "a", "text"),
        ("opened", "a", "evidence"),
    ]
    tokens = [row.tokens for row in tool.evidence.exposures]
    assert tokens == sorted(tokens) and tokens[1] < tokens[2] < tokens[3]
    assert tool.evidence.exposures[-1].documents == 1
    layers = [call.notes["layer"] for call in tool.calls]
    assert layers == ["metadata", "metadata", "abstract", "text", "evidence"]


def test_an_abstract_is_read_where_no_layer_is_named() -> None:
    result = session(abstract_tokens=14).call("read", {"docid": "a%p3"})
    assert isinstance(result.details, DocumentPage) and result.details.layer == "abstract"
    assert list(result.details.lines) == ["The tide rises nine metres. The tide rises nine metres."]


def test_metadata_tells_url_and_fields() -> None:
    operators = Operators(fields=lambda docid: {"year": "1990"})
    text = session(operators).call("read", {"docid": "a", "layer": "metadata"}).text
    assert "Tides of Brel" in text and "url: http://x/a" in text and "year: 1990" in text


def test_a_long_text_goes_on_at_the_line_that_its_page_tells() -> None:
    tool = session(max_lines=1)
    result = tool.call("read", {"docid": "a", "layer": "text"})
    assert isinstance(result.details, DocumentPage) and result.details.continuation
    following = tool.call(result.details.continuation.tool, result.details.continuation.arguments)
    assert isinstance(following.details, DocumentPage) and following.details.first == 2
    assert following.details.layer == "text"
    assert tool.call("read", {"docid": "a", "layer": "text", "offset": 99}).call.error


def test_links_are_followed_and_surface_documents() -> None:
    tool = session()
    result = tool.call("expand", {"docids": "a, c", "direction": "out"})
    assert isinstance(result.details, ResultsPage)
    assert [(hit.docid, hit.score) for hit in result.details.hits] == [("b", 2.0)]
    assert tool.evidence.tiers["surfaced"] == ("b",)
    assert result.call.ranking == ("b",)
    inward = tool.call("expand", {"docids": "b", "direction": "in"})
    assert set(inward.call.shown) == {"a", "c"}


def test_a_hub_is_said_and_not_followed() -> None:
    result = session(largest_hub=1).call("expand", {"docids": "a", "direction": "both"})
    assert "too many links" in result.text and result.call.notes["hubs"] == 1


def test_evidence_shows_the_passages_with_their_ids() -> None:
    result = session(passages=1, passage_tokens=3).call(
        "locate", {"docid": "a", "requirement": "tides"}
    )
    assert "[a%p0] The tide rises…" in result.text and "a%p1" not in result.text
    nothing = session().call("locate", {"docid": "b", "requirement": "tides"})
    assert "No passage speaks of it" in nothing.text and not nothing.failed


def test_findings_become_documents_or_are_refused() -> None:
    tool = session()
    result = tool.call("resolve", {"findings": "mills\nhttp://x/a\nThe Lost Book"})
    assert result.call.shown == ("b", "a")
    assert "[2 of 3 found]" in result.text and '"The Lost Book": unknown' in result.text
    assert tool.evidence.tiers["previewed"] == ("b", "a")


def test_a_title_of_many_documents_is_refused_with_the_first_of_them() -> None:
    headings = [Heading(f"r{number}", "Annual Report") for number in range(5)]
    tool = session(replace(OPERATORS, resolver=Resolver(headings)))
    result = tool.call("resolve", {"findings": "Annual Report"})
    assert result.text.endswith('"Annual Report": ambiguous: r0, r1, r2 and 2 more')
    assert result.call.shown == ()


def test_a_tool_without_its_operator_is_not_offered() -> None:
    assert [spec["name"] for spec in session(Operators()).specs()] == ["search", "read"]
    names = [spec["name"] for spec in session().specs()]
    assert names == ["search", "read", "expand", "locate", "resolve"]
    assert session().abilities.search == ("search", "query")
    assert session().abilities.read == ("read", "docid")


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("read", {"docid": "ghost"}, "unknown_docid"),
        ("read", {"docid": "a", "layer": "all"}, "out_of_range"),
        ("read", {"docid": "a", "layer": 3}, "wrong_type"),
        ("expand", {"docids": "a ghost"}, "unknown_docid"),
        ("expand", {"docids": ",;"}, "unknown_docid"),
        ("expand", {"docids": "a", "direction": "up"}, "out_of_range"),
        ("locate", {"docid": "ghost", "requirement": "x"}, "unknown_docid"),
        ("resolve", {"findings": "  "}, "empty_value"),
    ],
)
def test_a_wrong_call_is_refused_and_exposes_nothing(
    tool: str, arguments: dict[str, object], code: str
) -> None:
    opened = session()
    result = opened.call(tool, arguments)
    assert result.call.error == code
    assert not opened.evidence.exposures


def test_an_answer_lists_documents_of_the_session_alone() -> None:
    tool = session()
    tool.call("search", {"query": "tide"})
    answer = tool.answer("Explanation: x\nDocuments: [a] [b] [invented]")
    assert answer.documents == ("a",)


@pytest.mark.parametrize("name", ["hits", "depth", "passages", "abstract_tokens", "largest_hub"])
def test_impossible_settings_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        Literature(**{name: 0})
