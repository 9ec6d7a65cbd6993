"""The agent without a language model, the reference for agents that have one."""

from soundingline.agents.keyword.agent import KeywordAgent, SimulatedReader

__all__ = ["KeywordAgent", "SimulatedReader"]
