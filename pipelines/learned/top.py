"""The best of many scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Found(NamedTuple):
    """Numbers of documents, best first, and their scores; equal scores by number."""

    numbers: NDArray[np.int64]
    scores: NDArray[np.float64]


def best(scores: NDArray[np.float32], depth: int) -> Found:
    """The `depth` highest scores of all documents; of equal ones at the end, the first."""
    if depth >= len(scores):
        return ordered(np.arange(len(scores)), scores, depth)
    least = np.partition(scores, -depth)[-depth]
    numbers = np.flatnonzero(scores >= least)
    return ordered(numbers, scores[numbers], depth)


def ordered(numbers: NDArray[Any], scores: NDArray[np.float32], depth: int) -> Found:
    """The same of some documents, whose ascending numbers are given."""
    order = np.lexsort((numbers, -scores))[:depth]
    return Found(numbers[order], scores[order].astype(np.float64))


def best_of_rows(scores: Any, depth: int) -> list[Found]:
    """`best` of each row of a torch tensor [queries, documents], on the tensor's device."""
    least = scores.topk(min(depth, scores.shape[1]), dim=1).values[:, -1:]
    found = []
    for row, enough in zip(scores, scores >= least, strict=True):
        numbers = enough.nonzero()[:, 0]
        found.append(ordered(numbers.cpu().numpy(), row[numbers].cpu().numpy(), depth))
    return found
