"""Random requests, broken clients and idle ones at every door: nobody else pays for them."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import socket
import string
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from served import serving, until

from soundingline.toolkit.search import TopK

# The whole count is for a quiet machine: SOUNDINGLINE_RANDOM_REQUESTS=10000.
REQUESTS = int(os.environ.get("SOUNDINGLINE_RANDOM_REQUESTS", "250"))
WORDS = ["mill", "search", "query", "docid", "session", "tool", "arguments", "reason", "offset"]
WORDS += ["limit", "answer", "", " ", "\x00", "\ud800", "é“", "%p1", "read_document", "x" * 12_000]
NUMBERS = [0, 1, -1, 5, 1.5, 1e308, 10**30, True, None]


def value(source, depth=0):
    """Any JSON value, one that a client could mean more often than not."""
    kind = source.random()
    if kind < 0.45 or depth > 4:
        return source.choice(WORDS)
    if kind < 0.65:
        return source.choice(NUMBERS)
    if kind < 0.75:
        return [value(source, depth + 1) for _ in range(source.randrange(4))]
    return {source.choice(WORDS): value(source, depth + 1) for _ in range(source.randrange(4))}


def near(source, good):
    """A good request with something changed, left out or added."""
    fields = dict(good)
    for name in list(fields):
        if source.random() < 0.35:
            fields[name] = value(source)
        elif source.random() < 0.1:
            del fields[name]
    if source.random() < 0.2:
        fields[source.choice(WORDS)] = value(source)
    return fields


def body(source, good):
    kind = source.random()
    if kind < 0.1:
        return source.randbytes(source.randrange(200))
    text = json.dumps(near(source, good) if kind < 0.8 else value(source))
    return text[: source.randrange(len(text) + 1)].encode() if kind < 0.2 else text.encode()


def check_line(text):
    """One line for a person, without a traceback."""
    assert text and "\n" not in text and len(text) < 2000, text
    assert not re.search(r"Traceback|File \"", text), text


def goods(server):
    """A good request of each endpoint."""
    handle = server.service.open
    arguments = {"reason": "r", "query": "mill", "limit": 3}
    requests = {
        "/open": {"interface": "tool"},
        "/question": {},
        "/call": {"tool": "search", "arguments": arguments},
        "/submit_answer": {"answer": "x", "explanation": "y", "confidence": 5},
        "/close": {},
        "/browsecomp-plus/search": {"query": "mill", "k": 3},
        "/browsecomp-plus/get_document": {"docid": "mill"},
        "/pi-serini/search": {"query": "mill", "limit": 1000},
        "/pi-serini/read": {"docid": "mill", "offset": 1, "limit": 20},
    }
    for path in ("/call", "/submit_answer", "/close"):
        requests[path]["session"] = handle().handle
    return requests


def test_random_requests_end_in_a_line_or_a_valid_reply(caplog):
    caplog.set_level(logging.WARNING)  # commands of earlier tests may have set another
    source = random.Random(1)
    with serving(max_sessions=10**6) as server:
        requests = goods(server)
        described = server.get("/openapi.json")[1]["paths"]
        posts = [path for path, methods in described.items() if "post" in methods]
        assert set(posts) == set(requests)
        statuses = set()
        for _ in range(REQUESTS):
            path = source.choice(posts)
            status, reply = server.request("POST", path, body(source, requests[path]))
            content = json.loads(reply)
            statuses.add(status)
            if status == 200:
                continue
            assert 400 <= status < 500, (path, reply)
            assert set(content) == {"error", "message"}
            check_line(content["message"])
        assert {200, 400, 404} <= statuses
    assert not caplog.records


def rpc_message(source, method, params):
    message = {"jsonrpc": "2.0", "id": source.choice([1, "a", 0]), "method": method}
    return {**message, "params": params}


def mcp_body(source):
    call = {"name": "search", "arguments": {"query": "mill"}}
    start = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    method, params = source.choice(
        [("tools/call", near(source, call)), ("initialize", near(source, start)), ("ping", {})]
    )
    message = rpc_message(source, method, params if source.random() < 0.7 else value(source))
    return body(source, message)


def test_random_messages_over_mcp_end_in_a_reply_and_leave_the_server_well(
    caplog,
):
    source = random.Random(2)
    accepted = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    modern = {"MCP-Protocol-Version": "2026-07-28"}
    with serving(TopK(), max_sessions=10**6) as server:
        for _ in range(REQUESTS):
            headers = {**accepted, **(modern if source.random() < 0.5 else {})}
            if source.random() < 0.1:
                headers["Mcp-Session-Id"] = source.choice(["x", "", "0" * 32])
            status, reply = server.request("POST", "/mcp", mcp_body(source), headers)
            assert 200 <= status < 500, reply
            assert b"Traceback" not in reply
        for path in ("/messages/", "/messages/?session_id=x", "/messages/a?b"):
            status, _ = server.request("POST", path, mcp_body(source))
            assert 400 <= status < 500
        assert server.get("/status")[0] == 200
    assert "Traceback" not in caplog.text and "crashed" not in caplog.text


def open_sse(port):
    """A connection that then says nothing, and the path where to post its messages."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
    heard = b""
    while (found := re.search(rb"data: (\S+)\r\n", heard)) is None:
        heard += connection.recv(4096)
    return connection, found[1].decode()


