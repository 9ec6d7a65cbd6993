"""Stages of retrieval as PyTerrier transformers: `from soundingline.pipelines import LexicalIndex,
MonoT5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from soundingline.toolkit.optional import lazy_names

if TYPE_CHECKING:
    from soundingline.pipelines.backend import PipelineBackend
    from soundingline.pipelines.compose import MaxP
    from soundingline.pipelines.fusion import Interpolation, OracleRetriever, ReciprocalRankFusion
    from soundingline.pipelines.learned.colbert import ColBERT
    from soundingline.pipelines.learned.dense import Dense
    from soundingline.pipelines.learned.retriever import LearnedRetriever
    from soundingline.pipelines.learned.splade import ImpactEngine, Sparta, Splade
    from soundingline.pipelines.learned.vectors import MultiVectorEngine, VectorEngine
    from soundingline.pipelines.lexical.crossfit import CrossFittedBM25
    from soundingline.pipelines.lexical.index import LexicalIndex
    from soundingline.pipelines.links import LinkExpansion
    from soundingline.pipelines.q2q import Q2Q
    from soundingline.pipelines.rerank.colbert import ColBERTReranker
    from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
    from soundingline.pipelines.rerank.listwise import Listwise
    from soundingline.pipelines.rerank.monot5 import MonoT5
    from soundingline.pipelines.rerank.rank1 import Rank1
    from soundingline.pipelines.rerank.rankllama import RankLLaMA
    from soundingline.pipelines.rerank.reranker import Reranker, RerankTop, Scorer
    from soundingline.pipelines.retrieve import BM25, RM3, QueryLikelihood, Retriever
    from soundingline.pipelines.stage import Collection, Stage

_HOMES = {
    **dict.fromkeys(("BM25", "RM3", "QueryLikelihood", "Retriever"), "retrieve"),
    **dict.fromkeys(("RerankTop", "Reranker", "Scorer"), "rerank.reranker"),
    **dict.fromkeys(("Interpolation", "OracleRetriever", "ReciprocalRankFusion"), "fusion"),
    **dict.fromkeys(("Collection", "Stage"), "stage"),
    **dict.fromkeys(("ImpactEngine", "Sparta", "Splade"), "learned.splade"),
    **dict.fromkeys(("MultiVectorEngine", "VectorEngine"), "learned.vectors"),
    "ColBERT": "learned.colbert",
    "ColBERTReranker": "rerank.colbert",
    "LearnedRetriever": "learned.retriever",
    "LexicalIndex": "lexical.index",
    "CrossEncoder": "rerank.cross_encoder",
    "CrossFittedBM25": "lexical.crossfit",
    "Dense": "learned.dense",
    "LinkExpansion": "links",
    "Listwise": "rerank.listwise",
    "MaxP": "compose",
    "MonoT5": "rerank.monot5",
    "PipelineBackend": "backend",
    "Q2Q": "q2q",
    "Rank1": "rerank.rank1",
    "RankLLaMA": "rerank.rankllama",
}

__all__ = [
    "BM25",
    "Q2Q",
    "RM3",
    "ColBERT",
    "ColBERTReranker",
    "Collection",
    "CrossEncoder",
    "CrossFittedBM25",
    "Dense",
    "ImpactEngine",
    "Interpolation",
    "LearnedRetriever",
    "LexicalIndex",
    "LinkExpansion",
    "Listwise",
    "MaxP",
    "MonoT5",
    "MultiVectorEngine",
    "OracleRetriever",
    "PipelineBackend",
    "QueryLikelihood",
    "Rank1",
    "RankLLaMA",
    "ReciprocalRankFusion",
    "RerankTop",
    "Reranker",
    "Retriever",
    "Scorer",
    "Sparta",
    "Splade",
    "Stage",
    "VectorEngine",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
