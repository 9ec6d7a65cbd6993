"""Effects of a factorial sweep: estimates by hand, errors by an independent computation."""

from itertools import product

import numpy as np
import pytest

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.statistics import factorial_effects

UNITS, DEPTHS = ("document", "passage", "maxp"), ("5", "50")
QUESTIONS = 40


@pytest.fixture(scope="module")
def cells():
    chance = np.random.default_rng(5)
    ease = chance.normal(0, 1, QUESTIONS)
    runs = []
    for unit, depth in product(UNITS, DEPTHS):
        values = UNITS.index(unit) * 0.3 + DEPTHS.index(depth) * 0.2 + ease
        values = values + (0.5 if (unit, depth) == ("maxp", "50") else 0)
        values = values + chance.normal(0, 0.4, QUESTIONS)
        runs.append(
            ({"unit": unit, "depth": depth}, {f"q{n}": v for n, v in enumerate(values.tolist())})
        )
    return runs


def test_effects_are_deviations_of_means(cells):
    by_cell = {(c["unit"], c["depth"]): np.mean(list(row.values())) for c, row in cells}
    table = np.array([[by_cell[unit, depth] for unit in UNITS] for depth in DEPTHS])
    units, depths = table.mean(axis=0) - table.mean(), table.mean(axis=1) - table.mean()
    rest = table - table.mean() - units - depths[:, None]
    expected = {
        **{(unit,): value for unit, value in zip(UNITS, units, strict=True)},
        **{(depth,): value for depth, value in zip(DEPTHS, depths, strict=True)},
        **{(d, u): rest[y, x] for y, d in enumerate(DEPTHS) for x, u in enumerate(UNITS)},
    }
    result = {effect.levels: effect.estimate for effect in factorial_effects(cells, "accuracy")}
    assert result == pytest.approx(expected, abs=1e-6)


def test_errors_are_those_of_a_two_way_analysis_of_variance(cells):
    """In a balanced design, residuals of a model with a mean for each question and each cell give
    the error of an effect: Montgomery, Design and Analysis of Experiments, chapter 5."""
    data = np.array([[values[f"q{n}"] for n in range(QUESTIONS)] for _, values in cells])
    residuals = data - data.mean(0) - data.mean(1, keepdims=True) + data.mean()
    count = len(cells)
    variance = (residuals**2).sum() / ((count - 1) * (QUESTIONS - 1))
    (five,) = (
        e
        for e in factorial_effects(cells, "accuracy")
        if e.levels == ("5",) and len(e.factors) == 1
    )
    # The effect of one of two levels is half the difference of two means of count / 2 cells.
    error = np.sqrt(variance / (count * QUESTIONS))
    assert (five.high - five.low) / 2 == pytest.approx(1.959964 * error, rel=1e-3)
    assert five.p < 1e-6


def test_what_varies_in_one_factor_only_has_no_interactions(cells):
    runs = [run for run in cells if run[0]["depth"] == "5"]
    effects = factorial_effects(runs, "accuracy")
    assert [effect.factors for effect in effects] == [("unit",)] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda runs: runs[:-1], "no run has"),
        (lambda runs: [*runs, runs[0]], "two runs have"),
        (lambda runs: [(c, {"q1": 1.0}) for c, _ in runs], "1 questions have accuracy"),
        (lambda runs: runs[:1], "no factor varies"),
    ],
)
def test_other_designs_are_refused(cells, change, message):
    with pytest.raises(InputError, match=message):
        factorial_effects(change(cells), "accuracy")


def test_questions_that_never_differ_have_no_effect():
    runs = [({"unit": unit}, {"q1": 1.0, "q2": 0.0}) for unit in UNITS]
    for effect in factorial_effects(runs, "accuracy"):
        assert effect.estimate == pytest.approx(0, abs=1e-12)
        assert effect.p > 0.99 or np.isnan(effect.p)
