"""One client's session: its tools, and the question that it works on."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from soundingline.agents.base import Episode
from soundingline.experiments.serving.errors import RequestRefused
from soundingline.toolkit.data import Topic
from soundingline.toolkit.search.session import SearchTool

NO_TOPIC = Topic("", "")


@dataclass(eq=False)
class ServedSession:
    """A session that a client reaches by its `handle`, which nobody can guess.

    `topic` is the question that it works on, None where it has none. `episode` holds the tools'
    state and, in a run, what becomes the trajectory. One call at a time holds `turn`; `waiting`
    counts those that want it. `connection` is the connection whose session this is, if any.
    """

    interface: SearchTool
    episode: Episode
    topic: Topic | None = None
    connection: str = ""
    handle: str = field(default_factory=lambda: secrets.token_hex(8))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    calls: int = 0
    closed: bool = False
    used: float = field(default_factory=time.monotonic)

    @property
    def busy(self) -> bool:
        """Whether a call is under way or waits."""
        return self.waiting > 0 or self.turn.locked()

    @property
    def pageable(self) -> bool:
        """Whether search ids that carry its handle lead back to a ranking of it."""
        tool = self.episode.tool
        return bool(tool.search_id_suffix and tool.exposures.tiers["surfaced"])

    def begin(self, topic: Topic | None, tool: SearchTool) -> None:
        """Work on another question, or on none, with tools that know nothing yet."""
        self.topic = topic
        self.episode = Episode(topic or NO_TOPIC, tool)
        self.calls = 0


class SessionTable:
    """The open sessions, at most `most`; one that nobody uses for `idle_seconds` is closed. `ended`
    is told of each that closes. Every method belongs to the event loop.

    A session that was left (its connection has ended, but search ids still lead to it) makes room
    for a new one where there is none, the least recently used first.
    """

    def __init__(
        self, most: int, idle_seconds: float, ended: Callable[[ServedSession], None]
    ) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._ended = ended
        self._open: dict[str, ServedSession] = {}
        self._connections: dict[str, str] = {}
        self._left: dict[str, ServedSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self) -> None:
        """Refuse where there is no room for one more session."""
        if len(self._open) >= self._most:
            self.drop_idle()
        if len(self._open) >= self._most:
            left = next((each for each in self._left.values() if not each.busy), None)
            if left is not None:
                self.drop(left)
        if len(self._open) >= self._most:
            raise RequestRefused(
                503,
                "too_many_sessions",
                f"{len(self._open)} sessions are open, as many as may be. Close one, or wait.",
            )

    def add(self, session: ServedSession) -> None:
        """One more session."""
        self._open[session.handle] = session
        if session.connection:
            self._connections[session.connection] = session.handle

    def get(self, handle: object) -> ServedSession:
        """The open session of a handle."""
        session = self.find(handle)
        if session is None:
            raise RequestRefused(
                404,
                "unknown_session",
                "there is no such session: it was closed, was idle for too long, or ended with its "
                "connection. Open another one and send its handle; over MCP, keep one connection "
                "open from question to submit_answer.",
            )
        return session

    def find(self, handle: object) -> ServedSession | None:
        """The open session of a handle; None where there is none."""
        session = self._open.get(handle) if isinstance(handle, str) else None
        if session is not None:
            session.used = time.monotonic()
            if session.handle in self._left:
                self._left[session.handle] = self._left.pop(session.handle)
        return session

    def of_connection(self, connection: str) -> ServedSession | None:
        """The open session of a connection, if it has one."""
        handle = self._connections.get(connection, "")
        return self.get(handle) if handle in self._open else None

    def drop(self, session: ServedSession) -> None:
        """Close a session."""
        if self._open.pop(session.handle, None) is None:
            return
        self._left.pop(session.handle, None)
        if self._connections.get(session.connection) == session.handle:
            del self._connections[session.connection]
        session.closed = True
        self._ended(session)

    def leave(self, session: ServedSession) -> None:
        """Close a session whose connection has ended, unless search ids still lead to it."""
        if session.closed or not session.pageable:
            self.drop(session)
            return
        self._connections.pop(session.connection, None)
        self._left[session.handle] = session

    def leave_connection(self, connection: str) -> None:
        """`leave` the session of a connection that has ended, if it had one."""
        session = self.of_connection(connection)
        if session is not None:
            self.leave(session)

    def drop_idle(self) -> None:
        """Close the sessions that nobody has used for too long."""
        oldest = time.monotonic() - self._idle_seconds
        for session in list(self._open.values()):
            if session.used < oldest and not session.busy:
                self.drop(session)

    async def keep_tidy(self) -> None:
        """Close idle sessions for ever, until cancelled."""
        while True:
            await asyncio.sleep(min(30.0, self._idle_seconds / 4))
            self.drop_idle()
