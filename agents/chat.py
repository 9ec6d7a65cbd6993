"""The tool-calling agent: a language model reasons, calls tools, reads results, and answers."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from soundingline.agents.base import (
    Agent,
    Budget,
    Clock,
    Episode,
    RunResources,
    run_episode,
)
from soundingline.agents.conversation import ChatSettings, Conversation, NoAnswer, OutOfTime
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.data import Topic
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
    """ReAct over tool calls (Yao et al., 2023), with the rules of a prompt.

    Args:
        model: the language model. None: that of `bind`.
        prompt: `pi_serini`, `browsecomp_plus`, another prompt of the package, or a path.
        budget: limits of a question. None: no limits.
        settings: how the model samples. The tool choice is `none` if an answer is demanded.
        answer_extra: added to the body of requests that demand an answer, in addition to the
            settings' own `extra`, such as a server's field for a grammar.
        remind: accept an answer without a line `Exact Answer` only after one reminder of the
            format. Not part of the published agents, whose first reply without a call is their
            answer.
        first_call: `search` if the first call must be a search; a model that answers instead is
            corrected once. Not part of the published agents either. None: no demand.
        price: the price of the model's tokens.
        ledger: where every request is recorded. None: a new ledger with the budget's caps.
        clock: returns seconds.

    How a question ends (the status, and the reason if the status does not imply it):

    - `completed`: the model answered. `steered`: it answered after it was informed that time is
      short; with the reason `no_answer` if it went on calling tools instead.
    - `timed_out` (`seconds`): stopped by the clock, without an answer.
    - `out_of_turns` (`turns`, `tool_calls`, `output_tokens`), `out_of_context` (`context_window`,
      our estimate; `context_overflow`, the server's word), `out_of_money` (`dollars`;
      `run_out_of_money`): a budget was used up. An answer was demanded if that was possible, if
      necessary without the newest exchange, which a warning says.
    - `failed`: `refused`, `truncated` or `empty_answer` twice, another code of
      `soundingline.toolkit.llm.errors`, or `defect`. Asked again when the run is resumed.

    Raises:
        InputError: for impossible values, for a window that one reply would fill, and for a cap on
            money without a price.

    Example:
        >>> agent = ChatAgent(prompt="browsecomp_plus", budget=Budget(turns=20))
        >>> asyncio.run(agent.run(topic, tool))  # doctest: +SKIP
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
        self._model = model
        budget = budget or Budget()
        self._settings = ChatSettings(
            prompt=load_prompt(prompt),
            budget=budget,
            sampling=settings or SamplingParams(),
            price=price,
            ledger=ledger or Ledger(cap=budget.run_dollars, question_cap=budget.dollars),
            answer_extra=answer_extra or {},
            remind=remind,
            first_call=first_call,
        )
        self._clock = clock

    def bind(self, resources: RunResources) -> ChatAgent:
        """See `Agent`."""
        bound = copy.copy(self)
        budget = resources.budget
        bound._model = resources.model
        bound._settings = replace(
            self._settings,
            budget=budget,
            sampling=resources.settings or SamplingParams(),
            price=resources.price,
            ledger=resources.ledger or Ledger(cap=budget.run_dollars, question_cap=budget.dollars),
        )
        return bound

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the prompt, and of the sections that optional demands use."""
        prompt = self._settings.prompt
        hashes = {"prompt": prompt.fingerprint}
        if self._settings.remind:
            words = prompt.words("reminder"), prompt.words("reminder_closed")
            hashes["prompt.reminder"] = fingerprint(*words)
        if self._settings.first_call:
            hashes["prompt.first_call"] = fingerprint(prompt.words("first_call"))
        return hashes

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """Answer one question. Any number of questions may run at once; tools run in threads."""
        reader = any(spec["name"] == "get_document" for spec in tool.specs())
        opening = self._settings.prompt.opening(topic.text, reader=reader)
        return await run_episode(topic, tool, self._work, opening=opening, clock=self._clock)

    async def _work(self, episode: Episode) -> None:
        qid, settings = episode.topic.qid, self._settings
        if self._model is None:
            raise RuntimeError("the agent has no model: bind it to one")
        model = MeteredModel(
            self._model, settings.ledger, role="agent", qid=qid, price=settings.price
        )
        talk = Conversation(episode, self._asked(model), settings)
        try:
            await self._converse(talk)
        except (OutOfTime, OutOfMoney, NoAnswer, Truncated) as end:
            if talk.reminder.draft:
                self._accept(talk, talk.reminder.use_draft())
            elif isinstance(end, OutOfTime):
                episode.conclude("", status="timed_out", reason="seconds")
            else:
                raise
        finally:
            episode.usage = settings.ledger.usage(qid)
            episode.warnings += talk.warnings

    def _asked(self, model: ChatModel) -> ChatModel:
        """The model as the conversation asks it."""
        return model

    async def _converse(self, talk: Conversation) -> None:
        # The arguments of `ask_again` after a reply that was of no use.
        unusable: tuple[str, str, Exception | None] | None = None
        while True:
            reason = talk.used_up()
            if reason and not talk.reminder.draft:
                return await self._demand_answer(talk, reason)
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
                if talk.reminder.draft:
                    return self._accept(talk, talk.reminder.use_draft())
                return await self._demand_answer(talk, overflow.code)
            if turn.tool_calls:
                await talk.call_tools(turn)
            elif turn.empty:
                unusable = "empty", "empty_answer", None
            elif not talk.demand(turn.text):
                return self._accept(talk, turn.text)

    def _accept(self, talk: Conversation, text: str) -> None:
        talk.reminder.mark(text)
        talk.episode.conclude(text, status="steered" if talk.steered else "completed")

    async def _demand_answer(self, talk: Conversation, reason: str) -> None:
        """Demand the answer after a budget is used up, if room and time are left for one. If the
        transcript leaves too little room, the newest exchange, which took it, is left out."""
        demand, text = self._settings.prompt.sections["final"], None
        room = talk.make_room(demand)
        while room and text is None:
            text = await self._last_reply(talk, demand)
            room = text is not None or talk.retreat(demand)
        answered = text or talk.called_closed_tools
        if answered and reason in _ROOM_LEFT and talk.reminder.remind(text or "", closed=True):
            text = await self._last_reply(talk) or talk.reminder.use_draft()
        talk.reminder.mark(text or "")
        talk.episode.conclude(text or "", status=_STATUS[reason], reason=reason)

    async def _last_reply(self, talk: Conversation, demand: str = "") -> str | None:
        """The reply to a `demand` (empty: to the last message), as far as there is one. None if the
        window had no room for any."""
        talk.close_tools()
        if demand:
            talk.say(demand)
        try:
            turn = await talk.ask(answer_only=True)
            if turn.tool_calls and talk.reminder.reminds:
                # The results say that the tools are closed. The reminder follows them.
                await talk.call_tools(turn)
            return turn.text
        except (Truncated, ContextOverflow) as cut:
            text = cut.turn.text if cut.turn else ""
            no_room = isinstance(cut, ContextOverflow) or talk.cramped
            return None if no_room and not text.strip() else text
        except (OutOfTime, OutOfMoney):
            return ""  # The budget that ended the question first is the recorded reason.
