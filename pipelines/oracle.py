"""The upper bound of every table: the judged evidence first, then any other ranking."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import pandas as pd
import pyterrier as pt

from soundingline.pipelines.engines.engine import NOTHING, RankedList
from soundingline.pipelines.fusion import rankings_by_query
from soundingline.pipelines.retrieve import ranked
from soundingline.pipelines.stage import Bound, Collection, Stage, not_bound
from soundingline.toolkit.data import first_units, parent
from soundingline.toolkit.errors import InputError, check_int


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
        base: Ranks the rest; None ranks nothing else.
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

    def __post_init__(self) -> None:
        check_int("depth", self.depth)

    def bind(self: Bound, collection: Collection) -> Bound:
        """`InputError` if the collection has no judgements of the tier."""
        bound_copy = super().bind(collection)
        tiers, tier = collection.qrels or {}, self.tier  # type: ignore[attr-defined]
        if not tiers.get(tier):
            raise InputError(
                f"the benchmark has no judgements of the tier {tier!r}",
                valid=", ".join(name for name, rows in tiers.items() if rows) or "none",
                do="set retriever.tier, or choose a benchmark with judgements",
            )
        return bound_copy

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        rankings = rankings_by_query(self.base.transform(inp)) if self.base is not None else {}
        qids = inp["qid"].astype(str)
        return ranked(inp, [self._with_evidence(qid, rankings.get(qid, NOTHING)) for qid in qids])

    def _with_evidence(self, qid: str, base: RankedList) -> RankedList:
        if self.collection is None or self.collection.qrels is None:
            raise not_bound(self, "call bind(collection) with a collection that has judgements")
        grades = self.collection.qrels[self.tier].get(qid, {})
        relevant = [docid for docid, grade in grades.items() if grade > 0]
        best_units = {parent(unit): unit for unit in reversed(base.docnos)}
        evidence: list[str] = []
        for docid in sorted(relevant, key=lambda docid: -grades[docid]):
            first = filter(self._exists, first_units(docid))
            evidence += islice([best_units[docid]] if docid in best_units else first, 1)
        top = max([*base.scores, 0.0])
        scores = {unit: top + len(evidence) - place for place, unit in enumerate(evidence)}
        for unit, score in zip(base.docnos, base.scores, strict=True):
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
