"""The ceiling of every table: the judged evidence first, whatever else is ranked behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import pandas as pd
import pyterrier as pt

from soundingline.pipelines.engines.engine import Engine, RankedList
from soundingline.pipelines.fusion import lists_by_query, ordered_rows
from soundingline.pipelines.retrieve import ranked
from soundingline.pipelines.stage import Bound, Collection, Stage, bound, not_bound
from soundingline.toolkit.data import PASSAGE_MARK, parent
from soundingline.toolkit.errors import InputError, check_int


class OracleRetriever(Stage):
    """Ranks the documents that are judged relevant for the question, whatever the query is, and
    then what `base` ranks (None: nothing else).

    It reads the judgements that the run is measured by: what an agent makes of it is the most that
    any retriever could give that agent, and no result of a system.

    In: `qid`, which must be the question's, and `query`, and whatever the base takes. Out: every
    column of the input, and `docno`, `score`, `rank` (from 0); at most `depth` rows a query.
    Judged documents come by falling grade of `tier`, each as the unit that the base ranks best, or
    else its first one; those that the corpus lacks are left out. `InputError` where the collection
    has no judgements.
    """

    def __init__(
        self, base: pt.Transformer | None = None, tier: str = "evidence", depth: int = 1000
    ) -> None:
        check_int("depth", depth)
        self.base, self.tier, self.depth = base, tier, depth

    def bind(self: Bound, collection: Collection) -> Bound:
        """See `Stage`; the base is bound. `InputError` where the collection has no judgements of
        the tier."""
        bound_copy = super().bind(collection)
        tiers = collection.qrels or {}
        tier = bound_copy.tier  # type: ignore[attr-defined]
        if not tiers.get(tier):
            raise InputError(
                f"the benchmark has no judgements of the tier {tier!r}",
                valid=", ".join(name for name, rows in tiers.items() if rows) or "none",
                do="set retriever.tier, or choose a benchmark with judgements",
            )
        if bound_copy.base is not None:  # type: ignore[attr-defined]
            bound_copy.base = bound(bound_copy.base, collection)  # type: ignore[attr-defined]
        return bound_copy

    def check(self, engine: Engine) -> None:
        """See `Stage`; the base is checked."""
        if isinstance(self.base, Stage):
            self.base.check(engine)

    @property
    def takes_weights(self) -> bool:
        """Whether the base searches by weights of index terms; see `Retriever`."""
        return bool(getattr(self.base, "takes_weights", True))

    @property
    def searches_enriched(self) -> bool:
        """Whether the base does; see `Retriever`."""
        return bool(getattr(self.base, "searches_enriched", True))

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        rankings: dict[str, RankedList] = {}
        if self.base is not None:
            rows = lists_by_query(ordered_rows(self.base.transform(inp)))
            rankings = {qid: RankedList(docnos, scores) for qid, docnos, scores in rows}
        empty = RankedList((), ())
        qids = inp["qid"].astype(str)
        return ranked(inp, [self._with_evidence(qid, rankings.get(qid, empty)) for qid in qids])

    def _with_evidence(self, qid: str, base: RankedList) -> RankedList:
        best_units = {parent(unit): unit for unit in reversed(base.docnos)}
        first = list(self._evidence_units(qid, best_units))
        evidence = set(first)
        rest = [
            (unit, score)
            for unit, score in zip(base.docnos, base.scores, strict=True)
            if unit not in evidence
        ]
        top = max([*base.scores, 0.0])
        scores = [top + len(first) - index for index in range(len(first))]
        units = [*first, *(unit for unit, _ in rest)]
        return RankedList(
            units[: self.depth], [*scores, *(score for _, score in rest)][: self.depth]
        )

    def _evidence_units(self, qid: str, best_units: Mapping[str, str]) -> Iterator[str]:
        if self.collection is None or self.collection.qrels is None:
            raise not_bound(self, "call bind(collection) with a collection that has judgements")
        grades = self.collection.qrels[self.tier].get(qid, {})
        relevant = [docid for docid, grade in grades.items() if grade > 0]
        for docid in sorted(relevant, key=lambda docid: -grades[docid]):
            first = (f"{docid}{PASSAGE_MARK}0", docid)
            known = [best_units[docid]] if docid in best_units else filter(self._exists, first)
            yield from islice(known, 1)

    def _exists(self, unit: str) -> bool:
        try:
            if self.collection and self.collection.texts:
                self.collection.texts([unit])
        except KeyError:
            return False
        return True
