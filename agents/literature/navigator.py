"""The navigator: rounds of planning, retrieval, evidence and scores, after PaSaMaster (Du et al.,
2026, section 2). Its plans are a language model's, or without one those of rules.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Protocol

from soundingline.agents.base import (
    Agent,
    Budget,
    Clock,
    Episode,
    RunResources,
    out_of_money,
    run_episode,
)
from soundingline.agents.conversation import OutOfTime
from soundingline.agents.keyword.words import Rarity
from soundingline.agents.literature.calibration import Calibration
from soundingline.agents.literature.librarians import Librarians, order_call
from soundingline.agents.literature.model_plans import ModelPlans, NavigatorPrompt, OutOfContext
from soundingline.agents.literature.plans import MOST_REQUIREMENTS, Plan
from soundingline.agents.literature.rounds import Mark, Round, kept_round, restore
from soundingline.agents.literature.rules import Rules
from soundingline.agents.literature.survey import Survey
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.llm.errors import OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import SamplingParams
from soundingline.toolkit.search.answers import format_answer
from soundingline.toolkit.search.literature import Literature
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Trajectory

ROLE = "navigator"
_NEEDED = {"search", "locate", "score"}
_INTEGERS = (
    *("rounds", "queries", "requirements", "pool", "seeds", "shown", "listed", "patience"),
    *("ordered", "librarians", "max_calls"),
)


class Plans(Protocol):
    """What decides what a round does."""

    async def plan(self, survey: Survey, number: int) -> Plan: ...


class Navigator(Agent):
    """Answers with a list of documents. Each round has a plan (queries and a checklist of
    requirements); librarians run one query each, beside each other, and score the best new
    documents that it brought up.

    Plans are made by the model of `bind`, or by rules where there is none: the clauses of the
    question, one query a clause and one of all together; later the links of documents that the
    question names and of the best so far, and the requirement that those meet least.

    - At most `rounds`, with at most `queries` queries and `requirements` requirements. Fewer where
      the plan says stop, and after `patience` rounds in a row that brought no new document with a
      score of `bar` or more.
    - `pool`: new documents a round that are scored. `seeds`: documents whose links the rules
      follow. `shown`: documents in the table that the model sees. `listed`: documents that the
      answer lists, the best first; of these, requirements that are new are scored too.
    - `ordered`: of the best documents, those that a listwise re-ranker puts in its own order at the
      end, where the interface has one (`order`).
    - `librarians`: at work at once, of all questions together, each at most `librarian_seconds` for
      a query and for scoring. Documents of one that fails or is late have no scores, are counted,
      and stand behind the others.
    - `calibration`: a file of `soundingline calibrate` for the scorer's probability; None: it is
      taken as it is, which the trajectory says. Scores: see `Survey`.
    - `prompt`: ours, or the path of a `.txt` file with the sections of
      `agents/literature/prompts/navigator.txt`. `max_calls`: tool calls of a question.

    Budgets (`soundingline.agents.base.Budget`) end the rounds, also in the middle of one; the
    answer is then given from what was scored, and the status says why: `steered` (`steer_at` of the
    time, or `max_calls`), `timed_out`, `out_of_turns` (`turns`: the navigator's replies;
    `tool_calls`, `output_tokens`), `out_of_context`, `out_of_money`.

    Whole rounds are kept (`RunResources.rounds`): a question goes on behind the last. Rules are not
    random. `InputError` for impossible values, and for an interface that does not score.
    """

    name = "navigator"
    accepts_llm = True
    reads_document_frequencies = True

    def __init__(
        self,
        *,
        rounds: int = 2,
        queries: int = 12,
        requirements: int = 30,
        pool: int = 40,
        seeds: int = 10,
        shown: int = 20,
        listed: int = 50,
        ordered: int = 20,
        patience: int = 2,
        bar: float = 0.5,
        librarians: int = 8,
        librarian_seconds: float = 300.0,
        calibration: str | None = None,
        prompt: str = "navigator",
        max_calls: int = 2000,
        clock: Clock = time.monotonic,
    ) -> None:
        self.rounds, self.queries, self.requirements = rounds, queries, requirements
        self.pool, self.seeds, self.shown, self.listed = pool, seeds, shown, listed
        self.ordered = ordered
        self.patience, self.bar, self.librarians = patience, bar, librarians
        self.librarian_seconds, self.max_calls = librarian_seconds, max_calls
        for name in _INTEGERS:
            most = MOST_REQUIREMENTS if name == "requirements" else None
            check_int(name, getattr(self, name), le=most)
        check_number("bar", bar, le=1)
        check_number("librarian_seconds", librarian_seconds, gt=0)
        self._calibration = Calibration(calibration) if calibration else None
        self._prompt = NavigatorPrompt(prompt)
        self._librarians = Librarians(librarians, librarian_seconds)
        self._resources = RunResources(Budget())
        self._rarity = Rarity()
        self._clock = clock

    def bind(self, resources: RunResources) -> Navigator:
        """See `Agent`: the collection's statistics, and the model where there is one."""
        bound = copy.copy(self)
        bound._resources = resources
        bound._rarity = Rarity(resources.document_frequency, resources.documents)
        return bound

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """The prompt's, and the calibration's (`none` where there is none)."""
        calibration = self._calibration.fingerprint if self._calibration else "none"
        return {"prompt": self._prompt.fingerprint, "calibration": calibration}

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """Answer one question with a list of documents; any number at once."""
        return await run_episode(topic, tool, self._work, clock=self._clock)

    async def _work(self, episode: Episode) -> None:
        ledger = self._resources.ledger or Ledger()
        try:
            await QuestionSearch(self, episode, ledger).run()
        finally:
            if ledger.by_role(episode.topic.qid):
                episode.usage = ledger.usage(episode.topic.qid)


