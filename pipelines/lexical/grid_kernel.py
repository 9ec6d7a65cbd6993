"""Ranks of judged documents in all cells of a grid, for one question, in one walk of its postings.

Documents are taken in blocks. Values at the knots (see `grid_tables`) bound a document's scores in
all cells; its score, to the last bit that of a single run, is computed only in cells where it may
rank above a judged document. A judged document is settled in a cell when `depth` units rank above
it, which raises the score that others must reach: so few are scored.

An example: d1 is `mill`, d2 `mill mill by the river`, d3 three other words, the query `mill`, and
only d1 is judged. With norm = k1 (1 - b + b length / 3), the share of a score is tf / (tf + norm):

    cell (k1, b)   share d1   share d2   bound of d2 by knots at 0 and 2
    (1, 0)         1/2        2/3        3/4 reaches 1/2: d2 is scored, and d1 has rank 2
    (1, 1)         3/4        6/11       7/12 does not reach 3/4: d1 has rank 1

All compiled functions are in this one file, with their constants: numba caches machine code until
the file of the function changes, and does not check the functions that it calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.storage import Arrays
from soundingline.toolkit.jit import compiled

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


@compiled
def judged_scores(
    arrays: Arrays,
    tables: GridTables,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """The best score among the units `first[j]`..`last[j] - 1` of each judged document."""
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
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    blocks: NDArray[np.int64],
    parents: NDArray[np.int32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    scores: NDArray[np.float32],
    depth: int,
    ranks: NDArray[np.int32],
) -> int:
    """Write `ranks` [judged, padded cells]: from 1; 0 where not among the `depth` best units.

    `blocks` are unit numbers that no parent's units straddle; `parents` the parent of each unit,
    empty where units are documents. Gives the number of units that were scored in full.
    """
    width = scores.shape[1]
    longest = 0
    for k in range(len(blocks) - 1):
        longest = max(longest, blocks[k + 1] - blocks[k])
    by_class = np.empty((longest, CLASSES), np.float32)
    frequencies = np.empty((longest, len(terms)), np.int32)
    knots = np.empty((longest, KNOTS), np.float32)
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
        for unit in range(low, high):
            code = np.uint64(codes[unit])
            if not fresh[code]:
                need_at_knots(tables.knot[code], needed, at_knots[code])
                fresh[code] = True
            row = np.uint64(unit - low)
            if falls_short(knots, row, at_knots, code):
                continue
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
    found: NDArray[np.int32],
) -> None:
    """Of the units `low`..`high - 1`: weight by class of frequency, and the frequency of each
    term. `start` is where they begin in each term's postings, and becomes where they end."""
    documents, frequencies, classes = arrays.documents, arrays.frequencies, tables.classes
    by_class[:] = 0
    found[:] = 0
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
            found[unit, np.uint64(t)] = frequency
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
    arrays: Arrays,
    tables: GridTables,
    unit: int,
    frequency: np.float32,
    share: NDArray[np.float32],
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
