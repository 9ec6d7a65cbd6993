"""SPLADE as a retriever: a corpus encoded once, kept as impacts in an inverted index of our own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pyterrier as pt

from pipelines.engines.base import Engine
from pipelines.learned.encoding import encoded
from pipelines.learned.impact_scoring import check_scale
from pipelines.learned.impacts import ImpactIndex
from pipelines.learned.splade_model import SpladeEncoder
from pipelines.lexical.top_documents import check_depth
from pipelines.retrievers import Retriever, own_index
from pipelines.stage import Collection
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import fingerprint

__all__ = ["SpladeEncoder", "SpladeEngine", "SpladeRetriever"]


@dataclass(frozen=True)
class SpladeEngine:
    """Settings of a SPLADE index: those of `SpladeEncoder`, and

    - `scale`: impacts are round(weight x scale), 100 as published; None keeps exact float32.
    - `memory_mb`: bound of the inversion's buffers.

    Device, batches and memory are not part of the fingerprint; the precision is, resolved.
    """

    model: str = "naver/splade-v3"
    revision: str | None = None
    scale: float | None = 100
    device: str | None = None
    dtype: str | None = None
    batch_tokens: int = 16384
    max_length: int = 512
    memory_mb: int = 1024
    name: str = "splade"
    offers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if self.memory_mb < 16:
            raise InputError(f"memory_mb={self.memory_mb}", valid="16 or more (MiB)")
        _ = self.encoder

    @cached_property
    def encoder(self) -> SpladeEncoder:
        return SpladeEncoder(
            self.model,
            revision=self.revision,
            device=self.device,
            dtype=self.dtype,
            batch_tokens=self.batch_tokens,
            max_length=self.max_length,
        )

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.encoder.fingerprint, self.scale)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Encode and index; after a kill, what was encoded is not encoded again."""
        with encoded(units, self.encoder, path, corpus_fingerprint=corpus_fingerprint) as shards:
            ImpactIndex.build(
                shards,
                self.encoder.vocabulary,
                path,
                scale=self.scale,
                corpus_fingerprint=corpus_fingerprint,
                memory_mb=self.memory_mb,
            )

    def open(self, path: Path, *, corpus_fingerprint: str) -> ImpactIndex:
        return ImpactIndex.open(path, corpus_fingerprint=corpus_fingerprint)


class SpladeRetriever(Retriever):
    """SPLADE over an index of its own; see `SpladeEngine` for the settings.

    `query_model`: a checkpoint for the queries alone, of the same vocabulary (default: `model`;
    `revision` is `model`'s). `InputError` for a model that cannot be had, and for vocabularies that
    differ.
    """

    takes_weights = False

    def __init__(
        self,
        model: str = "naver/splade-v3",
        *,
        query_model: str | None = None,
        revision: str | None = None,
        scale: float | None = 100,
        depth: int = 1000,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int = 16384,
        max_length: int = 512,
    ) -> None:
        check_depth(depth)
        self.model, self.query_model, self.revision = model, query_model, revision
        self.scale, self.depth, self.max_length = scale, depth, max_length
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        self.engine()

    def engine(self) -> SpladeEngine:
        """What builds and opens the index; checks the arguments."""
        return self._part(SpladeEngine)

    def check(self, engine: Engine) -> None:
        """`InputError` for a checkpoint that cannot be had. The run's engine does not matter."""
        _ = self.engine().fingerprint

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        engine = self.engine()
        index: ImpactIndex = own_index(self, collection, engine)
        if self.query_model is None:
            return index.retriever(engine.encoder, depth=self.depth)
        encoder = self._part(SpladeEncoder, model=self.query_model, revision=None)
        if encoder.vocabulary != index.vocabulary:
            raise InputError(
                f"query_model='{self.query_model}' has another vocabulary than '{self.model}'",
                do="choose a query model that was trained together with it",
            )
        return index.retriever(encoder, depth=self.depth)
