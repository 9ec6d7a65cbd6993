"""What a whole run will take, from its first questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from toolkit.errors import InputError


class Estimate(NamedTuple):
    """`total` of a quantity over all `questions`, with the bounds between which it will lie with
    the asked probability; `low` is never below what the `sampled` questions took already. Bounds
    are None for a single question, which tells nothing about the spread."""

    questions: int
    sampled: int
    total: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float], questions: int, *, confidence: float = 0.95) -> Estimate:
    """The total over `questions` from the `values` of the first of them (dollars, tokens, seconds).

    The textbook prediction interval of a sum: with mean m and deviation s of k values, the n - k
    others take (n - k) m, give or take t s sqrt((n - k)^2 / k + (n - k)), t from Student's
    distribution with k - 1 degrees of freedom. It takes questions as exchangeable and their costs
    as roughly normal; costs have long tails, so that few values make it too narrow.
    `InputError` without values, or with more values than questions.
    """
    sampled = len(values)
    if not 1 <= sampled <= questions:
        raise InputError(
            f"{sampled} values are given for {questions} questions",
            valid="at least one value, and no more values than questions",
        )
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}", valid="a number between 0 and 1")
    spent = math.fsum(values)
    mean, rest = spent / sampled, questions - sampled
    total = spent + rest * mean
    if sampled == 1:
        return Estimate(questions, sampled, total, None, None)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (sampled - 1))
    from scipy.special import stdtrit  # here, because a command's start would wait for it

    quantile = float(stdtrit(sampled - 1, (1 + confidence) / 2))
    margin = quantile * deviation * math.sqrt(rest**2 / sampled + rest)
    return Estimate(questions, sampled, total, max(spent, total - margin), total + margin)
