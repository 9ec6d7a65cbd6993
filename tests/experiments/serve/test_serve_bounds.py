"""Clients that do not read, too many of them, and messages that are none: what the server holds of
them is bounded, and what it writes to its log."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from contextlib import ExitStack, closing, contextmanager

import pytest
from effort import cases
from served import Served, serving, until
from toy_search import WordBackend, store_of

from soundingline.experiments.serve import http
from soundingline.toolkit.data import Document
from soundingline.toolkit.search import RankedBrowsing

MEGABYTE = 1_000_000
# More than the buffers of a socket hold, so that a client which does not read is noticed.
LARGE = 8 * MEGABYTE
LARGE_STORE = store_of({"large": Document("large", "", "mill " * (LARGE // 5))})
SEARCH = {"query": "mill", "k": 1}
START = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}


def large_backend(qid=""):
    return WordBackend({"large": "mill"})


def connected(port, buffer=4096):
    """A connection that takes few bytes before they are read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    return connection


def send(connection, method, path, body=None):
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)


def status_of(connection):
    return int(connection.recv(12).split()[1])


def read_all(connection):
    """All that is left to read, until the server ends the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 20):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


@pytest.fixture
def impatient(monkeypatch):
    """Clients have half a second to read."""
    monkeypatch.setattr(http, "READ_SECONDS", 0.5)


def test_replies_that_nobody_reads_are_bounded():
    with (
        serving(backend=large_backend, store=LARGE_STORE, max_bytes_in_flight=3 * LARGE) as server,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(closing(connected(server.port))) for _ in range(6)]
        for client in clients:
            send(client, "POST", "/browsecomp-plus/search", SEARCH)
        statuses = [status_of(client) for client in clients]
        assert sorted(statuses) == [200] * 2 + [503] * 4
        assert LARGE < server.service.in_flight.bytes <= 3 * LARGE
        refused = clients[statuses.index(503)]
        assert b'"error":"busy"' in refused.recv(1000)
        assert server.get("/status")[0] == 200  # Small requests and replies have their turn.
        stack.close()
        until(lambda: server.service.in_flight.bytes == 0)
        assert server.ask("/browsecomp-plus/search", **SEARCH)[0]["docid"] == "large"


@pytest.mark.usefixtures("impatient")
def test_the_connection_of_a_client_that_does_not_read_is_dropped():
    with (
        serving(backend=large_backend, store=LARGE_STORE) as server,
        closing(connected(server.port)) as client,
    ):
        send(client, "POST", "/browsecomp-plus/search", SEARCH)
        until(lambda: server.service.in_flight.bytes > LARGE)
        until(lambda: server.service.in_flight.bytes == 0)
        until(lambda: not server.server.server_state.connections)
        assert len(read_all(client)) < LARGE


def test_a_slow_client_that_reads_gets_the_whole_reply(monkeypatch):
    monkeypatch.setattr(http, "READ_SECONDS", 2.0)
    with (
        serving(backend=large_backend, store=LARGE_STORE) as server,
        closing(connected(server.port, 100_000)) as client,
    ):
        began = time.monotonic()
        send(client, "POST", "/browsecomp-plus/search", SEARCH)
        read = 0
        while read < LARGE:
            part = client.recv(100_000)
            assert part, "the connection was dropped"
            read += len(part)
            if time.monotonic() - began < 3.0:
                time.sleep(0.05)
        assert time.monotonic() - began > 3.0


def test_a_body_that_is_larger_than_what_may_be_in_flight_is_served_alone():
    with serving(backend=large_backend, store=LARGE_STORE, max_bytes_in_flight=1) as server:
        status, _ = server.request("POST", "/browsecomp-plus/search", json.dumps(SEARCH).encode())
        assert status == 200
        # The client may have the whole reply before the coroutine of the server gives it back.
        until(lambda: server.service.in_flight.bytes == 0)


def test_requests_whose_bodies_do_not_come_are_bounded_too():
    most = 1_000_000
    with serving(max_bytes_in_flight=5 * most // 2) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connected(server.port))) for _ in range(4)]
        lengths = (f"Content-Length: {most}", "Transfer-Encoding: chunked") * 2
        for number, (client, length) in enumerate(zip(clients, lengths, strict=True)):
            client.sendall(f"POST /open HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
            if number < 2:
                until(lambda held=(number + 1) * most: server.service.in_flight.bytes == held)
            else:
                assert status_of(client) == 503
        assert server.service.in_flight.bytes == 2 * most
        stack.close()
        until(lambda: server.service.in_flight.bytes == 0)


def test_more_connections_than_may_be_are_refused():
    with serving(max_sessions=1) as server, ExitStack() as stack:
        for _ in range(101):
            stack.enter_context(SseClient(server))
        late = stack.enter_context(closing(connected(server.port)))
        send(late, "GET", "/status")
        assert status_of(late) == 503
        stack.close()
        until(lambda: not server.server.server_state.connections)
        assert server.get("/status")[0] == 200


class SseClient:
    """A client over server-sent events that reads only where to post."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._connection = connected(server.port)
        send(self._connection, "GET", "/sse")
        heard = b""
        while (found := re.search(rb"data: (\S+)\r\n", heard)) is None:
            heard += self._connection.recv(4096)
        self._path = found[1].decode()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._connection.close()

    def post(self, content):
        headers = {"Content-Type": "application/json"}
        return self._server.request("POST", self._path, content, headers)[0]

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


