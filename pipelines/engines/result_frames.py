"""Frames of queries in, frames of rankings out, for the engines that are not our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt

from toolkit.errors import InputError

_MADE = ("docno", "score", "rank")


class RankedList(NamedTuple):
    """Unit ids, best first, and their scores."""

    docnos: Sequence[str]
    scores: Sequence[float]


def queries_of(inp: pd.DataFrame) -> list[str] | list[Mapping[str, float]]:
    """The queries of a frame: `query_toks` (index term -> weight) where it is there, else `query`.

    `InputError` for a `query_toks` that is no dict or has a weight below 0.
    """
    with pt.validate.any(inp) as valid:
        valid.query_frame(extra_columns=["query_toks"])
        valid.query_frame(extra_columns=["query"])
    if "query_toks" not in inp.columns:
        return list(inp["query"])
    return [_checked(weights) for weights in inp["query_toks"]]


def _checked(weights: Any) -> Mapping[str, float]:
    if not isinstance(weights, Mapping):
        raise InputError(f"query_toks holds {weights!r}", valid="a dict of index terms to weights")
    for term, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise InputError(f"weight {weight} of term '{term}'", valid="0 or more, finite")
    return {term: float(weight) for term, weight in weights.items() if weight > 0}


def ranked(inp: pd.DataFrame, rankings: Sequence[RankedList]) -> pd.DataFrame:
    """Every column of `inp` and `docno`, `score`, `rank` (from 0), one row a hit."""
    counts = [len(ranking.docnos) for ranking in rankings]
    kept = [column for column in inp.columns if column not in _MADE]
    out = inp[kept].take(np.repeat(np.arange(len(inp)), counts)).reset_index(drop=True)
    out["docno"] = pd.Series([d for r in rankings for d in r.docnos], dtype=object)
    out["score"] = np.array([score for r in rankings for score in r.scores], dtype=np.float64)
    out["rank"] = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)]).astype(np.int64)
    return out
