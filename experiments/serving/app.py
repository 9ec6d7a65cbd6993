"""All doors as one ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from soundingline.experiments.serving import openapi
from soundingline.experiments.serving.api import ENDPOINTS
from soundingline.experiments.serving.endpoint import Endpoint
from soundingline.experiments.serving.errors import RequestRefused
from soundingline.experiments.serving.guard import DEFECT, Guard
from soundingline.experiments.serving.json_bodies import reply
from soundingline.experiments.serving.mcp_doors import McpDoor, McpTools, SseDoor, StreamableDoor
from soundingline.experiments.serving.service import Service

MCP, SSE, MESSAGES = "/mcp", "/sse", "/messages/"
_TITLE = "Soundingline search server"


def application(service: Service, mcp_interface: str = "tool") -> ASGIApp:
    """The application. `mcp_interface` is the one whose tools stand at `/mcp`; those at `/sse` are
    the configured ones."""
    transport = SseServerTransport(
        MESSAGES, max_request_body_size=service.options.max_request_bytes
    )
    sse = SseDoor(McpTools(service, "tool", named=True), transport, service.in_flight)
    streamable = StreamableDoor(McpTools(service, mcp_interface, handles=True, named=True), service)
    mcp_sse = SseDoor(McpTools(service, mcp_interface, named=True), transport, service.in_flight)
    mcp = McpDoor(streamable, mcp_sse)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tidying = asyncio.create_task(service.sessions.keep_tidy())
        try:
            async with streamable.manager.run():
                yield
        finally:
            tidying.cancel()
            with suppress(asyncio.CancelledError):
                await tidying
            await service.close()

    routes: list[Route | Mount] = [
        Route(endpoint.path, _handler(endpoint, service), methods=[endpoint.method])
        for endpoint in ENDPOINTS
    ]
    routes += [
        Route("/", _page, methods=["GET"]),
        Route("/openapi.json", _description, methods=["GET"]),
        Route(MCP, mcp),
        Route(SSE, sse, methods=["GET"]),
        Mount(MESSAGES, app=sse.messages),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=_HANDLERS)
    return Guard(app, service.options, service.in_flight)


def _handler(endpoint: Endpoint, service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def handler(request: Request) -> Response:
        return await endpoint.answer(service, request)

    return handler


async def _page(request: Request) -> Response:
    return HTMLResponse(openapi.page(ENDPOINTS, _TITLE))


async def _description(request: Request) -> Response:
    return reply(openapi.description(ENDPOINTS, _TITLE))


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return reply(error.body(), error.status)


async def _defect(request: Request, error: Exception) -> Response:
    return reply(DEFECT, 500)


async def _told(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the form of every refusal."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "unknown_path", 405: "wrong_method"}.get(status, "refused")
    message = f"there is nothing for {request.method} {request.url.path[:100]}; see GET /"
    return reply({"error": code, "message": message}, status)


_HANDLERS: Any = {HTTPException: _told, RequestRefused: _refusal, Exception: _defect}
