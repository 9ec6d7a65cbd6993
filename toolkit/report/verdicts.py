"""Paired comparisons as a report reads them. `toolkit.evaluation` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Verdict(Protocol):
    """One paired comparison, as `toolkit.evaluation` makes it; `difference` is `b` minus `a`.

    `needed` is the number of questions that would resolve the difference, None or infinite where
    no number would. `wins` counts the questions where `b` is higher.
    """

    @property
    def measure(self) -> str: ...
    @property
    def a(self) -> str: ...
    @property
    def b(self) -> str: ...
    @property
    def mean_a(self) -> float: ...
    @property
    def mean_b(self) -> float: ...
    @property
    def difference(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def p(self) -> float: ...
    @property
    def p_holm(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def needed(self) -> float | None: ...
    @property
    def wins(self) -> int: ...
    @property
    def losses(self) -> int: ...
    @property
    def ties(self) -> int: ...


@dataclass(frozen=True)
class Pair:
    """A verdict read from the side of the cell `one`: `difference` is `one` minus `other`."""

    measure: str
    one: str
    other: str
    mean_one: float
    mean_other: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    n: int
    needed: float | None
    wins: int
    losses: int
    ties: int

    @classmethod
    def of(cls, verdict: Verdict, one: str) -> Pair:
        v, sign = verdict, 1 if verdict.b == one else -1
        ends = sorted((sign * v.low, sign * v.high))
        sides = [(v.b, v.mean_b, v.wins), (v.a, v.mean_a, v.losses)][::sign]
        return cls(
            measure=v.measure,
            one=sides[0][0],
            other=sides[1][0],
            mean_one=sides[0][1],
            mean_other=sides[1][1],
            difference=sign * v.difference,
            low=ends[0],
            high=ends[1],
            p=v.p,
            p_holm=v.p_holm,
            n=v.n,
            needed=v.needed,
            wins=sides[0][2],
            losses=sides[1][2],
            ties=v.ties,
        )
