"""The top-k interface: what it shows, what it cuts, what it counts."""

import re

import pytest
from support.search import WordBackend, store_of

from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import TopK
from soundingline.toolkit.search.tool import DocumentPage

TEXTS = {f"d{n}": f"king number {n} had a very long name" for n in range(1, 9)}
DOCUMENTS = {docid: Document(docid, f"Title {docid}", text) for docid, text in TEXTS.items()}


def top(**settings):
    return TopK(**settings).open(WordBackend(TEXTS), store_of(DOCUMENTS))


def test_a_search_shows_the_best_hits_cut_to_the_token_budget():
    assert top(k=2, max_tokens=5).call("search", {"query": "king 2"}).text == (
        '[top 2 query="king 2"]\n\n'
        "docid=d2 score=2.0000\nTitle d2\nking number 2\n[cut after 5 tokens]\n\n"
        "docid=d1 score=1.0000\nTitle d1\nking number 1\n[cut after 5 tokens]"
    )


def test_without_a_budget_texts_are_whole():
    text = top(k=1, max_tokens=None).call("search", {"query": "king 2"}).text
    assert text.endswith("Title d2\nking number 2 had a very long name")


def test_surfaced_and_previewed_are_the_hits_shown():
    tool = top()
    result = tool.call("search", {"query": "king"})
    assert result.call.ranking == result.call.shown == ("d1", "d2", "d3", "d4", "d5")
    tiers = tool.exposures.tiers
    assert tiers["surfaced"] == tiers["previewed"] == ("d1", "d2", "d3", "d4", "d5")


def test_get_document_is_offered_on_request_only():
    tool = top()
    assert [spec["name"] for spec in tool.specs()] == ["search"]
    assert tool.call("get_document", {"docid": "d1"}).call.error == "unknown_tool"
    assert [spec["name"] for spec in top(get_document=True).specs()] == ["search", "get_document"]


def test_get_document_gives_the_whole_document_also_for_a_passage():
    tool = top(get_document=True, max_tokens=1)
    result = tool.call("get_document", {"docid": "d3%p1"})
    assert result.text == "[docid=d3] Title d3\nking number 3 had a very long name"
    assert tool.exposures.tiers["opened"] == ("d3",)


LONG = {
    "one line": "word " * 3000,
    "one word": "é" * 15_000,
    "many lines": "\n".join(f"line {n}" for n in range(2000)),
    "long title": "text",
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_document_comes_in_pages_that_together_are_the_whole(name):
    title = "Title " * (2000 if name == "long title" else 1)
    store = store_of({"d": Document("d", title, LONG[name])})
    tool = TopK(get_document=True, max_bytes=5000).open(WordBackend({"d": ""}), store)
    arguments = {"docid": "d"}
    lines = []
    while arguments:
        result = tool.call("get_document", arguments)
        page = result.page
        assert isinstance(page, DocumentPage)
        assert len(result.text.encode()) <= 5000
        lines += page.lines
        hint = result.text.rpartition("\n")[2]
        if page.continuation is None:
            assert hint == "End of the document."
            break
        arguments = dict(page.continuation.arguments)
        assert hint == f'Next lines: get_document(docid="d", offset={arguments["offset"]})'
    joined = "\n" if name == "many lines" else ""
    assert joined.join(lines) == LONG[name]
    assert len(tool.calls) == 1 or name != "long title"
    assert tool.exposures.tiers["opened"] == ("d",)


def test_a_document_of_just_the_largest_size_is_whole():
    text = top(get_document=True).call("get_document", {"docid": "d3"}).text
    size = len(text.encode())
    assert top(get_document=True, max_bytes=size).call("get_document", {"docid": "d3"}).text == text
    shorter = top(get_document=True, max_bytes=size - 1).call("get_document", {"docid": "d3"})
    assert shorter.text.startswith("[docid=d3 lines 1-1 of 1] Title d3\n")


def test_a_line_past_the_end_opens_nothing():
    tool = top(get_document=True)
    result = tool.call("get_document", {"docid": "d1", "offset": 2})
    assert result.call.error == "past_the_end"
    assert 'Call get_document(docid="d1", offset=1) for its beginning.' in result.text
    assert tool.exposures.tiers["opened"] == ()


def test_an_unknown_docid_opens_nothing():
    tool = top(get_document=True)
    result = tool.call("get_document", {"docid": "d99"})
    assert result.call.error == "unknown_docid"
    assert "Call search(...) first" in result.text
    assert tool.exposures.tiers["opened"] == ()


def test_a_search_without_hits_is_no_error():
    result = top().call("search", {"query": "zebra"})
    assert not result.failed
    assert "Nothing matched" in result.text


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"k": 0}, "k=0"), ({"max_tokens": -1}, "max_tokens=-1"), ({"max_bytes": 0}, "max_bytes=0")],
)
def test_impossible_settings_are_refused(settings, told):
    with pytest.raises(InputError, match=re.escape(told)):
        top(**settings)


def test_a_budget_of_zero_tokens_is_refused():
    with pytest.raises(InputError, match="max_tokens=0"):
        top(max_tokens=0)
