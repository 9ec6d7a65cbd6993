"""What every search tool does: records, exposures, pages as values, caching, blocking."""

import dataclasses
import json
import random

import pytest
from support.search import WordBackend, store_of

from soundingline.toolkit.corpus import Passages, SqliteStore
from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import dump_json
from soundingline.toolkit.search import ExposureLog, RankedBrowsing, TopK
from soundingline.toolkit.search.tool import Continuation, DocumentPage, Refusal, ResultsPage
from soundingline.toolkit.tokens import count_tokens
from soundingline.toolkit.trajectory import Exposure

TEXTS = {f"d{n}": f"king {n}\nline two of {n}" for n in range(30)} | {"an id, é": "queen\n" * 300}
DOCUMENTS = {docid: Document(docid, "", text) for docid, text in TEXTS.items()}
CODES = {
    *("unknown_tool", "arguments_not_an_object", "unknown_argument", "missing_argument"),
    *("wrong_type", "out_of_range", "empty_value", "too_long", "bad_unicode"),
    *("unknown_search_id", "dropped_search_id", "unknown_docid", "past_the_end"),
}


def browsing(**settings):
    return RankedBrowsing(**settings).open(WordBackend(TEXTS), store_of(DOCUMENTS))


def top(**settings):
    settings = {"get_document": True, **settings}
    return TopK(**settings).open(WordBackend(TEXTS), store_of(DOCUMENTS))


def test_a_call_is_recorded_with_its_output_tokens_and_seconds():
    ticks = iter([10.0, 12.5])
    tool = RankedBrowsing().open(WordBackend(TEXTS), store_of(DOCUMENTS), clock=lambda: next(ticks))
    result = tool.call("search", {"reason": "why", "query": "king"})
    assert tool.calls == (result.call,)
    assert result.call.name == "search"
    assert result.call.arguments == {"reason": "why", "query": "king"}
    assert result.call.output == result.text
    assert result.call.seconds == 2.5
    assert result.call.tokens == count_tokens(result.text) > 0


class NotingBackend(WordBackend):
    """Notes how often it was asked."""

    notes = None
    asked = 0

    def search(self, request):
        self.asked += 1
        notes = {"asked": self.asked} if self.notes is None else self.notes
        return super().search(request)._replace(notes=notes)


def test_what_a_search_noted_is_recorded_with_its_call_and_not_shown():
    backend = NotingBackend(TEXTS)
    tool = RankedBrowsing().open(backend, store_of(DOCUMENTS))
    queries = ["king", "nothing like it", "king"]
    calls = [tool.call("search", {"reason": "", "query": query}).call for query in queries]
    calls.append(tool.call("read_search_results", {"reason": "", "search_id": "s1"}).call)
    calls.append(tool.call("search", {"reason": "", "query": ""}).call)
    # The third call repeats the first, whose ranking is kept.
    assert [call.notes for call in calls] == [{"asked": 1}, {"asked": 2}, {"asked": 1}, {}, {}]
    assert not any("asked" in call.output for call in calls)


def test_notes_that_json_cannot_hold_do_not_cost_the_trajectory():
    backend = NotingBackend(TEXTS)
    backend.notes = {"of": object()}
    tool = RankedBrowsing().open(backend, store_of(DOCUMENTS))
    call = tool.call("search", {"reason": "", "query": "king"}).call
    assert list(call.notes) == ["unreadable"]
    dump_json(dataclasses.asdict(call))


def test_exposures_count_the_tokens_of_all_output_up_to_the_end_of_their_call():
    tool = browsing()
    tool.call("nonsense", {})
    tool.call("search", {"reason": "", "query": "king"})
    tool.call("read_document", {"reason": "", "docid": "d29"})
    spent = [sum(call.tokens for call in tool.calls[:n]) for n in (1, 2, 3)]
    previewed, opened = tool.exposures.rows[:5], tool.exposures.rows[5]
    assert {(each.call, each.tokens) for each in previewed} == {(2, spent[1])}
    assert [each.documents for each in previewed] == [1, 2, 3, 4, 5]
    assert (opened.call, opened.tier, opened.documents, opened.tokens) == (3, "opened", 6, spent[2])


def test_a_blocked_session_refuses_every_call_with_the_reason():
    tool = browsing()
    tool.block("Time is nearly over: answer now.")
    for name in ("search", "nonsense"):
        result = tool.call(name, {"reason": "", "query": "king"})
        assert result.call.error == "blocked"
        assert "Time is nearly over: answer now." in result.text
    assert not any(tool.exposures.tiers.values())


def test_only_documents_that_the_session_brought_up_can_be_cited():
    tool = browsing(depth=5)
    tool.call("search", {"reason": "", "query": "king"})
    tool.call("read_document", {"reason": "", "docid": "an id, é"})
    cited = tool.cite(["d2%p1", "d29", "d2", "an id, é"])
    assert cited == tool.exposures.tiers["cited"] == ("d2", "an id, é")


