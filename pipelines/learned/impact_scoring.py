"""Impacts: from weights to what is kept, and from postings to sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.bm25 import BLOCK, first_at
from soundingline.pipelines.lexical.storage import Postings
from soundingline.toolkit.errors import check_number
from soundingline.toolkit.jit import compiled

_LARGEST_SCALE = 100_000  # beyond, float32 would round what the scale has kept


def check_scale(scale: float | None) -> None:
    """`InputError` for a scale that impacts cannot have."""
    if scale is not None:
        do = "set scale=null for exact weights"
        check_number("scale", scale, le=_LARGEST_SCALE, gt=0, do=do)


def scaled(weights: NDArray[np.float32], scale: float | None) -> NDArray[Any]:
    """round(weight x scale) as int32, in float64 so that no product is rounded twice; the weights
    themselves without a scale."""
    if scale is None:
        return weights
    return np.rint(weights.astype(np.float64) * scale).astype(np.int32)


def add_impacts(
    postings: Postings,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    """Add weight times impact of every term to `sums` (one a document)."""
    _add(*postings, terms, weights, sums)


@compiled
def _add(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    impacts: NDArray[Any],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    first = offsets[terms].astype(np.uint64)
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        for row in range(len(terms)):
            weight = weights[row]
            last = first_at(documents, first[row], np.uint64(offsets[terms[row] + 1]), limit)
            for i in range(first[row], last):
                sums[documents[i]] += weight * np.float32(impacts[i])
            first[row] = last
