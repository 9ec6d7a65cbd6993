"""The order of the stages: rewriter >> enrichment >> retriever >> re-ranker >> Max-P.

Where a rewriter stands before them, `WithQuery` gives each stage the query that is meant for it.
"""

from __future__ import annotations

import re

import pandas as pd
import pyterrier as pt

from soundingline.pipelines.aggregation import MaxP
from soundingline.pipelines.arguments import ByArguments
from soundingline.toolkit.errors import InputError

RAW, REWRITTEN = "raw", "rewritten"
_QUERY = re.compile(r"query(_\d+)?")


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
    retriever does not search by weights of index terms, or where it enriches documents and the
    retriever does not search them.
    """
    if enrichment is not None:
        if getattr(enrichment, "query", None) and not getattr(retriever, "takes_weights", True):
            raise InputError(
                f"{type(retriever).__name__} cannot search with an enriched query",
                valid="a lexical retriever, such as bm25_default",
                do="choose one, or set enrichment.query=null",
            )
        if getattr(enrichment, "corpus", None) and not getattr(
            retriever, "searches_enriched", True
        ):
            raise InputError(
                f"{type(retriever).__name__} cannot search enriched documents",
                valid="a retriever by BM25, such as bm25_default",
                do="choose one, or set enrichment.corpus=null",
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


class WithQuery(ByArguments, pt.Transformer):
    """`stage`, asked with the `raw` query (`query_0`) or the `rewritten` one (`query`).

    What comes out has `query` and `query_0` as they came in, whatever the stage makes of them:
    some rewrite queries themselves, some drop columns that they do not know.
    """

    def __init__(self, stage: pt.Transformer, query: str) -> None:
        if query not in (RAW, REWRITTEN):
            raise InputError(f"query is {query!r}", valid=f"{RAW}, {REWRITTEN}")
        self.stage = stage
        self.query = query

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        if not {"qid", "query", "query_0"} <= set(inp.columns):
            raise InputError(
                f"{self!r} is given no query_0",
                valid="a frame of queries that a rewriter has rewritten",
                do="let the rewriter before it keep the query in query_0, as PyTerrier does",
            )
        columns = [name for name in inp.columns if _QUERY.fullmatch(str(name))]
        queries_in = inp.assign(query=inp["query_0"]) if self.query == RAW else inp
        out = self.stage.transform(queries_in)
        own = [name for name in out.columns if _QUERY.fullmatch(str(name))]
        queries = inp[["qid", *columns]].drop_duplicates("qid").set_index("qid")
        rest = out.drop(columns=own)
        return rest.assign(**{name: rest["qid"].map(queries[name]) for name in columns})
