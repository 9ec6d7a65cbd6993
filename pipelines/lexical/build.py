"""Building an index: units in, index folder out, in bounded memory.

First half of a build: text to pairs of term and frequency for each document. Terms are numbered in
the order in which they first occur, and the pairs are appended to a *segment*: a file of postings
by document, and a file of its terms. A segment ends when its vocabulary has grown to the allowed
size, so that memory does not grow with the corpus. A thread cuts the next texts into word forms
while this thread counts the terms of the texts before. The second half is `invert`.

The result depends on the units and the analyzer alone, byte for byte, and not on the memory
allowed."""

from __future__ import annotations

import errno
import platform
import shutil
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from operator import length_hint
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import (
    UniqueUnits,
    check_target,
    write_manifest,
    write_metadata,
)
from soundingline.pipelines.lexical.analyzers import Analyzer, is_ngram, make_analyzer
from soundingline.pipelines.lexical.invert import (
    Batch,
    invert,
    merge_vocabularies,
    postings_path,
    read_segments,
    terms_path,
)
from soundingline.pipelines.lexical.storage import (
    ARTIFACT_FORMAT,
    ARTIFACT_TYPE,
    KIND,
    TEXTS,
    TITLES,
    UNITS,
    StringWriter,
    array_path,
    encode_lengths,
)
from soundingline.pipelines.lexical.word_break import WordTable
from soundingline.toolkit.console import track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder
from soundingline.toolkit.jit import compiled

