"""The top-k interface: what it shows, what it cuts, what it counts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from toolkit.contracts import Document, SearchTool
from toolkit.errors import InputError
from toolkit.search import DictionaryBackend, DictionaryStore, TopK, TopKSession

TEXTS = {f"d{n}": f"king number {n} had a very long name" for n in range(1, 9)}
DOCUMENTS = {docid: Document(docid, f"Title {docid}", text) for docid, text in TEXTS.items()}


def top(**settings: Any) -> TopKSession:
    return TopK(**settings).session(DictionaryBackend(TEXTS), DictionaryStore(DOCUMENTS))


def test_a_search_shows_the_best_hits_cut_to_the_token_budget() -> None:
    assert top(k=2, max_tokens=5).call("search", {"query": "king 2"}).text == (
        '[top 2 query="king 2"]\n\n'
        "docid=d2 score=2.0000\nTitle d2\nking number 2\n[cut after 5 tokens]\n\n"
        "docid=d1 score=1.0000\nTitle d1\nking number 1\n[cut after 5 tokens]"
    )


def test_without_a_budget_texts_are_whole() -> None:
    text = top(k=1, max_tokens=None).call("search", {"query": "king 2"}).text
    assert text.endswith("Title d2\nking number 2 had a very long name")


def test_surfaced_and_previewed_are_the_hits_shown() -> None:
    tool = top()
    result = tool.call("search", {"query": "king"})
    assert result.call.ranking == result.call.shown == ("d1", "d2", "d3", "d4", "d5")
    tiers = tool.evidence.tiers
    assert tiers["surfaced"] == tiers["previewed"] == ("d1", "d2", "d3", "d4", "d5")


def test_get_document_is_offered_on_request_only() -> None:
    tool: SearchTool = top()
    assert [spec["name"] for spec in tool.specs()] == ["search"]
    assert tool.call("get_document", {"docid": "d1"}).call.error == "unknown_tool"
    assert [spec["name"] for spec in top(get_document=True).specs()] == ["search", "get_document"]


def test_get_document_gives_the_whole_document_also_for_a_passage() -> None:
    tool = top(get_document=True, max_tokens=1)
    result = tool.call("get_document", {"docid": "d3%p1"})
    assert result.text == "[docid=d3] Title d3\nking number 3 had a very long name"
    assert tool.evidence.tiers["opened"] == ("d3",)


def test_an_unknown_docid_opens_nothing() -> None:
    tool = top(get_document=True)
    result = tool.call("get_document", {"docid": "d99"})
    assert result.call.error == "unknown_docid"
    assert "Call search(...) first" in result.text
    assert tool.evidence.tiers["opened"] == ()


def test_a_search_without_hits_is_no_error() -> None:
    result = top().call("search", {"query": "zebra"})
    assert not result.failed
    assert "Nothing matched" in result.text


@pytest.mark.parametrize(
    ("settings", "told"), [({"k": 0}, "k=0"), ({"max_tokens": -1}, "max_tokens=-1")]
)
def test_impossible_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        top(**settings)


def test_a_budget_of_zero_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="max_tokens=0"):
        top(max_tokens=0)
