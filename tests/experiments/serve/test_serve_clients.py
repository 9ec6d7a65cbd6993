"""The tools of Pi-Serini and BrowseComp-Plus for their own clients."""

import json

import pytest
from jsonschema import Draft202012Validator
from support.checkpoints import write_tokenizer
from support.search import WordBackend, store_of
from support.served import DOCUMENTS, serving

from soundingline.experiments.serve.foreign_tools import BrowseCompPlusTools, PiSeriniTools
from soundingline.toolkit.data import Hit, SearchResult
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.tokens import WORDS, load_tokenizer

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

        def search(**body):
            return check(server.ask("/pi-serini/search", **body), SEARCHED)

        def read(schema=READ, **body):
            return check(server.ask("/pi-serini/read", **body), schema)

        page = search(query="Grenholm mill", limit=1000)
        assert page["hits"][0]["docid"] == "mill" and page["hits"][0]["title"] == "Mill"
        assert "Brekke" in page["hits"][0]["snippet"] and page["hasMore"] is False
        assert len(page["hits"]) == len(DOCUMENTS) - 1
        some = search(query="mill", limit=2, offset=3)
        every = search(query="mill", limit=1000)["hits"]
        assert (some["hits"], some["nextOffset"]) == (every[2:4], 5)
        assert search(query="xyzzy", limit=9)["hits"] == []
        first, rest = read(docid="mill", limit=1), read(docid="mill", offset=2)
        assert first["text"] == "Grenholm Mill was built by Torvald Brekke."
        assert (first["nextOffset"], rest["text"]) == (2, "It is old.")
        assert (rest["truncated"], rest["returnedOffsetEnd"]) == (False, 2)
        empty, past = read(docid="empty"), read(docid="mill", offset=50)
        assert empty["text"] == past["text"] == "" and "returnedOffsetStart" not in past
        read(MISSING, docid="none")


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


# BrowseComp-Plus.


def test_the_searcher_returns_documents_with_their_titles():
    with serving() as server:
        hits = server.ask("/browsecomp-plus/search", query="Grenholm mill", k=2)
        text = f"Mill\n{DOCUMENTS['mill'].text}"
        assert hits[0] == {"docid": "mill", "score": 2.0, "text": text} and len(hits) == 2
        document = server.ask("/browsecomp-plus/get_document", docid="mill")
        assert document == {"docid": "mill", "text": text}
        assert server.post("/browsecomp-plus/get_document", docid="none") == (200, None)


class Odd:
    """Passages, and scores that JSON cannot hold."""

    def search(self, request):
        rows = [("m1%p0", float("inf")), ("m1%p1", float("nan")), ("m2%p0", 1.5)]
        return SearchResult([Hit(unit[:2], unit, 1, score) for unit, score in rows])


def test_ids_are_those_of_documents_and_scores_without_a_number_are_left_out():
    passages = {"m1%p0": "A mill.", "m1%p1": "Old.", "m2%p0": "Another."}
    store = store_of({"m1": "A mill. Old.", "m2": "Another."}, passages)
    session = BrowseCompPlusTools().open(Odd(), store)
    result = session.call("search", {"query": "x"})
    assert json.loads(result.text) == [
        {"docid": "m1", "snippet": "A mill."},
        {"docid": "m1", "snippet": "Old."},
        {"docid": "m2", "score": 1.5, "snippet": "Another."},
    ]
    assert list(result.call.shown) == list(passages)


def test_a_document_that_is_too_long_is_cut_and_says_so():
    text = "\n".join(f"line {number}" for number in range(100))
    store, backend = store_of({"d": text}), WordBackend({"d": text})
    session = BrowseCompPlusTools(get_document=True, max_bytes=200).open(backend, store)
    document = json.loads(session.call("get_document", {"docid": "d"}).text)
    assert document["truncated"] is True and text.startswith(document["text"])


def test_a_snippet_is_cut_by_the_tokenizer_that_is_named(tmp_path):
    path = str(write_tokenizer(tmp_path / "tokenizer.json"))
    text = "antidisestablishment kings of the king " * 60
    store, backend = store_of({"d": text}), WordBackend({"d": text})
    settings = BrowseCompPlusTools.like(TopK(k=1, max_tokens=16, tokenizer=path))
    result = settings.open(backend, store).call("search", {"query": "king"})
    tokens = load_tokenizer(path)
    assert (
        json.loads(result.text)[0]["snippet"]
        == tokens.truncate(text, 16)
        != WORDS.truncate(text, 16)
    )
    assert result.call.tokens == tokens.count(result.text)
