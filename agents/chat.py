"""The tool-calling agent: a language model reasons, calls tools, reads results, and answers."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from typing_extensions import Self

from soundingline.agents.base import (
    Agent,
    Budget,
    Episode,
    OutOfTime,
    RunResources,
    within,
)
from soundingline.agents.prompt import MATCHED, QUERIES, about_queries, load_prompt
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.errors import (
    BadRequest,
    ContextOverflow,
    ModelError,
    OutOfMoney,
    Truncated,
)
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import ChatModel, Message, SamplingParams, Turn, user
from soundingline.toolkit.search.answers import follows_format
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ToolResult, call_text
from soundingline.toolkit.trajectory import NO_FORMAT

T = TypeVar("T")
# A model that calls closed tools in so many turns will not answer.
_MOST_REFUSED_TURNS = 3
_MOST_FORCED = 3  # requests of a question that force a search, which some servers ignore
_BYTES_PER_TOKEN = 3  # of a reply that the server does not count
# Budgets that leave room for one reply more than the answer.
_ROOM_LEFT = ("turns", "tool_calls", "exposed_tokens")
_STATUS = {
    "turns": "out_of_turns",
    "tool_calls": "out_of_turns",
    "exposed_tokens": "out_of_turns",
    "output_tokens": "out_of_turns",
    "context_window": "out_of_context",
    ContextOverflow.code: "out_of_context",
    "dollars": "out_of_money",
}


class NoAnswer(Exception):
    """The model was asked again and its reply was of no use again; `code` names the reason."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(kw_only=True, eq=False, repr=False)
