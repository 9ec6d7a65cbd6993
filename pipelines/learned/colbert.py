"""ColBERT retrieval: every token's vector stored, every document scored exactly.

manifest.json      encoder, corpus, counts, versions
units.*            unit ids, in the order of the corpus
vectors.npy        [tokens, dimensions], float16 or float32
offsets.npy        int64 [units + 1], where each unit's tokens begin

For collections that fit: a passage of 200 tokens takes 51 kB in float16.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from soundingline.pipelines.learned.colbert_encoder import STORAGES, ColbertEncoder
from soundingline.pipelines.learned.encoding import work_folder
from soundingline.pipelines.learned.shards import Shards, load_array
from soundingline.pipelines.learned.vector_index import VectorEngine
from soundingline.pipelines.learned.vector_search import DocumentVectors
from soundingline.pipelines.lexical.storage import (
    Docnos,
    StringTable,
    StringWriter,
    check_offsets,
    check_table,
    to_bytes,
)
from soundingline.pipelines.models import gigabytes
from soundingline.pipelines.retrieve import OwnIndexRetriever
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int

_UNITS, _VECTORS, _OFFSETS = "units", "vectors.npy", "offsets.npy"
_SAMPLE = 1024  # units whose tokens tell the size of all


@dataclass(frozen=True)
class ColbertEngine(VectorEngine):
    """Encodes units into an index of their tokens' vectors, and opens it."""

    encoder: ColbertEncoder
    name = "colbert"
    packages = ("torch", "transformers", "sentence_transformers")

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """See `VectorEngine`. `InputError` also for a disk that would not hold the vectors, as far
        as a sample tells (of units that can be read twice)."""
        check_space(units, self.encoder, path)
        super().build(units, path, corpus_fingerprint=corpus_fingerprint)

    def write(self, shards: Shards, folder: Path) -> Mapping[str, Any]:
        """See `VectorEngine`: the shards' values one behind the other."""
        names = StringWriter(folder / _UNITS)
        offsets, vectors = [np.zeros(1, np.int64)], None
        begin = 0
        for shard in shards:
            if vectors is None:
                shape = shards.counts["rows"], shard.values.shape[1]
                vectors = open_memmap(folder / _VECTORS, "w+", shard.values.dtype, shape)
            vectors[begin : begin + len(shard.values)] = shard.values
            offsets.append(shard.offsets[1:] + begin)
            begin += len(shard.values)
            names.extend(map(to_bytes, shard.unit_ids))
        names.close()
        np.save(folder / _OFFSETS, np.concatenate(offsets))
        if vectors is None:
            raise RuntimeError("an encoding without units")
        vectors.flush()
        counts = {name: shards.counts[name] for name in ("units", "rows", "empty")}
        return {"dimensions": int(vectors.shape[1]), "counts": counts}

    def check(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """See `VectorEngine`."""
        check_table(folder / _UNITS, manifest["counts"]["units"])
        vectors, offsets = load_array(folder / _VECTORS, mapped=True), load_array(folder / _OFFSETS)
        if vectors.ndim != 2 or vectors.shape[1] != manifest["dimensions"]:
            raise ValueError(f"{_VECTORS} has the shape {list(vectors.shape)}")
        check_offsets(offsets, len(vectors), _OFFSETS)
        if len(offsets) != manifest["counts"]["units"] + 1 or not np.diff(offsets).all():
            raise ValueError(f"{_OFFSETS} does not give each unit a vector")

    def load(self, folder: Path) -> tuple[Docnos, DocumentVectors]:
        """See `VectorEngine`."""
        vectors = np.asarray(load_array(folder / _VECTORS, mapped=True))
        return (
            Docnos(StringTable(folder / _UNITS)),
            DocumentVectors(vectors, load_array(folder / _OFFSETS)),
        )


class ColbertRetriever(OwnIndexRetriever):
    """ColBERT (Khattab and Zaharia, SIGIR 2020) over an index of its own, exactly. Columns as in
    `BM25`, without `query_toks`; at most `depth` units a query.

    `compute` is the `search` of `VectorEngine`; the other arguments, and what is refused
    (`InputError`), are those of `ColbertEncoder`.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        max_length: int | None = None,
        query_max_length: int | None = None,
        storage: str = "float16",
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        depth: int = 1000,
        compute: str = "numpy",
    ) -> None:
        check_int("depth", depth)
        self.model, self.revision = model, revision
        self.max_length, self.query_max_length = max_length, query_max_length
        self.storage, self.depth, self.compute = storage, depth, compute
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        self.engine()

    def engine(self, *, whole_documents: bool = False) -> ColbertEngine:
        """What builds and opens the index; checks the arguments."""
        return ColbertEngine(self._part(ColbertEncoder), self.compute)


def check_space(units: Iterable[Unit], encoder: ColbertEncoder, path: Path) -> None:
    """`InputError` with the sizes where the disk of `path` would not hold the tokens' vectors twice
    (the encoding, and the index that is made of it), judged by the tokens of every n-th unit. Units
    that can be read only once are not judged."""
    if iter(units) is units:
        return
    total = length_hint(units) or sum(1 for _ in units)
    step = max(1, total // _SAMPLE)
    sample = [unit.contents for number, unit in enumerate(units) if number % step == 0]
    if not sample:
        return
    tokens = sum(encoder.lengths(sample)) / len(sample) * total
    token_bytes = encoder.dimensions * np.dtype(STORAGES[encoder.storage]).itemsize
    # What a killed build has left is counted among what is needed, so it counts as free.
    free = shutil.disk_usage(_existing(path)).free + _size(work_folder(path))
    if 2 * tokens * token_bytes > free:
        size, disk = gigabytes(int(tokens * token_bytes)), _existing(path)
        raise InputError(
            f"the vectors of {total} units, about {tokens / total:.0f} tokens each and "
            f"{encoder.dimensions} x {encoder.storage} a token, take {size} and twice that while "
            f"they are made, and the disk of '{disk}' has {gigabytes(free)} free",
            do="re-rank with it instead (reranker=colbert), set storage=float16, choose shorter "
            "units, or another disk",
        )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _existing(path: Path) -> Path:
    return next(folder for folder in path.absolute().parents if folder.is_dir())
