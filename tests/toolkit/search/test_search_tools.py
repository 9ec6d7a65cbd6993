"""What every search tool does: a row for each tool, and every contract on each row."""

import dataclasses
import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases, needs
from support.search import WordBackend, store_of

from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import dump_json
from soundingline.toolkit.search import ExposureLog, Grep, Literature, RankedBrowsing, TopK
from soundingline.toolkit.search.tool import DocumentPage, Refusal
from soundingline.toolkit.tokens import count_tokens
from soundingline.toolkit.trajectory import Exposure

TEXTS = {f"d{n}": f"king number {n}\nsecond line\nthird line" for n in range(1, 13)}
DOCUMENTS = {docid: Document(docid, f"Title of {docid}", text) for docid, text in TEXTS.items()}
REASON = {"reason": "because"}


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
        texts = {docid: document.text for docid, document in documents.items()}
        tool = self.tool(**{**self.settings, **settings})
        return tool.open(WordBackend(texts), store_of(documents), clock=itertools.count().__next__)


ROWS = {
    "ranked_browsing": Row(
        RankedBrowsing,
        {},
        ("search", {**REASON, "query": "king"}),
        ("read_document", {**REASON, "docid": "d3"}),
    ),
    "top_k": Row(
        TopK,
        {"get_document": True},
        ("search", {"query": "king"}),
        ("get_document", {"docid": "d3"}),
    ),
    "grep": Row(
        Grep,
        {"page": 4},
        ("grep", {**REASON, "pattern": "king"}),
        ("read_document", {**REASON, "docid": "d3"}),
    ),
    "literature": Row(
        Literature,
        {"hits": 6},
        ("search", {"query": "king"}),
        ("read", {"docid": "d3", "layer": "text"}),
    ),
}
NEEDS = {"grep": needs(["re2"], "grep")}
every_tool = pytest.mark.parametrize(
    "row", [pytest.param(row, id=name, marks=NEEDS.get(name, ())) for name, row in ROWS.items()]
)

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
        assert result.page == Refusal(code, "" if changed == "" else name, field)
        assert result.text.startswith(f"[error code={code}") and says in result.text
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
        assert result.page == Refusal("blocked") and result.call.error == "blocked"
        assert "Time is over: answer now." in result.text
    assert not any(tool.exposures.tiers.values())


@every_tool
def test_sessions_share_no_state(row):
    texts = {docid: document.text for docid, document in DOCUMENTS.items()}
    configured = row.tool(**row.settings)
    one, other = (configured.open(WordBackend(texts), store_of(DOCUMENTS)) for _ in range(2))
    one.reasoning = "a king"
    one.call(*row.search)
    one.block("Time is over.")
    assert (other.reasoning, other.calls) == ("", ())
    assert not any(other.exposures.tiers.values())
    assert not other.call(*row.search).failed
    for use in (configured.specs, lambda: configured.search_tool):
        with pytest.raises(InputError, match=r"holds settings .* call open\(backend, store\)"):
            use()


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
    assert tool.search_tool == (None if row.tool is Grep else (row.search[0], "query"))
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
    answer = tool.answer("Explanation: [d3] [d99]\nExact Answer: 3 [d1]\nDocuments: [d2] [d98]")
    assert (answer.citations, answer.documents) == (("d3", "d1", "d2"), ("d2",))
    assert tool.cite(["d3%p1", "d99", "d3"]) == ("d3",)
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
    call, lines = (row.read[0], {**row.read[1], "docid": "d"}), []
    while call:
        result = tool.call(*call)
        page = result.page
        assert isinstance(page, DocumentPage) and page.docid == "d"
        assert len(result.text.encode()) <= 5000
        lines += page.lines
        more = page.continuation
        call = more and (more.tool, {**row.read[1], **more.arguments})
        if more:
            hint = result.text.rpartition("\n")[2]
            assert hint.startswith(f"Next lines: {more.tool}(")
            assert f"offset={more.arguments['offset']}" in hint
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
@settings(deadline=None, max_examples=cases(1000))
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
        if result.failed:
            assert isinstance(result.page, Refusal) and result.text.startswith("[error code=")
            assert not result.call.shown and not result.call.ranking
            assert tool.exposures.rows == before


@pytest.mark.parametrize(
    ("tool", "setting"),
    [
        (RankedBrowsing, "max_rankings=True"),
        (RankedBrowsing, "depth=0"),
        (RankedBrowsing, "depth='many'"),
        (RankedBrowsing, "depth=3"),  # fewer than a page shows
        (RankedBrowsing, "page=0"),
        (RankedBrowsing, "page=51"),
        (RankedBrowsing, "excerpt='best'"),
        (RankedBrowsing, "excerpt_characters=5"),
        (RankedBrowsing, "max_lines=0"),
        (RankedBrowsing, "read_limit=3000"),
        (RankedBrowsing, "reason_words=0"),
        *[(TopK, each) for each in ("k=0", "max_tokens=-1", "max_tokens=0", "max_bytes=0")],
        *[(Grep, each) for each in ("syntax='glob'", "order='score'", "seconds=0", "lines=-1")],
        *[(Literature, each) for each in ("hits=0", "depth=0", "passages=0", "largest_hub=0")],
        (Literature, "abstract_tokens=0"),
    ],
)
def test_impossible_settings_are_refused(tool, setting):
    with pytest.raises(InputError, match=re.escape(setting)):
        eval(f"tool({setting})")


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
    tool = TopK().open(WordBackend(TEXTS), store_of(DOCUMENTS))
    assert [spec["name"] for spec in tool.specs()] == ["search"] and tool.read_tool is None
    assert tool.call("get_document", {"docid": "d1"}).call.error == "unknown_tool"
    top = ROWS["top_k"]
    text = top.open(max_tokens=1).call("get_document", {"docid": "d3%p1"}).text
    assert text == f"[docid=d3] Title of d3\n{TEXTS['d3']}"
    size = len(text.encode())
    assert top.open(max_bytes=size).call(*top.read).text == text
    cut = top.open(max_bytes=size - 1).call(*top.read)
    assert cut.text.startswith("[docid=d3 lines 1-1 of 3] Title of d3\n")
