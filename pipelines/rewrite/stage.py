"""The rewriter as a stage of a pipeline: another query in, and the one before it beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pandas as pd
import pyterrier as pt

from pipelines.search_notes import note
from pipelines.stage import Stage
from toolkit.errors import InputError

APPLY_TO = ("retriever", "reranker", "both")


class RewriteRequest(NamedTuple):
    """A query to rewrite: what its agent thought last, and the question on whose account it is."""

    query: str
    reasoning: str = ""
    qid: str = ""


class RewrittenQuery(NamedTuple):
    """The new query, and what happened on the way, for the search's record (JSON values)."""

    query: str
    events: Mapping[str, Any] = {}


class QueryRewriter(Protocol):
    """Gives other words for queries. Thread-safe. `fingerprint` changes with whatever changes the
    words; `counts` tells what was out of the ordinary."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def counts(self) -> Mapping[str, int]: ...

    def rewrite(self, requests: Sequence[RewriteRequest]) -> list[RewrittenQuery]: ...


def check_apply_to(apply_to: str) -> None:
    """`InputError` for stages that a rewritten query cannot be for."""
    if apply_to not in APPLY_TO:
        raise InputError(f"apply_to is {apply_to!r}", valid=", ".join(APPLY_TO))


class Rewriter(Stage):
    """Puts `writer`'s words in the place of the query.

    In: `qid`, `query`, and `reasoning` where there is any. Out: `query` is the new one; the one
    before it is `query_0`, one before that `query_1`, and so on, as everywhere in PyTerrier. Other
    columns stay. A search's record has the note `rewrite` (`pipelines.search_notes`): `raw`,
    `rewritten`, `apply_to`, and what happened.

    `apply_to` says whose query it is for: `retriever`, `reranker` or `both`; `compose` heeds it.
    """

    def __init__(self, writer: QueryRewriter, *, apply_to: str = "both") -> None:
        check_apply_to(apply_to)
        self.writer = writer
        self.apply_to = apply_to

    @property
    def fingerprint(self) -> str:
        """The writer's."""
        return self.writer.fingerprint

    @property
    def counts(self) -> Mapping[str, float]:
        """The writer's."""
        return self.writer.counts

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["qid", "query"])
        requests = _requests(inp)
        different = list(dict.fromkeys(requests))
        rewritten = dict(zip(different, self.writer.rewrite(different), strict=True))
        for request, result in rewritten.items():
            pair = {"raw": request.query, "rewritten": result.query, "apply_to": self.apply_to}
            note("rewrite", {**pair, **result.events})
        out = pt.model.push_queries(inp)
        queries = [rewritten[request].query for request in requests]
        out["query"] = pd.Series(queries, index=out.index, dtype=object)
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.writer!r}, apply_to={self.apply_to!r})"

    def _identity(self) -> Any:
        return self.fingerprint, self.apply_to


def _requests(inp: pd.DataFrame) -> list[RewriteRequest]:
    queries = inp["query"].tolist()
    for query in queries:
        if not isinstance(query, str):
            raise InputError(f"a query to rewrite is {query!r}", valid="text")
    thoughts = inp["reasoning"].tolist() if "reasoning" in inp.columns else [""] * len(inp)
    reasoning = [thought if isinstance(thought, str) else "" for thought in thoughts]
    return list(map(RewriteRequest, queries, reasoning, map(str, inp["qid"].tolist())))
