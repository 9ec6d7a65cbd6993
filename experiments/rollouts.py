"""The questions of a run: agents that answer them concurrently, and the progress of the run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from omegaconf import DictConfig

from soundingline.agents.base import Agent, Budget, Episode, RunResources
from soundingline.agents.keyword import SimulatedReader
from soundingline.experiments.build import make, stage_model
from soundingline.experiments.pipeline import asking_groups, role_of
from soundingline.pipelines.prompting import is_sampled
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import exception_of, in_one_line, notify
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.evaluation import ExactAnswerJudge
from soundingline.toolkit.evaluation.funnel import needed_texts
from soundingline.toolkit.evaluation.retrieval import Texts
from soundingline.toolkit.llm.blocking import interruptible
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import ERRORS
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import ChatModel
from soundingline.toolkit.llm.prices import forecast
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import repeat_id
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, Trajectory

_MOST_WARNINGS = 3
_MOST_COSTS = 100
_NO_QUESTION = ("copied", "errors")  # as the rewriters' stages count them


class Progress:
    """Counts trajectories as they end. `accepted` are the answers by question, for the accuracy by
    the exact rule. Safe for many threads."""

    def __init__(
        self,
        ledger: Ledger,
        accepted: Mapping[str, Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trajectories = 0
        self.costs: list[Mapping[str, float]] = []  # of the first questions, which bounds it
        self.ledger = ledger
        self._warnings: list[str] = []  # the first ones
        self._more_warnings = self._failed = self._judged = self._right = 0
        self._calls = Counter[str]()  # by the code of the refusal, which is empty for the others
        self._accepted = accepted
        self._judge = ExactAnswerJudge()
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()

    def add(self, trajectory: Trajectory) -> None:
        """One more question has ended. Judging takes time in proportion to the answer."""
        accepted, failed = self._accepted.get(trajectory.qid), trajectory.status == "failed"
        right = False
        if accepted and not failed:
            verdict = self._judge.verdict(trajectory.qid, trajectory.answer, accepted)
            right = verdict.correct
        with self._lock:
            self.trajectories += 1
            self._failed += failed
            self._calls.update(call.error for call in trajectory.calls)
            lines = [f"question {trajectory.qid}: {line}" for line in trajectory.warnings]
            room = _MOST_WARNINGS - len(self._warnings)
            self._warnings += lines[:room]
            self._more_warnings += len(lines[room:])
            if trajectory.usage and len(self.costs) < _MOST_COSTS:
                self.costs.append(trajectory.usage)
            self._judged += bool(accepted)
            self._right += right

    def line(self) -> str:
        """`2 failed · accuracy 0.61 · $1.20 · 340 tokens/s`; what is unknown is left out."""
        total = self.ledger.total
        seconds = self._clock() - self._began
        parts = [f"{self._failed} failed"] if self._failed else []
        if self._judged:
            parts.append(f"accuracy {self._right / self._judged:.2f}")
        if total.calls and not total.unpriced and total.dollars:
            parts.append(f"${total.dollars:.2f}")
        if total.output_tokens and seconds > 0:
            parts.append(f"{total.output_tokens / seconds:.0f} tokens/s")
        return " · ".join(parts)

    def closing(self) -> list[str]:
        """Lines for the end: the share of input that a prefix cache answered, the calls that were
        refused, and the warnings."""
        lines = []
        share = self.ledger.total.cached_share
        if share is not None:
            lines.append(f"{share:.1%} of the input tokens came from the prefix cache")
        refused = Counter({code: count for code, count in self._calls.items() if code})
        if refused:
            calls = self._calls.total()
            lines.append(
                f"{refused.total()} of {calls} tool calls were refused ({listed(refused)})"
            )
        lines += self._warnings
        if self._more_warnings:
            lines.append(f"and {self._more_warnings} more warnings; each trajectory holds its own")
        return lines


def listed(codes: Counter[str]) -> str:
    """`missing_argument 3, unknown_tool 1`, the most frequent first."""
    return ", ".join(f"{code} {count}" for code, count in codes.most_common())


def a_failure(parts: Iterable[RunFolder]) -> str:
    """What made a question fail, in one line with the file of its trajectory: the first failed one
    of a run's repeats. Empty where none has failed."""
    for part in parts:
        failed = (qid for qid, status in part.statuses().items() if status == "failed")
        if trajectory := next(map(part.read, failed), None):
            told = in_one_line if trajectory.reason == "defect" else exception_of
            error = told(trajectory.traceback) or trajectory.reason
            return f"question {trajectory.qid}: {error} ({part.trajectory_path(trajectory.qid)})"
    return ""


