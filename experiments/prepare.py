"""Document store and index of a benchmark and a unit: opened if they stand, built if not.

    indexes/<benchmark>/documents-<fingerprint>/       raw text, and one file of spans a segmenter
    indexes/<benchmark>/<unit>-<engine>-<fingerprint>/ the index
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.engines.base import Engine
from toolkit.contracts import Benchmark, Segmenter, Unit
from toolkit.corpus import SqliteStore, build_units
from toolkit.files import fingerprint, waiting_lock
from toolkit.progress import track


@dataclass(frozen=True)
class Prepared:
    """An opened store and index, with the fingerprint that names the index."""

    store: SqliteStore
    index: Any
    path: Path
    fingerprint: str


def prepare(
    benchmark: Benchmark, segmenter: Segmenter, engine: Engine, root: Path, *, build: bool = True
) -> Prepared:
    """Open what stands under `root`; build what is missing, one process at a time."""
    folder = root / benchmark.name
    corpus = benchmark.corpus_fingerprint
    digest = fingerprint(corpus, segmenter.fingerprint, engine.fingerprint)
    index_path = folder / f"{segmenter.name}-{engine.name}-{digest}"
    with waiting_lock(folder / ".lock"):
        store = _store(benchmark, segmenter, folder / f"documents-{corpus}", corpus)
        if not index_path.exists():
            units = _units(benchmark, segmenter, len(store))
            engine.build(units, index_path, corpus_fingerprint=corpus)
    index = engine.open(index_path, corpus_fingerprint=corpus)
    return Prepared(store, index, index_path, digest)


def _store(benchmark: Benchmark, segmenter: Segmenter, folder: Path, corpus: str) -> SqliteStore:
    documents = folder / "documents.sqlite"
    if not documents.exists():
        reading = track(benchmark.documents(), f"Storing {benchmark.name}")
        SqliteStore.build(documents, reading, corpus_fingerprint=corpus)
    spans = folder / f"{segmenter.name}-{segmenter.fingerprint}.sqlite"
    if not spans.exists():
        with SqliteStore.open(documents) as store:
            build_units(spans, store, segmenter)
    return SqliteStore.open(documents, units=spans)


def _units(benchmark: Benchmark, segmenter: Segmenter, total: int) -> Iterator[Unit]:
    label = f"Indexing {benchmark.name} ({segmenter.name})"
    for document in track(benchmark.documents(), label, total=total):
        yield from segmenter.units(document)
