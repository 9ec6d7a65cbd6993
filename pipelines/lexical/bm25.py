"""BM25 as a PyTerrier transformer: a frame of queries in, a frame of ranked documents out."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.queries import Query
from pipelines.lexical.retriever import LexicalIndexRetriever
from pipelines.lexical.rm3 import ForwardIndex
from pipelines.lexical.top_documents import check_settings


class BM25Index(ForwardIndex, Protocol):
    """What `BM25` asks of an index; `LexicalIndex` is one."""

    def search(
        self, query: Query, k1: float, b: float, depth: int, lengths: str
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...


class BM25(LexicalIndexRetriever):
    """Ranks by BM25 with Lucene's formula (see `IndexRetriever` for the frames).

    `k1` >= 0, `b` in 0..1; `lengths` is `lucene` (one byte, as Anserini scores) or `exact`. Bad
    settings: `InputError`.
    """

    names = ("k1", "b", "depth", "lengths")
    index: BM25Index

    def __init__(
        self,
        index: BM25Index,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        depth: int = 1000,
        lengths: str = "lucene",
    ) -> None:
        check_settings(k1, b, depth, lengths)
        super().__init__(index, depth)
        self.k1, self.b, self.lengths = k1, b, lengths

    def search_terms(self, query: Query) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return self.index.search(query, self.k1, self.b, self.depth, self.lengths)
