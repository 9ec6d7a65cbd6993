"""BM25 over mapped postings, and the documents of highest sums, whatever was summed.

Lucene's formula (version 8 and later; Robertson & Zaragoza 2009 without the constant factor k1+1):

    score(d) = sum over terms t of  qtf * idf(t) * tf / (tf + k1 * (1 - b + b * length / average))
    idf(t)   = ln(1 + (N - df + 0.5) / (df + 0.5))

with N the documents that have a term, and the average of exact lengths, though a document's own
length is in Lucene's one byte. Terms are taken one after the other into one float32 sum per
document.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Semaphore
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.storage import DECODED_LENGTHS, Arrays, Postings
from soundingline.toolkit.errors import check_int, check_number
from soundingline.toolkit.jit import compiled, cores

_FEW = 16  # a query with fewer postings than a sixteenth of the documents visits only those
_RUN = 16  # documents, of which the largest sum is known
_PART = 256  # runs whose maxima are found at once
LARGE = np.uint32(256)  # frequencies from here on are in no table
BLOCK = 16384  # documents: their sums stay in the processor's nearest caches for all terms
_LOW = np.uint64(0xFFFFFFFF)
_SUMS_BYTES = 2 << 30
TopK = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Numbers of documents, best first, and their scores."""


def check_settings(k1: float, b: float, depth: int) -> None:
    """`InputError` for settings of BM25 that have no meaning."""
    check_number("k1", k1, do="try 0.9 (default) or 25 (tuned)")
    check_number("b", b, le=1, do="try 0.4 (default) or 1 (tuned)")
    check_int("depth", depth, do="try 1000")


def idf(documents: int, document_frequency: int) -> float:
    """Lucene's: never negative, for a term in any share of the documents."""
    return math.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5))


class ScoreBuffers:
    """One float32 sum a document, for searches in any number of threads.

    A search takes an all-zero array and returns it all zero. There are at most `searches_at_once`
    arrays; further searches wait, which costs no time, because they would share the same cores.
    """

    def __init__(self, postings: Postings, documents: int) -> None:
        self._postings, self._documents = postings, documents
        self._free: deque[NDArray[np.float32]] = deque()
        self._begin()

    @contextmanager
    def _turn(self) -> Iterator[NDArray[np.float32]]:
        """All-zero sums, for a block that leaves them all zero."""
        if self._process != os.getpid():
            self._begin()  # after a fork, no thread of the parent ends its turn here
        with self._turns:
            try:
                sums = self._free.pop()
            except IndexError:
                sums = np.zeros(self._documents, np.float32)
            yield sums
            self._free.append(sums)  # not after an interrupt, which may leave sums

    def of(
        self,
        documents: NDArray[Any],
        terms: NDArray[np.int64],
        add: Callable[[NDArray[np.float32]], None],
    ) -> NDArray[np.float32]:
        """The sums of these documents after `add` has filled the sums for `terms`."""
        if not len(terms):
            return np.zeros(len(documents), np.float32)
        with self._turn() as sums:
            add(sums)
            wanted = sums[documents]
            sums[:] = 0
        return wanted

    def _begin(self) -> None:
        self._process = os.getpid()
        self._turns = Semaphore(searches_at_once(self._documents))

    def best(
        self, terms: NDArray[np.int64], add: Callable[[NDArray[np.float32]], None], depth: int
    ) -> TopK:
        """The `depth` documents of highest sum above 0 after `add` has filled the sums, which it
        may do only for documents of `terms`."""
        if not len(terms):
            return np.empty(0, np.int32), np.empty(0, np.float32)
        with self._turn() as sums:
            add(sums)
            return best(self._postings, terms, sums, min(depth, self._documents))


