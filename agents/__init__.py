"""Agents, which answer questions with a search tool: `from soundingline.agents import Agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from soundingline.toolkit.optional import lazy_names

if TYPE_CHECKING:
    from soundingline.agents.base import Agent, Budget, Episode
    from soundingline.agents.baselines import ClosedBookAgent, OneShotAgent
    from soundingline.agents.chat import ChatAgent
    from soundingline.agents.keyword import KeywordAgent, SimulatedReader
    from soundingline.agents.literature import Navigator
    from soundingline.agents.rag import RagAgent
    from soundingline.agents.search_r1 import SearchR1Agent

_HOMES = {
    **dict.fromkeys(("Agent", "Budget", "Episode"), "base"),
    "ChatAgent": "chat",
    "ClosedBookAgent": "baselines",
    **dict.fromkeys(("KeywordAgent", "SimulatedReader"), "keyword"),
    "Navigator": "literature",
    "OneShotAgent": "baselines",
    "RagAgent": "rag",
    "SearchR1Agent": "search_r1",
}

__all__ = [
    "Agent",
    "Budget",
    "ChatAgent",
    "ClosedBookAgent",
    "Episode",
    "KeywordAgent",
    "Navigator",
    "OneShotAgent",
    "RagAgent",
    "SearchR1Agent",
    "SimulatedReader",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
