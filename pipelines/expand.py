"""Link expansion: the documents that the best of a ranking link to, or that link to them.

Following references is how people find literature that shares no words with their query (Bates,
The design of browsing and berrypicking techniques, 1989); agents call it citation expansion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyterrier as pt

from soundingline.pipelines.counts import Counts
from soundingline.pipelines.engines.engine import Engine
from soundingline.pipelines.rerank.reranker import merge_head_and_tail
from soundingline.pipelines.stage import Bound, Collection, Stage, bound, not_bound
from soundingline.toolkit.benchmarks.links import LinkGraph, check_direction
from soundingline.toolkit.data import PASSAGE_MARK, parent
from soundingline.toolkit.errors import InputError, check_int, check_number

PLACES = ("merged", "below")


class LinkExpansion(Stage):
    """Adds the neighbours of a ranking's head over the link graph.

    In: a ranking with `qid`, `docno` and `score`. Out: its columns (for rows that are added, those
    of the query alone), with a new `score` and `rank` (from 0); each document once.

    The seeds are the first `head` documents of a query. A neighbour gets `damping` times the scores
    of the seeds that it is linked with, summed; scores count from 0, or from the ranking's lowest
    score where there are negative ones. `direction`: `out` (what seeds link to), `in` (what links
    to them) or `both`. A seed with more than `largest_hub` neighbours passes nothing on. At most
    `most` new documents come in, those of the highest score, equal scores by docid.

    `place`: `merged` adds what a neighbour gets to its own score (the lowest possible one where it
    was not retrieved) and ranks again, so that retrieved neighbours rise too; `below` keeps the
    ranking and puts new documents under it. `depth`: rows kept a query (None: all); a ranking that
    fills it leaves no place for documents below.

    In a ranking of passages a document's score is that of its best passage, which is the row that
    rises; a new document comes as its first passage. `InputError` for settings out of range, and
    where the collection has no links.
    """

    def __init__(
        self,
        links: LinkGraph | None = None,
        *,
        head: int = 10,
        direction: str = "both",
        damping: float = 0.5,
        largest_hub: int = 100,
        most: int = 100,
        place: str = "merged",
        depth: int | None = 1000,
    ) -> None:
        check_int("head", head)
        check_direction(direction)
        check_number("damping", damping, le=1, gt=0)
        check_int("largest_hub", largest_hub)
        check_int("most", most)
        if place not in PLACES:
            raise InputError(f"place={place!r}", valid=", ".join(PLACES))
        if depth is not None:
            check_int("depth", depth, do="set it to null for all documents")
        self.links = links
        self.head, self.direction, self.damping = head, direction, float(damping)
        self.largest_hub, self.most, self.place, self.depth = largest_hub, most, place, depth
        self._counts = Counts()

    def bind(self: Bound, collection: Collection) -> Bound:
        """See `Stage`; the collection gives the links where the stage has none."""
        bound_copy = super().bind(collection)
        if bound_copy.links is None:  # type: ignore[attr-defined]
            if collection.links is None:
                raise no_links()
            bound_copy.links = collection.links()  # type: ignore[attr-defined]
        return bound_copy

    @property
    def fingerprint(self) -> str:
        """That of the link graph; empty before the stage is bound to one."""
        return self.links.fingerprint if self.links else ""

    @property
    def counts(self) -> Mapping[str, float]:
        """`expanded` rankings, `added` documents, and `hubs`: seeds that were not followed."""
        return self._counts()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        if self.links is None:
            raise not_bound(self, "give it links, or call bind(collection)")
        if not len(inp):
            return inp
        parts = [self._expanded(ranking) for _, ranking in inp.groupby("qid", sort=False)]
        return pd.concat(parts, ignore_index=True)

    def _expanded(self, ranking: pd.DataFrame) -> pd.DataFrame:
        by = "rank" if "rank" in ranking.columns else "score"
        ranking = ranking.sort_values(by, ascending=by == "rank", kind="stable")
        best: dict[str, float] = {}
        for docno, score in zip(ranking["docno"], ranking["score"], strict=True):
            best.setdefault(parent(docno), float(score))
        lowest = min(0.0, *best.values())
        gains = self._gains({docid: score - lowest for docid, score in best.items()})
        fresh = [docid for docid in gains if docid not in best]
        fresh = sorted(fresh, key=lambda docid: (-gains[docid], docid))[: self.most]
        self._counts.add(expanded=1, added=len(fresh))
        added = self._rows(ranking, fresh, [lowest + gains[docid] for docid in fresh])
        if self.place == "below":
            return merge_head_and_tail(ranking, added)[: self.depth]
        return self._merged(ranking, added, gains)

    def _gains(self, scores: Mapping[str, float]) -> dict[str, float]:
        """What each neighbour gets of the seeds."""
        assert self.links is not None
        gains: dict[str, float] = {}
        for docid in list(scores)[: self.head]:
            neighbours = self.links.neighbours(docid, self.direction)
            if len(neighbours) > self.largest_hub:
                self._counts.add(hubs=1)
                continue
            for neighbour in neighbours:
                gains[neighbour] = gains.get(neighbour, 0.0) + self.damping * scores[docid]
        return gains

    def _merged(
        self, ranking: pd.DataFrame, added: pd.DataFrame, gains: Mapping[str, float]
    ) -> pd.DataFrame:
        documents = ranking["docno"].map(parent)
        own = documents.map(lambda docid: gains.get(docid, 0.0)).where(~documents.duplicated(), 0.0)
        rows = pd.concat([ranking.assign(score=ranking["score"] + own), added], ignore_index=True)
        rows = rows.sort_values("score", ascending=False, kind="stable", ignore_index=True)
        rows = rows.assign(rank=range(pt.model.FIRST_RANK, len(rows) + pt.model.FIRST_RANK))
        return rows[: self.depth]

    def _rows(self, ranking: pd.DataFrame, docids: list[str], scores: list[float]) -> pd.DataFrame:
        """Rows of new documents, with the columns of the ranking's query."""
        passages = any(parent(docno) != docno for docno in ranking["docno"])
        suffix = f"{PASSAGE_MARK}0" if passages else ""
        first = ranking.iloc[0]
        columns: list[str] = list(pt.model.query_columns(ranking, qid=True))
        rows: dict[str, Any] = {name: [first[name]] * len(docids) for name in columns}
        rows |= {"docno": [docid + suffix for docid in docids], "score": scores}
        return pd.DataFrame(rows)


