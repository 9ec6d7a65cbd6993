"""The JSON interface with the run that it records, and the tools of Pi-Serini and BrowseComp-Plus
for their own clients."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from jsonschema import Draft202012Validator
from support.assertions import until
from support.benchmarks import WordBackend, store_of
from support.checkpoints import write_tokenizer
from support.documents import ROOT, code_blocks
from support.odd_texts import LONE
from support.served import DOCUMENTS, STORE, TOPICS, plain_backend, serving

from soundingline.experiments.serve import ServerOptions
from soundingline.experiments.serve.foreign_tools import BrowseCompPlusTools, PiSeriniTools
from soundingline.experiments.serve.server import make_service
from soundingline.experiments.serve.sessions import QuestionQueue
from soundingline.toolkit.data import Hit, SearchResult
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.tokens import WORDS, load_tokenizer

PATHS = ["/status", "/tools", "/open", "/question", "/call", "/submit_answer", "/close"]


PATHS += ["/browsecomp-plus/search", "/browsecomp-plus/get_document"]


PATHS += ["/pi-serini/search", "/pi-serini/read"]


SEARCH = {"tool": "search", "arguments": {"reason": "r", "query": "Grenholm mill"}}


def test_a_session_over_http_is_the_session_that_an_agent_of_ours_has():
    arguments = {"reason": "r", "query": "mill"}
    page = {"reason": "r", "search_id": "s1", "offset": 6, "limit": None}
    direct = RankedBrowsing().open(plain_backend(), STORE)
    with serving() as server:
        opened = server.ask("/open")
        handle = opened["session"]
        assert opened["tools"] == direct.specs() == server.get("/tools")[1]["tools"]
        for tool, call in (("search", arguments), ("read_search_results", page)):
            reply = server.ask("/call", session=handle, tool=tool, arguments=call)
            expected = direct.call(tool, call)
            assert (reply["text"], reply["error"]) == (expected.text, "")
            assert reply["shown"] == list(expected.call.shown)
        wrong = server.ask("/call", session=handle, tool="search", arguments={"reason": "r"})
        assert wrong["error"] == "missing_argument"
        assert server.ask("/close", session=handle) == {"closed": True}
        status, refusal = server.post("/call", session=handle, **SEARCH)
        assert (status, refusal["error"]) == (404, "unknown_session")


def test_a_request_with_lone_surrogates_is_one_without_them(plain):
    for text, valid in LONE.values():
        pages = []
        for query in (f"mill {text}", f"mill {valid}"):
            arguments = {"reason": "", "query": query}
            session = plain.ask("/open")["session"]
            pages.append(plain.ask("/call", session=session, tool="search", arguments=arguments))
        assert pages[0]["text"] == pages[1]["text"] and f'"mill {valid}"' in pages[0]["text"]


def test_the_documented_client_answers_every_question(tmp_path, capsys):
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    (client,) = (block.content for block in code_blocks(page) if block.language == "python")
    folder = RunFolder(tmp_path / "run")
    with serving(folder=folder) as server:
        exec(client.replace("http://127.0.0.1:8000", server.url), {})
    assert set(folder.statuses().values()) == {"completed"}
    assert len(folder.statuses()) == len(TOPICS)
    assert "docid=mill" in capsys.readouterr().out


def test_each_answered_question_is_a_trajectory_of_the_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with serving(folder=folder) as server:
        question = server.ask("/question")
        assert (question["qid"], question["question"]) == TOPICS[0]
        handle = question["session"]
        server.ask("/call", session=handle, **SEARCH)
        read = {"reason": "r", "docid": "mill", "offset": None, "limit": None}
        server.ask("/call", session=handle, tool="read_document", arguments=read)
        answer = {"answer": "Torvald Brekke", "explanation": "So says [mill].", "confidence": 80}
        result = server.ask("/submit_answer", session=handle, **answer)
        assert result == {"exact": "Torvald Brekke", "confidence": 80, "citations": ["mill"]}
        assert folder.statuses() == {"q1": "completed"}  # on disk when the client is told
        assert server.ask("/question", session=handle)["qid"] == TOPICS[1].qid
    trajectory = folder.read("q1")
    assert [call.name for call in trajectory.calls] == ["search", "read_document"]
    assert set(trajectory.calls[0].ranking) == set(DOCUMENTS) - {"empty"}
    assert trajectory.tiers["opened"] == trajectory.tiers["cited"] == ("mill",)
    assert [each.tier for each in trajectory.exposures][-2:] == ["opened", "cited"]
    roles = [message["role"] for message in trajectory.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_two_clients_never_work_on_the_same_question(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with serving(folder=folder) as server, ThreadPoolExecutor(8) as pool:
        questions = list(pool.map(lambda _: server.ask("/question"), range(8)))
        qids = [each["qid"] for each in questions if each["qid"]]
        assert sorted(qids) == sorted(topic.qid for topic in TOPICS)
        rest = [each for each in questions if each["qid"] is None]
        assert {each["session"] for each in rest} == {None}
        again = server.ask("/question", session=questions[0]["session"] or questions[1]["session"])
        assert again["under_way"] == 3


def test_the_question_of_a_closed_or_idle_session_is_handed_out_again(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with serving(folder=folder, topics=TOPICS[:1], idle_seconds=0.4) as server:
        first = server.ask("/question")
        server.ask("/call", session=first["session"], **SEARCH)
        server.ask("/close", session=first["session"])
        second = server.ask("/question")
        assert second["qid"] == first["qid"]
        until(lambda: len(server.service.sessions) == 0)
        assert server.ask("/question")["qid"] == first["qid"]
    assert folder.statuses() == {}
    assert not folder.queries.exists() or not list(folder.queries.iterdir())


def test_a_resumed_run_asks_only_what_is_left(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with serving(folder=folder) as server:
        handle = server.ask("/question")["session"]
        server.ask("/submit_answer", session=handle, answer="x")
    with serving(folder=folder) as server:
        qids = [server.ask("/question")["qid"] for _ in range(3)]
    assert qids == [TOPICS[1].qid, TOPICS[2].qid, None]


def test_what_would_escape_the_record_is_refused(tmp_path):
    with serving(folder=RunFolder(tmp_path / "run")) as server:
        handle = server.ask("/open")["session"]
        assert server.post("/call", session=handle, **SEARCH)[1]["error"] == "no_question"
        for path, body in (
            ("/browsecomp-plus/search", {"query": "mill"}),
            ("/browsecomp-plus/get_document", {"docid": "mill"}),
            ("/pi-serini/search", {"query": "mill", "limit": 5}),
            ("/pi-serini/read", {"docid": "mill"}),
        ):
            assert server.post(path, **body)[1]["error"] == "recorded", path


@pytest.fixture(scope="module")
def plain():
    """A server without a run."""
    with serving() as server:
        yield server


def test_without_a_run_there_are_no_questions(plain):
    assert plain.post("/question")[1]["error"] == "no_run"
    handle = plain.ask("/open")["session"]
    assert plain.post("/submit_answer", session=handle, answer="x")[1]["error"] == "no_run"


class Gate:
    """A backend whose search waits until the gate opens, for queries that say so."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = threading.Semaphore(0)

    def search(self, request):
        if "slow" in request.query:
            self.waiting.release()
            assert self.open.wait(20)
        if "broken" in request.query:
            raise RuntimeError("the disk is on fire")
        if "bad" in request.query:
            raise InputError("the index is gone", do="build it")
        return SearchResult([Hit("mill", "mill", 1, 1.0)])


