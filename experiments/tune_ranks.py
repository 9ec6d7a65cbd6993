"""The ranks of judged documents at all points of a grid, for plain and for enriched queries.

The limit of an enrichment's filters changes the phrases, so that each tau has an index of its own,
which is ranked in a pass of its own over the questions. Within a pass, every weight of a question
is a separate query."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyterrier as pt
from numpy.typing import NDArray

from soundingline.pipelines.compose import compose
from soundingline.pipelines.enrich.enrichment import Enrichment
from soundingline.pipelines.enrich.phrases import QueryContext
from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.console import progress_bar
from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation.grid import GridPoint, RankTable, point_settings

_SECONDS = 10.0  # between two files, which an interrupt may lose


def judged_ranks(
    index: LexicalIndex,
    points: Sequence[tuple[float, float]],
    questions: Sequence[JudgedQuery],
    folder: Path,
    *,
    depth: int,
    threads: int | None = None,
) -> RankTable:
    """Rank every question at every point (k1, b).

    Args:
        index: the index.
        points: the points.
        questions: the questions with their judged documents.
        folder: holds parts of the table (`<n>.npz`), which are written atomically every few
            seconds. Questions that a part contains are not ranked again.
        depth: the number of documents of a ranking.
        threads: None for one for each core.
    """
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    parts = [RankTable.load(path) for path in sorted(folder.glob("*.npz"))]
    done = {qid for part in parts for qid in part.ranks}
    pending = [question for question in questions if question.qid not in done]
    if pending:
        grid = GridBM25(index, points, depth=depth)
        parts += _computed(grid, pending, folder, len(parts), threads)
    return RankTable.joined(parts)


def _computed(
    grid: GridBM25,
    pending: Sequence[JudgedQuery],
    folder: Path,
    number: int,
    threads: int | None,
) -> list[RankTable]:
    docids = {question.qid: question.docids for question in pending}
    parts: list[RankTable] = []
    ranks_of: dict[str, NDArray[np.int32]] = {}

    def keep() -> None:
        if ranks_of:
            part = RankTable(grid.cells, {qid: docids[qid] for qid in ranks_of}, dict(ranks_of))
            part.save(folder / f"{number + len(parts):05d}.npz")
            parts.append(part)
            ranks_of.clear()

    with progress_bar() as progress:
        task = progress.add_task(f"Ranking {len(grid.cells):,} points", total=len(pending), note="")
        last = time.monotonic()
        try:
            for qid, ranks in grid.ranks(pending, threads):
                ranks_of[qid] = ranks
                progress.advance(task)
                if time.monotonic() - last > _SECONDS:
                    keep()
                    last = time.monotonic()
        finally:
            keep()
    return parts


@dataclass(frozen=True)
class EnrichmentGrid:
    """An enrichment whose weight and tau are tuned, and the collection without its phrases."""

    stage: Enrichment
    collection: Collection

    @property
    def weight(self) -> float:
        return self.stage.weight

    @property
    def tau(self) -> float:
        """The limit of its filters; of the query's filter if they differ; 1 without a filter."""
        filters = (self.stage.query_filter, self.stage.corpus_filter)
        return next((filter_.tau for filter_ in filters if filter_ is not None), 1.0)

    def at(self, weight: float, tau: float) -> tuple[Enrichment, Collection]:
        """The stage with this weight and tau, bound to a collection, and that collection."""
        stage = self.stage.with_weight(weight)
        if self.stage.has_filter:
            stage = stage.with_tau(tau)
        collection = stage.enriched(self.collection)
        return stage.bind(collection), collection

    def pipeline(self, point: GridPoint, depth: int, *, aggregate: bool) -> pt.Transformer:
        """The ordinary pipeline at a point (k1, b, weight, tau)."""
        k1, b, weight, tau = point
        stage, collection = self.at(weight, tau)
        retriever = collection.index.bm25(k1=k1, b=b, depth=depth)
        return compose(retriever, enrichment=stage, aggregate=aggregate)

    def ranks(
        self,
        points: Sequence[GridPoint],
        topics: Sequence[Topic],
        docids: Mapping[str, Sequence[str]],
        folder: Path,
        *,
        depth: int,
        threads: int | None = None,
    ) -> RankTable:
        """The ranks of the judged documents `docids[qid]` of every question at every point."""
        columns: dict[str, dict[GridPoint, NDArray[np.int32]]] = {topic.qid: {} for topic in topics}
        for tau in dict.fromkeys(point[3] for point in points):
            of_tau = [point for point in points if point[3] == tau]
            settings = list(dict.fromkeys((k1, b) for k1, b, _, _ in of_tau))
            weights = list(dict.fromkeys(weight for _, _, weight, _ in of_tau))
            stage, collection = self.at(self.weight, tau)
            queries = _queries(stage, topics, docids, weights)
            table = judged_ranks(
                collection.index,
                settings,
                queries,
                folder / f"tau-{tau!r}",
                depth=depth,
                threads=threads,
            )
            for qid, of_question in columns.items():
                for point in of_tau:
                    ranks = table.ranks[_key(qid, point[2])]
                    of_question[point] = ranks[:, settings.index((point[0], point[1]))]
        by_question = {
            qid: np.stack([of_question[point] for point in points], axis=1)
            for qid, of_question in columns.items()
        }
        return RankTable(points, {qid: docids[qid] for qid in by_question}, by_question)


def _queries(
    stage: Enrichment,
    topics: Sequence[Topic],
    docids: Mapping[str, Sequence[str]],
    weights: Sequence[float],
) -> list[JudgedQuery]:
    """A query for each question and weight."""
    queries = [QueryContext(topic.text, topic.qid) for topic in topics]
    return [
        JudgedQuery(_key(query.qid, weight), expansion.weighted(weight), docids[query.qid])
        for query, expansion in zip(queries, stage.expansions(queries), strict=True)
        for weight in weights
    ]


def chosen_overrides(point: GridPoint, stage: Enrichment) -> dict[str, float]:
    """The configuration keys that set an enrichment to the weight and tau of a point."""
    numbers = point_settings(point)
    overrides = {"enrichment.weight": numbers["weight"]}
    for side in ("query_filter", "corpus_filter"):
        if getattr(stage, side) is not None:
            overrides[f"enrichment.{side}.tau"] = numbers["tau"]
    return overrides


def _key(qid: str, weight: float) -> str:
    """The name of a question at a weight in rank tables."""
    return f"{weight!r} {qid}"