class ChatAgent(Agent):
    """ReAct over tool calls (Yao et al., 2023), with the rules of a prompt.

    Args:
        prompt: `pi_serini`, `browsecomp_plus`, another prompt of the package, or a path.
        queries: what a prompt with the place `{queries}`, such as `neutral`, says about queries:
            `neutral` says nothing, `words` that they are matched by words, `meaning` by meaning;
            `matched` says `words` over a lexical retriever, `meaning` over a learned one, and
            nothing over a fusion of both or an unknown one (`SearchTool.matching`).
        answer_extra: added to the body of requests that demand an answer, in addition to the
            settings' own `extra`, such as a server's field for a grammar. Their tool choice is
            `none`.
        remind: accept an answer without a line `Exact Answer` only after one reminder of the
            format. Not part of the published agents, whose first reply without a call is their
            answer.
        first_call: `search` if the first call must be a search; a model that answers instead is
            corrected once. Not part of the published agents either. None: no demand.
        resample: how often in a row a reply without text and call, such as reasoning alone, is
            sampled again. It counts no turn and stays out of the transcript; `agent_resampled` in
            the usage is the number of such replies. 0: the model is told once that its reply was
            empty. The agent of arXiv 2602.21456 (search_agent/oss_client.py at b546046) and
            BrowseComp-Plus's sample again without a bound.

    How a question ends (the status, and the reason if the status does not imply it):

    - `completed`: the model answered. `steered`: it answered after it was informed that time is
      short; with the reason `no_answer` if it went on calling tools instead.
    - `timed_out` (`seconds`): stopped by the clock, without an answer.
    - `out_of_turns` (`turns`, `tool_calls`, `exposed_tokens`, `output_tokens`), `out_of_context`
      (`context_window`, our estimate; `context_overflow`, the server's word), `out_of_money`
      (`dollars`; `run_out_of_money`): a budget was used up. An answer was demanded if that was
      possible, if necessary without the newest exchange, which a warning says.
    - `failed`: `refused`, `truncated` or `empty_answer` twice, another code of
      `soundingline.toolkit.llm.errors`, or `defect`. Asked again when the run is resumed.

    Raises:
        InputError: for impossible values, in `bind` for a window that one reply would fill and for
            a cap on money without a price, and for a session without a tool that the prompt names.

    Example:
        >>> agent = ChatAgent(prompt="browsecomp_plus")
        >>> bound = agent.bind(RunResources(Budget(turns=20), model=model))  # doctest: +SKIP
        >>> asyncio.run(bound.run(topic, tool))  # doctest: +SKIP
    """

    name = "chat"
    requires_llm = True
    accepts_llm = True

    prompt: str = "pi_serini"
    queries: str = "neutral"
    answer_extra: Mapping[str, Any] | None = None
    remind: bool = False
    first_call: str | None = None
    resample: int = 0

    def __post_init__(self) -> None:
        if self.first_call not in (None, "search"):
            raise InputError(
                f"agent.first_call is {self.first_call!r}", valid="search, or null for no demand"
            )
        check_int("agent.resample", self.resample, ge=0)
        self.texts = load_prompt(self.prompt)
        choices = (*QUERIES, MATCHED)
        if self.queries not in choices:
            raise InputError(f"agent.queries is {self.queries!r}", valid=", ".join(choices))
        if self.queries != "neutral" and not self.texts.composes_queries:
            raise InputError(
                f"agent.queries={self.queries}, and the prompt {self.prompt} has no place for it",
                valid="neutral, or a prompt with the line {queries}, such as agent.prompt=neutral",
            )
        self._use(RunResources(Budget()))

    def bind(self, resources: RunResources) -> Self:
        bound = copy.copy(self)
        bound._use(resources)
        return bound

    def _use(self, resources: RunResources) -> None:
        budget = resources.budget
        self.resources, self.sampling = resources, resources.settings or SamplingParams()
        self.accounts = resources.ledger or Ledger(
            cap=budget.run_dollars, question_cap=budget.dollars
        )
        self.accounts.check_price("agent", resources.price, "llm.price.input and llm.price.output")
        # That of the model's server, once a refusal has named it: all questions of the run share
        # it.
        self.context_window = budget.context_window
        self._check_window("set a larger llm.context_window")

    def learn_window(self, window: int) -> None:
        """Keep the context window that the server named, for all questions of the run. Raises
        `BadRequest` if replies of the requested length do not fit it."""
        self.context_window = min(window, self.context_window or window)
        try:
            self._check_window(f"set llm.context_window={window}")
        except InputError as error:
            raise BadRequest(str(error)) from None

    def _check_window(self, do: str) -> None:
        window, answer = self.context_window, self.resources.budget.answer_tokens
        longest = self.sampling.max_output_tokens or 0
        if window is not None and max(longest, answer) >= window:
            raise InputError(
                f"a context window of {window} tokens has no space for replies of {longest} and "
                f"an answer of {answer}",
                valid="llm.settings.max_output_tokens and budget.answer_tokens below the window",
                do=f"lower them, or {do}",
            )

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the prompt, and of the sections that optional demands use."""
        words = self.texts.words
        hashes = {"prompt": self.texts.fingerprint}
        if self.remind:
            hashes["prompt.reminder"] = fingerprint(words("reminder"), words("reminder_closed"))
        if self.first_call:
            hashes["prompt.first_call"] = fingerprint(words("first_call"))
        return hashes

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: the model must be offered the tools and arguments that the prompt names."""
        specs = tool.specs() if self.offers_tools else []
        missing = self.texts.missing_names(specs)
        if not missing:
            return
        calls = [f"{spec['name']}({', '.join(spec['parameters']['properties'])})" for spec in specs]
        do = "set agent.prompt=closed_book"
        if calls:
            do = "choose other tools, or set agent.prompt=neutral, which is composed from the tools"
        raise InputError(
            f"the prompt {self.prompt} names {', '.join(missing)}, which the agent does not have",
            valid=f"a prompt for {', '.join(calls) or 'an agent without tools'}",
            do=do,
        )

    def tool_fingerprints(self, tool: SearchTool) -> dict[str, str]:
        """See `Agent`: of what a composed prompt says about the tools and about queries."""
        composed = {
            "prompt.tools": tool.instructions() if self.texts.composes_tools else "",
            "prompt.queries": about_queries(self.queries, tool.matching),
        }
        return {name: fingerprint(words) for name, words in composed.items() if words}

    def opening(self, topic: Topic, tool: SearchTool) -> list[dict[str, str]]:
        """See `Agent`: the prompt."""
        return self.texts.opening(
            topic.text,
            specs=tool.specs() if self.offers_tools else [],
            tools=tool.instructions() if self.texts.composes_tools else "",
            queries=about_queries(self.queries, tool.matching),
        )

    async def work(self, episode: Episode) -> None:
        """Answer one question. Any number of questions may run at once; tools run in threads."""
        qid, model, price = episode.topic.qid, self.resources.model, self.resources.price
        if model is None:
            raise RuntimeError("the agent has no model: bind it to one")
        metered = MeteredModel(model, self.accounts, role="agent", qid=qid, price=price)
        conversation = Conversation(episode, metered, self)
        try:
            await self._converse(conversation)
        except (OutOfTime, OutOfMoney, NoAnswer, Truncated) as end:
            if conversation.reminder.draft:
                self._accept(conversation, conversation.reminder.use_draft())
            elif isinstance(end, OutOfTime):
                episode.conclude("", status="timed_out", reason="seconds")
            else:
                raise
        finally:
            resampled = (
                {"agent_resampled": float(conversation.resampled)} if conversation.resampled else {}
            )
            episode.usage = self.accounts.usage(qid) | resampled
            episode.warnings += conversation.warnings

    def request(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> tuple[Sequence[Message], SamplingParams]:
        """What is sent to the model for these messages of a transcript: by default themselves."""
        return messages, sampling

    async def _converse(self, conversation: Conversation) -> None:
        # The arguments of `ask_again` after a reply that was of no use.
        unusable: tuple[str, str, Exception | None] | None = None
        while True:
            reason = conversation.exhausted_budget()
            if reason and not conversation.reminder.draft:
                return await self._demand_answer(conversation, reason)
            if unusable:
                conversation.ask_again(*unusable)
                unusable = None
            if conversation.refused_turns == _MOST_REFUSED_TURNS:
                return conversation.episode.conclude("", status="steered", reason="no_answer")
            conversation.steer_if_due()
            try:
                turn = await conversation.ask(answer_only=bool(reason))
            except Truncated as cut:
                unusable = "truncated", cut.code, cut
                continue
            except ContextOverflow as overflow:
                if conversation.reminder.draft:
                    return self._accept(conversation, conversation.reminder.use_draft())
                return await self._demand_answer(conversation, overflow.code)
            if turn.tool_calls:
                await conversation.call_tools(turn)
            elif turn.empty:
                unusable = "empty", "empty_answer", None
            elif not conversation.demand(turn.text):
                return self._accept(conversation, turn.text)

    def _accept(self, conversation: Conversation, text: str) -> None:
        conversation.reminder.mark(text)
        conversation.episode.conclude(
            text, status="steered" if conversation.steered else "completed"
        )

    async def _demand_answer(self, conversation: Conversation, reason: str) -> None:
        """Demand the answer after a budget is used up, if room and time are left for one. If the
        transcript leaves too little room, the newest exchanges, which took it, are left out. An
        answer that ends by length is demanded once more, with less of the transcript."""
        demand, text = self.texts.sections["final"], None
        partial: str | None = None  # the answer that ended by length
        room = conversation.make_room(demand)
        while room and text is None:
            text = await self._last_reply(conversation, demand)
            if (
                partial is None
                and conversation.cut_off
                and not conversation.reminder.follows_format(text or "")
            ):
                partial, text = text or "", None
            room = text is not None or conversation.drop_last_exchange(demand)
        text = text or partial
        # A model may call the closed tools instead of an answer.
        answered = text or conversation.episode.messages[-1]["role"] == "tool"
        if (
            answered
            and reason in _ROOM_LEFT
            and conversation.reminder.remind(text or "", closed=True)
        ):
            text = await self._last_reply(conversation) or conversation.reminder.use_draft()
        conversation.reminder.mark(text or "")
        conversation.episode.conclude(text or "", status=_STATUS[reason], reason=reason)

    async def _last_reply(self, conversation: Conversation, demand: str = "") -> str | None:
        """The reply to a `demand` (empty: to the last message), as far as there is one. None if the
        window had no room for any."""
        conversation.close_tools()
        if demand:
            conversation.say(demand)
        try:
            turn = await conversation.ask(answer_only=True)
            if turn.tool_calls and conversation.reminder.reminds:
                # The results say that the tools are closed. The reminder follows them.
                await conversation.call_tools(turn)
            return turn.text
        except (Truncated, ContextOverflow) as cut:
            text = cut.turn.text if cut.turn else ""
            no_room = isinstance(cut, ContextOverflow) or conversation.output_was_shortened
            return None if no_room and not text.strip() else text
        except (OutOfTime, OutOfMoney):
            return ""  # The budget that ended the question first is the recorded reason.


class Conversation:
    """The transcript of `episode` with `model`.

    The transcript only grows at its end. All of it is sent, except what `drop_last_exchange` leaves
    out. Methods raise what the model raises, and `OutOfTime` if a reply or the result of a tool
    does not arrive in time.
    """

    def __init__(self, episode: Episode, model: ChatModel, agent: ChatAgent) -> None:
        self.episode = episode
        self.steered = False
        self.refused_turns = 0  # with calls after the tools were closed
        self.resampled = 0  # replies without text and call that were sampled again
        self._answer_only = False
        self.output_was_shortened = False  # whether the last request had to ask for a shorter reply
        self.cut_off = False  # whether its reply ended by length
        self._model, self._agent = model, agent
        self._budget = agent.resources.budget
        self._tools = episode.specs()
        self._closed = not self._tools
        self._turns = 0
        self._output_tokens = 0
        self._known_tokens = 0  # of the last request with its reply, which a server has cached
        self._window = ContextWindow(
            size=agent.context_window,
            answer=self._budget.answer_tokens,
            longest=agent.sampling.max_output_tokens,
            tools=self._tools,
        )
        # Messages that the next request leaves out, and those that the last one left out.
        self._left_out = self._was_left_out = range(0)
        self._too_long = 0  # messages of the last request, if its reply did not fit the window
        self._spent = self._highest_cost = 0.0
        self._cached_tokens = 0
        self._server_warnings: list[str] = []
        self._guessed_overflow = False
        self._asked_again = False
        self.reminder = AnswerReminder(episode, agent)

    def make_room(self, text: str) -> bool:
        """Whether a last reply fits the window after a message `text`, as far as is known. If the
        answer does not fit, this leaves out what `drop_last_exchange` does."""
        return (
            self._window.fits_answer((*self._sent(), user(text)))
            or self.drop_last_exchange(text)
            or self._window.fits_anything((*self._sent(), user(text)))
        )

    def drop_last_exchange(self, text: str) -> bool:
        """Leave the newest exchange, such as a page that was too long, out of what is sent, and
        those before it until there is room for the answer after a message `text`.

        Goes back to a request that the server accepted, and at the next call to one before it.
        Returns whether there is one, with room for a reply.
        """
        below = self._left_out.start or self._too_long or len(self._sent())
        before, fits = self._left_out, False
        while not fits and (below := self._window.drop_last_exchange(below)):
            self._left_out = range(below, len(self.episode.messages))
            fits = self._window.fits_answer((*self._sent(), user(text)))
        shorter = self._left_out != before
        return shorter and self._window.fits_anything((*self._sent(), user(text)))

    @property
    def warnings(self) -> list[str]:
        """Warnings about how messages were sent, for the trajectory."""
        gap = self._was_left_out
        left_out = (
            f"messages {gap.start + 1} to {gap.stop} were left out of the last request: there was "
            "no room for them and an answer in the context window"
        )
        return [*self._server_warnings, *([left_out] if gap else [])]

    def exhausted_budget(self) -> str:
        """The first budget that allows no further tool call. Empty while all allow one."""
        exhausted = self._budget.exhausted(
            turns=self._turns, **self._spent_by_calls(), output_tokens=self._output_tokens
        )
        if exhausted:
            return exhausted
        if self._window.full(self._sent()):
            return "context_window"
        cap, cost = self._agent.accounts.question_cap, self._highest_cost
        # The answer has to be paid for as well.
        return "dollars" if cap and cost and self._spent + 2 * cost >= cap else ""

    def steer_if_due(self) -> None:
        """Inform the model once that its time is nearly over, and close the tools."""
        if not self.steered and self._steering_due():
            self.steered = True
            self.close_tools()
            self.say(self._agent.texts.sections["steer"])

    @property
    def may_call(self) -> bool:
        """Whether the next reply may call a tool."""
        return not (self._closed or self._steering_due() or self.exhausted_budget())

    def close_tools(self) -> None:
        """Refuse every later tool call."""
        self._closed = True
        self.episode.tool.block(self._agent.texts.sections["blocked"])

    def say(self, text: str) -> None:
        """Add a message of the harness, as the user."""
        self.episode.messages.append(user(text))

    def answer_only(self) -> None:
        """Close the tools, and request answers alone from now on."""
        self._answer_only = True
        self.close_tools()

    async def ask(self, *, answer_only: bool = False, forced_tool: str = "") -> Turn:
        """The model's next turn, which is recorded: an answer (`answer_only`), or a call of
        `forced_tool`, as far as the server can force it."""
        labels = self._agent.texts.answer_labels
        sampling = replace(self._agent.sampling, answer=labels or None)
        if answer_only or self._answer_only or self.refused_turns:
            extra = {**sampling.extra, **(self._agent.answer_extra or {})}
            sampling = replace(sampling, tool_choice="none", extra=extra)
        elif name := forced_tool or ("" if self._closed else self.reminder.forced_tool()):
            sampling = replace(sampling, tool_choice=name)
        messages = self._sent()
        longest = self._window.longest_reply(messages)
        self.output_was_shortened = longest != sampling.max_output_tokens
        sampling = replace(sampling, max_output_tokens=longest)
        self._was_left_out, self.cut_off = self._left_out, False
        self._turns += 1
        try:
            turn = await self._sample(messages, sampling)
        except ModelError as error:
            self._too_long = len(messages)
            self.cut_off = isinstance(error, Truncated) and not _repeats_itself(error)
            overflow = self._overflow_of(error, messages)
            if error.turn:
                # Half a call cannot be answered, and half a provider's item cannot be sent back.
                self._add_reply(messages, replace(error.turn, tool_calls=(), provider={}))
            if overflow:
                raise overflow from None
            raise
        finally:
            usage = self._agent.accounts.by_role(self.episode.topic.qid).values()
            spent = sum(totals.dollars for totals in usage)
            self._highest_cost = max(self._highest_cost, spent - self._spent)
            self._spent = spent
        self._too_long = 0
        self._add_reply(messages, turn)
        # Another question may have met the end of the window.
        self._window.limit(self._agent.context_window)
        if self._budget.is_over(self.episode.seconds):
            raise OutOfTime
        return turn

    async def _sample(self, messages: Sequence[Message], sampling: SamplingParams) -> Turn:
        """The model's reply to `messages`, sampled again as `ChatAgent.resample` says."""
        sent, sampling = self._agent.request(messages, sampling)
        for left in range(self._agent.resample, -1, -1):
            try:
                turn = await self.with_deadline(self._model.respond(sent, self._tools, sampling))
            except Truncated as cut:
                if not left or cut.turn is None or not cut.turn.empty:
                    raise
                turn = cut.turn
            if not left or not turn.empty:
                break
            self.resampled += 1
            self._output_tokens += turn.usage.output or 0
            self.episode.charge(0, turn.usage.output or 0)
        return turn

    def _overflow_of(self, error: ModelError, messages: Sequence[Message]) -> ModelError | None:
        """The context overflow that the refusal of `messages` is, if it is one. A refusal in
        unknown words counts as one near the end of the window, once in a question."""
        if isinstance(error, BadRequest):
            if self._guessed_overflow or not self._window.is_near_end(messages):
                return None
            self._guessed_overflow = True
            self._server_warnings.append(
                f"request {self._turns}, near the end of the context window, was refused, which "
                f"was taken for a context overflow: {error}"
            )
            error = ContextOverflow(str(error))
        if isinstance(error, ContextOverflow):
            if window := self._window.overflow(messages, error.window):
                self._agent.learn_window(window)
            return error
        return None

    async def call_tools(self, turn: Turn) -> list[ToolResult]:
        """Carry out the turn's calls in order, each in a thread. Errors are results of the calls.
        The session is informed of the model's last reasoning."""
        tool = self.episode.tool
        self.reminder.draft = ""  # it was not the model's last word
        if newest := turn.reasoning or turn.text:
            tool.reasoning = newest
        self.refused_turns += self.steered or self._answer_only or not self._tools
        results = []
        for call in turn.tool_calls:
            if self._budget.exhausted(**self._spent_by_calls()) or self._steering_due():
                self.close_tools()
            try:
                arguments = call.parsed()
            except ValueError:
                # The session refuses a text in the place of an object, and quotes it.
                arguments = call.arguments
            result = await self.with_deadline(asyncio.to_thread(tool.call, call.name, arguments))
            self.episode.add_result(call.id, result)
            results.append(result)
        return results

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
        self.say(self._agent.texts.words(f"{section}_closed" if closed else section))

    async def with_deadline(self, work: Awaitable[T]) -> T:
        """The result of `work`; `OutOfTime` when the seconds of the question are over."""
        return await within(work, self._budget.patience(self.episode.seconds))

    def _steering_due(self) -> bool:
        return self._budget.steer_at < 1 and self._budget.is_late(self.episode.seconds)

    def _spent_by_calls(self) -> dict[str, int]:
        tool = self.episode.tool
        return {"tool_calls": len(tool.calls), "exposed_tokens": tool.exposures.tokens}

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
            if usage.cached < self._cached_tokens:
                self._server_warnings.append(
                    f"request {self._turns}: the server had {self._cached_tokens} tokens of the "
                    f"prefix cached and now {usage.cached}, though it was sent unchanged: evicted, "
                    "answered by another replica, or rewritten by the model's chat template"
                )
            self._cached_tokens = usage.cached
        output = usage.output
        if output is None:
            output = message_bytes(message) // _BYTES_PER_TOKEN
        self._output_tokens += output
        sent = self._window.tokens(messages) if usage.input is None else usage.input
        self.episode.charge(max(0, sent - self._known_tokens), output)
        self._known_tokens = sent + output
        self._window.accepted(messages, message, counted=usage.input, output=output)


def _repeats_itself(error: Truncated) -> bool:
    return error.turn is not None and error.turn.finish_reason == "repetition"


class AnswerReminder:
    """Demands on a model that does not follow the protocol, each made at most once a question.

    - `remind`: an answer without a line `Exact Answer` is accepted only after a reminder.
    - `first_call`: the first call must be a search.
    """

    def __init__(self, episode: Episode, agent: ChatAgent) -> None:
        self.draft = ""  # the answer without the format of which the model has been reminded
        self._episode = episode
        self._texts = agent.texts
        self.reminds = self._reminder_left = agent.remind
        search = episode.tool.search_tool if agent.first_call and episode.specs() else None
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
        needed = self._episode.tool.arguments(self._search, required=True)
        call = call_text(self._search, **dict.fromkeys(needed, "..."))
        words = self._texts.words("first_call").replace("{call}", call)
        self._say("first_call", words.replace("{argument}", self._query_argument))
        return True

    def remind(self, text: str, *, closed: bool) -> bool:
        """Remind the model of the answer format if `text` does not follow it; `text` is the `draft`
        then. `closed`: no tool can be called any more. Returns whether the model was reminded."""
        if not self._reminder_left or self.follows_format(text):
            return False
        self._reminder_left, self.draft = False, text
        self._say("reminder", self._texts.words("reminder_closed" if closed else "reminder"))
        return True

    def mark(self, text: str) -> None:
        """Mark the last message if it is an answer `text` that still does not follow the format, so
        that such answers can be counted."""
        if self.reminds and text and not self.follows_format(text):
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

    def follows_format(self, text: str) -> bool:
        """Whether `text` is an answer in the format that the prompt demands."""
        listed = self._texts.asks_for_list
        return follows_format(text, self._texts.placeholders, listed=listed)

    @property
    def _search_missing(self) -> bool:
        calls = self._episode.tool.calls
        return bool(self._search) and all(call.name != self._search for call in calls)

    def _say(self, section: str, words: str) -> None:
        # Marked, so that demands can be counted.
        self._episode.messages.append({**user(words), "demand": section})


# How much of a model's context window a transcript takes, and how long the next reply may be.
#
# A server refuses a request whose prompt and maximum of output together exceed the window (vLLM:
# HTTP 400), even if a shorter reply would have fitted. Sizes are the server's own counts, and a
# conservative estimate of what came since.

# Tokens per byte of UTF-8. English has fewer, other scripts about as many. Digits and markup may
# have more, which is learned from the counts of the server. Too high an estimate ends a question
# early, too low an estimate makes the server refuse.
_RATE = 1 / 3
_HIGHEST_RATE = 1.0  # no tokenizer in use makes more than one token of a byte
_ENVELOPE = 16  # tokens that a chat template adds to a message
_CALL = 64  # bytes that it adds to a call, such as tags, and keys of JSON
_LEAST_SAMPLE = 512  # bytes; a smaller addition says little about the rate
_LEAST_REPLY = 16  # tokens; the Responses API accepts no smaller maximum of output
# Share of the tokens reserved for the answer. With less, the newest exchange costs more than it is
# worth.
_LEAST_SHARE = 0.25
# Share of the tokens that a transcript may take above which a refusal in unknown words is taken for
# an overflow.
_NEAR_END = 0.8


class _Count(NamedTuple):
    """The first `messages` of a transcript, with the tools, take `tokens`."""

    messages: int = 0
    tokens: int = 0


@dataclass(kw_only=True, eq=False)
class ContextWindow:
    """The context window of one question.

    Args:
        size: tokens. None: unknown.
        answer: tokens that the answer needs. 0: nothing is reserved.
        longest: the maximum of output of a request. None: the server's choice. The larger of
            this and `answer` stays free while the model may still call tools, unless `answer` is 0.
        tools: the specifications that are sent with each request.
    """

    size: int | None
    answer: int
    longest: int | None
    tools: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        self._tool_bytes = len(json.dumps(list(self.tools), ensure_ascii=False).encode())
        self._rate = _RATE
        self._counted = _Count()
        self._accepted: list[_Count] = []  # requests that the server accepted
        self._fitted = 0  # tokens of the largest of them, with the maximum of output
        self._overflows = 0

    def tokens(self, messages: Sequence[Message]) -> int:
        """Estimate of a request's input: what the server counted, and the rest by its bytes."""
        added, size = self._uncounted(messages)
        return self._counted.tokens + math.ceil(size * self._rate) + _ENVELOPE * added

    def full(self, messages: Sequence[Message]) -> bool:
        """Whether a reply of full length, or the answer, may no longer fit after `messages`. If
        nothing is reserved: whether the shortest reply may not."""
        if not self.answer:
            return not self.fits_anything(messages)
        return not self._has_room(messages, max(self.answer, self.longest or 0) + 1)

    def fits_answer(self, messages: Sequence[Message]) -> bool:
        """Whether a quarter of the answer's tokens is left, as far as is known."""
        return self._has_room(messages, max(_LEAST_REPLY, int(self.answer * _LEAST_SHARE)))

    def fits_anything(self, messages: Sequence[Message]) -> bool:
        """Whether the shortest reply that servers accept fits."""
        return self._has_room(messages, _LEAST_REPLY)

    def longest_reply(self, messages: Sequence[Message]) -> int | None:
        """The maximum of output to ask for: no more than fits."""
        if self.longest is None:
            # The server chooses what fits. After an overflow ask for no more than is needed.
            return (self.answer or None) if self._overflows else None
        room = self.longest if self.size is None else self.size - self.tokens(messages)
        return max(_LEAST_REPLY, min(self.longest, room))

    def is_near_end(self, messages: Sequence[Message]) -> bool:
        """Whether `messages` take most of the tokens that a transcript may take, and more than a
        request that the server accepted."""
        if self.size is None or not self._accepted:
            return False
        reserved = max(self.answer, self.longest or 0) if self.answer else 0
        return self.tokens(messages) >= _NEAR_END * (self.size - reserved)

    def limit(self, size: int | None) -> None:
        """The window has no more than `size` tokens (None: unknown)."""
        if size is not None:
            self.size = min(size, self.size or size)

    def overflow(self, messages: Sequence[Message], named: int | None = None) -> int | None:
        """The server refused `messages` as too long: the window is smaller than expected, or the
        estimate was too low. What the server accepted before did fit.

        Returns the window that the server `named`, if it can be true.
        """
        if named is not None and named <= max(
            (count.tokens for count in self._accepted), default=0
        ):
            named = None  # some versions of vLLM name what the reply leaves
        estimated = self.tokens(messages) + (self.longest_reply(messages) or 1)
        self.limit(named or self._fitted or None)
        if self._overflows or (named and estimated <= named):
            self._rate = _HIGHEST_RATE
        self._overflows += 1
        return named

    def accepted(
        self, messages: Sequence[Message], reply: Message, *, counted: int | None, output: int
    ) -> None:
        """The server accepted `messages`, which are `counted` tokens (None: not reported), and
        returned `reply`, the next message of the transcript, of `output` tokens."""
        tokens = self.tokens(messages) if counted is None else counted
        if longest := self.longest_reply(messages):
            self._fitted = max(self._fitted, tokens + longest)
        self._accepted.append(_Count(len(messages), tokens))
        if counted is not None:
            self._learn_rate(messages, counted)
            # Sent back, a call is rendered anew and can take more tokens than the reply did.
            again = math.ceil(message_bytes({**reply, "reasoning": ""}) * self._rate) + _ENVELOPE
            self._counted = _Count(len(messages) + 1, counted + max(output, again))

    def drop_last_exchange(self, below: int) -> int:
        """Go back to the newest accepted request of fewer than `below` messages. Returns the number
        of its messages, 0 if there is none."""
        shorter = [count for count in self._accepted if count.messages < below]
        if shorter:
            self._counted = shorter[-1]
        return shorter[-1].messages if shorter else 0

    def _has_room(self, messages: Sequence[Message], tokens: int) -> bool:
        return self.size is None or self.tokens(messages) + tokens <= self.size

    def _uncounted(self, messages: Sequence[Message]) -> tuple[int, int]:
        """The number and the bytes of the messages that the server has not counted."""
        added = messages[self._counted.messages :]
        tools = 0 if self._counted.messages else self._tool_bytes
        return len(added), sum(map(message_bytes, added)) + tools

    def _learn_rate(self, messages: Sequence[Message], counted: int) -> None:
        added, size = self._uncounted(messages)
        if size >= _LEAST_SAMPLE:
            tokens = counted - self._counted.tokens - _ENVELOPE * added
            self._rate = min(_HIGHEST_RATE, max(self._rate, tokens / size))


def message_bytes(message: Message) -> int:
    """The bytes (UTF-8) of a message: text, reasoning, and calls as a template renders them."""
    parts = [message.get("content"), message.get("reasoning")]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    for function in functions:
        parts += [function["name"], function["arguments"]]
    size = sum(len(str(part or "").encode()) for part in parts)
    return size + _CALL * len(functions)
