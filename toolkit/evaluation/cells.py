"""A cell: one evaluated run, with everything that a comparison or a report says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One evaluated run.

    - `factors`: what was varied, option names by group, e.g. `{"unit": "passage"}`.
    - `metrics`: flat measure -> value, as in `metrics.json`.
    - `per_question`: measure -> qid -> value; every judged question has a value, and of effort
      every recorded question of which it is known.
    - `repeats`: measure -> qid -> its value in each repeat, whose mean stands in `per_question`;
      empty where each question was asked once.
    - `funnel`: judged tier -> exposure tier -> `{"macro": .., "micro": .., "documents": ..}`,
      recall of judged documents and mean number of documents exposed a question.
    - `curves`: `documents` and `tokens` -> points (exposed so far, mean recall), ascending.
    - `counts`: `questions`, `answered`, `failed`, `unjudged` and one per exit status; those of
      trajectories are over all `repeats`, if that is among them.
    - `manifest`: the run's manifest, as read.
    """

    name: str
    factors: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    per_question: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    funnel: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    repeats: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
