"""A compressed index of token vectors, searched in three stages as PLAID does (Santhanam et al.,
CIKM 2022). FAISS clusters, encodes and decodes the vectors.

codec.faiss   centroids and product quantiser, as FAISS writes them
lists.npy     uint16 [rows], the centroid of each vector
codes.npy     uint8 [rows, dimensions / 4], the quantised difference from it
postings.npy  int32, for each centroid the documents with a vector in its list, ascending
bounds.npy    int64 [centroids + 1], where each centroid's documents begin
offsets.npy   int64 [documents + 1], where each document's vectors begin
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from soundingline.pipelines.learned.encoding import Blocks, load_array
from soundingline.pipelines.learned.vectors import (
    DocumentVectors,
    TopK,
    check_rows,
    ordered,
    scores_of,
)
from soundingline.pipelines.lexical.storage import check_offsets
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.jit import compiled_for_sums, cores
from soundingline.toolkit.optional import import_optional

FEWEST_ROWS = 1 << 13
"""Vectors of the smallest collection: a quantiser of 256 values needs 39 for each."""
_CODEC, _LISTS, _CODES = "codec.faiss", "lists.npy", "codes.npy"
_POSTINGS, _BOUNDS, _OFFSETS = "postings.npy", "bounds.npy", "offsets.npy"
_SUB = 4  # dimensions of a byte
_PER_LIST = 40  # vectors that train a centroid
_ROUNDS = 10  # of k-means
_MOST_LISTS = 1 << 16  # numbers of 16 bits
_GRAPH = 1 << 13  # centroids above which a graph finds the nearest one
_LEAST = 4096  # documents that are scored by decoded vectors
_ROWS = 1 << 17  # vectors that are decoded or encoded at once


class CompressedVectors:
    """Vectors that are decoded when they are read: `self[rows]` is float32 [rows, dimensions]."""

    dtype = np.dtype(np.float32)

    def __init__(self, folder: Path) -> None:
        self.codec = import_optional("faiss").read_index(str(folder / _CODEC))
        self.lists = np.asarray(load_array(folder / _LISTS, mapped=True))
        self._codes = np.asarray(load_array(folder / _CODES, mapped=True))
        self.shape = len(self._codes), int(self.codec.d)

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        # FAISS stores list numbers little-endian, in as few bytes as hold the largest.
        size = self.codec.sa_code_size() - self.codec.code_size
        lists = self.lists[rows].astype("<u2").view(np.uint8).reshape(-1, 2)[:, :size]
        parts = lists, self._codes[rows]
        decoded: NDArray[np.float32] = self.codec.sa_decode(np.ascontiguousarray(np.hstack(parts)))
        return decoded


def write_compressed(blocks: Blocks, folder: Path) -> int:
    """Write the vectors of an encoded corpus; their dimensions. `InputError` for vectors too few to
    train on, and for dimensions that are no multiple of 4."""
    rows = blocks.counts["rows"]
    dimensions = next(iter(blocks)).values.shape[1]
    if rows < FEWEST_ROWS or dimensions % _SUB:
        raise InputError(
            f"compression=ivf_pq for {rows} vectors of {dimensions} dimensions",
            valid=f"{FEWEST_ROWS} vectors or more, in a multiple of {_SUB} dimensions",
            do="set compression=none",
        )
    codec = _trained(blocks, rows, dimensions)
    lists = open_memmap(folder / _LISTS, "w+", np.uint16, (rows,))
    codes = open_memmap(folder / _CODES, "w+", np.uint8, (rows, dimensions // _SUB))
    offsets, begin = [np.zeros(1, np.int64)], 0
    for block in blocks:
        for first in range(0, len(block.values), _ROWS):
            part = block.values[first : first + _ROWS].astype(np.float32)
            whole = codec.sa_encode(part)
            end, head = begin + len(part), whole.shape[1] - codes.shape[1]
            codes[begin:end] = whole[:, head:]
            lists[begin:end] = whole[:, :head] @ (256 ** np.arange(head))
            begin = end
        offsets.append(block.offsets[1:] + offsets[-1][-1])
    lists.flush()
    codes.flush()
    import_optional("faiss").write_index(codec, str(folder / _CODEC))
    np.save(folder / _OFFSETS, np.concatenate(offsets))
    _write_postings(folder, lists, np.concatenate(offsets), codec.nlist)
    return dimensions


def _trained(blocks: Blocks, rows: int, dimensions: int) -> Any:
    """An index of FAISS without vectors: its centroids and its quantiser."""
    faiss = import_optional("faiss")
    most = min(4 * math.sqrt(rows), rows / _PER_LIST, _MOST_LISTS)
    lists = 1 << int(math.log2(most))
    coarse = f"IVF{lists}_HNSW32" if lists >= _GRAPH else f"IVF{lists}"
    # `np`: no polysemous codes, whose training takes longer than all the rest.
    recipe = f"{coarse},PQ{dimensions // _SUB}x8np"
    codec = faiss.index_factory(dimensions, recipe, faiss.METRIC_INNER_PRODUCT)
    codec.cp.niter = codec.pq.cp.niter = _ROUNDS
    step = max(1, rows // (_PER_LIST * max(lists, 256)))
    sample, first = [], 0  # Every row of a multiple of `step`, whatever the blocks.
    for block in blocks:
        sample.append(block.values[first::step].astype(np.float32))
        first = (first - len(block.values)) % step
    codec.train(np.concatenate(sample))
    return codec


def _write_postings(
    folder: Path, lists: NDArray[np.uint16], offsets: NDArray[np.int64], number: int
) -> None:
    """Two passes over the lists of all vectors, so that memory holds one part."""
    counts = np.zeros(number, np.int64)
    for of_list, _ in _pairs(lists, offsets):
        counts += np.bincount(of_list, minlength=number)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    postings = open_memmap(folder / _POSTINGS, "w+", np.int32, (int(bounds[-1]),))
    free = bounds[:-1].copy()
    for of_list, documents in _pairs(lists, offsets):
        first = np.searchsorted(of_list, of_list)
        postings[free[of_list] + np.arange(len(of_list)) - first] = documents
        free += np.bincount(of_list, minlength=number)
    postings.flush()
    np.save(folder / _BOUNDS, bounds)


def _pairs(
    lists: NDArray[np.uint16], offsets: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The different pairs of list and document, of many documents at once; ascending."""
    total = len(offsets) - 1
    step = max(1, _ROWS * 8 * total // max(1, len(lists)))
    for first in range(0, total, step):
        part = offsets[first : first + step + 1]
        documents = np.repeat(np.arange(first, first + len(part) - 1), np.diff(part))
        keys = np.unique(lists[part[0] : part[-1]].astype(np.int64) * total + documents)
        yield keys // total, keys % total


def read_compressed(folder: Path) -> DocumentVectors:
    """The vectors that `write_compressed` wrote; `InputError` if FAISS is not installed."""
    vectors: Any = CompressedVectors(folder)
    return DocumentVectors(vectors, load_array(folder / _OFFSETS))


def check_compressed(folder: Path, units: int, rows: int, dimensions: int) -> None:
    """`ValueError` for files that do not fit together."""
    offsets, bounds = load_array(folder / _OFFSETS), load_array(folder / _BOUNDS)
    postings = load_array(folder / _POSTINGS, mapped=True)
    check_rows(offsets, units, rows)
    check_offsets(bounds, len(postings), _BOUNDS)
    vectors = CompressedVectors(folder)
    if vectors.shape != (rows, dimensions) or len(vectors.lists) != rows:
        raise ValueError(f"{_CODES} or {_LISTS} does not hold {rows} vectors")
    if len(bounds) != vectors.codec.nlist + 1 or int(vectors.lists.max()) >= vectors.codec.nlist:
        raise ValueError(f"{_CODEC} has {vectors.codec.nlist} lists, which do not fit the files")
    if len(postings) and not 0 <= int(postings.min()) <= int(postings.max()) < units:
        raise ValueError(f"{_POSTINGS} names documents that are not there")


def is_compressed(folder: Path) -> bool:
    """Whether an index holds vectors of `write_compressed`."""
    return (folder / _CODEC).exists()


class CompressedSearch:
    """Approximate search; thread-safe. The `probes` centroids that are nearest to each token of the
    query name the candidates. MaxSim with each vector replaced by its centroid orders them, and
    MaxSim over the decoded vectors orders the best 4 x depth, 4096 at least."""

    def __init__(self, folder: Path, documents: DocumentVectors, probes: int) -> None:
        self._documents, self._probes = documents, probes
        vectors: Any = documents.vectors
        self._lists = vectors.lists
        self._centroids = vectors.codec.quantizer.reconstruct_n(0, vectors.codec.nlist)
        self._postings = np.asarray(load_array(folder / _POSTINGS, mapped=True))
        self._bounds = load_array(folder / _BOUNDS)

    def __call__(self, queries: Sequence[NDArray[Any]], depth: int) -> list[TopK]:
        """The best documents of each query [tokens, dimensions], `depth` at most."""
        return [self._search(query.astype(np.float32, copy=False), depth) for query in queries]

    def _search(self, query: NDArray[np.float32], depth: int) -> TopK:
        similar = self._centroids @ query.T
        candidates = self._candidates(similar)
        rescored = max(4 * depth, _LEAST)
        if len(candidates) > rescored:
            scores = self._approximate(similar, candidates)
            candidates = np.sort(candidates[np.argpartition(-scores, rescored)[:rescored]])
        numbers = candidates.astype(np.int32)
        return ordered(candidates, scores_of(query, self._documents, numbers), depth)

    def _candidates(self, similar: NDArray[np.float32]) -> NDArray[np.int64]:
        probes = min(self._probes, len(similar))
        nearest = np.unique(np.argpartition(-similar, probes - 1, axis=0)[:probes])
        named = np.zeros(len(self._documents), bool)
        for number in nearest.tolist():
            named[self._postings[self._bounds[number] : self._bounds[number + 1]]] = True
        return np.flatnonzero(named)

    def _approximate(
        self, similar: NDArray[np.float32], candidates: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        scores = np.empty(len(candidates), np.float32)
        offsets: Any = self._documents.offsets
        bounds = np.linspace(0, len(candidates), cores() + 1).astype(int)

        def score(part: tuple[int, int]) -> None:
            own = slice(*part)
            _score(similar, self._lists, offsets, candidates[own], scores[own])

        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(score, pairwise(bounds.tolist())))
        return scores


@compiled_for_sums
def _score(
    similar: NDArray[np.float32],
    lists: NDArray[np.uint16],
    offsets: NDArray[np.int64],
    candidates: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """MaxSim of each candidate with its vectors replaced by their centroids."""
    tokens = similar.shape[1]
    best = np.empty(tokens, np.float32)
    for number in range(len(candidates)):
        best[:] = -np.inf
        for row in range(offsets[candidates[number]], offsets[candidates[number] + 1]):
            of_row = similar[lists[row]]
            for token in range(tokens):
                best[token] = max(best[token], of_row[token])
        scores[number] = best.sum()
