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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import (
    Shard,
    check_target,
    of_other_units,
    read_manifest,
    shard_number,
    shards_missing,
    write_manifest,
)
from soundingline.pipelines.lexical.analyzers import Analyzer, is_ngram, make_analyzer
from soundingline.pipelines.lexical.invert import (
    Batch,
    DocumentPostings,
    Vocabulary,
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
    StringTable,
    StringWriter,
    array_path,
    encode_lengths,
    load_array,
    to_bytes,
)
from soundingline.pipelines.lexical.word_break import WordTable
from soundingline.toolkit.console import notify, track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder, dump_json
from soundingline.toolkit.jit import compiled

LEAST_MEMORY_MB = 16
BYTES_A_UNIT = 35  # in memory until a build ends, most of it while repeated ids are looked for
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
    total: int | None = None,
    keep_texts: bool = False,
    analysed: Callable[[Path], Analysed] | None = None,
) -> None:
    """Write the index of `units` (their `contents`) to `path`; see `LexicalIndex.build`.
    `analysed` gives, for a work folder, what was analysed before; None: the texts are analysed."""
    check_int("memory_mb", memory_mb, ge=LEAST_MEMORY_MB)
    check_target(path, KIND, overwrite=overwrite)
    if (known := total or length_hint(units)) > LARGEST_INDEX:
        raise too_many(known)
    analysis = make_analyzer(analyzer)
    with clear_errors(path), atomic_folder(path, replace=overwrite) as folder:
        work = folder / "work"
        work.mkdir()
        memory = memory_mb * MB
        texts = read_texts(track(units, "indexing", total), folder, memory, keep_texts)
        if analysed is None:
            batches = list(write_segments(texts, work, analysis.name, words_in(memory)))
            segments = {batch.segment for batch in batches}
            lengths = np.concatenate([batch.lengths for batch in batches])
            first_half = Analysed(segments, partial(read_segments, work, batches), lengths)
        else:
            for _ in texts:
                pass
            first_half = analysed(work)
        kind, counts = _finish(first_half, work, folder, memory // 2)
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


def words_in(memory: int) -> int:
    """How many strings a build may keep in so many bytes, of which it needs as many for others."""
    return memory // (2 * _WORD_BYTES)


def too_many(units: int) -> InputError:
    """For more units than one index holds."""
    return InputError(
        f"there are {units:,} units or more to index",
        valid=f"at most {LARGEST_INDEX:,} in one lexical index",
        do="choose a larger unit, or split the corpus",
    )


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """A full disk as an `InputError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise InputError(
            f"no space left on the disk while indexing to '{path}' ({error.strerror})",
            do="free space there or index to another disk; nothing half-made was left",
        ) from error


def read_texts(
    units: Iterable[Unit], folder: Path, memory: int, keep_texts: bool, *, least: int = 1
) -> Iterator[list[str]]:
    """The texts of units, in batches. Writes the ids of the units, and their titles and texts if
    `keep_texts`. `InputError` for fewer than `least` units, too many, and a repeated id."""
    ids = StringWriter(folder / UNITS)
    fields = {"title": TITLES, "text": TEXTS} if keep_texts else {}
    writers = {field: StringWriter(folder / name) for field, name in fields.items()}
    hashes = array("q")
    next_check = 1024
    # A new vocabulary begins that many batches late, so that all of them must be small.
    characters = min(_BATCH_CHARACTERS, memory // (64 * (1 + AHEAD)))
    for batch, texts in _batches(units, characters):
        ids.extend(to_bytes(unit.unit_id) for unit in batch)
        hashes.extend(hash(unit.unit_id) for unit in batch)
        for field, writer in writers.items():
            writer.extend(to_bytes(getattr(unit, field)) for unit in batch)
        if len(hashes) > LARGEST_INDEX:
            raise too_many(len(hashes))
        # Checked whenever the count has doubled: early for the user, and cheap in total.
        if len(hashes) >= next_check:
            _check_ids(hashes, ids)
            next_check = 2 * len(hashes)
        yield texts
    if len(hashes) < least:
        raise InputError("the corpus is empty: no unit to index", do="check its path and split")
    _check_ids(hashes, ids)
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


def _check_ids(hashes: array[int], ids: StringWriter) -> None:
    doubled = StringLookup(np.frombuffer(hashes, np.int64), ids.read).doubled()
    if doubled:
        first, second = doubled
        raise InputError(
            f"units {first + 1} and {second + 1} have the same id '{ids.read(second)}'",
            valid="every unit_id once",
            do="remove or rename one of them",
        )


class Analysed(NamedTuple):
    """The first half of a build: the names of its segments, what reads the postings of all
    documents in their order, and the length of each document."""

    segments: set[str]
    read: Callable[[Vocabulary], Iterable[DocumentPostings]]
    lengths: NDArray[np.int32]


def _finish(
    analysed: Analysed, work: Path, folder: Path, memory: int
) -> tuple[str, dict[str, int]]:
    """Write vocabulary, postings and lengths; the type of the frequencies, and the counts."""
    vocabulary = merge_vocabularies(work, analysed.segments, folder)
    read = partial(analysed.read, vocabulary)
    postings, kind = invert(read, vocabulary.size, folder, memory)
    lengths = analysed.lengths
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
        forms, form_ends = self._table.numbers(list(map(to_bytes, texts)))
        return partial(self._tokens, forms, form_ends, known, self._table.forms(known))

    def _tokens(
        self,
        forms: NDArray[np.int32],
        form_ends: NDArray[np.int64],
        known: int,
        new: Sequence[str],
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
            stream.writelines(to_bytes(term) + b"\n" for term in self._numbers.take_unwritten())
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


# A lexical index of shards, each of which a process has analysed.
#
#     <index>.encoding-2-of-4/    the segments of shard 2, the ids of its units, and for each unit
#                                 its number of terms and its length
#
# Merging reads the postings in the order of the corpus, so that the index has the bytes that a
# single process writes.


_KIND = "lexical-shard"
_DOCUMENTS = 1024  # that are put into the order of the corpus at once
_ARRAYS = ("distinct", "lengths")


def analyse_shard(
    units: Iterable[Unit],
    path: Path,
    shard: Shard,
    analyzer: str,
    memory_mb: int,
    corpus_fingerprint: str,
) -> None:
    """Analyse a shard of all `units` for an index at `path`, unless that is done. The folder of the
    shard appears when it is complete. Arguments and errors as of `LexicalIndex.build`."""
    analysis = make_analyzer(analyzer)
    if _shard_batches(shard.folder(path), analysis, corpus_fingerprint) is not None:
        return
    with clear_errors(path), atomic_folder(shard.folder(path), replace=True) as folder:
        own = track(shard.of(units), f"analysing {shard}", length_hint(units) // shard.count)
        memory = memory_mb * MB
        texts = read_texts(own, folder, memory, keep_texts=False, least=0)
        batches = list(write_segments(texts, folder, analysis.name, words_in(memory)))
        for name in _ARRAYS:
            arrays = [np.empty(0, np.int32), *(getattr(batch, name) for batch in batches)]
            array_path(folder, name).write_bytes(np.concatenate(arrays).astype("<i4").tobytes())
        content = {
            "analyzer_fingerprint": analysis.fingerprint,
            "corpus_fingerprint": corpus_fingerprint,
            "batches": [[each.segment, each.start, len(each.distinct)] for each in batches],
        }
        write_manifest(folder, _KIND, content)


def _shard_batches(folder: Path, analyzer: Analyzer, corpus_fingerprint: str) -> list[Batch] | None:
    """What became of the documents of a shard; None if the folder is not there, or of another
    analyzer or corpus, or damaged, which one line tells."""
    if not folder.exists():
        return None
    try:
        manifest = read_manifest(folder, _KIND, corpus_fingerprint)
    except InputError as error:
        notify(str(error))
        return None
    if manifest["analyzer_fingerprint"] != analyzer.fingerprint:
        return None
    ends = np.cumsum([documents for *_, documents in manifest["batches"]], dtype=np.int64)
    columns = [np.split(load_array(folder, name, "<i4"), ends[:-1]) for name in _ARRAYS]
    heads = [(segment, start) for segment, start, _ in manifest["batches"]]
    return [Batch(*head, *arrays) for head, *arrays in zip(heads, *columns, strict=False)]


def read_shards(
    path: Path, count: int, analyzer: str, corpus_fingerprint: str
) -> list[tuple[Path, list[Batch] | None]]:
    """The folder of each shard, and what became of its documents; None if it is not complete."""
    analysis = make_analyzer(analyzer)
    folders = [Shard(number, count).folder(path) for number in range(count)]
    return [(folder, _shard_batches(folder, analysis, corpus_fingerprint)) for folder in folders]


class MergedShards:
    """The analysed shards of an index at `path`, read as one. `InputError` if one is missing."""

    def __init__(self, path: Path, count: int, analyzer: str, corpus_fingerprint: str) -> None:
        shards = read_shards(path, count, analyzer, corpus_fingerprint)
        if missing := [number for number, (_, batches) in enumerate(shards) if batches is None]:
            raise shards_missing(path, missing, count)
        self._folders = [folder for folder, _ in shards]
        self._shards = [batches or [] for _, batches in shards]
        self._owners = array("H")

    def checked(self, units: Iterable[Unit]) -> Iterator[Unit]:
        """The units, whose shards are noted. `InputError` if the shards are of other units."""
        expected = [iter(StringTable(folder / UNITS)) for folder in self._folders]
        for unit in units:
            owner = shard_number(unit.unit_id, len(expected))
            if next(expected[owner], None) != unit.unit_id:
                raise of_other_units(self._folders[owner])
            self._owners.append(owner)
            yield unit
        for folder, rest in zip(self._folders, expected, strict=True):
            if next(rest, None) is not None:
                raise of_other_units(folder)

    def analysed(self, work: Path) -> Analysed:
        """What one process would have analysed in the folder `work`, after `checked`."""
        shards = []
        for number, (folder, batches) in enumerate(zip(self._folders, self._shards, strict=True)):
            names = {batch.segment: f"{number}-{batch.segment}" for batch in batches}
            for name, linked in names.items():
                postings_path(work, linked).symlink_to(postings_path(folder, name).absolute())
                shutil.copy(terms_path(folder, name), terms_path(work, linked))  # which are sorted
            shards.append([batch._replace(segment=names[batch.segment]) for batch in batches])
        owners = np.frombuffer(self._owners, np.uint16)
        lengths = np.empty(len(owners), np.int32)
        lengths[np.argsort(owners, kind="stable")] = np.concatenate(
            [batch.lengths for batches in shards for batch in batches]
        )
        segments = {batch.segment for batches in shards for batch in batches}
        return Analysed(segments, partial(_in_order, work, shards, owners), lengths)

    def remove(self) -> None:
        """Delete the folders of the shards."""
        for folder in self._folders:
            shutil.rmtree(folder)


def _in_order(
    work: Path, shards: Sequence[Sequence[Batch]], owners: NDArray[np.uint16], names: Vocabulary
) -> Iterator[DocumentPostings]:
    """The postings of all documents, whose shards are `owners`."""
    queues = [_Queue(read_segments(work, batches, names)) for batches in shards]
    for first in range(0, len(owners), _DOCUMENTS):
        own = owners[first : first + _DOCUMENTS]
        counts = np.bincount(own, minlength=len(queues)).tolist()
        parts = [queue.take(number) for queue, number in zip(queues, counts, strict=True)]
        distinct, terms, values = map(np.concatenate, zip(*parts, strict=True))
        # `order`: the place, among the documents by shard, of each document of the corpus.
        order = np.argsort(np.argsort(own, kind="stable"))
        begins, sizes = (np.cumsum(distinct) - distinct)[order], distinct[order]
        places = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        yield DocumentPostings(first, sizes, terms[places], values[places])


class _Queue:
    """The postings of the documents of a shard, taken from the front."""

    def __init__(self, parts: Iterator[DocumentPostings]) -> None:
        self._parts = parts
        self._distinct, self._terms, self._values = (np.empty(0, np.int32) for _ in range(3))

    def take(self, documents: int) -> tuple[NDArray[np.int32], ...]:
        """Number of terms, terms and frequencies of the next documents."""
        while len(self._distinct) < documents:
            part = next(self._parts)
            self._distinct = np.concatenate([self._distinct, part.distinct])
            self._terms = np.concatenate([self._terms, part.terms])
            self._values = np.concatenate([self._values, part.values])
        size = int(self._distinct[:documents].sum())
        taken = self._distinct[:documents], self._terms[:size], self._values[:size]
        self._distinct = self._distinct[documents:]
        self._terms, self._values = self._terms[size:], self._values[size:]
        return taken
