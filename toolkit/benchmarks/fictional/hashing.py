"""Counter-based randomness: a value is a function of its key, so nothing has to be remembered.

Only integer operations, so that every platform and Python version gives the same world.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy.typing as npt

T = TypeVar("T")
Bits = TypeVar("Bits", int, npt.NDArray[Any])  # one integer, or an array of `uint64`
MASK = (1 << 64) - 1


def key(*parts: Any) -> int:
    """64 bits that stand for the parts (not `hash()`, which changes with the process)."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def mix(value: Bits) -> Bits:
    """SplitMix64's output function (Steele, Lea, Flood 2014) of a 64-bit integer, or of each
    element of an array of them."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class Draws:
    """A small stream of random choices, named by its key."""

    def __init__(self, *parts: Any) -> None:
        self._state = key(*parts)

    def below(self, limit: int) -> int:
        """An integer from 0 to `limit - 1`."""
        self._state = (self._state + 1) & MASK
        return mix(self._state ^ 0xD1B54A32D192ED03) * limit >> 64

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with that probability, in steps of a millionth."""
        return self.below(1_000_000) < round(probability * 1_000_000)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A shuffled copy (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result
