"""What every search tool does: records, exposures, caching, blocking."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from typing import Any

import pytest
from toy_search import WordBackend, store_of

from soundingline.toolkit.data import Document
from soundingline.toolkit.files import dump_json
from soundingline.toolkit.search import ExposureLog, RankedBrowsing, TopK
from soundingline.toolkit.tokens import count_tokens
from soundingline.toolkit.trajectory import Exposure

TEXTS = {f"d{n}": f"king {n}\nline two of {n}" for n in range(30)} | {"an id, é": "queen\n" * 300}
DOCUMENTS = {docid: Document(docid, "", text) for docid, text in TEXTS.items()}
CODES = {
    "unknown_tool",
    "arguments_not_an_object",
    "unknown_argument",
    "missing_argument",
    "wrong_type",
    "out_of_range",
    "empty_value",
    "too_long",
    "bad_unicode",
    "unknown_search_id",
    "dropped_search_id",
    "unknown_docid",
    "past_the_end",
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

    notes: Any = None
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
    dump_json(asdict(call))


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
        recorded = tool.call("search", arguments).call.arguments  # type: ignore[arg-type]
        assert list(recorded) == ["unreadable"]
    nested = {"query": ["king", {"a": 1}]}
    assert tool.call("search", nested).call.arguments == nested


@pytest.mark.parametrize("value", [3, "3", 3.0, " 3 "])
def test_an_integer_may_be_written_as_a_string(value):
    result = browsing().call("read_document", {"reason": "", "docid": "an id, é", "limit": value})
    assert "lines 1-3 of 300" in result.text


@pytest.mark.parametrize("value", [True, 2.5, "3x", "", float("nan"), float("inf"), "٣", [3]])
def test_what_is_no_integer_is_refused(value):
    result = browsing().call("read_document", {"reason": "", "docid": "d1", "limit": value})
    assert result.call.error == "wrong_type"


def test_a_docid_may_be_sent_as_a_number():
    tool = RankedBrowsing().open(WordBackend({}), store_of({"17": "seventeen"}))
    assert "seventeen" in tool.call("read_document", {"reason": "", "docid": 17}).text


def test_optional_arguments_may_be_null_or_absent_and_the_reason_may_be_empty():
    arguments = {"reason": "", "docid": "d1", "offset": None, "limit": None}
    whole = browsing().call("read_document", arguments)
    assert whole.text == browsing().call("read_document", {"reason": "", "docid": "d1"}).text
    assert not whole.failed


def random_values(chance):
    pieces = [
        "king",
        "s1",
        "s2",
        "d1",
        "d2%p0",
        "an id, é",
        "\x00",
        "\ud800",
        "é\u202e",
        "'\"",
        "%p",
    ]
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
        dump_json(asdict(result.call)).encode()
        assert result.text
        if result.failed:
            failed.add(result.call.error)
            assert not result.call.shown and not result.call.ranking
            assert before is None or tool.exposures.rows == before
    assert failed <= CODES
    missing = {"unknown_search_id", "dropped_search_id", "past_the_end", "out_of_range"}
    assert failed == (CODES if isinstance(tool, RankedBrowsing) else CODES - missing)
    assert sum(not call.error for call in tool.calls) > calls / 10


def test_tiers_keep_the_order_of_first_exposure():
    log = ExposureLog()
    log.surface(["c", "a"])
    log.surface(["a", "b", "c"])
    assert log.tiers["surfaced"] == ("c", "a", "b")


def test_an_exposure_is_written_for_the_first_showing_in_each_tier_only():
    log = ExposureLog()
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


def test_surfaced_documents_have_no_exposures():
    log = ExposureLog()
    log.surface(["a", "b"])
    assert log.rows == ()


def test_citing_a_document_that_was_only_surfaced_does_not_count_it_as_shown():
    log = ExposureLog()
    log.count(4)
    log.surface(["a"])
    log.show("cited", ["a"])
    assert log.rows == (Exposure(1, "cited", "a", 0, 4),)


def test_known_are_all_documents_brought_up_so_far():
    log = ExposureLog()
    log.surface(["a"])
    log.show("opened", ["b"])
    assert set(log.known) == {"a", "b"}
    assert set(log.tiers) == {"surfaced", "previewed", "opened", "cited"}
