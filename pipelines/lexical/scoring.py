"""BM25 over mapped postings, and the best of all documents by their sums, whatever was summed.

Lucene's formula (version 8 and later; Robertson & Zaragoza 2009 without the constant factor k1+1):

    score(d) = sum over terms t of  qtf * idf(t) * tf / (tf + k1 * (1 - b + b * length / average))
    idf(t)   = ln(1 + (N - df + 0.5) / (df + 0.5))

with N the documents that have a term, and the average of exact lengths whichever length is used.
Terms are taken one after the other into one float32 sum per document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical import smallfloat
from pipelines.lexical.storage import Arrays, Postings
from toolkit.jit import compiled

_FEW = 16  # a query with fewer postings than a sixteenth of the documents visits only those
RUN = 16  # documents, of which the largest sum is known
_PART = 256  # runs whose maxima are found at once
_BINS = 2048
BLOCK = 16384  # documents: their sums stay in the processor's nearest caches for all terms
_LOW = np.uint64(0xFFFFFFFF)
Numbered = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Numbers of documents, best first, and their scores."""


def idf(documents: int, document_frequency: int) -> float:
    """Lucene's: never negative, for a term in any share of the documents."""
    return math.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5))


class Saturation(NamedTuple):
    """k1, b and lengths turned into tables.

    `norms` (float32) is k1 * (1 - b + b * length / average), for each of the 256 length codes, or
    for each document where lengths are exact. `shares` (float32, 65536, or none for exact lengths)
    is tf / (tf + norm) at `tf * 256 + code`: a load is cheaper than a division.
    """

    norms: NDArray[np.float32]
    shares: NDArray[np.float32] | None

    @classmethod
    def of(cls, k1: float, b: float, average: float, exact: NDArray[Any] | None) -> Saturation:
        lengths = smallfloat.DECODED if exact is None else exact
        norms = k1 * (1 - b + b * lengths / average)
        # A frequency of 0 marks one above 255, and must give 0 also where the norm is 0.
        norms = np.maximum(norms, np.finfo(np.float32).tiny).astype(np.float32)
        if exact is not None:
            return cls(norms, None)
        frequencies = np.arange(256, dtype=np.float64)[:, None]
        return cls(norms, (frequencies / (frequencies + norms)).astype(np.float32).ravel())

    def add(
        self,
        arrays: Arrays,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        sums: NDArray[np.float32],
    ) -> None:
        """Add every term's part to `sums` (one a document). `weights`: weight times idf."""
        postings = (arrays.offsets, arrays.documents, arrays.frequencies, terms, weights)
        if self.shares is None:
            _add_by_norm(*postings, self.norms, sums)
        else:
            _add_by_code(*postings, self.shares, arrays.length_codes, sums)
        self.add_large(arrays, terms, weights, sums)

    def add_large(
        self,
        arrays: Arrays,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        sums: NDArray[np.float32],
    ) -> None:
        """Add the parts of the frequencies above 255, which come after all others."""
        by_document = np.empty(0, np.uint8)
        codes = by_document if self.shares is None else arrays.length_codes
        large = (arrays.large_positions, arrays.large_documents, arrays.large_values)
        _add_large(arrays.offsets, *large, terms, weights, self.norms, codes, sums)


@compiled
def first_at(
    documents: NDArray[np.uint32], first: np.uint64, last: np.uint64, limit: int
) -> np.uint64:
    """The first of the postings `first`..`last - 1` whose document is `limit` or above."""
    if first == last or documents[last - np.uint64(1)] < limit:
        return last
    while first < last:
        middle = (first + last) >> np.uint64(1)
        if documents[middle] < limit:
            first = middle + np.uint64(1)
        else:
            last = middle
    return first


@compiled
def share_cell(frequency: np.uint8, code: np.uint8) -> np.uint32:
    """Where `shares` holds a posting of this frequency in a document of this length code."""
    return (np.uint32(frequency) << np.uint32(8)) | np.uint32(code)


@compiled
def _add_by_code(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.uint8],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    shares: NDArray[np.float32],
    codes: NDArray[np.uint8],
    sums: NDArray[np.float32],
) -> None:
    first = offsets[terms].astype(np.uint64)
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        for row in range(len(terms)):
            weight = weights[row]
            last = first_at(documents, first[row], np.uint64(offsets[terms[row] + 1]), limit)
            for i in range(first[row], last):
                document = documents[i]
                cell = share_cell(frequencies[i], codes[document])
                sums[document] += weight * shares[cell]
            first[row] = last


