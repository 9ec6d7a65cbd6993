"""What the grid kernel looks up: shares of every cell, and the knots of an upper bound.

A cell is one (k1, b). In every cell a document's score is the same function of one number, the
length norm n = k1 * (1 - b + b * length / average):

    f(n) = sum over its terms t of  weight(t) * tf(t) / (tf(t) + n)

f falls and is convex, so that a straight line between its values at two knots is never below it.
A few knots bound all cells. So that a posting costs one addition and not one a knot, weights are
summed by class of frequency first; a class counts as its largest frequency, which keeps it a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.grid_kernel import CLASSES, KNOTS, LANES, GridTables
from pipelines.lexical.scoring import Saturation
from pipelines.lexical.storage import Arrays
from toolkit.jit import compiled

_LARGEST = [*range(1, 17), 18, 20, 22, 25, 28, 32, 37, 43, 50, 60, 75, 100, 140, 190, 255]
_FIRST_KNOT = 0.2  # below it, saturation hardly depends on the norm


def grid_tables(
    cells: Sequence[tuple[float, float]],
    average: float,
    arrays: Arrays,
    terms: NDArray[np.int64],
    *,
    exact: bool,
) -> GridTables:
    """Tables for questions of these terms; `shares` stays empty where lengths are `exact`."""
    padded = [*cells, *[cells[-1]] * (-len(cells) % LANES)]
    pairs = np.empty(0, np.int64) if exact else _occurring(arrays, terms)
    rows = np.full(1 << 16, -1, np.int32)
    rows[pairs] = np.arange(len(pairs), dtype=np.int32)
    norms = np.empty((256, len(padded)), np.float32)
    shares = np.empty((len(pairs), len(padded)), np.float32)
    for cell, (k1, b) in enumerate(padded):
        # Saturation itself, so that a cell's scores are bit by bit those of a single run.
        saturation = Saturation.of(k1, b, average, None)
        norms[:, cell] = saturation.norms
        if saturation.shares is not None and len(pairs):
            shares[:, cell] = saturation.shares[pairs]
    knots = _knots(norms[np.unique(arrays.length_codes)])
    knot, along = _places(norms, knots)
    classes = np.searchsorted(_LARGEST, np.arange(256)).astype(np.uint8)
    classes[0] = CLASSES - 1
    largest = np.array([[frequency] for frequency in _LARGEST], dtype=np.float64)
    knot_shares = np.concatenate([largest / (largest + knots), np.ones((1, KNOTS))])
    k1_values, b_values = np.array(padded, dtype=np.float64).T.copy()
    return GridTables(
        len(cells),
        k1_values,
        b_values,
        norms,
        rows,
        shares,
        classes,
        knot_shares.astype(np.float32),
        knot,
        along,
    )


def _occurring(arrays: Arrays, terms: NDArray[np.int64]) -> NDArray[np.int64]:
    """The `tf * 256 + code` that stand in the postings of these terms."""
    seen = np.zeros(1 << 16, np.bool_)
    _mark(arrays.offsets, arrays.documents, arrays.frequencies, arrays.length_codes, terms, seen)
    return np.flatnonzero(seen)


@compiled
def _mark(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    terms: NDArray[np.int64],
    seen: NDArray[np.bool_],
) -> None:
    for term in terms:
        for i in range(offsets[term], offsets[term + 1]):
            seen[(np.int64(frequencies[i]) << 8) | np.int64(codes[documents[i]])] = True


def _knots(norms: NDArray[np.float32]) -> NDArray[np.float64]:
    """0, and a geometric series up to a little above the largest norm."""
    last = max(float(norms.max()), _FIRST_KNOT) * 1.001
    return np.concatenate([[0.0], np.geomspace(_FIRST_KNOT, last, KNOTS - 1)])


def _places(
    norms: NDArray[np.float32], knots: NDArray[np.float64]
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    knot = np.clip(np.searchsorted(knots, norms, side="right") - 1, 0, KNOTS - 2)
    along: NDArray[Any] = (norms - knots[knot]) / (knots[knot + 1] - knots[knot])
    # Codes of lengths that the index does not have may lie beyond the last knot.
    return knot.astype(np.uint32), np.clip(along, 0, 1).astype(np.float32)
