"""BM25 as a PyTerrier transformer: a frame of queries in, a frame of ranked documents out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from pipelines.lexical.analyzer import Analyzer
from pipelines.lexical.searcher import check_settings
from pipelines.lexical.strings import Names
from toolkit.errors import InputError

_MADE = ("docno", "score", "rank")


class Ranker(Protocol):
    """What `BM25` asks of an index; `LexicalIndex` is one."""

    analyzer: Analyzer
    docnos: Names

    def search(
        self,
        query: Mapping[str, float] | Sequence[str],
        k1: float,
        b: float,
        depth: int,
        lengths: str,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...


class BM25(pt.Transformer):
    """Ranks the documents of a lexical index for each query.

    In: `qid` and `query` (text, analysed as the index was), or `query_toks` (index term ->
    weight), which is taken where both are there. Out: every column of the input, and `docno`,
    `score`, `rank` (from 0); `depth` rows a query at most, highest score first, equal scores in
    the order of the index; no row for a document without a query term. `k1` >= 0, `b` in 0..1;
    `lengths` is `lucene` (one byte, as Anserini scores) or `exact`. Bad settings: `InputError`.
    """

    def __init__(
        self,
        index: Ranker,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        depth: int = 1000,
        lengths: str = "lucene",
    ) -> None:
        check_settings(k1, b, depth, lengths)
        self.index = index
        self.k1, self.b, self.depth, self.lengths = k1, b, depth, lengths

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp) as valid:
            valid.query_frame(extra_columns=["query_toks"])
            valid.query_frame(extra_columns=["query"])
        found = [
            self.index.search(query, self.k1, self.b, self.depth, self.lengths)
            for query in self._queries(inp)
        ]
        counts = [len(documents) for documents, _ in found]
        rows = np.repeat(np.arange(len(inp)), counts)
        # One frame from whole columns: for a single query, setting them one by one takes longer
        # than the search.
        out = {name: inp[name].array.take(rows) for name in inp.columns if name not in _MADE}
        out["docno"] = self.index.docnos.take(_joined([d for d, _ in found], np.int32))
        out["score"] = _joined([scores for _, scores in found], np.float64)
        out["rank"] = _joined([np.arange(count) for count in counts], np.int64)
        return pd.DataFrame(out, copy=False)

    def _queries(self, inp: pd.DataFrame) -> list[Mapping[str, float] | Sequence[str]]:
        if "query_toks" not in inp.columns:
            return [self.index.analyzer.terms(query) for query in inp["query"]]
        for weights in inp["query_toks"]:
            if not isinstance(weights, Mapping):
                raise InputError(
                    f"query_toks holds {weights!r}", valid="a dict of index terms to weights"
                )
        return list(inp["query_toks"])

    def fuse_rank_cutoff(self, k: int) -> BM25 | None:
        """`bm25 % k` as one stage; PyTerrier's optimiser asks for it."""
        if k >= self.depth:
            return None
        return BM25(self.index, k1=self.k1, b=self.b, depth=k, lengths=self.lengths)

    def __repr__(self) -> str:
        return (
            f"BM25({self.index!r}, k1={self.k1}, b={self.b}, depth={self.depth}, "
            f"lengths={self.lengths!r})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BM25) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    @property
    def _settings(self) -> tuple[Any, ...]:
        return self.index, self.k1, self.b, self.depth, self.lengths


def _joined(parts: Sequence[np.ndarray[Any, Any]], kind: type) -> np.ndarray[Any, Any]:
    return np.concatenate([np.empty(0, kind), *parts]).astype(kind, copy=False)
