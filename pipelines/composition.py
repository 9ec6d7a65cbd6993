"""The order of the stages: rewriter >> retriever >> re-ranker >> Max-P."""

from __future__ import annotations

import pyterrier as pt

from pipelines.aggregation import MaxP
from pipelines.rewrite.with_query import RAW, REWRITTEN, WithQuery
from toolkit.errors import InputError


def compose(
    retriever: pt.Transformer,
    *,
    rewriter: pt.Transformer | None = None,
    reranker: pt.Transformer | None = None,
    aggregate: bool = False,
) -> pt.Transformer:
    """One pipeline of the stages that are given; `aggregate` ends it with `MaxP`, where the unit
    asks for documents from passages. Re-ranking comes before aggregation: it scores passages.

    A rewriter's `apply_to` (`both` where it has none) says which stages see its query: `retriever`,
    `reranker` or `both`; the others see the query as it came. `InputError` where it is for a
    re-ranker that is not there.
    """
    if rewriter is not None:
        apply_to = getattr(rewriter, "apply_to", "both")
        if apply_to == "reranker" and reranker is None:
            raise InputError(
                "the rewriter is for the re-ranker, and there is none",
                do="choose a re-ranker, or set rewriter.apply_to=retriever",
            )
        retriever = rewriter >> WithQuery(retriever, RAW if apply_to == "reranker" else REWRITTEN)
        if reranker is not None:
            reranker = WithQuery(reranker, RAW if apply_to == "retriever" else REWRITTEN)
    pipeline = retriever if reranker is None else retriever >> reranker
    return pipeline >> MaxP() if aggregate else pipeline
