"""Any PyTerrier pipeline as the backend of a search tool, any re-ranker as the order of a list."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from soundingline.pipelines.search_notes import collecting
from soundingline.toolkit.data import Ranking, SearchRequest, SearchResult
from soundingline.toolkit.errors import InputError

_NO_QUESTION = "1"
_QUERY = re.compile(r"query(_\d+)?")


class PipelineBackend:
    """Asks `pipeline` one query at a time (`data.SearchBackend`).

    The pipeline receives one row with `qid`, `query` (the agent's words as they are; no query
    language is applied here) and `reasoning` (empty where there is none), and must return `docno`
    and `score`. Hits are its rows by `rank`, or by falling score where it gives no ranks; a docno
    `d1%p3` is a passage of document `d1`.

    What the stages note of a search (`soundingline.pipelines.search_notes`) goes with its hits, and
    so do `query` and the older queries `query_0`, `query_1`, ... of the ranking where one is not
    the agent's.

    - `unit`: what the pipeline's docnos name, e.g. `document` or `passage`; kept for displays.
    - `exclusive`: one search at a time, for stages that do not bear threads. False by default.

    `InputError` where the pipeline does not take queries or does not give ranked documents; what
    else it raises passes through.
    """

    def __init__(
        self, pipeline: pt.Transformer, unit: str = "document", *, exclusive: bool = False
    ) -> None:
        if not isinstance(pipeline, pt.Transformer):
            raise InputError(
                f"the pipeline is of type {type(pipeline).__name__}",
                valid="a PyTerrier transformer",
                do="wrap a function with pt.apply",
            )
        self.pipeline = pipeline
        self.unit = unit
        self._qid = ""
        self._turn: AbstractContextManager[object] = Lock() if exclusive else nullcontext()

    @property
    def qid(self) -> str:
        """The question that asks; empty where none is named."""
        return self._qid

    def asked_by(self, qid: str) -> PipelineBackend:
        """The same pipeline for one question: its rows carry this `qid`, so that stages can account
        for what they spend."""
        backend = copy.copy(self)
        backend._qid = qid
        return backend

    def search(self, request: SearchRequest) -> SearchResult:
        """At most `request.depth` hits, ranks from 1."""
        qid = self._qid or _NO_QUESTION
        row = {"qid": [qid], "query": [request.query], "reasoning": [request.reasoning]}
        with collecting(self._qid) as notes:
            # Objects: a model may write half a surrogate pair, which Arrow's strings do not hold.
            ranking = self._ranking(pd.DataFrame(row, dtype=object))
        docnos, scores = _ordered(ranking, request.depth)
        return SearchResult(Ranking(docnos, scores), {**_queries(ranking, request.query), **notes})

    def _ranking(self, queries: pd.DataFrame) -> pd.DataFrame:
        try:
            with self._turn:
                ranking = self.pipeline.transform(queries)
        except pt.validate.InputValidationError as error:
            raise InputError(
                f"the pipeline {self.pipeline!r} does not work on queries alone: {error}",
                do="begin it with a retriever, and give each stage the columns it needs",
            ) from error
        missing = [column for column in ("docno", "score") if column not in ranking.columns]
        if missing:
            raise InputError(
                f"the pipeline {self.pipeline!r} returns no {' and no '.join(missing)}",
                valid="rows with docno and score",
                do="end it with a retriever or a re-ranker",
            )
        return ranking

    def __repr__(self) -> str:
        return f"PipelineBackend({self.pipeline!r}, unit={self.unit!r})"


class ListOrder:
    """Puts documents in the order of `stage`, a bound re-ranker such as `Listwise`, which reads the
    texts that it is given. Thread-safe where the stage is."""

    def __init__(self, stage: pt.Transformer) -> None:
        self.stage = stage

    def __call__(self, qid: str, question: str, documents: Sequence[tuple[str, str]]) -> list[str]:
        """The docids, each once, the best first; `documents` are (docid, text), and their order is
        that of equal scores."""
        rows = list(dict(documents).items())
        frame = pd.DataFrame(
            {
                "qid": [qid or "0"] * len(rows),
                "query": [question] * len(rows),
                "docno": [docid for docid, _ in rows],
                "text": [text for _, text in rows],
                "score": [float(len(rows) - number) for number in range(len(rows))],
                "rank": list(range(len(rows))),
            }
        )
        ranked = self.stage.transform(frame).sort_values("rank", kind="stable")
        return list(map(str, ranked["docno"]))


def _queries(ranking: pd.DataFrame, original: str) -> dict[str, Any]:
    """The queries of a ranking by column; empty where all are the one that was asked."""
    columns = [name for name in ranking.columns if _QUERY.fullmatch(str(name))]
    queries = {name: ranking[name].iloc[0] for name in columns if len(ranking)}
    texts = {name: query for name, query in queries.items() if isinstance(query, str)}
    return texts if set(texts.values()) - {original} else {}


def _ordered(ranking: pd.DataFrame, depth: int) -> tuple[list[str], list[float]]:
    """The docnos and scores of the best `depth` rows, best first."""
    docnos = ranking["docno"].to_numpy(dtype=object)
    scores = ranking["score"].to_numpy(dtype=float)
    keys = ranking["rank"].to_numpy() if "rank" in ranking.columns else -scores
    order = np.argsort(keys, kind="stable")[:depth]
    return docnos[order].tolist(), scores[order].tolist()
