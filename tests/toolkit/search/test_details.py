"""What a result shows, as values: agents read `details` and never the text."""

from __future__ import annotations

import dataclasses

import pytest
from toy_search import WordBackend, store_of

from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.search.tool import (
    Continuation,
    DocumentPage,
    Refusal,
    ResultsPage,
)

# Texts that look like the frame around them.
FRAMED = "First line of 5.\nEnd of the document.\n1. docid=9 score=1.0\nMill [docid=5] inside."
DOCUMENTS = {
    "5": Document("5", "Mill\n score=1.0", FRAMED),
    "a ] b": Document("a ] b", "", "Another mill.\nIts end."),
    "9": Document("9", "Nine", "A third mill [docid=5]."),
}
TEXTS = {docid: document.text for docid, document in DOCUMENTS.items()}


def ranked(**settings):
    return RankedBrowsing(**settings).open(WordBackend(TEXTS), store_of(DOCUMENTS))


def top_k(**settings):
    return TopK(**settings).open(WordBackend(TEXTS), store_of(DOCUMENTS))


def results(result):
    assert isinstance(result.page, ResultsPage)
    return result.page


def document(result):
    assert isinstance(result.page, DocumentPage)
    return result.page


def test_a_page_of_hits_gives_each_hit_as_it_is_shown():
    tool = ranked(page=2, excerpt_characters=30)
    first = tool.call("search", {"reason": "", "query": " mill its "})
    page = results(first)
    assert (page.search_id, page.query, page.first, page.total) == ("s1", "mill its", 1, 3)
    assert [(hit.rank, hit.docid, hit.unit_id, hit.score) for hit in page.hits] == [
        (1, "a ] b", "a ] b", 2.0),
        (2, "5", "5", 1.0),
    ]
    assert [hit.title for hit in page.hits] == ["", "Mill score=1.0"]
    assert page.hits[0].snippet == "Another mill. Its end."
    assert all(hit.snippet in first.text and not hit.text for hit in page.hits)
    assert page.continuation == Continuation(
        "read_search_results", {"search_id": "s1", "offset": 3}
    )
    rest = results(tool.call(page.continuation.tool, {"reason": "", **page.continuation.arguments}))
    assert (rest.first, rest.total, rest.continuation) == (3, 3, None)
    assert [(hit.rank, hit.unit_id) for hit in rest.hits] == [(3, "9")]


def test_a_page_that_is_cut_to_size_lists_what_it_shows_and_goes_on_behind_it():
    tool = ranked(max_bytes=330)
    page = results(tool.call("search", {"reason": "", "query": "mill"}))
    assert 0 < len(page.hits) < page.total
    assert page.shown == tool.calls[0].shown == tool.exposures.tiers["previewed"]
    assert page.continuation and page.continuation.arguments["offset"] == len(page.hits) + 1


def test_a_limit_that_was_asked_for_is_kept_by_what_follows():
    tool = ranked()
    tool.call("search", {"reason": "", "query": "mill"})
    hits = tool.call("read_search_results", {"reason": "", "search_id": "s1", "offset": 1,
                                             "limit": 1})  # fmt: skip
    lines = tool.call("read_document", {"reason": "", "docid": "5", "limit": 2})
    assert results(hits).continuation == Continuation(
        "read_search_results", {"search_id": "s1", "offset": 2, "limit": 1}
    )
    assert document(lines).continuation == Continuation(
        "read_document", {"docid": "5", "offset": 3, "limit": 2}
    )


def test_whole_texts_are_given_as_they_are_shown():
    result = top_k(max_tokens=6).call("search", {"query": "mill"})
    page = results(result)
    assert (page.search_id, page.first, page.total, page.continuation) == ("", 1, 3, None)
    assert [hit.unit_id for hit in page.hits] == ["5", "a ] b", "9"]
    assert [hit.title for hit in page.hits] == ["Mill\n score=1.0", "", "Nine"]
    assert page.hits[1].text == "Another mill.\nIts end."
    assert page.hits[2].text.startswith("Nine\nA third")
    assert all(hit.text in result.text and not hit.snippet for hit in page.hits)
    assert not any("cut after" in hit.text for hit in page.hits)


def test_no_more_of_a_title_is_given_than_is_shown():
    (hit,) = results(top_k(max_tokens=1, k=1).call("search", {"query": "mill"})).hits
    assert hit.text == hit.title != DOCUMENTS["5"].title
    assert DOCUMENTS["5"].title.startswith(hit.title)


@pytest.mark.parametrize("tool", [ranked(), top_k()])
def test_a_page_without_hits_has_none(tool):
    reason = {"reason": ""} if isinstance(tool, RankedBrowsing) else {}
    page = results(tool.call("search", {**reason, "query": "zzyzx"}))
    assert (page.query, page.hits, page.total, page.continuation) == ("zzyzx", (), 0, None)


def test_a_document_page_gives_its_lines_whatever_they_look_like():
    tool = ranked()
    first = document(tool.call("read_document", {"reason": "", "docid": "5", "limit": 2}))
    assert (first.docid, first.title, first.first, first.total) == ("5", "Mill score=1.0", 1, 4)
    assert first.continuation is not None
    rest = document(tool.call("read_document", {"reason": "", **first.continuation.arguments}))
    assert (rest.first, rest.continuation) == (3, None)
    assert "\n".join([*first.lines, *rest.lines]) == FRAMED


def test_a_whole_document_has_nothing_following():
    tool = top_k(get_document=True)
    page = document(tool.call("get_document", {"docid": "a ] b"}))
    assert (page.docid, page.title, page.first, page.total) == ("a ] b", "", 1, 2)
    assert ("\n".join(page.lines), page.continuation) == ("Another mill.\nIts end.", None)


def test_a_refusal_says_where_the_call_was_wrong():
    tool = ranked()
    wrong = tool.call("read_document", {"reason": "", "docid": "5", "offset": 99})
    assert wrong.page == Refusal("past_the_end", "read_document", "offset")
    assert tool.call("nonsense", {}).page == Refusal("unknown_tool")
    tool.block("Time is over.")
    blocked = tool.call("search", {"reason": "", "query": "mill"})
    assert blocked.page == Refusal("blocked")
    assert [result.call.error for result in (wrong, blocked)] == ["past_the_end", "blocked"]


def test_details_cannot_be_changed():
    page = results(ranked().call("search", {"reason": "", "query": "mill"}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        page.total = 9  # type: ignore[misc]
    with pytest.raises(AttributeError):
        page.hits[0].rank = 9  # type: ignore[misc]


def test_an_interface_says_which_of_its_tools_search_and_read():
    search = ("search", "query")
    assert (ranked().search_tool, ranked().read_tool) == (search, ("read_document", "docid"))
    assert (top_k().search_tool, top_k().read_tool) == (search, None)
    assert top_k(get_document=True).read_tool == ("get_document", "docid")


def test_a_tool_that_is_not_open_says_so():
    settings = TopK()
    settings.open(WordBackend(TEXTS), store_of(DOCUMENTS))
    for use in (settings.specs, lambda: settings.search_tool):
        with pytest.raises(InputError, match=r"TopK holds settings .* call open\(backend, store\)"):
            use()


def test_each_question_has_a_session_of_its_own():
    settings = TopK()
    one, other = (settings.open(WordBackend(TEXTS), store_of(DOCUMENTS)) for _ in range(2))
    one.reasoning = "a mill"
    one.call("search", {"query": "mill"})
    one.block("Time is over.")
    assert (other.reasoning, other.calls) == ("", ())
    assert not any(other.exposures.tiers.values())
    assert not other.call("search", {"query": "mill"}).failed
