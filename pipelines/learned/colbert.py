"""ColBERT retrieval: every token's vector stored, every document scored exactly.

manifest.json      encoder, corpus, counts, versions
units.*            unit ids, in the order of the corpus
vectors.npy        [tokens, dimensions], float16 or float32
offsets.npy        int64 [units + 1], where each unit's tokens begin

For collections that fit: a passage of 200 tokens takes 51 kB in float16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyterrier as pt
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from pipelines.engines.base import Engine
from pipelines.engines.result_frames import RankedList
from pipelines.learned.colbert_encoder import ColbertEncoder
from pipelines.learned.maxsim import Documents, NumpySearch, Search, TorchSearch
from pipelines.learned.shards import Shards, load_array
from pipelines.learned.space import check_space
from pipelines.learned.vector_index import (
    StoredVectors,
    build_vectors,
    check_search,
    checked_manifest,
)
from pipelines.learned.vector_retriever import check_shape
from pipelines.lexical.strings import Names, StringTable, StringWriter, to_bytes
from pipelines.lexical.top_documents import check_depth
from pipelines.retrievers import Retriever, own_index
from pipelines.stage import Collection
from toolkit.contracts import Unit
from toolkit.files import fingerprint

NAME = "colbert"
_UNITS, _VECTORS, _OFFSETS = "units", "vectors.npy", "offsets.npy"
_VERSIONS = ("torch", "transformers", "sentence_transformers")


@dataclass(frozen=True)
class ColbertEngine:
    """Encodes units into an index of their tokens' vectors and opens it.

    `search`: `numpy` (default; the vectors stay on disk and in the page cache) or `torch` (on the
    encoder's device, in its memory). It changes speed, not the index.
    """

    encoder: ColbertEncoder
    search: str = "numpy"
    name: str = NAME
    offers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_search(self.search)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.encoder.fingerprint)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Index the `contents` of the units, in their order; goes on where a killed build was.

        `InputError` for an empty corpus, a repeated id, and a disk that would not hold the vectors,
        as far as a sample tells (of units that can be read twice). Whole or not at all.
        """
        check_space(units, self.encoder, Path(path))
        build_vectors(
            units,
            self.encoder,
            Path(path),
            NAME,
            corpus_fingerprint=corpus_fingerprint,
            write=_write,
            packages=_VERSIONS,
        )

    def open(self, path: Path, *, corpus_fingerprint: str | None = None) -> ColbertIndex:
        """`InputError` if there is no whole index of that corpus and encoder. Loads no model."""
        manifest = checked_manifest(Path(path), NAME, self.encoder, corpus_fingerprint)
        return ColbertIndex(Path(path), manifest, self)


class ColbertIndex(StoredVectors):
    """An opened index. `documents`: all tokens' vectors, mapped from disk."""

    def __init__(self, path: Path, manifest: Mapping[str, Any], engine: ColbertEngine) -> None:
        super().__init__(path, manifest, engine.encoder, engine.search)
        self.docnos = Names(StringTable(path / _UNITS))
        vectors = np.asarray(load_array(path / _VECTORS, mapped=True))
        self.documents = Documents(vectors, load_array(path / _OFFSETS))

    def __len__(self) -> int:
        return len(self.docnos)

    def search(self, queries: Sequence[NDArray[Any]], depth: int) -> list[RankedList]:
        """See `VectorIndex`; a query is [tokens, dimensions], a score its MaxSim."""
        check_shape(queries, self.documents.vectors.shape[1], tokens=True)
        found = self._searching()(queries, depth)
        return [
            RankedList(self.docnos.take(each.numbers).tolist(), each.scores.tolist())
            for each in found
        ]

    def _made_search(self) -> Search:
        if self._how == "torch":
            return TorchSearch(self.documents, self.encoder.device)
        return NumpySearch(self.documents)


def _write(shards: Shards, folder: Path) -> dict[str, Any]:
    """Put the shards' values one behind the other."""
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


class ColbertRetriever(Retriever):
    """ColBERT over an index of its own, exactly; `compute` is the `search` of
    `ColbertEngine`; the other arguments are those of `ColbertEncoder`."""

    takes_weights = False

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
        batch_tokens: int = 16384,
        depth: int = 1000,
        compute: str = "numpy",
    ) -> None:
        check_depth(depth)
        self.model, self.revision = model, revision
        self.max_length, self.query_max_length = max_length, query_max_length
        self.storage, self.depth, self.compute = storage, depth, compute
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        self.engine()

    def engine(self) -> ColbertEngine:
        """What builds and opens the index; checks the arguments."""
        return ColbertEngine(self._part(ColbertEncoder), self.compute)

    def check(self, engine: Engine) -> None:
        """`InputError` for a checkpoint that cannot be had. The run's engine does not matter."""
        _ = self.engine().fingerprint

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        return own_index(self, collection, self.engine()).retriever(self.depth)
