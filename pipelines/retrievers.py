"""First stages: transformers that rank the units of a run's collection.

A retriever is made of plain arguments; `bind` gives it the collection's index, whichever engine
built that. Those of learned models stand with their models in `pipelines.learned`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pandas as pd
import pyterrier as pt

from pipelines.engines.base import Engine
from pipelines.lexical.rm3 import check_feedback
from pipelines.lexical.top_documents import check_likelihood, check_settings
from pipelines.stage import Bound, Collection, Stage, not_bound
from toolkit.errors import InputError


class Retriever(Stage):
    """Ranks the units of the collection that it is bound to.

    In: `qid` and `query`. Out: every column of the input, and `docno`, `score`, `rank` (from 0), at
    most `depth` rows a query. `InputError` where it is asked before it is bound.
    """

    ranks_by: str = "bm25"
    """What the engine of the collection must offer (`Engine.offers`)."""

    takes_weights: bool = True
    """Whether `query_toks` of the collection's index terms are searched in the place of `query`."""

    searches_overlays: bool = True
    """Whether phrases that enrich the collection's index change what it finds."""

    depth: int
    _retriever: pt.Transformer | None = None

    @abstractmethod
    def retriever(self, collection: Collection) -> pt.Transformer:
        """What ranks in `collection`, of the same columns."""

    def bind(self: Bound, collection: Collection) -> Bound:
        """See `Stage`. Opens the index, and builds it where it is missing."""
        bound = super().bind(collection)
        bound._retriever = self.retriever(collection)  # type: ignore[attr-defined]
        return bound

    def check(self, engine: Engine) -> None:
        """`InputError` where `engine` does not offer this ranking."""
        super().check(engine)
        if self.ranks_by not in engine.offers:
            raise InputError(
                f"the engine {engine.name} offers no {self.ranks_by}",
                valid=", ".join(sorted(engine.offers)),
                do="set engine=lexical, or choose another retriever",
            )

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        if self._retriever is None:
            do = "call bind(collection), or take a retriever from an index: index.bm25(...)"
            raise not_bound(self, do)
        return self._retriever.transform(inp)

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer | None:
        """`retriever % k` as one stage; PyTerrier's optimiser asks for it."""
        if k >= self.depth:
            return None
        shorter = type(self)(**{**self._arguments(), "depth": k})
        return shorter.bind(self.collection) if self.collection else shorter


class BM25Retriever(Retriever):
    """BM25 over any engine's index; the defaults are Anserini's.

    `depth` counts retrieved units. With passages and Max-P, the aggregated ranking therefore holds
    at most `depth` documents, as in the text-ranking study.
    """

    def __init__(self, *, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> None:
        check_settings(k1, b, depth, "lucene")
        self.k1, self.b, self.depth = k1, b, depth

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        retriever: pt.Transformer = collection.index.bm25(k1=self.k1, b=self.b, depth=self.depth)
        return retriever


class TunedBM25Retriever(BM25Retriever):
    """BM25 in the cell that a tuning chose. `path` is the `chosen.yaml` that `k1` and `b` were read
    from, which a run's manifest thereby names."""

    def __init__(self, *, path: str, k1: float, b: float, depth: int = 1000) -> None:
        super().__init__(k1=k1, b=b, depth=depth)
        self.path = path


class RM3Retriever(Retriever):
    """BM25, RM3 feedback from its best units, BM25 again; the defaults are Anserini's.

    `fb_docs` units give `fb_terms` terms; the original query keeps `original_weight` (0 to 1).
    """

    ranks_by = "rm3"

    def __init__(
        self,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        depth: int = 1000,
        fb_terms: int = 10,
        fb_docs: int = 10,
        original_weight: float = 0.5,
    ) -> None:
        check_settings(k1, b, depth, "lucene")
        check_feedback(fb_terms, fb_docs, original_weight)
        self.k1, self.b, self.depth = k1, b, depth
        self.fb_terms, self.fb_docs, self.original_weight = fb_terms, fb_docs, original_weight

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        bm25 = collection.index.bm25(k1=self.k1, b=self.b, depth=self.depth)
        retriever: pt.Transformer = bm25.rm3(
            fb_terms=self.fb_terms, fb_docs=self.fb_docs, original_weight=self.original_weight
        )
        return retriever


class QueryLikelihoodRetriever(Retriever):
    """Query likelihood with Dirichlet smoothing; the default `mu` is Anserini's."""

    ranks_by = "ql"
    searches_overlays = False

    def __init__(self, *, mu: float = 1000.0, depth: int = 1000) -> None:
        check_likelihood(mu, depth, "lucene")
        self.mu, self.depth = mu, depth

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        retriever: pt.Transformer = collection.index.ql(mu=self.mu, depth=self.depth)
        return retriever


class OwnIndexRetriever(Retriever):
    """Ranks by an index of its own, which it asks its collection to open, or to build where it is
    missing; the run's engine does not matter."""

    takes_weights = False
    searches_overlays = False

    @abstractmethod
    def engine(self, *, whole_documents: bool = False) -> Any:
        """The `Engine` of its index, for units that are whole documents or not."""

    def check(self, engine: Engine) -> None:
        """`InputError` for a checkpoint that cannot be had."""
        _ = self.engine().fingerprint

    def retriever(self, collection: Collection) -> pt.Transformer:
        """See `Retriever`."""
        retriever: pt.Transformer = self.own_index(collection).retriever(self.depth)
        return retriever

    def own_index(self, collection: Collection) -> Any:
        """The opened index. `InputError` for a collection that opens none."""
        if collection.open_index is None:
            raise InputError(
                f"the collection of {type(self).__name__} opens no index of its model",
                do="give Collection(open_index=...), or search an index that you have opened",
            )
        return collection.open_index(self.engine(whole_documents=collection.whole_documents))
