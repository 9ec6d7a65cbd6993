"""One client's session: its tools, and the question that it works on."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from agents.base import Episode
from toolkit.contracts import SearchTool, ToolInterface, Topic

NO_TOPIC = Topic("", "")


@dataclass(eq=False)
class ServedSession:
    """A session that a client reaches by its `handle`, which nobody can guess.

    `topic` is the question that it works on, None where it has none. `episode` holds the tools'
    state and, in a run, what becomes the trajectory. One call at a time holds `turn`; `waiting`
    counts those that want it. `connection` is the connection whose session this is, if any.
    """

    interface: ToolInterface
    episode: Episode
    topic: Topic | None = None
    connection: str = ""
    handle: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    calls: int = 0
    closed: bool = False
    used: float = field(default_factory=time.monotonic)

    @property
    def busy(self) -> bool:
        """Whether a call is under way or waits."""
        return self.waiting > 0 or self.turn.locked()

    def begin(self, topic: Topic | None, tool: SearchTool) -> None:
        """Work on another question, or on none, with tools that know nothing yet."""
        self.topic = topic
        self.episode = Episode(topic or NO_TOPIC, tool)
        self.calls = 0
