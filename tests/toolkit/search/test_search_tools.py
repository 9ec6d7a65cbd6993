"""What every search tool does, a row for each tool, and the pages of ranked browsing and of
literature search."""

import ast
import dataclasses
import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.benchmarks import WordBackend, store_of
from support.needs import cases

from soundingline.agents.literature import OverlapScorer
from soundingline.toolkit.corpus import Passages, SqliteStore
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Hit, Link, SearchRequest, SearchResult
from soundingline.toolkit.files import dump_json
from soundingline.toolkit.search import (
    ExposureLog,
    Literature,
    Located,
    Operators,
    RankedBrowsing,
    TopK,
)
from soundingline.toolkit.search.answers import shown_texts
from soundingline.toolkit.search.literature import first_sentences
from soundingline.toolkit.search.tool import Continuation, DocumentPage, ResultsPage
from soundingline.toolkit.tokens import count_tokens
from soundingline.toolkit.trajectory import Exposure

TEXTS = {f"d{n}": f"king number {n}\nsecond line\nthird line" for n in range(1, 13)}
DOCUMENTS = {docid: Document(docid, f"Title of {docid}", text) for docid, text in TEXTS.items()}
BACKEND, STORE = WordBackend(TEXTS), store_of(DOCUMENTS)
REASON = {"reason": "because"}


def searched(documents):
    if documents is DOCUMENTS:
        return BACKEND, STORE
    texts = {docid: document.text for docid, document in documents.items()}
    return WordBackend(texts), store_of(documents)


@dataclasses.dataclass
class Row:
    """A tool: its class and settings, and a good call that searches, and one that reads."""

    tool: type
    settings: dict
    search: tuple
    read: tuple

    @property
    def query(self):
        return list(self.search[1])[-1]

    def open(self, documents=DOCUMENTS, **settings):
        backend, store = searched(documents)
        tool = self.tool(**{**self.settings, **settings}).open(backend, store)
        tool.clock = itertools.count().__next__
        return tool


class SixHits(Literature):
    hits = 6


SEARCH = ("search", {"query": "king"})
READ = ("read_document", {**REASON, "docid": "d3"})
ROWS = {
    "ranked_browsing": Row(RankedBrowsing, {}, ("search", {**REASON, "query": "king"}), READ),
    "top_k": Row(TopK, {"get_document": True}, SEARCH, ("get_document", {"docid": "d3"})),
    "literature": Row(SixHits, {}, SEARCH, ("read", {"docid": "d3", "layer": "text"})),
}
every_tool = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)

# Code, which call is changed (its name or an argument), the values, and what the refusal names.
WRONG = [
    ("unknown_tool", "search", "", ["find", 5, "x" * 5000], "Call one of: "),
    ("arguments_not_an_object", "search", None, ["text", None, [1]], "must be a JSON object"),
    ("unknown_argument", "search", "depth", [5], " only."),
    ("missing_argument", "search", "query", [None], "Call it again with "),
    ("wrong_type", "search", "query", [["king"], True, 1.5, 10**400], "must be a string"),
    ("empty_value", "search", "query", ["", " \n"], "not blank"),
    ("too_long", "search", "query", ["k" * 10_001], "at most 10000 characters"),
    ("bad_unicode", "search", "query", ["\ud800"], "surrogates"),
    ("missing_argument", "read", "docid", [None], "needs docid"),
    ("unknown_docid", "read", "docid", ["nope", "d33", "x%p" + "9" * 6000], "is unknown"),
    ("past_the_end", "read", "offset", [4, 10**9], "has 3 lines"),
    ("out_of_range", "read", "offset", [0, -1, 10**9 + 1], "an integer from 1"),
    ("wrong_type", "read", "offset", [True, 2.5, "3x", "", float("nan"), "٣", [3]], "or null"),
]


