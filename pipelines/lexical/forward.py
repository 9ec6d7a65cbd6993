"""First half of a build: text to (term, frequency) pairs of each document, in several processes.

Every process numbers the terms it meets in order and appends what it finds to a *segment*: a file
of postings by document, and a file of its terms. A segment ends when its vocabulary has grown to
the allowed size, so that memory does not grow with the corpus.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.analyzer import Analyzer, is_ngram, make_analyzer
from pipelines.lexical.piece_table import PieceTable
from pipelines.lexical.strings import to_bytes
from toolkit.jit import compiled

DROPPED = -1
_PIECE_BYTES = 64  # of a piece that is longer than nearly all are
AHEAD = 2  # batches: one that is being cut, and one that the cutter finds when it is done


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


class TermNumbers(dict[str, int]):
    """Index term -> its number in the segment, given when it is first met."""

    def __init__(self) -> None:
        super().__init__()
        self._unwritten: list[str] = []

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        self._unwritten.append(term)
        return number

    def take_unwritten(self) -> list[str]:
        """The terms that were numbered since the last call, in the order of their numbers."""
        terms, self._unwritten = self._unwritten, []
        return terms


class Tokens(NamedTuple):
    """The numbers of the terms of some documents, one document after another, the number of each
    one's terms, and that without n-grams."""

    terms: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int32]


class Source(Protocol):
    """Gives the tokens of texts in two steps: one thread may cut texts while another computes the
    tokens of those that were cut before. Each step takes the batches in their order."""

    def cut(self, texts: Sequence[str]) -> Callable[[], Tokens]:
        """The first step; what it gives computes the tokens, which is the second."""
        ...


class WholeTexts:
    """Tokens of texts by the analyzer's own terms, for n-grams, which span whatever is between."""

    def __init__(self, analyzer: Analyzer, numbers: TermNumbers) -> None:
        self._analyzer, self._numbers = analyzer, numbers

    def cut(self, texts: Sequence[str]) -> Callable[[], Tokens]:
        return partial(self._tokens, texts)

    def _tokens(self, texts: Sequence[str]) -> Tokens:
        terms = [self._analyzer.terms(text) for text in texts]
        counts = np.fromiter(map(len, terms), np.int32, len(terms))
        ngrams = np.fromiter((sum(map(is_ngram, names)) for names in terms), np.int32, len(terms))
        numbers = map(self._numbers.__getitem__, chain.from_iterable(terms))
        return Tokens(np.fromiter(numbers, np.int32, counts.sum()), counts, counts - ngrams)


class Pieces:
    """Tokens of texts by their pieces, each of which is analysed once, when it is first met.

    Cutting alone touches the table, which forgets its pieces where these are more than `limit`, or
    as long as so many. `codes` has for each piece the number of its term, `DROPPED` for none, or
    below that, counted down, a place in `several`: nearly all have one term or none.
    """

    def __init__(self, analyzer: Analyzer, roles: bytes, numbers: TermNumbers, limit: int) -> None:
        self._analyzer, self._numbers, self._limit = analyzer, numbers, limit
        self._table = PieceTable(roles)
        self._forget_codes()

    def _forget_codes(self) -> None:
        self._codes, self._several, self._several_ends = array("i"), array("i"), array("i", [0])

    def cut(self, texts: Sequence[str]) -> Callable[[], Tokens]:
        if max(len(self._table), self._table.length // _PIECE_BYTES) > self._limit:
            self._table.clear()
        known = len(self._table)
        pieces, piece_ends = self._table.numbers([to_bytes(text) for text in texts])
        return partial(self._tokens, pieces, piece_ends, known, self._table.pieces(known))

    def _tokens(
        self,
        pieces: NDArray[np.int32],
        piece_ends: NDArray[np.int64],
        known: int,
        new: Sequence[str],
    ) -> Tokens:
        """Of the pieces of the texts; `new` are those that were not among the `known` ones."""
        if known == 0:
            self._forget_codes()
        for piece in new:
            self._codes.append(self._code(piece))
        terms, counts = terms_of_pieces(
            pieces,
            piece_ends,
            # Copies: an array that something still has a view of cannot grow.
            np.array(self._codes, np.int32),
            np.array(self._several, np.int32),
            np.array(self._several_ends, np.int32),
        )
        return Tokens(terms, counts, counts)

    def _code(self, piece: str) -> int:
        terms = self._analyzer.terms(piece)
        if len(terms) < 2:
            return self._numbers[terms[0]] if terms else DROPPED
        self._several.extend(map(self._numbers.__getitem__, terms))
        self._several_ends.append(len(self._several))
        return DROPPED + 1 - len(self._several_ends)


class Segment:
    """A segment that is being written. `limit` bounds the pieces of text kept in memory."""

    def __init__(self, folder: Path, name: str, analyzer: Analyzer, limit: int) -> None:
        self._folder, self._name = folder, name
        self._numbers = TermNumbers()
        roles = analyzer.byte_roles
        self._source: Source = (
            WholeTexts(analyzer, self._numbers)
            if roles is None
            else Pieces(analyzer, roles, self._numbers, limit)
        )
        self._seen = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self._numbers)

    def cut(self, texts: Sequence[str]) -> Callable[[], Batch]:
        """Cut the texts, one a document. What this gives computes and writes their postings, and
        is called in the order of the batches, by this thread or another."""
        return partial(self._write, self._source.cut(texts))

    def _write(self, compute: Callable[[], Tokens]) -> Batch:
        tokens = compute()
        if (more := len(self._numbers) - len(self._seen)) > 0:
            self._seen = np.zeros(len(self._seen) + 2 * more, np.int32)
        terms, frequencies, distinct = count_terms(tokens.terms, tokens.counts, self._seen)
        with postings_path(self._folder, self._name).open("ab") as stream:
            start = stream.tell()
            stream.write(terms.tobytes() + frequencies.tobytes())
        with terms_path(self._folder, self._name).open("ab") as stream:
            stream.writelines(to_bytes(term) + b"\n" for term in self._numbers.take_unwritten())
        return Batch(self._name, start, distinct, tokens.lengths)


