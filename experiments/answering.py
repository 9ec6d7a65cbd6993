"""The agents of a run, and many questions at once: what is started, written, counted, stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from omegaconf import DictConfig

from agents.base import BaseAgent, Resources
from agents.budget import Budget
from experiments.build import make
from experiments.pipeline import asking_groups
from experiments.run_progress import RunProgress, duration, expected
from toolkit.contracts import RUN_OUT_OF_MONEY, Agent, SearchTool, Topic, Trajectory
from toolkit.errors import InputError
from toolkit.llm.errors import ModelError
from toolkit.llm.language_model import LanguageModel
from toolkit.llm.protocol import ChatModel
from toolkit.runs import RunFolder
from toolkit.runs.names import repeat_id


def repeat_agents(config: DictConfig, repeats: int) -> list[Any]:
    """The agents that ask the questions for the first time, the second time, and so on: equal but
    for `seed`, where the option has one, which is raised by one with each repeat. `InputError`
    where nothing can differ between repeats: no seed, and no model whose replies are not kept."""
    if repeats < 1:
        raise InputError(f"repeats={repeats}", valid="1 or more", do="set repeats=1")
    seed = config.agent.get("seed")
    first = make(config.agent)
    if repeats > 1 and seed is None and not _asks_anew(first, config):
        raise InputError(
            f"repeats={repeats}, and {type(first).__name__} would do the same each time",
            valid="an agent that asks a language model, or has a seed",
            do="set repeats=1, or choose another agent, or llm=... for one that can ask a model",
        )
    others = [make(_with_seed(config.agent, seed, more)) for more in range(1, repeats)]
    return [first, *others]


def _asks_anew(agent: Any, config: DictConfig) -> bool:
    """Whether a repeat asks a language model what was asked before: the agent does, and a stage
    does whose replies are kept nowhere."""
    if getattr(agent, "asks_model", False):
        return True
    if config.llm is not None and getattr(agent, "uses_model", False):
        return True
    return config.paths.caches is None and bool(asking_groups(config))


def _with_seed(option: DictConfig, seed: int | None, more: int) -> DictConfig:
    changed = option.copy()
    if seed is not None:
        changed.seed = seed + more
    return changed


def check_agent(agent: Any, llm: LanguageModel | None, budget: Budget) -> Mapping[str, str]:
    """The agent's fingerprints; `InputError` where it cannot work with the model (which need not
    run yet), lacks one, or is no agent."""
    if not callable(getattr(agent, "run", None)):
        raise InputError(
            f"the option agent gives a {type(agent).__name__}",
            valid="a class with name and async run(topic, tool)",
        )
    if not isinstance(agent, BaseAgent):
        return {}
    if agent.asks_model and llm is None:
        raise InputError(
            "the agent asks a language model, and none is chosen",
            do="choose a language model: llm=..., or another agent",
        )
    agent.bind(resources(llm, budget))
    return agent.fingerprints


def resources(
    llm: LanguageModel | None, budget: Budget, *, repeat: int = 1, **others: Any
) -> Resources:
    """What a run gives the agent that asks its questions for the `repeat`-th time; `others` are
    further fields of `Resources`. A seed of the model is raised by one with each repeat."""
    if llm is None:
        return Resources(budget, **others)
    settings = llm.settings
    if settings.seed is not None:
        settings = replace(settings, seed=settings.seed + repeat - 1)
    return Resources(budget, settings=settings, price=llm.price, **others)


def within_window(budget: Budget, llm: LanguageModel | None) -> Budget:
    """The budget, its context window that of the model where it names none."""
    if llm is None or budget.context_window is not None:
        return budget
    return replace(budget, context_window=llm.context_window)


def stops_run(reason: str) -> bool:
    """Whether every further question would end for the same reason."""
    faults = {kind.code for kind in ModelError.__subclasses__() if kind.stops_run}
    return reason == RUN_OUT_OF_MONEY or reason in faults


class Asking(NamedTuple):
    """A question that is to be asked, and which repeat of it, counted from 1."""

    topic: Topic
    repeat: int = 1


class Answering:
    """Agents at work on a run, one for each repeat of its questions. `session` makes a search tool
    for the question of an id; at most `concurrency` questions are under way. `stopped` is the
    trajectory after which no further question was begun; None where all were asked."""

    def __init__(
        self,
        agents: Sequence[Agent],
        session: Callable[[str], SearchTool],
        folder: RunFolder,
        tally: RunProgress,
        concurrency: int,
    ) -> None:
        self.stopped: Trajectory | None = None
        self.tally = tally
        self.concurrency = concurrency
        self._agents = agents
        self._session = session
        self._folder = folder

    async def answer(self, askings: Sequence[Asking]) -> None:
        """Answer each question in its own session and write each trajectory as soon as it ends.

        Ctrl-C drops the questions under way, lets begun writes end, and raises `CancelledError`.
        """
        waiting = iter(askings)
        workers = min(self.concurrency, len(askings))
        with _interruptible(asyncio.get_running_loop()):
            tasks = [asyncio.create_task(self._work(waiting)) for _ in range(workers)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, waiting: Iterator[Asking]) -> None:
        for topic, repeat in waiting:
            if self.stopped:
                return
            # Repeats of a question may be under way at once, each on an account of its own.
            qid = repeat_id(topic.qid, repeat)
            agent = self._agents[repeat - 1]
            trajectory = await agent.run(topic._replace(qid=qid), self._session(qid))
            if not trajectory.usage:
                # An agent that asks no model may search through a pipeline that does.
                trajectory = replace(trajectory, usage=self.tally.usage(qid))
            trajectory = replace(trajectory, qid=topic.qid)
            # A write that has begun ends even where this task is cancelled: the loop waits for its
            # threads before it closes.
            await asyncio.to_thread(self._record, trajectory, repeat)
            if stops_run(trajectory.reason):
                self.stopped = trajectory

    def _record(self, trajectory: Trajectory, repeat: int) -> None:
        self._folder.repeat(repeat).write(trajectory)
        self.tally.add(trajectory)


async def answer_all(
    answering: Answering,
    askings: Sequence[Asking],
    first: int,
    tell: Callable[[str], Any],
    model: ChatModel | None = None,
) -> None:
    """Answer all questions, the `first` few before the others, after which `tell` gets a line on
    what the rest will take; `model` is closed at the end."""
    loop = asyncio.get_running_loop()
    # Tools and writes run in threads. More than there are questions, because a search that its
    # question no longer waits for still holds one.
    loop.set_default_executor(ThreadPoolExecutor(2 * answering.concurrency, "question"))
    try:
        if 0 < first < len(askings):
            began = loop.time()
            await answering.answer(askings[:first])
            if estimated := expected(answering.tally.costs, len(askings)):
                took = duration((loop.time() - began) / first * len(askings))
                line = f"{len(askings)} questions, judged by the first {first}: {estimated}"
                tell(f"{line}; about {took}")
            askings = askings[first:]
        await answering.answer(askings)
    finally:
        if model:
            await model.close()


@contextmanager
def _interruptible(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Ctrl-C cancels the task that runs now instead of raising anywhere in it (which is what it
    does before Python 3.11). Only the main thread gets signals."""
    task = asyncio.current_task()
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, lambda: task and task.cancel())
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)
