"""The order of the stages: rewriter >> enrichment >> retriever >> re-ranker >> Max-P."""

from __future__ import annotations

import pyterrier as pt

from pipelines.aggregation import MaxP
from pipelines.rewrite.with_query import RAW, REWRITTEN, WithQuery
from toolkit.errors import InputError


def compose(
    retriever: pt.Transformer,
    *,
    rewriter: pt.Transformer | None = None,
    enrichment: pt.Transformer | None = None,
    reranker: pt.Transformer | None = None,
    aggregate: bool = False,
) -> pt.Transformer:
    """One pipeline of the stages that are given; `aggregate` ends it with `MaxP`, where the unit
    asks for documents from passages. Re-ranking comes before aggregation: it scores passages.

    A rewriter's `apply_to` (`both` where it has none) says which stages see its query: `retriever`,
    `reranker` or `both`; the others see the query as it came. `InputError` where it is for a
    re-ranker that is not there.

    An enrichment's weighted query is the retriever's alone. `InputError` where it has one and the
    retriever does not search by weights of index terms.
    """
    if enrichment is not None:
        if getattr(enrichment, "query", None) and not getattr(retriever, "takes_weights", True):
            raise InputError(
                f"{type(retriever).__name__} cannot search with an enriched query",
                valid="a lexical retriever, such as bm25_default",
                do="choose one, or set enrichment.query=null",
            )
        retriever = enrichment >> retriever
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
