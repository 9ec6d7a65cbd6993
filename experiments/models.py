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


def language_model(config: Any, group: str) -> LanguageModel | None:
    """The option of `llm` or `judge_llm`; None where none is chosen."""
    if config is None:
        return None
    if isinstance(config, str):
        raise InputError(f"{group}={config} is no option", do=f"write llm@{group}={config}")
    made: LanguageModel = make(config)
    return made


def check_price(config: DictConfig, role: str, price: Price, group: str) -> None:
    """`InputError` where the budget caps what the role may spend and the price that the `group`'s
    option has for its model is unknown."""
    budget = make(config.budget)
    ledger = Ledger(cap=budget.run_dollars, question_cap=budget.dollars)
    ledger.check_price(role, price, f"{group}.price.input and {group}.price.output")


def resources(llm: LanguageModel | None, budget: Budget, **others: Any) -> Resources:
    """What a run gives its agent; `others` are further fields of `Resources`."""
    if llm is None:
        return Resources(budget, **others)
    return Resources(budget, settings=llm.settings, price=llm.price, **others)


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


@contextmanager
def running(
    llm: LanguageModel | None, log: Path, servers: dict[str, str] | None = None
) -> Iterator[Mapping[str, ChatModel]]:
    """`model`, ready to be asked, as long as the block; nothing without a model. A server that we
    start writes to `log`; `servers` are those that run already."""
    if llm is None:
        yield {}
        return
    with llm.running(log, servers) as model:
        yield {"model": model}
