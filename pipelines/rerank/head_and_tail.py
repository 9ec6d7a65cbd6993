"""A ranking cut into the head that a re-ranker scores and the tail that stays below it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from toolkit.checks import check_integer

# trec_eval keeps scores in 32 bits: what must differ differs there too, and stays finite there.
_LARGEST = 1e30
_FEWEST_STEPS = 4.0


def split_head(frame: pd.DataFrame, depth: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The best `depth` rows of each query, and the rest.

    `frame` has `qid` and `rank` (from 0), or `score` where it has no `rank`. Both parts keep its
    columns and come query by query (queries as first seen), best first; equal ranks or scores keep
    the order in which they came. A query with fewer rows is all head. `InputError` for a depth
    below 1.
    """
    check_integer("depth", depth)
    queries = pd.factorize(frame["qid"])[0]
    # lexsort is stable, and puts what is not a number last.
    order = np.lexsort((_worst_last(frame), queries))
    queries = queries[order]
    in_head = np.arange(len(order)) - np.searchsorted(queries, queries) < depth
    return frame.iloc[order[in_head]], frame.iloc[order[~in_head]]


def rejoin(head: pd.DataFrame, tail: pd.DataFrame) -> pd.DataFrame:
    """One ranking of a head with new scores and its tail, as `split_head` gave them.

    Rows come query by query (queries as first seen in `head`): the head by its new score, equal
    scores in the retriever's order; below it the head's rows whose score is not a number, then the
    tail, both in the retriever's order. `rank` counts from 0 in each query. What lies below gets
    the head's worst score (0 where it has none) less one step a place, rows of equal retriever's
    scores in the tail sharing a place: finite, and distinct in 32 bits too, in which trec_eval
    reads scores. Scores beyond 1e30, infinite ones for instance, count as 1e30.
    """
    rows = pd.concat([head, tail], ignore_index=True) if len(tail) else head
    queries = pd.factorize(rows["qid"])[0]
    scores = rows["score"].to_numpy(dtype=float)
    part = np.where(np.isnan(scores), 1, 0)
    part[len(head) :] = 2
    order = np.lexsort((np.where(part == 0, -scores, 0.0), part, queries))
    queries, part = queries[order], part[order]
    first = np.searchsorted(queries, queries)
    ranking = rows.iloc[order].reset_index(drop=True)
    return ranking.assign(
        score=_falling(scores[order], part, first),
        rank=np.arange(len(order)) - first + pt.model.FIRST_RANK,
    )


def _worst_last(frame: pd.DataFrame) -> NDArray[np.float64]:
    if "rank" in frame.columns:
        ranks: NDArray[np.float64] = frame["rank"].to_numpy(dtype=float)
        return ranks
    return -frame["score"].to_numpy(dtype=float)


def _falling(
    scores: NDArray[np.float64], part: NDArray[np.intp], first: NDArray[np.intp]
) -> NDArray[np.float64]:
    """The scores of rows in their final order. `part` is 0 where a row has a new score; `first` is
    where each row's query begins."""
    bounded = np.clip(scores, -_LARGEST, _LARGEST)
    below = part > 0
    if not below.any():
        return bounded
    moves = below.copy()
    moves[1:] &= (part[1:] != part[:-1]) | (first[1:] != first[:-1]) | (scores[1:] != scores[:-1])
    steps_below = np.cumsum(moves)
    steps_below -= steps_below[first] - moves[first]
    scored = np.bincount(first[~below], minlength=len(first))[first]
    worst = np.where(scored > 0, bounded[first + np.maximum(scored, 1) - 1], 0.0)
    step = np.maximum(1.0, _FEWEST_STEPS * np.spacing(np.abs(worst).astype(np.float32)))
    return np.where(below, worst - step * steps_below, bounded)
