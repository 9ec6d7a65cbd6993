"""Impacts as a PyTerrier transformer: a frame of queries in, a frame of ranked documents out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.learned.impact_scoring import scaled
from pipelines.lexical.queries import Query
from pipelines.lexical.retriever import IndexRetriever
from pipelines.lexical.strings import Names
from pipelines.lexical.top_documents import check_depth
from toolkit.errors import InputError


class QueryEncoder(Protocol):
    """Gives queries weights by term; safe for many threads."""

    def queries(self, texts: Sequence[str]) -> Sequence[Mapping[str, float]]: ...


class SearchedImpacts(Protocol):
    """What `ImpactRetriever` asks of an index; `ImpactIndex` is one."""

    scale: float | None
    docnos: Names

    def search(
        self, query: Mapping[str, float], depth: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...


class ImpactRetriever(IndexRetriever):
    """Ranks by the sum of query weight times impact (see `IndexRetriever` for the frames).

    `query` is encoded by `encoder`, all queries of a frame at once, and its weights are scaled and
    rounded as the index's impacts are. `query_toks` (term -> weight) is taken as it is. Without an
    encoder only `query_toks` can be searched. Bad settings, or a missing encoder: `InputError`.
    """

    names = ("encoder", "depth")
    index: SearchedImpacts

    def __init__(
        self, index: SearchedImpacts, *, encoder: QueryEncoder | None = None, depth: int = 1000
    ) -> None:
        check_depth(depth)
        super().__init__(index, depth)
        self.encoder = encoder

    def analysed(self, texts: Sequence[str]) -> Sequence[Query]:
        if not texts:
            return []
        if self.encoder is None:
            raise InputError(
                "there is no encoder for the queries",
                valid="query_toks (a dict of terms to weights)",
                do="give retriever(encoder=...)",
            )
        return [self._scaled(weights) for weights in self.encoder.queries(texts)]

    def search_terms(self, query: Query) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        if not isinstance(query, Mapping):
            raise InputError(f"the query {query!r}", valid="a dict of terms to weights")
        return self.index.search(query, self.depth)

    def _scaled(self, weights: Mapping[str, float]) -> Mapping[str, float]:
        values = np.fromiter(weights.values(), np.float32, len(weights))
        return dict(zip(weights, scaled(values, self.index.scale).tolist(), strict=True))
