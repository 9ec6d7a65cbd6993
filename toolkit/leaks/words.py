"""Hashes of the words of a text, and of runs of words, by array operations.

A word is a run of ASCII letters and digits, in lower case. All else separates words: punctuation,
the escapes of JSON and of source code (`\\n`, `\\"`, `\\u00e9`), HTML's tags and entities, and
characters beyond ASCII, so that one text has the same words in a page, a record and a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_ESCAPES = re.compile(
    rb'\\+(?:u[0-9a-fA-F]{4}|[nrtbf"/])?|&#?[0-9a-zA-Z]{1,8};|</?[a-zA-Z][^<>\n]{0,200}>'
)
_SIGNS = (b"\\", b"&", b"<")
_LONGEST = 64  # characters of a word that count
_BASE, _STEP = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


class Words(NamedTuple):
    """The words of a content: their `hashes`, in order, and where each begins in `content`, which
    has one space for each escape, and the lines that it had before."""

    hashes: Hashes
    starts: NDArray[np.intp]
    content: bytes

    def line(self, word: int) -> int:
        """The line of a word, from 1."""
        return self.content.count(b"\n", 0, int(self.starts[word])) + 1


def words_of(content: bytes) -> Words:
    """The words of UTF-8 text, or of anything else."""
    if any(sign in content for sign in _SIGNS):
        content = _ESCAPES.sub(b" ", content)
    values, powers = _tables()
    kinds = values[np.frombuffer(content, dtype=np.uint8)]
    inside = kinds > 0
    starts = np.flatnonzero(inside & ~np.concatenate(([False], inside[:-1])))
    if not len(starts):
        return Words(np.empty(0, np.uint64), starts, content)
    begins, kinds = starts - starts[0], kinds[starts[0] :]
    positions = np.arange(len(kinds)) - np.repeat(begins, np.diff(begins, append=len(kinds)))
    weighted = kinds * powers[np.minimum(positions, _LONGEST)]
    return Words(_mixed(np.add.reduceat(weighted, begins)), starts, content)


def runs(words: Hashes, longest: int) -> Iterator[tuple[int, Hashes]]:
    """For each length from 1 to `longest`, the hashes of all runs of so many words, by the place of
    their first word."""
    total = np.zeros(len(words), np.uint64)
    power = 1
    for length in range(1, min(longest, len(words)) + 1):
        power = power * _STEP % 2**64
        end = len(words) - length + 1
        total = total[:end] + words[length - 1 :] * np.uint64(power)
        yield length, total


def _mixed(hashes: Hashes) -> Hashes:
    """Spread over all bits (the finaliser of splitmix64): sums of few characters fill few."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


@cache
def _tables() -> tuple[Hashes, Hashes]:
    """The value of each byte (0: it separates words), and the weight of each place in a word. The
    weight of places beyond the longest word is 0."""
    values = np.zeros(256, np.uint64)
    for byte in range(256):
        character = chr(byte)
        if character.isascii() and character.isalnum():
            values[byte] = ord(character.lower())
    powers = [pow(_BASE, position + 1, 2**64) for position in range(_LONGEST)]
    return values, np.array([*powers, 0], np.uint64)
