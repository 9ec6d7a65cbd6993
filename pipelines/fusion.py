"""Several retrievers as one: reciprocal rank fusion, interpolation of scores, and the oracle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pandas as pd
import pyterrier as pt
from typing_extensions import Self

from soundingline.pipelines.engines.engine import NOTHING, RankedList
from soundingline.pipelines.retrieve import check_queries, ranked
from soundingline.pipelines.stage import Collection, Stage, as_pyterrier, not_bound
from soundingline.toolkit.data import first_units, parent
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.runs.run_folder import of_question


class Fusion(Stage):
    """Ranks what any of its retrievers ranks. A subclass implements `fused`.

    The input has `qid`, `query` and the columns that the retrievers need. The output has every
    column of the input (and none that a retriever adds), and `docno`, `score`, `rank` (from 0): at
    most `depth` rows a query, equal scores by docno. A retriever may rewrite the query for itself.
    `InputError` for arguments out of range.
    """

    schematic: Any = {**Stage.schematic, "inner_pipelines_mode": "combine"}  # noqa: RUF012

    def __init__(self, first: pt.Transformer, second: pt.Transformer, depth: int) -> None:
        check_int("depth", depth)
        self.first, self.second, self.depth = first, second, depth

    @property
    def retrievers(self) -> Sequence[pt.Transformer]:
        """What is fused."""
        return self.first, self.second

    @abstractmethod
    def fused(self, rankings: Sequence[RankedList]) -> Mapping[str, float]:
        """The score of each docno of a query, by its rankings, some of which may be empty."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        check_queries(inp)
        inp = as_pyterrier(inp)
        found = [rankings_by_query(stage.transform(inp)) for stage in self.retrievers]
        rankings = []
        for qid in inp["qid"]:
            scores = self.fused([ranking.get(qid, NOTHING) for ranking in found])
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
    """Scores a document by the sum over all rankings of 1 / (k + rank), with ranks from 1
    (Cormack, Clarke and Büttcher, SIGIR 2009). Columns and errors as in `Fusion`.

    Args:
        first, second, third, fourth: Retrievers, or any pipelines that rank; None for none.
        k: 0 or more. The default is that of the paper.
        depth: Rows of a query, at least 1.

    Example:
        >>> both = ReciprocalRankFusion(index.bm25(), index.ql())
        >>> both.search("old river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    def __init__(
        self,
        first: pt.Transformer,
        second: pt.Transformer,
        k: int = 60,
        depth: int = 1000,
        third: pt.Transformer | None = None,
        fourth: pt.Transformer | None = None,
    ) -> None:
        super().__init__(first, second, depth)
        check_int("k", k, ge=0)
        self.k, self.third, self.fourth = k, third, fourth

    @property
    def retrievers(self) -> Sequence[pt.Transformer]:
        given = (self.first, self.second, self.third, self.fourth)
        return [retriever for retriever in given if retriever is not None]

    def fused(self, rankings: Sequence[RankedList]) -> Mapping[str, float]:
        docnos = [ranking.docnos for ranking in rankings]
        return fused_by_rank(docnos, lambda ranks: reciprocal_ranks(ranks, self.k))


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

    def fused(self, rankings: Sequence[RankedList]) -> Mapping[str, float]:
        (scores, missing), (others, others_missing) = map(self._scores, rankings)
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


def reciprocal_ranks(ranks: Sequence[int], k: int = 60) -> float:
    """The sum of 1 / (k + rank) over the ranks of a document, from 1."""
    return sum(1 / (k + rank) for rank in ranks)


FUSIONS: Mapping[str, Callable[[Sequence[int]], float]] = {
    "best_rank": lambda ranks: 1 / (1 + min(ranks)),
    "frequency": lambda ranks: float(len(ranks)),
    "rrf": reciprocal_ranks,
}


def fused_by_rank(
    rankings: Iterable[Iterable[str]], score: Callable[[Sequence[int]], float]
) -> dict[str, float]:
    """The score of each docno by its ranks (from 1) in the rankings that have it, in the order in
    which they first have it."""
    ranks: dict[str, list[int]] = {}
    for ranking in rankings:
        for rank, docno in enumerate(ranking, start=1):
            ranks.setdefault(docno, []).append(rank)
    return {docno: score(of_docno) for docno, of_docno in ranks.items()}


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


@dataclass(eq=False, repr=False)
class OracleRetriever(Stage):
    """Ranks the documents that are judged relevant for the question, whatever the query is, and
    then the ranking of `base`.

    It reads the judgements by which the run is measured, so that its figures are the most that any
    retriever could give an agent, and no result of a system.

    The input has `qid` (that of the question), `query`, and the columns that the base needs. The
    output has every column of the input, and `docno`, `score`, `rank` (from 0). Judged documents
    are in the order of falling grades, each as the unit that the base ranks best, or else as its
    first unit; documents that the corpus lacks are left out.

    Args:
        base: Chooses the unit of each judged document, and ranks the rest; None ranks nothing else.
        rest: Whether the rest follows.
        tier: The tier of the judgements.
        depth: Rows of a query, at least 1.

    Raises:
        InputError: For another depth, and for a collection without judgements of the tier.

    Example:
        >>> judged = {"evidence": {"1": {"d2": 1}}}
        >>> collection = Collection("mine", index=index, qrels=judged, texts=index.texts)
        >>> oracle = OracleRetriever(BM25()).bind(collection)
        >>> oracle.search("old mill")["docno"].tolist()
        ['d2%p0', 'd1%p0', 'd1%p1']
    """

    base: pt.Transformer | None = None
    tier: str = "evidence"
    depth: int = 1000
    rest: bool = True

    matching = "unknown"  # judged documents come first, whatever the query is

    def __post_init__(self) -> None:
        check_int("depth", self.depth)

    def bind(self, collection: Collection) -> Self:
        """`InputError` if the collection has no judgements of the tier."""
        bound_copy = super().bind(collection)
        tiers, tier = collection.qrels or {}, self.tier
        if not tiers.get(tier):
            raise InputError(
                f"the benchmark has no judgements of the tier {tier!r}",
                valid=", ".join(name for name, rows in tiers.items() if rows) or "none",
                do="set retriever.tier, or choose a benchmark with judgements",
            )
        return bound_copy

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        check_queries(inp)
        inp = as_pyterrier(inp)
        rankings = rankings_by_query(self.base.transform(inp)) if self.base is not None else {}
        qids = inp["qid"]
        return ranked(inp, [self._with_evidence(qid, rankings.get(qid, NOTHING)) for qid in qids])

    def _with_evidence(self, qid: str, base: RankedList) -> RankedList:
        if self.collection is None or self.collection.qrels is None:
            raise not_bound(self, "call bind(collection) with a collection that has judgements")
        judged = self.collection.qrels[self.tier]
        grades = of_question(judged, qid) or {}
        relevant = [docid for docid, grade in grades.items() if grade > 0]
        best_units = {parent(unit): unit for unit in reversed(base.docnos)}
        evidence: list[str] = []
        for docid in sorted(relevant, key=lambda docid: -grades[docid]):
            first = filter(self._exists, first_units(docid))
            evidence += islice([best_units[docid]] if docid in best_units else first, 1)
        top = max([*base.scores, 0.0])
        scores = {unit: top + len(evidence) - place for place, unit in enumerate(evidence)}
        for unit, score in zip(base.docnos, base.scores, strict=True) if self.rest else ():
            scores.setdefault(unit, score)
        units = list(scores)[: self.depth]
        return RankedList(units, [scores[unit] for unit in units])

    def _exists(self, unit: str) -> bool:
        try:
            if self.collection and self.collection.texts:
                self.collection.texts([unit])
        except KeyError:
            return False
        return True
