"""Late interaction: the score of a document is the sum, over the query's tokens, of each one's
largest dot product with any token of the document (MaxSim; Khattab and Zaharia, SIGIR 2020)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.learned.top import Found, best, best_of_rows
from pipelines.neural.checkpoints import check_memory
from toolkit.extras import require

Vectors = NDArray[Any]
_PRODUCTS = 1 << 24  # float32 dot products held at once


class Documents(NamedTuple):
    """Tokens' vectors of all documents: `vectors` [tokens, dimensions] in float16 or float32, and
    `offsets` int64 [documents + 1]; document `i` has the rows `offsets[i]:offsets[i + 1]`, one at
    least."""

    vectors: Vectors
    offsets: NDArray[np.int64]


class Search(Protocol):
    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[Found]:
        """The best `depth` documents of each query [tokens, dimensions]."""
        ...


def maxsim(queries: Sequence[Vectors], documents: Documents) -> NDArray[np.float32]:
    """Scores [queries, documents] of queries [tokens, dimensions], in float32."""
    starts = np.cumsum([0, *map(len, queries)])[:-1]
    tokens = np.concatenate(queries).astype(np.float32, copy=False)
    scores = np.empty((len(queries), len(documents.offsets) - 1), np.float32)
    for first, last in _blocks(documents.offsets, _PRODUCTS // max(1, len(tokens))):
        begin, end = documents.offsets[first], documents.offsets[last]
        rows = documents.vectors[begin:end].astype(np.float32, copy=False)
        # Token by document token: neighbours in memory are reduced, which is many times faster.
        largest = np.maximum.reduceat(
            tokens @ rows.T, documents.offsets[first:last] - begin, axis=1
        )
        scores[:, first:last] = np.add.reduceat(largest, starts, axis=0)
    return scores


class NumpySearch:
    """MaxSim with all documents, the vectors left on disk."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[Found]:
        return [best(row, depth) for row in maxsim(queries, self._documents)]


class TorchSearch:
    """The same on a device that holds all vectors, in the type in which they are stored; products
    are computed in float32."""

    def __init__(self, documents: Documents, device: Any) -> None:
        torch = require("torch")
        tokens, dimensions = documents.vectors.shape
        what = f"a multi-vector index of {tokens} tokens in {dimensions} dimensions"
        check_memory(documents.vectors.nbytes, device, what)
        self._offsets = documents.offsets
        self._vectors = torch.tensor(documents.vectors, device=device)
        self._lengths = torch.tensor(np.diff(documents.offsets), device=device)
        self._turn = threading.Lock()  # one set of products at a time in the device's memory

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[Found]:
        torch = require("torch")
        with self._turn, torch.inference_mode():
            return best_of_rows(self._scores(queries), depth)

    def _scores(self, queries: Sequence[Vectors]) -> Any:
        torch = require("torch")
        device = self._vectors.device
        tokens = torch.tensor(np.concatenate(queries), dtype=torch.float32, device=device)
        parts = []
        for first, last in _blocks(self._offsets, _PRODUCTS // max(1, len(tokens))):
            rows = self._vectors[self._offsets[first] : self._offsets[last]].float()
            largest = torch.segment_reduce(
                rows @ tokens.T, "max", lengths=self._lengths[first:last], axis=0
            )
            some = largest.split([len(query) for query in queries], dim=1)
            parts.append(torch.stack([each.sum(dim=1) for each in some]))
        return torch.cat(parts, dim=1)


def _blocks(offsets: NDArray[np.int64], tokens: int) -> Iterator[tuple[int, int]]:
    """Consecutive documents of about `tokens` tokens together, one at least: (first, last + 1)."""
    bounds = [0]
    while bounds[-1] < len(offsets) - 1:
        room = int(np.searchsorted(offsets, offsets[bounds[-1]] + tokens, side="right")) - 1
        bounds.append(max(bounds[-1] + 1, room))
    return pairwise(bounds)