def query(text):
    return {"tool": "search", "arguments": {"reason": "r", "query": text}}


def test_a_slow_query_holds_up_its_own_session_only():
    gate = Gate()
    with serving(backend=lambda qid: gate) as server, ThreadPoolExecutor(2) as pool:
        slow, fast = server.ask("/open")["session"], server.ask("/open")["session"]
        waiting = pool.submit(server.ask, "/call", session=slow, **query("slow"))
        assert gate.waiting.acquire(timeout=10)
        assert "docid=mill" in server.ask("/call", session=fast, **query("fast"))["text"]
        behind = pool.submit(server.ask, "/call", session=slow, **query("next"))
        assert not waiting.done() and not behind.done()
        gate.open.set()
        assert "search_id=s1" in waiting.result(10)["text"]
        assert "search_id=s2" in behind.result(10)["text"]


def test_a_session_that_is_closed_during_a_call_gives_its_question_back_behind_it(tmp_path):
    gate, folder = Gate(), RunFolder(tmp_path / "run")
    with serving(folder=folder, topics=TOPICS[:1], backend=lambda qid: gate) as server:
        with ThreadPoolExecutor(1) as pool:
            handle = server.ask("/question")["session"]
            call = pool.submit(server.post, "/call", session=handle, **query("slow"))
            assert gate.waiting.acquire(timeout=10)
            server.ask("/close", session=handle)
            assert server.ask("/question")["qid"] is None
            gate.open.set()
            call.result(10)
        until(lambda: server.get("/status")[1]["questions"]["waiting"] == 1)