def test_an_answer_is_parsed_and_its_citations_are_cited():
    tool = browsing()
    tool.call("search", {"reason": "", "query": "king 3"})
    answer = tool.answer("Explanation: so [d3] [d99]\nExact Answer: 3\nConfidence: 60%")
    assert (answer.exact, answer.confidence, answer.citations) == ("3", 60, ("d3",))
    assert tool.exposures.tiers["cited"] == ("d3",)
    assert tool.exposures.rows[-1].tier == "cited"


@pytest.mark.parametrize("make", [browsing, top])
def test_schemas_are_strict_and_are_plain_json(make):
    for spec in json.loads(json.dumps(make().specs())):
        parameters = spec["parameters"]
        assert set(spec) == {"name", "description", "parameters"}
        assert parameters["additionalProperties"] is False
        assert parameters["required"] == list(parameters["properties"])
        assert all(each["description"] for each in parameters["properties"].values())


def test_arguments_that_json_cannot_hold_are_recorded_as_unreadable():
    tool = browsing()
    for arguments in ({"query": "\ud800"}, {"query": float("nan")}, {"query": {1, 2}}, "text"):
        recorded = tool.call("search", arguments).call.arguments
        assert list(recorded) == ["unreadable"]
    nested = {"query": ["king", {"a": 1}]}
    assert tool.call("search", nested).call.arguments == nested


def test_an_integer_may_be_written_as_a_string_and_a_docid_as_a_number():
    tool = RankedBrowsing().open(WordBackend({}), store_of({"17": "seven\nteen\n!\n."}))
    for value in (3, "3", 3.0, " 3 "):
        result = tool.call("read_document", {"reason": "", "docid": 17, "limit": value})
        assert "lines 1-3 of 4" in result.text
    for value in (True, 2.5, "3x", "", float("nan"), float("inf"), "٣", [3]):
        result = tool.call("read_document", {"reason": "", "docid": 17, "limit": value})
        assert result.call.error == "wrong_type"


def test_optional_arguments_may_be_null_or_absent_and_the_reason_may_be_empty():
    arguments = {"reason": "", "docid": "d1", "offset": None, "limit": None}
    whole = browsing().call("read_document", arguments)
    assert whole.text == browsing().call("read_document", {"reason": "", "docid": "d1"}).text
    assert not whole.failed


def random_values(chance):
    pieces = ["king", "s1", "s2", "d1", "d2%p0", "an id, é", "\x00", "\ud800", "é\u202e"]
    pieces += ["'\"", "%p"]
    nested = [[], [], []]
    for index, depth in enumerate((1, 400, 5000)):
        for _ in range(depth):
            nested[index] = [nested[index]]
    while True:
        text = "".join(chance.choices(pieces, k=chance.randint(0, 4)))
        yield chance.choice(
            [
                text,
                chance.choice(pieces),
                text * chance.choice([1, 2, 2000]),
                "9" * chance.choice([1, 2, 5000]),
                f"d1%p{10 ** chance.choice([0, 1, 30])}",
                chance.randint(-3, 40),
                10 ** chance.choice([9, 18, 400]),
                chance.random() * 10,
                float(chance.choice(["nan", "inf", "3", "-1"])),
                None,
                True,
                b"bytes",
                {text: [text]},
                chance.choice(nested),
                object(),
            ]
        )


def random_call(chance, values):
    names = ["search", "read_search_results", "read_document", "get_document"]
    likely = {
        "reason": "r",
        "query": "king 3",
        "search_id": f"s{chance.randint(1, 40)}",
        "docid": f"d{chance.randint(0, 31)}",
        "offset": chance.randint(1, 40),
        "limit": chance.randint(1, 60),
    }
    name = chance.choice(names) if chance.random() < 0.9 else next(values)
    if chance.random() < 0.05:
        return name, next(values)
    wanted = {
        "search": ["reason", "query"],
        "read_search_results": ["reason", "search_id", "offset", "limit"],
        "read_document": ["reason", "docid", "offset", "limit"],
        "get_document": ["docid"],
    }
    keys = [*wanted.get(name if isinstance(name, str) else "", likely)]
    if chance.random() < 0.1:
        keys.append(chance.choice(["extra", 3, None, "\ud800"]))
    if chance.random() < 0.1:
        keys.pop(0)
    return name, {
        key: likely[key] if key in likely and chance.random() < 0.7 else next(values)
        for key in keys
    }


