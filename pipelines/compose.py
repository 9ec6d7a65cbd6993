"""The order of the stages: rewriter >> enrichment >> retriever >> re-ranker >> Max-P."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from soundingline.pipelines.stage import ByArguments, as_pyterrier, best_first, places_in
from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.runs.run_folder import of_question

RAW, REWRITTEN = "raw", "rewritten"
_QUERY = re.compile(r"query(_\d+)?")


def compose(
    retriever: pt.Transformer,
    *,
    rewriter: pt.Transformer | None = None,
    enrichment: Any = None,
    reranker: pt.Transformer | None = None,
    removal: pt.Transformer | None = None,
    aggregate: bool = False,
) -> pt.Transformer:
    """One pipeline of stages. `InputError` for a rewriter of a re-ranker that is missing, and for
    an enrichment that the retriever cannot search with.

    Args:
        retriever: Ranks units.
        rewriter: Replaces the query. Its `apply_to` (by default `both`) says which stages see the
            new query: `retriever`, `reranker` or `both`; the others see the original one.
        enrichment: An `Enrichment`, which adds a weighted query for the retriever, or documents
            with phrases.
        reranker: Re-ranks units, before they are aggregated.
        removal: Follows the retriever, such as `WithoutDocuments`.
        aggregate: Whether `MaxP` turns the ranking of passages into one of documents.
    """
    if enrichment is not None:
        retriever = enrichment.before(retriever)
    if removal is not None:
        retriever = retriever >> removal
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
    """Runs `stage` with the `raw` query (`query_0`) or the `rewritten` one (`query`).

    The output has the query columns of the input, whatever the stage does to them: some stages
    rewrite queries themselves, others drop columns that they do not know.
    """

    def __init__(self, stage: pt.Transformer, query: str) -> None:
        self.stage, self.query = stage, query

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        if not {"qid", "query", "query_0"} <= set(inp.columns):
            raise InputError(
                f"{self!r} receives no query_0",
                valid="a frame of queries that a rewriter has rewritten",
                do="let the rewriter before it put the old query into query_0, as PyTerrier does",
            )
        inp = as_pyterrier(inp)
        columns = query_columns(inp)
        out = self.stage.transform(inp.assign(query=inp["query_0"]) if self.query == RAW else inp)
        queries = inp[["qid", *columns]].drop_duplicates("qid").set_index("qid")
        rest = out.drop(columns=query_columns(out))
        return rest.assign(**{name: rest["qid"].map(queries[name]) for name in columns})


class MaxP(ByArguments, pt.Transformer):
    """Ranks documents by their best passage (Max-P; Dai and Callan, SIGIR 2019).

    The input has the columns `qid`, `docno` and `score`; the output has all columns of the input
    but `docid`, the number of a passage in a Terrier index, and it has `passage`. A docno `d1%p3`
    belongs to the document `d1`; any other docno is a document. Each document of a query has the
    row of its best passage, with the document as `docno`, the passage's docno as `passage`, and a
    new `rank`. Of equal scores the first row counts. Queries are in the order of their first rows,
    documents best first.

    Args:
        depth: Documents of a query, at least 1; None for all.

    Raises:
        InputError: For another depth.

    Example:
        >>> ranking = (index.bm25() >> MaxP()).search("river mill built")
        >>> ranking[["docno", "passage"]].values.tolist()
        [['d1', 'd1%p1'], ['d2', 'd2%p0']]
    """

    def __init__(self, depth: int | None = None) -> None:
        if depth is not None:
            check_int("depth of MaxP", depth, do="set it to null for all documents")
        self.depth = depth

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        inp = as_pyterrier(inp).drop(columns="docid", errors="ignore")
        documents = np.array([parent(docno) for docno in inp["docno"].tolist()], dtype=object)
        order, queries = best_first(inp, by_score=True)
        codes, names = pd.factorize(documents[order])
        first = ~pd.Series(queries * len(names) + codes).duplicated().to_numpy()
        order, ranks = order[first], places_in(queries[first])
        if self.depth is not None:
            order, ranks = order[ranks < self.depth], ranks[ranks < self.depth]
        rows = inp.iloc[order].reset_index(drop=True)
        return rows.assign(
            passage=rows["docno"],
            docno=pd.Series(documents[order], dtype=inp["docno"].dtype),
            rank=ranks + pt.model.FIRST_RANK,
        )


class WithoutDocuments(ByArguments, pt.Transformer):
    """Removes documents, or all passages of them, from the rankings of their questions.

    The input has the columns `qid` and `docno`; the output has all columns of the input, and ranks
    without gaps if the input has ranks.

    Args:
        removed: Docids by qid. The repeats of a question have its documents.

    Example:
        >>> ranking = (index.bm25() >> WithoutDocuments({"1": ["d1"]})).search("river mill built")
        >>> ranking["docno"].tolist()
        ['d2%p0']
    """

    def __init__(self, removed: Mapping[str, Collection[str]]) -> None:
        self.removed = removed

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, context=self)
        removed = {qid: of_question(self.removed, qid) or () for qid in inp["qid"].unique()}
        pairs = zip(inp["qid"], inp["docno"], strict=True)
        kept = [parent(docno) not in removed[qid] for qid, docno in pairs]
        rows = inp[np.array(kept, dtype=bool)].reset_index(drop=True)
        if "rank" not in rows:
            return rows
        ranks = rows.groupby("qid")["rank"].rank(method="first").astype(int)
        return rows.assign(rank=ranks - 1 + pt.model.FIRST_RANK)


def query_columns(frame: pd.DataFrame) -> list[str]:
    """The columns of the query and of its older forms: `query`, `query_0`, `query_1`, ..."""
    return [name for name in frame.columns if _QUERY.fullmatch(str(name))]
