"""Reading an answer off the probabilities of the token that gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from soundingline.toolkit.llm.messages import Token

# Some servers write a token's space as its vocabulary does.
SPACES = " \t\r\n\u0120\u2581"
LIKELIEST = 20
"""Tokens to ask for at each place: the most that OpenAI and, unless told otherwise, vLLM give."""
_DIGITS = frozenset("0123456789")
_SMALLEST_MASS = 1e-12


class Relevance(NamedTuple):
    """`score` = P(first) / (P(first) + P(second)) of two words. `one_sided`: one of the two was not
    among the tokens that the server listed."""

    score: float
    one_sided: bool


def first_place(tokens: Sequence[Token]) -> Mapping[str, float]:
    """The log-probabilities of the tokens listed at the first place of a reply that is no white
    space, the written one among them; empty where the server gave none."""
    for token in tokens:
        if token.text.strip(SPACES):
            written = {} if token.logprob is None else {token.text: token.logprob}
            return {**written, **token.top}
    return {}


def word(text: str) -> str:
    """What a token says: without the space in front, in lower case."""
    return text.strip(SPACES).lower()


def share(top: Mapping[str, float], first: str, second: str) -> Relevance | None:
    """What the probability of the word `first` is of that of both words, by the likeliest tokens at
    their place; None where neither is among them.

    All spellings of a word count together (` true`, `true`, `True`). A word that is not listed has
    at most the probability of the least likely listed token, and at most what all listed ones leave
    over; the smaller of the two is taken for it.
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
    """The expectation of the digit at a place, 0 to 9, over the digits that are listed there; None
    where none is."""
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
