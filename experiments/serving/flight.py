"""Bounds on what is under way: bytes in memory, connections, and clients that do not read."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from soundingline.experiments.serving.errors import RequestRefused

CHUNK = 65_536  # bytes that are given to a connection at a time; fewer are not counted
READ_SECONDS = 30.0  # in which a client must have read what it was sent


class BytesInFlight:
    """Bytes of requests and replies that are under way, at most `most` together. One that is larger
    by itself has its turn when it is alone. Belongs to the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.bytes = 0

    def fits(self, size: int) -> bool:
        """Whether there is room for so many bytes more."""
        return not self.bytes or self.bytes + size <= self._most

    def check(self, size: int) -> None:
        """`RequestRefused` where there is no room for so many bytes more."""
        if not self.fits(size):
            raise RequestRefused(
                503,
                "busy",
                f"{self.bytes} bytes of requests and replies are under way, and with {size} more "
                f"there would be more than {self._most}. Try again later.",
            )

    def hold(self, size: int) -> None:
        """Count bytes until `give_back`."""
        self.bytes += size

    def give_back(self, size: int) -> None:
        """The bytes are no longer held."""
        self.bytes -= size


class ReadingClients(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, for clients that read what they are sent: a connection that takes nothing
    for `READ_SECONDS` is dropped, and with it what it holds in memory."""

    _dropping: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. Writing pauses as soon as the system's own buffer is full."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        """See asyncio: the client has not read all that was sent."""
        super().pause_writing()
        self._dropping = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """See asyncio: the client has read it."""
        super().resume_writing()
        if self._dropping is not None:
            self._dropping.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        if self._dropping is not None:
            self._dropping.cancel()
