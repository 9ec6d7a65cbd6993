"""SPLADE as a retriever: a corpus encoded once, kept as impacts in an inverted index of our own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pyterrier as pt

from pipelines.learned.encoding import encoded
from pipelines.learned.impact_scoring import check_scale
from pipelines.learned.impacts import ImpactIndex
from pipelines.learned.splade_model import SpladeEncoder
from pipelines.retrievers import OwnIndexRetriever
from pipelines.stage import Collection
from toolkit.checks import check_integer
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
    batch_tokens: int | None = None
    max_length: int = 512
    memory_mb: int = 1024
    name: str = "splade"
    offers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_scale(self.scale)
        check_integer("memory_mb", self.memory_mb, least=16)
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


class SpladeRetriever(OwnIndexRetriever):
    """SPLADE (Formal et al., SIGIR 2021) over an index of its own; see `SpladeEngine` for the
    settings. Columns as in `BM25`, without `query_toks`; at most `depth` units a query.

    `query_model`: a checkpoint for the queries alone, of the same vocabulary (default: `model`;
    `revision` is `model`'s). `InputError` for a model that cannot be had, and for vocabularies that
    differ.
    """

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
        batch_tokens: int | None = None,
        max_length: int = 512,
    ) -> None:
        check_integer("depth", depth)
        self.model, self.query_model, self.revision = model, query_model, revision
        self.scale, self.depth, self.max_length = scale, depth, max_length
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        self.engine()

    def engine(self, *, whole_documents: bool = False) -> SpladeEngine:
        """What builds and opens the index; checks the arguments."""
        return self._part(SpladeEngine)

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        index: ImpactIndex = self.own_index(collection)
        if self.query_model is None:
            return index.retriever(self.engine().encoder, depth=self.depth)
        encoder = self._part(SpladeEncoder, model=self.query_model, revision=None)
        if encoder.vocabulary != index.vocabulary:
            raise InputError(
                f"query_model='{self.query_model}' has another vocabulary than '{self.model}'",
                do="choose a query model that was trained together with it",
            )
        return index.retriever(encoder, depth=self.depth)