@every_tool
@pytest.mark.parametrize(
    ("code", "kind", "changed", "values", "says"),
    [pytest.param(*row, id=f"{row[0]}-{row[2]}") for row in WRONG],
)
def test_a_wrong_call_is_refused_and_exposes_nothing(row, code, kind, changed, values, says):
    tool = row.open()
    tool.call(*row.search)
    before = tool.exposures.tiers, tool.exposures.rows
    name, good = getattr(row, kind)
    argument = row.query if changed == "query" else changed
    for value in values:
        call = (name, {**good, argument: value})
        if changed == "":
            call = (value, good)
        elif changed is None:
            call = (name, value)
        result = tool.call(*call)
        field = argument if argument in {row.query, "docid", "offset"} else ""
        where = f" tool={name}" if changed != "" else ""
        where += f" field={field}" if field else ""
        assert result.page is None and says in result.text
        assert result.text.startswith(f"[error code={code}{where}] ")
        assert len(result.text) < 500
        assert result.call.error == code and not result.call.shown and not result.call.ranking
        assert (tool.exposures.tiers, tool.exposures.rows) == before


@every_tool
def test_each_call_is_recorded_and_exposed(row):
    tool = row.open()
    nonsense, search, read = (tool.call(*call) for call in (("x", {}), row.search, row.read))
    assert tool.calls == (nonsense.call, search.call, read.call)
    for result, (name, arguments) in ((search, row.search), (read, row.read)):
        assert (result.call.name, result.call.arguments) == (name, arguments)
        assert (result.call.output, result.call.error) == (result.text, "")
        assert result.call.tokens == count_tokens(result.text) > 0
        assert result.call.seconds >= 1  # by a clock that counts how often it is read
    count = len(search.call.shown)
    assert search.call.shown == tuple(search.page.shown) == tuple(TEXTS)[:count]
    assert search.call.ranking == tuple(TEXTS)[: 5 if row.tool is TopK else None]
    assert (read.call.shown, read.call.ranking) == (("d3",), ())
    tiers = {"surfaced": search.call.ranking, "previewed": search.call.shown, "opened": ("d3",)}
    assert tool.exposures.tiers == {**tiers, "cited": ()}
    *previewed, opened = tool.exposures.rows
    spent = [sum(call.tokens for call in tool.calls[: end + 1]) for end in range(3)]
    assert {(each.call, each.tokens) for each in previewed} == {(2, spent[1])}
    assert [each.documents for each in previewed] == list(range(1, count + 1))
    assert opened[:5] == (3, "opened", "d3", count, spent[2])


@every_tool
def test_a_blocked_session_refuses_every_call_with_the_reason(row):
    tool = row.open()
    tool.block("Time is over: answer now.")
    for name in (row.search[0], "nonsense"):
        result = tool.call(name, row.search[1])
        assert result.page is None and result.call.error == "blocked"
        assert "Time is over: answer now." in result.text
    assert not any(tool.exposures.tiers.values())


@every_tool
def test_sessions_share_no_state(row):
    configured = row.tool(**row.settings)
    one, other = (configured.open(BACKEND, STORE) for _ in range(2))
    one.reasoning = "a king"
    one.call(*row.search)
    one.block("Time is over.")
    assert (other.reasoning, other.calls) == ("", ())
    assert not any(other.exposures.tiers.values())
    assert not other.call(*row.search).failed
    for use in (configured.specs, lambda: configured.search_tool):
        refused(r"holds settings .* call open\(backend, store\)", use)


@every_tool
def test_schemas_are_strict_and_name_what_searches_and_reads(row):
    tool = row.open()
    specs = json.loads(json.dumps(tool.specs()))
    for spec in specs:
        parameters = spec["parameters"]
        assert set(spec) == {"name", "description", "parameters"}
        assert parameters["additionalProperties"] is False
        assert parameters["required"] == list(parameters["properties"])
        assert all(each["description"] for each in parameters["properties"].values())
    assert {row.search[0], row.read[0]} <= {spec["name"] for spec in specs}
    # A query in natural language is no pattern.
    assert tool.search_tool == (row.search[0], "query")
    assert tool.read_tool == (row.read[0], "docid")


