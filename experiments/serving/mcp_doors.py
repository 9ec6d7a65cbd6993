"""MCP over standard streams, server-sent events and streamable HTTP.

A connection has a session of its own. Some clients open a connection for each call, and the newest
revision of the protocol has none. For them, search ids carry the handle of their session, over HTTP
and where no run is recorded. In a run, they send the handle as the argument `session`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import anyio
import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from soundingline.experiments.serving.answers import HOW, answer_text
from soundingline.experiments.serving.api import handout, submitted
from soundingline.experiments.serving.errors import RequestRefused
from soundingline.experiments.serving.flight import BytesInFlight
from soundingline.experiments.serving.service import Service
from soundingline.experiments.serving.sessions import ServedSession
from soundingline.toolkit.errors import is_number
from soundingline.toolkit.runs.manifest import version_of

NAME = "search-server"
_CONNECTION_HEADER = "mcp-session-id"
_MOST_REPLIES = 32  # that wait for one SSE client; a session takes fewer calls at a time
_HANDLE = {"type": "string", "description": "The session's handle."}
_OWN_TOOLS = ("question", "submit_answer")
_READS = types.ToolAnnotations(read_only_hint=True)
_WRITES = types.ToolAnnotations(read_only_hint=False, destructive_hint=False)


class McpTools:
    """The tools of one interface for MCP clients, and in a run `question` and `submit_answer`.

    `handles`: whether tools show the argument `session` in a run; they take it in any case.
    `named`: whether search ids carry the session's handle where there is no run.
    """

    def __init__(
        self, service: Service, interface: str, *, handles: bool = False, named: bool = False
    ) -> None:
        self._service = service
        self._interface = interface
        self._handles = handles and service.questions is not None
        self._named = named and service.questions is None
        self._specs = service.specs(interface)
        self.tools = [self._tool(spec) for spec in self._specs] + self._own()

    def server(self, lifespan: Any = None) -> Server[Any]:
        """A server of the SDK. What its `lifespan` gives is the connection's name."""
        options = {} if lifespan is None else {"lifespan": lifespan}
        return Server(
            NAME,
            version=version_of("soundingline"),
            on_list_tools=self._list,
            on_call_tool=self._call,
            **options,
        )

    @asynccontextmanager
    async def connection(self, server: Server[Any]) -> AsyncIterator[str]:
        """The lifespan of a server of one connection, with which its session ends."""
        name = uuid4().hex
        try:
            yield name
        finally:
            self._service.sessions.leave_connection(name)

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self.tools)

    async def _call(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            text, failed = await self._served(
                _connection(context), params.name, dict(params.arguments or {})
            )
            most = self._service.options.max_result_bytes
            if len(text) > most:
                raise RequestRefused(500, "too_large", f"the result is larger than {most}")
        except RequestRefused as refusal:
            text, failed = str(refusal), True
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], is_error=failed)

    async def _served(
        self, connection: str, name: str, arguments: dict[str, Any]
    ) -> tuple[str, bool]:
        """The text of a call, and whether it failed."""
        service = self._service
        handle = arguments.pop("session", None)
        session = service.sessions.get(handle) if handle is not None else None
        session = session or service.of_search_id(arguments.get("search_id"))
        session = session or self._of(connection)
        if name == "question" and service.questions is not None:
            question = await service.question(session, self._interface, connection)
            return json.dumps(handout(question), ensure_ascii=False), False
        if session is None and self._named:
            return await self._served_once(name, arguments)
        if session is None:
            raise RequestRefused(
                400,
                "no_session",
                "this connection has no session of its own: call question first, and send the "
                "session that it gives with each call",
            )
        if name == "submit_answer" and service.questions is not None:
            result = await submitted(service, session, _answer(arguments))
            return json.dumps(result, ensure_ascii=False), False
        called = await service.call(session, name, arguments)
        return called.text, called.failed

    async def _served_once(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """A call without a connection, in a session that only its search ids lead back to."""
        session = self._service.open(self._interface, named=True)
        try:
            called = await self._service.call(session, name, arguments)
        finally:
            self._service.sessions.leave(session)
        return called.text, called.failed

    def _of(self, connection: str) -> ServedSession | None:
        if not connection:
            return None
        return self._service.of_connection(connection, self._interface, named=self._named)

    def _tool(self, spec: Mapping[str, Any]) -> types.Tool:
        """A tool of the interface. What strict function calling writes as required and nullable is
        optional here, because many clients reject a schema with a list of types."""
        parameters = dict(spec["parameters"])
        given = parameters["properties"]
        needed = [name for name in parameters["required"] if not _nullable(given[name])]
        properties = {name: _without_null(schema) for name, schema in given.items()}
        if self._handles:
            properties["session"] = _HANDLE
        return types.Tool(
            name=spec["name"],
            description=spec["description"],
            input_schema={**parameters, "properties": properties, "required": needed},
            annotations=_READS,
        )

    def _own(self) -> list[types.Tool]:
        handle = {"session": _HANDLE} if self._handles else {}
        tools = []
        if self._service.questions is not None:
            about = "The next question to answer, and the session to work on it, as JSON."
            tools.append(_own_tool("question", about, handle, ()))
            fields = {
                **handle,
                "answer": {"type": "string", "description": HOW},
                "explanation": {"type": "string", "description": "Why; cites as [docid]."},
                "confidence": {"type": "number", "minimum": 0, "maximum": 100},
            }
            about = "Answer the question, which ends it. Call question for the next one."
            tools.append(_own_tool("submit_answer", about, fields, ("answer",)))
        return tools


class SseDoor:
    """MCP over server-sent events: a GET opens a connection, POSTs to the transport's path feed
    it."""

    def __init__(
        self, tools: McpTools, transport: SseServerTransport, in_flight: BytesInFlight
    ) -> None:
        self._tools = tools
        self._transport = transport
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._tools.server(self._tools.connection)
        with anyio.CancelScope() as ending:
            async with self._transport.connect_sse(scope, receive, send) as (reading, writing):
                replies = _Replies(writing, self._in_flight, ending)
                await server.run(reading, replies, server.create_initialization_options())
        if ending.cancelled_caught:
            await send({"type": "http.response.body", "body": b""})

    async def messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The path that takes the messages of all clients."""
        # The client may go while its message waits to be read.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._transport.handle_post_message(scope, receive, send)


class _Replies:
    """The stream of replies to an SSE client. Each waits here until the client has read the one
    before; the connection of a client that lets too much wait is ended."""

    def __init__(
        self,
        stream: Any,
        in_flight: BytesInFlight,
        ending: anyio.CancelScope,
    ) -> None:
        self._stream = stream
        self._in_flight = in_flight
        self._ending = ending
        self._waiting = 0

    async def send(self, message: SessionMessage, /) -> None:
        """See the SDK's `WriteStream`."""
        size = _characters(message)
        if self._waiting and (self._waiting >= _MOST_REPLIES or not self._in_flight.fits(size)):
            self._ending.cancel()
            return
        self._waiting += 1
        self._in_flight.hold(size)
        try:
            await self._stream.send(message)
        finally:
            self._waiting -= 1
            self._in_flight.give_back(size)

    async def aclose(self) -> None:
        """See the SDK's `WriteStream`."""
        await self._stream.aclose()

    async def __aenter__(self) -> _Replies:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class StreamableDoor:
    """MCP over streamable HTTP. Clients of revisions with sessions have a connection by the id that
    the transport gave them; others send a handle."""

    def __init__(self, tools: McpTools, service: Service) -> None:
        self._service = service
        options = service.options
        self.manager = StreamableHTTPSessionManager(
            tools.server(),
            json_response=True,
            max_request_body_size=options.max_request_bytes,
            session_idle_timeout=options.idle_seconds,
            max_sessions=options.max_sessions,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            connection = Headers(scope=scope).get(_CONNECTION_HEADER, "")
            self._service.sessions.leave_connection(connection)


class McpDoor:
    """Both transports at one path. A GET without the id of a connection of streamable HTTP is that
    of an SSE client, as those of BrowseComp-Plus are."""

    def __init__(self, streamable: StreamableDoor, sse: SseDoor) -> None:
        self._streamable = streamable
        self._sse = sse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opens_sse = scope["method"] in ("GET", "HEAD") and _CONNECTION_HEADER not in Headers(
            scope=scope
        )
        door = self._sse if opens_sse else self._streamable
        await door(scope, receive, send)


async def serve_stdio(service: Service) -> None:
    """MCP over standard input and output, until the input ends."""
    tools = McpTools(service, "tool")
    server = tools.server(tools.connection)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def taken_names(names: list[str]) -> list[str]:
    """Names of an interface's tools that this file needs for its own."""
    return sorted(set(names) & set(_OWN_TOOLS))


def _connection(context: Any) -> str:
    """The connection of a call; empty where the transport has none."""
    if isinstance(context.lifespan_context, str):
        return context.lifespan_context
    headers = getattr(context.request, "headers", {})
    return str(headers.get(_CONNECTION_HEADER, ""))


def _characters(message: SessionMessage) -> int:
    """Characters of a tool's result; 0 for every other message, which is short."""
    result = getattr(message.message, "result", None) or {}
    return sum(len(part.get("text", "")) for part in result.get("content", ()))


def _without_traceback(record: logging.LogRecord) -> bool:
    """Filter the SDK's log. A message that is no JSON-RPC is the client's mistake and worth one
    line; a client that has gone while it sent one is worth none."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ValidationError):
        record.msg, record.args = "a message was refused: %s", (error.errors()[0]["msg"][:200],)
        record.exc_info = None
    return not isinstance(error, ClientDisconnect)


for _name in ("mcp.server.sse", "mcp.server.streamable_http"):
    logging.getLogger(_name).addFilter(_without_traceback)


def _answer(arguments: Mapping[str, Any]) -> str:
    answer, explanation = arguments.get("answer"), arguments.get("explanation") or ""
    confidence = arguments.get("confidence")
    if not isinstance(answer, str) or not isinstance(explanation, str):
        raise RequestRefused(400, "wrong_type", "answer and explanation are texts")
    if confidence is not None and not (is_number(confidence) and 0 <= confidence <= 100):
        raise RequestRefused(400, "wrong_type", "confidence is a number from 0 to 100")
    return answer_text(answer, explanation, confidence)


def _own_tool(
    name: str, description: str, properties: Mapping[str, Any], required: tuple[str, ...]
) -> types.Tool:
    schema = {"type": "object", "properties": dict(properties), "required": list(required)}
    return types.Tool(name=name, description=description, input_schema=schema, annotations=_WRITES)


def _nullable(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type")
    return isinstance(kinds, list) and "null" in kinds


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a parameter that is left out where strict function calling sends null."""
    if not _nullable(schema):
        return dict(schema)
    kinds = [kind for kind in schema["type"] if kind != "null"]
    plain = {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}
    if "enum" in plain:
        plain["enum"] = [choice for choice in plain["enum"] if choice is not None]
    return plain
