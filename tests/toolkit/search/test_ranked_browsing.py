"""Ranked browsing: its pages, its hints, its errors, and what each call exposes."""

import ast
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases
from support.search import WordBackend, store_of

from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document, Hit, SearchRequest, SearchResult
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.search.tool import DocumentPage, ResultsPage

TEXTS = {f"d{n}": f"king number {n}\nsecond line\nthird line" for n in range(1, 13)}
DOCUMENTS = {docid: Document(docid, f"Title of {docid}", text) for docid, text in TEXTS.items()}


def browsing(**settings):
    return RankedBrowsing(**settings).open(WordBackend(TEXTS), store_of(DOCUMENTS))


def search(tool, query="king"):
    return tool.call("search", {"reason": "to find it", "query": query})


def browse(tool, **arguments):
    return tool.call("read_search_results", {"reason": "more", **arguments})


def read(tool, docid, **arguments):
    return tool.call("read_document", {"reason": "look", "docid": docid, **arguments})


def hinted_call(output):
    """The call that the last line of an output names."""
    found = re.fullmatch(r"Next (?:hits|lines): (.*)", output.rsplit("\n", 1)[-1])
    if not found:
        return None
    call = ast.parse(found[1], mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    return call.func.id, {str(pair.arg): ast.literal_eval(pair.value) for pair in call.keywords}


def followed(result):
    """The call that the last line of the output names. The details name the same one, but for what
    is their caller's (the reason) and what is a default (the limit)."""
    call = hinted_call(result.text)
    details = result.page
    assert isinstance(details, (ResultsPage, DocumentPage))
    if call is None:
        assert details.continuation is None
        return None
    assert details.continuation is not None and details.continuation.tool == call[0]
    given = details.continuation.arguments
    assert call[1] == {"reason": "...", "limit": call[1]["limit"], **given}
    return call


def test_there_are_three_tools_whose_first_argument_is_the_reason():
    specs = browsing().specs()
    assert [spec["name"] for spec in specs] == ["search", "read_search_results", "read_document"]
    assert all(next(iter(spec["parameters"]["properties"])) == "reason" for spec in specs)


def test_a_result_page_looks_as_documented():
    assert search(browsing(page=2), "king 1").text == (
        '[search_id=s1 ranks 1-2 of 12 query="king 1"]\n'
        "1. docid=d1 score=2.0000 title=Title of d1\n"
        "   king number 1 second line third line\n"
        "2. docid=d2 score=1.0000 title=Title of d2\n"
        "   king number 2 second line third line\n"
        'Next hits: read_search_results(reason="...", search_id="s1", offset=3, limit=10)'
    )


def test_a_document_page_looks_as_documented():
    assert read(browsing(), "d3", offset=1, limit=2).text == (
        "[docid=d3 lines 1-2 of 3] Title of d3\n"
        "king number 3\n"
        "second line\n"
        'Next lines: read_document(reason="...", docid="d3", offset=3, limit=2)'
    )
    assert read(browsing(), "d3", offset=3).text == (
        "[docid=d3 lines 3-3 of 3] Title of d3\nthird line\nEnd of the document."
    )


def test_the_search_records_the_whole_ranking_and_paging_goes_on_after_its_page():
    tool = browsing()
    assert search(tool).call.ranking == tuple(TEXTS)
    page = browse(tool, search_id="s1")
    assert page.call.shown == tuple(f"d{n}" for n in range(6, 13))
    assert page.text.endswith("End of the ranking.")
    assert page.call.ranking == read(tool, "d1").call.ranking == ()


def test_each_tier_holds_what_its_call_exposed():
    tool = browsing()
    search(tool)
    browse(tool, search_id="s1", offset=7, limit=2)
    read(tool, "d9")
    tiers = tool.exposures.tiers
    assert tiers["surfaced"] == tuple(TEXTS)
    assert tiers["previewed"] == ("d1", "d2", "d3", "d4", "d5", "d7", "d8")
    assert tiers["opened"] == ("d9",)


def test_a_search_without_hits_says_so_and_surfaces_nothing():
    tool = browsing()
    result = search(tool, "zebra")
    assert not result.failed
    assert "Call search with other words." in result.text
    assert not any(tool.exposures.tiers.values())


@pytest.mark.parametrize(
    ("name", "arguments", "code", "told"),
    [
        ("read_search_results", {"search_id": "s9"}, "unknown_search_id", "Call search(...) first"),
        ("read_search_results", {"search_id": "s1", "offset": 13}, "past_the_end", "offset=1"),
        ("read_search_results", {"search_id": "s1", "limit": 51}, "out_of_range", "from 1 to 50"),
        ("read_search_results", {"search_id": "s1", "offset": 0}, "out_of_range", "from 1 to"),
        ("read_document", {"docid": "nope"}, "unknown_docid", "Call search(...) first"),
        ("read_document", {"docid": "d1%p3"}, "unknown_docid", "Call search(...) first"),
        ("read_document", {"docid": "d1%p" + "9" * 6000}, "unknown_docid", "Call search"),
        ("read_document", {"docid": "d1", "offset": 4}, "past_the_end", "offset=1"),
        ("read_document", {"docid": "d1", "limit": "two"}, "wrong_type", "an integer from 1"),
        ("search", {"query": "  "}, "empty_value", "not blank"),
        ("search", {"query": None}, "missing_argument", "needs query"),
        ("search", {"query": ["king"]}, "wrong_type", "a string"),
        ("search", {"query": "k", "depth": 5}, "unknown_argument", "reason, query only"),
        ("search", {"query": "\ud800"}, "bad_unicode", "surrogates"),
        ("find", {"query": "king"}, "unknown_tool", "search, read_search_results, read_document"),
    ],
)
def test_a_wrong_call_is_told_what_to_do_next_and_exposes_nothing(name, arguments, code, told):
    tool = browsing()
    search(tool)
    before = tool.exposures.tiers, tool.exposures.rows
    result = tool.call(name, {"reason": "because", **arguments})
    assert result.call.error == code
    assert result.text.startswith(f"[error code={code}")
    assert told in result.text
    assert (tool.exposures.tiers, tool.exposures.rows) == before
    assert not result.call.shown and not result.call.ranking


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search", {"query": "king"}),
        ("read_search_results", {"search_id": "s1"}),
        ("read_document", {"docid": "d1"}),
    ],
)
def test_a_reason_of_more_words_than_the_limit_is_refused(name, arguments):
    tool = browsing()
    search(tool)
    accepted = tool.call(name, {"reason": " why\n" * 100, **arguments})
    assert not accepted.failed
    refused = tool.call(name, {"reason": "why " * 101, **arguments})
    assert refused.text == (
        f"[error code=too_long tool={name} field=reason] reason must have at most 100 words; "
        f"it has 101. Call {name} again with a shorter reason."
    )
    assert not refused.call.shown and refused.call.arguments["reason"] == "why " * 101


