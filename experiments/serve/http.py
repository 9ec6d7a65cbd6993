"""JSON over HTTP: the endpoints, and the checks that every request passes, those of MCP too."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio
import uvicorn
from fastapi import Body, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soundingline.experiments.serve import ServerOptions, foreign_tools, is_loopback
from soundingline.experiments.serve.foreign_tools import MOST_HITS, whole_document, whole_hits
from soundingline.experiments.serve.mcp import mcp_routes
from soundingline.experiments.serve.sessions import (
    ANSWER,
    ApiError,
    Service,
    answer_text,
    compact_json,
)
from soundingline.toolkit.json_text import replace_surrogates_in
from soundingline.toolkit.search import TopK
from soundingline.toolkit.search.tool import LARGEST_OFFSET, MAX_CHARACTERS

_GRACE = 5  # seconds that open connections have at the end
_MORE_CONNECTIONS = 100
_PORTS = {"http": 80, "https": 443}
_NO_OBJECT = "send an object of JSON, with the header Content-Type: application/json"
_DEFECT = {"error": "defect", "message": "a defect of the server; its log has the traceback"}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    _replace_surrogates = model_validator(mode="before")(replace_surrogates_in)


Handle = Annotated[str, Field(description="The handle of a session.")]
Interface = Annotated[
    str,
    Field(
        description="Whose tools the session has: tool (as configured), browsecomp_plus, pi_serini."
    ),
]
Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Count = Annotated[int, Field(ge=1, le=LARGEST_OFFSET)]


class OpenBody(_Body):
    interface: Interface = "tool"


class QuestionBody(_Body):
    session: Handle | None = None
    interface: Interface = "tool"


class CallBody(_Body):
    session: Handle
    tool: str
    arguments: dict[str, JsonValue]  # pydantic bounds how deeply they are nested
    reasoning: Annotated[str, Field(description="What the agent thought last.")] = ""


class AnswerBody(_Body):
    session: Handle
    answer: Annotated[str, Field(description=ANSWER)]
    explanation: str = ""
    confidence: Annotated[float | None, Field(ge=0, le=100)] = None


class CloseBody(_Body):
    session: Handle


class HitsBody(_Body):
    query: Text
    k: Annotated[int, Field(ge=1, le=MOST_HITS)] = 10


class DocumentBody(_Body):
    docid: Text


class RankBody(_Body):
    query: Text
    limit: Count
    offset: Count = 1


class ReadBody(_Body):
    docid: Text
    offset: Count = 1
    limit: Count | None = None


class Tools(BaseModel):
    tools: list[dict[str, Any]]


class Opened(Tools):
    session: Handle


class Question(BaseModel):
    session: str | None
    qid: str | None
    question: str | None
    waiting: int
    under_way: int


class Called(BaseModel):
    text: Annotated[str, Field(description="For the agent.")]
    error: str
    shown: list[str]
    seconds: float


class Submitted(BaseModel):
    exact: str
    confidence: float | None
    citations: list[str]


class ErrorReplyBody(BaseModel):
    error: Annotated[str, Field(description="A stable word.")]
    message: Annotated[str, Field(description="What was wrong, in one line.")]


def _add_endpoints(app: FastAPI, service: Service) -> None:
    """Add the endpoints of the JSON interface. The models of replies describe them; no reply is
    validated."""
    sessions, limit = service.sessions, service.options.max_result_bytes

    @app.post("/call", response_model=Called)
    async def call(body: CallBody) -> Response:
        """Call a tool; its text is for the agent."""
        session = sessions.get(body.session)
        result = await service.call(session, body.tool, body.arguments, body.reasoning)
        called = {
            "text": result.text,
            "error": result.call.error,
            "shown": list(result.page.shown) if result.page else [],
            "seconds": round(result.call.seconds, 6),
        }
        return reply(called, limit=limit)

    @app.get("/status", response_model=dict)
    async def status() -> Response:
        """Sessions, and how far the run is."""
        run = service.questions
        counts = run and {"total": run.total, "answered": run.answered, **run.counts}
        return reply(
            {
                "run": run.folder.name if run else None,
                "questions": counts,
                "sessions": len(sessions),
                "interfaces": list(service.search_tools),
            }
        )

    @app.get("/tools", response_model=Tools)
    async def tools(interface: str = "tool") -> Response:
        """The tools of an interface, in the function-calling form."""
        return reply({"tools": service.specs(interface)}, limit=limit)

    @app.post("/open", response_model=Opened)
    async def open(body: Annotated[OpenBody, Body(default_factory=OpenBody)]) -> Response:
        """Open a session without a question."""
        handle = service.open(body.interface).handle
        return reply({"session": handle, "tools": service.specs(body.interface)}, limit=limit)

    @app.post("/question", response_model=Question)
    async def question(
        body: Annotated[QuestionBody, Body(default_factory=QuestionBody)],
    ) -> Response:
        """The run's next question, and the session to work on it."""
        session = None if body.session is None else sessions.get(body.session)
        return reply(await service.next_question(session, body.interface), limit=limit)

    @app.post("/submit_answer", response_model=Submitted)
    async def submit_answer(body: AnswerBody) -> Response:
        """Answer the session's question, which ends it."""
        text = answer_text(body.answer, body.explanation, body.confidence)
        return reply(await service.submit(sessions.get(body.session), text), limit=limit)

    @app.post("/close", response_model=dict)
    async def close(body: CloseBody) -> Response:
        """Close a session; its question is handed out again."""
        sessions.close(sessions.get(body.session))
        return reply({"closed": True})

    @app.post("/browsecomp-plus/search", response_model=list[dict[str, Any]])
    async def hits(body: HitsBody) -> Response:
        """Hits with whole texts, for their searcher."""
        # The reply is written in the thread as well: results of many megabytes would otherwise
        # wait for the event loop.
        rows = partial(whole_hits, service.backend, service.store, body.query, body.k)
        return await service.run(lambda: reply(rows(), limit=limit))

    @app.post("/browsecomp-plus/get_document", response_model=dict[str, str] | None)
    async def document(body: DocumentBody) -> Response:
        """A document, or null."""
        text = await service.run(partial(whole_document, service.store, body.docid))
        return reply(text, limit=limit)

    @app.post("/pi-serini/search", response_model=dict)
    async def pi_serini_search(body: RankBody, session: str | None = None) -> Response:
        """Pi-Serini's contract: rank."""
        return await _pi_serini(service, foreign_tools.SEARCH, body, session)

    @app.post("/pi-serini/read", response_model=dict)
    async def pi_serini_read(body: ReadBody, session: str | None = None) -> Response:
        """Pi-Serini's contract: read lines."""
        return await _pi_serini(service, foreign_tools.READ, body, session)


