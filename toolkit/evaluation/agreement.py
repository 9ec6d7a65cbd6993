"""How far two judges agree on the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statsmodels.stats.inter_rater import cohens_kappa

from toolkit.errors import InputError


class Agreement(NamedTuple):
    """Over the `n` questions that both judged: `raw`, the share of equal verdicts; `kappa`, Cohen's
    (1960), None where both judges gave every answer the same verdict; `low` and `high`, its 95 %
    interval; the share that each finds correct; and the questions on which they differ."""

    n: int
    raw: float
    kappa: float | None
    low: float | None
    high: float | None
    correct_a: float
    correct_b: float
    only_a: Sequence[str]
    only_b: Sequence[str]


def agreement(a: Mapping[str, bool], b: Mapping[str, bool]) -> Agreement:
    """Agreement of two judges' verdicts by question. `only_a` are the questions that a alone finds
    correct. `InputError` where they have no question in common."""
    shared = sorted(set(a) & set(b))
    if not shared:
        raise InputError("the two judges have no question in common", do="judge the same run twice")
    table = [[0, 0], [0, 0]]
    for qid in shared:
        table[int(a[qid])][int(b[qid])] += 1
    n = len(shared)
    (_, only_b), (only_a, both) = table
    kappa = low = high = None
    if n not in (both, table[0][0]):
        result = cohens_kappa(table)
        kappa, low, high = float(result.kappa), float(result.kappa_low), float(result.kappa_upp)
    return Agreement(
        n=n,
        raw=(table[0][0] + both) / n,
        kappa=kappa,
        low=low,
        high=high,
        correct_a=(only_a + both) / n,
        correct_b=(only_b + both) / n,
        only_a=tuple(qid for qid in shared if a[qid] and not b[qid]),
        only_b=tuple(qid for qid in shared if b[qid] and not a[qid]),
    )
