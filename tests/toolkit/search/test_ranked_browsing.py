"""Ranked browsing: its pages, its hints, its errors, and what each call exposes."""

import ast
import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases
from support.search import WordBackend, store_of

from soundingline.toolkit.corpus import Passages, SqliteStore
from soundingline.toolkit.data import Document, Hit, SearchRequest, SearchResult
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.search.tool import Continuation, DocumentPage, ResultsPage

TEXTS = {f"d{n}": f"king number {n}\nsecond line\nthird line" for n in range(1, 13)}
DOCUMENTS = {docid: Document(docid, f"Title of {docid}", text) for docid, text in TEXTS.items()}


class RecordingBackend(WordBackend):
    """Records the requests, and returns notes, and hits beyond the depth."""

    def __init__(self, notes=None):
        super().__init__(TEXTS)
        self.requests, self.notes = [], notes

    def search(self, request):
        self.requests.append(request)
        notes = self.notes or {"number": len(self.requests)}
        return SearchResult(super().search(request._replace(depth=99)).hits, notes)


def browsing(backend=None, **settings):
    return RankedBrowsing(**settings).open(backend or WordBackend(TEXTS), store_of(DOCUMENTS))


def search(tool, query="king"):
    return tool.call("search", {"reason": "to find it", "query": query})


def browse(tool, **arguments):
    return tool.call("read_search_results", {"reason": "more", **arguments})


def read(tool, docid, **arguments):
    return tool.call("read_document", {"reason": "look", "docid": docid, **arguments})


def followed(result):
    """The call that the last line of the output names. The page names the same one, but for what
    is its caller's (the reason) and what is a default (the limit)."""
    hint = re.fullmatch(r"Next (?:hits|lines): (.*)", result.text.rsplit("\n", 1)[-1])
    page = result.page
    assert isinstance(page, (ResultsPage, DocumentPage)) and not result.failed
    if not hint:
        assert page.continuation is None
        return None
    call = ast.parse(hint[1], mode="eval").body
    arguments = {pair.arg: ast.literal_eval(pair.value) for pair in call.keywords}
    assert page.continuation.tool == call.func.id
    limit = arguments["limit"]
    assert arguments == {"reason": "...", "limit": limit, **page.continuation.arguments}
    return call.func.id, arguments


def test_pages_of_hits_and_lines_go_on_where_the_one_before_ends():
    tool = browsing(page=2, excerpt_characters=30)
    first = search(tool, " king 1 ")
    page = first.page
    assert (page.search_id, page.query, page.first, page.total) == ("s1", "king 1", 1, 12)
    assert [hit[:5] for hit in page.hits] == [
        ("d1", "d1", 1, 2.0, "Title of d1"),
        ("d2", "d2", 2, 1.0, "Title of d2"),
    ]
    assert page.hits[0].snippet == "king number 1 second line…"
    assert all(hit.snippet in first.text and not hit.text for hit in page.hits)
    assert page.continuation == Continuation(
        "read_search_results", {"search_id": "s1", "offset": 3}
    )
    rest = browse(tool, search_id="s1", offset=3, limit=50)
    assert rest.call.shown == tuple(TEXTS)[2:] and rest.page.continuation is None
    assert rest.text.endswith("End of the ranking.") and not rest.call.ranking
    assert browse(tool, search_id="s1").call.shown[0] == "d3"
    assert read(tool, "d3", offset=3).text == (
        "[docid=d3 lines 3-3 of 3] Title of d3\nthird line\nEnd of the document."
    )


