"""Reading a verdict off the tokens of a reasoning re-ranker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toolkit.llm.completions import Token

CLOSE = "</think>"
_SIDES = ("true", "false")
# Some servers write a token's space as its vocabulary does.
_SPACES = " \t\r\n\u0120\u2581"
# Tokens that `</think>` and the white space after it may take.
_CLOSING_TOKENS = 8
_SMALLEST_MASS = 1e-12


class Relevance(NamedTuple):
    """`score` = P(true) / (P(true) + P(false)). `one_sided`: one of the two was not among the
    tokens that the server listed."""

    score: float
    one_sided: bool


def closing_token(tokens: Sequence[Token]) -> Token | None:
    """The last token that says true or false right behind `</think>`; None where there is none."""
    for position in range(len(tokens) - 1, -1, -1):
        before = tokens[max(0, position - _CLOSING_TOKENS) : position]
        if _side(tokens[position].text) and _ends_closed("".join(token.text for token in before)):
            return tokens[position]
    return None


def verdict(top: Mapping[str, float]) -> Relevance | None:
    """From the likeliest tokens at the verdict's place and their log-probabilities; None where
    neither true nor false is among them.

    All spellings of a word count together (` true`, `true`, `True`). A word that is not listed has
    at most the probability of the least likely listed token, and at most what all listed ones leave
    over; the smaller of the two is taken for it.
    """
    sides: dict[str, list[float]] = {side: [] for side in _SIDES}
    for text, logprob in top.items():
        if side := _side(text):
            sides[side].append(logprob)
    if not any(sides.values()):
        return None
    rest = 1.0 - math.fsum(math.exp(logprob) for logprob in top.values())
    bound = min(min(top.values()), math.log(max(rest, _SMALLEST_MASS)))
    true, false = (_log_sum(sides[side]) if sides[side] else bound for side in _SIDES)
    return Relevance(_sigmoid(true - false), not all(sides.values()))


def _side(text: str) -> str:
    word = text.strip(_SPACES).lower()
    return word if word in _SIDES else ""


def _ends_closed(text: str) -> bool:
    return text.rstrip(_SPACES).endswith(CLOSE)


def _log_sum(logs: Sequence[float]) -> float:
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))


def _sigmoid(value: float) -> float:
    # Each branch takes the exponential of a number below 0, which cannot overflow.
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