def test_a_broken_pipeline_ends_its_question_as_failed_and_nothing_else(tmp_path, caplog):
    gate, folder = Gate(), RunFolder(tmp_path / "run")
    with serving(folder=folder, backend=lambda qid: gate) as server:
        handle, other = (server.ask("/question")["session"] for _ in range(2))
        status, refusal = server.post("/call", session=handle, **query("broken"))
        assert (status, refusal["error"]) == (500, "pipeline")
        assert "fire" not in refusal["message"] and "\n" not in refusal["message"]
        assert "the disk is on fire" in caplog.text
        assert server.post("/call", session=handle, **query("x"))[1]["error"] == "no_question"
        handle = server.ask("/question")["session"]
        status, refusal = server.post("/call", session=handle, **query("bad"))
        assert (status, refusal["message"]) == (500, "the index is gone. build it.")
        server.ask("/call", session=other, **query("x"))
        server.ask("/submit_answer", session=other, answer="x")
    failed = folder.read(TOPICS[0].qid)
    assert failed.status == "failed" and "the disk is on fire" in failed.traceback
    assert [topic.qid for topic in folder.pending(TOPICS)] == [TOPICS[0].qid, TOPICS[2].qid]


def test_sessions_calls_bodies_and_results_are_bounded():
    with serving(max_sessions=2, max_calls=2, max_request_bytes=300) as server:
        handle, _ = (server.ask("/open")["session"] for _ in range(2))
        assert server.post("/open")[1]["error"] == "too_many_sessions"
        server.ask("/close", session=handle)
        handle = server.ask("/open")["session"]
        for _ in range(2):
            server.ask("/call", session=handle, **SEARCH)
        assert server.post("/call", session=handle, **SEARCH)[0] == 429
        assert server.post("/open", interface="x" * 300)[0] == 413
        chunked = {"Transfer-Encoding": "chunked"}
        body = b"FA\r\n" + b"x" * 250 + b"\r\n"
        status, reply = server.request("POST", "/open", body * 2 + b"0\r\n\r\n", chunked)
        assert (status, json.loads(reply)["error"]) == (413, "too_large")
    with serving(TopK(max_tokens=None), max_result_bytes=60) as server:
        status, refusal = server.post("/browsecomp-plus/search", query="mill", k=8)
        assert (status, refusal["error"]) == (500, "too_large")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/call", b"{", 400, "no_json"),
        ("/call", b"[" * 100_000, 400, "no_json"),
        ("/call", b'{"session": NaN}', 400, "wrong_body"),
        ("/call", b"\xff\xfe", 400, "no_json"),
        ("/call", b"{}", 400, "wrong_body"),
        ("/open", b'{"interface": "x"}', 400, "unknown_interface"),
        ("/open", b'{"more": 1}', 400, "wrong_body"),
        *[(path, b"[]", 400, "wrong_body") for path in PATHS[2:]],
        ("/open", b'{"interface": 5}', 400, "wrong_body"),
        ("/call", b'{"session": "", "tool": "x", "arguments": []}', 400, "wrong_body"),
        ("/call", b'{"session": "x", "tool": "x", "arguments": {}}', 404, "unknown_session"),
        ("/close", b'{"session": "%s"}' % (b"x" * 5000), 404, "unknown_session"),
        ("/submit_answer", b'{"session": "", "answer": "", "confidence": 101}', 400, "wrong_body"),
        ("/submit_answer", b'{"session": "", "answer": "", "confidence": true}', 400, "wrong_body"),
        ("/browsecomp-plus/search", b'{"query": ""}', 400, "wrong_body"),
        ("/browsecomp-plus/search", b'{"query": "x", "k": 0}', 400, "wrong_body"),
        ("/browsecomp-plus/search", b'{"query": "x", "k": 1001}', 400, "wrong_body"),
        ("/browsecomp-plus/search", b'{"query": "x", "k": true}', 400, "wrong_body"),
        ("/browsecomp-plus/get_document", b'{"docid": 5}', 400, "wrong_body"),
        ("/nothing", b"", 404, "unknown_path"),
        ("/openapi.json", b"", 405, "wrong_method"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(plain, path, body, status, code):
    actual, reply = plain.request("POST", path, body)
    refusal = json.loads(reply)
    assert (actual, refusal["error"]) == (status, code)
    assert "\n" not in refusal["message"] and len(refusal["message"]) < 500
    assert code != "no_json" or "JSON" in refusal["message"]


def test_a_body_is_json_and_may_be_absent_where_all_of_it_has_defaults(plain):
    assert plain.request("POST", "/open")[0] == 200
    for kind in ("application/x-www-form-urlencoded", "text/plain"):  # urllib sends the first one
        status, reply = plain.request("POST", "/open", b"{}", {"Content-Type": kind})
        assert status == 400 and "Content-Type: application/json" in json.loads(reply)["message"]


def test_arguments_that_no_tool_could_take_are_refused(plain):
    handle = plain.ask("/open")["session"]
    for value in ("NaN", "[" * 900 + "]" * 900):
        text = f'{{"session": "{handle}", "tool": "search", "arguments": {{"query": {value}}}}}'
        status, reply = plain.request("POST", "/call", text.encode())
        assert (status, json.loads(reply)["error"]) == (400, "wrong_body")


def test_another_address_needs_a_token_and_every_request_carries_it():
    with pytest.raises(InputError, match="SOUNDINGLINE_TOKEN"), serving(host="0.0.0.0"):
        pass
    with serving(host="0.0.0.0", token="s3cret") as server:
        assert server.get("/status")[0] == 200
        for wrong in ("Bearer wrong", "", "Basic czNjcmV0", "Bearer \xff"):
            for path in ("/", "/status", "/mcp", "/openapi.json"):
                assert server.request("GET", path, headers={"Authorization": wrong})[0] == 401


def test_each_endpoint_is_described_with_its_refusals(plain):
    description = plain.get("/openapi.json")[1]
    assert description["openapi"].startswith("3.1") and set(description["paths"]) == set(PATHS)
    for path in PATHS:
        ((method, operation),) = description["paths"][path].items()
        assert set(operation["responses"]) == {"200", "default"} and operation["description"]
        assert method == "post" or plain.get(path)[0] == 200
    status, page = plain.request("GET", "/")
    assert status == 200 and b"/openapi.json" in page


def test_a_page_of_somebody_else_reaches_nothing(plain):
    other = f"127.0.0.1:{plain.port - 1}"
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{plain.port}"},
        {"Host": other},
        {"Host": "127.0.0.1:x"},
        {"Origin": "http://evil.example"},
        {"Origin": f"http://evil.example:{plain.port}"},
        {"Origin": f"http://{other}"},
        {"Origin": "http://localhost"},
        {"Origin": "https://localhost"},
        {"Origin": "null"},
    ):
        status, reply = plain.request("GET", "/status", headers=headers)
        assert (status, json.loads(reply)["error"]) == (403, "not_local")
    local = {"Host": f"localhost:{plain.port}", "Origin": f"http://127.0.0.1:{plain.port}"}
    for headers in (local, {"Host": "localhost"}):  # Simple clients leave the port out.
        assert plain.request("GET", "/status", headers=headers)[0] == 200


def test_an_answer_that_cannot_be_written_can_be_sent_again(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    write = folder.write

    def full(trajectory):
        raise InputError("the disk is full")

    with serving(folder=folder) as server:
        handle = server.ask("/question")["session"]
        monkeypatch.setattr(folder, "write", full)
        status, refusal = server.post("/submit_answer", session=handle, answer="x")
        assert (status, refusal["error"]) == (507, "not_written")
        monkeypatch.setattr(folder, "write", write)
        text = "Explanation: so\nExact Answer: Brekke\nConfidence: 55%"  # is taken as it is
        result = server.ask("/submit_answer", session=handle, answer=text)
        assert (result["exact"], result["confidence"]) == ("Brekke", 55)
    assert len(folder.read("q1").messages) == 2


def test_an_answer_is_recorded_although_its_client_has_gone(tmp_path):
    folder = RunFolder(tmp_path / "run")

    async def answer_and_go():
        service = make_service(
            RankedBrowsing(), plain_backend, STORE, ServerOptions(), questions=questions
        )
        session = service.sessions.get((await service.next_question(None))["session"])
        with anyio.CancelScope() as connection:
            connection.cancel()
            await service.submit(session, "x")
        assert session.topic is None and questions.counts == {"waiting": 2, "under_way": 0}

    with folder.writing({"fingerprints": {}}):
        questions = QuestionQueue(folder, TOPICS)
        asyncio.run(answer_and_go())
    assert folder.statuses() == {"q1": "completed"}


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
    assert "text a1" in hits[0]["snippet"] and hits[0]["snippetTruncated"] is False
    assert list(result.call.ranking) == ["a%p1", "b%p0", "a%p0", "a%p2"]
    assert session.exposures.tiers["surfaced"] == ("a", "b")
    assert session.exposures.tiers["previewed"] == ()  # the client pages by itself


@pytest.mark.parametrize("excerpt", ["first_match", "window"])
def test_a_row_tells_that_its_excerpt_is_cut(excerpt):
    store = store_of({"a": f"mill {'river ' * 80}", "b": "mill"})
    session = PiSeriniTools(excerpt=excerpt).open(WordBackend({"a": "mill", "b": "mill"}), store)
    hits = json.loads(session.call("search", {"query": "mill"}).text)["hits"]
    assert {hit["docid"]: hit["snippetTruncated"] for hit in hits} == {"a": True, "b": False}


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