@pytest.fixture
def breakers():
    """What broken clients do to a port."""

    def garbage(port):
        with closing(socket.create_connection(("127.0.0.1", port))) as connection:
            connection.sendall(os.urandom(500) + b"\r\n\r\n")

    def killed(port):
        with closing(socket.create_connection(("127.0.0.1", port))) as connection:
            connection.sendall(
                b"POST /open HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
            )
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # a reset in place of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def half_message(port):
        listening, path = open_sse(port)
        with closing(listening):
            for address in (path, "/mcp"):
                with closing(socket.create_connection(("127.0.0.1", port))) as connection:
                    head = f"POST {address} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
                    head += "Content-Type: application/json\r\nAccept: */*\r\n\r\n{"
                    connection.sendall(head.encode())
                    time.sleep(0.01)

    def half_sse(port):
        connection, _ = open_sse(port)
        connection.close()

    return {
        "garbage": garbage,
        "killed": killed,
        "half_message": half_message,
        "half_sse": half_sse,
    }


def test_broken_clients_cost_the_others_nothing(breakers, caplog):
    search = {"tool": "search", "arguments": {"reason": "r", "query": "mill"}}
    with serving() as server:
        handle = server.ask("/open")["session"]
        with ThreadPoolExecutor(4) as pool:
            broken = [
                pool.submit(breaker, server.port)
                for _ in range(15)
                for breaker in breakers.values()
            ]
            for _ in range(15):
                assert server.ask("/call", session=handle, **search)["error"] == ""
            for each in broken:
                each.result(20)
        until(lambda: len(server.service.sessions) == 1)
        assert server.get("/status")[1]["sessions"] == 1
    assert "Traceback" not in caplog.text


def test_a_thousand_idle_clients_cost_the_others_nothing():
    search = {"tool": "search", "arguments": {"reason": "r", "query": "mill"}}

    def seconds(server, handle):
        times = []
        for _ in range(30):
            began = time.perf_counter()
            server.ask("/call", session=handle, **search)
            times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2]

    with serving(max_sessions=1001) as server, Connections() as connections:
        handle = server.ask("/open")["session"]
        alone = seconds(server, handle)
        for _ in range(1000):
            server.service.open()
        assert server.post("/open")[0] == 503
        for _ in range(100):
            connections.add(open_sse(server.port)[0])
        # Generous, because the machine may be busy; a cost for each session would be many times it.
        assert seconds(server, handle) < 3 * alone + 0.02


class Connections:
    """Open connections that are closed together."""

    def __init__(self) -> None:
        self._open = []

    def add(self, connection):
        self._open.append(connection)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for connection in self._open:
            connection.close()


def test_names_of_strangers_reach_no_terminal(capfd):
    with serving() as server:
        server.request("GET", "/%1b%5b31m" + "".join(string.ascii_letters))
        server.request("POST", "/call", b'{"\x1b[31m": 1}')
    assert "\x1b" not in "".join(capfd.readouterr())