def fallbacks(counted: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line on the queries that were searched as typed, by what the stages counted; none where
    every query was rewritten."""
    counts = {name: int(number) for name, number in counted.get("rewriter", {}).items()}
    if not counts.get("fell_back"):
        return []
    reasons = Counter({name: counts[name] for name in _NO_QUESTION if counts.get(name)})
    return [
        f"{counts['fell_back']} of {counts['queries']} queries were searched as they were, because "
        f"the rewriter brought nothing of use ({listed(reasons) or 'empty'})"
    ]


def repeat_agents(config: DictConfig, budget: Budget) -> list[Agent]:
    """The agents that ask the questions for the first time, the second time, and so on: equal but
    for `seed`, where the option has one, which is raised by one with each repeat. `InputError`
    where nothing can differ between repeats: no seed, and no model whose replies are not kept."""
    repeats = config.repeats
    check_int("repeats", repeats)
    option = config.agent.copy()
    agents: list[Agent] = []
    for _ in range(repeats):
        agents.append(make(option))
        if option.get("seed") is not None:
            option.seed += 1
    first = agents[0]
    if not isinstance(first, Agent):
        raise InputError(
            f"the option agent gives a {type(first).__name__}",
            valid="a subclass of soundingline.agents.base.Agent",
        )
    asks_model = first.requires_llm or (first.accepts_llm and config.llm is not None)
    # A stage asks its model again where it samples, or where its replies are not cached.
    differs = repeats == 1 or option.get("seed") is not None or asks_model
    asks_anew = differs or any(
        config.paths.caches is None
        or is_sampled(stage_model(config, role_of(group), budget).settings)
        for group in asking_groups(config)
    )
    if not asks_anew:
        raise InputError(
            f"repeats={repeats}, and {type(first).__name__} would do the same each time",
            valid="an agent that asks a language model, or has a seed",
            do="set repeats=1, or choose another agent, or llm=... for one that can ask a model",
        )
    return agents


def check_agent(agent: Agent, llm: LanguageModel | None, budget: Budget) -> Agent:
    """The agent, bound to its budget; `InputError` where it cannot work with the model (which need
    not run yet), or if one is missing."""
    if agent.requires_llm and llm is None:
        raise InputError(
            "the agent asks a language model, and none is chosen",
            do="choose a language model: llm=..., or another agent",
        )
    return agent.bind(resources(llm, budget))


def simulated_reader(agent: Agent, benchmark: Benchmark, texts: Texts) -> SimulatedReader | None:
    """The simulation that reads for the agent, if it uses one. `texts` has the titles and texts of
    documents. A notice says that no question can be answered, where the benchmark has answers and
    it is known of none what must be shown."""
    if not agent.uses_reader:
        return None
    topics, answers, facts = benchmark.topics, benchmark.answers, benchmark.needed_facts
    needed = needed_texts(topics, answers, benchmark.qrels["evidence"], facts, texts)
    if answers and not needed.qids:
        notify(
            f"the simulated reader answers `unknown` to all questions: benchmark {benchmark.name} "
            "has no answer that stands in the evidence of its question"
        )
    return SimulatedReader(needed, answers)


def resources(
    llm: LanguageModel | None, budget: Budget, *, repeat: int = 1, **others: Any
) -> RunResources:
    """What a run gives the agent that asks its questions for the `repeat`-th time; `others` are
    further fields of `RunResources`. A seed of the model is raised by one with each repeat."""
    if llm is None:
        return RunResources(budget, **others)
    settings = llm.settings
    if settings.seed is not None:
        settings = replace(settings, seed=settings.seed + repeat - 1)
    return RunResources(budget, settings=settings, price=llm.price, **others)


def stops_run(reason: str) -> bool:
    """Whether every further question would end for the same reason."""
    return reason == RUN_OUT_OF_MONEY or (reason in ERRORS and ERRORS[reason].stops_run)


class Rollout(NamedTuple):
    """A question, and which repeat of it, counted from 1."""

    topic: Topic
    repeat: int = 1


class RolloutRunner:
    """Agents at work on a run, one for each repeat of its questions. `session` makes a search tool
    for the question of an id; at most `concurrency` questions are under way. `tell` gets a line on
    the first question that fails, as soon as it has, and `advance` is called after each question.
    `stopped` is the trajectory after which no further question was begun; None where all were
    asked."""

    def __init__(
        self,
        agents: Sequence[Agent],
        session: Callable[[str], SearchTool],
        folder: RunFolder,
        tally: Progress,
        concurrency: int,
        tell: Callable[[str], Any] = lambda line: None,
        advance: Callable[[], Any] = lambda: None,
    ) -> None:
        self.stopped: Trajectory | None = None
        self.tally = tally
        self.concurrency = concurrency
        self._agents = agents
        self._session = session
        self._folder = folder
        self._tell, self._advance = tell, advance
        self._failed = False

    async def answer(self, rollouts: Sequence[Rollout]) -> None:
        """Answer each question in its own session and write each trajectory as soon as it ends.

        Ctrl-C drops the questions under way, lets begun writes end, and raises `CancelledError`.
        """
        waiting = iter(rollouts)
        workers = min(self.concurrency, len(rollouts))
        with interruptible():
            tasks = [asyncio.create_task(self._work(waiting)) for _ in range(workers)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, waiting: Iterator[Rollout]) -> None:
        for topic, repeat in waiting:
            if self.stopped:
                return
            # Repeats of a question may be under way at once, each on an account of its own.
            qid = repeat_id(topic.qid, repeat)
            agent = self._agents[repeat - 1]
            asked, tool = topic._replace(qid=qid), self._session(qid)
            episode = Episode(asked, tool, resources=agent.resources)
            try:
                trajectory = await agent.run(asked, tool)
                if not isinstance(trajectory, Trajectory):
                    name, returned = type(agent).__name__, type(trajectory).__name__
                    raise TypeError(f"{name}.run returned {returned}, and a run needs a Trajectory")
            except Exception as error:
                trajectory = episode.ended_by(error)
            if not trajectory.usage:
                # An agent that asks no model may search through a pipeline that does.
                trajectory = replace(trajectory, usage=self.tally.ledger.usage(qid))
            trajectory = replace(trajectory, qid=topic.qid)
            # A write that has begun ends even where this task is cancelled: the loop waits for its
            # threads before it closes.
            await asyncio.to_thread(self._record, trajectory, repeat)
            self._advance()
            if trajectory.status == "failed" and not self._failed:
                self._failed = True
                path = self._folder.repeat(repeat).trajectory_path(trajectory.qid)
                reason = trajectory.traceback.strip().rpartition("\n")[2] or trajectory.reason
                self._tell(f"question {trajectory.qid} failed: {reason}; its trace: {path}")
            if stops_run(trajectory.reason):
                self.stopped = trajectory

    def _record(self, trajectory: Trajectory, repeat: int) -> None:
        self._folder.repeat(repeat).write(trajectory)
        self.tally.add(trajectory)

    async def answer_all(
        self,
        rollouts: Sequence[Rollout],
        first: int,
        model: ChatModel | None = None,
        check: Callable[[Sequence[Trajectory]], Any] = lambda trajectories: None,
    ) -> None:
        """Answer all questions, the `first` few before the others, after which a line tells what
        the rest will take, and `check` is given their trajectories; an exception that it raises
        ends the run. `model` is closed at the end."""
        loop = asyncio.get_running_loop()
        # Tools and writes run in threads. More than there are questions, because a search that its
        # question no longer waits for still holds one.
        loop.set_default_executor(ThreadPoolExecutor(2 * self.concurrency, "question"))
        try:
            if 0 < first < len(rollouts):
                began = loop.time()
                await self.answer(rollouts[:first])
                seconds = (loop.time() - began) / first * len(rollouts)
                expected = forecast(self.tally.costs, len(rollouts), seconds)
                if amounts := str(expected):
                    line = f"{len(rollouts)} questions, judged by the first {first}: {amounts}"
                    self._tell(f"{line}; about {expected.duration}")
                parts = [(self._folder.repeat(one.repeat), one.topic) for one in rollouts[:first]]
                check([ended for part, topic in parts if (ended := part.read(topic.qid))])
                rollouts = rollouts[first:]
            await self.answer(rollouts)
        finally:
            if model:
                await model.close()