@contextmanager
def serving_large_pages(**options):
    """A server whose documents are pages of half a megabyte."""
    interface = RankedBrowsing(max_bytes=MEGABYTE)
    store = store_of({"large": Document("large", "", "mill " * (MEGABYTE // 10))})
    with serving(interface, backend=large_backend, store=store, **options) as server:
        yield server


@pytest.mark.parametrize("most", [8 * MEGABYTE, 10**9])
def test_an_sse_client_that_does_not_read_loses_its_connection(most):
    """Its replies are too many, or have too many bytes."""
    call = {"name": "read_document", "arguments": {"reason": "r", "docid": "large"}}
    with (
        serving_large_pages(max_bytes_in_flight=most) as server,
        SseClient(server) as client,
        SseClient(server) as other,
    ):
        client.begin()
        other.begin()
        highest = 0
        for number in range(1, 200):
            if client.send("tools/call", call, number) == 404:
                break
            assert other.send("ping", {}, number) == 202
            time.sleep(0.01)
            highest = max(highest, server.service.in_flight.bytes)
        else:
            pytest.fail("it was never ended")
        assert MEGABYTE < highest <= min(most, 32 * MEGABYTE)
        until(lambda: server.service.in_flight.bytes == 0)
        assert other.send("tools/call", call, 1000) == 202


def test_a_session_without_a_run_keeps_no_pages():
    arguments = {"reason": "r", "query": "mill"}
    with serving() as server:
        handle = server.ask("/open")["session"]
        for _ in range(3):
            server.ask("/call", session=handle, tool="search", arguments=arguments)
        episode = server.service.sessions.get(handle).episode
        assert not episode.tool.calls and len(episode.messages) == 1
        assert "mill" in episode.tool.exposures.tiers["surfaced"]


def test_a_malformed_message_over_sse_is_one_short_line_of_the_log(
    caplog,
):
    bodies = [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"jsonrpc": "2.0"}',
        b"\x1b[31m",
        b'"' + b"x" * 90_000,
    ]
    with serving() as server, SseClient(server) as client:
        client.begin()
        caplog.clear()
        sent = [bodies[number % len(bodies)] for number in range(cases(20_000, 50))]
        assert {client.post(body) for body in sent} == {400}
        assert client.send("ping", {}, 1) == 202
    written = "\n".join(
        logging.Formatter("%(name)s: %(message)s").format(record)
        for record in caplog.records
        if not record.name.startswith("uvicorn")  # which says that it ends
    )
    assert written.count("a message was refused") == len(sent)
    assert len(written.splitlines()) == len(sent)
    assert max(map(len, written.splitlines())) < 300


def test_a_message_to_a_client_that_has_gone_is_no_defect(
    caplog,
):
    with serving() as server:
        for _ in range(cases(200, 10)):
            with SseClient(server) as client:
                client.begin()
                client.leave()
                statuses = [client.send("tools/list", {}, number) for number in range(5)]
                assert set(statuses) <= {202, 404}
    assert "Traceback" not in caplog.text and "a request failed" not in caplog.text
