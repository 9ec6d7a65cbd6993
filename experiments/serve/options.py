"""The settings of the server itself; those of the pipeline are those of every other command."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache

from soundingline.toolkit.errors import InputError, check_int, check_number

TOKEN = "SOUNDINGLINE_TOKEN"  # the environment variable of `token`
BACKLOG = 2048


@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens, and what a client may take.

    - `host`, `port`: where HTTP is served (port 0: any free one). Another host than this machine
      needs a `token`, which every request then carries as `Authorization: Bearer <token>`.
    - `stdio`: speak MCP on standard input and output, and nothing else.
    - `client`: what the agents are called in tables and reports.
    - `threads`: searches at once.
    - `max_sessions`: sessions at once; one that is idle for `idle_seconds` is closed. Sessions
      to which only search ids lead back are closed earlier, if a new one needs the room.
    - `max_calls`: tool calls of one question.
    - `max_request_bytes`, `max_result_bytes`: size of the body of a request and of a reply.
    - `max_bytes_in_flight`: bytes of all larger requests and replies together that are under way;
      what would exceed it is refused with status 503.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    stdio: bool = False
    token: str | None = None
    client: str = "served"
    threads: int = 32
    max_sessions: int = 2000
    idle_seconds: float = 1800.0
    max_calls: int = 1000
    max_request_bytes: int = 1_000_000
    max_result_bytes: int = 32_000_000
    max_bytes_in_flight: int = 256_000_000

    def check(self) -> None:
        """`InputError` for the first value that is impossible."""
        check_int("port", self.port, ge=0, le=65535)
        counts = ("threads", "max_sessions", "max_calls", "max_request_bytes")
        for name in (*counts, "max_bytes_in_flight"):
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