@every_tool
def test_a_search_without_hits_is_no_error_and_surfaces_nothing(row):
    tool = row.open()
    name, good = row.search
    result = tool.call(name, {**good, row.query: "zzyzx"})
    page = result.page
    assert (page.query, page.hits, page.total, page.continuation) == ("zzyzx", (), 0, None)
    assert "Nothing" in result.text and not result.failed
    assert not any(tool.exposures.tiers.values())


@every_tool
def test_an_answer_cites_what_the_session_has_returned(row):
    tool = row.open()
    tool.call(*row.search)
    tool.call(*row.read)
    text = "Explanation: [d3%p1] [d99] [d3]\nExact Answer: 3 [d1]\nDocuments: [d2] [d98]"
    answer = tool.answer(text)
    assert (answer.citations, answer.documents) == (("d3", "d1", "d2"), ("d2",))
    assert tool.exposures.tiers["cited"] == ("d3", "d1", "d2")
    assert tool.exposures.rows[-1].tier == "cited"


@every_tool
def test_an_integer_may_be_a_string_a_docid_a_number_and_an_optional_argument_null(row):
    tool = row.open({"17": Document("17", "", "seven\nteen\n!\n.")})
    name, good = row.read
    for value in (3, "3", 3.0, " 3 "):
        assert tool.call(name, {**good, "docid": 17, "offset": value}).page.first == 3
    whole = tool.call(name, {**good, "docid": "17", "offset": None})
    assert whole.text == tool.call(name, {**good, "docid": "17"}).text and not whole.failed


LONG = {
    "one line": "word " * 3000,
    "one word": "é" * 15_000,
    "many lines": "\n".join(f"line {n}" for n in range(2000)),
    "long title": "text",
    # Lines that look like the frame around them.
    "frame": "Lines 1-2 of 5\nEnd of the document.\n1. docid=9 score=1.0\nMill [docid=5] inside.",
}


@every_tool
@pytest.mark.parametrize("name", LONG)
def test_the_pages_of_a_document_are_bounded_and_together_the_whole(row, name):
    title = "Title " * (2000 if name == "long title" else 1)
    tool = row.open({"d": Document("d", title, LONG[name])}, max_bytes=5000)
    call, lines, hints, offsets = (row.read[0], {**row.read[1], "docid": "d"}), [], [], []
    while call:
        result = tool.call(*call)
        page = result.page
        assert isinstance(page, DocumentPage) and page.docid == "d"
        assert len(result.text.encode()) <= 5000
        lines += page.lines
        hints += re.findall(
            rf"^Next lines: {row.read[0]}\(.*offset=(\d+)", result.text, re.MULTILINE
        )
        more = page.continuation
        offsets += [str(more.arguments["offset"])] if more else []
        call = more and (more.tool, {**row.read[1], **more.arguments})
    assert hints == offsets
    assert ("" if name.startswith("one") else "\n").join(lines) == LONG[name]
    assert len(tool.calls) > 1 or name in ("long title", "frame")
    assert tool.exposures.tiers["opened"] == ("d",)


@every_tool
def test_arguments_that_json_cannot_hold_are_recorded_as_unreadable(row):
    tool = row.open()
    deep = []
    for _ in range(5000):
        deep = [deep]
    for value in ("\ud800", float("nan"), {1, 2}, deep, object()):
        recorded = tool.call(row.search[0], {row.query: value}).call.arguments
        assert list(recorded) == ["unreadable"]
    nested = {row.query: ["king", {"a": 1}]}
    assert tool.call(row.search[0], nested).call.arguments == nested


