"""Effects of the factors of a factorial sweep, estimated over questions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pandas as pd

from soundingline.toolkit.errors import InputError


@dataclass(frozen=True)
class Effect:
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

    The model is linear and mixed: the factors and their two-way interactions are fixed effects, and
    each question has a random intercept, because its values in different cells are not independent
    (Bates et al., 2015). It is fitted by restricted maximum likelihood with statsmodels.

    Args:
        runs: for each cell, the level of each factor, and the value of each question.
        measure: the name of the measure, for the results.
        level: of the confidence intervals.

    Returns:
        The main effects of all levels, then the interactions of all pairs of levels. Factors with
        one level are left out.

    Raises:
        InputError: if a combination of levels is absent or doubled, if fewer than two questions
            have a value in every cell, or if no factor varies.

    Example:
        >>> means = [("a", "5", 0.0), ("a", "9", 1.0), ("b", "5", 2.0), ("b", "9", 3.5)]
        >>> cells = [({"unit": u, "depth": d}, {"q1": x, "q2": x + 1}) for u, d, x in means]
        >>> [round(effect.estimate, 3) for effect in factorial_effects(cells, "accuracy")[:2]]
        [-0.625, 0.625]
    """
    names = sorted(set().union(*(factors for factors, _ in runs)))
    levels = {name: sorted({str(factors.get(name)) for factors, _ in runs}) for name in names}
    levels = {name: values for name, values in levels.items() if len(values) > 1}
    if not levels:
        raise InputError("no factor varies over the runs", do="sweep over two or more options")
    cells: dict[tuple[str, ...], Mapping[str, float]] = {}
    for factors, values in runs:
        cell = tuple(str(factors.get(name)) for name in levels)
        if cell in cells:
            what = f"two runs have {', '.join(cell)}"
            raise InputError(what, valid="one run for each combination")
        cells[cell] = values
    if missing := [cell for cell in product(*levels.values()) if cell not in cells]:
        raise InputError(
            f"no run has {', '.join(missing[0])} ({len(missing)} combinations are absent)",
            valid="a full factorial design: one run for each combination of levels",
        )
    shared = sorted(set.intersection(*map(set, cells.values())))
    if len(shared) < 2:
        raise InputError(
            f"{len(shared)} questions have {measure} in every cell of the design",
            valid="two or more",
        )
    columns = [f"factor{number}" for number in range(len(levels))]  # names for a formula
    rows = [(qid, values[qid], *cell) for cell, values in cells.items() for qid in shared]
    frame = pd.DataFrame(rows, columns=["question", "value", *columns])
    return list(_fitted(frame, levels, list(cells), measure, level))


def _fitted(
    frame: pd.DataFrame,
    levels: Mapping[str, Sequence[str]],
    cells: Sequence[tuple[str, ...]],
    measure: str,
    level: float,
) -> Iterator[Effect]:
    from scipy.stats import norm
    from statsmodels.formula.api import mixedlm

    terms = [f"C({column}, Sum)" for column in frame.columns[2:]]
    formula = "value ~ " + " + ".join([*terms, *(f"{a}:{b}" for a, b in combinations(terms, 2))])
    model = mixedlm(formula, frame, groups=frame["question"])
    with warnings.catch_warnings():
        # Questions without variance give a random intercept of zero, which is no fault.
        warnings.simplefilter("ignore")
        result = model.fit(reml=True)
    design = np.asarray(model.exog)[:: len(frame) // len(cells)]  # a row for each cell
    count = design.shape[1]
    estimates = np.asarray(result.params)[:count]
    covariance = np.asarray(result.cov_params())[:count, :count]
    z = norm.ppf(0.5 + level / 2)
    has = {
        (name, value): np.array([cell[place] == value for cell in cells])
        for place, name in enumerate(levels)
        for value in levels[name]
    }
    grand = design.mean(axis=0)
    for factors in [(name,) for name in levels] + list(combinations(levels, 2)):
        for chosen in product(*(levels[name] for name in factors)):
            masks = [has[pair] for pair in zip(factors, chosen, strict=True)]
            # An effect is linear in the means of the cells, and these in the coefficients.
            weights = design[np.all(masks, axis=0)].mean(axis=0) - grand
            if len(masks) == 2:
                weights = weights - sum(design[mask].mean(axis=0) - grand for mask in masks)
            estimate = float(weights @ estimates)
            error = float(np.sqrt(max(weights @ covariance @ weights, 0.0)))
            p = float(2 * norm.sf(abs(estimate) / error)) if error else float(estimate == 0)
            low, high = estimate - z * error, estimate + z * error
            yield Effect(measure, factors, chosen, estimate, low, high, p)
