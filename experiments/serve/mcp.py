"""The Model Context Protocol over standard streams, server-sent events (SSE) and streamable HTTP.
A connection has its own session. Some clients open a connection for each call, and the newest
revision of the protocol has none. For them, search ids carry the handle of their session, over HTTP
if no run is recorded. In a run, they send the handle as the argument `session`."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import anyio
import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from soundingline.experiments.serve.sessions import (
    ANSWER,
    ApiError,
    Service,
    answer_text,
)
from soundingline.toolkit.errors import is_number
from soundingline.toolkit.runs.manifest import version_of

SESSION_TOOLS = ("question", "submit_answer")
_MESSAGES = "/messages/"
_CONNECTION_HEADER = "mcp-session-id"
_HANDLE = {"type": "string", "description": "The session's handle."}
_READS = types.ToolAnnotations(read_only_hint=True)
_WRITES = types.ToolAnnotations(read_only_hint=False, destructive_hint=False)


class McpTools:
    """The functions of one search tool for MCP clients, and in a run `question` and
    `submit_answer`. With `handles`, tools show the argument `session` in a run; they take it in any
    case. Search ids of `named` tools carry the session's handle if no run is recorded."""

    def __init__(
        self, service: Service, search_tool: str, *, handles: bool = False, named: bool = False
    ) -> None:
        self._service = service
        self._search_tool = search_tool
        self._named = named and service.questions is None
        handle = {"session": _HANDLE} if handles and service.questions is not None else {}
        self._tools = [_mcp_tool(spec, handle) for spec in service.specs(search_tool)]
        if service.questions is not None:
            self._tools += _session_tools(handle)

    def server(self, *, connected: bool = False) -> Server[Any]:
        """A server of the SDK. `connected`: it serves one connection, whose session ends with
        it."""
        lifespan: dict[str, Any] = {"lifespan": self._connection} if connected else {}
        return Server(
            "search-server",
            version=version_of("soundingline"),
            instructions=_instructions(self._tools, self._service),
            on_list_tools=self._list,
            on_call_tool=self._call,
            **lifespan,
        )

    @asynccontextmanager
    async def _connection(self, server: Server[Any]) -> AsyncIterator[str]:
        name = uuid4().hex
        try:
            yield name
        finally:
            self._service.sessions.leave(self._service.sessions.of_connection(name))

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def _call(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            connection = context.lifespan_context  # the name of a connection, if it has one
            if not isinstance(connection, str):
                headers = getattr(context.request, "headers", {})
                connection = str(headers.get(_CONNECTION_HEADER, ""))
            text, failed = await self._serve(connection, params.name, dict(params.arguments or {}))
            limit = self._service.options.max_result_bytes
            if len(text) > limit:
                raise ApiError(500, "too_large", f"the result is larger than {limit}")
        except ApiError as refusal:
            text, failed = refusal.message, True
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], is_error=failed)

    async def _serve(
        self, connection: str, name: str, arguments: dict[str, Any]
    ) -> tuple[str, bool]:
        """The text of a call, and whether it failed."""
        service = self._service
        handle = arguments.pop("session", None)
        session = service.sessions.get(handle) if handle is not None else None
        session = session or service.of_search_id(arguments.get("search_id"))
        if session is None and connection:
            session = service.sessions.of_connection(connection) or service.open(
                self._search_tool, connection, named=self._named
            )
        if name == "question" and service.questions is not None:
            question = await service.next_question(session, self._search_tool, connection)
            return json.dumps(question, ensure_ascii=False), False
        once = session is None and self._named
        if once:  # only its search ids will lead back to this session
            session = service.open(self._search_tool, named=True)
        if session is None:
            raise ApiError(
                400,
                "no_session",
                "this connection has no session of its own: call question first, and send the "
                "session that it gives with each call",
            )
        if name == "submit_answer" and service.questions is not None:
            answer, explanation = arguments.get("answer"), arguments.get("explanation") or ""
            confidence = arguments.get("confidence")
            if not isinstance(answer, str) or not isinstance(explanation, str):
                raise ApiError(400, "wrong_type", "answer and explanation are texts")
            if confidence is not None and not (is_number(confidence) and 0 <= confidence <= 100):
                raise ApiError(400, "wrong_type", "confidence is a number from 0 to 100")
            text = answer_text(answer, explanation, confidence)
            return json.dumps(await service.submit(session, text), ensure_ascii=False), False
        try:
            result = await service.call(session, name, arguments)
        finally:
            if once:
                service.sessions.leave(session)
        return result.text, result.failed


