"""Tuning with an enrichment: its weight and the limit of its filters beside (k1, b).

A limit changes the phrases, so that each tau is a pass of its own over the questions. Within a
pass every weight of a question is a query of its own; they share the postings in memory and the
tables of the cells. Each walks through the postings, which a kernel with a weight for each cell
would do once; the walk is the smaller part of a pass, and not worth a second kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyterrier as pt
from numpy.typing import NDArray

from experiments.tune_ranks import judged_ranks
from pipelines.composition import compose
from pipelines.enrich.sources import Query
from pipelines.enrich.stage import Enrichment
from pipelines.lexical.enriched import EnrichedIndex
from pipelines.lexical.grid import JudgedQuery
from pipelines.stage import Collection
from toolkit.contracts import Topic
from toolkit.evaluation.tuning import RankTable, named
from toolkit.evaluation.tuning.ranks import GridPoint


@dataclass(frozen=True)
class TunedEnrichment:
    """An enrichment whose weight and tau are tuned, and the collection without phrases."""

    stage: Enrichment
    collection: Collection

    @property
    def weight(self) -> float:
        return self.stage.weight

    @property
    def tau(self) -> float:
        """The limit of its filters, that of the query where they differ; 1 without a filter."""
        filters = (self.stage.query_filter, self.stage.corpus_filter)
        return next((filter_.tau for filter_ in filters if filter_ is not None), 1.0)

    def at(self, weight: float, tau: float) -> tuple[Enrichment, Collection]:
        """The stage with this weight and tau, bound, and the collection that it ranks in."""
        stage = self.stage.with_weight(weight)
        if self.stage.query_filter or self.stage.corpus_filter:
            stage = stage.with_tau(tau)
        collection = stage.enriched(self.collection)
        return stage.bind(collection), collection

    def pipeline(self, cell: GridPoint, depth: int, *, aggregate: bool) -> pt.Transformer:
        """An ordinary pipeline of one cell (k1, b, weight, tau)."""
        k1, b, weight, tau = cell
        stage, collection = self.at(weight, tau)
        retriever = collection.index.bm25(k1=k1, b=b, depth=depth)
        return compose(retriever, enrichment=stage, aggregate=aggregate)

    def ranks(
        self,
        cells: Sequence[GridPoint],
        topics: Sequence[Topic],
        docids: Mapping[str, Sequence[str]],
        folder: Path,
        *,
        depth: int,
        threads: int | None = None,
    ) -> RankTable:
        """Ranks of the judged documents `docids[qid]` of every question in every cell."""
        columns: dict[str, dict[GridPoint, NDArray[np.int32]]] = {topic.qid: {} for topic in topics}
        for tau in dict.fromkeys(cell[3] for cell in cells):
            of_tau = [cell for cell in cells if cell[3] == tau]
            settings = list(dict.fromkeys((k1, b) for k1, b, _, _ in of_tau))
            weights = list(dict.fromkeys(weight for _, _, weight, _ in of_tau))
            stage, collection = self.at(self.weight, tau)
            queries = _queries(stage, topics, docids, weights)
            index = collection.index
            if isinstance(index, EnrichedIndex):
                index = index.merged(query.query for query in queries)
            table = judged_ranks(
                index, settings, queries, folder / f"tau-{tau!r}", depth=depth, threads=threads
            )
            for qid, of_question in columns.items():
                for cell in of_tau:
                    ranks = table.ranks[_key(qid, cell[2])]
                    of_question[cell] = ranks[:, settings.index((cell[0], cell[1]))]
        by_question = {
            qid: np.stack([of_question[cell] for cell in cells], axis=1)
            for qid, of_question in columns.items()
        }
        return RankTable(cells, {qid: docids[qid] for qid in by_question}, by_question)


def _queries(
    stage: Enrichment,
    topics: Sequence[Topic],
    docids: Mapping[str, Sequence[str]],
    weights: Sequence[float],
) -> list[JudgedQuery]:
    """Every question at every weight."""
    queries = [Query(topic.text, topic.qid) for topic in topics]
    return [
        JudgedQuery(_key(query.qid, weight), expansion.weighted(weight), docids[query.qid])
        for query, expansion in zip(queries, stage.expansions(queries), strict=True)
        for weight in weights
    ]


def chosen_overrides(cell: GridPoint, stage: Enrichment) -> dict[str, float]:
    """What gives an enrichment the weight and the tau of a cell, by key of the configuration."""
    numbers = named(cell)
    overrides = {"enrichment.weight": numbers["weight"]}
    for side in ("query_filter", "corpus_filter"):
        if getattr(stage, side) is not None:
            overrides[f"enrichment.{side}.tau"] = numbers["tau"]
    return overrides


def _key(qid: str, weight: float) -> str:
    """The name of a question at a weight in the files of ranks."""
    return f"{weight!r} {qid}"
