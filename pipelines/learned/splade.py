"""SPLADE as a retriever: a corpus encoded once, kept as impacts in an inverted index of our own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from soundingline.pipelines.learned.encoding import encoded
from soundingline.pipelines.learned.impact_scoring import check_scale
from soundingline.pipelines.learned.impacts import ImpactIndex
from soundingline.pipelines.learned.splade_model import SpladeEncoder
from soundingline.pipelines.retrieve import OwnIndexRetriever
from soundingline.pipelines.stage import Bound, Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint

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
    max_length: int | None = None
    memory_mb: int = 1024
    name: str = "splade"
    offers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_scale(self.scale)
        check_int("memory_mb", self.memory_mb, ge=16)
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

    encoder: SpladeEncoder | None = None

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
        max_length: int | None = None,
    ) -> None:
        check_int("depth", depth)
        self.model, self.query_model, self.revision = model, query_model, revision
        self.scale, self.depth, self.max_length = scale, depth, max_length
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        self.engine()

    def engine(self, *, whole_documents: bool = False) -> SpladeEngine:
        """What builds and opens the index; checks the arguments."""
        return self._part(SpladeEngine)

    def bind(self: Bound, collection: Collection) -> Bound:
        """See `Retriever`."""
        bound = super().bind(collection)
        bound.encoder = self._query_encoder(bound.index)  # type: ignore[attr-defined]
        return bound

    def _query_encoder(self, index: ImpactIndex) -> SpladeEncoder:
        if self.query_model is None:
            return self.engine().encoder
        encoder = self._part(SpladeEncoder, model=self.query_model, revision=None)
        if encoder.vocabulary != index.vocabulary:
            raise InputError(
                f"query_model='{self.query_model}' has another vocabulary than '{self.model}'",
                do="choose a query model that was trained together with it",
            )
        return encoder
