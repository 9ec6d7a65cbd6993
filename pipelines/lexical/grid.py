"""BM25 in all cells of a (k1, b) grid at once: ranks of the judged documents in every cell.

A measure of a ranking depends on the ranks of the judged documents alone, so no ranking is made.
Ranks are those of `LexicalIndex.search` (and of Max-P over it if units are passages), from scores
of the same bits. Measures and the choice of a cell are elsewhere.

In a cell (k1, b) a document's score is a function of one number, the length norm
n = k1 * (1 - b + b * length / average):

    f(n) = sum over its terms t of  weight(t) * tf(t) / (tf(t) + n)

f falls and is convex, so that a straight line between its values at two knots is never below it,
and a few knots bound all cells. So that a posting costs one addition and not one a knot, weights
are summed by class of frequency first; a class counts as its largest frequency, which keeps it a
bound."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.bm25 import TfWeights, check_settings
from soundingline.pipelines.lexical.grid_kernel import (
    CLASSES,
    KNOTS,
    LANES,
    LARGE,
    GridTables,
    judged_scores,
    rank_judged,
)
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.storage import Arrays, StringLookup
from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.jit import compiled

_BLOCK = 256
_CELLS_AT_ONCE = 1024  # bounds the memory of the tables

Query = Mapping[str, float] | Sequence[str]


class JudgedQuery(NamedTuple):
    """A question's index terms (or weights by term), and the documents to be ranked for it."""

    qid: str
    query: Query
    docids: Sequence[str]


