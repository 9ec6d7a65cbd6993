"""What all agents share: the base class, the budget of a question, and the question at work.

An agent defines `work`, which answers the question of an `Episode`. An exception in it ends this
question alone, and the trajectory records all that happened before: a tool's refusal is a result
and no exception, so an exception means a defect or a broken backend.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any, ClassVar, TypeVar

from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError, Runtime, check_int, check_number
from soundingline.toolkit.llm.errors import OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import ChatModel, SamplingParams, user
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.runs.run_folder import RoundsFile
from soundingline.toolkit.search.answers import ShownText
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import Continuation, ToolResult
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, STAGES, Answer, Trajectory

T = TypeVar("T")
Clock = Callable[[], float]
CLOCKS = ("wall", "virtual")
SPEEDS = ("input", "output")
End = tuple[str, str]  # the status and the reason with which a question ends


@dataclass(frozen=True)
class Budget:
    """Limits of one question and of the run. None means no limit.

    Args:
        seconds: time of a question. At `steer_at` of it the model is informed once that time is
            nearly over, and every later tool call is refused; at the end the question is stopped.
        steer_at: a share of `seconds`, above 0 and at most 1 (1: the model is never informed).
        turns: replies in which the model may call tools.
        tool_calls: tool calls, refused ones included.
        exposed_tokens: tokens of tool results, as the measure `tokens_exposed` counts them. The
            result that reaches the limit is shown in full, and later calls are refused.
        output_tokens: tokens of all replies, reasoning included. Checked between replies.
        context_window: tokens that the transcript may take, by the server's counts and our
            estimate of what came since; a run takes them from its language model. The larger of
            `answer_tokens` and the longest reply that a request asks for stays free.
        answer_tokens: tokens of the window that are reserved for the answer. 0 reserves nothing:
            replies are shortened to what is left until none fits.
        dollars, run_dollars: cost of a question and of the run. Need a known price.
        clock: what `seconds` are: `wall`, or `virtual`, the sum of declared seconds, which depends
            neither on the machine nor on caches, servers and other questions. Nothing is stopped
            while it is under way: a reply that ends too late is lost when it has arrived.
        speed: tokens of the model in a second, `input` and `output`, which the virtual clock
            needs. Input that the request before had too is not charged again, because servers
            cache prefixes.
        stage_seconds: virtual seconds that each stage adds to a search, by `STAGES`. 0 by default.

    When a limit other than `seconds` is reached, the model is asked once more, without tools, for
    its final answer. Each limit has an exit status of its own.

    Raises:
        InputError: for impossible values.

    Example:
        >>> Budget(turns=20, tool_calls=30, seconds=600).is_late(500)
        True
    """

    seconds: float | None = None
    steer_at: float = 0.7
    turns: int | None = None
    tool_calls: int | None = None
    output_tokens: int | None = None
    context_window: int | None = None
    answer_tokens: int = 4000
    dollars: float | None = None
    run_dollars: Runtime[float | None] = None
    exposed_tokens: int | None = None
    clock: str = "wall"
    speed: Mapping[str, float | None] = field(default_factory=dict)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        no_limit = "set null for no limit"
        for name in ("turns", "tool_calls", "exposed_tokens", "output_tokens", "context_window"):
            if (value := getattr(self, name)) is not None:
                check_int(f"budget.{name}", value, do=no_limit)
        for name in ("seconds", "dollars", "run_dollars"):
            if (value := getattr(self, name)) is not None:
                check_number(f"budget.{name}", value, gt=0, do=no_limit)
        check_int("budget.answer_tokens", self.answer_tokens, ge=0)
        check_number("budget.steer_at", self.steer_at, gt=0, le=1, do="set 1 to never steer")
        if self.clock not in CLOCKS:
            raise InputError(f"budget.clock is {self.clock!r}", valid=", ".join(CLOCKS))
        for table, names in (("speed", SPEEDS), ("stage_seconds", STAGES)):
            if unknown := set(getattr(self, table)) - set(names):
                raise InputError(
                    f"budget.{table} names {', '.join(sorted(unknown))}", valid=", ".join(names)
                )
        for stage, seconds in self.stage_seconds.items():
            check_number(f"budget.stage_seconds.{stage}", seconds)
        for name in SPEEDS if self.is_virtual else ():
            do = "declare the tokens of the model in a second, or set budget.clock=wall"
            check_number(f"budget.speed.{name}", self.speed.get(name), gt=0, do=do)

    @property
    def is_virtual(self) -> bool:
        """Whether seconds are declared and not measured."""
        return self.clock == "virtual"

    def reply_seconds(self, input: int, output: int) -> float:
        """The virtual seconds of a reply of so many `output` tokens to `input` new ones."""
        tokens = {"input": input, "output": output}
        return sum(tokens[name] / speed for name, speed in self.speed.items() if speed)

    def search_seconds(self, stages: Iterable[str]) -> float:
        """The virtual seconds of a search by these stages."""
        return sum(self.stage_seconds.get(stage, 0.0) for stage in stages)

    def exhausted(self, **spent: float) -> str:
        """The first of these limits that is reached, by its name; empty if none is."""
        limits = {name: getattr(self, name) for name in spent}
        reached = (name for name, most in limits.items() if most and spent[name] >= most)
        return next(reached, "")

    def is_late(self, seconds: float) -> bool:
        """Whether `steer_at` of the time is over after so many seconds."""
        return self.seconds is not None and seconds >= self.steer_at * self.seconds

    def is_over(self, seconds: float) -> bool:
        """Whether all of the time is over after so many seconds."""
        return self.seconds is not None and seconds >= self.seconds

    def seconds_left(self, seconds: float) -> float | None:
        """The seconds that are left after so many. None without a limit."""
        return None if self.seconds is None else self.seconds - seconds

    def patience(self, seconds: float) -> float | None:
        """The seconds of the wall clock for which a result is awaited after `seconds` of the
        question. None: until it is there, also under the virtual clock while time is left."""
        left = self.seconds_left(seconds)
        return None if left is None or (self.is_virtual and left > 0) else left


@dataclass(frozen=True)
class RunResources:
    """The run-time resources of an agent.

    Args:
        ledger: where requests are recorded. None: a new ledger.
        model: None before it runs, or if the run has none.
        settings: how the model samples.
        document_frequency: word -> number of documents of the collection that contain it, and
        documents: the number of documents. None if that is not known.
        resolver: makes, at its first use, what maps titles, urls and identifiers to documents.
        stages: the groups of the pipeline's stages, which `Budget.stage_seconds` charges.
        reader: gives the answer to a question id after the shown texts, in place of a language
            model (`SimulatedReader`). None if the agent does not use one.
        rounds: question id -> the file of its finished rounds. None: rounds are not saved.
    """

    budget: Budget
    ledger: Ledger | None = None
    model: ChatModel | None = None
    settings: SamplingParams | None = None
    price: Price = UNKNOWN
    document_frequency: Callable[[str], int] | None = None
    documents: int | None = None
    resolver: Callable[[], Resolver] | None = None
    stages: Collection[str] = ()
    reader: Callable[[str, Iterable[ShownText]], Answer] | None = None
    rounds: Callable[[str], RoundsFile] | None = None


class Agent:
    """Base class of agents. An agent turns one question into one trajectory.

    A subclass defines `name` and `work`. The constructor takes plain values, is cheap, and is what
    a configuration names. An agent that makes its own `Trajectory` overrides `run` instead.

    Example:
        >>> class FirstHit(Agent):
        ...     name = "first_hit"
        ...
        ...     async def work(self, episode):
        ...         page = episode.search(episode.topic.text, "The question as it is.").page
        ...         episode.finish(f"Explanation: [{page.shown[0]}]\\nExact Answer: unknown")
        >>> asyncio.run(FirstHit().run(topic, tool)).answer.citations
        ('d1',)
    """

    name: str
    clock: Clock = time.monotonic
    resources: RunResources = RunResources(Budget())
    """What `bind` was given, in agents whose questions have a budget of seconds."""
    requires_llm: ClassVar[bool] = False
    """Whether the agent cannot work without a language model."""
    accepts_llm: ClassVar[bool] = False
    """Whether the agent asks the run's language model. If not, the run starts none for it, and the
    model's settings are not part of the run's name."""
    reads_document_frequencies: ClassVar[bool] = False
    """Whether the agent reads the collection's document frequencies, which need an index."""
    uses_reader: ClassVar[bool] = False
    """Whether a simulated reader answers for the agent, by what the benchmark's answers need."""
    calls_tools: ClassVar[bool] = True
    """Whether the agent calls the tools of its session. If not, the run builds no pipeline."""
    offers_tools: ClassVar[bool] = True
    """Whether the agent offers a language model the tools of its session."""

    def bind(self, resources: RunResources) -> Agent:
        """A copy of this agent that works with `resources`. Raises `InputError` if the agent cannot
        work with them. A run calls it once before its model has started, to find such errors."""
        return self

    def check_tool(self, tool: SearchTool) -> None:
        """Raise an `InputError` if the agent cannot work with the tools of a session."""
        return

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Hashes of what the arguments only name, such as the text of a prompt, by name. They are
        recorded in the manifest."""
        return {}

    def tool_fingerprints(self, tool: SearchTool) -> Mapping[str, str]:
        """Hashes of what the agent takes from a session beyond its calls, in the same way."""
        return {}

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """Answer one question with the tools of a session that belongs to it."""
        episode = self.open(topic, tool)
        try:
            await self.work(episode)
            await episode.read_answer()
        except Exception as error:
            return episode.ended_by(error)
        return episode.trajectory()

    def open(self, topic: Topic, tool: SearchTool) -> Episode:
        """The question before the agent works on it."""
        return Episode(
            topic,
            tool,
            opening=self.opening(topic, tool),
            offers_tools=self.offers_tools,
            parse_answer=partial(self.parse_answer, tool),
            clock=self.clock,
            resources=self.resources,
        )

    def opening(self, topic: Topic, tool: SearchTool) -> Sequence[Mapping[str, Any]]:
        """The messages at the start: by default the question as a message of the user."""
        return [user(topic.text)]

    def parse_answer(self, tool: SearchTool, text: str) -> Answer:
        """The parts of a final answer. By default the session reads it and marks its citations."""
        return tool.answer(text)

    async def work(self, episode: Episode) -> None:
        """Answer the question: call the tools of `episode`, and end with `episode.finish`. What is
        raised fails the question (`Episode.ended_by`)."""
        raise NotImplementedError(f"{type(self).__name__} defines neither `work` nor `run`")


class Episode:
    """One question at work: its messages in the function-calling format (question, tool calls of
    the assistant, tool results, final answer), its answer and its status.

    Args:
        topic, tool: the question, and the session of a tool that was opened for it.
        opening: the messages at the start; None: the question as a message of the user.
        offers_tools: see `Agent`.
        parse_answer: returns the parts of a final answer; None: as the session does.
        clock: returns seconds from any fixed time.
        resources: what decides how `seconds` are counted (`Budget.clock`).

    Example:
        >>> episode = Episode(topic, tool)
        >>> episode.search("old mill", "It may be in the text.").page.shown
        ('d1',)
        >>> episode.finish("Explanation: [d1]\\nExact Answer: 1820\\nConfidence: 90%")
        >>> [message["role"] for message in episode.messages]
        ['user', 'assistant', 'tool', 'assistant']
    """

    def __init__(
        self,
        topic: Topic,
        tool: SearchTool,
        *,
        opening: Sequence[Mapping[str, Any]] | None = None,
        offers_tools: bool = True,
        parse_answer: Callable[[str], Answer] | None = None,
        clock: Clock = time.monotonic,
        resources: RunResources = RunResources(Budget()),
    ) -> None:
        self.topic = topic
        self.tool = tool
        self._offers_tools, self._parse_answer = offers_tools, parse_answer or tool.answer
        messages = [user(topic.text)] if opening is None else opening
        self.messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self.answer = Answer()
        self._final = ""
        self.status = "completed"
        self.reason = ""
        self.usage: Mapping[str, float] = {}
        self.warnings: list[str] = []
        self.rounds: list[Mapping[str, Any]] = []
        self.earlier_seconds = 0.0
        self.reply_seconds = 0.0
        self.budget = resources.budget
        self._search_seconds = self.budget.search_seconds(resources.stages)
        self._clock = clock
        self._began = clock()
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")

    @property
    def wall_seconds(self) -> float:
        """Seconds since the question began, those of the start that it continues included."""
        return self.earlier_seconds + self._clock() - self._began

    @property
    def seconds(self) -> float:
        """Seconds of the question by the clock of its budget, which decide when it ends."""
        if not self.budget.is_virtual:
            return self.wall_seconds
        searches = sum(call.searched for call in self.tool.calls)
        return self.reply_seconds + self._search_seconds * searches

    def charge(self, input: int, output: int) -> None:
        """Charge the virtual seconds of a reply of `output` tokens to `input` new ones."""
        if self.budget.is_virtual:
            self.reply_seconds += self.budget.reply_seconds(input, output)

    def search(self, query: str, reason: str) -> ToolResult | None:
        """Search with whatever tool of the interface takes a query. None if the tool refuses.
        `InputError` if the interface has no such tool."""
        name, argument = search_tool_of(self.tool)
        return _unless_failed(self.call(name, {argument: query}, reason=reason))

    def read(self, unit_id: str, reason: str) -> ToolResult | None:
        """Read a document from where the tool begins. None if the tool refuses, or if the interface
        has no tool that reads."""
        if self.tool.read_tool is None:
            return None
        name, argument = self.tool.read_tool
        return _unless_failed(self.call(name, {argument: unit_id}, reason=reason))

    def follow(self, continuation: Continuation, reason: str) -> ToolResult | None:
        """Open what follows a page. None if the tool refuses."""
        result = self.call(continuation.tool, continuation.arguments, reason=reason)
        return _unless_failed(result)

    def specs(self) -> list[dict[str, Any]]:
        """The tools that a language model is offered, as `SearchTool.specs` gives them."""
        return self.tool.specs() if self._offers_tools else []

    def call(self, name: str, arguments: Mapping[str, Any], *, reason: str = "") -> ToolResult:
        """Call a tool. The messages record the call and the result. `reason` is the text of the
        call's message, and an argument of the call if the tool takes it."""
        if reason and "reason" in self.tool.arguments(name):
            arguments = {"reason": reason, **arguments}
        identifier = self._request(name, arguments, reason)
        result = self.tool.call(name, arguments)
        self.add_result(identifier, result)
        return result

    def record(self, served: ToolResult, content: str) -> ToolResult:
        """Record a call that the session has served concurrently with others, as `call` does."""
        identifier = self._request(served.call.name, served.call.arguments, content)
        result = self.tool.record(served)
        self.add_result(identifier, result)
        return result

    def _request(self, name: str, arguments: Mapping[str, Any], content: str) -> str:
        identifier = f"call_{len(self.tool.calls) + 1}"
        function = {"name": name, "arguments": json.dumps(dict(arguments), ensure_ascii=False)}
        request = {"id": identifier, "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": content, "tool_calls": [request]})
        return identifier

    def add_result(self, identifier: str, result: ToolResult) -> None:
        """Add the message with the result of the tool call `identifier`."""
        self.messages.append({"role": "tool", "tool_call_id": identifier, "content": result.text})

    def finish(self, text: str, *, status: str = "completed", reason: str = "") -> None:
        """Add the final message of the assistant, which contains the answer, and conclude."""
        self.messages.append({"role": "assistant", "content": text})
        self.conclude(text, status=status, reason=reason)

    def conclude(self, text: str, *, status: str, reason: str = "") -> None:
        """End the question. `read_answer` reads the answer in `text`, if it contains one."""
        self._final = text
        self.status, self.reason = status, reason

    async def read_answer(self) -> None:
        """Read the parts of the answer. In a thread, because an answer may be long and the clocks
        of other questions go on."""
        self.answer = await asyncio.to_thread(self._parse_answer, self._final)

    def ended_by(self, error: Exception) -> Trajectory:
        """All that happened until `error` ended the question. The status is `out_of_money` if a cap
        was reached, also by a stage of the pipeline. Otherwise it is `failed`, with the traceback,
        and with the error's `code` as the reason if it has one."""
        if isinstance(error, OutOfMoney):
            self.status, self.reason = out_of_money(error)
            return self.trajectory()
        self.status, self.reason = "failed", str(getattr(error, "code", "")) or "defect"
        return self.trajectory("".join(traceback.format_exception(error)))

    def trajectory(self, failure: str = "") -> Trajectory:
        """All that happened; `failure` is the traceback of a question that failed."""
        return Trajectory(
            qid=self.topic.qid,
            question=self.topic.text,
            status=self.status,
            answer=self.answer,
            messages=tuple(self.messages),
            calls=tuple(self.tool.calls),
            tiers={tier: tuple(docids) for tier, docids in self.tool.exposures.tiers.items()},
            exposures=tuple(self.tool.exposures.rows),
            usage=dict(self.usage),
            started=self._started,
            seconds=self.wall_seconds,
            virtual_seconds=self.seconds if self.budget.is_virtual else None,
            traceback=failure,
            reason=self.reason,
            warnings=tuple(self.warnings),
            rounds=tuple(self.rounds),
        )


def _unless_failed(result: ToolResult) -> ToolResult | None:
    return None if result.failed else result


def search_tool_of(tool: SearchTool) -> tuple[str, str]:
    """The tool that searches and its argument for the query. `InputError` if there is none."""
    search = tool.search_tool
    if search is None:
        raise InputError(
            "the search tool declares no tool that searches, and the agent needs one",
            valid="an interface with a tool whose searches_by is set",
            do="set searches_by on that tool of the interface, or choose another tool",
        )
    return search


class OutOfTime(Exception):
    """The question's seconds are over."""


async def within(work: Awaitable[T], seconds: float | None) -> T:
    """The result of `work`, or `OutOfTime`; a coroutine is not begun if no time is left. Unlike
    `asyncio.wait_for`, it does not mistake a time-out that `work` itself raises for its own. A
    thread cannot be stopped and runs on."""
    task = asyncio.ensure_future(work)
    try:
        if seconds is None or seconds > 0:
            await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise OutOfTime
    except (asyncio.CancelledError, OutOfTime):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()


def out_of_money(error: OutOfMoney) -> End:
    """The end of a question for which a cap left no money."""
    return "out_of_money", RUN_OUT_OF_MONEY if error.scope == "run" else "dollars"
