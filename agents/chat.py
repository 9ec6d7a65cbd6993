"""The tool-calling agent: a language model reasons, calls tools, reads results, and answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from soundingline.agents.base import Agent, Budget, Clock, Episode, RunResources, run_episode
from soundingline.agents.conversation import AgentSetup, Conversation, NoAnswer, OutOfTime
from soundingline.agents.demands import check_first_call
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.errors import ContextOverflow, OutOfMoney, Truncated
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import ChatModel, SamplingParams
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Trajectory

# A model that calls closed tools in so many turns will not answer.
_MOST_REFUSED_TURNS = 3
# Budgets that leave room for one reply more than the answer.
_ROOM_LEFT = ("turns", "tool_calls")
_STATUS = {
    "turns": "out_of_turns",
    "tool_calls": "out_of_turns",
    "output_tokens": "out_of_turns",
    "context_window": "out_of_context",
    ContextOverflow.code: "out_of_context",
    "dollars": "out_of_money",
}


class ChatAgent(Agent):
    """ReAct over tool calls (Yao et al., 2023), with the rules of `prompt`: `pi_serini` (default),
    `browsecomp_plus`, or the path of a file of one's own.

    `model` answers (None: that of `bind`); `settings` are how it samples (its tool choice is `none`
    where an answer is demanded), `price` what its tokens cost. `answer_extra` goes into the body of
    requests that demand an answer, over the settings' own extra, such as a server's field for a
    grammar. `remind`: an answer without a line `Exact Answer` is accepted only after one reminder
    of the format. `first_call` (`search`): the first call has to be a search; a model that answers
    instead is told so once. Neither is part of the published agents, whose first reply without a
    call is their answer. Every request is entered in `ledger` (None: a new one, with the budget's
    caps). `clock` gives seconds.

    How a question ends (status, and reason where the status does not tell):
    - `completed`: the model answered. `steered`: it did so after it was told that time is short;
      reason `no_answer` where it went on calling tools instead.
    - `timed_out` (`seconds`): stopped by the clock, without an answer.
    - `out_of_turns` (`turns`, `tool_calls`, `output_tokens`), `out_of_context` (`context_window`,
      our estimate; `context_overflow`, the server's word), `out_of_money` (`dollars`;
      `run_out_of_money`): a budget was used up; an answer was demanded where that was possible,
      if need be without the newest exchange, which `warnings` then tell.
    - `failed`: `refused`, `truncated` or `empty_answer` twice, any other code of
      `soundingline.toolkit.llm.errors`, or `defect`; asked again when the run is resumed.

    Raises `InputError` for impossible values, for a window that one reply would fill, and where
    there is a cap on money but no price.
    """

    name = "chat"
    requires_llm = True
    accepts_llm = True

    def __init__(
        self,
        *,
        model: ChatModel | None = None,
        prompt: str = "pi_serini",
        budget: Budget | None = None,
        settings: SamplingParams | None = None,
        answer_extra: Mapping[str, Any] | None = None,
        remind: bool = False,
        first_call: str | None = None,
        price: Price = UNKNOWN,
        ledger: Ledger | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        limits = budget or Budget()
        if ledger is None:
            ledger = Ledger(cap=limits.run_dollars, question_cap=limits.dollars)
        if (ledger.cap or ledger.question_cap) and not price.known:
            raise InputError(
                "there is a cap on money, and the price of the model is unknown",
                do="set llm.price.input and llm.price.output, or remove the cap",
            )
        check_first_call(first_call)
        settings = settings or SamplingParams()
        _check_room(limits, settings)
        self._model = model
        self._price = price
        self._prompt, self._answer_extra = prompt, answer_extra
        self._remind, self._first_call = remind, first_call
        self._setup = AgentSetup(
            prompt=load_prompt(prompt),
            budget=limits,
            settings=settings,
            answer_extra=answer_extra or {},
            ledger=ledger,
            remind=remind,
            first_call=first_call,
        )
        self._clock = clock

    def bind(self, resources: RunResources) -> ChatAgent:
        """See `Agent`."""
        return type(self)(
            model=resources.model,
            prompt=self._prompt,
            budget=resources.budget,
            settings=resources.settings,
            answer_extra=self._answer_extra,
            remind=self._remind,
            first_call=self._first_call,
            price=resources.price,
            ledger=resources.ledger,
            clock=self._clock,
        )

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of what the settings only name, for the run's manifest."""
        prompt = self._setup.prompt
        prints = {"prompt": prompt.fingerprint}
        if self._remind:
            words = prompt.words("reminder"), prompt.words("reminder_closed")
            prints["prompt.reminder"] = fingerprint(*words)
        if self._first_call:
            prints["prompt.first_call"] = fingerprint(prompt.words("first_call"))
        return prints

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """Answer one question; any number at once. Tools run in threads."""
        opening = self._setup.prompt.opening(topic.text)
        return await run_episode(topic, tool, self._work, opening=opening, clock=self._clock)

    async def _work(self, episode: Episode) -> None:
        qid, ledger = episode.topic.qid, self._setup.ledger
        if self._model is None:
            raise RuntimeError("the agent has no model: bind it to one")
        model = MeteredModel(self._model, ledger, role="agent", qid=qid, price=self._price)
        talk = Conversation(episode, model, self._setup)
        try:
            await self._converse(talk)
        except (OutOfTime, OutOfMoney, NoAnswer, Truncated) as end:
            if talk.demands.draft:
                self._accept(talk, talk.demands.settle_for_draft())
            elif isinstance(end, OutOfTime):
                episode.conclude("", status="timed_out", reason="seconds")
            else:
                raise
        finally:
            episode.usage = ledger.usage(qid)
            episode.warnings += talk.warnings

    async def _converse(self, talk: Conversation) -> None:
        # What to say of the last reply, where it is of no use.
        unusable: tuple[str, str, Exception | None] | None = None
        while True:
            reason = talk.used_up()
            if reason and not talk.demands.draft:
                return await self._last_word(talk, reason)
            if unusable:
                talk.ask_again(*unusable)
                unusable = None
            if talk.refused_turns == _MOST_REFUSED_TURNS:
                return talk.episode.conclude("", status="steered", reason="no_answer")
            talk.steer_if_due()
            try:
                closed = talk.refused_turns > 0 or bool(reason)
                turn = await talk.ask(answer_only=closed)
            except Truncated as cut:
                unusable = "truncated", cut.code, cut
                continue
            except ContextOverflow as overflow:
                if talk.demands.draft:
                    return self._accept(talk, talk.demands.settle_for_draft())
                return await self._last_word(talk, overflow.code)
            if turn.tool_calls:
                await talk.serve(turn)
            elif turn.empty:
                unusable = "empty", "empty_answer", None
            elif not talk.demand(turn.text):
                return self._accept(talk, turn.text)

    def _accept(self, talk: Conversation, text: str) -> None:
        talk.demands.mark(text)
        talk.episode.conclude(text, status="steered" if talk.steered else "completed")

    async def _last_word(self, talk: Conversation, reason: str) -> None:
        """A budget is used up: demand the answer, where there is room and time for one. Where the
        whole transcript leaves too little room, the newest exchange, which took it, is left out."""
        demand, text = self._setup.prompt.sections["final"], None
        room = talk.make_room(demand)
        while room and text is None:
            text = await self._demanded(talk, demand)
            room = text is not None or talk.retreat(demand)
        answered = text or talk.called_closed_tools
        if answered and reason in _ROOM_LEFT and talk.demands.remind(text or "", closed=True):
            text = await self._demanded(talk) or talk.demands.settle_for_draft()
        talk.demands.mark(text or "")
        talk.episode.conclude(text or "", status=_STATUS[reason], reason=reason)

    async def _demanded(self, talk: Conversation, demand: str = "") -> str | None:
        """The answer to a `demand` (empty: to what was said last), as far as there is one; None
        where the window had no room for any."""
        talk.close_tools()
        if demand:
            talk.say(demand)
        try:
            turn = await talk.ask(answer_only=True)
            if turn.tool_calls and talk.demands.reminds:
                await talk.serve(turn)  # They are closed, which is told before the reminder.
            return turn.text
        except (Truncated, ContextOverflow) as cut:
            text = cut.turn.text if cut.turn else ""
            no_room = isinstance(cut, ContextOverflow) or talk.cramped
            return None if no_room and not text.strip() else text
        except (OutOfTime, OutOfMoney):
            return ""  # What ended the question first is what is recorded.


def _check_room(budget: Budget, settings: SamplingParams) -> None:
    """`InputError` where a reply, or the answer, would take the whole window."""
    window, longest = budget.context_window, settings.max_output_tokens or 0
    if window is not None and max(longest, budget.answer_tokens) >= window:
        raise InputError(
            f"a context window of {window} tokens has no room beside replies of {longest} and an "
            f"answer of {budget.answer_tokens}",
            valid="llm.settings.max_output_tokens and budget.answer_tokens below the window",
            do="lower them, or set a larger budget.context_window",
        )
