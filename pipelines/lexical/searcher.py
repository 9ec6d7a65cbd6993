"""One search after another over the arrays of an index, from any number of threads."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from numbers import Integral, Real
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical import scoring
from pipelines.lexical.storage import Arrays
from toolkit.errors import InputError

LENGTHS = ("lucene", "exact")
_SATURATIONS_KEPT = 8


class Searcher:
    """BM25 by numbers of terms. `average` is the mean length in tokens of documents with terms."""

    def __init__(self, arrays: Arrays, average: float) -> None:
        self._arrays, self._average = arrays, average
        # A search takes an all-zero array of sums and gives it back all zero: as many exist as
        # searches ever ran at once.
        self._sums: deque[NDArray[np.float32]] = deque()
        self._saturations: OrderedDict[tuple[float, float, str], scoring.Saturation] = OrderedDict()
        self._lock = Lock()

    def search(
        self,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        k1: float,
        b: float,
        depth: int,
        lengths: str,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The best documents and their scores, for terms in ascending order, at least one."""
        saturation = self._saturation(k1, b, lengths)
        documents = len(self._arrays.lengths)
        try:
            sums = self._sums.pop()
        except IndexError:
            sums = np.zeros(documents, np.float32)
        scoring.add_terms(self._arrays, saturation, terms, weights, sums)
        found = scoring.best(self._arrays, terms, sums, min(depth, documents))
        self._sums.append(sums)  # not reached on an interrupt, which may leave sums half-done
        return found

    def _saturation(self, k1: float, b: float, lengths: str) -> scoring.Saturation:
        key = (k1, b, lengths)
        with self._lock:
            saturation = self._saturations.pop(key, None)
            if saturation is None:
                exact = self._arrays.lengths if lengths == "exact" else None
                saturation = scoring.Saturation.of(k1, b, self._average, exact)
            self._saturations[key] = saturation
            if len(self._saturations) > _SATURATIONS_KEPT:
                self._saturations.popitem(last=False)
        return saturation


def check_settings(k1: float, b: float, depth: int, lengths: str) -> None:
    """`InputError` for settings of BM25 that have no meaning."""
    if not (isinstance(k1, Real) and 0 <= k1 < math.inf):
        raise InputError(f"k1={k1}", valid="0 or more", do="try 0.9 (default) or 25 (tuned)")
    if not (isinstance(b, Real) and 0 <= b <= 1):
        raise InputError(f"b={b}", valid="0 to 1", do="try 0.4 (default) or 1 (tuned)")
    if not (isinstance(depth, Integral) and depth >= 1):
        raise InputError(f"depth={depth}", valid="a whole number, 1 or more", do="try 1000")
    if lengths not in LENGTHS:
        raise InputError(f"lengths='{lengths}'", valid=" or ".join(LENGTHS))
