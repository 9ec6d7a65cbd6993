"""Building an index: units in, index folder out, in bounded memory and on every core.

The result depends on the units and the analyzer alone, byte for byte: not on the number of
processes, nor on the memory allowed.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import platform
import shutil
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import length_hint
from pathlib import Path

import numpy as np

from pipelines.index_folder import is_index, write_manifest
from pipelines.lexical import smallfloat
from pipelines.lexical.analyzer import make_analyzer
from pipelines.lexical.forward import AHEAD, Batch, SegmentWriter, start_worker, write_in_worker
from pipelines.lexical.invert import invert, read_segments
from pipelines.lexical.storage import KIND, TEXTS, TITLES, UNITS, array_path, write_frequent
from pipelines.lexical.strings import Places, StringWriter, to_bytes
from pipelines.lexical.vocabulary import merge_vocabularies
from toolkit.checks import check_integer
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import folder_made_whole
from toolkit.progress import track

LEAST_MEMORY_MB = 16
BYTES_A_UNIT = 35  # kept until a build ends, most of it while repeated ids are looked for
LARGEST_INDEX = 2**31 - 1  # units: rankings number them in 32 bits with a sign
_MB = 1 << 20
_WORD_BYTES = 300  # of a word form in a worker's dictionaries: seen with English web text
_BATCH_CHARACTERS = 1 << 20
# Processor seconds before further processes start, four times what starting one costs: most builds
# have read all by then.
_ALONE = 8.0
_WAITING_PER_PROCESS = 3
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def build_index(
    units: Iterable[Unit],
    path: Path,
    *,
    analyzer: str = "english",
    memory_mb: int = 1024,
    processes: int | None = None,
    corpus_fingerprint: str = "",
    total: int | None = None,
    description: str = "indexing",
    keep_texts: bool = False,
) -> None:
    """Write the index of `units` (their `contents`) to `path`; see `LexicalIndex.build`."""
    check_integer("memory_mb", memory_mb, least=LEAST_MEMORY_MB)
    if processes is not None:
        check_integer("processes", processes, do="leave it out for one a core")
    _check_target(path)
    if (known := total or length_hint(units)) > LARGEST_INDEX:
        raise too_many(known)
    analysis = make_analyzer(analyzer)
    workers = processes or cores()
    with _clear_errors(path), folder_made_whole(path) as folder:
        work = folder / "work"
        work.mkdir()
        reader = _Reader(track(units, description, total), folder, memory_mb * _MB, keep_texts)
        limit = memory_mb * _MB // (2 * workers * _WORD_BYTES)
        batches = list(_analysed(reader.batches(), work, analysis.name, limit, workers))
        reader.close()
        counts = _finish(batches, work, folder, memory_mb * _MB // 2)
        shutil.rmtree(work)
        write_manifest(
            folder,
            KIND,
            {
                "analyzer": analysis.name,
                "analyzer_fingerprint": analysis.fingerprint,
                "corpus_fingerprint": corpus_fingerprint,
                "texts": keep_texts,
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


def cores() -> int:
    """Cores that this process may use, where the system tells; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    except BrokenProcessPool as error:
        raise InputError(
            f"an indexing process died while indexing to '{path}'",
            do="allow less memory_mb, or processes=1; a script that builds an index with several "
            "processes must start under if __name__ == '__main__'",
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
        doubled = Places(hashes, self._ids.read).doubled()
        if doubled:
            first, second = doubled
            raise InputError(
                f"units {first + 1} and {second + 1} have the same id '{self._ids.read(second)}'",
                valid="every unit_id once",
                do="remove or rename one of them",
            )


def _analysed(
    batches: Iterator[list[str]], work: Path, analyzer: str, limit: int, processes: int
) -> Iterator[Batch]:
    """What became of each batch, in the order of the batches. This process, which reads them,
    analyses the first ones, with a thread that cuts ahead, and later those that the others have no
    time for."""
    writer = SegmentWriter(work, analyzer, limit)
    yield from writer.write_all(_until_others_start(batches, processes))
    first = next(batches, None)
    if first is None:
        return
    others = processes - 1
    pool = ProcessPoolExecutor(  # starts no process before it has work
        others,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(work, analyzer, limit),
    )
    waiting: deque[Future[Batch]] = deque()
    try:
        for texts in chain([first], batches):
            unfinished = sum(not future.done() for future in waiting)
            if unfinished < _WAITING_PER_PROCESS * others:
                waiting.append(pool.submit(write_in_worker, texts))
            else:
                waiting.append(Future())
                waiting[-1].set_result(writer.write(texts))
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _until_others_start(batches: Iterator[list[str]], processes: int) -> Iterator[list[str]]:
    """The batches that this process analyses before any other starts; all if none ever does."""
    start = time.process_time()
    while processes == 1 or time.process_time() - start < _ALONE:
        texts = next(batches, None)
        if texts is None:
            return
        yield texts


def _finish(batches: Sequence[Batch], work: Path, folder: Path, memory: int) -> dict[str, int]:
    """All that follows the reading: vocabulary, postings, lengths. Gives the counts."""
    vocabulary = merge_vocabularies(work, {batch.segment for batch in batches}, folder)
    read = partial(read_segments, work, batches, vocabulary)
    postings, large = invert(read, vocabulary.size, folder, memory)
    lengths = np.concatenate([batch.lengths for batch in batches])
    array_path(folder, "lengths").write_bytes(lengths.astype("<i4").tobytes())
    array_path(folder, "length_codes").write_bytes(smallfloat.encode(lengths).tobytes())
    write_frequent(folder, len(lengths))
    return {
        "documents": len(lengths),
        "documents_with_terms": int((lengths > 0).sum()),
        "terms": vocabulary.size,
        "postings": postings,
        "tokens": int(lengths.sum(dtype=np.int64)),
        "large_frequencies": large,
    }
