"""Agents that search for sets of documents: a navigator plans and judges what is found.

Needs an interface that locates evidence (`tool=literature`). No language model yet: the navigator
of rules is the reference that a model has to beat."""

from agents.literature.navigator import Navigator
from agents.literature.overlap import OverlapScorer

__all__ = ["Navigator", "OverlapScorer"]
