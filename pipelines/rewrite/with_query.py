"""Which stage sees which query, where a rewriter stands before them."""

from __future__ import annotations

import re

import pandas as pd
import pyterrier as pt

from pipelines.arguments import ByArguments
from toolkit.errors import InputError

RAW, REWRITTEN = "raw", "rewritten"
_QUERY = re.compile(r"query(_\d+)?")


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