def test_the_limit_of_the_reason_is_a_setting():
    call = {"reason": "two words", "query": "king"}
    assert browsing(reason_words=1).call("search", call).call.error == "too_long"
    free = browsing(reason_words=None)
    assert not free.call("search", {"reason": "why " * 900, "query": "king"}).failed
    descriptions = [
        spec["parameters"]["properties"]["reason"]["description"]
        for tool in (browsing(), free)
        for spec in tool.specs()
    ]
    limited, unlimited = descriptions[:3], descriptions[3:]
    assert set(limited) == {"Why you make this call, in at most 100 words."}
    assert set(unlimited) == {"Why you make this call."}


def test_an_unknown_search_id_is_told_which_are_kept():
    tool = browsing()
    assert browse(tool, search_id="s1").text.endswith(
        "search_id 's1' is unknown. Call search(...) first."
    )
    search(tool)
    assert "(kept: s1)" in browse(tool, search_id="s2").text


def test_search_ids_with_a_suffix_are_whole_on_every_page_and_may_come_without_it():
    plain, tool = browsing(max_rankings=2), browsing(max_rankings=2)
    tool.search_id_suffix = "@4f"
    pages = [(search(each), browse(each, search_id="s1")) for each in (plain, tool)]
    for short, whole in zip(*pages, strict=True):
        assert whole.text == re.sub(r'(search_id="?s1)', r"\1@4f", short.text) != short.text
    assert browse(tool, search_id="s1@4f").text == pages[1][1].text
    assert "search_id 's2' is unknown (kept: s1@4f)" in browse(tool, search_id="s2").text
    assert "search_id 's1@4e' is unknown" in browse(tool, search_id="s1@4e").text
    for query in ("number", "line"):
        search(tool, query)
    for search_id in ("s1", "s1@4f"):
        assert "search_id 's1@4f' was dropped" in browse(tool, search_id=search_id).text


def test_a_dropped_ranking_has_its_own_error_which_names_the_query():
    tool = browsing(max_rankings=2)
    for query in ("king", "number", "line"):
        search(tool, query)
    result = browse(tool, search_id="s1")
    assert result.call.error == "dropped_search_id"
    assert 'Call search(reason="...", query="king")' in result.text
    assert not browse(tool, search_id="s2", offset=1).failed


