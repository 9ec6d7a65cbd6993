"""Random requests, broken, idle and numerous clients, and clients that do not read: what they cost
the others, and what the server holds of them."""

import http.client
import json
import logging
import os
import random
import re
import socket
import string
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.assertions import until
from support.benchmarks import WordBackend, store_of
from support.needs import cases
from support.served import serving

from soundingline.experiments.serve import server as serve_server
from soundingline.toolkit.data import Document
from soundingline.toolkit.search import RankedBrowsing, TopK

# The whole count is for a quiet machine: SOUNDINGLINE_RANDOM_REQUESTS=10000.
REQUESTS = int(os.environ.get("SOUNDINGLINE_RANDOM_REQUESTS", "250"))
WORDS = ["mill", "search", "query", "docid", "session", "tool", "arguments", "reason", "offset"]
WORDS += ["limit", "answer", "", " ", "\x00", "\ud800", "é“", "%p1", "read_document", "x" * 12_000]
NUMBERS = [0, 1, -1, 5, 1.5, 1e308, 10**30, True, None]
START = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}
CALL = {"tool": "search", "arguments": {"reason": "r", "query": "mill"}}


def value(source, depth=0):
    """Any JSON value, one that a client could mean more often than not."""
    kind = source.random()
    if kind < 0.65 or depth > 4:
        return source.choice([*WORDS, *WORDS, *NUMBERS])
    if kind < 0.75:
        return [value(source, depth + 1) for _ in range(source.randrange(4))]
    return {source.choice(WORDS): value(source, depth + 1) for _ in range(source.randrange(4))}


def near(source, good):
    """A good request with something changed, left out or added."""
    fields = {
        name: value(source) if source.random() < 0.35 else part
        for name, part in good.items()
        if source.random() < 0.93
    }
    return {**fields, **({source.choice(WORDS): value(source)} if source.random() < 0.2 else {})}


def body(source, good):
    kind = source.random()
    if kind < 0.1:
        return source.randbytes(source.randrange(200))
    text = json.dumps(near(source, good) if kind < 0.8 else value(source))
    return text[: source.randrange(len(text) + 1)].encode() if kind < 0.2 else text.encode()


def test_random_requests_end_in_a_line_or_a_valid_reply(caplog):
    caplog.set_level(logging.WARNING)  # commands of earlier tests may have set another
    source = random.Random(1)
    with serving(max_sessions=10**6) as server:
        called, answering, closing_one = (server.service.open().handle for _ in range(3))
        requests = {
            "/open": {"interface": "tool"},
            "/question": {},
            "/call": {**CALL, "session": called},
            "/submit_answer": {"session": answering, "answer": "x", "confidence": 5},
            "/close": {"session": closing_one},
            "/browsecomp-plus/search": {"query": "mill", "k": 3},
            "/browsecomp-plus/get_document": {"docid": "mill"},
            "/pi-serini/search": {"query": "mill", "limit": 1000},
            "/pi-serini/read": {"docid": "mill", "offset": 1, "limit": 20},
        }
        described = server.get("/openapi.json")[1]["paths"]
        assert {path for path, methods in described.items() if "post" in methods} == set(requests)
        statuses = set()
        for _ in range(REQUESTS):
            path = source.choice(list(requests))
            status, reply = server.request("POST", path, body(source, requests[path]))
            content = json.loads(reply)
            statuses.add(status)
            if status == 200:
                continue
            assert 400 <= status < 500, (path, reply)
            assert set(content) == {"error", "message"}
            message = content["message"]
            assert message and "\n" not in message and len(message) < 2000
            assert not re.search(r"Traceback|File \"", message)
        assert {200, 400, 404} <= statuses
    assert not caplog.records


def mcp_body(source):
    call = {"name": "search", "arguments": {"query": "mill"}}
    method, params = source.choice(
        [("tools/call", near(source, call)), ("initialize", near(source, START)), ("ping", {})]
    )
    message = {"jsonrpc": "2.0", "id": source.choice([1, "a", 0]), "method": method}
    params = params if source.random() < 0.7 else value(source)
    return body(source, {**message, "params": params})


def test_random_messages_over_mcp_end_in_a_reply_and_leave_the_server_well(caplog):
    source = random.Random(2)
    accepted = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    modern = {"MCP-Protocol-Version": "2026-07-28"}
    with serving(TopK(), max_sessions=10**6) as server:
        for _ in range(REQUESTS):
            headers = {**accepted, **(modern if source.random() < 0.5 else {})}
            if source.random() < 0.1:
                headers["Mcp-Session-Id"] = source.choice(["x", "", "0" * 32])
            status, reply = server.request("POST", "/mcp", mcp_body(source), headers)
            assert 200 <= status < 500 and b"Traceback" not in reply, reply
        for path in ("/messages/", "/messages/?session_id=x", "/messages/a?b"):
            status, _ = server.request("POST", path, mcp_body(source))
            assert 400 <= status < 500
        assert server.get("/status")[0] == 200
    assert "Traceback" not in caplog.text and "crashed" not in caplog.text