@pytest.mark.parametrize(("make", "calls"), [(browsing, 7000), (top, 3000)])
def test_any_call_ends_in_a_result_or_in_a_tool_error(make, calls):
    chance = random.Random(7)
    values = random_values(chance)
    tool = make(max_rankings=3)
    failed = set()
    for _ in range(calls):
        before = tool.exposures.rows if chance.random() < 0.02 else None
        name, arguments = random_call(chance, values)
        if isinstance(tool, TopK) and name == "search" and isinstance(arguments, dict):
            arguments.pop("reason", None)
        result = tool.call(name, arguments)
        dump_json(dataclasses.asdict(result.call)).encode()
        assert result.text
        if result.failed:
            failed.add(result.call.error)
            assert not result.call.shown and not result.call.ranking
            assert before is None or tool.exposures.rows == before
    assert failed <= CODES
    missing = {"unknown_search_id", "dropped_search_id", "past_the_end", "out_of_range"}
    assert failed == (CODES if isinstance(tool, RankedBrowsing) else CODES - missing)
    assert sum(not call.error for call in tool.calls) > calls / 10


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


# Pages as values.

# Texts that look like the frame around them.
FRAMED = "First line of 5.\nEnd of the document.\n1. docid=9 score=1.0\nMill [docid=5] inside."
FRAMED_DOCUMENTS = {
    "5": Document("5", "Mill\n score=1.0", FRAMED),
    "a ] b": Document("a ] b", "", "Another mill.\nIts end."),
    "9": Document("9", "Nine", "A third mill [docid=5]."),
}
FRAMED_TEXTS = {docid: document.text for docid, document in FRAMED_DOCUMENTS.items()}


def framed(**settings):
    return RankedBrowsing(**settings).open(WordBackend(FRAMED_TEXTS), store_of(FRAMED_DOCUMENTS))


def framed_top(**settings):
    return TopK(**settings).open(WordBackend(FRAMED_TEXTS), store_of(FRAMED_DOCUMENTS))


def results(result):
    assert isinstance(result.page, ResultsPage)
    return result.page


def document(result):
    assert isinstance(result.page, DocumentPage)
    return result.page


def test_a_page_of_hits_gives_each_hit_as_it_is_shown():
    tool = framed(page=2, excerpt_characters=30)
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


def test_a_limit_that_was_asked_for_is_kept_by_what_follows():
    tool = framed()
    tool.call("search", {"reason": "", "query": "mill"})
    arguments = {"reason": "", "search_id": "s1", "offset": 1, "limit": 1}
    hits = tool.call("read_search_results", arguments)
    lines = tool.call("read_document", {"reason": "", "docid": "5", "limit": 2})
    assert results(hits).continuation == Continuation(
        "read_search_results", {"search_id": "s1", "offset": 2, "limit": 1}
    )
    assert document(lines).continuation == Continuation(
        "read_document", {"docid": "5", "offset": 3, "limit": 2}
    )


def test_whole_texts_are_given_as_they_are_shown():
    result = framed_top(max_tokens=6).call("search", {"query": "mill"})
    page = results(result)
    assert (page.search_id, page.first, page.total, page.continuation) == ("", 1, 3, None)
    assert [hit.unit_id for hit in page.hits] == ["5", "a ] b", "9"]
    assert [hit.title for hit in page.hits] == ["Mill\n score=1.0", "", "Nine"]
    assert page.hits[1].text == "Another mill.\nIts end."
    assert page.hits[2].text.startswith("Nine\nA third")
    assert all(hit.text in result.text and not hit.snippet for hit in page.hits)
    assert not any("cut after" in hit.text for hit in page.hits)


def test_no_more_of_a_title_is_given_than_is_shown():
    (hit,) = results(framed_top(max_tokens=1, k=1).call("search", {"query": "mill"})).hits
    assert hit.text == hit.title != FRAMED_DOCUMENTS["5"].title
    assert FRAMED_DOCUMENTS["5"].title.startswith(hit.title)


@pytest.mark.parametrize("tool", [framed(), framed_top()])
def test_a_page_without_hits_has_none(tool):
    reason = {"reason": ""} if isinstance(tool, RankedBrowsing) else {}
    page = results(tool.call("search", {**reason, "query": "zzyzx"}))
    assert (page.query, page.hits, page.total, page.continuation) == ("zzyzx", (), 0, None)


def test_a_document_page_gives_its_lines_whatever_they_look_like():
    tool = framed()
    first = document(tool.call("read_document", {"reason": "", "docid": "5", "limit": 2}))
    assert (first.docid, first.title, first.first, first.total) == ("5", "Mill score=1.0", 1, 4)
    assert first.continuation is not None
    rest = document(tool.call("read_document", {"reason": "", **first.continuation.arguments}))
    assert (rest.first, rest.continuation) == (3, None)
    assert "\n".join([*first.lines, *rest.lines]) == FRAMED


