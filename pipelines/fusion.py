"""Two retrievers as one: reciprocal rank fusion and interpolation of scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
import pyterrier as pt

from soundingline.pipelines.engines.engine import NOTHING, Engine, RankedList
from soundingline.pipelines.retrieve import ranked
from soundingline.pipelines.stage import Bound, Collection, Stage, bound
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.optional import check_optional, import_optional

NORMALISATIONS = (None, "minmax")


class Fusion(Stage):
    """Asks two retrievers and ranks what either finds.

    In: `qid` and `query`, and whatever the retrievers take. Out: every column of the input (not
    those that the retrievers add), and `docno`, `score`, `rank` (from 0); `depth` rows a query at
    most, equal scores by docno. A retriever may rewrite the query for itself.
    """

    schematic: ClassVar[dict[str, str]] = {"inner_pipelines_mode": "combine"}

    def __init__(self, first: pt.Transformer, second: pt.Transformer, depth: int) -> None:
        check_int("depth", depth)
        self.first, self.second, self.depth = first, second, depth

    def bind(self: Bound, collection: Collection) -> Bound:
        """See `Stage`; both retrievers are bound."""
        bound_copy = super().bind(collection)
        bound_copy.first = bound(self.first, collection)  # type: ignore[attr-defined]
        bound_copy.second = bound(self.second, collection)  # type: ignore[attr-defined]
        return bound_copy

    def check(self, engine: Engine) -> None:
        """See `Stage`; both retrievers are checked."""
        for retriever in (self.first, self.second):
            if isinstance(retriever, Stage):
                retriever.check(engine)

    @property
    def takes_weights(self) -> bool:
        """Whether both retrievers search by weights of index terms; see `Retriever`."""
        return all(getattr(part, "takes_weights", True) for part in (self.first, self.second))

    @property
    def searches_enriched(self) -> bool:
        """Whether either retriever does; see `Retriever`."""
        return any(getattr(part, "searches_enriched", True) for part in (self.first, self.second))

    @abstractmethod
    def fused(self, first: pd.DataFrame, second: pd.DataFrame) -> Mapping[str, RankedList]:
        """By qid, of two rankings with `qid, query, docno, score`, best first, not both empty."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        first, second = (ordered_rows(stage.transform(inp)) for stage in (self.first, self.second))
        # The library fails on a query that nothing was found for by anyone.
        fused = self.fused(first, second) if len(first) or len(second) else {}
        return ranked(inp, [fused.get(str(qid), NOTHING) for qid in inp["qid"]])

    def fuse_rank_cutoff(self, k: int) -> Fusion | None:
        """`fusion % k` as one stage; PyTerrier's optimiser asks for it."""
        if k >= self.depth:
            return None
        shorter = type(self)(**{**self._arguments(), "depth": k})
        shorter.collection = self.collection
        return shorter


class ReciprocalRankFusion(Fusion):
    """The sum over the rankings of 1 / (k + rank), ranks from 1 (Cormack, Clarke and Büttcher,
    SIGIR 2009; `k` 60); nothing from a ranking that lacks the document. By pyterrier-alpha.
    Columns as in `Fusion`; `InputError` for settings out of range.
    """

    def __init__(
        self, first: pt.Transformer, second: pt.Transformer, k: int = 60, depth: int = 1000
    ) -> None:
        super().__init__(first, second, depth)
        check_int("k", k, ge=0)
        check_optional("pyterrier_alpha")
        self.k = k

    def fused(self, first: pd.DataFrame, second: pd.DataFrame) -> Mapping[str, RankedList]:
        """See `Fusion`."""
        rr_fusion = import_optional("pyterrier_alpha").fusion.rr_fusion
        # The library ranks by score, from 0.
        by_rank = [
            ranking.assign(score=-np.arange(len(ranking), dtype=float))
            for ranking in (first, second)
        ]
        fused = rr_fusion(*by_rank, k=self.k + 1, num_results=self.depth)
        return {qid: RankedList(docnos, scores) for qid, docnos, scores in lists_by_query(fused)}


class Interpolation(Fusion):
    """`weight` x the first score + (1 - `weight`) x the second.

    `normalise`: `minmax` brings each query's scores of each ranking to 0..1 first (all of them to 1
    where they are equal, so that what was found stands above what was not); None takes them as they
    are. A document that a ranking lacks has 0 there if it is normalised or empty, else its lowest
    score. Columns as in `Fusion`; `InputError` for settings out of range.
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
        if normalise not in NORMALISATIONS:
            raise InputError(f"normalise={normalise!r}", valid="null, minmax")
        self.weight, self.normalise = weight, normalise

    def fused(self, first: pd.DataFrame, second: pd.DataFrame) -> Mapping[str, RankedList]:
        """See `Fusion`."""
        scores, other_scores = self._scores(first), self._scores(second)
        return {
            qid: self._interpolated(scores.get(qid, {}), other_scores.get(qid, {}))
            for qid in dict.fromkeys([*scores, *other_scores])
        }

    def _scores(self, ranking: pd.DataFrame) -> dict[str, dict[str, float]]:
        """By qid and docno, normalised where that is asked for."""
        by_query = {}
        for qid, docnos, scores in lists_by_query(ranking):
            values = _minmax(scores) if self.normalise else scores
            by_query[qid] = dict(zip(docnos, values, strict=True))
        return by_query

    def _interpolated(self, first: Mapping[str, float], second: Mapping[str, float]) -> RankedList:
        """One query's ranking, by its two scores of each docno."""
        missing_first, missing_second = (
            self._score_of_missing(first),
            self._score_of_missing(second),
        )
        scores = {}
        for docno in {**first, **second}:
            score, other = first.get(docno, missing_first), second.get(docno, missing_second)
            scores[docno] = self.weight * score + (1 - self.weight) * other
        best = sorted(scores, key=lambda docno: (-scores[docno], docno))[: self.depth]
        return RankedList(best, [scores[docno] for docno in best])

    def _score_of_missing(self, scores: Mapping[str, float]) -> float:
        return 0.0 if self.normalise else min(scores.values(), default=0.0)


def ordered_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """What is fused of a ranking, best first. The query is left out: one that a retriever rewrote
    for itself must not keep a document apart from the other's."""
    pt.validate.result_frame(frame, extra_columns=["score"])
    by = "rank" if "rank" in frame.columns else "score"
    best_first = frame.sort_values(by, ascending=by == "rank", kind="stable")
    columns = best_first[["qid", "docno", "score"]].astype({"qid": str, "docno": str})
    return columns.assign(query="").reset_index(drop=True)


def _minmax(scores: Sequence[float]) -> list[float]:
    # Not pyterrier-alpha's: its PerQueryMaxMinScore fails on import in 0.16.5.
    low, high = min(scores), max(scores)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def lists_by_query(ranking: pd.DataFrame) -> list[tuple[str, list[str], list[float]]]:
    """(qid, docnos, scores) of each query, rows in their order."""
    return [
        (str(qid), hits["docno"].tolist(), hits["score"].tolist())
        for qid, hits in ranking.groupby("qid", sort=False)
    ]
