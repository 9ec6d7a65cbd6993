"""Agents with the resources of a run."""

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.chat import ChatAgent
from soundingline.toolkit.llm.prices import UNKNOWN


def bound(
    model=None,
    *,
    kind=ChatAgent,
    budget=None,
    ledger=None,
    settings=None,
    price=UNKNOWN,
    clock=None,
    **arguments,
):
    """An agent of this kind with these arguments, bound to a model; `clock` returns seconds."""
    agent = kind(**arguments)
    agent.clock = clock or agent.clock
    return agent.bind(RunResources(budget or Budget(), ledger, model, settings, price))
