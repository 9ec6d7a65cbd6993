"""The exchange of one question with a model: what was said, what it cost, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from soundingline.agents.base import Budget, Episode
from soundingline.agents.context_window import ContextWindow, message_bytes
from soundingline.agents.prompt import AgentPrompt
from soundingline.toolkit.errors import InputError
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
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.search.answers import follows_format
from soundingline.toolkit.search.tool import ToolResult, call_text
from soundingline.toolkit.trajectory import NO_FORMAT

T = TypeVar("T")
_BYTES_PER_TOKEN = 3  # of a reply that the server does not count
_MOST_FORCED = 3  # requests of a question that force a search, which some servers ignore


class OutOfTime(Exception):
    """The question's seconds are over."""


class NoAnswer(Exception):
    """The model was asked again and its reply was of no use again; `code` names the reason."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class ChatSettings:
    """The settings of a `ChatAgent`, which hold for all its questions; see there."""

    prompt: AgentPrompt
    budget: Budget
    sampling: SamplingParams
    price: Price = UNKNOWN
    ledger: Ledger = field(default_factory=Ledger)
    answer_extra: Mapping[str, Any] = field(default_factory=dict)
    remind: bool = False
    first_call: str | None = None

    def __post_init__(self) -> None:
        if self.first_call not in (None, "search"):
            raise InputError(
                f"agent.first_call is {self.first_call!r}", valid="search, or null for no demand"
            )
        self.ledger.check_price("agent", self.price, "llm.price.input and llm.price.output")
        window, answer = self.budget.context_window, self.budget.answer_tokens
        longest = self.sampling.max_output_tokens or 0
        if window is not None and max(longest, answer) >= window:
            raise InputError(
                f"a context window of {window} tokens has no room beside replies of {longest} and "
                f"an answer of {answer}",
                valid="llm.settings.max_output_tokens and budget.answer_tokens below the window",
                do="lower them, or set a larger budget.context_window",
            )


class Conversation:
    """The transcript of `episode` with `model`.

    The transcript only grows at its end. All of it is sent, except what `retreat` leaves out.
    Methods raise what the model raises, and `OutOfTime` if a reply or the result of a tool does not
    arrive in time.
    """

    def __init__(self, episode: Episode, model: ChatModel, settings: ChatSettings) -> None:
        self.episode = episode
        self.steered = False
        self.refused_turns = 0
        self.cramped = False  # whether the last request had to ask for a shorter reply
        self._model = model
        self._settings = settings
        self._tools = episode.tool.specs()
        self._closed = not self._tools
        self._turns = 0
        self._output_tokens = 0
        self._window = ContextWindow(
            settings.budget.context_window,
            answer=settings.budget.answer_tokens,
            longest_reply=settings.sampling.max_output_tokens,
            tools=self._tools,
        )
        # Messages that the next request leaves out, and those that the last one left out.
        self._left_out = self._was_left_out = range(0)
        self._too_long = 0  # messages of the last request, if its reply did not fit the window
        self._spent = self._highest_cost = 0.0
        self._cached_tokens = 0
        self._cache_warnings: list[str] = []
        self._asked_again = False
        self.reminder = AnswerReminder(episode, settings)

    @property
    def left(self) -> float | None:
        """Seconds left. None without a limit."""
        seconds = self._settings.budget.seconds
        return None if seconds is None else seconds - self.episode.seconds

    def make_room(self, text: str) -> bool:
        """Whether a last reply fits the window behind a message `text`, as far as is known. If the
        answer does not fit, this leaves out what `retreat` does."""
        return (
            self._window.fits_answer((*self._sent(), user(text)))
            or self.retreat(text)
            or self._window.fits_anything((*self._sent(), user(text)))
        )

    def retreat(self, text: str) -> bool:
        """Leave the newest exchange, such as a page that was too long, out of what is sent.

        Goes back to a request that the server accepted, and at the next call to the one before.
        Returns whether there is one, with room for a reply behind a message `text`.
        """
        below = self._left_out.start or self._too_long or len(self._sent())
        first = self._window.retreat(below)
        if not first:
            return False
        self._left_out = range(first, len(self.episode.messages))
        return self._window.fits_anything((*self._sent(), user(text)))

    @property
    def called_closed_tools(self) -> bool:
        """Whether the model has just called tools that are closed."""
        return self.episode.messages[-1]["role"] == "tool"

    @property
    def warnings(self) -> list[str]:
        """Warnings about how messages were sent, for the trajectory."""
        gap = self._was_left_out
        left_out = (
            f"messages {gap.start + 1} to {gap.stop} were left out of the last request: there was "
            "no room for them and an answer in the context window"
        )
        return [*self._cache_warnings, *([left_out] if gap else [])]

    def used_up(self) -> str:
        """The first budget that allows no further tool call. Empty while all allow one."""
        budget, cap = self._settings.budget, self._settings.ledger.question_cap
        cost = self._highest_cost
        checks = (
            ("turns", budget.turns and self._turns >= budget.turns),
            ("tool_calls", self._calls_used_up()),
            ("output_tokens", budget.output_tokens and self._output_tokens >= budget.output_tokens),
            ("context_window", self._window.full(self._sent())),
            # The answer has to be paid for as well.
            ("dollars", cap and cost and self._spent + 2 * cost >= cap),
        )
        return next((name for name, used in checks if used), "")

    def steer_if_due(self) -> None:
        """Inform the model once that its time is nearly over, and close the tools."""
        if not self.steered and self._steering_due():
            self.steered = True
            self.close_tools()
            self.say(self._settings.prompt.sections["steer"])

    @property
    def may_call(self) -> bool:
        """Whether the next reply may call a tool."""
        return not (self._closed or self._steering_due() or self.used_up())

    def close_tools(self) -> None:
        """Refuse every later tool call."""
        self._closed = True
        self.episode.tool.block(self._settings.prompt.sections["blocked"])

    def say(self, text: str) -> None:
        """Add a message of the harness, as the user."""
        self.episode.messages.append(user(text))

    async def ask(self, *, answer_only: bool = False) -> Turn:
        """The model's next turn, which is recorded."""
        sampling = self._settings.sampling
        if answer_only:
            extra = {**sampling.extra, **self._settings.answer_extra}
            sampling = replace(sampling, tool_choice="none", extra=extra)
        elif not self._closed and (name := self.reminder.forced_tool()):
            sampling = replace(sampling, tool_choice=name)
        messages = self._sent()
        longest = self._window.longest_reply(messages)
        self.cramped = longest != sampling.max_output_tokens
        sampling = replace(sampling, max_output_tokens=longest)
        self._was_left_out = self._left_out
        self._turns += 1
        try:
            turn = await self.in_time(self._model.respond(messages, self._tools, sampling))
        except ModelError as error:
            if isinstance(error, ContextOverflow):
                self._window.overflow()
            self._too_long = len(messages)
            if error.turn:
                # Half a call cannot be answered, and half a provider's item cannot be sent back.
                self._add_reply(messages, replace(error.turn, tool_calls=(), provider={}))
            raise
        finally:
            usage = self._settings.ledger.by_role(self.episode.topic.qid).values()
            spent = sum(totals.dollars for totals in usage)
            self._highest_cost = max(self._highest_cost, spent - self._spent)
            self._spent = spent
        self._too_long = 0
        self._add_reply(messages, turn)
        if self.left is not None and self.left <= 0:
            raise OutOfTime
        return turn

    async def call_tools(self, turn: Turn) -> None:
        """Carry out the turn's calls in order, each in a thread. Errors are results of the calls.
        The session is informed of the model's last reasoning."""
        tool = self.episode.tool
        self.reminder.draft = ""  # it was not the model's last word
        if newest := turn.reasoning or turn.text:
            tool.reasoning = newest
        self.refused_turns += self.steered or not self._tools
        for call in turn.tool_calls:
            if self._calls_used_up() or self._steering_due():
                self.close_tools()
            result = await self.in_time(asyncio.to_thread(self._result, call))
            self.episode.add_result(call.id, result)

    def demand(self, answer: str) -> bool:
        """After an `answer`, demand a search first, if a tool can still be called, and then the
        format. Returns whether something was demanded."""
        may_call = self.may_call
        searches = may_call and self.reminder.search_first()
        return searches or self.reminder.remind(answer, closed=not may_call)

    def ask_again(self, section: str, code: str, error: Exception | None = None) -> None:
        """Say the prompt's `section`, or its variant for closed tools, after a reply that cannot be
        used. At the second time in a question raise `error`, or `NoAnswer`."""
        if self._asked_again:
            raise error or NoAnswer(code, f"no usable reply after {self._turns} turns")
        self._asked_again = True
        closed = self._tools and not self.may_call
        self.say(self._settings.prompt.words(f"{section}_closed" if closed else section))

    def _result(self, call: ToolCall) -> ToolResult:
        try:
            arguments = call.parsed()
        except ValueError:
            # The session refuses a text in the place of an object, and quotes it.
            arguments = call.arguments
        return self.episode.tool.call(call.name, arguments)

    async def in_time(self, work: Awaitable[T]) -> T:
        """The result of `work`; `OutOfTime` when the seconds of the question are over."""
        return await within(work, self.left)

    def _steering_due(self) -> bool:
        budget = self._settings.budget
        return budget.steer_at < 1 and budget.is_late(self.episode.seconds)

    def _calls_used_up(self) -> bool:
        most = self._settings.budget.tool_calls
        return most is not None and len(self.episode.tool.calls) >= most

    def _sent(self) -> Sequence[Message]:
        """The messages of the next request."""
        messages, gap = self.episode.messages, self._left_out
        return (*messages[: gap.start], *messages[gap.stop :])

    def _add_reply(self, messages: Sequence[Message], turn: Turn) -> None:
        usage = turn.usage
        message = turn.message()
        counts = {"input": usage.input, "cached": usage.cached, "output": usage.output}
        message["usage"] = {name: value for name, value in counts.items() if value is not None}
        self.episode.messages.append(message)
        if usage.cached is not None:
            self._note_cached(usage.cached)
        output = usage.output
        if output is None:
            output = message_bytes(message) // _BYTES_PER_TOKEN
        self._output_tokens += output
        self._window.accepted(messages, message, counted=usage.input, output=output)

    def _note_cached(self, tokens: int) -> None:
        if tokens < self._cached_tokens:
            self._cache_warnings.append(
                f"request {self._turns}: the server had {self._cached_tokens} tokens of the prefix "
                f"cached and now {tokens}, though it was sent unchanged: evicted, answered "
                "by another replica, or rewritten by the model's chat template"
            )
        self._cached_tokens = tokens


