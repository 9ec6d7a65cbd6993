"""Stages of retrieval as PyTerrier transformers: `from pipelines import LexicalIndex, MonoT5`.

Each name is imported when it is first used, so that importing the package loads no model library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.aggregation import MaxP
    from pipelines.backend import PipelineBackend
    from pipelines.expand import LinkExpansion
    from pipelines.fusion import Interpolation, ReciprocalRankFusion
    from pipelines.learned.colbert import ColbertRetriever
    from pipelines.learned.dense import DenseRetriever
    from pipelines.learned.splade import SpladeRetriever
    from pipelines.lexical.index import LexicalIndex
    from pipelines.lexical.indexer import LexicalIndexer
    from pipelines.lexical.retriever import BM25, QueryLikelihood
    from pipelines.lexical.rm3 import RM3
    from pipelines.oracle import OracleRetriever
    from pipelines.rerank.base import PairScorer
    from pipelines.rerank.colbert import ColBERT
    from pipelines.rerank.cross_encoder import CrossEncoder
    from pipelines.rerank.listwise import Listwise
    from pipelines.rerank.monot5 import MonoT5
    from pipelines.rerank.rank1 import Rank1
    from pipelines.rerank.rankllama import RankLLaMA
    from pipelines.rerank.stage import Reranker, RerankHead
    from pipelines.rewrite.q2q import Q2Q
    from pipelines.stage import Collection, Stage

_HOMES = {
    "BM25": "lexical.retriever",
    "ColBERT": "rerank.colbert",
    "ColbertRetriever": "learned.colbert",
    "Collection": "stage",
    "CrossEncoder": "rerank.cross_encoder",
    "DenseRetriever": "learned.dense",
    "Interpolation": "fusion",
    "LexicalIndex": "lexical.index",
    "LexicalIndexer": "lexical.indexer",
    "LinkExpansion": "expand",
    "Listwise": "rerank.listwise",
    "MaxP": "aggregation",
    "MonoT5": "rerank.monot5",
    "OracleRetriever": "oracle",
    "PairScorer": "rerank.base",
    "PipelineBackend": "backend",
    "Q2Q": "rewrite.q2q",
    "QueryLikelihood": "lexical.retriever",
    "RM3": "lexical.rm3",
    "Rank1": "rerank.rank1",
    "RankLLaMA": "rerank.rankllama",
    "ReciprocalRankFusion": "fusion",
    "RerankHead": "rerank.stage",
    "Reranker": "rerank.stage",
    "SpladeRetriever": "learned.splade",
    "Stage": "stage",
}

__all__ = [
    "BM25",
    "Q2Q",
    "RM3",
    "ColBERT",
    "ColbertRetriever",
    "Collection",
    "CrossEncoder",
    "DenseRetriever",
    "Interpolation",
    "LexicalIndex",
    "LexicalIndexer",
    "LinkExpansion",
    "Listwise",
    "MaxP",
    "MonoT5",
    "OracleRetriever",
    "PairScorer",
    "PipelineBackend",
    "QueryLikelihood",
    "Rank1",
    "RankLLaMA",
    "ReciprocalRankFusion",
    "RerankHead",
    "Reranker",
    "SpladeRetriever",
    "Stage",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
