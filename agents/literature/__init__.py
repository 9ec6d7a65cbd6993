"""Agents that search for sets of documents: a navigator plans, librarians retrieve and score.

Needs an interface that locates evidence and scores it (`tool=literature`). Plans are a language
model's, or those of rules: the reference that a model has to beat."""

from soundingline.agents.literature.navigator import Navigator
from soundingline.agents.literature.overlap import OverlapScorer

__all__ = ["Navigator", "OverlapScorer"]
