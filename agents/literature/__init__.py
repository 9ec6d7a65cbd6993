"""Agents for questions that ask for sets of documents: a navigator plans, librarians retrieve and
score. They need an interface that locates evidence and scores it (`tool=literature`)."""

from soundingline.agents.literature.navigator import Navigator
from soundingline.agents.literature.rules import OverlapScorer

__all__ = ["Navigator", "OverlapScorer"]
