"""Vectors in `pyterrier_dr.FlexIndex`'s format, and exact search over them.

The files are the library's own, and `FlexIndex(folder)` opens them elsewhere. The search is ours:
the library's retrievers leave to chance which of equal scores are kept at the depth and in which
order they stand, and sort every batch of documents for every query.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.learned.shards import Shard
from pipelines.learned.top import Found, best, best_of_rows
from pipelines.neural.checkpoints import check_memory
from toolkit.errors import InputError
from toolkit.extras import require

Vectors = NDArray[np.float32]
_SCORES = 1 << 26  # float32 scores held at once


class Search(Protocol):
    def __call__(self, queries: Vectors, depth: int) -> list[Found]:
        """The best `depth` documents of each query [queries, dimensions] by dot product."""
        ...


def write_flex(folder: Path, shards: Iterable[Shard]) -> int:
    """Write the vectors of an encoded corpus as a FlexIndex; their dimensions."""
    index = require("pyterrier_dr").FlexIndex(str(folder), verbose=False)
    try:
        index.index(_rows(shards))
    except UnicodeEncodeError as error:
        raise InputError(
            f"unit id {error.object!r} cannot be written as UTF-8", do="rename it"
        ) from error
    return int(index.payload(return_dvecs=False, return_docnos=False)[0]["vec_size"])


def read_flex(folder: Path) -> tuple[NDArray[Any], Vectors]:
    """Unit ids (array of str objects), and the vectors [units, dimensions], mapped from disk."""
    docnos, vectors, _ = require("pyterrier_dr").FlexIndex(str(folder), verbose=False).payload()
    return np.array(list(docnos), dtype=object), np.asarray(vectors)


def make_search(name: str, vectors: Vectors, device: Any) -> Search:
    """`numpy`: on the CPU, the vectors left on disk. `torch`: on `device`, the vectors in its
    memory; `InputError` where they do not fit."""
    if name == "torch":
        return TorchSearch(vectors, device)
    return NumpySearch(vectors)


class NumpySearch:
    """Matrix products over the mapped vectors, as many queries at once as memory allows."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def __call__(self, queries: Vectors, depth: int) -> list[Found]:
        return [
            best(row, depth)
            for some in _parts(queries, len(self._vectors))
            for row in some @ self._vectors.T
        ]


class TorchSearch:
    """The same on a device that holds all vectors, in float32."""

    def __init__(self, vectors: Vectors, device: Any) -> None:
        what = f"a dense index of {len(vectors)} units in {vectors.shape[1]} dimensions"
        check_memory(vectors.nbytes, device, what)
        # Copied also on the CPU: torch would otherwise hold a writable view of a read-only file.
        self._vectors = require("torch").tensor(vectors, device=device)
        self._turn = threading.Lock()  # one matrix of scores at a time in the device's memory

    def __call__(self, queries: Vectors, depth: int) -> list[Found]:
        torch = require("torch")
        found: list[Found] = []
        with self._turn, torch.inference_mode():
            for some in _parts(queries, len(self._vectors)):
                scores = torch.tensor(some, device=self._vectors.device) @ self._vectors.T
                found += best_of_rows(scores, depth)
        return found


def _parts(queries: Vectors, documents: int) -> Iterator[Vectors]:
    size = max(1, _SCORES // max(1, documents))
    return (queries[start : start + size] for start in range(0, len(queries), size))


def _rows(shards: Iterable[Shard]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        names: Sequence[str] = shard.unit_ids
        for name, vector in zip(names, shard.values, strict=True):
            yield {"docno": name, "doc_vec": vector}
