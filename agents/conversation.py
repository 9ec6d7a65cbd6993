"""One question's exchange with a model: what was said, what it took, and how much is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from soundingline.agents.base import Budget, Episode
from soundingline.agents.demands import Demands
from soundingline.agents.prefix import PrefixWatch
from soundingline.agents.prompt import AgentPrompt
from soundingline.agents.window import Window, written
from soundingline.toolkit.llm.errors import ContextOverflow, ModelError
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import (
    ChatModel,
    Message,
    SamplingParams,
    ToolCall,
    Turn,
    user,
)
from soundingline.toolkit.search.tool import ToolResult

T = TypeVar("T")
# Of a reply that the server does not count.
_BYTES_A_TOKEN = 3


class OutOfTime(Exception):
    """The question's seconds are over."""


class NoAnswer(Exception):
    """The model was asked again and gave nothing again; `code` tells what."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class AgentSetup:
    """What holds for all questions of an agent."""

    prompt: AgentPrompt
    budget: Budget
    settings: SamplingParams
    answer_extra: Mapping[str, Any]
    ledger: Ledger
    remind: bool = False
    first_call: str | None = None


class Conversation:
    """The transcript of `episode` with `model`. It only ever grows at its end; what is sent is all
    of it, but for what `retreat` leaves out. Raises what the model raises, and `OutOfTime` where a
    reply or a tool's result does not come in time."""

    def __init__(self, episode: Episode, model: ChatModel, setup: AgentSetup) -> None:
        self.episode = episode
        self.steered = False
        self.refused_turns = 0
        self.cramped = False  # Whether the last request had to ask for a shorter reply.
        self.watch = PrefixWatch()
        self._model = model
        self._setup = setup
        self._tools = episode.tool.specs()
        self._closed = not self._tools
        self._turns = 0
        self._output = 0
        budget = setup.budget
        self._window = Window(
            budget.context_window,
            answer=budget.answer_tokens,
            longest_reply=setup.settings.max_output_tokens,
            tools=self._tools,
        )
        # Messages that the next request leaves out, and those that the last one did.
        self._left_out = self._was_left_out = range(0)
        self._too_long = 0  # Messages of the last request, where its reply found too little room.
        self._spent = self._dearest = 0.0
        self._asked_again = 0
        self.demands = Demands(
            episode, setup.prompt, remind=setup.remind, first_call=setup.first_call
        )

    @property
    def left(self) -> float | None:
        """Seconds left; None without a limit."""
        seconds = self._setup.budget.seconds
        return None if seconds is None else seconds - self.episode.seconds

    def make_room(self, text: str) -> bool:
        """Whether a last reply fits the window behind a message that says `text`, as far as is
        known. Where the answer does not, this leaves out what `retreat` does."""
        return (
            self._window.fits_answer((*self._sent(), user(text)))
            or self.retreat(text)
            or self._window.fits_anything((*self._sent(), user(text)))
        )

    def retreat(self, text: str) -> bool:
        """Leave the newest exchange, such as a page that was too long, out of what is sent: back to
        a request that the server took, and at the next call to the one before. Whether there is
        one, and room for a reply behind a message that says `text`."""
        below = self._left_out.start or self._too_long or len(self._sent())
        first = self._window.retreat(below)
        if not first:
            return False
        self._left_out = range(first, len(self.episode.messages))
        self.watch.shortened(first)
        return self._window.fits_anything((*self._sent(), user(text)))

    @property
    def called_closed_tools(self) -> bool:
        """Whether the model has just called tools, and was told that they are closed."""
        return self.episode.messages[-1]["role"] == "tool"

    @property
    def warnings(self) -> list[str]:
        """What the trajectory should tell of how messages were sent."""
        gap = self._was_left_out
        left_out = (
            f"messages {gap.start + 1} to {gap.stop} were left out of the last request: there was "
            "no room for them and an answer in the context window"
        )
        return [*self.watch.warnings, *([left_out] if gap else [])]

    def used_up(self) -> str:
        """The first budget that allows no further call of tools; empty while all do."""
        budget, cap = self._setup.budget, self._setup.ledger.question_cap
        checks = (
            ("turns", budget.turns and self._turns >= budget.turns),
            ("tool_calls", self._calls_used_up()),
            ("output_tokens", budget.output_tokens and self._output >= budget.output_tokens),
            ("context_window", self._window.full(self._sent())),
            # The answer is to be paid for as well.
            ("dollars", cap and self._dearest and self._spent + 2 * self._dearest >= cap),
        )
        return next((name for name, used in checks if used), "")

    def steer_if_due(self) -> None:
        """Tell the model once that its time is nearly over; tools are closed from then on."""
        if not self.steered and self._steering_due():
            self.steered = True
            self.close_tools()
            self.say(self._setup.prompt.sections["steer"])

    @property
    def may_call(self) -> bool:
        """Whether the next reply may call a tool."""
        return not (self._closed or self._steering_due() or self.used_up())

    def close_tools(self) -> None:
        """Refuse every later tool call."""
        self._closed = True
        self.episode.tool.block(self._setup.prompt.sections["blocked"])

    def say(self, text: str) -> None:
        """A message of the harness, as the user."""
        self.episode.messages.append(user(text))

    async def ask(self, *, answer_only: bool = False) -> Turn:
        """The model's next turn, on record."""
        settings = self._setup.settings
        if answer_only:
            extra = {**settings.extra, **self._setup.answer_extra}
            settings = replace(settings, tool_choice="none", extra=extra)
        elif not self._closed and (name := self.demands.forced_call()):
            settings = replace(settings, tool_choice=name)
        messages = self._sent()
        longest = self._window.longest_reply(messages)
        self.cramped = longest != settings.max_output_tokens
        settings = replace(settings, max_output_tokens=longest)
        self._was_left_out = self._left_out
        self.watch.sending(messages, self._tools)
        self._turns += 1
        try:
            turn = await self._in_time(self._model.respond(messages, self._tools, settings))
        except ModelError as error:
            if isinstance(error, ContextOverflow):
                self._window.overflow()
            self._too_long = len(messages)
            if error.turn:
                # Half a call cannot be answered, and half a provider's item cannot be sent back.
                self._heard(messages, replace(error.turn, tool_calls=(), provider={}))
            raise
        finally:
            self._settle()
        self._too_long = 0
        self._heard(messages, turn)
        if self.left is not None and self.left <= 0:
            raise OutOfTime
        return turn

    async def serve(self, turn: Turn) -> None:
        """Serve the turn's calls in order, each in a thread; what is wrong with one comes back as
        its result. The session learns what the model thought last."""
        tool = self.episode.tool
        self.demands.draft = ""  # It was not the model's last word.
        if newest := turn.reasoning or turn.text:
            tool.reasoning = newest
        self.refused_turns += self.steered or not self._tools
        for call in turn.tool_calls:
            if self._calls_used_up() or self._steering_due():
                self.close_tools()
            result = await self._in_time(asyncio.to_thread(self._served, call))
            self.episode.add_result(call.id, result)

    def demand(self, answer: str) -> bool:
        """Make the demands on a model that gives an `answer`: a search first, where a tool can
        still be called, and the format. Whether one was made."""
        may_call = self.may_call
        searches = may_call and self.demands.search_first()
        return searches or self.demands.remind(answer, closed=not may_call)

    def ask_again(self, section: str, code: str, error: Exception | None = None) -> None:
        """Say the prompt's `section` after a reply that cannot be used, or its words for closed
        tools; once a question, then the `error`, or `NoAnswer`."""
        if self._asked_again:
            raise error or NoAnswer(code, f"no usable reply after {self._turns} turns")
        self._asked_again += 1
        closed = self._tools and not self.may_call
        self.say(self._setup.prompt.words(f"{section}_closed" if closed else section))

    def _served(self, call: ToolCall) -> ToolResult:
        try:
            arguments = call.parsed()
        except ValueError:
            # The session refuses text where an object belongs, and quotes it.
            arguments = call.arguments
        return self.episode.tool.call(call.name, arguments)

    async def _in_time(self, work: Awaitable[T]) -> T:
        return await within(work, self.left)

    def _steering_due(self) -> bool:
        budget = self._setup.budget
        if budget.seconds is None or budget.steer_at == 1:
            return False
        return self.episode.seconds >= budget.steer_at * budget.seconds

    def _calls_used_up(self) -> bool:
        most = self._setup.budget.tool_calls
        return most is not None and len(self.episode.tool.calls) >= most

    def _sent(self) -> Sequence[Message]:
        """The messages of the next request."""
        messages, gap = self.episode.messages, self._left_out
        return (*messages[: gap.start], *messages[gap.stop :])

    def _heard(self, messages: Sequence[Message], turn: Turn) -> None:
        usage = turn.usage
        message = turn.message()
        counts = {"input": usage.input, "cached": usage.cached, "output": usage.output}
        message["usage"] = {name: value for name, value in counts.items() if value is not None}
        self.episode.messages.append(message)
        self.watch.replied(usage)
        output = written(message) // _BYTES_A_TOKEN if usage.output is None else usage.output
        self._output += output
        self._window.took(messages, message, counted=usage.input, output=output)

    def _settle(self) -> None:
        accounts = self._setup.ledger.by_role(self.episode.topic.qid).values()
        spent = sum(account.dollars for account in accounts)
        self._dearest = max(self._dearest, spent - self._spent)
        self._spent = spent


async def within(work: Awaitable[T], seconds: float | None) -> T:
    """The result of `work`, or `OutOfTime`. Unlike `asyncio.wait_for`, it does not mistake a
    time-out that `work` itself raises for its own. A thread cannot be stopped: it goes on alone."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=None if seconds is None else max(0.0, seconds))
    except asyncio.CancelledError:
        await _cancelled(task)
        raise
    if not task.done():
        await _cancelled(task)
        raise OutOfTime
    return task.result()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
