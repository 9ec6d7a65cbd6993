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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.bm25 import TfWeights
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.storage import Arrays, StringLookup
from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.jit import compiled

# Ranks of judged documents in all cells of a grid, for one question, in one walk of its postings.
#
# Documents are taken in blocks. Values at the knots bound a document's scores in all cells; its
# score, to the last bit that of a single run, is computed only in cells where it may rank above a
# judged document. A judged document is settled in a cell when `depth` units rank above it, which
# raises the score that others must reach: so few are scored.
#
# An example: d1 is `mill`, d2 `mill mill by the river`, d3 three other words, the query `mill`, and
# only d1 is judged. With norm = k1 (1 - b + b length / 3), its share of a score is
# tf / (tf + norm):
#
#     cell (k1, b)   share d1   share d2   bound of d2 by knots at 0 and 2
#     (1, 0)         1/2        2/3        3/4 reaches 1/2: d2 is scored, and d1 has rank 2
#     (1, 1)         3/4        6/11       7/12 does not reach 3/4: d1 has rank 1
#
# All compiled functions are in this one file, with their constants: numba caches machine code until
# the file of the function changes, and does not check the functions that it calls.


LANES = 16  # cells are padded to whole vectors of float32
KNOTS = 64
LARGE = np.uint32(256)  # frequencies from here on are in no table
CLASSES = 32  # of frequencies; the last one: above 255
_REFRESHED = 64  # units scored between two looks at what others must reach, at first
_MARGIN = np.float32(1 + 2e-5)  # rounding of the sums is below this share of them
_INFINITY = np.float32(np.inf)


class GridTables(NamedTuple):
    """Tables of `cells` cells, padded to a multiple of `LANES` by repeating the last one.

    - `norms`: float32 [256, padded], by length code; `TfWeights.norms` of each cell.
    - `rows`: int32 [65536], the row of `tf_weights` at `tf * 256 + code`, -1 if it never occurs.
    - `tf_weights`: float32 [rows, padded], `TfWeights.table` of each cell.
    - `classes`: uint8 [256], class of each frequency; the first one is of those above 255.
    - `knot_weights`: float32 [CLASSES, KNOTS], tf / (tf + knot) of a class.
    - `knot`, `along`: uint32 and float32 [256, padded], where a cell's norm lies: how far along
      from `knot` to the next one.
    """

    cells: int
    norms: NDArray[np.float32]
    rows: NDArray[np.int32]
    tf_weights: NDArray[np.float32]
    classes: NDArray[np.uint8]
    knot_weights: NDArray[np.float32]
    knot: NDArray[np.uint32]
    along: NDArray[np.float32]


class Judged(NamedTuple):
    """A question in a grid: its `terms`, ascending, their `weights` times idf, and its judged
    documents. The units of document `j` are `first[j]`..`last[j] - 1`, and `scores` [judged, padded
    cells] holds its best score."""

    terms: NDArray[np.int64]
    weights: NDArray[np.float32]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    scores: NDArray[np.float32]


class Layout(NamedTuple):
    """`blocks` are unit numbers that no parent's units straddle, `longest` apart at most; `parents`
    the parent of each unit, empty where units are documents."""

    blocks: NDArray[np.int64]
    longest: int
    parents: NDArray[np.int32]


@compiled
def judged_scores(arrays: Arrays, tables: GridTables, judged: Judged) -> None:
    """Raise the scores of the judged documents to those of their best units."""
    terms, weights, first, last, scores = judged
    start = np.empty(len(terms), np.uint64)
    sums = np.empty(scores.shape[1], np.float32)
    share = np.empty((1, scores.shape[1]), np.float32)
    everything = np.array([[0, scores.shape[1]]], dtype=np.uint64)
    for j in range(len(first)):
        for t in range(len(terms)):
            start[t] = lower(arrays, terms[t], first[j])
        units = last[j] - first[j]
        by_class = np.empty((units, CLASSES), np.float32)
        frequencies = np.empty((units, len(terms)), np.int32)
        walk(arrays, tables, terms, weights, start, first[j], last[j], by_class, frequencies)
        for unit in range(units):
            at = first[j] + unit
            score(arrays, tables, weights, at, frequencies[unit], everything, sums, share)
            for c in range(len(sums)):
                scores[j, c] = max(scores[j, c], sums[c])


