"""Paired comparisons as a report reads them: from either side."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.evaluation.compare import Verdict


@dataclass(frozen=True)
class ComparedPair:
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
    def of(cls, verdict: Verdict, one: str) -> ComparedPair:
        v, sign = verdict, 1 if verdict.a == one else -1
        ends = sorted((sign * v.low, sign * v.high))
        sides = [(v.a, v.mean_a, v.wins), (v.b, v.mean_b, v.losses)][::sign]
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