class CountingBackend:
    def __init__(self) -> None:
        self.requests = []

    def search(self, request):
        self.requests.append(request)
        return WordBackend(TEXTS).search(request)


def test_an_equal_query_and_reasoning_get_a_new_id_without_a_second_search():
    backend = CountingBackend()
    tool = RankedBrowsing(depth=7).open(backend, store_of(DOCUMENTS))
    first, second = search(tool, "king 3"), search(tool, " king 3")
    assert backend.requests == [SearchRequest("king 3", "", 7)]
    assert "search_id=s2" in second.text
    assert len(tool.calls) == 2
    assert second.call.ranking == first.call.ranking
    tool.reasoning = "perhaps a queen"
    search(tool, "king 3")
    assert [request.reasoning for request in backend.requests] == ["", "perhaps a queen"]


def test_a_ranking_deeper_than_asked_is_cut_to_the_depth():
    class Generous:
        def search(self, request):
            return WordBackend(TEXTS).search(request._replace(depth=99))

    tool = RankedBrowsing(depth=6).open(Generous(), store_of(DOCUMENTS))
    assert len(search(tool).call.ranking) == 6
    assert len(tool.exposures.tiers["surfaced"]) == 6


def test_titles_and_texts_of_a_page_are_fetched_in_one_call_for_the_shown_hits_only():
    class CountingStore(SqliteStore):
        asked: list[Any] = []  # noqa: RUF012

        def texts(self, unit_ids):
            self.asked.append(list(unit_ids))
            return super().texts(unit_ids)

    store = CountingStore.in_memory(DOCUMENTS.values())
    search(RankedBrowsing(page=3).open(WordBackend(TEXTS), store))
    assert store.asked == [["d1", "d2", "d3"]]


def test_snippets_stop_at_their_depth_and_titles_do_not():
    result = search(browsing(excerpt_depth=1, page=2))
    assert result.text.count("\n   ") == 1
    assert "title=Title of d2" in result.text
    assert "\n   " not in search(browsing(excerpt="none")).text


def test_hits_without_an_excerpt_are_listed_and_not_previewed():
    tool = browsing(excerpt_depth=3, page=2, browse_page=4)
    search(tool)
    page = browse(tool, search_id="s1")
    assert page.call.shown == ("d3", "d4", "d5", "d6")
    assert tool.exposures.tiers["previewed"] == ("d1", "d2", "d3")
    assert [(row.call, row.docid, row.documents) for row in tool.exposures.rows] == [
        (1, "d1", 1),
        (1, "d2", 2),
        (2, "d3", 3),
    ]
    later = browse(tool, search_id="s1", offset=8)
    assert later.call.shown and not later.failed
    read(tool, "d8")
    tool.cite(["d9"])
    tiers = tool.exposures.tiers
    assert tiers["previewed"] == ("d1", "d2", "d3")
    assert (tiers["opened"], tiers["cited"]) == (("d8",), ("d9",))
    assert tiers["surfaced"] == tuple(TEXTS)


def test_pages_of_titles_alone_preview_nothing():
    tool = browsing(excerpt="none")
    assert search(tool).call.shown
    assert not tool.exposures.tiers["previewed"] and tool.exposures.tiers["surfaced"]


def test_passages_are_shown_by_unit_id_and_counted_by_document():
    passages = {"a%p0": "king one", "a%p1": "king two king", "b%p0": "king three"}
    documents = {"a": "king one\nking two king", "b": "king three"}
    tool = RankedBrowsing().open(WordBackend(passages), store_of(documents, passages))
    assert search(tool).call.shown == ("a%p0", "a%p1", "b%p0")
    assert tool.exposures.tiers["surfaced"] == ("a", "b")
    assert tool.exposures.tiers["previewed"] == ("a", "b")
    assert [exposure.documents for exposure in tool.exposures.rows] == [1, 2]


def test_opening_a_passage_starts_where_it_stands_in_its_document():
    text = "\n".join(f"line {n}" for n in range(1, 20)) + "\nThe passage begins\nand ends."
    passages = {"a b%p7": "The passage begins and ends."}
    tool = RankedBrowsing().open(WordBackend(passages), store_of({"a b": text}, passages))
    opened = read(tool, "a b%p7")
    assert opened.text.startswith("[docid=a b lines 20-21 of 21]\nThe passage begins\n")
    assert opened.call.shown == ("a b",)
    assert tool.exposures.tiers["opened"] == ("a b",)
    assert read(tool, "a b%p7", offset=1).text.startswith("[docid=a b lines 1-21")