@compiled
def rank_judged(
    arrays: Arrays,
    tables: GridTables,
    layout: Layout,
    judged: Judged,
    depth: int,
    ranks: NDArray[np.int32],
) -> int:
    """Write `ranks` [judged, padded cells]: from 1; 0 where not among the `depth` best units. Gives
    the number of units that were scored in full."""
    blocks, longest, parents = layout
    terms, weights, first, last, scores = judged
    width = scores.shape[1]
    by_class = np.empty((longest, CLASSES), np.float32)
    frequencies = np.empty((longest, len(terms)), np.int32)
    knots = np.empty((longest, KNOTS), np.float32)
    reaching = np.empty(longest, np.int64)
    at_knots = np.empty((256, KNOTS), np.float32)
    fresh = np.zeros(256, np.bool_)
    ranges = np.empty((width // LANES, 2), np.uint64)
    everything = np.array([[0, width]], dtype=np.uint64)
    sums = np.empty(width, np.float32)
    share = np.empty((1, width), np.float32)
    best = np.zeros(width, np.float32)
    units_above = np.zeros(scores.shape, np.int32)
    parents_above = units_above if len(parents) == 0 else np.zeros(scores.shape, np.int32)
    needed = np.empty(width, np.float32)
    needed[:] = _INFINITY
    _need(tables, scores, units_above, depth, needed)
    # No slices of shared arrays in the loops: each counts references, which threads would share.
    codes = arrays.length_codes
    start = arrays.offsets[terms].astype(np.uint64)
    scored, since, before = 0, 0, -1
    for k in range(len(blocks) - 1):
        low, high = blocks[k], blocks[k + 1]
        # What is needed only rises, so that an old value is safe; early on it rises fast.
        if since >= _REFRESHED * (1 + k // _REFRESHED):
            if not _need(tables, scores, units_above, depth, needed):
                break
            fresh[:] = False
            since = 0
        walk(arrays, tables, terms, weights, start, low, high, by_class, frequencies)
        np.dot(by_class, tables.knot_weights, knots)
        for i in range(
            _reaching(codes, low, high, knots, tables.knot, needed, at_knots, fresh, reaching)
        ):
            unit = reaching[i]
            code, row = np.uint64(codes[unit]), np.uint64(unit - low)
            count = open_ranges(knots, row, tables.knot, tables.along, code, needed, ranges)
            if count == 0:
                continue
            scored += 1
            since += 1
            within = ranges[:count]
            score(arrays, tables, weights, unit, frequencies[unit - low], within, sums, share)
            count_above(sums, unit, within, scores, first, last, units_above)
            if len(parents):
                if before >= 0 and parents[unit] != parents[before]:
                    count_above(best, before, everything, scores, first, last, parents_above)
                    best[:] = 0
                # An array expression would make numba compile a check of shapes, for seconds.
                for c in range(width):
                    best[c] = max(best[c], sums[c])
                before = unit
    if before >= 0:
        count_above(best, before, everything, scores, first, last, parents_above)
    for j in range(len(scores)):
        for c in range(width):
            reached = scores[j, c] > 0 and units_above[j, c] < depth
            ranks[j, c] = parents_above[j, c] + 1 if reached else 0
    return scored


@compiled
def _reaching(
    codes: NDArray[np.uint8],
    low: int,
    high: int,
    knots: NDArray[np.float32],
    knot: NDArray[np.uint32],
    needed: NDArray[np.float32],
    at_knots: NDArray[np.float32],
    fresh: NDArray[np.bool_],
    reaching: NDArray[np.int64],
) -> int:
    """Write those of the units `low`..`high - 1` whose values at the knots reach what is needed:
    their number. `at_knots` is what is needed by length code, once the code is `fresh`."""
    count = 0
    for unit in range(low, high):
        code = np.uint64(codes[unit])
        if not fresh[code]:
            need_at_knots(knot[code], needed, at_knots[code])
            fresh[code] = True
        reaching[count] = unit
        count += not falls_short(knots, np.uint64(unit - low), at_knots, code)
    return count


@compiled
def _need(
    tables: GridTables,
    scores: NDArray[np.float32],
    above: NDArray[np.int32],
    depth: int,
    needed: NDArray[np.float32],
) -> bool:
    """In each cell the lowest score of a judged document whose rank is still open."""
    open_cells = False
    for c in range(tables.cells):
        lowest = _INFINITY
        for j in range(len(scores)):
            if scores[j, c] > 0 and above[j, c] < depth and scores[j, c] < lowest:
                lowest = scores[j, c]
        needed[c] = lowest
        open_cells = open_cells or lowest < _INFINITY
    return open_cells


@compiled
def need_at_knots(
    knot: NDArray[np.uint32], needed: NDArray[np.float32], least: NDArray[np.float32]
) -> None:
    """The lowest score needed among the cells between each knot and the next."""
    least[:] = _INFINITY
    for c in range(len(knot)):
        least[knot[c]] = min(least[knot[c]], needed[c])


@compiled
def falls_short(
    knots: NDArray[np.float32], unit: np.uint64, least: NDArray[np.float32], code: np.uint64
) -> bool:
    reached = 0
    for k in range(np.uint64(KNOTS)):
        reached += knots[unit, k] * _MARGIN >= least[code, k]
    return reached == 0


@compiled
def open_ranges(
    knots: NDArray[np.float32],
    unit: np.uint64,
    knot: NDArray[np.uint32],
    along: NDArray[np.float32],
    code: np.uint64,
    needed: NDArray[np.float32],
    ranges: NDArray[np.uint64],
) -> int:
    """Ranges of cells, whole vectors, in which the unit may reach what is needed: their number."""
    count = 0
    # A number that the compiler does not know, else it unrolls the loop and uses no vectors.
    lanes = np.uint64(len(needed) // len(ranges))
    for vector in range(len(ranges)):
        lane = np.uint64(vector) * lanes
        reached = 0
        for c in range(lane, lane + lanes):
            here = knots[unit, knot[code, c]]
            there = knots[unit, knot[code, c] + np.uint32(1)]
            bound = here + along[code, c] * (there - here)
            reached += bound * _MARGIN >= needed[c]
        if reached == 0:
            continue
        if count and ranges[count - 1, 1] == lane:
            ranges[count - 1, 1] = lane + lanes
        else:
            ranges[count, 0], ranges[count, 1] = lane, lane + lanes
            count += 1
    return count


@compiled
def lower(arrays: Arrays, term: int, unit: int) -> int:
    """The first posting of the term whose unit is not below `unit`."""
    low, high = arrays.offsets[term], arrays.offsets[term + 1]
    while low < high:
        middle = (low + high) >> 1
        if np.int64(arrays.documents[middle]) < unit:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def walk(
    arrays: Arrays,
    tables: GridTables,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    start: NDArray[np.uint64],
    low: int,
    high: int,
    by_class: NDArray[np.float32],
    counts: NDArray[np.int32],
) -> None:
    """Of the units `low`..`high - 1`: weight by class of frequency, and the frequency of each
    term. `start` is where they begin in each term's postings, and becomes where they end."""
    documents, frequencies, classes = arrays.documents, arrays.frequencies, tables.classes
    by_class[:] = 0
    counts[:] = 0
    # Unsigned numbers spare the compiler the question whether an index is negative.
    begin, end = np.uint32(low), np.uint32(high)
    for t in range(len(terms)):
        weight = weights[t]
        i, last = start[t], np.uint64(arrays.offsets[terms[t] + 1])
        while i < last and documents[i] < end:
            unit = np.uint64(documents[i] - begin)
            frequency = np.uint32(frequencies[i])
            tabled = frequency if frequency < LARGE else np.uint32(0)
            by_class[unit, classes[tabled]] += weight
            counts[unit, np.uint64(t)] = frequency
            i += np.uint64(1)
        start[t] = i


@compiled
def score(
    arrays: Arrays,
    tables: GridTables,
    weights: NDArray[np.float32],
    unit: int,
    frequencies: NDArray[np.int32],
    ranges: NDArray[np.uint64],
    sums: NDArray[np.float32],
    share: NDArray[np.float32],
) -> None:
    """The unit's score in the cells of `ranges` (0 in others), summed in the order of a single run:
    term by term."""
    sums[:] = 0
    tf_weights, rows = tables.tf_weights, tables.rows
    code = np.int64(arrays.length_codes[unit])
    for t in range(len(weights)):
        frequency = frequencies[t]
        if frequency == 0:
            continue
        if frequency < LARGE:
            _add(ranges, weights[t], tf_weights, np.uint64(rows[(frequency << 8) | code]), sums)
        else:
            _divide(arrays, tables, unit, np.float32(frequency), share)
            _add(ranges, weights[t], share, np.uint64(0), sums)


@compiled
def _add(
    ranges: NDArray[np.uint64],
    weight: np.float32,
    tf_weights: NDArray[np.float32],
    row: np.uint64,
    sums: NDArray[np.float32],
) -> None:
    for r in range(len(ranges)):
        for c in range(ranges[r, 0], ranges[r, 1]):
            sums[c] += weight * tf_weights[row, c]


@compiled
def _divide(
    arrays: Arrays, tables: GridTables, unit: int, frequency: np.float32, share: NDArray[np.float32]
) -> None:
    """tf / (tf + norm) of a unit in every cell, as `scoring` computes it without a table."""
    norms, code = tables.norms, np.uint64(arrays.length_codes[unit])
    for c in range(np.uint64(share.shape[1])):
        share[0, c] = frequency / (frequency + norms[code, c])


@compiled
def count_above(
    row: NDArray[np.float32],
    unit: int,
    ranges: NDArray[np.uint64],
    scores: NDArray[np.float32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    above: NDArray[np.int32],
) -> None:
    """Count a unit in the cells where it ranks above a judged document: by a higher score, or by an
    equal one and an earlier place."""
    for j in range(len(scores)):
        for r in range(len(ranges)):
            if unit < first[j]:
                for c in range(ranges[r, 0], ranges[r, 1]):
                    above[j, c] += row[c] >= scores[j, c]
            elif unit >= last[j]:
                for c in range(ranges[r, 0], ranges[r, 1]):
                    above[j, c] += row[c] > scores[j, c]


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
    by their best unit. `InputError` for a depth below 1, and if the passages of a document do not
    follow each other in the index.
    """

    def __init__(
        self, index: LexicalIndex, cells: Sequence[tuple[float, float]], *, depth: int = 1000
    ) -> None:
        check_int("depth", depth, do="try 1000")
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
            joined = np.concatenate([ranks, *(other[qid] for other in others)], axis=1)
            in_order = np.empty_like(joined)
            in_order[:, self._order] = joined
            yield qid, in_order

    def _portions(self) -> list[list[tuple[float, float]]]:
        """The cells by b, then k1: a document with a high rank in one cell has one in the next, so
        that few vectors of cells need its score."""
        cells = [self.cells[position] for position in self._order]
        starts = range(0, len(cells), _CELLS_AT_ONCE)
        return [cells[first : first + _CELLS_AT_ONCE] for first in starts]

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
        tables = grid_tables(cells, self.index.statistics.average_length, self._arrays, terms)

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
        scores = np.zeros((len(docids), tables.norms.shape[1]), np.float32)
        ranks = np.zeros(scores.shape, np.int32)
        if len(terms) and len(docids):
            judged = Judged(terms, weights, *self._units.spans(docids), scores)
            judged_scores(self._arrays, tables, judged)
            rank_judged(self._arrays, tables, self._units.layout, judged, self.depth, ranks)
        return ranks[:, : tables.cells].copy()


class _Documents(NamedTuple):
    """Which units belong to which document."""

    places: StringLookup
    starts: NDArray[np.int64]
    layout: Layout

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
        known = np.frombuffer(hashes, np.int64)
        places = StringLookup(known, lambda position: parent(index.docnos[starts[position]]))
        # Two documents with one hash of 64 bits would be refused too.
        _, first, counts = np.unique(known, return_index=True, return_counts=True)
        if counts.max(initial=1) > 1:
            document = parent(index.docnos[starts[first[counts.argmax()]]])
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
        blocks = np.unique(np.append(starting, bounds[-1]))
        return cls(places, bounds, Layout(blocks, int(np.diff(blocks).max()), parents))

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
