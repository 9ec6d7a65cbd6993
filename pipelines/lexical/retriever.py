"""Our lexical retrievers as PyTerrier transformers: BM25 and query likelihood over one index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import pandas as pd
import pyterrier as pt

from pipelines.index_retriever import IndexRetriever, Query, RankedList, named
from pipelines.lexical.rm3 import RM3, ForwardIndex
from pipelines.lexical.scoring import Numbered
from pipelines.lexical.storage import ATTRIBUTE
from pipelines.lexical.top_documents import check_likelihood, check_settings


class BM25Index(ForwardIndex, Protocol):
    """What `BM25` asks of an index; `LexicalIndex` is one."""

    def search(self, query: Query, k1: float, b: float, depth: int, lengths: str) -> Numbered: ...


class LikelihoodIndex(ForwardIndex, Protocol):
    """What `QueryLikelihood` asks of an index; `LexicalIndex` is one."""

    def search_likelihood(self, query: Query, mu: float, depth: int, lengths: str) -> Numbered: ...


class LexicalIndexRetriever(IndexRetriever):
    """Ranks the documents of a lexical index (see `IndexRetriever` for the frames); `query` is
    analysed as the index was. No row for a document without a query term; equal scores in the order
    of the index."""

    index: ForwardIndex

    @abstractmethod
    def search_terms(self, query: Query) -> Numbered:
        """The best `depth` documents for index terms, or for weights by index term."""

    def analysed(self, texts: Sequence[str]) -> Sequence[Query]:
        return [self.index.analyzer.terms(text) for text in texts]

    def rank(self, queries: Sequence[Query]) -> Sequence[RankedList]:
        return named(self.index.docnos, [self.search_terms(query) for query in queries])

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
        return self.at_depth(min(fb_docs, self.depth)) >> feedback >> self


class BM25(LexicalIndexRetriever):
    """Ranks by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) with
    Lucene's formula (see `pipelines.lexical.scoring`).

    In: `qid` and `query`, or `query_toks` (index term -> weight), which is taken where both are
    there. Out: every column of the input, and `docno`, `score`, `rank` (from 0); at most `depth`
    rows a query.

    `k1` is 0 or more, `b` 0 to 1; `lengths` is `lucene` (documents' lengths in one byte, as
    Anserini scores) or `exact`. `InputError` for other settings.
    """

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
        self.index, self.k1, self.b, self.depth, self.lengths = index, k1, b, depth, lengths

    def search_terms(self, query: Query) -> Numbered:
        return self.index.search(query, self.k1, self.b, self.depth, self.lengths)


class QueryLikelihood(LexicalIndexRetriever):
    """Ranks by query likelihood with Dirichlet smoothing (Zhai and Lafferty, TOIS 2004), as Lucene
    does (see `pipelines.lexical.dirichlet` for the formula). Columns as in `BM25`.

    `mu` is above 0 (Anserini's default is 1000); `lengths` as in `BM25`. `InputError` for other
    settings.
    """

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
        self.index, self.mu, self.depth, self.lengths = index, mu, depth, lengths

    def search_terms(self, query: Query) -> Numbered:
        return self.index.search_likelihood(query, self.mu, self.depth, self.lengths)
