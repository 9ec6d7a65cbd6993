"""Runs of words (shingles) of a benchmark's texts, and where a content holds any of them.

Of a document not every shingle is kept but the one of the lowest hash of every 64 neighbours
(winnowing; Schleimer, Wilkerson and Aiken, 2003), whereas all of a content are looked up. Any
stretch of `SURE` words that a content shares with a document is therefore found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from toolkit.contracts import Benchmark
from toolkit.leaks.words import Hashes, runs, words_of

OF_QUESTIONS = 12  # words of a question's shingle; shorter questions are sought whole
OF_DOCUMENTS = 16
FEWEST = 4  # words of an answer or a question; shorter ones occur everywhere
_DOUBLINGS = 6
SURE = OF_DOCUMENTS + 2**_DOUBLINGS - 1
_BLOCK = 1 << 20  # bytes of a content that are looked at together
_OVERLAP = 16 << 10
_FILTER_BITS = 26


class Finding(NamedTuple):
    """A content's first shingle of one text: its `kind` (question, answer, document) and id, and
    the line, from 1."""

    kind: str
    name: str
    line: int


class _Source(NamedTuple):
    kind: str
    name: str


class Shingles:
    """The shingles of a benchmark's questions, answers and, unless `documents` is false, documents.

    `unsought` counts the questions and answers with fewer than four words, and the documents with
    fewer than a shingle's: they are not sought.
    """

    def __init__(self, benchmark: Benchmark, *, documents: bool = True) -> None:
        self.unsought = 0
        self._sources: list[_Source] = []
        gathered: dict[int, list[tuple[Hashes, int]]] = {}
        for topic in benchmark.topics:
            self._add_whole(gathered, "question", topic.qid, topic.text)
            for answer in benchmark.answers.get(topic.qid, ()):
                self._add_whole(gathered, "answer", topic.qid, answer)
        if documents:
            for document in benchmark.documents():
                self._add_document(gathered, document.docid, document.text)
        self._tables = {length: _Table(rows) for length, rows in gathered.items()}

    def findings(self, content: bytes) -> list[Finding]:
        """The texts that a content shares a shingle with, each once, in the order of the content.
        Linear in its size; a content of any size takes bounded memory."""
        first: dict[_Source, int] = {}
        lines = 0
        for begin in range(0, len(content), _BLOCK):
            words = words_of(content[begin : begin + _BLOCK + _OVERLAP])
            for source, word in self._hits(words.hashes):
                line = lines + words.line(word)
                first[source] = min(line, first.get(source, line))
            lines += content.count(b"\n", begin, begin + _BLOCK)
        results = [Finding(*source, line) for source, line in first.items()]
        return sorted(results, key=lambda finding: finding.line)

    def _hits(self, words: Hashes) -> Iterator[tuple[_Source, int]]:
        for length, hashes in runs(words, max(self._tables, default=0)):
            if length in self._tables:
                for position, number in self._tables[length].lookup(hashes):
                    yield self._sources[number], position

    def _add_whole(
        self, gathered: dict[int, list[tuple[Hashes, int]]], kind: str, name: str, text: str
    ) -> None:
        words = words_of(text.encode(errors="replace")).hashes
        length = min(len(words), OF_QUESTIONS)
        if length < FEWEST:
            self.unsought += 1
            return
        self._add(gathered, length, _Source(kind, name), _of_length(words, length))

    def _add_document(
        self, gathered: dict[int, list[tuple[Hashes, int]]], name: str, text: str
    ) -> None:
        words = words_of(text.encode(errors="replace")).hashes
        if len(words) < OF_DOCUMENTS:
            self.unsought += 1
            return
        lowest = _of_length(words, OF_DOCUMENTS)
        for doubling in range(_DOUBLINGS):
            step = 2**doubling
            if len(lowest) <= step:
                lowest = lowest.min(keepdims=True)
                break
            lowest = np.minimum(lowest[:-step], lowest[step:])
        self._add(gathered, OF_DOCUMENTS, _Source("document", name), np.unique(lowest))

    def _add(
        self,
        gathered: dict[int, list[tuple[Hashes, int]]],
        length: int,
        source: _Source,
        hashes: Hashes,
    ) -> None:
        gathered.setdefault(length, []).append((hashes, len(self._sources)))
        self._sources.append(source)


class _Table:
    """Hashes of shingles of one length, each with the number of its source."""

    def __init__(self, rows: Iterable[tuple[Hashes, int]]) -> None:
        rows = list(rows)
        hashes = np.concatenate([hashes for hashes, _ in rows])
        numbers = np.repeat(
            np.array([number for _, number in rows], np.uint32), [len(h) for h, _ in rows]
        )
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], numbers[order]
        self._filter = np.zeros(2**_FILTER_BITS, bool)
        self._filter[self._short(hashes)] = True

    def lookup(self, hashes: Hashes) -> Iterator[tuple[int, int]]:
        """Places of those hashes that are here, each with the number of its first source."""
        likely = np.flatnonzero(self._filter[self._short(hashes)])
        positions = np.searchsorted(self._hashes, hashes[likely])
        positions = np.minimum(positions, len(self._hashes) - 1)
        right = self._hashes[positions] == hashes[likely]
        yield from zip(
            likely[right].tolist(), self._numbers[positions[right]].tolist(), strict=True
        )

    @staticmethod
    def _short(hashes: Hashes) -> Hashes:
        return hashes >> np.uint64(64 - _FILTER_BITS)


def _of_length(words: Hashes, length: int) -> Hashes:
    """Hashes of all runs of `length` words."""
    *_, (_, hashes) = runs(words, length)
    return hashes