WORDS = ("king 3", "s1", "s2", "d3", "d1%p0", "\x00", "\ud800", "'\"", "%p", "", " ", "9" * 5000)
NUMBERS = (1, 3, 40, -1, 10**18, 10**400, 2.0, float("nan"), None, True, b"bytes", object())
LIKELY = st.sampled_from([*WORDS, *NUMBERS])
VALUES = LIKELY | st.recursive(
    st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@every_tool
@settings(deadline=None, max_examples=cases(1000, 80))
@given(data=st.data())
def test_any_call_ends_in_a_result_or_in_a_tool_error(row, data):
    tool = row.open(max_rankings=2)
    specs = {spec["name"]: list(spec["parameters"]["properties"]) for spec in tool.specs()}
    for _ in range(3):
        name = data.draw(st.sampled_from([*specs, *specs, *specs]) | VALUES)
        keys = specs.get(name if isinstance(name, str) else "", ["query"])
        arguments = {key: data.draw(VALUES) for key in keys}
        before = tool.exposures.rows
        result = tool.call(name, data.draw(st.just(arguments) | VALUES))
        dump_json(dataclasses.asdict(result.call)).encode()
        assert result.text
        assert not (result.failed and result.page)
        assert result.failed == result.text.startswith("[error code=")
        shown = result.call.shown, result.call.ranking, tool.exposures.rows != before
        assert not (result.failed and any(shown))


@pytest.mark.parametrize(
    ("tool", "setting"),
    [
        (RankedBrowsing, "depth=3"),  # fewer than a page shows
        *[(RankedBrowsing, each) for each in ("max_rankings=True", "depth=0", "depth='many'")],
        *[(RankedBrowsing, each) for each in ("page=0", "page=51", "excerpt='best'")],
        *[(RankedBrowsing, each) for each in ("max_lines=0", "read_limit=3000", "reason_words=0")],
        (RankedBrowsing, "excerpt_characters=5"),
        *[(TopK, each) for each in ("k=0", "max_tokens=-1", "max_tokens=0", "max_bytes=0")],
        *[(TopK, each) for each in ("query_argument='question'", "output='xml'")],
        *[(Literature, each) for each in ("depth=0", "max_lines=0", "max_bytes=0")],
    ],
)
def test_impossible_settings_are_refused(tool, setting):
    refused(re.escape(setting), eval, f"tool({setting})", {"tool": tool})


# The evidence tiers.


def test_tiers_and_exposures_are_in_the_order_of_first_showing():
    log = ExposureLog()
    log.surface(["c", "a"])
    log.surface(["a", "b", "c"])
    assert log.tiers["surfaced"] == ("c", "a", "b") and log.rows == ()
    log.count(10)
    log.show("previewed", ["a", "b"])
    log.count(5)
    log.show("previewed", ["b", "c"])
    log.count(7)
    log.show("opened", ["a"])
    log.show("cited", ["a"])
    assert log.rows == (
        Exposure(1, "previewed", "a", 1, 10),
        Exposure(1, "previewed", "b", 2, 10),
        Exposure(2, "previewed", "c", 3, 15),
        Exposure(3, "opened", "a", 3, 22),
        Exposure(3, "cited", "a", 3, 22),
    )


def test_a_cited_document_that_was_only_surfaced_does_not_count_as_shown():
    log = ExposureLog()
    log.count(4)
    log.surface(["a"])
    log.show("cited", ["a"])
    assert log.rows == (Exposure(1, "cited", "a", 0, 4),)
    log.show("opened", ["b"])
    assert set(log.known) == {"a", "b"}
    assert set(log.tiers) == {"surfaced", "previewed", "opened", "cited"}


# `TopK` alone.


def test_top_k_cuts_texts_to_the_token_budget_and_shows_no_more_of_a_title():
    top = ROWS["top_k"]
    result = top.open(k=2, max_tokens=7).call("search", {"query": "king 2"})
    assert [hit.text for hit in result.page.hits] == [
        "Title of d2\nking number 2\nsecond",
        "Title of d1\nking number 1\nsecond",
    ]
    assert result.text.count("\nsecond\n[cut after 7 tokens]") == 2
    whole = top.open(k=1, max_tokens=None).call("search", {"query": "king 2"})
    assert whole.text.endswith(f"Title of d2\n{TEXTS['d2']}")
    (hit,) = top.open(k=1, max_tokens=1).call("search", {"query": "king"}).page.hits
    assert hit.text == hit.title == "Title"


def test_get_document_is_an_option_and_gives_the_document_of_a_passage():
    tool = TopK().open(BACKEND, STORE)
    assert [spec["name"] for spec in tool.specs()] == ["search"] and tool.read_tool is None
    assert tool.call("get_document", {"docid": "d1"}).call.error == "unknown_tool"
    top = ROWS["top_k"]
    text = top.open(max_tokens=1).call("get_document", {"docid": "d3%p1"}).text
    assert text == f"[docid=d3] Title of d3\n{TEXTS['d3']}"
    size = len(text.encode())
    assert top.open(max_bytes=size).call(*top.read).text == text
    cut = top.open(max_bytes=size - 1).call(*top.read)
    assert cut.text.startswith("[docid=d3 lines 1-1 of 3] Title of d3\n")


STATED = "---\ntitle: The Mill\n---\nIt burned.\nThe king came."
STATING = store_of({"m": Document("m", "The Mill", STATED)})


def test_a_title_that_the_text_states_is_not_shown_once_more_in_front_of_it():
    tool = TopK(get_document=True).open(WordBackend({"m": STATED}), STATING)
    found = tool.call("search", {"query": "king"})
    assert found.text.endswith(f"docid=m score=1.0000\n{STATED}")
    assert [(hit.title, hit.text) for hit in found.page.hits] == [("The Mill", STATED)]
    assert tool.call("get_document", {"docid": "m"}).text == f"[docid=m]\n{STATED}"


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, "1. docid=m score=1.0000 title=The Mill\n   --- title: The Mill --- It burned."),
        (
            # As in Pi-Serini's code (bbab25d), where the raw JSON of a document has no title.
            {"titles": False, "excerpt": "first_match"},
            "1. docid=m score=1.0000\n   ---\ntitle: The Mill\n---\nIt burned.\nThe king came.\n",
        ),
        ({"titles": False, "excerpt": "none"}, "1. docid=m score=1.0000\nEnd"),
    ],
)
def test_hits_have_titles_and_excerpts_by_the_settings(settings, shown):
    tool = RankedBrowsing(**settings).open(WordBackend({"m": STATED}), STATING)
    result = tool.call("search", {"reason": "", "query": "king"})
    assert shown in result.text
    assert [hit.title for hit in result.page.hits] == ["" if settings else "The Mill"]
    (text,) = shown_texts([result.call])
    assert (text.docid, "came." in text.text) == ("m", settings.get("excerpt") != "none")


