"""What our retrievers over an index share as PyTerrier transformers, whatever they score by."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from pipelines.lexical.queries import Query, all_terms, queries_of
from pipelines.lexical.rm3 import RM3, ForwardIndex
from pipelines.lexical.storage import ATTRIBUTE
from pipelines.lexical.strings import Names

_MADE = ("docno", "score", "rank")


class NamedIndex(Protocol):
    """What a frame of documents asks of an index."""

    @property
    def docnos(self) -> Names: ...


class IndexRetriever(pt.Transformer):
    """Ranks the documents of an index for each query.

    In: `qid` and `query` (text), or `query_toks` (index term -> weight), which is taken where both
    are there. Out: every column of the input, and `docno`, `score`, `rank` (from 0); `depth` rows a
    query at most, highest score first, equal scores in the order of the index; no row for a
    document without a query term.
    """

    names: ClassVar[tuple[str, ...]]
    """The settings: attributes, and keyword arguments of the constructor. `depth` is one."""

    def __init__(self, index: NamedIndex, depth: int) -> None:
        self.index, self.depth = index, depth

    @abstractmethod
    def analysed(self, texts: Sequence[str]) -> Sequence[Query]:
        """The queries that texts are searched as."""

    @abstractmethod
    def search_terms(self, query: Query) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Numbers and scores of the best `depth` documents, best first."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp) as valid:
            valid.query_frame(extra_columns=["query_toks"])
            valid.query_frame(extra_columns=["query"])
        found = [self.search_terms(query) for query in queries_of(inp, self.analysed)]
        counts = [len(documents) for documents, _ in found]
        rows = np.repeat(np.arange(len(inp)), counts)
        # One frame from whole columns: for a single query, setting them one by one takes longer
        # than the search.
        out = {name: inp[name].array.take(rows) for name in inp.columns if name not in _MADE}
        out["docno"] = self.index.docnos.take(_joined([d for d, _ in found], np.int32))
        out["score"] = _joined([scores for _, scores in found], np.float64)
        out["rank"] = _joined([np.arange(count) for count in counts], np.int64)
        return pd.DataFrame(out, copy=False)

    def fuse_rank_cutoff(self, k: int) -> IndexRetriever | None:
        """`retriever % k` as one stage; PyTerrier's optimiser asks for it."""
        return self._at(k) if k < self.depth else None

    def _at(self, depth: int) -> IndexRetriever:
        return type(self)(self.index, **{**self._settings, "depth": depth})

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({self.index!r}, {settings})"

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, IndexRetriever)
            and self.index == other.index
            and self._settings == other._settings
        )

    def __hash__(self) -> int:
        return hash((type(self), self.index, *self._settings.values()))

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}


class LexicalIndexRetriever(IndexRetriever):
    """Ranks the documents of a lexical index; `query` is analysed as the index was."""

    index: ForwardIndex

    def analysed(self, texts: Sequence[str]) -> Sequence[Query]:
        return all_terms(self.index.analyzer, texts)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """See `IndexRetriever`. The frame's attributes tell where the texts are, where the index
        keeps them."""
        out = super().transform(inp)
        if path := getattr(self.index, "texts_path", ""):
            out.attrs[ATTRIBUTE] = path
        return out

    def rm3(
        self, fb_terms: int = 10, fb_docs: int = 10, original_weight: float = 0.5
    ) -> pt.Transformer:
        """The same with RM3 feedback from its own best documents; see `RM3`."""
        feedback = RM3(
            self.index, fb_terms=fb_terms, fb_docs=fb_docs, original_weight=original_weight
        )
        return self._at(min(fb_docs, self.depth)) >> feedback >> self


def _joined(parts: Sequence[np.ndarray[Any, Any]], kind: type) -> np.ndarray[Any, Any]:
    return np.concatenate([np.empty(0, kind), *parts]).astype(kind, copy=False)