def test_a_limit_of_the_call_is_that_of_the_next_one():
    tool = browsing()
    search(tool)
    hits, lines = browse(tool, search_id="s1", offset=1, limit=1), read(tool, "d5", limit=2)
    continuation = {"search_id": "s1", "offset": 2, "limit": 1}
    assert hits.page.continuation == Continuation("read_search_results", continuation)
    continuation = {"docid": "d5", "offset": 3, "limit": 2}
    assert lines.page.continuation == Continuation("read_document", continuation)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ({"search_id": "s9"}, "unknown_search_id", "(kept: s1). Call search(...) first."),
        ({"search_id": "s1", "offset": 13}, "past_the_end", "offset=1"),
        ({"search_id": "s1", "limit": 51}, "out_of_range", "from 1 to 50"),
    ],
)
def test_a_wrong_call_for_more_hits_is_refused(arguments, code, says):
    tool = browsing()
    search(tool)
    rows = tool.exposures.rows
    result = browse(tool, **arguments)
    assert result.call.error == code and says in result.text
    assert tool.exposures.rows == rows and not result.call.shown


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
    assert not tool.call(name, {"reason": " why\n" * 100, **arguments}).failed
    refused = tool.call(name, {"reason": "why " * 101, **arguments})
    assert refused.text == (
        f"[error code=too_long tool={name} field=reason] reason must have at most 100 words; "
        f"it has 101. Call {name} again with a shorter reason."
    )
    assert not refused.call.shown and refused.call.arguments["reason"] == "why " * 101
    free = browsing(reason_words=None)
    search(free)
    assert not free.call(name, {"reason": "why " * 900, **arguments}).failed
    for each, description in (
        (tool, "Why you make this call, in at most 100 words."),
        (free, "Why you make this call."),
    ):
        (spec,) = (spec for spec in each.specs() if spec["name"] == name)
        reason, *_ = spec["parameters"]["properties"].items()
        assert reason == ("reason", {"type": "string", "description": description})


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
        result = browse(tool, search_id=search_id)
        assert "search_id 's1@4f' was dropped" in result.text
        assert result.call.error == "dropped_search_id"
        assert 'Call search(reason="...", query="king")' in result.text
    assert not browse(tool, search_id="s2", offset=1).failed


def test_an_equal_query_and_reasoning_get_a_new_id_without_a_second_search():
    backend = RecordingBackend()
    tool = browsing(backend, depth=7)
    calls = [search(tool, query).call for query in ("king 3", " king 3", "nothing like it")]
    assert backend.requests[0] == SearchRequest("king 3", "", 7)
    assert "search_id=s2" in calls[1].output and len(tool.calls) == 3
    # A backend may return more hits than were requested.
    assert calls[0].ranking == calls[1].ranking and len(calls[0].ranking) == 7
    calls += [browse(tool, search_id="s1").call, search(tool, "").call]
    # What the backend noted is recorded with the call and is not shown.
    assert [call.notes for call in calls] == [{"number": 1}] * 2 + [{"number": 2}, {}, {}]
    assert not any("number': " in call.output for call in calls)
    tool.reasoning = "perhaps a queen"
    search(tool, "king 3")
    assert [request.reasoning for request in backend.requests] == ["", "", "perhaps a queen"]
    unreadable = search(browsing(RecordingBackend({"of": object()}))).call
    assert list(unreadable.notes) == ["unreadable"]


def test_titles_and_texts_of_a_page_are_fetched_in_one_call_for_the_shown_hits_only(monkeypatch):
    tool = browsing(page=3)
    texts, requested = tool.store.texts, []
    monkeypatch.setattr(tool.store, "texts", lambda ids: requested.append(ids) or texts(ids))
    search(tool)
    assert requested == [["d1", "d2", "d3"]]


def test_hits_without_an_excerpt_are_listed_and_not_previewed():
    tool = browsing(excerpt_depth=3, page=2, browse_page=4)
    search(tool)
    page = browse(tool, search_id="s1")
    assert page.call.shown == ("d3", "d4", "d5", "d6")
    assert page.text.count("\n   ") == 1 and "title=Title of d6" in page.text
    assert [(row.call, row.docid, row.documents) for row in tool.exposures.rows] == [
        (1, "d1", 1),
        (1, "d2", 2),
        (2, "d3", 3),
    ]
    later = browse(tool, search_id="s1", offset=8)
    assert later.call.shown and not later.failed
    read(tool, "d8")
    tool.cite(["d9"])
    assert tool.exposures.tiers == {
        "surfaced": tuple(TEXTS),
        "previewed": ("d1", "d2", "d3"),
        "opened": ("d8",),
        "cited": ("d9",),
    }
    without = browsing(excerpt="none")
    titles = search(without)
    assert titles.call.shown and "\n   " not in titles.text
    assert not without.exposures.tiers["previewed"] and without.exposures.tiers["surfaced"]