class SegmentWriter:
    """One process's share of the first half. `limit` bounds the strings kept in memory."""

    def __init__(self, folder: Path, analyzer: str, limit: int) -> None:
        self._folder, self._analyzer, self._limit = folder, analyzer, limit
        self._count = 0
        self._begin()

    def _begin(self) -> None:
        analyzer = make_analyzer(self._analyzer)  # afresh, because it may remember words too
        name = f"{os.getpid()}-{self._count}"
        self._segment = Segment(self._folder, name, analyzer, self._limit // 2)
        self._count += 1

    def write(self, texts: Sequence[str]) -> Batch:
        """Analyse the texts, one a document, and append their postings to the segment."""
        return self._current().cut(texts)()

    def write_all(self, batches: Iterable[Sequence[str]]) -> Iterator[Batch]:
        """What `write` gives for each batch, while a thread cuts the next ones."""
        waiting: deque[Future[Callable[[], Batch]]] = deque()
        pool = ThreadPoolExecutor(1)
        try:
            for texts in batches:
                waiting.append(pool.submit(self._current().cut, texts))
                if len(waiting) > AHEAD:
                    write = waiting.popleft().result()
                    yield write()
            while waiting:
                write = waiting.popleft().result()
                yield write()
        finally:
            pool.shutdown(cancel_futures=True)

    def _current(self) -> Segment:
        """The segment, or the next one where its terms are too many."""
        if len(self._segment) > self._limit // 2:
            self._begin()
        return self._segment


def postings_path(folder: Path, segment: str) -> Path:
    return folder / f"segment-{segment}.postings"


def terms_path(folder: Path, segment: str) -> Path:
    """The file of a segment's terms in the order of their numbers, one a line."""
    return folder / f"segment-{segment}.terms"


@compiled
def terms_of_pieces(
    pieces: NDArray[np.int32],
    piece_ends: NDArray[np.int64],
    codes: NDArray[np.int32],
    several: NDArray[np.int32],
    several_ends: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Terms of pieces, which end at `piece_ends` for each document; how many each document has.
    The other arguments are those of `Pieces`."""
    size = len(pieces)
    if len(several) > 0:
        for piece in pieces:
            index = DROPPED - 1 - codes[piece]
            if index >= 0:
                size += several_ends[index + 1] - several_ends[index]
    terms = np.empty(size, np.int32)
    counts = np.empty(len(piece_ends), np.int32)
    position = count = 0
    for row in range(len(piece_ends)):
        first = count
        while position < piece_ends[row]:
            code = codes[pieces[position]]
            position += 1
            if code >= 0:
                terms[count] = code
                count += 1
            elif code < DROPPED:
                index = DROPPED - 1 - code
                for number in several[several_ends[index] : several_ends[index + 1]]:
                    terms[count] = number
                    count += 1
        counts[row] = count - first
    return terms[:count], counts


@compiled
def count_terms(
    tokens: NDArray[np.int32], counts: NDArray[np.int32], seen: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Distinct terms by document, their frequencies, and how many each document has. `seen` is 0
    for each term, before and after."""
    terms, frequencies = np.empty(len(tokens), np.int32), np.empty(len(tokens), np.int32)
    distinct = np.empty(len(counts), np.int32)
    position = size = 0
    for row in range(len(counts)):
        first = size
        for _ in range(counts[row]):
            term = tokens[position]
            position += 1
            if seen[term] == 0:
                terms[size] = term
                size += 1
            seen[term] += 1
        for index in range(first, size):
            frequencies[index] = seen[terms[index]]
            seen[terms[index]] = 0
        distinct[row] = size - first
    return terms[:size], frequencies[:size], distinct


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
