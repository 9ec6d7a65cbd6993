"""Dense retrieval: one vector a unit, searched exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt
from numpy.typing import NDArray

from pipelines.engines.base import Engine
from pipelines.engines.frames import Ranking
from pipelines.neural.extras import require
from pipelines.semantic.dense_encoder import DenseEncoder
from pipelines.semantic.flex import Search, make_search, read_flex, write_flex
from pipelines.semantic.shards import Shards
from pipelines.semantic.vector_index import (
    StoredVectors,
    build_vectors,
    check_search,
    checked_manifest,
)
from pipelines.semantic.vector_ranker import check_shape
from toolkit.contracts import Unit
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

    def __post_init__(self) -> None:
        check_search(self.search)
        require("pyterrier_dr")

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

    def search(self, queries: Sequence[NDArray[Any]], depth: int) -> list[Ranking]:
        """See `VectorIndex`; a query is [dimensions], a score a dot product."""
        check_shape(queries, self.vectors.shape[1], tokens=False)
        found = self._searching()(np.stack(queries).astype(np.float32), depth)
        return [Ranking(self.docnos[each.numbers].tolist(), each.scores.tolist()) for each in found]

    def _made_search(self) -> Search:
        return make_search(self._how, self.vectors, self.encoder.device)


def _write(shards: Shards, folder: Path) -> dict[str, Any]:
    return {
        "dimensions": write_flex(folder / _INDEX, shards),
        "counts": {"units": len(shards), "empty": shards.counts["empty"]},
    }


def dense(
    indexed: Callable[[Engine], DenseIndex],
    unit: str = "passage",
    *,
    model: str,
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
    search: str = "numpy",
) -> pt.Transformer:
    """Dense retrieval over an index of its own. `document_max_length` takes the place of
    `max_length` where the unit is the whole document; the other arguments are those of
    `DenseEncoder`, `DenseEngine` and `VectorRanker`."""
    if unit == "document" and document_max_length is not None:
        max_length = document_max_length
    encoder = DenseEncoder(
        model,
        base=base,
        revision=revision,
        query_prefix=query_prefix,
        document_prefix=document_prefix,
        pooling=pooling,
        append_eos=append_eos,
        normalise=normalise,
        max_length=max_length,
        query_max_length=query_max_length,
        device=device,
        dtype=dtype,
        batch_tokens=batch_tokens,
    )
    return indexed(DenseEngine(encoder, search)).ranker(depth)
