"""What every HTTP request passes: who may ask, from where, and how much."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soundingline.experiments.serving.errors import RequestRefused
from soundingline.experiments.serving.flight import CHUNK, BytesInFlight
from soundingline.experiments.serving.json_bodies import reply
from soundingline.experiments.serving.options import ServerOptions, is_loopback

DEFECT = {"error": "defect", "message": "a defect of the server; its log has the traceback"}
_LOG = logging.getLogger(__name__)


class Guard:
    """An ASGI application around another one.

    - With a token, a request without it is refused. Without one the server listens on this machine
      only, and a request must name this machine as its host and, from a browser, as its origin: a
      page of somebody else's could otherwise reach it through a name of its own.
    - A request that declares a larger body than may be is refused before it is read.
    - Bytes of larger requests and replies are counted as `in_flight`, and what does not fit is
      refused.
    - What goes wrong is told in one line, never by a traceback.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, in_flight: BytesInFlight) -> None:
        self._app = app
        self._options = options
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._in_flight)
        try:
            headers = Headers(scope=scope)
            self._check(headers)
            exchange.count(self._size(headers))
            await self._app(scope, receive, exchange.send)
        except RequestRefused as refusal:
            await exchange.refuse(refusal.body(), refusal.status)
        except ClientDisconnect:
            pass  # It went while it sent its request, and reads no reply.
        except Exception:
            _LOG.exception("a request failed")
            await exchange.refuse(DEFECT, 500)
        finally:
            exchange.end()

    def _size(self, headers: Headers) -> int:
        """Bytes of a request's body; as many as may be where it does not tell them."""
        if "transfer-encoding" in headers:
            return self._options.max_request_bytes
        return _length(headers.get("content-length", ""))

    def _check(self, headers: Headers) -> None:
        token = self._options.token
        if token:
            authorization = headers.get("authorization", "").encode("latin-1", "replace")
            if not secrets.compare_digest(authorization, f"Bearer {token}".encode()):
                message = "send the header Authorization: Bearer <token>, with the server's token"
                raise RequestRefused(401, "no_token", message)
        else:
            self._check_local(headers)
        most = self._options.max_request_bytes
        if _length(headers.get("content-length", "")) > most:
            raise RequestRefused(413, "too_large", f"a body has at most {most} bytes")

    @staticmethod
    def _check_local(headers: Headers) -> None:
        origin = headers.get("origin")
        for name, address in (("host", f"//{headers.get('host', '')}"), ("origin", origin)):
            if address is not None and not is_loopback(_hostname(address)):
                message = f"the {name} of the request is not this machine"
                raise RequestRefused(403, "not_local", message)


class _Exchange:
    """One request and its reply, which is sent as fast as the client reads it, so that the server
    holds it once and not again in the connection's buffer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, in_flight: BytesInFlight
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._in_flight = in_flight
        self._held = 0
        self._began = False
        self._refused = False

    def count(self, size: int) -> None:
        """Count a body until the `end`; `RequestRefused` where there is no room for it."""
        if size > CHUNK:
            self._in_flight.check(size)
            self._in_flight.hold(size)
            self._held += size

    def end(self) -> None:
        """The request has been served."""
        self._in_flight.give_back(self._held)

    async def refuse(self, body: Mapping[str, Any], status: int) -> None:
        """Send a refusal, unless a reply has begun."""
        if not self._began:
            self._began = True
            await reply(body, status)(self._scope, self._receive, self._send)

    async def send(self, message: Message) -> None:
        """ASGI's `send`. A reply for which there is no room becomes a refusal."""
        if message["type"] == "http.response.start":
            length = Headers(raw=list(message.get("headers", ()))).get("content-length", "")
            try:
                self.count(_length(length))
            except RequestRefused as refusal:
                await self.refuse(refusal.body(), refusal.status)
                self._refused = True
        if self._refused:
            return
        self._began = True
        body = message.get("body", b"")
        if len(body) <= CHUNK:
            await self._send(message)
            return
        for start in range(0, len(body), CHUNK):
            part = {**message, "body": body[start : start + CHUNK]}
            more = start + CHUNK < len(body)
            await self._send({**part, "more_body": True} if more else part)


def _length(text: str) -> int:
    """The number of a header `Content-Length`; 0 where it is none."""
    return int(text[:20]) if text.isdecimal() else 0


def _hostname(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
