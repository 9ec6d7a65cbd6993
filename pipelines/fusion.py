"""Several retrievers as one: reciprocal rank fusion, interpolation of scores, and the oracle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyterrier as pt
from typing_extensions import Self

from soundingline.pipelines.engines.engine import NOTHING, RankedList
from soundingline.pipelines.retrieve import check_queries, ranked
from soundingline.pipelines.stage import (
    Collection,
    Stage,
    as_pyterrier,
    best_first,
    bound,
    not_bound,
)
from soundingline.toolkit.data import first_units, parent
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.runs.run_folder import of_question


class Fusion(Stage):
    """Ranks what any of its retrievers ranks. A subclass implements `fused`.

    The input has `qid`, `query` and the columns that the retrievers need. The output has every
    column of the input (and none that a retriever adds), and `docno`, `score`, `rank` (from 0): at
    most `depth` rows a query, equal scores by docno. A retriever may rewrite the query for itself.
    `InputError` for arguments out of range, and for fewer than two retrievers.
    """

    schematic: Any = {**Stage.schematic, "inner_pipelines_mode": "combine"}  # noqa: RUF012

    def __init__(self, *retrievers: pt.Transformer, depth: int) -> None:
        check_int("depth", depth)
        if len(retrievers) < 2:
            raise InputError(f"{len(retrievers)} retrievers to fuse", valid="two or more")
        self.retrievers, self.depth = retrievers, depth

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

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer | None:
        """`fusion % k` as one stage; PyTerrier's optimiser calls it."""
        if k >= self.depth:
            return None
        shorter = pt.inspect.transformer_apply_attributes(self, depth=k)
        return shorter if self.collection is None else bound(shorter, self.collection)


class ReciprocalRankFusion(Fusion):
    """Scores a document by the sum over all rankings of 1 / (k + rank), with ranks from 1
    (Cormack, Clarke and Büttcher, SIGIR 2009). Columns and errors as in `Fusion`.

    Args:
        retrievers: Two or more retrievers, or any pipelines that rank.
        k: 0 or more. The default is that of the paper.
        depth: Rows of a query, at least 1.

    Example:
        >>> both = ReciprocalRankFusion(index.bm25(), index.ql())
        >>> both.search("old river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    def __init__(self, *retrievers: pt.Transformer, k: int = 60, depth: int = 1000) -> None:
        super().__init__(*retrievers, depth=depth)
        check_int("k", k, ge=0)
        self.k = k

    def fused(self, rankings: Sequence[RankedList]) -> Mapping[str, float]:
        docnos = [ranking.docnos for ranking in rankings]
        return fused_by_rank(docnos, lambda ranks: reciprocal_ranks(ranks, self.k))


class Interpolation(Fusion):
    """Scores a document by the sum over all rankings of the ranking's weight times its score.
    Columns and errors as in `Fusion`.

    Args:
        retrievers: Two or more retrievers, or any pipelines that rank.
        weights: A weight for each retriever, 0 to 1. The default is the same for each, with the sum
            1.
        normalise: `minmax` scales the scores of each query and ranking to 0..1 (to 1 if all are
            equal), and a document that is missing from a ranking has 0 there. None takes the scores
            as they are, and a document that is missing from a ranking has its lowest score there.
        depth: Rows of a query, at least 1.

    Example:
        >>> both = Interpolation(index.bm25(), index.ql(), weights=[0.3, 0.7])
        >>> both.search("old river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    def __init__(
        self,
        *retrievers: pt.Transformer,
        weights: Sequence[float] | None = None,
        normalise: str | None = "minmax",
        depth: int = 1000,
    ) -> None:
        super().__init__(*retrievers, depth=depth)
        for number, weight in enumerate(weights or (), start=1):
            check_number(f"weight {number}", weight, le=1)
        if weights is not None and len(weights) != len(retrievers):
            raise InputError(
                f"{len(weights)} weights for {len(retrievers)} retrievers",
                valid="a weight for each retriever",
            )
        if normalise not in (None, "minmax"):
            raise InputError(f"normalise={normalise!r}", valid="null, minmax")
        self.weights, self.normalise = weights, normalise

    def fused(self, rankings: Sequence[RankedList]) -> Mapping[str, float]:
        weights = self.weights or [1 / len(rankings)] * len(rankings)
        scaled = list(map(self._scores, rankings))
        docnos = {docno for scores, _ in scaled for docno in scores}
        return {
            docno: sum(
                weight * scores.get(docno, missing)
                for weight, (scores, missing) in zip(weights, scaled, strict=True)
            )
            for docno in docnos
        }

    def _scores(self, ranking: RankedList) -> tuple[dict[str, float], float]:
        """The score of each docno, and that of a docno which is missing from the ranking."""
        scores = list(ranking.scores)
        low, high = min(scores, default=0.0), max(scores, default=0.0)
        if self.normalise:
            scores = [(score - low) / (high - low) if high > low else 1.0 for score in scores]
        return dict(zip(ranking.docnos, scores, strict=True)), 0.0 if self.normalise else low


