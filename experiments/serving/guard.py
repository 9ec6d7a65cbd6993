"""What every HTTP request passes: who may ask, from where, and how much."""

from __future__ import annotations

import logging
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from experiments.serving.errors import RequestRefused
from experiments.serving.json_bodies import reply
from experiments.serving.options import ServerOptions, is_loopback

DEFECT = {"error": "defect", "message": "a defect of the server; its log has the traceback"}
_LOG = logging.getLogger(__name__)


class Guard:
    """An ASGI application around another one.

    - With a token, a request without it is refused. Without one the server listens on this machine
      only, and a request must name this machine as its host and, from a browser, as its origin: a
      page of somebody else's could otherwise reach it through a name of its own.
    - A request that declares a larger body than may be is refused before it is read.
    - What goes wrong is told in one line, never by a traceback.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began = False

        async def watched(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            self._check(Headers(scope=scope))
            await self._app(scope, receive, watched)
        except RequestRefused as refusal:
            if not began:
                await reply(refusal.body(), refusal.status)(scope, receive, send)
        except Exception:
            _LOG.exception("a request failed")
            if not began:
                await reply(DEFECT, 500)(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        token = self._options.token
        if token:
            authorization = headers.get("authorization", "").encode("latin-1", "replace")
            if not secrets.compare_digest(authorization, f"Bearer {token}".encode()):
                message = "send the header Authorization: Bearer <token>, with the server's token"
                raise RequestRefused(401, "no_token", message)
        else:
            self._check_local(headers)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._options.max_request_bytes:
            most = self._options.max_request_bytes
            raise RequestRefused(413, "too_large", f"a body has at most {most} bytes")

    @staticmethod
    def _check_local(headers: Headers) -> None:
        origin = headers.get("origin")
        for name, address in (("host", f"//{headers.get('host', '')}"), ("origin", origin)):
            if address is not None and not is_loopback(_hostname(address)):
                message = f"the {name} of the request is not this machine"
                raise RequestRefused(403, "not_local", message)


def _hostname(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
