"""The re-ranking stage of a pipeline, whatever its model is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from pipelines.rerank.base import PairScorer
from pipelines.rerank.cached import CachedScores, Candidate
from pipelines.rerank.dynamic_batcher import DynamicBatcher, check_wait
from pipelines.rerank.head_and_tail import rejoin, split_head
from pipelines.rerank.scorer_stats import ScorerStats
from pipelines.rerank.texts import check_columns, texts_for, texts_of
from pipelines.rerank.windows import BestWindow, can_split
from pipelines.stage import Stage, Texts
from toolkit.checks import check_integer
from toolkit.counts import Counts, MadeOnce
from toolkit.errors import InputError

LONG_DOCUMENTS = ("truncate", "max_passage")


class Reranker(Stage):
    """Puts the best `depth` rows of each query in the order of `scorer`; the other rows stay below
    them in the retriever's order (see `head_and_tail.rejoin`).

    In: `qid`, `query`, `docno`, `score`, and `rank` (else `score` orders). The text is that of the
    column `text`, or what `texts` gives for the docnos of the head (`contents`: title in front).
    Out: the same columns and rows, `score` and `rank` new, queries as first seen, best first.

    - `texts`: of a document store, say; None: those of the collection, or of the lexical index that
      the ranking came from. Needed where the ranking has no column `text`.
    - `depth`: rows of each query to score; from 1, a longer one than the list is fine.
    - `cache`: a folder where scores are kept between runs; None: the collection's, if it has one.
      Safe for threads and processes together; another model, setting, query or text never finds an
      old score.
    - `long_documents`: `truncate` leaves texts that the model does not hold to the scorer, which
      cuts them; `max_passage` scores the windows into which the scorer splits them and takes the
      best (Dai and Callan, SIGIR 2019). None: `max_passage` where the collection's units are whole
      documents and the scorer can split them, else `truncate`.
    - `max_wait_ms`: how long a request waits for those of other threads, to share the model's
      batches; see `DynamicBatcher`. None: threads call the scorer beside each other, which suits
      one that is thread-safe and asks a server. A `DynamicBatcher` scorer is taken as it is.

    All candidates of a frame are scored together. `counts` are the scorer's and the stage's:
    `missing_text` (rows of the head without text, scored as the empty text), `unscored` (rows whose
    score was not a number, put at the head's end), `pairs_scored` and what else `ScorerStats`
    counts, with a cache `cache_hits` and `cache_misses`, and `seconds` in the scorer. Bound copies
    share the scorer, its batches and the counts.

    `InputError` where there is no text to score, and for a docno that `texts` lacks.
    """

    def __init__(
        self,
        scorer: PairScorer,
        *,
        texts: Texts | None = None,
        depth: int = 50,
        cache: Path | str | None = None,
        long_documents: str | None = None,
        max_wait_ms: float | None = 5.0,
    ) -> None:
        check_integer("depth", depth)
        if long_documents not in (None, *LONG_DOCUMENTS):
            valid = f"null, {', '.join(LONG_DOCUMENTS)}"
            raise InputError(f"long_documents={long_documents!r}", valid=valid)
        check_wait(max_wait_ms)
        self.scorer, self.texts, self.depth, self.cache = scorer, texts, depth, cache
        self.long_documents, self.max_wait_ms = long_documents, max_wait_ms
        self.schematic = {"label": f"{self._label} %{depth}"}
        self._models, self._caches = MadeOnce(), MadeOnce()
        self._counts = Counts("missing_text", "unscored")
        if long_documents == "max_passage":
            _ = self._model  # which is refused where the scorer cannot split texts

    @property
    def fingerprint(self) -> str:
        """The scorer's: what its checkpoint holds, beside what the settings name."""
        return self.scorer.fingerprint

    @property
    def counts(self) -> Mapping[str, float]:
        model = self._model
        cached = Counter[str]()
        for cache in self._caches.values():
            cached.update(cache.counts)
        seconds = round(model.seconds, 3)
        return {**model.counts, **cached, **self._counts(), "seconds": seconds}

    def close(self) -> None:
        """See `Stage`: the scorer's connections."""
        self.scorer.close()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        texts = texts_for(inp, self.texts, self.collection)
        check_columns(inp, texts, self)
        head, tail = split_head(inp, self.depth)
        if not len(head):
            return rejoin(head, tail)
        return rejoin(head.assign(score=self._scores(head, texts)), tail)

    def _scores(self, head: pd.DataFrame, texts: Texts | None) -> pd.Series:
        queries, docnos = head["query"].tolist(), list(map(str, head["docno"].tolist()))
        contents = texts_of(head, texts)
        candidates = list(map(Candidate, queries, docnos, contents))
        scores = self._cached.scores(candidates)
        self._counts.add(missing_text=contents.count(""), unscored=sum(map(math.isnan, scores)))
        return pd.Series(scores, index=head.index, dtype=float)

    @property
    def _treatment(self) -> str:
        if self.long_documents:
            return self.long_documents
        whole_documents = self.collection is not None and self.collection.whole_documents
        return "max_passage" if whole_documents and can_split(self.scorer) else "truncate"

    @property
    def _model(self) -> DynamicBatcher | ScorerStats:
        by_windows = self._treatment == "max_passage"
        return self._models.get(
            by_windows, lambda: _shared(self.scorer, by_windows, self.max_wait_ms)
        )

    @property
    def _cached(self) -> CachedScores:
        model = self._model
        folder = self.cache or (self.collection.caches if self.collection else None)
        return self._caches.get((self._treatment, folder), lambda: CachedScores(model, folder))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.scorer!r}, depth={self.depth}, "
            f"long_documents={self.long_documents!r})"
        )

    @property
    def _label(self) -> str:
        """What a reader knows it by: its own class, or where that is this one, its scorer's."""
        return type(self.scorer if type(self) is Reranker else self).__name__

    def _identity(self) -> Any:
        return self.scorer.fingerprint, self.depth, self.long_documents, self.texts


class RerankHead(Stage):
    """Any PyTerrier re-ranker on the best `depth` rows of each query (None: on all); the other rows
    stay below them, as with `Reranker`, whose columns it has.

    `stage` is given `qid, query, docno, text, score, rank` and whatever else the ranking has, and
    its scores are taken; a row that it leaves out comes at the head's end. `texts` None: those of
    the collection. `InputError` as in `Reranker`.
    """

    def __init__(
        self, stage: pt.Transformer, *, depth: int | None = None, texts: Texts | None = None
    ) -> None:
        if depth is not None:
            check_integer("depth", depth)
        self.stage, self.depth, self.texts = stage, depth, texts

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        texts = texts_for(inp, self.texts, self.collection)
        check_columns(inp, texts, self)
        head, tail = split_head(inp, self.depth or max(1, len(inp)))
        if not len(head):
            return rejoin(head, tail)
        # Rows by a key of our own: docnos may repeat, and the stage may change order and columns.
        keys = [str(row) for row in range(len(head))]
        rows = head.assign(docno=keys, text=texts_of(head, texts))
        scored = self.stage.transform(rows.reset_index(drop=True))
        scores = scored.drop_duplicates("docno").set_index("docno")["score"]
        return rejoin(head.assign(score=scores.reindex(keys).to_numpy(dtype=float)), tail)


def _shared(
    scorer: PairScorer, by_windows: bool, max_wait_ms: float | None
) -> DynamicBatcher | ScorerStats:
    model = BestWindow(scorer) if by_windows else scorer
    if isinstance(model, DynamicBatcher | ScorerStats):
        return model
    return ScorerStats(model) if max_wait_ms is None else DynamicBatcher(model, max_wait_ms)
