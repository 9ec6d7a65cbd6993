"""Names from invented syllables, unique by construction.

A stem is a number written in mixed radix with syllables as digits. Every syllable starts with a
consonant group and ends with a vowel, and the ending closes the word, so that different numbers
give different stems. A twin's stem is its base's with the ending exchanged for one that no base
has.
"""

from __future__ import annotations

from math import gcd

from toolkit.benchmarks.fictional.data import word_lists
from toolkit.benchmarks.fictional.hashing import key

_LISTS = word_lists()
FINALS = _LISTS["name_finals"]
BASE_RHYMES, TWIN_RHYMES = _LISTS["name_base_rhymes"], _LISTS["name_twin_rhymes"]
GIVEN_ENDINGS = _LISTS["name_given_endings"]
SYLLABLES = [
    onset + nucleus for onset in _LISTS["name_onsets"] for nucleus in _LISTS["name_nuclei"]
]
ENDINGS = [(final, rhyme) for rhyme in range(len(BASE_RHYMES)) for final in FINALS]
CAPACITY = len(SYLLABLES) ** 2 * len(ENDINGS)
GIVEN_CAPACITY = len(SYLLABLES) * len(FINALS) * len(GIVEN_ENDINGS)


def stem(number: int, twin: bool = False) -> str:
    """The stem of `number` (below `CAPACITY`), capitalised, or that of its twin."""
    number, ending = divmod(number, len(ENDINGS))
    second, first = divmod(number, len(SYLLABLES))
    final, rhyme = ENDINGS[ending]
    middle = SYLLABLES[second] if second else ""
    text = SYLLABLES[first] + middle + final + (TWIN_RHYMES if twin else BASE_RHYMES)[rhyme]
    return text.capitalize()


def given(number: int) -> str:
    """A given name, of `GIVEN_CAPACITY`."""
    number, ending = divmod(number, len(GIVEN_ENDINGS))
    final, first = divmod(number, len(SYLLABLES))
    return (SYLLABLES[first] + FINALS[final] + GIVEN_ENDINGS[ending]).capitalize()


class Permutation:
    """A bijection of 0..size-1 that scatters neighbours."""

    def __init__(self, size: int, *parts: object) -> None:
        self.size = size
        self._shift = key("shift", *parts) % size
        self._factor = max(1, size * 618 // 1000 + key("factor", *parts) % max(1, size // 8))
        while gcd(self._factor, size) != 1:
            self._factor += 1

    def __call__(self, number: int) -> int:
        return (number * self._factor + self._shift) % self.size
