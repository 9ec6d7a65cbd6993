"""Exact search over vectors: the best documents by MaxSim, or by dot product.

Late interaction (Khattab and Zaharia, SIGIR 2020) scores a document by the sum, over the query's
tokens, of each one's largest dot product with any token of the document (MaxSim). A query and a
document of one vector each are the case of one token: their score is the dot product.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.models import check_memory
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.jit import compiled_for_sums, cores
from soundingline.toolkit.optional import import_optional

SEARCHES = ("numpy", "torch")
Vectors = NDArray[Any]
_PRODUCTS = 1 << 24  # float32 dot products of tokens held at once
_SCORES = 1 << 26  # float32 scores of documents held at once
_FEW = 16  # queries, for which a pass over the documents is faster than a library's product
_PART = 1 << 23  # products of numbers that a thread of its own is worth


@dataclass(frozen=True)
class DocumentVectors:
    """The vectors of all documents: `vectors` [rows, dimensions] in float16 or float32.

    `offsets`: int64 [documents + 1]; document `i` has the rows `offsets[i]:offsets[i + 1]`, one at
    least. None: one row a document.
    """

    vectors: Vectors
    offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.vectors) if self.offsets is None else len(self.offsets) - 1


class TopDocuments(NamedTuple):
    """Numbers of documents, best first, and their scores; equal scores by number."""

    numbers: NDArray[np.int64]
    scores: NDArray[np.float64]


class VectorSearch(Protocol):
    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[TopDocuments]:
        """The best `depth` documents of each query: [tokens, dimensions], or [dimensions] where
        documents have one vector each."""
        ...


def check_search(name: str) -> None:
    """`InputError` for a way of searching that there is not."""
    if name not in SEARCHES:
        raise InputError(f"search={name!r}", valid=", ".join(SEARCHES))


def make_search(name: str, documents: DocumentVectors, device: Any) -> VectorSearch:
    """`numpy`: on the CPU, the vectors left on disk. `torch`: on `device`, the vectors in its
    memory; `InputError` where they do not fit."""
    return TorchSearch(documents, device) if name == "torch" else NumpySearch(documents)


class NumpySearch:
    """Matrix products over vectors that may be mapped from disk. Thread-safe."""

    def __init__(self, documents: DocumentVectors) -> None:
        self._documents = documents

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[TopDocuments]:
        rankings = []
        for part in _parts(queries, len(self._documents)):
            rankings += [best(row, depth) for row in maxsim(part, self._documents)]
        return rankings


def maxsim(queries: Sequence[Vectors], documents: DocumentVectors) -> NDArray[np.float32]:
    """Scores [queries, documents], in float32."""
    tokens = np.vstack(queries).astype(np.float32, copy=False)
    if documents.offsets is None:
        return _products(tokens, documents.vectors)
    starts = np.cumsum([0, *map(len, queries)])[:-1]
    scores = np.empty((len(queries), len(documents)), np.float32)
    for first, last in _blocks(documents.offsets, _PRODUCTS // max(1, len(tokens))):
        begin, end = documents.offsets[first], documents.offsets[last]
        rows = documents.vectors[begin:end].astype(np.float32, copy=False)
        # Token by document token: neighbours in memory are reduced, which is faster.
        largest = np.maximum.reduceat(
            tokens @ rows.T, documents.offsets[first:last] - begin, axis=1
        )
        scores[:, first:last] = np.add.reduceat(largest, starts, axis=0)
    return scores


def _products(queries: NDArray[np.float32], documents: Vectors) -> NDArray[np.float32]:
    """Dot products [queries, documents]. Those of few queries take the time that reading the
    documents takes, where BLAS needs twice as long and more."""
    if len(queries) > _FEW or documents.dtype != np.float32:
        return np.asarray(queries @ documents.T, np.float32)
    products = np.empty((len(queries), len(documents)), np.float32)
    threads = min(cores(), 1 + len(queries) * documents.size // _PART)
    bounds = np.linspace(0, len(documents), threads + 1).astype(int).tolist()
    rows = np.asarray(documents)

    def multiply(part: tuple[int, int]) -> None:
        _multiply(queries, rows, products, *part)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, pairwise(bounds)))
    return products


@compiled_for_sums
def _multiply(
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    products: NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """For the documents from `first` to `last - 1`, each of which is read once for all queries."""
    for row in range(first, last):
        document = documents[row]
        for number in range(len(queries)):
            query = queries[number]
            product = np.float32(0)
            for i in range(len(query)):
                product += document[i] * query[i]
            products[number, row] = product


def scores_of(
    query: Vectors, documents: DocumentVectors, numbers: NDArray[np.int32]
) -> NDArray[np.float32]:
    """The scores of the documents of these numbers: those of `maxsim`, but for the rounding of
    matrix products in float32, which depends on their shapes."""
    if documents.offsets is None:
        return _products(query[None].astype(np.float32), documents.vectors[numbers])[0]
    first, sizes = documents.offsets[numbers], np.diff(documents.offsets)[numbers]
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    scores = np.empty(len(numbers), np.float32)
    for begin, end in _blocks(bounds, _PRODUCTS // max(1, len(query))):
        own = bounds[begin : end + 1] - bounds[begin]
        rows = np.repeat(first[begin:end] - own[:-1], sizes[begin:end]) + np.arange(own[-1])
        part = DocumentVectors(documents.vectors[rows], own)
        scores[begin:end] = maxsim([query], part)[0]
    return scores


class TorchSearch:
    """The same on a device that holds all vectors, in the type in which they are stored; products
    are computed in float32. Thread-safe: one thread at a time computes."""

    def __init__(self, documents: DocumentVectors, device: Any) -> None:
        torch = import_optional("torch")
        rows, dimensions = documents.vectors.shape
        what = f"an index of {rows} vectors in {dimensions} dimensions"
        check_memory(documents.vectors.nbytes, device, what)
        self._documents = documents
        # Copied also on the CPU: torch would otherwise hold a writable view of a read-only file.
        self._vectors = torch.tensor(documents.vectors, device=device)
        if documents.offsets is not None:
            self._lengths = torch.tensor(np.diff(documents.offsets), device=device)
        self._turn = threading.Lock()  # one set of products at a time in the device's memory

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[TopDocuments]:
        rankings = []
        with self._turn, import_optional("torch").inference_mode():
            for part in _parts(queries, len(self._documents)):
                rankings += best_of_rows(self._scores(part), depth)
        return rankings

    def _scores(self, queries: Sequence[Vectors]) -> Any:
        torch, offsets = import_optional("torch"), self._documents.offsets
        tokens = torch.tensor(np.vstack(queries), dtype=torch.float32, device=self._vectors.device)
        if offsets is None:
            return tokens @ self._vectors.T
        lengths = [len(query) for query in queries]
        blocks = []
        for first, last in _blocks(offsets, _PRODUCTS // max(1, len(tokens))):
            rows = self._vectors[offsets[first] : offsets[last]].float()
            largest = torch.segment_reduce(
                rows @ tokens.T, "max", lengths=self._lengths[first:last], axis=0
            )
            by_query = [part.sum(dim=1) for part in largest.split(lengths, dim=1)]
            blocks.append(torch.stack(by_query))
        return torch.cat(blocks, dim=1)


def best(scores: NDArray[np.float32], depth: int) -> TopDocuments:
    """The `depth` highest scores of all documents; of equal ones at the end, the first."""
    if depth >= len(scores):
        return _ordered(np.arange(len(scores)), scores, depth)
    least = np.partition(scores, -depth)[-depth]
    numbers = np.flatnonzero(scores >= least)
    return _ordered(numbers, scores[numbers], depth)


def best_of_rows(scores: Any, depth: int) -> list[TopDocuments]:
    """`best` of each row of a torch tensor [queries, documents], on the tensor's device."""
    least = scores.topk(min(depth, scores.shape[1]), dim=1).values[:, -1:]
    rankings = []
    for row, enough in zip(scores, scores >= least, strict=True):
        numbers = enough.nonzero()[:, 0]
        rankings.append(_ordered(numbers.cpu().numpy(), row[numbers].cpu().numpy(), depth))
    return rankings


def _ordered(numbers: NDArray[Any], scores: NDArray[np.float32], depth: int) -> TopDocuments:
    """The best of some documents, whose ascending numbers are given."""
    order = np.lexsort((numbers, -scores))[:depth]
    return TopDocuments(numbers[order], scores[order].astype(np.float64))


def _parts(queries: Sequence[Vectors], documents: int) -> Iterator[Sequence[Vectors]]:
    """The queries, as many at once as their scores have room for; one at least."""
    size = max(1, _SCORES // max(1, documents))
    return (queries[start : start + size] for start in range(0, len(queries), size))


def _blocks(offsets: NDArray[np.int64], tokens: int) -> Iterator[tuple[int, int]]:
    """Consecutive documents of about `tokens` tokens together, one at least: (first, last + 1)."""
    bounds = [0]
    while bounds[-1] < len(offsets) - 1:
        limit = offsets[bounds[-1]] + tokens
        fitting = int(np.searchsorted(offsets, limit, side="right")) - 1
        bounds.append(max(bounds[-1] + 1, fitting))
    return pairwise(bounds)