async def _pi_serini(service: Service, tool: str, body: _Body, handle: str | None) -> Response:
    arguments = body.model_dump(exclude_unset=True)
    if handle is None:
        call = service.tool("pi_serini").call
        result = await service.run(lambda: call(tool, arguments))
    else:
        session = service.sessions.get(handle)
        if not isinstance(session.tool, foreign_tools.PiSeriniTools):
            message = "this session was not opened with the interface pi_serini"
            raise ApiError(409, "wrong_interface", message)
        result = await service.call(session, tool, arguments)
    if result.failed:
        raise ApiError(400, result.call.error, result.text)
    return Response(result.text, media_type="application/json")


def reply(value: Any, status: int = 200, *, limit: int | None = None) -> Response:
    """A JSON reply; `ApiError` if it has more than `limit` characters."""
    text = compact_json(value)
    if limit is not None and len(text) > limit:
        raise ApiError(
            500,
            "too_large",
            f"the result has {len(text)} characters, of at most {limit}: ask for less",
        )
    return Response(text, status, media_type="application/json")


def application(service: Service, mcp_tool: str = "tool") -> FastAPI:
    """The ASGI application of all endpoints. `mcp_tool` is the one whose tools are at `/mcp`;
    those at `/sse` are the configured ones."""
    routes, manager = mcp_routes(service, mcp_tool)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with manager.run(), anyio.create_task_group() as tasks:
            tasks.start_soon(service.sessions.close_idle_forever)
            yield
            tasks.cancel_scope.cancel()

    app = FastAPI(
        title="Soundingline search server",
        version="1",
        lifespan=lifespan,
        docs_url="/",
        redoc_url=None,
        responses={"default": {"model": ErrorReplyBody, "description": "The request is refused."}},
        exception_handlers={
            HTTPException: _refusal,
            RequestValidationError: _refusal,
            Exception: _defect,
        },
    )
    _add_endpoints(app, service)
    app.router.routes.extend(routes)
    app.add_middleware(AccessMiddleware, options=service.options)
    return app