def test_top_k_has_the_argument_and_the_replies_of_the_published_code():
    """As SearchToolHandler in search_agent/oss_client.py of ChuanMeng/text-ranking-in-deep-research
    at b546046: `user_query`; a list of docid, score and snippet; `get_document` an object."""
    tool = ROWS["top_k"].open(k=2, max_tokens=7, query_argument="user_query", output="json")
    (spec, _), (name, argument) = tool.specs(), tool.search_tool
    assert list(spec["parameters"]["properties"]) == ["user_query"]
    assert (name, argument) == ("search", "user_query")
    assert tool.call("search", {"query": "king"}).failed
    found = tool.call("search", {"user_query": "king 2"})
    rows = json.loads(found.text)
    assert found.text == json.dumps(rows, indent=2)
    assert [list(row) for row in rows] == [["docid", "score", "snippet"]] * 2
    assert [row["snippet"] for row in rows] == [hit.text for hit in found.page.hits]
    assert [row["score"] for row in rows] == [hit.score for hit in found.page.hits]
    assert [row["docid"] for row in rows] == list(found.call.shown) == ["d2", "d1"]
    assert found.call.query == "king 2"
    # What was shown is read from it as from a text.
    titles = [(each.docid, each.title) for each in shown_texts([found.call])]
    assert titles == [("d2", "Title of d2"), ("d1", "Title of d1")]
    read = tool.call("get_document", {"docid": "d3"})
    assert json.loads(read.text) == {"docid": "d3", "text": f"Title of d3\n{TEXTS['d3']}"}
    assert tool.call("search", {"user_query": "nowhere"}).text == "[]"


