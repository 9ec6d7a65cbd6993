"""Building an index: units in, index folder out, in bounded memory.

First half of a build: text to (term, frequency) pairs of each document. Terms are numbered in the
order in which they first occur, and the pairs are appended to a *segment*: a file of postings by
document, and a file of its terms. A segment ends when its vocabulary has grown to the allowed size,
so that memory does not grow with the corpus. A thread cuts the next texts into word forms while
this thread counts the terms of those before. The second half is `invert`.

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
from itertools import chain
from operator import length_hint
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import is_index, write_manifest
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
    ARTIFACT,
    ARTIFACT_METADATA,
    KIND,
    TEXTS,
    TITLES,
    UNITS,
    StringLookup,
    StringWriter,
    array_path,
    encode_lengths,
    to_bytes,
)
from soundingline.pipelines.lexical.word_table import WordTable
from soundingline.toolkit.console import track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder, dump_json
from soundingline.toolkit.jit import compiled

LEAST_MEMORY_MB = 16
BYTES_A_UNIT = 35  # kept until a build ends, most of it while repeated ids are looked for
LARGEST_INDEX = 2**31 - 1  # units: rankings number them in 32 bits with a sign
_MB = 1 << 20
_WORD_BYTES = 300  # of a word form in the dictionaries of a build, measured on English web text
_BATCH_CHARACTERS = 1 << 20
DROPPED = -1
_FORM_BYTES = 64  # of a form that is longer than nearly all are
AHEAD = 2  # batches: one that is being cut, and one that the cutter finds when it is done
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def build_index(
    units: Iterable[Unit],
    path: Path,
    *,
    analyzer: str = "english",
    memory_mb: int = 1024,
    corpus_fingerprint: str = "",
    total: int | None = None,
    description: str = "indexing",
    keep_texts: bool = False,
) -> None:
    """Write the index of `units` (their `contents`) to `path`; see `LexicalIndex.build`."""
    check_int("memory_mb", memory_mb, ge=LEAST_MEMORY_MB)
    _check_target(path)
    if (known := total or length_hint(units)) > LARGEST_INDEX:
        raise too_many(known)
    analysis = make_analyzer(analyzer)
    with _clear_errors(path), atomic_folder(path) as folder:
        work = folder / "work"
        work.mkdir()
        reader = _Reader(track(units, description, total), folder, memory_mb * _MB, keep_texts)
        writer = SegmentWriter(work, analysis.name, memory_mb * _MB // (2 * _WORD_BYTES))
        batches = list(writer.write_all(reader.batches()))
        reader.close()
        kind, counts = _finish(batches, work, folder, memory_mb * _MB // 2)
        shutil.rmtree(work)
        (folder / ARTIFACT).write_text(dump_json(ARTIFACT_METADATA), "utf-8")
        write_manifest(
            folder,
            KIND,
            {
                "analyzer": analysis.name,
                "analyzer_fingerprint": analysis.fingerprint,
                "corpus_fingerprint": corpus_fingerprint,
                "texts": keep_texts,
                "type": kind,
                "counts": counts,
                "versions": {"python": platform.python_version(), "numpy": np.__version__},
            },
        )


def too_many(units: int) -> InputError:
    """For more units than one index holds."""
    return InputError(
        f"there are {units:,} units or more to index",
        valid=f"at most {LARGEST_INDEX:,} in one lexical index",
        do="choose a larger unit, or split the corpus",
    )


def _check_target(path: Path) -> None:
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty and not is_index(path, KIND):
        raise InputError(
            f"'{path}' exists and is not a lexical index; it would be replaced",
            do="name another folder, or remove this one",
        )


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise InputError(
            f"no room left on the disk while indexing to '{path}' ({error.strerror})",
            do="free space there or index to another disk; nothing half-made was left",
        ) from error


class _Reader:
    """Reads units once: writes their ids (and texts, where they are kept), refuses doubles, and
    hands out texts in batches."""

    def __init__(self, units: Iterable[Unit], folder: Path, memory: int, keep_texts: bool) -> None:
        self._units = units
        self._ids = StringWriter(folder / UNITS)
        names = (TITLES, TEXTS) if keep_texts else ()
        self._kept = [StringWriter(folder / name) for name in names]
        self._hashes = array("q")
        self._next_check = 1024
        # A new vocabulary begins that many batches late, so that all of them must be small.
        self._characters = min(_BATCH_CHARACTERS, memory // (64 * (1 + AHEAD)))

    def batches(self) -> Iterator[list[str]]:
        texts: list[str] = []
        ids: list[str] = []
        size = 0
        for unit in self._units:
            texts.append(unit.contents)
            ids.append(unit.unit_id)
            for writer, text in zip(self._kept, (unit.title, unit.text), strict=False):
                writer.extend([to_bytes(text)])
            size += len(texts[-1])
            if size >= self._characters:
                self._note(ids)
                yield texts
                texts, ids, size = [], [], 0
        self._note(ids)
        if texts:
            yield texts

    def _note(self, ids: Sequence[str]) -> None:
        self._ids.extend(map(to_bytes, ids))
        self._hashes.extend(map(hash, ids))
        if len(self._hashes) > LARGEST_INDEX:
            raise too_many(len(self._hashes))
        # Checked each time the count has doubled: early for the user, and cheap in all.
        if len(self._hashes) >= self._next_check:
            self._check()
            self._next_check = 2 * len(self._hashes)

    def close(self) -> None:
        if not self._hashes:
            raise InputError("the corpus is empty: no unit to index", do="check its path and split")
        self._check()
        for writer in (self._ids, *self._kept):
            writer.close()

    def _check(self) -> None:
        hashes = np.frombuffer(self._hashes, np.int64)
        doubled = StringLookup(hashes, self._ids.read).doubled()
        if doubled:
            first, second = doubled
            raise InputError(
                f"units {first + 1} and {second + 1} have the same id '{self._ids.read(second)}'",
                valid="every unit_id once",
                do="remove or rename one of them",
            )


def _finish(
    batches: Sequence[Batch], work: Path, folder: Path, memory: int
) -> tuple[str, dict[str, int]]:
    """All that follows the reading: vocabulary, postings, lengths. Gives the type of the
    frequencies and the counts."""
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


class WordForms:
    """Tokens of texts by their forms, each of which is analysed once, when it is first met.

    Cutting alone touches the table, which forgets its forms where these are more than `limit`, or
    as long as so many. `codes` has for each form the number of its term, `DROPPED` for none, or
    below that, counted down, a place in `several`: nearly all have one term or none.
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
        if max(len(self._table), self._table.length // _FORM_BYTES) > self._limit:
            self._table.clear()
        known = len(self._table)
        forms, form_ends = self._table.numbers([to_bytes(text) for text in texts])
        return partial(self._tokens, forms, form_ends, known, self._table.forms(known))

    def _tokens(
        self,
        forms: NDArray[np.int32],
        form_ends: NDArray[np.int64],
        known: int,
        new: Sequence[str],
    ) -> Tokens:
        """Of the forms of the texts; `new` are those that were not among the `known` ones."""
        if known == 0:
            self._forget_codes()
        for form in new:
            self._codes.append(self._code(form))
        terms, counts = terms_of_forms(
            forms,
            form_ends,
            # Copies: an array that something still has a view of cannot grow.
            np.array(self._codes, np.int32),
            np.array(self._several, np.int32),
            np.array(self._several_ends, np.int32),
        )
        return Tokens(terms, counts, counts)

    def _code(self, form: str) -> int:
        terms = self._analyzer.terms(form)
        if len(terms) < 2:
            return self._numbers[terms[0]] if terms else DROPPED
        self._several.extend(map(self._numbers.__getitem__, terms))
        self._several_ends.append(len(self._several))
        return DROPPED + 1 - len(self._several_ends)


class Segment:
    """A segment that is being written. `limit` bounds the forms of text kept in memory."""

    def __init__(self, folder: Path, name: str, analyzer: Analyzer, limit: int) -> None:
        self._folder, self._name = folder, name
        self._numbers = TermNumbers()
        classes = analyzer.byte_classes
        self._source: Source = (
            WholeTexts(analyzer, self._numbers)
            if classes is None
            else WordForms(analyzer, classes, self._numbers, limit)
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
    """Writes the segments of a build to `folder`. `limit` bounds the strings kept in memory."""

    def __init__(self, folder: Path, analyzer: str, limit: int) -> None:
        self._folder, self._analyzer, self._limit = folder, analyzer, limit
        self._count = 0
        self._begin()

    def _begin(self) -> None:
        analyzer = make_analyzer(self._analyzer)  # afresh, because it may remember words too
        self._segment = Segment(self._folder, str(self._count), analyzer, self._limit // 2)
        self._count += 1

    def write_all(self, batches: Iterable[Sequence[str]]) -> Iterator[Batch]:
        """Analyse each batch of texts, one a document, and append their postings to the segment,
        while a thread cuts the next batches."""
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
