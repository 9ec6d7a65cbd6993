"""What every loop shares: one question being worked on, and the trajectory that comes of it.

An agent's `run` is `return await play(topic, tool, self.work, clock=...)`. The one `try` of the
agents is in `play`: a tool's refusal is a result and not an exception, so whatever raises is a
defect or a broken backend, and ends this question alone, with all that happened so far on record.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from toolkit.contracts import Answer, SearchTool, ToolResult, Topic, Trajectory

Clock = Callable[[], float]


class Episode:
    """One question being worked on: its messages in the plain function-calling format (user
    question, assistant tool calls, tool results, final assistant answer), its answer and status.

    Belongs to one question; `clock` gives seconds and serves tests.
    """

    def __init__(self, topic: Topic, tool: SearchTool, *, clock: Clock = time.monotonic) -> None:
        self.topic = topic
        self.tool = tool
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": topic.text}]
        self.answer = Answer()
        self.status = "completed"
        self.usage: Mapping[str, float] = {}
        self._clock = clock
        self._began = clock()
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")

    @property
    def seconds(self) -> float:
        """Seconds since the question was begun."""
        return self._clock() - self._began

    def call(self, name: str, arguments: Mapping[str, Any], *, content: str = "") -> ToolResult:
        """Call the tool; on record as an assistant message (`content` and the call) and a tool
        message (the result's text)."""
        identifier = f"call_{len(self.tool.calls) + 1}"
        function = {"name": name, "arguments": json.dumps(dict(arguments), ensure_ascii=False)}
        request = {"id": identifier, "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": content, "tool_calls": [request]})
        result = self.tool.call(name, arguments)
        self.messages.append({"role": "tool", "tool_call_id": identifier, "content": result.text})
        return result

    def finish(self, text: str, *, status: str = "completed") -> None:
        """The final assistant message; the session reads its parts and marks what it cites."""
        self.messages.append({"role": "assistant", "content": text})
        self.answer, self.status = self.tool.answer(text), status

    def trajectory(self, *, failure: str = "") -> Trajectory:
        """All that happened. `failure` is a traceback, and makes the status `failed`."""
        evidence = self.tool.evidence
        return Trajectory(
            qid=self.topic.qid,
            question=self.topic.text,
            status="failed" if failure else self.status,
            answer=self.answer,
            messages=tuple(self.messages),
            calls=tuple(self.tool.calls),
            tiers={tier: tuple(docids) for tier, docids in evidence.tiers.items()},
            exposures=tuple(evidence.exposures),
            usage=dict(self.usage),
            started=self._started,
            seconds=self.seconds,
            traceback=failure,
        )


async def play(
    topic: Topic,
    tool: SearchTool,
    work: Callable[[Episode], Awaitable[None]],
    *,
    clock: Clock = time.monotonic,
) -> Trajectory:
    """Let `work` answer the question; whatever it raises becomes a `failed` trajectory."""
    episode = Episode(topic, tool, clock=clock)
    try:
        await work(episode)
    except Exception:
        return episode.trajectory(failure=traceback.format_exc())
    return episode.trajectory()
