"""MCP over standard streams, server-sent events and streamable HTTP.

The newest revision of the protocol has no sessions, so that state rides on a handle: the argument
`session`. Where the transport has connections, a client that sends none has one session for each
connection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from experiments.serving.answers import HOW, answer_text
from experiments.serving.api import handout, submitted
from experiments.serving.errors import RequestRefused
from experiments.serving.service import Service
from experiments.serving.sessions import ServedSession
from toolkit.checks import is_number

NAME = "search-server"
_CONNECTION_HEADER = "mcp-session-id"
_HANDLE = {"type": "string", "description": "The session's handle."}
_OWN_TOOLS = ("open_session", "question", "submit_answer")


class McpTools:
    """The tools of one interface for MCP clients, and in a run `question` and `submit_answer`.

    `handles`: whether tools show the argument `session`, which they take in any case. A client with
    a connection of its own needs none, and is shown the tools as their interface describes them.
    """

    def __init__(self, service: Service, interface: str, *, handles: bool) -> None:
        self._service = service
        self._interface = interface
        self._handles = handles
        self._specs = service.specs(interface)
        self.tools = [self._tool(spec) for spec in self._specs] + self._own()

    def server(self, lifespan: Any = None) -> Server[Any]:
        """A server of the SDK. What its `lifespan` gives is the connection's name."""
        options = {} if lifespan is None else {"lifespan": lifespan}
        return Server(NAME, on_list_tools=self._list, on_call_tool=self._call, **options)

    @asynccontextmanager
    async def connection(self, server: Server[Any]) -> AsyncIterator[str]:
        """The lifespan of a server of one connection; its session ends with it."""
        name = uuid4().hex
        try:
            yield name
        finally:
            self._service.sessions.drop_connection(name)

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
        if name == "open_session" and self._handles:
            opened = service.open(self._interface)
            return json.dumps({"session": opened.handle}), False
        if name == "question" and service.questions is not None:
            session = session or self._of(connection)
            question = await service.question(session, self._interface, connection)
            return json.dumps(handout(question), ensure_ascii=False), False
        session = session or self._of(connection)
        if session is None:
            raise RequestRefused(
                400,
                "no_session",
                "this connection has no session of its own: call "
                f"{'question' if service.questions else 'open_session'} first, and send the "
                "session that it gives with each call",
            )
        if name == "submit_answer" and service.questions is not None:
            result = await submitted(service, session, _answer(arguments))
            return json.dumps(result, ensure_ascii=False), False
        called = await service.call(session, name, arguments)
        return called.text, called.failed

    def _of(self, connection: str) -> ServedSession | None:
        return self._service.of_connection(connection, self._interface) if connection else None

    def _tool(self, spec: Mapping[str, Any]) -> types.Tool:
        """A tool with what clients may leave out left out of `required`."""
        parameters = dict(spec["parameters"])
        properties = dict(parameters["properties"])
        needed = [name for name in parameters["required"] if "null" not in properties[name]["type"]]
        if self._handles:
            properties["session"] = _HANDLE
        schema = {**parameters, "properties": properties, "required": needed}
        return types.Tool(name=spec["name"], description=spec["description"], input_schema=schema)

    def _own(self) -> list[types.Tool]:
        handle = {"session": _HANDLE} if self._handles else {}
        tools = []
        if self._handles and self._service.questions is None:
            tools.append(_own_tool("open_session", "Open a session; gives its handle.", {}, ()))
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
    """MCP over server-sent events: a GET opens a connection, POSTs to `messages` feed it."""

    def __init__(self, tools: McpTools, messages: str, most: int) -> None:
        self._tools = tools
        self.transport = SseServerTransport(messages, max_request_body_size=most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._tools.server(self._tools.connection)
        async with self.transport.connect_sse(scope, receive, send) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())


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
            self._service.sessions.drop_connection(Headers(scope=scope).get(_CONNECTION_HEADER, ""))


async def serve_stdio(service: Service) -> None:
    """MCP over standard input and output, until the input ends."""
    tools = McpTools(service, "tool", handles=False)
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
    return types.Tool(name=name, description=description, input_schema=schema)