LEAST_MEMORY_MB = 16
LARGEST_INDEX = 2**31 - 1  # units: rankings number them in 32 bits with a sign
MB = 1 << 20
_WORD_BYTES = 300  # of a word form in the dictionaries of a build, measured on English web text
_BATCH_CHARACTERS = 1 << 20
DROPPED = -1
_FORM_BYTES = 64  # of a form that is longer than nearly all are
AHEAD = 2  # batches: one that is being cut, and one that is cut next
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def build_index(
    units: Iterable[Unit],
    path: Path,
    *,
    overwrite: bool = False,
    analyzer: str = "english",
    memory_mb: int = 1024,
    corpus_fingerprint: str = "",
    keep_texts: bool = False,
) -> None:
    """Write the index of `units` (their `contents`) to `path`; see `LexicalIndex.build`."""
    check_int("memory_mb", memory_mb, ge=LEAST_MEMORY_MB)
    if (known := length_hint(units)) > LARGEST_INDEX:
        raise too_many(known)
    analysis = make_analyzer(analyzer)
    with index_folder(path, KIND, ARTIFACT_FORMAT, overwrite=overwrite) as (folder, manifest):
        work = folder / "work"
        work.mkdir()
        memory = memory_mb * MB
        texts = read_texts(track(units, "indexing", known or None), folder, memory, keep_texts)
        batches = list(write_segments(texts, work, analysis.name, memory // (2 * _WORD_BYTES)))
        kind, counts = _finish(batches, work, folder, memory // 2)
        shutil.rmtree(work)
        manifest |= {
            "analyzer": analysis.name,
            "analyzer_fingerprint": analysis.fingerprint,
            "corpus_fingerprint": corpus_fingerprint,
            "texts": keep_texts,
            "type": kind,
            "counts": counts,
        }


@contextmanager
def index_folder(
    path: Path, kind: str, artifact_format: str, *, overwrite: bool
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder for the files of an inverted index and a mapping for its manifest, both of which the
    block fills. The folder appears at `path` when the block ends; nothing is left if it raises.

    Raises:
        InputError: for a `path` that holds anything but an index of that kind, or such an index
            without `overwrite`, and for a full disk.
    """
    check_target(path, kind, overwrite=overwrite)
    manifest: dict[str, Any] = {}
    try:
        with atomic_folder(path, replace=overwrite) as folder:
            yield folder, manifest
            write_metadata(folder, ARTIFACT_TYPE, artifact_format)
            versions = {"python": platform.python_version(), "numpy": np.__version__}
            write_manifest(folder, kind, {**manifest, "versions": versions})
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise InputError(
            f"no space left on the disk while indexing to '{path}' ({error.strerror})",
            do="free space there or index to another disk; no partial index was left",
        ) from error


def too_many(units: int) -> InputError:
    """For more units than one index holds."""
    return InputError(
        f"there are {units:,} units or more to index",
        valid=f"at most {LARGEST_INDEX:,} in one lexical index",
        do="choose a larger unit, or split the corpus",
    )


def read_texts(
    units: Iterable[Unit], folder: Path, memory: int, keep_texts: bool
) -> Iterator[list[str]]:
    """The texts of units, in batches. Writes the ids of the units, and their titles and texts if
    `keep_texts`. `InputError` for no unit, too many, and a repeated id."""
    ids = StringWriter(folder / UNITS)
    fields = {"title": TITLES, "text": TEXTS} if keep_texts else {}
    writers = {field: StringWriter(folder / name) for field, name in fields.items()}
    checked, number = UniqueUnits(units), 0
    # A new vocabulary begins that many batches late, so that all of them must be small.
    characters = min(_BATCH_CHARACTERS, memory // (64 * (1 + AHEAD)))
    for batch, texts in _batches(checked, characters):
        ids.extend(unit.unit_id.encode() for unit in batch)
        for field, writer in writers.items():
            writer.extend(getattr(unit, field).encode() for unit in batch)
        number += len(batch)
        if number > LARGEST_INDEX:
            raise too_many(number)
        yield texts
    checked.finish()
    for writer in (ids, *writers.values()):
        writer.close()


def _batches(units: Iterable[Unit], characters: int) -> Iterator[tuple[list[Unit], list[str]]]:
    batch: list[Unit] = []
    texts: list[str] = []
    size = 0
    for unit in units:
        batch.append(unit)
        texts.append(unit.contents)
        size += len(texts[-1])
        if size >= characters:
            yield batch, texts
            batch, texts, size = [], [], 0
    if batch:
        yield batch, texts


def _finish(
    batches: Sequence[Batch], work: Path, folder: Path, memory: int
) -> tuple[str, dict[str, int]]:
    """Write vocabulary, postings and lengths; the type of the frequencies, and the counts."""
    vocabulary = merge_vocabularies(work, {batch.segment for batch in batches}, folder)
    read = partial(read_segments, work, batches, vocabulary)
    postings, kind = invert(read, vocabulary.size, folder, memory)
    lengths = np.concatenate([batch.lengths for batch in batches])
    array_path(folder, "lengths").write_bytes(lengths.astype("<i4").tobytes())
    array_path(folder, "length_codes").write_bytes(encode_lengths(lengths).tobytes())
    counts = {
        "documents": len(lengths),
        "documents_with_terms": int((lengths > 0).sum()),
        "terms": vocabulary.size,
        "postings": postings,
        "tokens": int(lengths.sum(dtype=np.int64)),
    }
    return kind, counts


class TermNumbers(dict[str, int]):
    """Index term -> its number in the segment, in the order in which terms are first looked up."""

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
    """The numbers of the terms of some documents, one document after another; the number of terms
    of each document, and that number without n-grams."""

    terms: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int32]


def tokens_of_texts(analyzer: Analyzer, numbers: TermNumbers, texts: Sequence[str]) -> Tokens:
    """The tokens of whole texts, for n-grams, which span any cut."""
    terms = list(map(analyzer.terms, texts))
    counts = np.fromiter(map(len, terms), np.int32, len(terms))
    ngrams = np.fromiter((sum(map(is_ngram, names)) for names in terms), np.int32, len(terms))
    numbered = map(numbers.__getitem__, chain.from_iterable(terms))
    return Tokens(np.fromiter(numbered, np.int32, counts.sum()), counts, counts - ngrams)


class WordForms:
    """Tokens of texts by their word forms, each of which is analysed once, when it first occurs.

    Only `cut` uses the table, which forgets its forms when their number, or their length, exceeds
    `limit`. `codes` has for each form the number of its term, `DROPPED` for none, or below that,
    counted down, a place in `several`: nearly all forms have one term or none.
    """

    def __init__(
        self, analyzer: Analyzer, classes: bytes, numbers: TermNumbers, limit: int
    ) -> None:
        self._analyzer, self._numbers, self._limit = analyzer, numbers, limit
        self._table = WordTable(classes)
        self._forget_codes()

    def _forget_codes(self) -> None:
        self._codes, self._several, self._several_ends = array("i"), array("i"), array("i", [0])

    def cut(self, texts: Sequence[str]) -> Callable[[], Tokens]:
        """Cut texts; the result computes their tokens, and is called in the order of the cuts."""
        if max(len(self._table), self._table.length // _FORM_BYTES) > self._limit:
            self._table.clear()
        known = len(self._table)
        forms, form_ends = self._table.numbers(list(map(str.encode, texts)))
        return partial(self._tokens, forms, form_ends, known, self._table.forms(known))

    def _tokens(
        self, forms: NDArray[np.int32], form_ends: NDArray[np.int64], known: int, new: Sequence[str]
    ) -> Tokens:
        """The tokens of texts with these forms. `new` are those that follow the `known` ones."""
        if known == 0:
            self._forget_codes()
        for form in new:
            self._codes.append(self._code(form))
        # Copies, because an array cannot grow while something has a view of it.
        tables = (self._codes, self._several, self._several_ends)
        terms, counts = terms_of_forms(forms, form_ends, *(np.array(t, np.int32) for t in tables))
        return Tokens(terms, counts, counts)

    def _code(self, form: str) -> int:
        terms = self._analyzer.terms(form)
        if len(terms) < 2:
            return self._numbers[terms[0]] if terms else DROPPED
        self._several.extend(map(self._numbers.__getitem__, terms))
        self._several_ends.append(len(self._several))
        return DROPPED + 1 - len(self._several_ends)


class Segment:
    """A segment that is being written. `limit` bounds the word forms in memory."""

    def __init__(self, folder: Path, name: str, analyzer: Analyzer, limit: int) -> None:
        self._folder, self._name = folder, name
        self._numbers = TermNumbers()
        self._seen = np.zeros(0, np.int32)
        self._cut: Callable[[Sequence[str]], Callable[[], Tokens]]
        if (classes := analyzer.byte_classes) is None:
            self._cut = partial(partial, tokens_of_texts, analyzer, self._numbers)
        else:
            self._cut = WordForms(analyzer, classes, self._numbers, limit).cut

    def __len__(self) -> int:
        return len(self._numbers)

    def cut(self, texts: Sequence[str]) -> Callable[[], Batch]:
        """Cut texts, one a document; the result computes and writes their postings, and is called
        in the order of the cuts, by this thread or another."""
        return partial(self._write, self._cut(texts))

    def _write(self, compute: Callable[[], Tokens]) -> Batch:
        tokens = compute()
        if (more := len(self._numbers) - len(self._seen)) > 0:
            self._seen = np.zeros(len(self._seen) + 2 * more, np.int32)
        terms, frequencies, distinct = count_terms(tokens.terms, tokens.counts, self._seen)
        with postings_path(self._folder, self._name).open("ab") as stream:
            start = stream.tell()
            stream.write(terms.tobytes() + frequencies.tobytes())
        with terms_path(self._folder, self._name).open("ab") as stream:
            stream.writelines(term.encode() + b"\n" for term in self._numbers.take_unwritten())
        return Batch(self._name, start, distinct, tokens.lengths)


def write_segments(
    batches: Iterable[Sequence[str]], folder: Path, analyzer: str, limit: int
) -> Iterator[Batch]:
    """Analyse each batch of texts, one a document, and append their postings to a segment in
    `folder`, while a thread cuts the next batches. `limit` bounds the strings in memory."""
    names = map(str, count())

    def begin() -> Segment:
        # A new analyzer, because it may remember words too.
        return Segment(folder, next(names), make_analyzer(analyzer), limit // 2)

    segment = begin()
    waiting: deque[Future[Callable[[], Batch]]] = deque()
    pool = ThreadPoolExecutor(1)
    try:
        for texts in batches:
            if len(segment) > limit // 2:
                segment = begin()
            waiting.append(pool.submit(segment.cut, texts))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()()
        while waiting:
            yield waiting.popleft().result()()
    finally:
        pool.shutdown(cancel_futures=True)


@compiled
def terms_of_forms(
    forms: NDArray[np.int32],
    form_ends: NDArray[np.int64],
    codes: NDArray[np.int32],
    several: NDArray[np.int32],
    several_ends: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Terms of forms, which end at `form_ends` for each document; how many each document has.
    The other arguments are those of `WordForms`."""
    size = len(forms)
    if len(several) > 0:
        for form in forms:
            index = DROPPED - 1 - codes[form]
            if index >= 0:
                size += several_ends[index + 1] - several_ends[index]
    terms = np.empty(size, np.int32)
    counts = np.empty(len(form_ends), np.int32)
    position = count = 0
    for row in range(len(form_ends)):
        first = count
        while position < form_ends[row]:
            code = codes[forms[position]]
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
