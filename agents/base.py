"""What every loop shares: one question being worked on, and the trajectory that comes of it.

An agent's `run` is `return await play(topic, tool, self.work, clock=...)`. What its work raises is
caught in `play`: a tool's refusal is a result and not an exception, so whatever raises is a
defect or a broken backend, and ends this question alone, with all that happened so far on record.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar, Protocol

from soundingline.agents.budget import Budget
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Topic
from soundingline.toolkit.llm.errors import OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import ChatModel, SamplingParams
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ToolResult
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, Answer, Trajectory

Clock = Callable[[], float]


class RoundsOnRecord(Protocol):
    """Whole rounds of one question, which outlive the process
    (`soundingline.toolkit.runs.run_folder`)."""

    def read(self) -> list[dict[str, Any]]: ...

    def append(self, record: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Resources:
    """What only a run can give its agent.

    - `budget`: the limits of a question. `ledger`: where requests are entered (None: a new one).
    - `model` answers (None before it runs), sampled by `settings`; its tokens cost `price`.
    - `document_frequency`: word -> documents of the collection that hold it; `documents`: the
      collection's size. Both None where that is not known.
    - `rounds`: question id -> its whole rounds on disk, for an agent that works in rounds; None:
      they are kept nowhere.
    - `resolver` gives what maps titles, urls and identifiers to documents; it is made when it is
      first asked for. None where there is none.
    """

    budget: Budget
    ledger: Ledger | None = None
    model: ChatModel | None = None
    settings: SamplingParams | None = None
    price: Price = UNKNOWN
    document_frequency: Callable[[str], int] | None = None
    documents: int | None = None
    resolver: Callable[[], Resolver] | None = None
    rounds: Callable[[str], RoundsOnRecord] | None = None


class BaseAgent(ABC):
    """An agent that a run hands something to. Its constructor takes plain arguments and is cheap.
    One that needs nothing of a run need not be of this class: `Agent` is enough."""

    name: str
    asks_model: ClassVar[bool] = False
    """Whether it cannot work without a language model."""
    uses_model: ClassVar[bool] = True
    """Whether it asks a language model where the run has one. One that never does leaves the model
    out of the run, and its settings out of the cell's name."""
    reads_frequencies: ClassVar[bool] = True
    """Whether it reads the collection's document frequencies, which are those of an index."""
    calls_tools: ClassVar[bool] = True
    """Whether it calls the tools of its session; a run prepares nothing to rank with for one that
    never does."""

    def bind(self, resources: Resources) -> BaseAgent:
        """An agent that works with `resources`; this one stays as it is. `InputError` where they
        cannot work, also before the model runs."""
        return self

    def check_tool(self, tool: SearchTool) -> None:
        """`InputError` where it cannot work with the tools of a session."""
        return

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Hashes of what the arguments only name, such as a prompt's text, for the manifest."""
        return {}

    @abstractmethod
    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """See `Agent`."""


class Episode:
    """One question being worked on: its messages in the plain function-calling format (user
    question, assistant tool calls, tool results, final assistant answer), its answer and status.

    Belongs to one question. `opening`: the messages that it begins with (None: the question as a
    user's message); `clock` gives seconds and serves tests.
    """

    def __init__(
        self,
        topic: Topic,
        tool: SearchTool,
        *,
        opening: Sequence[Mapping[str, Any]] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.topic = topic
        self.tool = tool
        messages = [{"role": "user", "content": topic.text}] if opening is None else opening
        self.messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self.answer = Answer()
        self._final = ""
        self.status = "completed"
        self.reason = ""
        self.usage: Mapping[str, float] = {}
        self.warnings: list[str] = []
        self.rounds: list[Mapping[str, Any]] = []
        self.earlier_seconds = 0.0
        self._clock = clock
        self._began = clock()
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")

    @property
    def seconds(self) -> float:
        """Seconds since the question was begun; with those of an earlier start that it goes on
        from."""
        return self.earlier_seconds + self._clock() - self._began

    def call(self, name: str, arguments: Mapping[str, Any], *, content: str = "") -> ToolResult:
        """Call the tool; on record as an assistant message (`content` and the call) and a tool
        message (the result's text)."""
        identifier = f"call_{len(self.tool.calls) + 1}"
        self.requested(identifier, name, arguments, content)
        result = self.tool.call(name, arguments)
        self.answered(identifier, result)
        return result

    def answered(self, identifier: str, result: ToolResult) -> None:
        """The result of the tool call `identifier`, on record as a tool message."""
        self.messages.append({"role": "tool", "tool_call_id": identifier, "content": result.text})

    def requested(
        self, identifier: str, name: str, arguments: Mapping[str, Any], content: str
    ) -> None:
        """A tool call of the assistant, with what it says beside it, on record as a message."""
        function = {"name": name, "arguments": json.dumps(dict(arguments), ensure_ascii=False)}
        request = {"id": identifier, "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": content, "tool_calls": [request]})

    def finish(self, text: str, *, status: str = "completed", reason: str = "") -> None:
        """The final assistant message, which holds the answer."""
        self.messages.append({"role": "assistant", "content": text})
        self.conclude(text, status=status, reason=reason)

    def conclude(self, text: str, *, status: str, reason: str = "") -> None:
        """The question has ended, with the answer in `text` where it holds one. `play` reads it."""
        self._final = text
        self.status, self.reason = status, reason

    async def read_answer(self) -> None:
        """Let the session read the answer's parts and mark what it cites. In a thread, since an
        answer may be long and the clocks of other questions run on meanwhile."""
        self.answer = await asyncio.to_thread(self.tool.answer, self._final)

    def ended_by(self, error: Exception) -> Trajectory:
        """All that happened until `error` ended the question: `out_of_money` where a cap is
        reached, be it by a stage of the pipeline; else `failed`, with the traceback, and with the
        error's `code` as reason where it has one."""
        if isinstance(error, OutOfMoney):
            reason = RUN_OUT_OF_MONEY if error.scope == "run" else "dollars"
            self.conclude("", status="out_of_money", reason=reason)
            return self.trajectory()
        lines = "".join(traceback.format_exception(error))
        return self.trajectory(failure=lines, reason=str(getattr(error, "code", "")) or "defect")

    def trajectory(self, *, failure: str = "", reason: str = "") -> Trajectory:
        """All that happened. `failure` is a traceback, and makes the status `failed`."""
        return Trajectory(
            qid=self.topic.qid,
            question=self.topic.text,
            status="failed" if failure else self.status,
            answer=self.answer,
            messages=tuple(self.messages),
            calls=tuple(self.tool.calls),
            tiers={tier: tuple(docids) for tier, docids in self.tool.exposures.tiers.items()},
            exposures=tuple(self.tool.exposures.rows),
            usage=dict(self.usage),
            started=self._started,
            seconds=self.seconds,
            traceback=failure,
            reason=reason or self.reason,
            warnings=tuple(self.warnings),
            rounds=tuple(self.rounds),
        )


async def play(
    topic: Topic,
    tool: SearchTool,
    work: Callable[[Episode], Awaitable[None]],
    *,
    opening: Sequence[Mapping[str, Any]] | None = None,
    clock: Clock = time.monotonic,
) -> Trajectory:
    """Let `work` answer the question. What it raises ends the question: see `Episode.ended_by`."""
    episode = Episode(topic, tool, opening=opening, clock=clock)
    try:
        await work(episode)
        await episode.read_answer()
    except Exception as error:
        return episode.ended_by(error)
    return episode.trajectory()


class Agent(Protocol):
    """Turns one question into one trajectory."""

    name: str

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory: ...