def connected(port, buffer=4096):
    """A connection that takes few bytes before they are read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    return connection


def send(connection, method, path, body=b"", length=None, headers=""):
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}"
    size = len(body) if length is None else length
    head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    connection.sendall(head.encode() + body)


class SseClient:
    """A client over server-sent events that reads only where to post, its `path`."""

    def __init__(self, port) -> None:
        self._port = port
        self._connection = connected(port)
        send(self._connection, "GET", "/sse")
        heard = b""
        while (where := re.search(rb"data: (\S+)\r\n", heard)) is None:
            heard += self._connection.recv(4096)
        self.path = where[1].decode()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.leave()

    def post(self, content):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        with closing(connection):
            connection.request("POST", self.path, content, {"Content-Type": "application/json"})
            return connection.getresponse().status

    def send(self, method, params, identifier=None):
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        return self.post(
            json.dumps(message if identifier is None else {**message, "id": identifier}).encode()
        )

    def begin(self):
        assert self.send("initialize", START, 0) == 202
        assert self.send("notifications/initialized", {}) == 202

    def leave(self):
        self._connection.close()


def send_garbage(port):
    with closing(connected(port)) as connection:
        connection.sendall(os.urandom(500) + b"\r\n\r\n")


def reset_connection(port):
    with closing(connected(port)) as connection:
        send(connection, "POST", "/open", b"{", 99)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01" + bytes(7))


def send_half_messages(port):
    with SseClient(port) as listening:
        for address in (listening.path, "/mcp"):
            with closing(connected(port)) as connection:
                send(connection, "POST", address, b"{", 99, "Accept: */*\r\n")
                time.sleep(0.01)


def leave_stream(port):
    SseClient(port).leave()


def test_broken_clients_cost_the_others_nothing(caplog):
    breakers = (send_garbage, reset_connection, send_half_messages, leave_stream)
    with serving() as server:
        handle = server.ask("/open")["session"]
        with ThreadPoolExecutor(4) as pool:
            broken = [pool.submit(each, server.port) for _ in range(15) for each in breakers]
            for _ in range(15):
                assert server.ask("/call", session=handle, **CALL)["error"] == ""
            for each in broken:
                each.result(20)
        until(lambda: len(server.service.sessions) == 1)
        assert server.get("/status")[1]["sessions"] == 1
    assert "Traceback" not in caplog.text


def test_a_thousand_idle_clients_cost_the_others_nothing():
    def seconds(server, handle):
        times = []
        for _ in range(30):
            began = time.perf_counter()
            server.ask("/call", session=handle, **CALL)
            times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2]

    with serving(max_sessions=1001) as server, ExitStack() as connections:
        handle = server.ask("/open")["session"]
        alone = seconds(server, handle)
        for _ in range(1000):
            server.service.open()
        assert server.post("/open")[0] == 503
        for _ in range(100):
            connections.enter_context(SseClient(server.port))
        # Generous, because the machine may be busy; a cost for each session would be many times it.
        assert seconds(server, handle) < 3 * alone + 0.02


def test_names_of_strangers_reach_no_terminal(capfd):
    with serving() as server:
        server.request("GET", "/%1b%5b31m" + "".join(string.ascii_letters))
        server.request("POST", "/call", b'{"\x1b[31m": 1}')
    assert "\x1b" not in "".join(capfd.readouterr())


# Bounds.

MEGABYTE = 1_000_000
# More than the buffers of a socket hold, so that a client which does not read is noticed.
LARGE = 8 * MEGABYTE
LARGE_STORE = store_of({"large": Document("large", "", "mill " * (LARGE // 5))})
SEARCH = json.dumps({"query": "mill", "k": 1}).encode()
PATH = "/browsecomp-plus/search"


def serving_large(store=LARGE_STORE, interface=None, **options):
    backend = WordBackend({"large": "mill"})
    return serving(interface, backend=lambda qid: backend, store=store, **options)


def status_of(connection):
    return int(connection.recv(12).split()[1])


def test_the_connection_of_a_client_that_does_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(serve_server, "READ_SECONDS", 0.5)
    with serving_large() as server, closing(connected(server.port)) as client:
        send(client, "POST", PATH, SEARCH)
        until(lambda: server.server.server_state.connections)
        until(lambda: not server.server.server_state.connections)
        read = 0
        try:
            while part := client.recv(1 << 20):
                read += len(part)
        except ConnectionError:
            pass
        assert read < LARGE


def test_a_slow_client_that_reads_gets_the_whole_reply(monkeypatch):
    monkeypatch.setattr(serve_server, "READ_SECONDS", 2.0)
    with serving_large() as server, closing(connected(server.port, 100_000)) as client:
        began = time.monotonic()
        send(client, "POST", PATH, SEARCH)
        read = 0
        while read < LARGE:
            part = client.recv(100_000)
            assert part, "the connection was dropped"
            read += len(part)
            if time.monotonic() - began < 3.0:
                time.sleep(0.05)
        assert time.monotonic() - began > 3.0


def test_a_kept_connection_gets_a_reply_as_soon_as_it_is_written():
    """Where headers and body are sent apart, the body must not wait for an acknowledgement."""
    waits = []
    with serving() as server, closing(socket.create_connection(("127.0.0.1", server.port))) as peer:
        for _ in range(20):
            send(peer, "GET", "/status")
            heard = peer.recv(65_536)
            first = time.perf_counter()
            while b"}" not in heard:
                heard += peer.recv(65_536)
            waits.append(time.perf_counter() - first)
    # The system acknowledges after 40 ms. A busy machine delays some of the replies.
    assert min(waits[1:]) < 0.02


def test_more_connections_than_may_be_are_refused():
    with serving(max_sessions=1) as server, ExitStack() as stack:
        for _ in range(101):
            stack.enter_context(SseClient(server.port))
        late = stack.enter_context(closing(connected(server.port)))
        send(late, "GET", "/status")
        assert status_of(late) == 503
        stack.close()
        until(lambda: not server.server.server_state.connections)
        assert server.get("/status")[0] == 200


def test_an_sse_client_that_does_not_read_loses_its_connection(monkeypatch):
    """Its replies are pages of half a megabyte."""
    monkeypatch.setattr(serve_server, "READ_SECONDS", 0.5)
    call = {"name": "read_document", "arguments": {"reason": "r", "docid": "large"}}
    store = store_of({"large": Document("large", "", "mill " * (MEGABYTE // 10))})
    with (
        serving_large(store, RankedBrowsing(max_bytes=MEGABYTE)) as server,
        SseClient(server.port) as client,
        SseClient(server.port) as other,
    ):
        client.begin()
        other.begin()
        for number in range(1, 500):
            if client.send("tools/call", call, number) == 404:
                break
            assert other.send("ping", {}, number) == 202
            time.sleep(0.02)
        else:
            pytest.fail("it was never ended")
        assert other.send("tools/call", call, 1000) == 202


def test_a_session_without_a_run_keeps_no_pages():
    with serving() as server:
        handle = server.ask("/open")["session"]
        for _ in range(3):
            server.ask("/call", session=handle, **CALL)
        episode = server.service.sessions.get(handle).episode
        assert not episode.tool.calls and len(episode.messages) == 1
        assert "mill" in episode.tool.exposures.tiers["surfaced"]


def test_a_malformed_message_over_sse_is_one_short_line_of_the_log(caplog):
    bodies = [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"jsonrpc": "2.0"}',
        b"\x1b[31m",
        b'"' + b"x" * 90_000,
    ]
    with serving() as server, SseClient(server.port) as client:
        client.begin()
        caplog.clear()
        sent = [bodies[number % len(bodies)] for number in range(cases(20_000, 50))]
        assert {client.post(body) for body in sent} == {400}
        assert client.send("ping", {}, 1) == 202
    written = "\n".join(
        logging.Formatter("%(name)s: %(message)s").format(record)
        for record in caplog.records
        # Where the level is INFO, servers say that they end.
        if record.levelno >= logging.WARNING and not record.name.startswith("uvicorn")
    )
    assert written.count("a message was refused") == len(sent)
    assert len(written.splitlines()) == len(sent)
    assert max(map(len, written.splitlines())) < 300


def test_a_message_to_a_client_that_has_gone_is_no_defect(caplog):
    with serving() as server:
        for _ in range(cases(200, 10)):
            with SseClient(server.port) as client:
                client.begin()
                client.leave()
                statuses = [client.send("tools/list", {}, number) for number in range(5)]
                assert set(statuses) <= {202, 404}
    assert "Traceback" not in caplog.text and "a request failed" not in caplog.text


FIRST_EXCERPT = """
import gc, sys
from soundingline.experiments.serve.server import prepared_process
from soundingline.toolkit.search.snippets import (QueryTerms, best_window)
with prepared_process():
    before = len(gc.get_objects())
    best_window(QueryTerms("mill"), "the mill on the river " * 50, 100)
    sys.exit(len(gc.get_objects()) - before > 1000)
"""


def test_the_first_excerpt_leaves_nothing_that_garbage_collection_would_walk():
    """Importing and loading compiled code makes some hundred thousand objects."""
    root = Path(__file__).resolve().parents[3]
    process = subprocess.run([sys.executable, "-c", FIRST_EXCERPT], cwd=root, check=False)
    assert process.returncode == 0
