"""Document lengths in one byte, as Lucene keeps them (`SmallFloat.intToByte4`, `byte4ToInt`).

Lengths up to 39 are exact; above, three bits of mantissa follow the leading one, cut and not
rounded. Ranking with these lengths is what makes a score comparable with Lucene's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_EXACT = 24


def _decoded(code: int) -> int:
    if code < _EXACT:
        return code
    mantissa, exponent = (code - _EXACT) & 7, (code - _EXACT) >> 3
    return _EXACT + (mantissa if exponent == 0 else (8 | mantissa) << (exponent - 1))


DECODED: NDArray[np.int64] = np.array([_decoded(code) for code in range(256)], dtype=np.int64)
"""The length that each of the 256 codes stands for, ascending."""


def encode(lengths: NDArray[Any]) -> NDArray[np.uint8]:
    """The code of each length (integers >= 0): the largest whose decoded length is not above."""
    return (np.searchsorted(DECODED, lengths, side="right") - 1).astype(np.uint8)