# Ranked browsing: its pages, its hints, its errors, and what each call exposes.


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
    return RankedBrowsing(**settings).open(backend or BACKEND, STORE)


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
    for each, limit in ((tool, ", in at most 100 words."), (free, ".")):
        (spec,) = (spec for spec in each.specs() if spec["name"] == name)
        reason, *_ = spec["parameters"]["properties"].items()
        description = f"Why you make this call{limit}"
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
    rows = [(row.call, row.docid, row.documents) for row in tool.exposures.rows]
    assert rows == [(1, "d1", 1), (1, "d2", 2), (2, "d3", 3)]
    later = browse(tool, search_id="s1", offset=8)
    assert later.call.shown and not later.failed
    read(tool, "d8")
    tool.answer("Explanation: [d9]")
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
    longest = sorted(map(json.loads, lines), key=lambda row: -len(row["text"]))[: cases(3, 1)]
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
    refused("same corpus", lambda: search(browsing(WordBackend({"other": "king"}))))


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
    assert seen == lines or max(map(len, lines)) > 1000


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
    store = store_of(documents)
    for number in range(20):
        tool = RankedBrowsing().open(Ready(), store)
        started = time.process_time()
        search(tool, f"which king wrote to the minister of a far country in 18{number}")
        seconds.append(time.process_time() - started)
    # Meant to be about 2 ms; the bound only has to catch work that is done for every hit.
    assert sorted(seconds)[10] < 0.02


# Literature search: pages, layers of reading, exposures, refusals, scores of requirements.


PAPERS = {
    "a": Document("a", "Tides of Brel", "The tide rises nine metres. " * 40, "http://x/a"),
    "b": Document("b", "Mills", "A mill stands at Brel. It grinds barley."),
    "c": Document("c", "Ferries", "No such word."),
}
PASSAGES = store_of(PAPERS, {"a%p0": "The tide rises nine metres.", "a%p1": "More of it."})


class Fixed:
    """Locates the first passages of `a`, and nothing elsewhere."""

    def locate(self, docids, requirements, most=3):
        passages = [Located("a%p0", 2.0), Located("a%p1", 1.0)][:most]
        return [[passages if docid == "a" else [] for _ in requirements] for docid in docids]


OPERATORS = Operators(
    links=LinkGraph.build([Link("a", "b"), Link("c", "a"), Link("c", "b")]),
    locator=Fixed(),
    passages=PASSAGES,
    resolver=Resolver(Document(d.docid, d.title, "", d.url) for d in PAPERS.values()),
)


def session(operators=OPERATORS, documents=PAPERS, constants=(), **settings):
    tool = type("Smaller", (Literature,), dict(constants))
    backend = WordBackend({docid: document.text for docid, document in documents.items()})
    return tool(**settings, operators=operators).open(backend, store_of(documents))


def test_each_layer_that_is_shown_is_an_exposure_with_its_tokens():
    tool = session(constants={"hits": 1, "abstract_tokens": 12})
    result = tool.call("search", {"query": "tide at Brel"})
    assert "docid=b Mills" in result.text and result.page.layer == "metadata"
    assert set(tool.exposures.tiers["surfaced"]) == {"a", "b"}
    for layer in ("metadata", "abstract", "text"):
        assert not tool.call("read", {"docid": "a", "layer": layer}).failed
    tool.call("locate", {"docid": "a", "requirement": "It tells of tides."})
    rows = [(row.tier, row.docid, row.layer) for row in tool.exposures.rows]
    previewed = [("previewed", docid, "metadata") for docid in "ba"]
    opened = [("opened", "a", layer) for layer in ("abstract", "text", "evidence")]
    assert rows == previewed + opened
    tokens = [row.tokens for row in tool.exposures.rows]
    assert tokens == sorted(tokens) and len(set(tokens)) == 5
    assert tool.exposures.rows[-1].documents == 2
    layers = [call.notes["layer"] for call in tool.calls]
    assert layers == ["metadata", "metadata", "abstract", "text", "evidence"]