async def _refusal(request: Request, error: Exception) -> Response:
    """An `ApiError`, a body that is not valid, or the router's own error for an unknown path or
    method, in one form."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"][1:]))
        message = f"{location[:100]}: {first['msg'][:200]}" if location else _NO_OBJECT
        code = "no_json" if first["type"] == "json_invalid" else "wrong_body"
        error = ApiError(400, code, message)
    elif not isinstance(error, ApiError):
        assert isinstance(error, HTTPException)
        status = error.status_code
        code = {400: "no_json", 404: "unknown_path", 405: "wrong_method"}.get(status, "refused")
        nothing = f"there is nothing for {request.method} {request.url.path[:100]}; see GET /"
        error = ApiError(status, code, _NO_OBJECT if status == 400 else nothing)
    response = reply(error.body(), error.status_code)
    if error.status_code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _defect(request: Request, error: Exception) -> Response:
    return reply(_DEFECT, 500)


@dataclass(eq=False)
class AccessMiddleware:
    """The checks of every request, those of MCP too.

    With a token, a request without it is refused. Without one the server listens on this machine
    only, and a request must name this server as its host and, from a browser, as its origin: a page
    of another site, or of another server on this machine, could otherwise reach it. A body of more
    than `max_request_bytes` is refused.
    """

    app: ASGIApp
    options: ServerOptions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrived, most = 0, self.options.max_request_bytes

        async def bounded() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > most:
                raise ApiError(413, "too_large", f"a body has at most {most} bytes")
            return message

        if refusal := self._denial(Headers(scope=scope), scope["server"][1]):
            await (await _refusal(Request(scope), refusal))(scope, receive, send)
            return
        with suppress(ClientDisconnect):  # while it sent its request: it reads no reply
            await self.app(scope, bounded, send)

    def _denial(self, headers: Headers, port: int) -> ApiError | None:
        if token := self.options.token:
            authorization = headers.get("authorization", "").encode("latin-1", "replace")
            if secrets.compare_digest(authorization, f"Bearer {token}".encode()):
                return None
            message = "send the header Authorization: Bearer <token>, with the server's token"
            return ApiError(401, "no_token", message)
        addresses = {"host": f"//{headers.get('host', '')}", "origin": headers.get("origin")}
        for name, address in addresses.items():
            if address is not None and not _is_local(address, port):
                message = f"the {name} is not this server, port {port} of this machine"
                return ApiError(403, "not_local", message)
        return None


def _is_local(address: str, port: int) -> bool:
    """Whether an origin, or a host after `//`, is that port of this machine. A host without a port
    is any port of it."""
    try:
        parts = urlsplit(address)
        named = parts.port or _PORTS.get(parts.scheme, port)
    except ValueError:
        return False
    return is_loopback(parts.hostname or "") and named == port


def http_server(service: Service) -> uvicorn.Server:
    """The server of all HTTP endpoints, which is not started yet. For a `TopK`, `/mcp` has
    BrowseComp-Plus's form of it."""
    options = service.options
    search_tool = "browsecomp_plus" if isinstance(service.search_tools["tool"], TopK) else "tool"
    return uvicorn.Server(
        uvicorn.Config(
            application(service, search_tool),
            # A session over SSE has two connections; the rest is for clients without sessions.
            limit_concurrency=2 * options.max_sessions + _MORE_CONNECTIONS,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_GRACE,
            ws="none",
        )
    )