def test_passages_are_shown_by_unit_id_and_counted_by_document():
    passages = {"a%p0": "king one", "a%p1": "king two king", "b%p0": "king three"}
    documents = {"a": "king one\nking two king", "b": "king three"}
    tool = RankedBrowsing().open(WordBackend(passages), store_of(documents, passages))
    assert search(tool).call.shown == ("a%p0", "a%p1", "b%p0")
    assert tool.exposures.tiers["surfaced"] == tool.exposures.tiers["previewed"] == ("a", "b")
    assert [exposure.documents for exposure in tool.exposures.rows] == [1, 2]


def test_opening_a_passage_starts_where_it_stands_in_its_document():
    text = "\n".join(f"line {n}" for n in range(1, 20)) + "\nThe passage begins\nand ends."
    passages = {"a b%p7": "The passage begins and ends."}
    tool = RankedBrowsing().open(WordBackend(passages), store_of({"a b": text}, passages))
    opened = read(tool, "a b%p7")
    assert opened.text.startswith("[docid=a b lines 20-21 of 21]\nThe passage begins\n")
    assert opened.call.shown == tool.exposures.tiers["opened"] == ("a b",)
    assert read(tool, "a b%p7", offset=1).text.startswith("[docid=a b lines 1-21")


def test_every_passage_of_a_long_article_opens_at_the_line_of_its_beginning(data_root, tmp_path):
    lines = (data_root / "cmuqa" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    longest = sorted(map(json.loads, lines), key=lambda row: -len(row["text"]))[:3]
    articles = [Document(row["_id"], row["title"], row["text"]) for row in longest]
    texts = SqliteStore.build(tmp_path / "texts", articles, corpus_fingerprint="test")
    texts.add_units(tmp_path / "units", Passages())
    texts.close()
    with SqliteStore(tmp_path / "texts", tmp_path / "units") as store:
        tool = RankedBrowsing().open(WordBackend({}), store)
        for unit in store.units():
            result = read(tool, unit.unit_id, limit=9)
            assert not result.failed
            body = ["".join(line.split()) for line in result.page.lines]
            beginning = "".join(unit.text.split())[:20]
            assert 0 <= "".join(body).find(beginning) < len(body[0])
        for number in ("99999", "9" * 30, "9" * 6000):
            unknown = read(tool, f"{articles[0].docid}%p{number}")
            assert unknown.call.error == "unknown_docid"


def test_a_backend_that_breaks_is_not_hidden_and_not_recorded():
    class Broken:
        def search(self, request):
            raise RuntimeError("index is gone")

    tool = browsing(Broken())
    with pytest.raises(RuntimeError, match="index is gone"):
        search(tool)
    assert tool.calls == ()
    with pytest.raises(InputError, match="same corpus"):
        search(browsing(WordBackend({"other": "king"})))


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
    seen = []
    call = ("read_document", {"reason": "", "docid": 'a "quoted" id, é'})
    while call:
        result = tool.call(*call)
        call = followed(result)
        body = result.text.split("\n")[1:-1]
        seen += body
        assert list(result.page.lines) == body
        # Only a page of one line may exceed the limits.
        assert len(body) == 1 or len(result.text.encode()) <= max_bytes
        assert len(body) == 1 or len(body) + 2 <= max_lines
    # Lines of more than 1000 characters come in pieces.
    assert "".join(seen) == "".join(lines)
    if all(len(line) <= 1000 for line in lines):
        assert seen == lines


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
        call = followed(result)
        assert len(result.call.shown) == 1 or len(result.text.encode()) <= max_bytes
        shown += result.call.shown
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
