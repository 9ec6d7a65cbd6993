"""The navigator: rounds of planning, retrieval, evidence and scores, after PaSaMaster (Du et al.,
2026, section 2), with the plans of a language model or of rules.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from soundingline.agents.base import (
    Agent,
    Budget,
    End,
    Episode,
    OutOfTime,
    RunResources,
    out_of_money,
)
from soundingline.agents.keyword.clues import Rarity
from soundingline.agents.literature.planner import (
    MOST_REQUIREMENTS,
    ModelPlanner,
    SearchPlan,
    load_sections,
)
from soundingline.agents.literature.rounds import (
    Librarians,
    Round,
    judging_task,
    restore,
    round_checkpoint,
)
from soundingline.agents.literature.rules import RulePlanner
from soundingline.agents.literature.scores import Calibration, CandidateScores
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.errors import ContextOverflow, OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import SamplingParams
from soundingline.toolkit.search.answers import format_answer
from soundingline.toolkit.search.literature import Literature
from soundingline.toolkit.search.session import SearchTool

ROLE = "navigator"
_NEEDED = {"search", "locate", "score"}


@dataclass(kw_only=True, eq=False, repr=False)
class Navigator(Agent):
    """Answers with a list of documents.

    Each round has a plan: queries and a checklist of requirements. Librarians run one query each,
    concurrently, and score the best new documents that it returned. The plans are those of the
    run's language model. Without one they are those of rules: the clauses of the question, one
    query for each clause and one of all together; later the links of documents that the question
    names and of the best so far, and the requirement that those meet least.

    Args:
        rounds: the largest number of rounds. There are fewer if the plan says stop, after
            `patience` rounds in a row without a new document whose score is `bar` or more, and
            after a round with which `enough` documents satisfy every requirement.
        queries: the largest number of queries of a round.
        requirements: the largest number of requirements of the checklist.
        pool: new documents that a round scores.
        shown: documents that the model sees, with the rationales and passages of their scores.
        listed: documents that the answer lists, best first. New requirements are scored in these.
        ordered: the best documents that a listwise re-ranker orders at the end, if the interface
            has one (`order`).
        patience: see `rounds`.
        bar: see `rounds`.
        enough: see `rounds`. None: as many as the answer lists.
        librarians: tasks at once, of all questions together.
        librarian_seconds: time limit of a query and of scoring, except under the virtual clock.
            Documents of a librarian that fails or is late have no scores and are ranked after the
            others.
        checklist_scores: whether a document's score counts the requirements that it meets. If not,
            its probability of relevance alone ranks it.
        calibration: a file of `soundingline calibrate` for the scorer's probability. None: the
            probability is used as it is, which a warning says. See `CandidateScores`.
        prompt: `navigator`, or the path of a `.txt` file with the sections of
            `agents/literature/prompts/navigator.txt`.

    A budget ends the rounds, also within one. The answer is then based on what was scored, and the
    status says why: `steered` (`steer_at` of the time), `timed_out`, `out_of_turns`
    (`turns`: the navigator's replies; `tool_calls`, `exposed_tokens`, `output_tokens`),
    `out_of_context`, `out_of_money`.

    Finished rounds are saved (`RunResources.rounds`), and a resumed question continues after the
    last. Rules are deterministic.

    Raises:
        InputError: for impossible values, and for an interface that does not score.

    Example:
        >>> navigator = Navigator(rounds=2, listed=10)
        >>> asyncio.run(navigator.run(topic, literature)).answer.documents  # doctest: +SKIP
    """

    name = "navigator"
    accepts_llm = True
    reads_document_frequencies = True

    rounds: int = 4
    queries: int = 12
    requirements: int = 30
    pool: int = 40
    shown: int = 20
    listed: int = 50
    ordered: int = 20
    patience: int = 2
    bar: float = 0.5
    enough: int | None = None
    librarians: int = 8
    librarian_seconds: float = 300.0
    checklist_scores: bool = True
    calibration: str | None = None
    prompt: str = "navigator"

    def __post_init__(self) -> None:
        for name in (
            "rounds",
            "queries",
            "pool",
            "shown",
            "listed",
            "ordered",
            "patience",
            "librarians",
        ):
            check_int(name, getattr(self, name))
        if self.enough is not None:
            check_int("enough", self.enough)
        check_int("requirements", self.requirements, le=MOST_REQUIREMENTS)
        check_number("bar", self.bar, le=1)
        check_number("librarian_seconds", self.librarian_seconds, gt=0)
        self.calibrated = Calibration(self.calibration) if self.calibration else None
        self.texts = load_sections(self.prompt)
        self.workers = Librarians(self.librarians, self.librarian_seconds)
        self.resources = RunResources(Budget())
        self.rarity = Rarity()

    def bind(self, resources: RunResources) -> Navigator:
        """See `Agent`: binds the model, if there is one, and the collection's statistics."""
        bound = copy.copy(self)
        bound.resources = resources
        bound.rarity = Rarity(resources.document_frequency, resources.documents)
        return bound

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: the tools must search, locate evidence and score it."""
        _session(tool)

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Hashes of the prompt and of the calibration (`none` without one)."""
        calibration = self.calibrated.fingerprint if self.calibrated else "none"
        return {"prompt": fingerprint(self.texts), "calibration": calibration}

    async def work(self, episode: Episode) -> None:
        """Answer one question with a list of documents. Any number of questions may run at once."""
        ledger = self.resources.ledger or Ledger()
        try:
            await QuestionSearch(self, episode, ledger).run()
        finally:
            if ledger.by_role(episode.topic.qid):
                episode.usage = ledger.usage(episode.topic.qid)


class QuestionSearch:
    """The search of `navigator` for one question."""

    def __init__(self, navigator: Navigator, episode: Episode, ledger: Ledger) -> None:
        self._navigator, self._episode, self._ledger = navigator, episode, ledger
        self._qid = episode.topic.qid
        self._session = _session(episode.tool)
        self._budget = episode.budget
        saved = navigator.resources.rounds
        self._saved_rounds = saved(self._qid) if saved else None
        self._scores = CandidateScores(
            navigator.calibrated, by_checklist=navigator.checklist_scores
        )
        self._tools = {spec["name"] for spec in self._session.specs()}
        self._rules = RulePlanner(episode.topic, navigator.rarity, self._tools)
        self._model_plans = self._planner_of(navigator.resources)
        self._order: list[str] = []  # documents in the order of a listwise re-ranker
        self._quiet = 0  # rounds in a row without a good new document
        self._ended: End = ("completed", "")

    async def run(self) -> None:
        """Rounds until the end, then the answer."""
        first = self._resume() + 1
        try:
            for number in range(first, self._navigator.rounds + 1):
                if (
                    self._stopped_by_rule()
                    or self._exhausted_budget()
                    or not await self._round(number)
                ):
                    break
            if self._budget.is_over(self._episode.seconds):
                self._ended = "timed_out", "seconds"
        except OutOfTime:
            self._ended = "timed_out", "seconds"
        except ContextOverflow:
            self._ended = "out_of_context", "context_window"
        except OutOfMoney as error:
            self._ended = out_of_money(error)
        if self._ended[0] not in ("timed_out", "out_of_money"):
            await self._order_best()
        self._answer()

    async def _order_best(self) -> None:
        """Let a listwise re-ranker order the best documents, if there is one."""
        best = self._scores.best()[: min(self._navigator.ordered, self._navigator.listed)]
        if "order" not in self._tools or len(best) < 2:
            return
        task = judging_task(self._episode, "order", best)
        (outcome,) = await self._navigator.workers.work([task], self._episode)
        if isinstance(outcome.raised, OutOfMoney):
            self._ended = out_of_money(outcome.raised)
        elif outcome.raised:
            raise outcome.raised
        for served in outcome.served:
            result = self._episode.record(served, "The best, compared.")
            if not result.failed:
                self._order = [docid for docid in result.call.shown if docid in best]
        if outcome.error:
            self._episode.warnings.append(f"the final list was not re-ranked: {outcome.error}")

    async def _round(self, number: int) -> bool:
        """Plan and run a round. Returns whether another one may follow."""
        navigator, episode, scores = self._navigator, self._episode, self._scores
        tool, began = episode.tool, (0, 0, 0)  # the opening belongs to the first round
        if number > 1:
            began = len(tool.calls), len(tool.exposures.rows), len(episode.messages)
        plan = await self._plan(number)
        if plan.stop or not plan.queries:
            self._mark_stopped("plan")
            return False
        work = Round(
            episode=episode,
            scores=scores,
            librarians=navigator.workers,
            pool=navigator.pool,
            rescored=navigator.listed,
        )
        try:
            await work.run(plan)
        finally:
            episode.rounds.append(work.row(number, plan))
        good = sum(scores.score(docid) >= navigator.bar for docid in work.newly_scored)
        episode.rounds[-1] = {**episode.rounds[-1], "good": good}
        self._quiet = 0 if good else self._quiet + 1
        if work.cut:
            self._ended = ("out_of_turns", "tool_calls")
        if self._saved_rounds:
            usage = self._ledger.by_role(self._qid)
            ended = self._ended if work.cut else None
            checkpoint = round_checkpoint(began, episode, self._session, scores, usage, ended)
            self._saved_rounds.append(checkpoint)
        return not work.cut

    def _stopped_by_rule(self) -> bool:
        """Whether a rule ends the rounds, which the row of the last one then says."""
        if self._quiet >= self._navigator.patience:
            self._mark_stopped("patience")
        elif self._episode.rounds and len(self._scores.meeting_all()) >= (
            self._navigator.enough or self._navigator.listed
        ):
            self._mark_stopped("coverage")
        else:
            return False
        return True

    def _mark_stopped(self, rule: str) -> None:
        if self._episode.rounds:
            self._episode.rounds[-1] = {**self._episode.rounds[-1], "stopped": rule}

    def _exhausted_budget(self) -> bool:
        """Whether a budget allows no further round."""
        budget, seconds = self._budget, self._episode.seconds
        spent = self._ledger.by_role(self._qid)
        turns = spent[ROLE].calls if ROLE in spent else 0
        exhausted = budget.exhausted(
            turns=turns,
            exposed_tokens=self._session.exposures.tokens,
            output_tokens=sum(totals.output_tokens for totals in spent.values()),
        )
        if budget.is_late(seconds):
            self._ended = ("timed_out" if budget.is_over(seconds) else "steered", "seconds")
        elif exhausted:
            self._ended = "out_of_turns", exhausted
        return budget.is_late(seconds) or bool(exhausted)

    def _resume(self) -> int:
        """The number of rounds that earlier starts have finished. All rounds if the last one used
        up its calls."""
        records = self._saved_rounds.read() if self._saved_rounds else []
        if not records:
            return 0
        usage = restore(records, self._episode, self._session, self._scores)
        self._ledger.add_prior_usage(self._qid, usage)
        for record in records:
            self._quiet = 0 if record["row"]["good"] else self._quiet + 1
        if records[-1]["ended"] is None:
            return len(records)
        status, reason = records[-1]["ended"]
        self._ended = status, reason
        return self._navigator.rounds

    def _answer(self) -> None:
        """Answer with the best documents of the corpus."""
        scores, (status, reason) = self._scores, self._ended
        ranking = list(dict.fromkeys([*self._order, *scores.ranked()]))[: self._navigator.listed]
        documents = [docid for docid in ranking if self._session.store.document(docid)]
        calibration, scorer = self._navigator.calibrated, self._session.operators.scorer
        if scores.kind_of_probability == "raw":
            self._episode.warnings.append("the scorer's probability is not calibrated")
        elif calibration and scores.overall and scorer and scorer.fingerprint != calibration.scorer:
            self._episode.warnings.append("the calibration was fitted for another scorer")
        if scores.unscored:
            self._episode.warnings.append(f"{len(scores.unscored)} documents could not be scored")
        table = scores.table([docid for docid in documents[:5] if scores.is_scored(docid)])
        text = format_answer(table, "", None, documents[:1], documents)
        self._episode.finish(text, status=status, reason=reason)

    async def _plan(self, number: int) -> SearchPlan:
        plan = None
        if self._model_plans is not None:
            plan = await self._model_plans.plan(self._scores, number)
            if plan is None and number > 1:
                return SearchPlan(stop=True, reason="no plan")
        return plan or self._rules.plan(self._scores, number)

    def _planner_of(self, resources: RunResources) -> ModelPlanner | None:
        """The planner that asks the run's model, if there is one."""
        navigator = self._navigator
        if resources.model is None:
            return None
        return ModelPlanner(
            episode=self._episode,
            model=MeteredModel(
                resources.model, self._ledger, role=ROLE, qid=self._qid, price=resources.price
            ),
            sampling=resources.settings or SamplingParams(),
            prompt=navigator.texts,
            rounds=navigator.rounds,
            queries=navigator.queries,
            requirements=navigator.requirements,
            shown=navigator.shown,
            tools=self._tools,
            passages=self._session.passage_texts,
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
