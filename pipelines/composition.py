"""The order of the stages: rewriter >> retriever >> re-ranker >> Max-P."""

from __future__ import annotations

import pyterrier as pt

from pipelines.aggregation import MaxP


def compose(
    retriever: pt.Transformer,
    *,
    rewriter: pt.Transformer | None = None,
    reranker: pt.Transformer | None = None,
    aggregate: bool = False,
) -> pt.Transformer:
    """One pipeline of the stages that are given; `aggregate` ends it with `MaxP`, where the unit
    asks for documents from passages. Re-ranking comes before aggregation: it scores passages."""
    pipeline = retriever if rewriter is None else rewriter >> retriever
    if reranker is not None:
        pipeline = pipeline >> reranker
    return pipeline >> MaxP() if aggregate else pipeline
