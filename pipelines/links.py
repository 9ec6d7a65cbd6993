"""Link expansion: documents that the best of a ranking link to, or that link to them.

People find literature that shares no words with their query by following references (Bates, "The
design of browsing and berrypicking techniques", 1989); agents call it citation expansion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import pandas as pd
import pyterrier as pt
from typing_extensions import Self

from soundingline.pipelines.stage import (
    Collection,
    Counts,
    Stage,
    as_pyterrier,
    best_first,
    not_bound,
    topic_columns,
)
from soundingline.toolkit.corpus.links import LinkGraph, check_direction
from soundingline.toolkit.data import PASSAGE_MARK, parent
from soundingline.toolkit.errors import InputError, check_int, check_number

_LARGEST_HUB = 100  # links above which a seed is not followed
_MOST = 100  # new documents of a query


@dataclass(eq=False, repr=False)
class LinkExpansion(Stage):
    """Adds the linked documents of the best documents of a ranking.

    The first `head` documents of a query are the seeds. A linked document gets `damping` times the
    sum of the scores of the seeds that it is linked with; scores count from 0, or from the lowest
    score of the ranking if that is negative. It is added to the document's own score (the lowest
    possible one if it was not retrieved), so that retrieved documents rise too. A seed with more
    than 100 links is not followed. At most 100 documents are new: those with the highest scores,
    equal scores by docid.

    The columns of the input are `qid`, `docno` and `score`, or `qid` and `query` with a
    `retriever`. The output has the same columns without `docid`, and a new `score` and `rank` (from
    0); new rows have only those of the query. In a ranking of passages the score of a document is
    that of its best passage, which is the row that rises; a new document is its first passage.

    Args:
        links: The link graph. The default is that of the collection.
        retriever: Ranks the queries first. None: the input is a ranking.
        head: Seeds of a query.
        direction: `out` (documents to which seeds link), `in` (documents that link to seeds) or
            `both`.
        damping: The share of a seed's score, above 0 and at most 1.
        depth: Rows of a query, None for all.

    `InputError` for arguments out of range, and for a collection without links.

    Example:
        >>> from soundingline.toolkit.corpus.links import LinkGraph
        >>> from soundingline.toolkit.data import Link
        >>> links = LinkGraph.build([Link("d1", "d2")])
        >>> expanded = index.bm25() >> MaxP() >> LinkExpansion(links, head=1)
        >>> expanded.search("mill")["docno"].tolist()
        ['d1', 'd2']
    """

    links: LinkGraph | None = None
    _: KW_ONLY
    retriever: pt.Transformer | None = None
    head: int = 10
    direction: str = "both"
    damping: float = 0.5
    depth: int | None = 1000

    def __post_init__(self) -> None:
        check_int("head", self.head)
        check_direction(self.direction)
        check_number("damping", self.damping, le=1, gt=0)
        if self.depth is not None:
            check_int("depth", self.depth, do="set it to null for all documents")
        self._counts = Counts()

    def bind(self, collection: Collection) -> Self:
        """`InputError` if neither the stage nor the collection has links."""
        bound_copy = super().bind(collection)
        if bound_copy.links is None:
            if collection.links is None:
                raise InputError(
                    "the benchmark has no links between its documents",
                    valid="a BEIR folder with links.tsv, or benchmark=fictional",
                    do="choose another retriever, or add the file (docs/data.md)",
                )
            bound_copy.links = collection.links()
        return bound_copy

    @property
    def fingerprint(self) -> str:
        """The fingerprints of the retriever and of the link graph, if they are known."""
        retriever = self.retriever.fingerprint if isinstance(self.retriever, Stage) else ""
        return "-".join(filter(None, (retriever, self.links.fingerprint if self.links else "")))

    @property
    def counts(self) -> Mapping[str, float]:
        """`expanded` rankings, `added` documents, and `hubs`: seeds that were not followed."""
        return self._counts()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        ranking = self.retriever.transform(inp) if self.retriever is not None else inp
        pt.validate.result_frame(ranking, extra_columns=["score"], context=self)
        # New documents have no number in the index of a Terrier retriever.
        ranking = as_pyterrier(ranking).drop(columns="docid", errors="ignore")
        if self.links is None:
            raise not_bound(self, "set links, or call bind(collection)")
        if not len(ranking):
            return ranking
        parts = [self._expanded(rows) for _, rows in ranking.groupby("qid", sort=False)]
        return pd.concat(parts, ignore_index=True)

    def _expanded(self, ranking: pd.DataFrame) -> pd.DataFrame:
        ranking = ranking.iloc[best_first(ranking)[0]]
        best: dict[str, float] = {}
        for docno, score in zip(ranking["docno"], ranking["score"], strict=True):
            best.setdefault(parent(docno), float(score))
        lowest = min(0.0, *best.values())
        gains = self._gains({docid: score - lowest for docid, score in best.items()})
        new = [docid for docid in gains if docid not in best]
        new = sorted(new, key=lambda docid: (-gains[docid], docid))[:_MOST]
        self._counts.add(expanded=1, added=len(new))
        # New rows have the columns of the ranking's query.
        has_passages = any(parent(docno) != docno for docno in ranking["docno"])
        suffix = f"{PASSAGE_MARK}0" if has_passages else ""
        columns = ["qid", *topic_columns(ranking)]
        added = pd.DataFrame(
            {
                **{name: [ranking[name].iloc[0]] * len(new) for name in columns},
                "docno": [docid + suffix for docid in new],
                "score": [lowest + gains[docid] for docid in new],
            }
        )
        documents = ranking["docno"].map(parent)
        own = documents.map(lambda docid: gains.get(docid, 0.0)).where(~documents.duplicated(), 0.0)
        rows = pd.concat([ranking.assign(score=ranking["score"] + own), added], ignore_index=True)
        rows = rows.sort_values("score", ascending=False, kind="stable", ignore_index=True)
        rows = rows.assign(rank=range(pt.model.FIRST_RANK, len(rows) + pt.model.FIRST_RANK))
        return rows[: self.depth]

    def _gains(self, scores: Mapping[str, float]) -> dict[str, float]:
        """What each linked document gets from the seeds."""
        assert self.links is not None
        gains: dict[str, float] = {}
        for docid in list(scores)[: self.head]:
            neighbours = self.links.neighbours(docid, self.direction)
            if len(neighbours) > _LARGEST_HUB:
                self._counts.add(hubs=1)
                continue
            for neighbour in neighbours:
                gains[neighbour] = gains.get(neighbour, 0.0) + self.damping * scores[docid]
        return gains
