"""Two retrievers as one: reciprocal rank fusion and interpolation of scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyterrier as pt

from soundingline.pipelines.engines.engine import NOTHING, RankedList
from soundingline.pipelines.retrieve import ranked
from soundingline.pipelines.stage import Stage
from soundingline.toolkit.errors import InputError, check_int, check_number


class Fusion(Stage):
    """Ranks what either of two retrievers ranks. A subclass implements `fused`.

    The input has `qid`, `query` and the columns that the retrievers need. The output has every
    column of the input (and none that a retriever adds), and `docno`, `score`, `rank` (from 0): at
    most `depth` rows a query, equal scores by docno. A retriever may rewrite the query for itself.
    `InputError` for arguments out of range.
    """

    schematic: Any = {**Stage.schematic, "inner_pipelines_mode": "combine"}  # noqa: RUF012

    def __init__(self, first: pt.Transformer, second: pt.Transformer, depth: int) -> None:
        check_int("depth", depth)
        self.first, self.second, self.depth = first, second, depth

    @abstractmethod
    def fused(self, first: RankedList, second: RankedList) -> Mapping[str, float]:
        """The score of each docno of a query, by its two rankings, one of which may be empty."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        first, second = (
            rankings_by_query(stage.transform(inp)) for stage in (self.first, self.second)
        )
        rankings = []
        for qid in inp["qid"].astype(str):
            scores = self.fused(first.get(qid, NOTHING), second.get(qid, NOTHING))
            best = sorted(scores, key=lambda docno: (-scores[docno], docno))[: self.depth]
            rankings.append(RankedList(best, [scores[docno] for docno in best]))
        return ranked(inp, rankings)

    def fuse_rank_cutoff(self, k: int) -> Fusion | None:
        """`fusion % k` as one stage; PyTerrier's optimiser calls it."""
        if k >= self.depth:
            return None
        shorter = type(self)(**{**self._arguments(), "depth": k})
        shorter.collection = self.collection
        return shorter


class ReciprocalRankFusion(Fusion):
    """Scores a document by the sum over both rankings of 1 / (k + rank), with ranks from 1
    (Cormack, Clarke and Büttcher, SIGIR 2009). Columns and errors as in `Fusion`.

    Args:
        first, second: Retrievers, or any pipelines that rank.
        k: 0 or more. The default is that of the paper.
        depth: Rows of a query, at least 1.

    Example:
        >>> both = ReciprocalRankFusion(index.bm25(), index.ql())
        >>> both.search("old river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    def __init__(
        self, first: pt.Transformer, second: pt.Transformer, k: int = 60, depth: int = 1000
    ) -> None:
        super().__init__(first, second, depth)
        check_int("k", k, ge=0)
        self.k = k

    def fused(self, first: RankedList, second: RankedList) -> Mapping[str, float]:
        scores: dict[str, float] = {}
        for ranking in (first, second):
            for rank, docno in enumerate(ranking.docnos, start=1):
                scores[docno] = scores.get(docno, 0.0) + 1 / (self.k + rank)
        return scores


class Interpolation(Fusion):
    """Scores a document by `weight` x its first score + (1 - `weight`) x its second score. Columns
    and errors as in `Fusion`.

    Args:
        first, second: Retrievers, or any pipelines that rank.
        weight: 0 to 1.
        normalise: `minmax` scales the scores of each query and ranking to 0..1 (to 1 if all are
            equal), and a document that a ranking lacks has 0 there. None takes the scores as they
            are, and a document that a ranking lacks has its lowest score there.
        depth: Rows of a query, at least 1.

    Example:
        >>> both = Interpolation(index.bm25(), index.ql(), weight=0.3)
        >>> both.search("old river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    def __init__(
        self,
        first: pt.Transformer,
        second: pt.Transformer,
        weight: float = 0.5,
        normalise: str | None = "minmax",
        depth: int = 1000,
    ) -> None:
        super().__init__(first, second, depth)
        check_number("weight", weight, le=1)
        if normalise not in (None, "minmax"):
            raise InputError(f"normalise={normalise!r}", valid="null, minmax")
        self.weight, self.normalise = weight, normalise

    def fused(self, first: RankedList, second: RankedList) -> Mapping[str, float]:
        (scores, missing), (others, others_missing) = map(self._scores, (first, second))
        return {
            docno: self.weight * scores.get(docno, missing)
            + (1 - self.weight) * others.get(docno, others_missing)
            for docno in {**scores, **others}
        }

    def _scores(self, ranking: RankedList) -> tuple[dict[str, float], float]:
        """The score of each docno, and that of a docno which the ranking lacks."""
        scores = list(ranking.scores)
        low, high = min(scores, default=0.0), max(scores, default=0.0)
        if self.normalise:
            scores = [(score - low) / (high - low) if high > low else 1.0 for score in scores]
        return dict(zip(ranking.docnos, scores, strict=True)), 0.0 if self.normalise else low


def rankings_by_query(frame: pd.DataFrame) -> dict[str, RankedList]:
    """The rankings of a frame by qid, best first: by `rank`, or by `score` if it has no ranks."""
    pt.validate.result_frame(frame, extra_columns=["score"])
    return {
        str(qid): RankedList(hits["docno"].astype(str).tolist(), hits["score"].tolist())
        for qid, hits in best_first(frame).groupby("qid", sort=False)
    }


def best_first(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows by `rank`, or by falling `score` if there are no ranks."""
    by = "rank" if "rank" in frame.columns else "score"
    return frame.sort_values(by, ascending=by == "rank", kind="stable")
