"""Effects of the factors of a factorial sweep, estimated over questions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

import pandas as pd

from soundingline.toolkit.errors import InputError


class Effect(NamedTuple):
    """An effect on a measure.

    `levels` names a level of each of `factors`. A main effect is the mean of the level minus the
    mean over all levels of its factor. A two-way interaction is what a pair of levels has beyond
    the sum of their main effects. `low` and `high` are the limits of the confidence interval, `p`
    is that of a z test, without a correction for the number of effects.
    """

    measure: str
    factors: tuple[str, ...]
    levels: tuple[str, ...]
    estimate: float
    low: float
    high: float
    p: float


def factorial_effects(
    runs: Sequence[tuple[Mapping[str, str], Mapping[str, float]]],
    measure: str,
    *,
    level: float = 0.95,
) -> list[Effect]:
    """Main effects and two-way interactions of a full factorial design.

    The model is linear and mixed: the factors and their two-way interactions are fixed effects
    with deviations from the mean (sum coding), and each question has a random intercept, because
    its values in different cells are not independent (Bates et al., 2015). It is fitted by
    restricted maximum likelihood with statsmodels.

    Args:
        runs: For each cell, the level of each factor, and the value of each question.
        measure: The name of the measure, for the results.
        level: Of the confidence intervals.

    Returns:
        The main effects of all levels, then the interactions of all pairs of levels. Factors with
        one level are left out.

    Raises:
        InputError: If a combination of levels is absent or doubled, if fewer than two questions
            have a value in every cell, or if no factor varies.

    Example:
        >>> means = [("a", "5", 0.0), ("a", "9", 1.0), ("b", "5", 2.0), ("b", "9", 3.5)]
        >>> cells = [({"unit": u, "depth": d}, {"q1": x, "q2": x + 1}) for u, d, x in means]
        >>> [round(effect.estimate, 3) for effect in factorial_effects(cells, "accuracy")[:2]]
        [-0.625, 0.625]
    """
    levels = _levels([factors for factors, _ in runs])
    cells = _full_design(runs, levels)
    shared = sorted(set.intersection(*(set(values) for values in cells.values())))
    if len(shared) < 2:
        raise InputError(
            f"{len(shared)} questions have {measure} in every cell of the design",
            valid="two or more",
        )
    frame = pd.DataFrame(
        [
            {
                "question": qid,
                "value": values[qid],
                **dict(zip(_columns(levels), cell, strict=True)),
            }
            for cell, values in cells.items()
            for qid in shared
        ]
    )
    return list(_fitted(frame, levels, measure, level))


def _levels(cells: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    names = sorted(set().union(*cells))
    found = {name: sorted({str(cell.get(name)) for cell in cells}) for name in names}
    varying = {name: values for name, values in found.items() if len(values) > 1}
    if not varying:
        raise InputError("no factor varies over the runs", do="sweep over two or more options")
    return varying


def _full_design(
    runs: Sequence[tuple[Mapping[str, str], Mapping[str, float]]],
    levels: Mapping[str, Sequence[str]],
) -> dict[tuple[str, ...], Mapping[str, float]]:
    cells: dict[tuple[str, ...], Mapping[str, float]] = {}
    for factors, values in runs:
        cell = tuple(str(factors.get(name)) for name in levels)
        if cell in cells:
            raise InputError(
                f"two runs have {', '.join(cell)}", valid="one run for each combination"
            )
        cells[cell] = values
    missing = [cell for cell in product(*levels.values()) if cell not in cells]
    if missing:
        raise InputError(
            f"no run has {', '.join(missing[0])} ({len(missing)} combinations are absent)",
            valid="a full factorial design: one run for each combination of levels",
        )
    return cells


def _columns(levels: Mapping[str, Sequence[str]]) -> list[str]:
    """Names that a formula accepts."""
    return [f"factor{number}" for number in range(len(levels))]


def _fitted(
    frame: pd.DataFrame, levels: Mapping[str, Sequence[str]], measure: str, level: float
) -> list[Effect]:
    import numpy as np
    from scipy.stats import norm
    from statsmodels.formula.api import mixedlm

    columns = dict(zip(levels, _columns(levels), strict=True))
    terms = [f"C({column}, Sum)" for column in columns.values()]
    formula = "value ~ " + " + ".join([*terms, *(f"{a}:{b}" for a, b in combinations(terms, 2))])
    model = mixedlm(formula, frame, groups=frame["question"])
    with warnings.catch_warnings():
        # Questions without variance give a random intercept of zero, which is no fault.
        warnings.simplefilter("ignore")
        result = model.fit(reml=True)
    names, count = list(model.exog_names), len(model.exog_names)
    estimates = np.asarray(result.params)[:count]
    covariance = np.asarray(result.cov_params())[:count, :count]
    z = norm.ppf(0.5 + level / 2)
    coding = {name: _sum_coding(len(values)) for name, values in levels.items()}
    effects = []
    wanted = [(name,) for name in levels] + list(combinations(levels, 2))
    for factors in wanted:
        for chosen in product(*(range(len(levels[name])) for name in factors)):
            weights = np.zeros(count)
            rows = [coding[name][index] for name, index in zip(factors, chosen, strict=True)]
            for places in product(*(range(len(row)) for row in rows)):
                parts = [
                    f"C({columns[name]}, Sum)[S.{levels[name][place]}]"
                    for name, place in zip(factors, places, strict=True)
                ]
                weight = np.prod([row[place] for row, place in zip(rows, places, strict=True)])
                weights[names.index(":".join(parts))] = weight
            estimate = float(weights @ estimates)
            error = float(np.sqrt(max(weights @ covariance @ weights, 0.0)))
            p = float(2 * norm.sf(abs(estimate) / error)) if error else float(estimate == 0)
            effects.append(
                Effect(
                    measure,
                    factors,
                    tuple(levels[name][index] for name, index in zip(factors, chosen, strict=True)),
                    estimate,
                    estimate - z * error,
                    estimate + z * error,
                    p,
                )
            )
    return effects


def _sum_coding(levels: int) -> list[list[float]]:
    """Rows of weights of the coefficients: the last level is minus the sum of the others."""
    rows = [[float(place == level) for place in range(levels - 1)] for level in range(levels - 1)]
    return [*rows, [-1.0] * (levels - 1)]
