"""`soundingline serve`: sessions over one pipeline for clients of HTTP, MCP, BrowseComp-Plus and
Pi-Serini. The options are here, because the other modules need packages of an extra."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

from soundingline.toolkit.errors import InputError, check_int, check_number

TOKEN = "SOUNDINGLINE_TOKEN"  # the environment variable of `token`


@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens, and what a client may take: the flags of `soundingline serve`.

    Another host than this machine needs a `token`, which every request then carries as
    `Authorization: Bearer <token>`. It comes from the environment, because command lines are shown
    in process lists. Sessions to which only search ids lead back are closed before they are idle
    for `idle_seconds`, if a new one needs the room.
    """

    host: Annotated[str, "where HTTP is served"] = "127.0.0.1"
    port: Annotated[int, "of HTTP; 0: any free one"] = 8000
    stdio: Annotated[bool, "speak MCP on standard input and output, and no HTTP"] = False
    client: Annotated[str, "the name of the agents in tables and reports"] = "served"
    threads: Annotated[int, "searches at once"] = 32
    max_sessions: Annotated[int, "sessions at once"] = 2000
    idle_seconds: Annotated[float, "after which a session is closed"] = 1800.0
    max_calls: Annotated[int, "tool calls of one question"] = 1000
    max_request_bytes: Annotated[int, "size of the body of a request"] = 1_000_000
    max_result_bytes: Annotated[int, "size of the body of a reply"] = 32_000_000
    token: str | None = field(default_factory=lambda: os.environ.get(TOKEN) or None)

    def check(self) -> None:
        """`InputError` for the first value that is impossible."""
        check_int("port", self.port, ge=0, le=65535)
        for name in ("threads", "max_sessions", "max_calls", "max_request_bytes"):
            check_int(name, getattr(self, name))
        check_number("idle_seconds", self.idle_seconds, gt=0)
        if not self.client.strip() or not self.client.isprintable():
            raise InputError(f"client={self.client!r}", valid="a name that can be read")
        if self.token is not None and (not self.token.isascii() or not self.token.strip()):
            raise InputError("the token is blank or not ASCII", do=f"export {TOKEN}=...")
        if not is_loopback(self.host) and not self.token:
            raise InputError(
                f"host={self.host} is not this machine alone, and there is no token",
                do=f"export {TOKEN}=..., or leave host at 127.0.0.1",
            )


@lru_cache(maxsize=64)  # called at each request, with few hosts
def is_loopback(host: str) -> bool:
    """Whether a host's name or address is that of the machine itself."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