class LinkExpandedRetriever(Stage):
    """`retriever >> LinkExpansion(...)` as one retriever, whose ranking a re-ranker goes on with.
    For the arguments see `LinkExpansion`."""

    def __init__(
        self,
        retriever: pt.Transformer,
        *,
        head: int = 10,
        direction: str = "both",
        damping: float = 0.5,
        largest_hub: int = 100,
        most: int = 100,
        place: str = "merged",
        depth: int | None = 1000,
    ) -> None:
        self.retriever = retriever
        self.head, self.direction, self.damping = head, direction, damping
        self.largest_hub, self.most, self.place, self.depth = largest_hub, most, place, depth
        self._expansion: LinkExpansion = self._part(LinkExpansion, links=None)

    @property
    def takes_weights(self) -> bool:
        """Whether the retriever searches by weights of index terms; see `Retriever`."""
        return bool(getattr(self.retriever, "takes_weights", True))

    @property
    def searches_enriched(self) -> bool:
        """Whether the retriever does; see `Retriever`."""
        return bool(getattr(self.retriever, "searches_enriched", True))

    def bind(self: Bound, collection: Collection) -> Bound:
        """See `Stage`; retriever and expansion are bound."""
        bound_copy = super().bind(collection)
        bound_copy.retriever = bound(self.retriever, collection)  # type: ignore[attr-defined]
        bound_copy._expansion = self._expansion.bind(collection)  # type: ignore[attr-defined]
        return bound_copy

    def check(self, engine: Engine) -> None:
        """See `Stage`; the retriever is checked."""
        if isinstance(self.retriever, Stage):
            self.retriever.check(engine)

    @property
    def fingerprint(self) -> str:
        """That of the link graph, and of the retriever where it has one."""
        own = self.retriever.fingerprint if isinstance(self.retriever, Stage) else ""
        return "-".join(part for part in (own, self._expansion.fingerprint) if part)

    @property
    def counts(self) -> Mapping[str, float]:
        """See `LinkExpansion`."""
        return self._expansion.counts

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        ranking: pd.DataFrame = self._expansion.transform(self.retriever.transform(inp))
        return ranking


def no_links() -> InputError:
    """The error of what works on links, where the benchmark has none."""
    return InputError(
        "the benchmark has no links between its documents",
        valid="a BEIR folder with links.tsv, or benchmark=fictional",
        do="choose another retriever, or add the file (docs/collections.md)",
    )
