"""What a retriever over an index of vectors is as a PyTerrier transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from pipelines.engines.result_frames import RankedList, ranked
from toolkit.errors import InputError


class VectorIndex(Protocol):
    """An opened index, comparable and hashable."""

    def encode(self, queries: Sequence[str]) -> Sequence[NDArray[Any]]:
        """Each query as `search` takes it."""
        ...

    def search(self, queries: Sequence[NDArray[Any]], depth: int) -> list[RankedList]:
        """The best `depth` units of each query, equal scores in the order of the index;
        `InputError` for a query of the wrong shape."""
        ...


class VectorRetriever(pt.Transformer):
    """Ranks the units of an index for each query.

    In: `qid` and `query` (text, encoded with the index's model), or `query_vec` (an array: of a
    single-vector model [dimensions], of a multi-vector model [tokens, dimensions]), which is taken
    where both are there. Out: every column of the input, and `docno`, `score`, `rank` (from 0);
    `depth` rows a query, or all units where they are fewer; equal scores in the order of the index.

    Products of matrices round by their shape: the last digit of a score may differ between a query
    alone and in a frame of many.
    """

    def __init__(self, index: VectorIndex, depth: int = 1000) -> None:
        if depth < 1:
            raise InputError(f"depth={depth}", valid="1 or more")
        self.index, self.depth = index, depth

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp) as valid:
            valid.query_frame(extra_columns=["query_vec"])
            valid.query_frame(extra_columns=["query"])
        if not len(inp):
            return ranked(inp, [])
        return ranked(inp, self.index.search(self._vectors(inp), self.depth))

    def _vectors(self, inp: pd.DataFrame) -> Sequence[NDArray[Any]]:
        if "query_vec" in inp.columns:
            return [np.asarray(vector, dtype=np.float32) for vector in inp["query_vec"]]
        texts = inp["query"].tolist()
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"query holds {text!r}", valid="text")
        return self.index.encode(texts)

    def fuse_rank_cutoff(self, k: int) -> VectorRetriever | None:
        """`retriever % k` as one stage; PyTerrier's optimiser asks for it."""
        return VectorRetriever(self.index, k) if k < self.depth else None

    def __repr__(self) -> str:
        return f"VectorRetriever({self.index!r}, depth={self.depth})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorRetriever) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    @property
    def _settings(self) -> tuple[Any, ...]:
        return self.index, self.depth


def check_shape(queries: Sequence[NDArray[Any]], dimensions: int, *, tokens: bool) -> None:
    """`InputError` for a query that is not [dimensions], or with `tokens` [tokens, dimensions]."""
    for query in queries:
        if query.ndim != 1 + tokens or query.shape[-1] != dimensions:
            raise InputError(
                f"a query vector has the shape {list(query.shape)}",
                valid=f"[{'tokens, ' if tokens else ''}{dimensions}], as the index",
                do="encode queries with the model that the index was made with",
            )
