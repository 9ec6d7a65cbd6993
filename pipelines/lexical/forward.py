"""First half of a build: text to (term, frequency) pairs of each document, in worker processes.

Every process numbers the terms it meets in order and appends what it finds to a *segment*: a file
of postings by document, and a file of its terms. A segment ends when its vocabulary has grown to
the allowed size, so that memory does not grow with the corpus.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.analyzer import Analyzer, is_ngram, make_analyzer
from pipelines.lexical.strings import to_bytes

DROPPED = -1


class Batch(NamedTuple):
    """What became of some consecutive documents.

    `distinct` counts terms per document, `lengths` its tokens without n-grams; the postings are
    `sum(distinct)` term numbers of the segment and as many frequencies, both int32, from byte
    `start` of the segment's file.
    """

    segment: str
    start: int
    distinct: NDArray[np.int32]
    lengths: NDArray[np.int32]


class PieceNumbers(dict[str, int]):
    """Piece of text -> number of its term, `DROPPED`, or below that a place in `several`.

    A piece is analysed once, when it is first met; nearly all have one term or none.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._analyzer = analyzer
        self.terms: dict[str, int] = {}
        self._several: list[list[int]] = []
        self._unwritten: list[str] = []

    def __missing__(self, piece: str) -> int:
        numbers = [self._number(term) for term in self._analyzer.piece_terms(piece)]
        if len(numbers) > 1:
            self._several.append(numbers)
            code = DROPPED - len(self._several)
        else:
            code = numbers[0] if numbers else DROPPED
        self[piece] = code
        return code

    def _number(self, term: str) -> int:
        number = self.terms.get(term)
        if number is None:
            number = self.terms[term] = len(self.terms)
            self._unwritten.append(term)
        return number

    def tokens(self, pieces: Sequence[str]) -> NDArray[np.int32]:
        """The numbers of the terms of all the pieces, in any order."""
        codes = np.fromiter(map(self.__getitem__, pieces), np.int32, len(pieces))
        several = [self._several[DROPPED - code - 1] for code in codes[codes < DROPPED].tolist()]
        more = np.fromiter(chain.from_iterable(several), np.int32)
        return np.concatenate([codes[codes > DROPPED], more])

    def forget_pieces(self) -> None:
        self.clear()
        self._several.clear()

    def take_unwritten(self) -> list[str]:
        """The terms that were numbered since the last call, in the order of their numbers."""
        terms, self._unwritten = self._unwritten, []
        return terms


class SegmentWriter:
    """One process's share of the first half. `limit` bounds the strings kept in memory."""

    def __init__(self, folder: Path, analyzer: str, limit: int) -> None:
        self._folder, self._name, self._limit = folder, analyzer, limit
        self._count = 0
        self._begin()

    def _begin(self) -> None:
        self._analyzer = make_analyzer(self._name)  # afresh, because it may remember words too
        self._numbers = PieceNumbers(self._analyzer)
        self._segment = f"{os.getpid()}-{self._count}"
        self._count += 1

    def _bound_memory(self) -> None:
        if len(self._numbers.terms) > self._limit // 2:
            self._begin()
        elif len(self._numbers) > self._limit // 2:
            self._numbers.forget_pieces()

    def write(self, texts: Sequence[str]) -> Batch:
        """Analyse the texts, one a document, and append their postings to the segment."""
        self._bound_memory()
        pieces = [self._analyzer.pieces(text) for text in texts]
        numbers = [self._numbers.tokens(parts) for parts in pieces]
        counts = np.array([len(tokens) for tokens in numbers], dtype=np.int32)
        lengths = counts
        if self._analyzer.longest > 1:
            ngrams = [sum(map(is_ngram, parts)) for parts in pieces]
            lengths = counts - np.array(ngrams, dtype=np.int32)
        terms, frequencies, distinct = count_terms(numbers, counts)
        with postings_path(self._folder, self._segment).open("ab") as stream:
            start = stream.tell()
            stream.write(terms.tobytes() + frequencies.tobytes())
        with terms_path(self._folder, self._segment).open("ab") as stream:
            stream.writelines(to_bytes(term) + b"\n" for term in self._numbers.take_unwritten())
        return Batch(self._segment, start, distinct, lengths)


def postings_path(folder: Path, segment: str) -> Path:
    return folder / f"segment-{segment}.postings"


def terms_path(folder: Path, segment: str) -> Path:
    """The file of a segment's terms in the order of their numbers, one a line."""
    return folder / f"segment-{segment}.terms"


def count_terms(
    numbers: Sequence[NDArray[np.int32]], lengths: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Distinct terms by document, their frequencies, and how many each document has."""
    documents = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    tokens = np.concatenate(numbers).astype(np.int64)
    keys = np.sort(documents << 32 | tokens)
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    frequencies = np.diff(starts, append=len(keys))
    distinct = np.bincount(keys[starts] >> 32, minlength=len(lengths))
    return (
        (keys[starts] & 0xFFFFFFFF).astype(np.int32),
        frequencies.astype(np.int32),
        distinct.astype(np.int32),
    )


_writer: SegmentWriter | None = None  # of this worker process; set once, by start_worker


def start_worker(folder: Path, analyzer: str, limit: int) -> None:
    """Make a worker process ready, and make it end when the process that started it dies."""
    global _writer
    _writer = SegmentWriter(folder, analyzer, limit)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def write_in_worker(texts: Sequence[str]) -> Batch:
    """`SegmentWriter.write` of this worker process."""
    if _writer is None:
        raise RuntimeError("start_worker was not called in this process")
    return _writer.write(texts)
