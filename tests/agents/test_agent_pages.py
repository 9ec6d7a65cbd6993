"""The agent reads the search tool's own pages back."""

from __future__ import annotations

from agents import pages
from toolkit.contracts import Document
from toolkit.search import DictionaryBackend, DictionaryStore, RankedBrowsing, TopK

DOCUMENTS = {
    "5": Document("5", "Mill score=1.0", "First line of 5.\nMill text with docid=9 inside."),
    "a b": Document("a b", "", "Another mill.\nIts end."),
    "9": Document("9", "Nine", "A third mill [docid=5]."),
}
TEXTS = {docid: document.text for docid, document in DOCUMENTS.items()}


def ranked(**arguments: int) -> RankedBrowsing:
    return RankedBrowsing(DictionaryBackend(TEXTS), DictionaryStore(DOCUMENTS), **arguments)


def top_k(**arguments: object) -> TopK:
    return TopK(DictionaryBackend(TEXTS), DictionaryStore(DOCUMENTS), **arguments)  # type: ignore


def test_a_page_of_hits_gives_each_unit_its_title_and_excerpt() -> None:
    result = ranked().call("search", {"reason": "", "query": "mill"})
    found = pages.results(result.text, result.call.shown)
    assert [(piece.unit_id, piece.title) for piece in found] == [
        ("5", "Mill score=1.0"),
        ("a b", "Another mill. Its end."),
        ("9", "Nine"),
    ]
    assert [piece.text for piece in found] == [
        "First line of 5. Mill text with docid=9 inside.",
        "Another mill. Its end.",
        "A third mill [docid=5].",
    ]
    assert pages.search_id(result.text) == "s1"


def test_the_frame_of_a_page_is_no_text() -> None:
    result = ranked(page=1).call("search", {"reason": "", "query": "mill"})
    (piece,) = pages.results(result.text, result.call.shown)
    assert "Next hits" in result.text
    assert "Next hits" not in piece.text


def test_whole_texts_of_the_best_k_are_told_apart() -> None:
    result = top_k(max_tokens=6).call("search", {"query": "mill"})
    found = pages.results(result.text, result.call.shown)
    assert [piece.unit_id for piece in found] == ["5", "a b", "9"]
    assert found[1].text == "Another mill.\nIts end."
    assert found[2].title == "Nine"
    assert all("cut after" not in piece.text for piece in found)
    assert pages.search_id(result.text) == ""


def test_a_page_without_hits_has_no_pieces() -> None:
    for tool, arguments in ((ranked(), {"reason": ""}), (top_k(), {})):
        result = tool.call("search", {**arguments, "query": "zzyzx"})
        assert pages.results(result.text, result.call.shown) == []


def test_a_document_page_says_where_to_go_on() -> None:
    tool = ranked()
    first = tool.call("read_document", {"reason": "", "docid": "5", "limit": 1})
    rest = tool.call("read_document", {"reason": "", "docid": "5", "offset": 2})
    assert pages.document(first.text) == ("Mill score=1.0", "First line of 5.", 2)
    assert pages.document(rest.text) == ("Mill score=1.0", "Mill text with docid=9 inside.", 0)


def test_a_whole_document_has_nothing_following() -> None:
    text = top_k(get_document=True).call("get_document", {"docid": "a b"}).text
    assert pages.document(text) == ("", "Another mill.\nIts end.", 0)
