"""Pi-Serini's contract over HTTP."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from support.search import WordBackend, store_of
from support.served import DOCUMENTS, serving

from soundingline.experiments.serve.pi_serini import PiSeriniTools
from soundingline.toolkit.data import Hit, SearchResult
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing

# The published contract: fields and types; what is optional is absent, never null.
_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_TITLE = {"type": ["string", "null"]}
_AT_LEAST_1 = {"type": "number", "minimum": 1}
_TIMING = {
    "type": "object",
    "properties": {"request": _NUMBER, "backendInit": _NUMBER, "backendUptime": _NUMBER},
    "additionalProperties": False,
}


def strict(required, **optional):
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


_HIT = strict(
    {"docid": {"type": "string", "minLength": 1}},
    score=_NUMBER,
    title=_TITLE,
    snippet=_TEXT,
    snippetTruncated={"type": "boolean"},
    metadata={"type": "object"},
)
SEARCHED = strict(
    {"hits": {"type": "array", "items": _HIT}, "hasMore": {"type": "boolean"}},
    totalHits={"type": "number", "minimum": 0},
    nextOffset=_AT_LEAST_1,
    timingMs=_TIMING,
)
READ = strict(
    {
        **{"found": {"const": True}, "docid": {"type": "string", "minLength": 1}, "text": _TEXT},
        **{"offset": _AT_LEAST_1, "limit": _AT_LEAST_1, "truncated": {"type": "boolean"}},
    },
    title=_TITLE,
    totalUnits={"type": "number", "minimum": 0},
    returnedOffsetStart=_AT_LEAST_1,
    returnedOffsetEnd=_AT_LEAST_1,
    nextOffset=_AT_LEAST_1,
    metadata={"type": "object"},
    timingMs=_TIMING,
)
MISSING = strict({"found": {"const": False}, "docid": _TEXT}, timingMs=_TIMING)


def check(value, schema):
    Draft202012Validator(schema).validate(value)
    return value


def test_search_and_read_follow_the_contract():
    with serving() as server:
        page = check(server.ask("/pi-serini/search", query="Grenholm mill", limit=1000), SEARCHED)
        assert page["hits"][0]["docid"] == "mill" and page["hits"][0]["title"] == "Mill"
        assert "Brekke" in page["hits"][0]["snippet"] and page["hasMore"] is False
        assert len(page["hits"]) == len(DOCUMENTS) - 1
        some = check(server.ask("/pi-serini/search", query="mill", limit=2, offset=3), SEARCHED)
        every = server.ask("/pi-serini/search", query="mill", limit=1000)["hits"]
        assert (some["hits"], some["nextOffset"]) == (every[2:4], 5)
        assert (
            check(server.ask("/pi-serini/search", query="xyzzy", limit=9), SEARCHED)["hits"] == []
        )
        first = check(server.ask("/pi-serini/read", docid="mill", limit=1), READ)
        assert (first["text"], first["nextOffset"]) == (
            "Grenholm Mill was built by Torvald Brekke.",
            2,
        )
        rest = check(server.ask("/pi-serini/read", docid="mill", offset=2), READ)
        assert (rest["text"], rest["truncated"], rest["returnedOffsetEnd"]) == (
            "It is old.",
            False,
            2,
        )
        empty = check(server.ask("/pi-serini/read", docid="empty"), READ)
        past = check(server.ask("/pi-serini/read", docid="mill", offset=50), READ)
        assert empty["text"] == past["text"] == "" and "returnedOffsetStart" not in past
        check(server.ask("/pi-serini/read", docid="none"), MISSING)


@pytest.mark.parametrize(
    "body", [{"query": "x"}, {"query": "", "limit": 1}, {"query": "x", "limit": 1, "more": 2}]
)
def test_a_request_outside_the_contract_is_an_error_with_a_body(body):
    with serving() as server:
        status, reply = server.post("/pi-serini/search", **body)
        assert status == 400 and reply["message"]


class Passages:
    def search(self, request):
        units = ["a%p1", "b%p0", "a%p0", "a%p2"]
        return SearchResult([Hit(unit[0], unit, n, -1.0 * n) for n, unit in enumerate(units, 1)])


def test_a_document_stands_once_at_its_best_passage_and_surfaces_as_all():
    texts = {f"{docid}%p{number}": f"text {docid}{number}" for docid in "ab" for number in range(3)}
    store = store_of({docid: f"whole {docid}" for docid in "ab"}, texts)
    session = PiSeriniTools().open(Passages(), store)
    result = session.call("search", {"query": "text", "limit": 10})
    hits = json.loads(result.text)["hits"]
    assert [hit["docid"] for hit in hits] == ["a", "b"]
    assert "text a1" in hits[0]["snippet"]
    assert list(result.call.ranking) == ["a%p1", "b%p0", "a%p0", "a%p2"]
    assert session.exposures.tiers["surfaced"] == ("a", "b")
    assert session.exposures.tiers["previewed"] == ()  # the client pages by itself


def test_a_session_in_the_address_is_recorded(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with serving(folder=folder) as server:
        handle = server.ask("/question", interface="pi_serini")["session"]
        server.ask(f"/pi-serini/search?session={handle}", query="mill", limit=1000)
        server.ask(f"/pi-serini/read?session={handle}", docid="mill", offset=1, limit=200)
        server.ask("/submit_answer", session=handle, answer="x")
        other = server.ask("/question")["session"]
        status, refusal = server.post(f"/pi-serini/search?session={other}", query="x", limit=1)
        assert (status, refusal["error"]) == (409, "wrong_interface")
    trajectory = folder.read("q1")
    assert trajectory is not None
    assert [call.name for call in trajectory.calls] == ["search", "read_document"]
    assert len(trajectory.tiers["surfaced"]) == len(DOCUMENTS) - 1
    assert trajectory.tiers["opened"] == ("mill",)


def test_the_size_of_what_is_read_at_once_is_that_of_the_tool():
    text = "\n".join(f"line {number}" for number in range(1, 101))
    store, backend = store_of({"d": text}), WordBackend({"d": text})
    settings = PiSeriniTools.like(RankedBrowsing(max_lines=200, max_bytes=60))
    shown, offset = [], 1
    while offset:
        call = settings.open(backend, store).call("read_document", {"docid": "d", "offset": offset})
        page = json.loads(call.text)
        assert len(page["text"].encode()) <= 60
        shown += page["text"].split("\n")
        offset = page.get("nextOffset", 0)
    assert shown == text.split("\n")