def test_a_long_text_continues_at_the_line_that_its_page_names():
    tool = session(max_lines=1)
    page = tool.call("read", {"docid": "a", "layer": "text"}).page
    following = tool.call(page.continuation.tool, page.continuation.arguments).page
    assert (following.first, following.layer) == (2, "text")


def test_links_are_followed_and_surface_documents():
    tool = session()
    result = tool.call("expand", {"docids": "a, c", "direction": "out"})
    assert [(hit.docid, hit.score) for hit in result.page.hits] == [("b", 2.0)]
    assert tool.exposures.tiers["surfaced"] == result.call.ranking == ("b",)
    inward = tool.call("expand", {"docids": "b", "direction": "in"})
    assert set(inward.call.shown) == {"a", "c"}
    result = session(constants={"largest_hub": 1}).call(
        "expand", {"docids": "a", "direction": "both"}
    )
    assert "too many links" in result.text and result.call.notes["hubs"] == 1


def test_evidence_shows_the_passages_with_their_ids():
    tool = session(constants={"passages": 1, "passage_tokens": 3})
    result = tool.call("locate", {"docid": "a", "requirement": "tides"})
    assert "[a%p0] The tide rises…" in result.text and "a%p1" not in result.text
    nothing = session().call("locate", {"docid": "b", "requirement": "tides"})
    assert "No passage speaks of it" in nothing.text and not nothing.failed


def test_findings_become_documents_or_are_refused():
    tool = session()
    result = tool.call("resolve", {"findings": "mills\nhttp://x/a\nThe Lost Book"})
    assert result.call.shown == tool.exposures.tiers["previewed"] == ("b", "a")
    assert "[2 of 3 found]" in result.text and '"The Lost Book": unknown' in result.text
    headings = [Document(f"r{number}", "Annual Report", "") for number in range(5)]
    tool = session(replace(OPERATORS, resolver=Resolver(headings)))
    result = tool.call("resolve", {"findings": "Annual Report"})
    assert result.text.endswith('"Annual Report": ambiguous: r0, r1, r2 and 2 more')
    assert result.call.shown == ()


def test_a_tool_without_its_operator_is_not_offered():
    assert [spec["name"] for spec in session(Operators()).specs()] == ["search", "read"]
    names = [spec["name"] for spec in session().specs()]
    assert names == ["search", "read", "expand", "locate", "resolve"]


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("read", {"docid": "a", "layer": "all"}, "out_of_range"),
        ("read", {"docid": "a", "layer": 3}, "wrong_type"),
        ("expand", {"docids": "a ghost"}, "unknown_docid"),
        ("expand", {"docids": ",;"}, "unknown_docid"),
        ("expand", {"docids": "a", "direction": "up"}, "out_of_range"),
        ("locate", {"docid": "ghost", "requirement": "x"}, "unknown_docid"),
        ("resolve", {"findings": "  "}, "empty_value"),
        ("score", {"docids": "a ghost", "requirements": "x", "question": "?"}, "unknown_docid"),
        ("score", {"docids": "  ", "requirements": "x", "question": "?"}, "empty_value"),
        ("score", {"docids": ";", "requirements": "x", "question": "?"}, "unknown_docid"),
    ],
)
def test_a_wrong_call_of_literature_is_refused_and_exposes_nothing(tool, arguments, code):
    opened = session(replace(OPERATORS, scorer=OverlapScorer()))
    assert opened.call(tool, arguments).call.error == code
    assert not opened.exposures.rows


TEXT = "One two three. Four five six. Seven eight nine ten. " + "More words follow. " * 50
FIELDS = {"abstract": "Short.", "year": "1990"}


