"""Query likelihood as a PyTerrier transformer: queries in, ranked documents out."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.queries import Query
from pipelines.lexical.retriever import LexicalIndexRetriever
from pipelines.lexical.rm3 import ForwardIndex
from pipelines.lexical.top_documents import check_likelihood


class LikelihoodIndex(ForwardIndex, Protocol):
    """What `QueryLikelihood` asks of an index; `LexicalIndex` is one."""

    def search_likelihood(
        self, query: Query, mu: float, depth: int, lengths: str
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...


class QueryLikelihood(LexicalIndexRetriever):
    """Ranks by query likelihood with Dirichlet smoothing, as Lucene does (see `IndexRetriever` for
    the frames, `pipelines.lexical.dirichlet` for the formula).

    `mu` > 0 (Anserini's default is 1000); `lengths` is `lucene` (one byte, as Anserini scores) or
    `exact`. Bad settings: `InputError`.
    """

    names = ("mu", "depth", "lengths")
    index: LikelihoodIndex

    def __init__(
        self,
        index: LikelihoodIndex,
        *,
        mu: float = 1000.0,
        depth: int = 1000,
        lengths: str = "lucene",
    ) -> None:
        check_likelihood(mu, depth, lengths)
        super().__init__(index, depth)
        self.mu, self.lengths = mu, lengths

    def search_terms(self, query: Query) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return self.index.search_likelihood(query, self.mu, self.depth, self.lengths)
