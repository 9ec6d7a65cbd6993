"""The TCP protocol of Pi-Serini's benchmark runner: one JSON line a request, one a reply.

Requests are `{"id", "type", ...}`; replies `{"id", "type": "response", "command", "success"}` with
`data` or `error`. Commands: `search`, `render_search_results`, `read_document` and `ping`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from soundingline.experiments.serving import flight
from soundingline.experiments.serving.errors import RequestRefused
from soundingline.experiments.serving.json_bodies import dump_json, finite, parse_json
from soundingline.experiments.serving.pi_serini import (
    PiSeriniTools,
    milliseconds,
    once_each,
    read_lines,
)
from soundingline.experiments.serving.service import Service
from soundingline.toolkit.data import SearchRequest, parent
from soundingline.toolkit.errors import is_number
from soundingline.toolkit.search.snippets import QueryTerms, first_match
from soundingline.toolkit.search.tool import MAX_CHARACTERS

HOST = "127.0.0.1"
_IDLE_SECONDS = 60.0
_GRACE = 5.0  # seconds that open requests have at the end
_MOST_CONNECTIONS = 512
_MOST_EXCERPTS = 1000
_ELLIPSIS = "..."

Command = Mapping[str, Any]


class RpcDoor:
    """Serves the protocol on 127.0.0.1. `retriever` are the settings that the ready line tells."""

    def __init__(
        self, service: Service, settings: PiSeriniTools, retriever: Mapping[str, Any]
    ) -> None:
        self._service = service
        self._settings = settings
        self._retriever = retriever
        self._began = time.perf_counter()
        self._init = milliseconds(service.began)
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._commands: Mapping[str, Callable[[Command], dict[str, Any]]] = {
            "search": self._search,
            "render_search_results": self._render,
            "read_document": self._read,
            "ping": lambda command: {"ok": True},
        }

    async def start(self, listener: socket.socket) -> asyncio.Server:
        """Serve the connections of a socket; the server of asyncio, to be closed."""
        most = self._service.options.max_request_bytes
        return await asyncio.start_server(self._serve, sock=listener, limit=most)

    async def close(self, server: asyncio.Server) -> None:
        """Close the server and its connections, each behind the request that is under way."""
        server.close()
        tasks = [task for task in self._open.values() if task is not None]
        for writer in self._open:
            writer.close()
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE)

    def ready_line(self, server: asyncio.Server) -> str:
        """The line that tells Pi-Serini's runner where to connect."""
        port = server.sockets[0].getsockname()[1]
        numbers = {name: self._retriever[name] for name in ("k1", "b") if name in self._retriever}
        return dump_json(
            {
                **{"type": "server_ready", "transport": "tcp", "host": HOST, "port": port},
                **({"bm25": numbers} if numbers else {}),
                "threads": self._service.options.threads,
                "timing_ms": {"init": self._init},
            }
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        writer.transport.set_write_buffer_limits(high=0)
        try:
            with suppress(OSError, asyncio.TimeoutError):
                if len(self._open) > _MOST_CONNECTIONS:
                    refusal = RequestRefused(503, "busy", "too many connections are open")
                    await self._send(writer, _refused(None, "unknown", str(refusal)))
                else:
                    await self._lines(reader, writer)
        finally:
            del self._open[writer]
            writer.close()

    async def _lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), _IDLE_SECONDS)
            except ValueError:  # longer than the limit; what follows it cannot be found
                most = self._service.options.max_request_bytes
                refusal = _refused(None, "unknown", f"a line has at most {most} bytes")
                await self._send(writer, refusal)
                return
            if not line:
                return
            if line.strip():
                await self._send(writer, await self._reply(line))

    async def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        """Send a reply; the connection of a client that does not read it is dropped."""
        in_flight = self._service.in_flight
        in_flight.hold(len(line))
        try:
            writer.write(line)
            await asyncio.wait_for(writer.drain(), flight.READ_SECONDS)
        except asyncio.TimeoutError:
            writer.transport.abort()
            raise
        finally:
            in_flight.give_back(len(line))

    async def _reply(self, line: bytes) -> bytes:
        identifier: Any = None
        name = "unknown"
        began = time.perf_counter()
        try:
            command = parse_json(line)
            if not isinstance(command, dict):
                raise RequestRefused(400, "wrong_body", "a request is a JSON object")
            number = command.get("id")
            identifier = number if isinstance(number, (int, float, str)) else None
            kind = command.get("type")
            name = kind if isinstance(kind, str) and len(kind) <= 100 else "unknown"
            serve = self._commands.get(name)
            if serve is None:
                known = ", ".join(self._commands)
                raise RequestRefused(400, "unknown_command", f"type must be one of: {known}")
            data = (
                serve(command)
                if name == "ping"
                else await self._service.run(lambda: serve(command))
            )
            timing = {"command": milliseconds(began), "server_uptime": milliseconds(self._began)}
            data["timing_ms"] = {**timing, "init": self._init}
            reply = _line(identifier, name, {"success": True, "data": data})
            if len(reply) > flight.CHUNK:
                self._service.in_flight.check(len(reply))
            return reply
        except RequestRefused as refusal:
            return _refused(identifier, name, str(refusal))

    def _search(self, command: Command) -> dict[str, Any]:
        query, k = _text(command, "query"), _count(command, "k", 5)
        mode = command.get("query_mode", "plain")
        if mode != "plain":
            raise RequestRefused(400, "wrong_mode", "search query_mode must be plain")
        if command.get("rerank_clues"):
            raise RequestRefused(400, "wrong_clues", "search takes no rerank_clues")
        depth = min(k, self._settings.depth)
        hits = once_each(
            self._service.backend.search(SearchRequest(query, depth=depth)).hits[:depth]
        )
        rows = [{"docid": hit.docid, "score": round(finite(hit.score) or 0.0, 3)} for hit in hits]
        return {"mode": "search", "query": query, "query_mode": "plain", "k": k, "results": rows}

    def _render(self, command: Command) -> dict[str, Any]:
        docids = command.get("docids")
        if not isinstance(docids, list) or len(docids) > _MOST_EXCERPTS:
            message = f"docids must be a list of at most {_MOST_EXCERPTS} texts"
            raise RequestRefused(400, "wrong_docids", message)
        characters = min(_count(command, "snippet_max_chars", 220), MAX_CHARACTERS)
        clues = command.get("highlight_clues") or []
        texts = (
            [clue.get("text") for clue in clues if isinstance(clue, dict)]
            if isinstance(clues, list)
            else []
        )
        words = " ".join(text for text in texts if isinstance(text, str))[:MAX_CHARACTERS]
        query = QueryTerms(words)
        terms = list(dict.fromkeys(words.casefold().split()))
        rows = [self._row(docid, query, terms, characters) for docid in docids]
        return {"mode": "render_search_results", "docids": docids, "results": rows}

    def _row(
        self, docid: object, query: QueryTerms, terms: list[str], characters: int
    ) -> dict[str, Any]:
        if not isinstance(docid, str) or not docid.strip():
            raise RequestRefused(400, "wrong_docids", "docids must be texts")
        try:
            document = self._service.store.document(parent(docid))
        except KeyError:
            missing = {"excerpt": "[Document not found]", "excerpt_truncated": False}
            return {"docid": docid, "title": None, "matched_terms": [], **missing}
        excerpt = first_match(query, document.text, characters)
        cut = (
            excerpt.replace("…", _ELLIPSIS)
            if excerpt[:1] == "…" or excerpt[-1:] == "…"
            else excerpt
        )
        lowered = document.text.casefold()
        return {
            "docid": docid,
            "title": document.title or None,
            "matched_terms": [term for term in terms if term in lowered],
            "excerpt": cut,
            "excerpt_truncated": cut != excerpt,
        }

    def _read(self, command: Command) -> dict[str, Any]:
        docid = _text(command, "docid")
        offset, limit = _count(command, "offset", 1), _count(command, "limit", 200)
        result = read_lines(self._service.store, docid, offset, limit, self._settings)
        if result is None:
            error = f"Document with docid {docid[:100]!r} not found"
            return {"mode": "read_document", "docid": docid, "found": False, "error": error}
        return {
            "mode": "read_document",
            **{"docid": result.docid, "found": True, "offset": offset, "limit": limit},
            "total_lines": result.total,
            "returned_line_start": offset if result.lines else 0,
            "returned_line_end": result.last if result.lines else 0,
            "truncated": result.following is not None,
            "next_offset": result.following,
            "text": "\n".join(result.lines),
        }


def _text(command: Command, name: str) -> str:
    value = command.get(name)
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_CHARACTERS:
        message = f"{name} must be a text that is not blank, of at most {MAX_CHARACTERS} characters"
        raise RequestRefused(400, "wrong_value", message)
    if not value.isascii() and value != value.encode(errors="replace").decode():
        raise RequestRefused(400, "wrong_value", f"{name} holds half of a surrogate pair")
    return value


def _count(command: Command, name: str, default: int) -> int:
    value = command.get(name)
    if value is None:
        return default
    if not is_number(value) or value != int(value) or not 1 <= value <= 10**9:
        raise RequestRefused(400, "wrong_value", f"{name} must be a whole number from 1")
    return int(value)


def _refused(identifier: Any, name: str, message: str) -> bytes:
    return _line(identifier, name, {"success": False, "error": message})


def _line(identifier: Any, name: str, rest: Mapping[str, Any]) -> bytes:
    head = {"id": identifier, "type": "response", "command": name}
    return (dump_json({**head, **rest}) + "\n").encode()