class GridBM25:
    """BM25 over an index in all `cells` (k1, b).

    A ranking has at most `depth` units. A unit id `d1%p3` belongs to document `d1`: documents rank
    by their best unit. `InputError` for bad settings, and if the passages of a document do not
    follow each other in the index.
    """

    def __init__(
        self, index: LexicalIndex, cells: Sequence[tuple[float, float]], *, depth: int = 1000
    ) -> None:
        if not cells:
            raise InputError("the grid has no cell", valid="one (k1, b) or more")
        for k1, b in cells:
            check_settings(k1, b, depth)
        self.index, self.cells, self.depth = index, list(cells), depth
        self._order = np.lexsort(np.array(self.cells, dtype=np.float64).T)
        # Numba compiles again for each mixture of arrays that may be written and that may not.
        self._arrays = Arrays(*(array.view() for array in index._arrays))
        for view in self._arrays:
            view.flags.writeable = False
        self._units = _Documents.of(index)

    def ranks(
        self, questions: Sequence[JudgedQuery], threads: int | None = None
    ) -> Iterator[tuple[str, NDArray[np.int32]]]:
        """Each qid, in the order of completion, with the ranks of its `docids` in every cell: int32
        [docids, cells], from 1, and 0 for a document that is not among the `depth` best. `threads`
        default to one a core."""
        first, *rest = (self._ranks(questions, cells, threads) for cells in self._portions())
        others = [dict(part) for part in rest]
        for qid, ranks in first:
            yield qid, self._in_order([ranks, *(other[qid] for other in others)])

    def scores(self, question: JudgedQuery) -> NDArray[np.float32]:
        """Scores of the question's `docids` in every cell: float32 [docids, cells], 0 for a
        document without a query term, or not in the index."""
        terms, weights = self.index._weighted(question.query)
        if not len(terms):
            return np.zeros((len(question.docids), len(self.cells)), np.float32)
        parts = []
        for cells in self._portions():
            tables = self._tables(cells, terms)
            spans = self._units.spans(question.docids)
            scores = np.zeros((len(question.docids), tables.norms.shape[1]), np.float32)
            judged_scores(self._arrays, tables, terms, weights, *spans, scores)
            parts.append(scores[:, : len(cells)])
        return self._in_order(parts)

    def _in_order(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Columns of the portions put side by side, as in `cells`."""
        joined = np.concatenate(parts, axis=1)
        out = np.empty_like(joined)
        out[:, self._order] = joined
        return out

    def _portions(self) -> list[list[tuple[float, float]]]:
        """The cells by b, then k1: a document with a high rank in one cell has one in the next, so
        that few vectors of cells need its score."""
        cells = [self.cells[position] for position in self._order]
        starts = range(0, len(cells), _CELLS_AT_ONCE)
        return [cells[first : first + _CELLS_AT_ONCE] for first in starts]

    def _tables(self, cells: list[tuple[float, float]], terms: NDArray[np.int64]) -> GridTables:
        return grid_tables(cells, self.index.statistics.average_length, self._arrays, terms)

    def _ranks(
        self,
        questions: Sequence[JudgedQuery],
        cells: list[tuple[float, float]],
        threads: int | None,
    ) -> Iterator[tuple[str, NDArray[np.int32]]]:
        weighted = [self.index._weighted(question.query) for question in questions]
        terms = np.unique(np.concatenate([np.empty(0, np.int64), *(t for t, _ in weighted)]))
        if not len(terms):  # nothing matches, and an index without any term has no lengths either
            for question in questions:
                yield question.qid, np.zeros((len(question.docids), len(cells)), np.int32)
            return
        tables = self._tables(cells, terms)

        def rank(item: int) -> tuple[str, NDArray[np.int32]]:
            return questions[item].qid, self._rank(tables, *weighted[item], questions[item].docids)

        with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
            # Few wait, so that an interrupt does not wait for all of them.
            items = iter(range(len(questions)))
            waiting = {pool.submit(rank, item) for item in islice(items, 2 * pool._max_workers)}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                more: list[Future[tuple[str, NDArray[np.int32]]]]
                more = [pool.submit(rank, item) for item in islice(items, len(done))]
                waiting.update(more)
                yield from (future.result() for future in done)

    def _rank(
        self,
        tables: GridTables,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        docids: Sequence[str],
    ) -> NDArray[np.int32]:
        first, last = self._units.spans(docids)
        scores = np.zeros((len(docids), tables.norms.shape[1]), np.float32)
        ranks = np.zeros(scores.shape, np.int32)
        if len(terms) and len(docids):
            judged_scores(self._arrays, tables, terms, weights, first, last, scores)
            units = self._units
            layout = (units.blocks, units.parents, first, last)
            rank_judged(self._arrays, tables, terms, weights, *layout, scores, self.depth, ranks)
        return ranks[:, : tables.cells].copy()


class _Documents(NamedTuple):
    """Which units belong to which document. `parents` is empty if every unit is a document."""

    places: StringLookup
    starts: NDArray[np.int64]
    parents: NDArray[np.int32]
    blocks: NDArray[np.int64]

    @classmethod
    def of(cls, index: LexicalIndex) -> _Documents:
        starts, hashes = array("q"), array("q")
        before = None
        for unit in range(len(index)):
            document = parent(index.docnos[unit])
            if document != before:
                starts.append(unit)
                hashes.append(hash(document))
                before = document
        positions = StringLookup(
            np.frombuffer(hashes, np.int64), lambda position: parent(index.docnos[starts[position]])
        )
        if doubled := positions.doubled():
            document = parent(index.docnos[starts[doubled[0]]])
            raise InputError(
                f"the passages of document {document!r} do not follow each other in the index",
                do="build the index from units in the order of their documents",
            )
        bounds = np.array([*starts, len(index)], dtype=np.int64)
        parents = np.empty(0, np.int32)
        if len(starts) < len(index):
            parents = np.repeat(np.arange(len(starts), dtype=np.int32), np.diff(bounds))
        # Blocks of about `_BLOCK` units begin where a document begins.
        starting = bounds[np.searchsorted(bounds, np.arange(0, bounds[-1], _BLOCK))]
        return cls(positions, bounds, parents, np.unique(np.append(starting, bounds[-1])))

    def spans(self, docids: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and one after the last unit of each document; no unit of an unknown one."""
        number = np.array([self.places.find(docid) for docid in docids], dtype=np.int64)
        known = number >= 0
        return np.where(known, self.starts[number], 0), np.where(known, self.starts[number + 1], 0)


_LARGEST = [*range(1, 17), 18, 20, 22, 25, 28, 32, 37, 43, 50, 60, 75, 100, 140, 190, 255]
_FIRST_KNOT = 0.2  # below it, saturation hardly depends on the norm


def grid_tables(
    cells: Sequence[tuple[float, float]], average: float, arrays: Arrays, terms: NDArray[np.int64]
) -> GridTables:
    """Tables for questions of these terms."""
    padded = [*cells, *[cells[-1]] * (-len(cells) % LANES)]
    occurring = np.zeros(1 << 16, np.bool_)
    _mark(arrays, terms, occurring)
    pairs = np.flatnonzero(occurring)
    rows = np.full(1 << 16, -1, np.int32)
    rows[pairs] = np.arange(len(pairs), dtype=np.int32)
    norms = np.empty((256, len(padded)), np.float32)
    weights = np.empty((len(pairs), len(padded)), np.float32)
    for cell, (k1, b) in enumerate(padded):
        # TfWeights itself, so that a cell's scores are bit by bit those of a single run.
        tf_weights = TfWeights.of(k1, b, average)
        norms[:, cell] = tf_weights.norms
        weights[:, cell] = tf_weights.table[pairs]
    # 0, and a geometric series up to a little above the largest norm.
    last = max(float(norms[np.unique(arrays.length_codes)].max()), _FIRST_KNOT) * 1.001
    knots = np.concatenate([[0.0], np.geomspace(_FIRST_KNOT, last, KNOTS - 1)])
    knot = np.clip(np.searchsorted(knots, norms, side="right") - 1, 0, KNOTS - 2)
    # Codes of lengths that the index does not have may lie beyond the last knot.
    along = np.clip((norms - knots[knot]) / (knots[knot + 1] - knots[knot]), 0, 1)
    classes = np.searchsorted(_LARGEST, np.arange(256)).astype(np.uint8)
    classes[0] = CLASSES - 1
    largest = np.array([[frequency] for frequency in _LARGEST], dtype=np.float64)
    knot_weights = np.concatenate([largest / (largest + knots), np.ones((1, KNOTS))])
    places = knot.astype(np.uint32), along.astype(np.float32)
    shares = knot_weights.astype(np.float32)
    return GridTables(len(cells), norms, rows, weights, classes, shares, *places)


@compiled
def _mark(arrays: Arrays, terms: NDArray[np.int64], seen: NDArray[np.bool_]) -> None:
    """Mark each `tf * 256 + code` in the postings of these terms."""
    offsets, documents = arrays.offsets, arrays.documents
    frequencies, codes = arrays.frequencies, arrays.length_codes
    for term in terms:
        for i in range(offsets[term], offsets[term + 1]):
            if frequencies[i] < LARGE:
                seen[(np.int64(frequencies[i]) << 8) | np.int64(codes[documents[i]])] = True
