"""Ranks of judged documents in all cells of a grid, for one question, in one walk of its postings.

Documents are taken in blocks. Values at the knots (see `grid_tables`) bound a document's scores in
all cells; only a document that may score above a judged one is scored in every cell. A judged
document is settled in a cell when `depth` units are above it there, which raises the score that
others must reach: so few are scored in full.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.grid_tables import CLASSES, KNOTS, GridTables
from pipelines.lexical.jit import compiled

# Rounding of the sums is below this share of them.
_MARGIN = np.float32(1 + 2e-5)
_REFRESHED = 64  # units scored between two looks at what others must reach, at first
_INFINITY = np.float32(np.inf)
_TINY = np.finfo(np.float32).tiny


class Postings(NamedTuple):
    """The index's arrays; `lengths` is empty unless lengths are exact."""

    offsets: NDArray[np.int64]
    documents: NDArray[np.uint32]
    frequencies: NDArray[np.uint8]
    codes: NDArray[np.uint8]
    large_positions: NDArray[np.int64]
    large_values: NDArray[np.int32]
    lengths: NDArray[np.int32]
    average: float


@compiled
def judged_scores(
    postings: Postings,
    tables: GridTables,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """The best score among the units `first[j]`..`last[j] - 1` of each judged document."""
    start = np.empty(len(terms), np.uint64)
    stop = np.empty(len(terms), np.uint64)
    sums = np.empty(scores.shape[1], np.float32)
    share = np.empty(scores.shape[1], np.float32)
    for j in range(len(first)):
        for t in range(len(terms)):
            start[t] = _lower(postings, terms[t], first[j])
        units = last[j] - first[j]
        by_class = np.empty((units, CLASSES), np.float32)
        found = np.empty((units, len(terms)), np.uint8)
        _walk(postings, tables, terms, weights, start, stop, first[j], last[j], by_class, found)
        for unit in range(units):
            _score(postings, tables, weights, first[j] + unit, found[unit], sums, share)
            if by_class[unit, CLASSES - 1] > 0:
                _add_large(postings, tables, weights, start, stop, first[j] + unit, sums, share)
            for c in range(len(sums)):
                scores[j, c] = max(scores[j, c], sums[c])


@compiled
def rank_judged(
    postings: Postings,
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
    found = np.empty((longest, len(terms)), np.uint8)
    knots = np.empty((longest, KNOTS), np.float32)
    chosen = np.empty(longest, np.int64)
    sums = np.empty(width, np.float32)
    share = np.empty(width, np.float32)
    best = np.zeros(width, np.float32)
    units_above = np.zeros(scores.shape, np.int32)
    parents_above = units_above if len(parents) == 0 else np.zeros(scores.shape, np.int32)
    needed = np.empty(width, np.float32)
    needed[:] = _INFINITY
    at_knots = np.empty((256, KNOTS), np.float32)
    fresh = np.zeros(256, np.bool_)
    start = postings.offsets[terms].astype(np.uint64)
    stop = start.copy()
    scored, since = 0, 0
    _need(tables, scores, units_above, depth, needed)
    for k in range(len(blocks) - 1):
        low, high = blocks[k], blocks[k + 1]
        # What is needed only rises, so that an old value is safe; early on it rises fast.
        if since >= _REFRESHED * (1 + k // _REFRESHED):
            if not _need(tables, scores, units_above, depth, needed):
                break
            fresh[:] = False
            since = 0
        _walk(postings, tables, terms, weights, start, stop, low, high, by_class, found)
        np.dot(by_class, tables.knot_shares, knots)
        count = _select(postings, tables, low, high, knots, needed, at_knots, fresh, chosen)
        since += count
        scored += count
        for s in range(count):
            unit = low + chosen[s]
            _score(postings, tables, weights, unit, found[chosen[s]], sums, share)
            if by_class[chosen[s], CLASSES - 1] > 0:
                _add_large(postings, tables, weights, start, stop, unit, sums, share)
            _count(sums, unit, scores, first, last, units_above)
            if len(parents):
                best[:] = np.maximum(best, sums)
                if s + 1 == count or parents[unit] != parents[low + chosen[s + 1]]:
                    _count(best, unit, scores, first, last, parents_above)
                    best[:] = 0
        start[:] = stop
    for j in range(len(scores)):
        for c in range(width):
            reached = scores[j, c] > 0 and units_above[j, c] < depth
            ranks[j, c] = parents_above[j, c] + 1 if reached else 0
    return scored


@compiled
def _lower(postings: Postings, term: int, unit: int) -> int:
    """The first posting of the term whose unit is not below `unit`."""
    low, high = postings.offsets[term], postings.offsets[term + 1]
    while low < high:
        middle = (low + high) >> 1
        if np.int64(postings.documents[middle]) < unit:
            low = middle + 1
        else:
            high = middle
    return low


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
def _walk(
    postings: Postings,
    tables: GridTables,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    start: NDArray[np.uint64],
    stop: NDArray[np.uint64],
    low: int,
    high: int,
    by_class: NDArray[np.float32],
    found: NDArray[np.uint8],
) -> None:
    """Of the units `low`..`high - 1`: weight by class of frequency, and the frequency of each
    term. `start` is where they begin in each term's postings; `stop` becomes where they end."""
    documents, frequencies, classes = postings.documents, postings.frequencies, tables.classes
    by_class[:] = 0
    found[:] = 0
    # Unsigned numbers spare the compiler the question whether an index is negative.
    begin, end = np.uint32(low), np.uint32(high)
    for t in range(len(terms)):
        weight = weights[t]
        i, last = start[t], np.uint64(postings.offsets[terms[t] + 1])
        while i < last and documents[i] < end:
            unit = np.uint64(documents[i] - begin)
            frequency = frequencies[i]
            by_class[unit, classes[frequency]] += weight
            found[unit, np.uint64(t)] = frequency
            i += np.uint64(1)
        stop[t] = i


@compiled
def _select(
    postings: Postings,
    tables: GridTables,
    low: int,
    high: int,
    knots: NDArray[np.float32],
    needed: NDArray[np.float32],
    at_knots: NDArray[np.float32],
    fresh: NDArray[np.bool_],
    chosen: NDArray[np.int64],
) -> int:
    """Choose the units that may reach what is needed."""
    count = 0
    for unit in range(high - low):
        values = knots[unit]
        if values[0] == 0:
            continue
        code = np.int64(postings.codes[low + unit])
        if not fresh[code]:
            _need_at_knots(tables.knot[code], needed, at_knots[code])
            fresh[code] = True
        if _falls_short(values, at_knots[code]):
            continue
        if _chords_fall_short(values, tables.knot[code], tables.along[code], needed):
            continue
        chosen[count] = unit
        count += 1
    return count


@compiled
def _need_at_knots(
    knot: NDArray[np.int32], needed: NDArray[np.float32], least: NDArray[np.float32]
) -> None:
    """The lowest score needed among the cells between each knot and the next."""
    least[:] = _INFINITY
    for c in range(len(knot)):
        least[knot[c]] = min(least[knot[c]], needed[c])


@compiled
def _falls_short(values: NDArray[np.float32], least: NDArray[np.float32]) -> bool:
    reached = 0
    for k in range(KNOTS):
        reached += values[k] * _MARGIN >= least[k]
    return reached == 0


@compiled
def _chords_fall_short(
    values: NDArray[np.float32],
    knot: NDArray[np.int32],
    along: NDArray[np.float32],
    needed: NDArray[np.float32],
) -> bool:
    reached = 0
    for c in range(len(knot)):
        here = values[knot[c]]
        bound = here + along[c] * (values[knot[c] + 1] - here)
        reached += bound * _MARGIN >= needed[c]
    return reached == 0


@compiled
def _score(
    postings: Postings,
    tables: GridTables,
    weights: NDArray[np.float32],
    unit: int,
    found: NDArray[np.uint8],
    sums: NDArray[np.float32],
    share: NDArray[np.float32],
) -> None:
    """The unit's score in every cell, without frequencies above 255; terms in their order, as in a
    single run."""
    sums[:] = 0
    exact = len(postings.lengths) > 0
    # Taken out of the tuples once: every access counts references, which threads share.
    shares, rows = tables.shares, tables.rows
    code = np.int64(postings.codes[unit])
    for t in range(len(weights)):
        frequency = np.int64(found[t])
        if frequency == 0:
            continue
        if exact:
            _divide(postings, tables, unit, np.float32(frequency), share)
            _add(sums, weights[t], share)
        else:
            _add(sums, weights[t], shares[rows[(frequency << 8) | code]])


@compiled
def _add_large(
    postings: Postings,
    tables: GridTables,
    weights: NDArray[np.float32],
    start: NDArray[np.uint64],
    stop: NDArray[np.uint64],
    unit: int,
    sums: NDArray[np.float32],
    share: NDArray[np.float32],
) -> None:
    """The unit's frequencies above 255, which a single run adds last."""
    positions = postings.large_positions
    for t in range(len(weights)):
        entry = np.searchsorted(positions, np.int64(start[t]))
        while entry < len(positions) and positions[entry] < np.int64(stop[t]):
            if np.int64(postings.documents[positions[entry]]) == unit:
                _divide(postings, tables, unit, np.float32(postings.large_values[entry]), share)
                _add(sums, weights[t], share)
            entry += 1


@compiled
def _add(sums: NDArray[np.float32], weight: np.float32, shares: NDArray[np.float32]) -> None:
    for c in range(len(sums)):
        sums[c] += weight * shares[c]


@compiled
def _divide(
    postings: Postings,
    tables: GridTables,
    unit: int,
    frequency: np.float32,
    share: NDArray[np.float32],
) -> None:
    """tf / (tf + norm) of a unit in every cell, as `scoring` computes it without a table."""
    if len(postings.lengths) == 0:
        norms = tables.norms[postings.codes[unit]]
        for c in range(len(share)):
            share[c] = frequency / (frequency + norms[c])
        return
    length = np.float64(postings.lengths[unit])
    for c in range(len(share)):
        b = tables.b[c]
        norm = tables.k1[c] * (1 - b + b * length / postings.average)
        share[c] = frequency / (frequency + np.float32(max(norm, _TINY)))


@compiled
def _count(
    row: NDArray[np.float32],
    unit: int,
    scores: NDArray[np.float32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    above: NDArray[np.int32],
) -> None:
    """Count a unit in the cells where it stands above a judged document: by a higher score, or
    by an equal one and an earlier place."""
    for j in range(len(scores)):
        counts, judged = above[j], scores[j]
        if unit < first[j]:
            for c in range(len(row)):
                counts[c] += row[c] >= judged[c]
        elif unit >= last[j]:
            for c in range(len(row)):
                counts[c] += row[c] > judged[c]