@pytest.mark.parametrize(
    ("call", "fields", "constants", "expected"),
    [
        ({"docid": "d"}, FIELDS, {}, "Short."),
        ({"docid": "d", "layer": "metadata"}, FIELDS, {}, "url: http://d\nyear: 1990"),
        # Words and marks count: four a sentence.
        ({"docid": "d"}, {}, {"abstract_tokens": 9}, "One two three. Four five six."),
        ({"docid": "d"}, {}, {"abstract_tokens": 8}, "One two three. Four five six."),
        ({"docid": "d%p3"}, {}, {"abstract_tokens": 7}, "One two three."),
        ({"docid": "d"}, {}, {"abstract_tokens": 2}, "One two"),
        ({"docid": "e"}, {}, {}, ""),
    ],
)
def test_an_abstract_is_a_field_or_the_first_sentences_and_metadata_the_rest(
    call, fields, constants, expected
):
    documents = {"d": Document("d", "Title", TEXT, "http://d"), "e": Document("e", "", "")}
    tool = session(Operators(fields=lambda docid: fields), documents, constants)
    assert tool.call("read", call).text.split("\n", 1)[1] == expected
    assert first_sentences("No full stop", 100) == "No full stop"


# The tool `score`.

MILLS = {
    "good": "A mill grinds barley. It was built in 1720.",
    "late": "A mill grinds barley. It was built in 1820.",
    "dry": "Nothing.",
}


class WholeDocuments:
    """A document is evidence if its text contains the requirement's last word."""

    def locate(self, docids, requirements, most=3):
        words = [need.split()[-1] for need in requirements]
        return [
            [[Located(docid, 1.0)] if word in MILLS[docid] else [] for word in words]
            for docid in docids
        ]


def scoring_tool(scorer=None):
    operators = Operators(locator=WholeDocuments(), scorer=scorer or OverlapScorer())
    documents = {docid: Document(docid, docid, text) for docid, text in MILLS.items()}
    return session(operators, documents)


def scored(docids, requirements, tool=None):
    arguments = {"docids": docids, "requirements": requirements, "question": "Which mill?"}
    return (tool or scoring_tool()).call("score", arguments).page


def test_every_document_is_held_against_every_requirement():
    tool = scoring_tool()
    page = scored("good late dry", "mill grinds barley\nbetween 1700 and 1750 was built", tool)
    assert page.requirements == ["mill grinds barley", "between 1700 and 1750 was built"]
    verdicts = [[row.verdict for row in one.requirements if row] for one in page.scores]
    assert verdicts == [["satisfied"] * 2, ["satisfied", "not"], ["unknown"] * 2]
    first = page.scores[0].requirements[0]
    assert (first.passage, first.rationale) == ("good", "A mill grinds barley.")
    assert page.scores[2].requirements[0] == ("unknown", 0.0, "", "")
    exposures = [(row.tier, row.docid, row.layer) for row in tool.exposures.rows]
    assert exposures == [("opened", docid, "evidence") for docid in MILLS]
    assert tool.calls[0].shown == tuple(MILLS)


def test_an_exclusion_is_met_by_a_document_that_is_free_of_it():
    good, dry = (one.requirements[0] for one in scored("good dry", "not grinds barley").scores)
    assert good.score == 0.0 and dry.score == 1.0


def test_equal_requirements_are_scored_once_and_lines_are_tidied():
    page = scored("good", "  mill   grinds barley \n\nmill grinds barley\n用大麦磨粉")
    assert page.requirements == ["mill grinds barley", "用大麦磨粉"]


def test_what_was_read_of_a_document_before_is_context():
    candidates = []

    class Recording(OverlapScorer):
        def score(self, rows):
            candidates.extend(rows)
            return super().score(rows)

    tool = scoring_tool(Recording())
    scored("good", "mill grinds barley", tool)
    scored("good", "用大麦磨粉", tool)
    assert [passage.unit_id for passage in candidates[1].context] == ["good"]
    assert candidates[1].evidence[0].passages == ()


def test_concurrent_calls_are_all_on_record():
    tool = scoring_tool()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: tool.call("search", {"query": f"mill {n}"}), range(40)))
        list(pool.map(lambda n: scored("good late", f"number {n}", tool), range(40)))
    assert len(tool.calls) == 80
    assert [row.docid for row in tool.exposures.rows].count("good") == 2  # previewed, opened
    assert tool.exposures.rows[-1].tokens <= sum(call.tokens for call in tool.calls)
