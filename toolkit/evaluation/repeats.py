"""Questions that were asked several times: one value a question, and how far its repeats differ.

Repeats of one question are not independent of each other. So the question stays the unit of every
test and interval: its value is the mean over its repeats, which is what clustering by question
comes to where every question has as many (Miller, Adding error bars to evals, arXiv 2411.00640).
Pooling all repeats as if they were questions makes intervals too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from toolkit.evaluation.evaluations import Evaluation, means

# Counts of questions, which are the same in every repeat; all others are of trajectories.
OF_QUESTIONS = (
    "questions",
    "unjudged",
    "without_accepted_answer",
    "asking_for_documents",
    "without_targets",
)
Values = Mapping[str, Mapping[str, Sequence[float]]]


class VarianceComponents(NamedTuple):
    """Where the variance of a measure comes from, by the one-way random-effects analysis of
    variance: the values of question i are mu + a_i + e_ij over its repeats j (Searle, Casella and
    McCulloch, Variance Components, 1992, chapter 3).

    `within` and `between` are standard deviations, of e and of a; `share` is the share of e in the
    total variance, 1 - ICC(1) (Shrout and Fleiss, 1979), and None where nothing varies. `questions`
    have `repeats` values each on average.
    """

    within: float
    between: float
    share: float | None
    questions: int
    repeats: float


def variance_components(values: Mapping[str, Sequence[float]]) -> VarianceComponents | None:
    """The components over questions with their values; None below two questions, and where no
    question has two values. A negative estimate of the variance between questions is 0."""
    groups = [np.asarray(row, dtype=float) for row in values.values() if len(row)]
    sizes = np.array([len(group) for group in groups])
    total, questions = int(sizes.sum()), len(groups)
    if questions < 2 or total == questions:
        return None
    averages = np.array([group.mean() for group in groups])
    grand = float(np.average(averages, weights=sizes))
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    within /= total - questions
    between = float((sizes * (averages - grand) ** 2).sum()) / (questions - 1)
    size = (total - float((sizes**2).sum()) / total) / (questions - 1)
    between = max(0.0, (between - within) / size)
    variance = within + between
    return VarianceComponents(
        within=math.sqrt(within),
        between=math.sqrt(between),
        share=within / variance if variance > 0 else None,
        questions=questions,
        repeats=total / questions,
    )


def repeated(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The evaluation of a run whose questions were asked several times, of those of its repeats.

    - `per_question`: the mean over the repeats, where they have a value; `repeats`: the values.
    - `metrics`: means over the questions; what has no value for one question, such as the
      calibration error, is the mean of the repeats' values.
    - `counts`: of trajectories, over all repeats, but `OF_QUESTIONS`; and the number of `repeats`.
    - `funnel`, `curves`: means over the repeats. `rankings`, `verdicts`: those of the first.
    """
    first, values = evaluations[0], _values(evaluations)
    per_question = {
        measure: {qid: float(np.mean(row)) for qid, row in rows.items()}
        for measure, rows in values.items()
    }
    over_answers = {
        name: _mean(
            evaluation.metrics[name] for evaluation in evaluations if name in evaluation.metrics
        )
        for name in _names(evaluations, lambda evaluation: evaluation.metrics)
        if name not in per_question
    }
    denominators = {
        name: len(per_question[name])
        if name in per_question
        else sum(evaluation.denominators.get(name, 0) for evaluation in evaluations)
        for name in _names(evaluations, lambda evaluation: evaluation.denominators)
    }
    counts = {
        name: first.counts.get(name, 0)
        if name in OF_QUESTIONS
        else sum(evaluation.counts.get(name, 0) for evaluation in evaluations)
        for name in _names(evaluations, lambda evaluation: evaluation.counts)
    }
    return replace(
        first,
        metrics={**means(per_question), **over_answers},
        per_question=per_question,
        denominators=denominators,
        counts={**counts, "repeats": len(evaluations)},
        funnel=_mean_funnel([evaluation.funnel for evaluation in evaluations]),
        curves=_mean_curves([evaluation.curves for evaluation in evaluations]),
        repeats=values,
    )


def _values(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, list[float]]]:
    values: dict[str, dict[str, list[float]]] = {}
    for evaluation in evaluations:
        for measure, row in evaluation.per_question.items():
            for qid, value in row.items():
                values.setdefault(measure, {}).setdefault(qid, []).append(value)
    return values


def _names(
    evaluations: Sequence[Evaluation], part: Callable[[Evaluation], Mapping[str, object]]
) -> list[str]:
    return list(dict.fromkeys(name for evaluation in evaluations for name in part(evaluation)))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _mean_funnel(
    funnels: Sequence[Mapping[str, Mapping[str, Mapping[str, float]]]],
) -> dict[str, dict[str, dict[str, float]]]:
    # Every repeat has the same questions and judgements, so that means of means are means. A layer
    # of reading that a repeat never showed has zeros there.
    return {judged: _mean_rows([funnel[judged] for funnel in funnels]) for judged in funnels[0]}


def _mean_rows(
    tables: Sequence[Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, float]]:
    tiers = dict.fromkeys(tier for table in tables for tier in table)
    return {tier: _mean_row([table.get(tier, {}) for table in tables]) for tier in tiers}


def _mean_row(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _mean(row.get(name, 0.0) for row in rows) for name in names}


def _mean_curves(
    curves: Sequence[Mapping[str, Sequence[tuple[float, float]]]],
) -> dict[str, list[tuple[float, float]]]:
    """Means of step functions, on all their grids together."""
    result = {}
    for unit in curves[0]:
        grid = sorted({x for curve in curves for x, _ in curve[unit]})
        steps = [np.array(curve[unit], dtype=float) for curve in curves]
        heights = [step[np.searchsorted(step[:, 0], grid, side="right") - 1, 1] for step in steps]
        average = np.mean(heights, axis=0)
        result[unit] = [(float(x), float(y)) for x, y in zip(grid, average, strict=True)]
    return result