def test_a_whole_document_has_nothing_following():
    tool = framed_top(get_document=True)
    page = document(tool.call("get_document", {"docid": "a ] b"}))
    assert (page.docid, page.title, page.first, page.total) == ("a ] b", "", 1, 2)
    assert ("\n".join(page.lines), page.continuation) == ("Another mill.\nIts end.", None)


def test_a_refusal_says_where_the_call_was_wrong():
    tool = framed()
    wrong = tool.call("read_document", {"reason": "", "docid": "5", "offset": 99})
    assert wrong.page == Refusal("past_the_end", "read_document", "offset")
    assert tool.call("nonsense", {}).page == Refusal("unknown_tool")
    tool.block("Time is over.")
    blocked = tool.call("search", {"reason": "", "query": "mill"})
    assert blocked.page == Refusal("blocked")
    assert [result.call.error for result in (wrong, blocked)] == ["past_the_end", "blocked"]


def test_details_cannot_be_changed():
    page = results(framed().call("search", {"reason": "", "query": "mill"}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        page.total = 9
    with pytest.raises(AttributeError):
        page.hits[0].rank = 9


def test_an_interface_says_which_of_its_tools_search_and_read():
    search = ("search", "query")
    assert (framed().search_tool, framed().read_tool) == (search, ("read_document", "docid"))
    assert (framed_top().search_tool, framed_top().read_tool) == (search, None)
    assert framed_top(get_document=True).read_tool == ("get_document", "docid")


def test_a_tool_that_is_not_open_says_so():
    settings = TopK()
    settings.open(WordBackend(FRAMED_TEXTS), store_of(FRAMED_DOCUMENTS))
    for use in (settings.specs, lambda: settings.search_tool):
        with pytest.raises(InputError, match=r"TopK holds settings .* call open\(backend, store\)"):
            use()


def test_each_question_has_a_session_of_its_own():
    settings = TopK()
    one, other = (
        settings.open(WordBackend(FRAMED_TEXTS), store_of(FRAMED_DOCUMENTS)) for _ in range(2)
    )
    one.reasoning = "a mill"
    one.call("search", {"query": "mill"})
    one.block("Time is over.")
    assert (other.reasoning, other.calls) == ("", ())
    assert not any(other.exposures.tiers.values())
    assert not other.call("search", {"query": "mill"}).failed


# The tool over the SQLite store, on long real articles.


@pytest.fixture(scope="module")
def articles(data_root):
    lines = (data_root / "cmuqa" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: -len(row["text"]))
    return [Document(row["_id"], row["title"], row["text"]) for row in rows[:3]]


@pytest.fixture(scope="module")
def store(articles, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    texts = SqliteStore.build(folder / "texts", articles, corpus_fingerprint="test")
    texts.add_units(folder / "units", Passages())
    texts.close()
    with SqliteStore(folder / "texts", folder / "units") as opened:
        yield opened


def article_tool(store):
    units = {unit.unit_id: unit.text for unit in store.units()}
    return RankedBrowsing().open(WordBackend(units), store)


def test_every_passage_opens_at_the_line_that_holds_its_beginning(store):
    tool = article_tool(store)
    for unit in store.units():
        result = tool.call("read_document", {"reason": "", "docid": unit.unit_id, "limit": 9})
        assert not result.failed
        body = ["".join(line.split()) for line in result.text.split("\n")[1:-1]]
        beginning = "".join(unit.text.split())[:20]
        assert 0 <= "".join(body).find(beginning) < len(body[0])


def test_a_long_article_is_read_whole_by_its_hints(store, articles):
    tool = article_tool(store)
    article = articles[0]
    got = []
    hint = "offset=1,"
    while "offset=" in hint:
        first = int(hint.split("offset=")[1].split(",")[0])
        arguments = {"reason": "", "docid": article.docid, "offset": first, "limit": 50}
        lines = tool.call("read_document", arguments).text.split("\n")
        got += lines[1:-1]
        hint = lines[-1]
    assert "".join("\n".join(got).split()) == "".join(article.text.split())


def test_a_passage_that_the_document_lacks_is_an_unknown_docid(store):
    docid = next(store.documents()).docid
    for number in ("99999", "9" * 30, "9" * 6000):
        arguments = {"reason": "", "docid": f"{docid}%p{number}"}
        assert article_tool(store).call("read_document", arguments).call.error == "unknown_docid"
    past = article_tool(store).call(
        "read_document", {"reason": "", "docid": docid, "offset": 10**9}
    )
    assert past.call.error == "past_the_end"


def test_previewed_passages_count_as_their_articles(store):
    tool = article_tool(store)
    result = tool.call("search", {"reason": "", "query": "president of the united states"})
    assert all("%p" in unit_id for unit_id in result.call.shown)
    assert set(tool.exposures.tiers["surfaced"]) <= {
        document.docid for document in store.documents()
    }
    assert "…" in result.text
