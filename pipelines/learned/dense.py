"""Dense retrieval: one vector a unit, searched exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyterrier as pt
from numpy.typing import NDArray

from pipelines.engines.base import Engine
from pipelines.engines.result_frames import RankedList
from pipelines.learned.dense_encoder import DenseEncoder
from pipelines.learned.flex import Search, make_search, read_flex, write_flex
from pipelines.learned.shards import Shards
from pipelines.learned.vector_index import (
    StoredVectors,
    build_vectors,
    check_search,
    checked_manifest,
)
from pipelines.learned.vector_retriever import check_shape
from pipelines.lexical.top_documents import check_depth
from pipelines.retrievers import Retriever, own_index
from pipelines.stage import Collection
from toolkit.contracts import Unit
from toolkit.extras import check_installed
from toolkit.files import fingerprint

NAME = "dense"
_INDEX = "flex"
_VERSIONS = ("torch", "transformers", "pyterrier_dr")


@dataclass(frozen=True)
class DenseEngine:
    """Encodes units into a `pyterrier_dr.FlexIndex` and opens it.

    `search`: `numpy` (default; the vectors stay on disk and in the page cache) or `torch` (on the
    encoder's device, in its memory). It changes speed, not the index.
    """

    encoder: DenseEncoder
    search: str = "numpy"
    name: str = NAME
    offers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_search(self.search)
        check_installed("pyterrier_dr")

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.encoder.fingerprint)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Index the `contents` of the units, in their order; goes on where a killed build was.

        `InputError` for an empty corpus and a repeated id. Whole or not at all.
        """
        build_vectors(
            units,
            self.encoder,
            Path(path),
            NAME,
            corpus_fingerprint=corpus_fingerprint,
            write=_write,
            packages=_VERSIONS,
        )

    def open(self, path: Path, *, corpus_fingerprint: str | None = None) -> DenseIndex:
        """`InputError` if there is no whole index of that corpus and encoder. Loads no model."""
        manifest = checked_manifest(Path(path), NAME, self.encoder, corpus_fingerprint)
        return DenseIndex(Path(path), manifest, self)


class DenseIndex(StoredVectors):
    """An opened dense index. `docnos`: unit ids; `vectors`: float32 [units, dimensions], mapped."""

    def __init__(self, path: Path, manifest: Mapping[str, Any], engine: DenseEngine) -> None:
        super().__init__(path, manifest, engine.encoder, engine.search)
        self.docnos, self.vectors = read_flex(self.flex_path)

    @property
    def flex_path(self) -> Path:
        """What `pyterrier_dr.FlexIndex` opens."""
        return self.path / _INDEX

    def __len__(self) -> int:
        return len(self.docnos)

    def search(self, queries: Sequence[NDArray[Any]], depth: int) -> list[RankedList]:
        """See `VectorIndex`; a query is [dimensions], a score a dot product."""
        check_shape(queries, self.vectors.shape[1], tokens=False)
        found = self._searching()(np.stack(queries).astype(np.float32), depth)
        return [
            RankedList(self.docnos[each.numbers].tolist(), each.scores.tolist()) for each in found
        ]

    def _made_search(self) -> Search:
        return make_search(self._how, self.vectors, self.encoder.device)


def _write(shards: Shards, folder: Path) -> dict[str, Any]:
    return {
        "dimensions": write_flex(folder / _INDEX, shards),
        "counts": {"units": len(shards), "empty": shards.counts["empty"]},
    }


class DenseRetriever(Retriever):
    """Dense retrieval over an index of its own, exactly.

    `document_max_length` takes the place of `max_length` where the unit is the whole document;
    `compute` is the `search` of `DenseEngine`; the other arguments are those of `DenseEncoder`.
    """

    takes_weights = False

    def __init__(
        self,
        model: str,
        *,
        base: str | None = None,
        revision: str | None = None,
        query_prefix: str | None = None,
        document_prefix: str | None = None,
        pooling: str | None = None,
        append_eos: bool = False,
        normalise: bool = True,
        max_length: int = 512,
        document_max_length: int | None = None,
        query_max_length: int = 512,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int = 16384,
        depth: int = 1000,
        compute: str = "numpy",
    ) -> None:
        check_depth(depth)
        self.model, self.base, self.revision = model, base, revision
        self.query_prefix, self.document_prefix = query_prefix, document_prefix
        self.pooling, self.append_eos, self.normalise = pooling, append_eos, normalise
        self.max_length, self.document_max_length = max_length, document_max_length
        self.query_max_length, self.depth, self.compute = query_max_length, depth, compute
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        self.engine(whole_documents=False)

    def engine(self, *, whole_documents: bool) -> DenseEngine:
        """What builds and opens the index; checks the arguments."""
        longest = self.document_max_length if whole_documents else None
        encoder = self._part(DenseEncoder, max_length=longest or self.max_length)
        return DenseEngine(encoder, self.compute)

    def check(self, engine: Engine) -> None:
        """`InputError` for a checkpoint that cannot be had. The run's engine does not matter."""
        _ = self.engine(whole_documents=False).fingerprint

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        engine = self.engine(whole_documents=collection.whole_documents)
        return own_index(self, collection, engine).retriever(self.depth)
