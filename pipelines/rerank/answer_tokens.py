"""Answers that are read from the probabilities of a token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from soundingline.toolkit.llm.messages import Token

# Some servers write a token's space as its vocabulary does.
SPACES = " \t\r\n\u0120\u2581"
LIKELIEST = 20
"""Alternatives to request for each token: the most that OpenAI and by default vLLM return."""
_DIGITS = frozenset("0123456789")
_SMALLEST_MASS = 1e-12


class Relevance(NamedTuple):
    """P(first) / (P(first) + P(second)) of two words, and whether the server did not list one of
    them."""

    score: float
    one_sided: bool


def first_place(tokens: Sequence[Token]) -> Mapping[str, float]:
    """The log-probabilities of the alternatives to the first token of a reply that is not white
    space, itself included; empty if the server returned none."""
    for token in tokens:
        if token.text.strip(SPACES):
            written = {} if token.logprob is None else {token.text: token.logprob}
            return {**written, **token.top}
    return {}


def word(text: str) -> str:
    """The word of a token, without the space in front of it, in lower case."""
    return text.strip(SPACES).lower()


def share(top: Mapping[str, float], first: str, second: str) -> Relevance | None:
    """The share of the word `first` in the probability of both words, by the listed alternatives of
    a token; None if neither is listed.

    All spellings of a word count together (` true`, `true`, `True`). A word that is not listed has
    at most the probability of the least likely alternative, and at most what all of them leave; it
    gets the smaller of the two.
    """
    sides: dict[str, list[float]] = {first: [], second: []}
    for text, logprob in top.items():
        if (side := word(text)) in sides:
            sides[side].append(logprob)
    if not any(sides.values()):
        return None
    rest = 1.0 - math.fsum(math.exp(logprob) for logprob in top.values())
    bound = min(min(top.values()), math.log(max(rest, _SMALLEST_MASS)))
    logs = [_log_sum(sides[side]) if sides[side] else bound for side in (first, second)]
    return Relevance(_sigmoid(logs[0] - logs[1]), not all(sides.values()))


def expected_digit(top: Mapping[str, float]) -> float | None:
    """The expectation of a digit, 0 to 9, over the listed alternatives; None if no digit is
    listed."""
    masses: dict[int, float] = {}
    for text, logprob in top.items():
        if (digit := text.strip(SPACES)) in _DIGITS:
            masses[int(digit)] = masses.get(int(digit), 0.0) + math.exp(logprob)
    total = math.fsum(masses.values())
    if not total:
        return None
    return math.fsum(digit * mass for digit, mass in masses.items()) / total


def _log_sum(logs: Sequence[float]) -> float:
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))


def _sigmoid(value: float) -> float:
    # Each branch takes the exponential of a number below 0, which cannot overflow.
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
