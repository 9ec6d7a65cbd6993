"""A PyTerrier pipeline as the backend of a search tool, a re-ranker as the order of a list."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyterrier as pt

from soundingline.pipelines.compose import query_columns
from soundingline.pipelines.stage import best_first, search_notes
from soundingline.toolkit.data import Ranking, SearchRequest, SearchResult
from soundingline.toolkit.errors import InputError

# No benchmark has a question of this id, whose judgements or fold a stage would go by.
_NO_QUESTION = "no-question"


class PipelineBackend:
    """Runs a pipeline on one query at a time (`data.SearchBackend`).

    The pipeline receives one row with `qid`, `query` (the agent's words without any query
    language) and `reasoning` (empty if there is none), and must return `docno` and `score`. The
    hits are its rows by `rank`, or by falling score if it returns no ranks; a docno `d1%p3` is a
    passage of the document `d1`.

    The notes of a result are those of the stages (`soundingline.pipelines.stage.add_note`), and
    `query` with the older queries `query_0`, `query_1`, ... if one of them is not the agent's.

    Args:
        pipeline: A transformer of queries into rankings.

    `InputError` if the pipeline does not accept queries or does not return ranked documents; other
    errors of the pipeline are raised unchanged.

    Example:
        >>> from soundingline.toolkit.data import SearchRequest
        >>> backend = PipelineBackend(index.bm25() >> MaxP())
        >>> [hit.docid for hit in backend.search(SearchRequest("old river")).hits]
        ['d1', 'd2']
    """

    def __init__(self, pipeline: pt.Transformer) -> None:
        if not isinstance(pipeline, pt.Transformer):
            raise InputError(
                f"the pipeline is of type {type(pipeline).__name__}",
                valid="a PyTerrier transformer",
                do="wrap a function with pt.apply",
            )
        self.pipeline = pipeline
        self.qid = ""  # of the question whose searches these are

    def for_question(self, qid: str) -> PipelineBackend:
        """The same pipeline for one question: its rows have this `qid`, so that stages can record
        what they spend on it."""
        backend = copy.copy(self)
        backend.qid = qid
        return backend

    def search(self, request: SearchRequest) -> SearchResult:
        """At most `request.depth` hits, ranks from 1."""
        qid = self.qid or _NO_QUESTION
        row = {"qid": [qid], "query": [request.query], "reasoning": [request.reasoning]}
        with search_notes() as notes:
            try:
                ranking = self.pipeline.transform(pd.DataFrame(row, dtype=object))
            except pt.validate.InputValidationError as error:
                raise InputError(
                    f"the pipeline {self.pipeline!r} does not work on queries alone: {error}",
                    do="begin it with a retriever, and give each stage the columns it needs",
                ) from error
        missing = [column for column in ("qid", "docno", "score") if column not in ranking.columns]
        if missing:
            raise InputError(
                f"the pipeline {self.pipeline!r} returns no {' and no '.join(missing)}",
                valid="rows with qid, docno and score",
                do="end it with a retriever or a re-ranker",
            )
        scores = ranking["score"].to_numpy(dtype=float)
        order = best_first(ranking)[0][: request.depth]
        docnos = ranking["docno"].to_numpy(dtype=object)[order].tolist()
        hits = Ranking(docnos, scores[order].tolist())
        texts = {name: ranking[name].iloc[0] for name in query_columns(ranking) if len(ranking)}
        texts = {name: query for name, query in texts.items() if isinstance(query, str)}
        if not set(texts.values()) - {request.query}:
            texts = {}
        return SearchResult(hits, {**texts, **notes})

    def __repr__(self) -> str:
        return f"PipelineBackend({self.pipeline!r})"


class ListOrder:
    """Orders documents by a bound re-ranker, such as `Listwise`. Thread-safe if the re-ranker is.

    Args:
        stage: The re-ranker. It reads the column `text`.
    """

    def __init__(self, stage: pt.Transformer) -> None:
        self.stage = stage

    def __call__(self, qid: str, question: str, documents: Sequence[tuple[str, str]]) -> list[str]:
        """The docids, each once, best first. `documents` are (docid, text); equal scores keep
        their order."""
        rows = list(dict(documents).items())
        frame = pd.DataFrame(
            {
                "qid": [qid or "0"] * len(rows),
                "query": [question] * len(rows),
                "docno": [docid for docid, _ in rows],
                "text": [text for _, text in rows],
                "score": np.arange(len(rows), 0, -1.0),
                "rank": range(len(rows)),
            }
        )
        ranked = self.stage.transform(frame).sort_values("rank", kind="stable")
        return list(map(str, ranked["docno"]))
