"""How far two judges agree on the same answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm
from statsmodels.stats.inter_rater import cohens_kappa

from toolkit.errors import InputError

Table = Sequence[Sequence[int]]


class Agreement(NamedTuple):
    """Over the `n` answers that both judged: `raw`, the share of equal verdicts; `kappa`, Cohen's
    (1960), None where both judges gave every answer the same verdict; `low` and `high`, its 95 %
    interval, None where it cannot be had; the share that each finds correct; and the answers on
    which they differ."""

    n: int
    raw: float
    kappa: float | None
    low: float | None
    high: float | None
    correct_a: float
    correct_b: float
    only_a: Sequence[str]
    only_b: Sequence[str]


def agreement(
    a: Mapping[str, bool], b: Mapping[str, bool], questions: Mapping[str, str] | None = None
) -> Agreement:
    """Agreement of two judges' verdicts by answer. `only_a` are the answers that a alone finds
    correct. `InputError` where they have no answer in common.

    `questions` names the question of each answer. Where one has several answers, which are not
    independent of each other, the interval comes from the jackknife over questions; else it is that
    of kappa's large-sample error.
    """
    shared = sorted(set(a) & set(b))
    if not shared:
        raise InputError("the two judges have no answer in common", do="judge the same run twice")
    table = _table(shared, a, b)
    n = len(shared)
    (_, only_b), (only_a, both) = table
    kappa = low = high = None
    if n not in (both, table[0][0]):
        result = cohens_kappa(table)
        kappa, low, high = float(result.kappa), float(result.kappa_low), float(result.kappa_upp)
        answers: dict[str, list[str]] = {}
        for name in shared:
            answers.setdefault((questions or {}).get(name, name), []).append(name)
        if len(answers) < n:
            tables = [_table(names, a, b) for names in answers.values()]
            low, high = _jackknife(kappa, tables)
    return Agreement(
        n=n,
        raw=(table[0][0] + both) / n,
        kappa=kappa,
        low=low,
        high=high,
        correct_a=(only_a + both) / n,
        correct_b=(only_b + both) / n,
        only_a=tuple(name for name in shared if a[name] and not b[name]),
        only_b=tuple(name for name in shared if b[name] and not a[name]),
    )


def _table(names: Sequence[str], a: Mapping[str, bool], b: Mapping[str, bool]) -> list[list[int]]:
    """How many answers a (row) and b (column) find wrong and right."""
    table = [[0, 0], [0, 0]]
    for name in names:
        table[int(a[name])][int(b[name])] += 1
    return table


def _jackknife(kappa: float, tables: Sequence[Table]) -> tuple[float | None, float | None]:
    """The 95 % interval from the tables of the questions, each left out once; None where one that
    is left out leaves no kappa."""
    total = np.sum(tables, axis=0)
    values = []
    for table in tables:
        rest = total - np.array(table)
        if rest.sum() in (0, rest[0, 0], rest[1, 1]):
            return None, None
        values.append(float(cohens_kappa(rest, return_results=False)))
    count = len(values)
    error = math.sqrt((count - 1) * float(np.var(values)))
    width = float(norm.ppf(0.975)) * error
    return kappa - width, kappa + width
