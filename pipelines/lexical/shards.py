"""A lexical index of shards, each of which a process has analysed.

    <index>.encoding-2-of-4/    the segments of shard 2 (see `build`), the ids of its units, and for
                                each unit its number of terms and its length

Merging reads the postings in the order of the corpus, so that the index has the bytes that a single
process writes.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import length_hint
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.index_folder import read_manifest, write_manifest
from soundingline.pipelines.lexical.analyzers import Analyzer, make_analyzer
from soundingline.pipelines.lexical.build import (
    MB,
    Analysed,
    clear_errors,
    read_texts,
    words_in,
    write_segments,
)
from soundingline.pipelines.lexical.invert import (
    Batch,
    DocumentPostings,
    Vocabulary,
    postings_path,
    read_segments,
    terms_path,
)
from soundingline.pipelines.lexical.storage import UNITS, StringTable, array_path, load_array
from soundingline.pipelines.shards import Shard, of_other_units, shard_number, shards_missing
from soundingline.toolkit.console import notify, track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder

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
    if _batches(shard.folder(path), analysis, corpus_fingerprint) is not None:
        return
    with clear_errors(path), atomic_folder(shard.folder(path)) as folder:
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


def _batches(folder: Path, analyzer: Analyzer, corpus_fingerprint: str) -> list[Batch] | None:
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
    return [(folder, _batches(folder, analysis, corpus_fingerprint)) for folder in folders]


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
