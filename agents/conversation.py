"""One question's exchange with a model: what was said, what it took, and how much is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agents.base import Episode
from agents.budget import Budget
from agents.prefix import PrefixWatch
from agents.prompt import Prompt
from toolkit.contracts import ToolResult
from toolkit.llm.errors import ModelError
from toolkit.llm.ledger import Ledger
from toolkit.llm.protocol import ChatModel, Message, Settings, ToolCallRequest, Turn, user

T = TypeVar("T")
# English has about four characters a token, other languages and numbers fewer; too high an
# estimate ends a question early, too low a one loses its answer.
_CHARACTERS = 3


class OutOfTime(Exception):
    """The question's seconds are over."""


class NoAnswer(Exception):
    """The model was asked again and gave nothing again; `code` tells what."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class Terms:
    """What holds for all questions of an agent."""

    prompt: Prompt
    budget: Budget
    settings: Settings
    answer_extra: Mapping[str, Any]
    ledger: Ledger


class Conversation:
    """The transcript of `episode` with `model`. It only ever grows at its end. Raises what the
    model raises, and `OutOfTime` where a reply or a tool's result does not come in time."""

    def __init__(self, episode: Episode, model: ChatModel, terms: Terms) -> None:
        self.episode = episode
        self.steered = False
        self.refused_turns = 0
        self.watch = PrefixWatch()
        self._model = model
        self._terms = terms
        self._tools = episode.tool.specs()
        self._turns = 0
        self._output = 0
        # Tokens that the server counted, up to the message after which nothing is counted yet.
        self._counted, self._uncounted_from = 0, 0
        self._spent = self._dearest = 0.0
        self._asked_again = 0

    @property
    def left(self) -> float | None:
        """Seconds left; None without a limit."""
        seconds = self._terms.budget.seconds
        return None if seconds is None else seconds - self.episode.seconds

    @property
    def tokens(self) -> int:
        """Estimate of the next request's input: what the server counted last, and a third of the
        characters since."""
        unseen = self.episode.messages[self._uncounted_from :]
        characters = sum(map(_characters, unseen))
        if not self._uncounted_from:
            characters += len(str(self._tools))
        return self._counted + characters // _CHARACTERS

    @property
    def fits(self) -> bool:
        """Whether the transcript as it is still fits the model's window, as far as is known."""
        window = self._terms.budget.context_window
        return window is None or self.tokens < window

    def used_up(self) -> str:
        """The first budget that allows no further call of tools; empty while all do."""
        budget, cap = self._terms.budget, self._terms.ledger.question_cap
        checks = (
            ("turns", self._turns, budget.turns),
            ("tool_calls", len(self.episode.tool.calls), budget.tool_calls),
            ("output_tokens", self._output, budget.output_tokens),
            ("context_window", self.tokens + budget.answer_tokens, budget.context_window),
            # The answer is to be paid for as well.
            ("dollars", self._spent + 2 * self._dearest if self._dearest else 0.0, cap),
        )
        return next((name for name, used, most in checks if most and used >= most), "")

    def steer_if_due(self) -> None:
        """Tell the model once that its time is nearly over; tools are closed from then on."""
        if not self.steered and self._steering_due():
            self.steered = True
            self.close_tools()
            self.say(self._terms.prompt.sections["steer"])

    def close_tools(self) -> None:
        """Refuse every later tool call."""
        self.episode.tool.block(self._terms.prompt.sections["blocked"])

    def say(self, text: str) -> None:
        """A message of the harness, as the user."""
        self.episode.messages.append(user(text))

    async def ask(self, *, answer_only: bool = False) -> Turn:
        """The model's next turn, on record."""
        settings = self._terms.settings
        if answer_only:
            extra = {**settings.extra, **self._terms.answer_extra}
            settings = replace(settings, tool_choice="none", extra=extra)
        messages: Sequence[Message] = tuple(self.episode.messages)
        self.watch.sending(messages, self._tools)
        self._turns += 1
        try:
            turn = await self._in_time(self._model.respond(messages, self._tools, settings))
        except ModelError as error:
            if error.turn:
                # Half a call cannot be answered, and half a provider's item cannot be sent back.
                self._heard(replace(error.turn, tool_calls=(), provider={}))
            raise
        finally:
            self._settle()
        self._heard(turn)
        if self.left is not None and self.left <= 0:
            raise OutOfTime
        return turn

    async def serve(self, turn: Turn) -> None:
        """Serve the turn's calls in order, each in a thread; what is wrong with one comes back as
        its result. The session learns what the model thought last."""
        tool = self.episode.tool
        if newest := turn.reasoning or turn.text:
            tool.reasoning = newest
        self.refused_turns += self.steered
        for call in turn.tool_calls:
            if self._calls_used_up() or self._steering_due():
                self.close_tools()
            result = await self._in_time(asyncio.to_thread(self._served, call))
            self.episode.answered(call.id, result)

    def ask_again(self, section: str, code: str, error: Exception | None = None) -> None:
        """Say the prompt's `section` after a reply that cannot be used; once a question, then the
        `error`, or `NoAnswer`."""
        if self._asked_again:
            raise error or NoAnswer(code, f"no usable reply after {self._turns} turns")
        self._asked_again += 1
        self.say(self._terms.prompt.sections[section])

    def _served(self, call: ToolCallRequest) -> ToolResult:
        try:
            arguments = call.parsed()
        except ValueError:
            # The session refuses text where an object belongs, and quotes it.
            arguments = call.arguments
        return self.episode.tool.call(call.name, arguments)

    async def _in_time(self, work: Awaitable[T]) -> T:
        return await within(work, self.left)

    def _steering_due(self) -> bool:
        budget = self._terms.budget
        if budget.seconds is None or budget.steer_at == 1:
            return False
        return self.episode.seconds >= budget.steer_at * budget.seconds

    def _calls_used_up(self) -> bool:
        most = self._terms.budget.tool_calls
        return most is not None and len(self.episode.tool.calls) >= most

    def _heard(self, turn: Turn) -> None:
        usage = turn.usage
        message = turn.message()
        counts = {"input": usage.input, "cached": usage.cached, "output": usage.output}
        message["usage"] = {name: value for name, value in counts.items() if value is not None}
        self.episode.messages.append(message)
        self.watch.replied(usage)
        output = _characters(message) // _CHARACTERS if usage.output is None else usage.output
        self._output += output
        if usage.input is not None:
            self._counted = usage.input + output
            self._uncounted_from = len(self.episode.messages)

    def _settle(self) -> None:
        accounts = self._terms.ledger.by_role(self.episode.topic.qid).values()
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


def _characters(message: Message) -> int:
    calls = message.get("tool_calls") or ()
    written = sum(len(call["function"]["arguments"]) for call in calls)
    return len(message.get("content") or "") + len(message.get("reasoning") or "") + written