def _instructions(tools: Sequence[types.Tool], service: Service) -> str:
    """How questions and answers work, which a client shows to its model."""
    names = [tool.name for tool in tools if tool.name not in SESSION_TOOLS]
    searching = (
        f"The tools {', '.join(names)} search and read one collection of documents. Their pages "
        "name each document by its docid; cite it as [docid]."
    )
    if service.questions is None:
        return f"{searching} Calls of one connection share a session, and with it search ids."
    return (
        f"{searching} You are asked the questions of a benchmark, and what you do is recorded.\n"
        "1. Call question. It returns a question and its session as JSON. If question is null and "
        "waiting is 0, there are no more questions.\n"
        f"2. Find the answer with the tools; at most {service.options.max_calls} calls a question. "
        "If your connection ends between calls, send the session with each call.\n"
        "3. Call submit_answer once, with a short answer, an explanation that cites documents as "
        "[docid], and your confidence from 0 to 100. Then call question again.\n"
        "A question whose connection ends before its answer is asked again later."
    )


def mcp_routes(
    service: Service, search_tool: str
) -> tuple[list[BaseRoute], StreamableHTTPSessionManager]:
    """The routes of MCP over HTTP: `/mcp` with the tools of `search_tool` over streamable HTTP and
    SSE, `/sse` with the configured tool over SSE. The manager must run while they are served."""
    options = service.options
    transport = SseServerTransport(_MESSAGES, max_request_body_size=options.max_request_bytes)
    manager = StreamableHTTPSessionManager(
        McpTools(service, search_tool, handles=True, named=True).server(),
        json_response=True,
        max_request_body_size=options.max_request_bytes,
        session_idle_timeout=options.idle_seconds,
        max_sessions=options.max_sessions,
    )
    configured = _SseApp(McpTools(service, "tool", named=True), transport)
    sse = _SseApp(McpTools(service, search_tool, named=True), transport)

    async def post(scope: Scope, receive: Receive, send: Send) -> None:
        # The client may go while its message waits to be read.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await transport.handle_post_message(scope, receive, send)

    return [
        Route("/mcp", _McpApp(service, manager, sse)),
        Route("/sse", configured, methods=["GET"]),
        Mount(_MESSAGES, app=post),
    ], manager


@dataclass(eq=False)
class _McpApp:
    """Streamable HTTP and SSE at one path. A GET without the id of a connection of streamable HTTP
    is that of an SSE client, such as those of BrowseComp-Plus."""

    _service: Service
    _manager: StreamableHTTPSessionManager
    _sse: _SseApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = Headers(scope=scope).get(_CONNECTION_HEADER)
        if scope["method"] in ("GET", "HEAD") and connection is None:
            await self._sse(scope, receive, send)
            return
        await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            self._service.sessions.leave(self._service.sessions.of_connection(connection or ""))


@dataclass(eq=False)
class _SseApp:
    """A GET opens a connection; POSTs to the transport's path feed it."""

    _tools: McpTools
    _transport: SseServerTransport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._tools.server(connected=True)
        async with self._transport.connect_sse(scope, receive, send) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())


async def serve_stdio(service: Service) -> None:
    """MCP over standard input and output, until the input ends."""
    server = McpTools(service, "tool").server(connected=True)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _shorten_log(record: logging.LogRecord) -> bool:
    """Filter the SDK's log. A message that is not JSON-RPC is the client's mistake and gets one
    line; a client that has gone while it sent one gets none."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ValidationError):
        record.msg, record.args = "a message was refused: %s", (error.errors()[0]["msg"][:200],)
        record.exc_info = None
    return not isinstance(error, ClientDisconnect)


for _name in ("mcp.server.sse", "mcp.server.streamable_http"):
    logging.getLogger(_name).addFilter(_shorten_log)


def _mcp_tool(spec: Mapping[str, Any], more: Mapping[str, Any]) -> types.Tool:
    """A function of a search tool, with `more` parameters. What strict function calling writes as
    required and nullable is optional here, because many clients reject a schema with a list of
    types."""
    parameters = spec["parameters"]
    properties, required = {}, []
    for name in parameters["required"]:
        schema = dict(parameters["properties"][name])
        if isinstance(schema["type"], list):
            (schema["type"],) = (kind for kind in schema["type"] if kind != "null")
            if "enum" in schema:
                schema["enum"] = [choice for choice in schema["enum"] if choice is not None]
        else:
            required.append(name)
        properties[name] = schema
    return types.Tool(
        name=spec["name"],
        description=spec["description"],
        input_schema={**parameters, "properties": {**properties, **more}, "required": required},
        annotations=_READS,
    )


def _session_tools(handle: Mapping[str, Any]) -> Iterator[types.Tool]:
    question, submit = SESSION_TOOLS
    described = {
        question: "The next question to answer, and the session to work on it, as JSON.",
        submit: "Answer the question, which ends it. Call question for the next one.",
    }
    answer = {
        "answer": {"type": "string", "description": ANSWER},
        "explanation": {"type": "string", "description": "Why; cites as [docid]."},
        "confidence": {"type": "number", "minimum": 0, "maximum": 100},
    }
    for name, description in described.items():
        schema = {
            "type": "object",
            "properties": {**handle, **(answer if name == submit else {})},
            "required": ["answer"] if name == submit else [],
        }
        yield types.Tool(
            name=name, description=description, input_schema=schema, annotations=_WRITES
        )