def searches_at_once(documents: int) -> int:
    """How many searches of an index run at once: one a core, but not more than 2 GiB of sums
    allow, and at least one."""
    return max(1, min(cores(), _SUMS_BYTES // (4 * max(documents, 1))))


class TfWeights(NamedTuple):
    """Tables for k1, b and an average length.

    `norms` (float32, 256) is k1 * (1 - b + b * length / average) for each length code. `table`
    (float32, 65536) is tf / (tf + norm) at `tf * 256 + code`, of frequencies up to 255: a load is
    cheaper than a division.
    """

    norms: NDArray[np.float32]
    table: NDArray[np.float32]

    @classmethod
    def of(cls, k1: float, b: float, average: float) -> TfWeights:
        norms = k1 * (1 - b + b * DECODED_LENGTHS / (average or 1.0))  # no length, no document
        # Frequencies begin at 1; the first row, of 0, must be no division of 0 by 0.
        norms = np.maximum(norms, np.finfo(np.float32).tiny).astype(np.float32)
        frequencies = np.arange(256, dtype=np.float64)[:, None]
        return cls(norms, (frequencies / (frequencies + norms)).astype(np.float32).ravel())


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
def add_bm25(
    arrays: Arrays,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    norms: NDArray[np.float32],
    table: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    """Add every term's part to `sums` (one a document). `weights`: weight times idf. `norms` and
    `table` are those of `TfWeights`."""
    offsets, documents = arrays.offsets, arrays.documents
    frequencies, codes = arrays.frequencies, arrays.length_codes
    first = offsets[terms].astype(np.uint64)
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        for row in range(len(terms)):
            weight = weights[row]
            last = first_at(documents, first[row], np.uint64(offsets[terms[row] + 1]), limit)
            for i in range(first[row], last):
                document = documents[i]
                frequency = np.uint32(frequencies[i])
                code = np.uint32(codes[document])
                if frequency < LARGE:
                    tf_weight = table[(frequency << np.uint32(8)) | code]
                else:
                    tf_weight = np.float32(frequency) / (np.float32(frequency) + norms[code])
                sums[document] += weight * tf_weight
            first[row] = last


def best(arrays: Postings, terms: NDArray[np.int64], sums: NDArray[np.float32], depth: int) -> TopK:
    """The `depth` documents of highest sum above 0, and their sums; leaves `sums` all zero.

    Only documents with one of `terms` have a sum. Equal sums are ordered by document number.
    """
    postings = int((arrays.offsets[terms + 1] - arrays.offsets[terms]).sum())
    if postings < len(sums) // _FEW:
        keys = np.empty(postings, np.uint64)
        keys = keys[: _collect_touched(arrays.offsets, arrays.documents, terms, sums, keys)]
    else:
        maxima = np.empty(-(-len(sums) // _RUN), np.uint32)
        _maxima(sums, maxima)
        # The depth-th largest maximum: at least `depth` documents reach it. At most `depth` runs
        # have a larger one, and of the documents at the threshold the first `depth` are enough.
        threshold = np.partition(maxima, -depth)[-depth] if depth < len(maxima) else np.uint32(0)
        threshold = max(threshold, np.uint32(1))
        keys = np.empty(min(len(sums), (_RUN + 1) * depth) + 1, np.uint64)
        runs = np.flatnonzero(maxima >= threshold)
        keys = keys[: _collect_above(sums, maxima, runs, threshold, depth, keys)]
    if len(keys) > 2 * depth:
        keys = np.partition(keys, depth - 1)[:depth]
    keys = np.sort(keys)[:depth]
    documents = (keys & _LOW).astype(np.int32)
    return documents, (_LOW - (keys >> np.uint64(32))).astype(np.uint32).view(np.float32)


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
    complete = len(bits) // _RUN
    fours = np.empty(_PART * 4, np.uint32)
    for first in range(0, complete, _PART):
        part = maxima[first : min(first + _PART, complete)]
        _largest_of_four(bits[first * _RUN :], fours[: len(part) * 4])
        _largest_of_four(fours, part)
    if complete < len(maxima):
        maxima[complete] = bits[complete * _RUN :].max()


@compiled
def _largest_of_four(values: NDArray[np.uint32], largest: NDArray[np.uint32]) -> None:
    for i in range(len(largest)):
        j = 4 * i
        first = max(values[j], values[j + 1])
        largest[i] = max(first, max(values[j + 2], values[j + 3]))


@compiled
def _collect_above(
    sums: NDArray[np.float32],
    maxima: NDArray[np.uint32],
    runs: NDArray[np.int64],
    threshold: np.uint32,
    depth: int,
    keys: NDArray[np.uint64],
) -> int:
    """Keys of all sums in `runs` above the threshold and of the first `depth` that equal it; clears
    `sums`. A key is written and then counted or not, because a branch that the processor cannot
    predict takes longer."""
    bits = sums.view(np.uint32)
    count = 0
    equal = 0
    for run in runs:
        if maxima[run] == threshold and equal == depth:
            continue
        first = run * _RUN
        for document in range(first, min(first + _RUN, len(bits))):
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