class QuestionSearch:
    """One question being worked on by `navigator`."""

    def __init__(self, navigator: Navigator, episode: Episode, ledger: Ledger) -> None:
        self._navigator, self._episode, self._ledger = navigator, episode, ledger
        self._session = _session(episode.tool)
        self._budget = navigator._resources.budget
        self._survey = Survey(navigator._calibration)
        self._plans: Plans = self._planner()
        self._head: list[str] = []  # documents in the order of a re-ranker of lists
        self._quiet = 0  # rounds in a row without a good new document
        self._ended: tuple[str, str] = ("completed", "")

    async def run(self) -> None:
        """Rounds until an end, then the answer."""
        first = self._resume() + 1
        try:
            for number in range(first, self._navigator.rounds + 1):
                if self._quiet >= self._navigator.patience or self._used_up():
                    break
                if not await self._round(number):
                    break
            if self._budget.seconds is not None and self._episode.seconds >= self._budget.seconds:
                self._ended = "timed_out", "seconds"
        except OutOfTime:
            self._ended = "timed_out", "seconds"
        except OutOfContext:
            self._ended = "out_of_context", "context_window"
        except OutOfMoney as error:
            self._ended = out_of_money(error)
        if self._ended[0] not in ("timed_out", "out_of_money"):
            await self._order()
        self._answer()

    async def _order(self) -> None:
        """The best documents in the order of the re-ranker of lists, where there is one."""
        best = [docid for docid in self._survey.ranked() if self._survey.judged(docid)]
        best = best[: min(self._navigator.ordered, self._navigator.listed)]
        tools = {spec["name"] for spec in self._session.specs()}
        if "order" not in tools or len(best) < 2:
            return
        seconds = self._budget.seconds
        left = None if seconds is None else seconds - self._episode.seconds
        task = order_call(self._session, best, self._episode.topic.text)
        (outcome,) = await self._navigator._librarians.work([task], left)
        if isinstance(outcome.raised, OutOfMoney):
            self._ended = out_of_money(outcome.raised)
        elif outcome.raised:
            raise outcome.raised
        for served in outcome.served:
            result = self._episode.record(served, "The best, compared.")
            if not result.failed:
                self._head = [docid for docid in result.call.shown if docid in best]
        if outcome.error:
            self._episode.warnings.append(f"the final list was not re-ranked: {outcome.error}")

    async def _round(self, number: int) -> bool:
        """Whether there was a plan that asked for anything."""
        navigator, episode, survey = self._navigator, self._episode, self._survey
        # The opening belongs to the first round.
        mark = Mark.of(episode) if number > 1 else Mark(0, 0, 0)
        plan = await self._plans.plan(survey, number)
        if plan.stop or not plan.queries:
            return False
        work = Round(
            episode,
            self._session,
            survey,
            navigator._librarians,
            pool=navigator.pool,
            rescored=navigator.listed,
            most_calls=min(navigator.max_calls, self._budget.tool_calls or navigator.max_calls),
            seconds=self._budget.seconds,
        )
        try:
            await work.run(plan)
        finally:
            episode.rounds.append(work.record(number, plan))
        good = sum(map(self._good, work.newly_scored))
        episode.rounds[-1] = {**episode.rounds[-1], "good": good}
        self._quiet = 0 if good else self._quiet + 1
        if work.cut:
            by_budget = self._budget.tool_calls is not None and (
                self._budget.tool_calls <= navigator.max_calls
            )
            self._ended = ("out_of_turns", "tool_calls") if by_budget else ("steered", "max_calls")
        self._keep(mark, self._ended if work.cut else None)
        return not work.cut

    def _good(self, docid: str) -> bool:
        return self._survey.score(docid) >= self._navigator.bar

    def _used_up(self) -> bool:
        """Whether a budget allows no further round."""
        budget, episode = self._budget, self._episode
        spent = self._ledger.by_role(episode.topic.qid)
        turns = spent[ROLE].calls if ROLE in spent else 0
        output = sum(account.output_tokens for account in spent.values())
        if budget.seconds is not None and episode.seconds >= budget.steer_at * budget.seconds:
            late = episode.seconds >= budget.seconds
            self._ended = ("timed_out" if late else "steered", "seconds")
        elif budget.turns is not None and turns >= budget.turns:
            self._ended = "out_of_turns", "turns"
        elif budget.output_tokens is not None and output >= budget.output_tokens:
            self._ended = "out_of_turns", "output_tokens"
        else:
            return False
        return True

    def _resume(self) -> int:
        """The number of rounds that an earlier start has done; all of them where the last one used
        up its calls."""
        on_record = self._navigator._resources.rounds
        records = on_record(self._episode.topic.qid).read() if on_record else []
        if not records:
            return 0
        try:
            books = restore(records, self._episode, self._session, self._survey)
            ended = records[-1].get("ended")
            if ended is not None:
                status, reason = map(str, ended)
                self._ended = status, reason
        except (InputError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"the rounds of question {self._episode.topic.qid} cannot be read: {error!r}",
                do="move the file that ends in .rounds.jsonl away from the run's folder queries",
            ) from error
        self._ledger.add_prior_usage(self._episode.topic.qid, books)
        for record in records:
            self._quiet = 0 if record["row"].get("good") else self._quiet + 1
        return len(records) if ended is None else self._navigator.rounds

    def _keep(self, mark: Mark, ended: tuple[str, str] | None) -> None:
        on_record = self._navigator._resources.rounds
        if on_record:
            books = self._ledger.by_role(self._episode.topic.qid)
            record = kept_round(mark, self._episode, self._session, self._survey, books, ended)
            on_record(self._episode.topic.qid).append(record)

    def _answer(self) -> None:
        """The best documents, each of which is one of the corpus."""
        survey, status, reason = self._survey, *self._ended
        ranking = list(dict.fromkeys([*self._head, *survey.ranked()]))[: self._navigator.listed]
        documents = [docid for docid in ranking if self._session.store.document(docid)]
        self._tell_calibration()
        if survey.unscored:
            self._episode.warnings.append(f"{len(survey.unscored)} documents could not be scored")
        text = format_answer(survey.table(documents[:5]), "", None, documents[:1], documents)
        self._episode.finish(text, status=status, reason=reason)

    def _tell_calibration(self) -> None:
        calibration, scorer = self._navigator._calibration, self._session.operators.scorer
        if not self._survey.overall:
            return
        if calibration is None:
            self._episode.warnings.append("the scorer's probability is not calibrated")
        elif scorer is not None and calibration.scorer != scorer.fingerprint:
            self._episode.warnings.append("the calibration was fitted for another scorer")

    def _planner(self) -> Plans:
        navigator, resources, topic = (
            self._navigator,
            self._navigator._resources,
            self._episode.topic,
        )
        tools = {str(spec["name"]) for spec in self._session.specs()}
        rules = Rules(topic, navigator._rarity, tools, navigator.seeds)
        if resources.model is None:
            return rules
        model = MeteredModel(
            resources.model, self._ledger, role=ROLE, qid=topic.qid, price=resources.price
        )
        return ModelPlans(
            self._episode,
            model,
            resources.settings or SamplingParams(),
            navigator._prompt,
            fallback=rules,
            tools=tools,
            rounds=navigator.rounds,
            queries=navigator.queries,
            requirements=navigator.requirements,
            shown=navigator.shown,
            context_window=self._budget.context_window,
            answer_tokens=self._budget.answer_tokens,
            seconds=self._budget.seconds,
        )


def _session(tool: SearchTool) -> Literature:
    tools = {spec["name"] for spec in tool.specs()}
    if isinstance(tool, Literature) and tools >= _NEEDED:
        return tool
    raise InputError(
        "the navigator needs an interface that searches, locates evidence and scores it",
        valid="tool=literature with a scorer",
        do="choose tool=literature and scorer=overlap, or another scorer",
    )
