"""Orders of numbered passages as language models write them: `[3] > [1] > [2]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_NUMBER = re.compile(r"\d+")
_IDENTIFIER = re.compile(r"\[\s*(\d+)\s*\]")
_CHAIN = re.compile(r"\[\s*\d+\s*\](?:[\s>=≥≻»,;]*\[\s*\d+\s*\])+")
# Not from inside a number, which would read its digits once for each of them.
_BARE_CHAIN = re.compile(r"(?<!\d)\d+(?:\s*>\s*\d+)+")
_NUMBERS_ONLY = re.compile(r"[\d\s>,;\[\]]+")
# What a citation in a passage has between its brackets: [7], [1, 2], [3-5].
_CITATION = re.compile(r"\[([\s,;–-]*\d[\d\s,;–-]*)\]")
# No passage has a longer number, and `int` refuses some thousand digits.
_MOST_DIGITS = 18


class Permutation(NamedTuple):
    """`order`: places from 0, each once, best first. `repaired`: the answer had to be made into a
    permutation. `empty`: it had no order at all, and this is the order as it was."""

    order: tuple[int, ...]
    repaired: bool
    empty: bool


def read_permutation(answer: str, size: int) -> Permutation:
    """The order of `size` passages, numbered from 1, in a model's answer. A number that comes again
    or that no passage has is dropped; passages that are missing follow in their order."""
    numbers = identifiers(answer)
    named = list(dict.fromkeys(number - 1 for number in numbers if 1 <= number <= size))
    missing = [position for position in range(size) if position not in named]
    complete = not missing and len(numbers) == size
    return Permutation((*named, *missing), bool(named) and not complete, not named)


def identifiers(answer: str) -> list[int]:
    """The numbers that an answer puts in an order; none where it has no order.

    That is its longest chain of numbers in brackets, the last one of equals, since reasons before
    it may name passages too; without a chain all numbers in brackets (a list, say); without any
    brackets a chain of bare numbers, or an answer of nothing but numbers.
    """
    numbers = _longest(_CHAIN.findall(answer)) or _IDENTIFIER.findall(answer)
    if not numbers:
        bare = [answer] if _NUMBERS_ONLY.fullmatch(answer) else _BARE_CHAIN.findall(answer)
        numbers = _longest(bare)
    # Passages are numbered from 1, so that 0 names none of them.
    return [int(number) if len(number) <= _MOST_DIGITS else 0 for number in numbers]


def without_identifiers(text: str) -> str:
    """`text` with what looks like the number of a passage in round brackets."""
    return _CITATION.sub(r"(\1)", text)


def sliding(size: int, window: int, step: int) -> Iterator[tuple[int, int]]:
    """Half-open spans of `window` places, from the end of `size` places to their front, each
    `step` places before the last one; the one at the front may be shorter. None for fewer than two
    places, which have one order."""
    end = size
    while end > 1:
        start = max(0, end - window)
        yield start, end
        end = end - step if start else 0


def _longest(chains: Sequence[str]) -> list[str]:
    """The numbers of the chain with the most of them, the last one of equals."""
    return max((_NUMBER.findall(chain) for chain in reversed(chains)), key=len, default=[])