@compiled
def _add_by_norm(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.uint8],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    norms: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    first = offsets[terms].astype(np.uint64)
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        for row in range(len(terms)):
            weight = weights[row]
            last = first_at(documents, first[row], np.uint64(offsets[terms[row] + 1]), limit)
            for i in range(first[row], last):
                document = documents[i]
                frequency = np.float32(frequencies[i])
                sums[document] += weight * (frequency / (frequency + norms[document]))
            first[row] = last


@compiled
def _add_large(
    offsets: NDArray[np.int64],
    positions: NDArray[np.int64],
    documents: NDArray[np.uint32],
    values: NDArray[np.int32],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    norms: NDArray[np.float32],
    codes: NDArray[np.uint8],
    sums: NDArray[np.float32],
) -> None:
    """`codes`: of lengths, by which to look up `norms`; none for norms by document."""
    for row in range(len(terms)):
        last = offsets[terms[row] + 1]
        i = np.searchsorted(positions, offsets[terms[row]])
        while i < len(positions) and positions[i] < last:
            document = documents[i]
            frequency = np.float32(values[i])
            norm = norms[codes[document]] if len(codes) else norms[document]
            sums[document] += weights[row] * (frequency / (frequency + norm))
            i += 1


def large_frequencies(
    arrays: Postings, terms: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """The frequencies above 255, which count as 0 in the postings themselves: place in `terms`,
    document and frequency of each, term after term."""
    first = np.searchsorted(arrays.large_positions, arrays.offsets[terms])
    counts = np.searchsorted(arrays.large_positions, arrays.offsets[terms + 1]) - first
    owners = np.repeat(np.arange(len(terms)), counts)
    entries = np.arange(len(owners)) + (first - np.cumsum(counts) + counts)[owners]
    documents = arrays.documents[arrays.large_positions[entries]]
    return owners, documents, arrays.large_values[entries].astype(np.float32)


def best(
    arrays: Postings,
    terms: NDArray[np.int64],
    sums: NDArray[np.float32],
    depth: int,
    more: Sequence[tuple[Postings, NDArray[np.int64]]] = (),
) -> Numbered:
    """The `depth` documents of highest sum above 0, and their sums; leaves `sums` all zero.

    The sums are of `terms` of `arrays`, and of the terms of other postings of the same documents in
    `more`. Equal sums stand in the order of the documents.
    """
    summed = [(arrays, terms), *more]
    postings = sum(int((a.offsets[t + 1] - a.offsets[t]).sum()) for a, t in summed)
    if postings < len(sums) // _FEW:
        keys = np.empty(postings, np.uint64)
        size = 0
        for part, numbers in summed:
            size += _collect_touched(part.offsets, part.documents, numbers, sums, keys[size:])
        keys = keys[:size]
    else:
        maxima = run_maxima(sums)
        # At most `depth` runs have a maximum above the threshold, and of the documents at the
        # threshold the first `depth` are enough.
        keys = np.empty(min(len(sums), (RUN + 1) * depth) + 1, np.uint64)
        keys = keys[: _collect_above(sums, maxima, threshold(maxima, depth), depth, keys)]
    return ranked(keys, depth)


def ranked(keys: NDArray[np.uint64], depth: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The documents and sums of the `depth` first keys, in the order of the keys; see `key`."""
    if len(keys) > 2 * depth:
        keys = np.partition(keys, depth - 1)[:depth]
    keys = np.sort(keys)[:depth]
    documents = (keys & _LOW).astype(np.int32)
    return documents, (_LOW - (keys >> np.uint64(32))).astype(np.uint32).view(np.float32)


def run_maxima(sums: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The largest sum of each run of 16 documents, as its bits."""
    maxima = np.empty(-(-len(sums) // RUN), np.uint32)
    _maxima(sums, maxima)
    return maxima


def threshold(maxima: NDArray[np.uint32], depth: int) -> np.uint32:
    """The depth-th largest maximum: a sum that at least `depth` documents reach (unless fewer are
    above 0), and usually not far below the depth-th largest sum."""
    if len(maxima) <= depth:
        return np.uint32(1)
    near, position = _near_largest(maxima, depth)
    return max(np.partition(near, position)[position], np.uint32(1))


@compiled
def key(bits: np.uint32, document: int) -> np.uint64:
    """Sorts by falling sum (its bits), then by document."""
    return (np.uint64(0xFFFFFFFF - bits) << np.uint64(32)) | np.uint64(document)


@compiled
def _maxima(sums: NDArray[np.float32], maxima: NDArray[np.uint32]) -> None:
    """The largest sum of each run of documents, as its bits: those of numbers that are not
    negative sort as the numbers do, and integers have a fast maximum.

    First of each four neighbours, then of four such: that compiles to vector instructions, which a
    loop over the sums of a run does not, and takes a fifth of the time. `fours` stays in the
    processor's nearest cache."""
    bits = sums.view(np.uint32)
    complete = len(bits) // RUN
    fours = np.empty(_PART * 4, np.uint32)
    for first in range(0, complete, _PART):
        part = maxima[first : min(first + _PART, complete)]
        _largest_of_four(bits[first * RUN :], fours[: len(part) * 4])
        _largest_of_four(fours, part)
    if complete < len(maxima):
        maxima[complete] = bits[complete * RUN :].max()


@compiled
def _largest_of_four(values: NDArray[np.uint32], largest: NDArray[np.uint32]) -> None:
    for i in range(len(largest)):
        j = 4 * i
        first = max(values[j], values[j + 1])
        largest[i] = max(first, max(values[j + 2], values[j + 3]))


@compiled
def _near_largest(values: NDArray[np.uint32], rank: int) -> tuple[NDArray[np.uint32], int]:
    """Some of the values, and where the one of this rank (1: the largest) is among them in
    ascending order. They are those that share a bin with it: of the first eight powers of two below
    the largest value, each has 256 bins, and what is smaller shares the last."""
    largest = values.max()
    counts = np.zeros(_BINS, np.int64)
    for value in values:
        counts[_bin(value, largest)] += 1
    above = 0
    wanted = 0
    while above + counts[wanted] < rank:
        above += counts[wanted]
        wanted += 1
    near = np.empty(counts[wanted] + 1, np.uint32)
    count = 0
    for value in values:
        near[count] = value
        count += _bin(value, largest) == wanted
    return near[:count], count - (rank - above)


@compiled
def _bin(value: np.uint32, largest: np.uint32) -> np.uint32:
    return min((largest - value) >> np.uint32(15), np.uint32(_BINS - 1))


@compiled
def runs_reaching(maxima: NDArray[np.uint32], least: np.uint32) -> NDArray[np.uint32]:
    """The runs whose maximum is `least` or above. Each is written and then counted or not, because
    a branch that the processor cannot foresee takes longer."""
    runs = np.empty(len(maxima) + 1, np.uint32)
    count = 0
    for run in range(len(maxima)):
        runs[count] = run
        count += maxima[run] >= least
    return runs[:count]


@compiled
def _collect_above(
    sums: NDArray[np.float32],
    maxima: NDArray[np.uint32],
    threshold: np.uint32,
    depth: int,
    keys: NDArray[np.uint64],
) -> int:
    """Keys of all sums above the threshold and of the first `depth` that equal it; clears `sums`.
    Of a key, it is written and then counted or not, as in `runs_reaching`."""
    bits = sums.view(np.uint32)
    count = 0
    equal = 0
    for run in runs_reaching(maxima, threshold):
        if maxima[run] == threshold and equal == depth:
            continue
        first = np.int64(run) * RUN
        for document in range(first, min(first + RUN, len(bits))):
            ties = bits[document] == threshold and equal < depth
            keys[count] = key(bits[document], document)
            count += bits[document] > threshold or ties
            equal += ties
    sums[:] = 0
    return count


@compiled
def _collect_touched(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    terms: NDArray[np.int64],
    sums: NDArray[np.float32],
    keys: NDArray[np.uint64],
) -> int:
    """As `_collect_above`, without a threshold, looking at the documents of the terms alone."""
    bits = sums.view(np.uint32)
    count = 0
    for row in range(len(terms)):
        for i in range(offsets[terms[row]], offsets[terms[row] + 1]):
            document = documents[i]
            if sums[document] > 0:
                keys[count] = key(bits[document], document)
                count += 1
                sums[document] = 0
    return count