def test_a_backend_that_breaks_is_not_hidden_and_not_recorded():
    class Broken:
        def search(self, request):
            raise RuntimeError("index is gone")

    tool = RankedBrowsing().open(Broken(), store_of(DOCUMENTS))
    with pytest.raises(RuntimeError, match="index is gone"):
        search(tool)
    assert tool.calls == ()


def test_an_index_of_another_corpus_is_told_as_such():
    tool = RankedBrowsing().open(WordBackend({"other": "king"}), store_of(DOCUMENTS))
    with pytest.raises(InputError, match="same corpus"):
        search(tool)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"depth": 0}, "depth=0"),
        ({"depth": 3}, "page=5 shows more hits than depth=3"),
        ({"page": 0}, "page=0"),
        ({"page": 51}, "a whole number, 1 to 50"),
        ({"depth": "many"}, "depth='many'"),
        ({"max_rankings": True}, "max_rankings=True"),
        ({"excerpt": "best"}, "window, first_match, none"),
        ({"excerpt_characters": 5}, "excerpt_characters=5"),
        ({"max_lines": 0}, "max_lines=0"),
        ({"read_limit": 3000}, "a whole number, 1 to 2000"),
    ],
)
def test_impossible_settings_are_refused(settings, told):
    with pytest.raises(InputError, match=re.escape(told)):
        browsing(**settings)


LINES = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=cases(150), deadline=None)
@given(
    lines=st.lists(LINES | LINES.map(lambda text: text * 40), min_size=1, max_size=40),
    max_lines=st.integers(1, 30),
    max_bytes=st.integers(1, 3000),
    limit=st.integers(1, 30),
)
def test_following_the_hints_reads_every_line_exactly_once(lines, max_lines, max_bytes, limit):
    lines = [*lines, "the last line"]
    documents = {'a "quoted" id, é': "\n".join(lines)}
    tool = RankedBrowsing(
        max_lines=max_lines, max_bytes=max_bytes, read_limit=min(limit, max_lines)
    ).open(WordBackend({}), store_of(documents))
    got = []
    call = ("read_document", {"reason": "", "docid": 'a "quoted" id, é'})
    while call:
        result = tool.call(*call)
        assert not result.failed
        body = result.text.split("\n")[1:-1]
        got += body
        assert isinstance(result.page, DocumentPage) and list(result.page.lines) == body
        # Only a page of one line may exceed the limits.
        assert len(body) == 1 or len(result.text.encode()) <= max_bytes
        assert len(body) == 1 or len(body) + 2 <= max_lines
        call = followed(result)
    # Lines of more than 1000 characters come in pieces.
    assert "".join(got) == "".join(lines)
    if all(len(line) <= 1000 for line in lines):
        assert got == lines


@settings(max_examples=cases(60), deadline=None)
@given(
    count=st.integers(1, 40),
    title=st.text(max_size=300),
    text=st.text(max_size=300),
    max_lines=st.integers(1, 60),
    max_bytes=st.integers(1, 4000),
    page=st.integers(1, 12),
)
def test_following_the_hints_shows_every_hit_exactly_once(
    count, title, text, max_lines, max_bytes, page
):
    documents = {f"é {n}": Document(f"é {n}", title, f"king {text}") for n in range(count)}
    tool = RankedBrowsing(
        page=page, browse_page=page, max_lines=max_lines, max_bytes=max_bytes, read_limit=1
    ).open(WordBackend(dict.fromkeys(documents, "king")), store_of(documents))
    shown = []
    call = ("search", {"reason": "", "query": "king"})
    while call:
        result = tool.call(*call)
        assert not result.failed
        assert len(result.call.shown) == 1 or len(result.text.encode()) <= max_bytes
        shown += result.call.shown
        call = followed(result)
    assert shown == list(documents)


def test_a_search_of_a_thousand_hits_costs_little_over_the_backend():
    text = "The king of a far country wrote letters to his minister. " * 150
    documents = {f"d{n}": Document(f"d{n}", "Title", f"{text} {n}") for n in range(1000)}
    hits = [Hit(f"d{n}", f"d{n}", n + 1, 1.0) for n in range(1000)]

    class Ready:
        def search(self, request):
            return SearchResult(hits)

    seconds = []
    for number in range(20):
        tool = RankedBrowsing().open(Ready(), store_of(documents))
        started = time.process_time()
        search(tool, f"which king wrote to the minister of a far country in 18{number}")
        seconds.append(time.process_time() - started)
    # Meant to be about 2 ms; the bound only has to catch work that is done for every hit.
    assert sorted(seconds)[10] < 0.02