def reciprocal_rank_fusion(
    first: pt.Transformer,
    second: pt.Transformer,
    third: pt.Transformer | None = None,
    fourth: pt.Transformer | None = None,
    k: int = 60,
    depth: int = 1000,
) -> ReciprocalRankFusion:
    """`ReciprocalRankFusion` for a file of options, in which each retriever has a name of its
    own."""
    given = [each for each in (first, second, third, fourth) if each is not None]
    return ReciprocalRankFusion(*given, k=k, depth=depth)


def interpolation(
    first: pt.Transformer,
    second: pt.Transformer,
    weight: float = 0.5,
    normalise: str | None = "minmax",
    depth: int = 1000,
) -> Interpolation:
    """`Interpolation` of two retrievers for a file of options, by the `weight` of the first."""
    check_number("weight", weight, le=1)
    weights = [weight, 1 - weight]
    return Interpolation(first, second, weights=weights, normalise=normalise, depth=depth)


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
        for qid, hits in frame.iloc[best_first(frame)[0]].groupby("qid", sort=False)
    }


@dataclass(eq=False, repr=False)
class OracleRetriever(Stage):
    """Ranks the documents that are judged relevant for the question, whatever the query is, and
    then the ranking of `base`.

    It reads the judgements by which the run is measured, so that its figures are the most that any
    retriever could give an agent, and not the result of a system.

    The input has `qid` (that of the question), `query`, and the columns that the base needs. The
    output has every column of the input, and `docno`, `score`, `rank` (from 0). Judged documents
    are in the order of falling grades, each as the unit that the base ranks best, or else as its
    first unit; documents that are missing from the corpus are left out.

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
        tiers = collection.qrels or {}
        if not tiers.get(self.tier):
            raise InputError(
                f"the benchmark has no judgements of the tier {self.tier!r}",
                valid=", ".join(name for name, rows in tiers.items() if rows) or "none",
                do="set retriever.tier, or choose a benchmark with judgements",
            )
        return super().bind(collection)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        check_queries(inp)
        inp = as_pyterrier(inp)
        rankings = rankings_by_query(self.base.transform(inp)) if self.base is not None else {}
        return ranked(inp, [self._ranking(qid, rankings.get(qid, NOTHING)) for qid in inp["qid"]])

    def _ranking(self, qid: str, base: RankedList) -> RankedList:
        """The judged documents, with scores above all of `base`, and then `base`."""
        judged = self._judged_units(qid, base)
        top = max([*base.scores, 0.0])
        scores = {unit: top + len(judged) - place for place, unit in enumerate(judged)}
        if self.rest:
            others = zip(base.docnos, base.scores, strict=True)
            scores |= {unit: score for unit, score in others if unit not in scores}
        units = list(scores)[: self.depth]
        return RankedList(units, [scores[unit] for unit in units])

    def _judged_units(self, qid: str, base: RankedList) -> list[str]:
        """A unit of each document that is judged relevant, in the order of falling grades."""
        if self.collection is None or self.collection.qrels is None:
            raise not_bound(self, "call bind(collection) with a collection that has judgements")
        grades = of_question(self.collection.qrels[self.tier], qid) or {}
        relevant = sorted(
            (docid for docid, grade in grades.items() if grade > 0),
            key=lambda docid: -grades[docid],
        )
        best_units = {parent(unit): unit for unit in reversed(base.docnos)}
        units = (best_units.get(docid) or self._first_unit(docid) for docid in relevant)
        return [unit for unit in units if unit]

    def _first_unit(self, docid: str) -> str | None:
        """The first unit of a document; None for a document that is not in the corpus."""
        texts = self.collection.texts if self.collection else None
        for unit in first_units(docid):
            with suppress(KeyError):
                if texts:
                    texts([unit])
                return unit
        return None
