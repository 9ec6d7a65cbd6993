"""The configuration's language models: what is known of them, and running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from agents.base import BaseAgent, Resources
from agents.budget import Budget
from experiments.build import make
from toolkit.errors import InputError
from toolkit.llm.language_model import LanguageModel
from toolkit.llm.ledger import Ledger
from toolkit.llm.prices import Price
from toolkit.llm.protocol import ChatModel
from toolkit.llm.server import Servers


def language_model(config: Any, group: str) -> LanguageModel | None:
    """The option of `llm` or `judge_llm`; None where none is chosen."""
    if config is None:
        return None
    if isinstance(config, str):
        raise InputError(f"{group}={config} is no option", do=f"write llm@{group}={config}")
    model: LanguageModel = make(config)
    return model


def check_price(config: DictConfig, role: str, price: Price, group: str) -> None:
    """`InputError` where the budget caps what the role may spend and the price that the `group`'s
    option has for its model is unknown."""
    budget = make(config.budget)
    ledger = Ledger(cap=budget.run_dollars, question_cap=budget.dollars)
    ledger.check_price(role, price, f"{group}.price.input and {group}.price.output")


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


def repeat_agents(config: DictConfig, repeats: int) -> list[Any]:
    """The agents that ask the questions for the first time, the second time, and so on: equal but
    for `seed`, where the option has one, which is raised by one with each repeat. `InputError`
    where nothing can differ between repeats."""
    if repeats < 1:
        raise InputError(f"repeats={repeats}", valid="1 or more", do="set repeats=1")
    seed = config.agent.get("seed")
    first = make(config.agent)
    if repeats > 1 and seed is None and not getattr(first, "asks_model", False):
        raise InputError(
            f"repeats={repeats}, and {type(first).__name__} would do the same each time",
            valid="an agent that asks a language model, or has a seed",
            do="set repeats=1, or choose another agent",
        )
    others = [make(_with_seed(config.agent, seed, more)) for more in range(1, repeats)]
    return [first, *others]


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


def within_window(budget: Budget, llm: LanguageModel | None) -> Budget:
    """The budget, its context window that of the model where it names none."""
    if llm is None or budget.context_window is not None:
        return budget
    return replace(budget, context_window=llm.context_window)


# A sweep's, in the process that runs its cells. They end with the sweep (`end_servers`), or else
# with the process.
_OF_SWEEP = Servers()


@contextmanager
def servers_of_run(multirun: bool) -> Iterator[Servers]:
    """The servers that a run may share: its own, which end with the block, or those of the sweep
    that it belongs to."""
    if multirun:
        yield _OF_SWEEP
        return
    with Servers() as servers:
        yield servers


def end_servers() -> None:
    """End those that cells of a sweep have left running for each other."""
    _OF_SWEEP.close()


@contextmanager
def running(
    llm: LanguageModel | None, log: Path, servers: Servers | None = None
) -> Iterator[Mapping[str, ChatModel]]:
    """`model`, ready to be asked, as long as the block; nothing without a model. A server that we
    start writes to `log`; `servers` are those that run already."""
    if llm is None:
        yield {}
        return
    with llm.running(log, servers) as model:
        yield {"model": model}