class AnswerReminder:
    """Demands on a model that does not follow the protocol, each made at most once a question.

    - `remind`: an answer without a line `Exact Answer` is accepted only after a reminder.
    - `first_call`: the first call must be a search.
    """

    def __init__(self, episode: Episode, settings: ChatSettings) -> None:
        self.draft = ""  # the answer without the format of which the model has been reminded
        self._episode = episode
        self._prompt = settings.prompt
        self.reminds = self._reminder_left = settings.remind
        search = episode.tool.search_tool if settings.first_call and episode.tool.specs() else None
        self._search, self._query_argument = search or ("", "")
        self._search_demand_left = bool(self._search)
        self._forced = 0

    def forced_tool(self) -> str:
        """The tool that the next request must force while tools are open. Empty for none."""
        if not self._search_missing or self._forced == _MOST_FORCED:
            return ""
        self._forced += 1
        return self._search

    def search_first(self) -> bool:
        """Demand a search if the model answers before it called one, and return whether this was
        demanded. Some servers force no call, so that words are needed as well."""
        if not self._search_demand_left or not self._search_missing:
            return False
        self._search_demand_left = False
        words = self._prompt.words("first_call")
        words = words.replace("{call}", self._search_call())
        self._say("first_call", words.replace("{argument}", self._query_argument))
        return True

    def remind(self, text: str, *, closed: bool) -> bool:
        """Remind the model of the answer format if `text` does not follow it; `text` is the `draft`
        then. `closed`: no tool can be called any more. Returns whether the model was reminded."""
        if not self._reminder_left or self._follows_format(text):
            return False
        self._reminder_left, self.draft = False, text
        self._say("reminder", self._prompt.words("reminder_closed" if closed else "reminder"))
        return True

    def mark(self, text: str) -> None:
        """Mark the last message if it is an answer `text` that still does not follow the format, so
        that such answers can be counted."""
        if self.reminds and text and not self._follows_format(text):
            self._episode.messages[-1][NO_FORMAT] = True

    def use_draft(self) -> str:
        """Repeat the draft as the last message, because the reply to the reminder was of no use.
        Empty if there is no draft."""
        if not self.draft:
            return ""
        self._episode.messages.append({"role": "assistant", "content": self.draft})
        self._episode.warnings.append(
            "the reply to the reminder of the answer format was of no use; the last message "
            "repeats the answer before it"
        )
        return self.draft

    def _follows_format(self, text: str) -> bool:
        listed = self._prompt.asks_for_list
        return follows_format(text, self._prompt.placeholders, listed=listed)

    @property
    def _search_missing(self) -> bool:
        calls = self._episode.tool.calls
        return bool(self._search) and all(call.name != self._search for call in calls)

    def _search_call(self) -> str:
        """`search(reason="...", query="...")`: the search with the arguments that it needs."""
        functions = [spec.get("function", spec) for spec in self._episode.tool.specs()]
        function = next(spec for spec in functions if spec["name"] == self._search)
        properties = function["parameters"]["properties"]
        needed = [name for name, schema in properties.items() if "null" not in schema["type"]]
        return call_text(self._search, **dict.fromkeys(needed, "..."))

    def _say(self, section: str, words: str) -> None:
        # Marked, so that demands can be counted.
        self._episode.messages.append({**user(words), "demand": section})


async def within(work: Awaitable[T], seconds: float | None) -> T:
    """The result of `work`, or `OutOfTime`. Unlike `asyncio.wait_for`, it does not mistake a
    time-out that `work` itself raises for its own. A thread cannot be stopped and runs on."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=None if seconds is None else max(0.0, seconds))
    except asyncio.CancelledError:
        await _cancel(task)
        raise
    if not task.done():
        await _cancel(task)
        raise OutOfTime
    return task.result()


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
