"""How much a scorer computed, and how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from pipelines.rerank.base import Pair, PairScorer
from toolkit.counts import Counts


class ScorerStats:
    """A `PairScorer` that hands each call on to `scorer`, equal pairs once, and keeps count.

    `counts` adds to the scorer's own `batches` (its calls), `pairs_scored` (in them),
    `largest_batch` (its pairs) and `failed_batches`. `seconds` is the time spent in it, that of
    all threads added up. As thread-safe as the scorer.
    """

    def __init__(self, scorer: PairScorer) -> None:
        self.scorer = scorer
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._counts = Counts("batches", "pairs_scored", "largest_batch", "failed_batches")

    @property
    def fingerprint(self) -> str:
        return self.scorer.fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        return {**self.scorer.counts, **self._counts()}

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """The scorer's scores of `pairs`. `ValueError` where it gives another number of them."""
        different = list(dict.fromkeys(pairs))
        if not different:
            return []
        size = len(different)
        started, failed = time.perf_counter(), True
        try:
            scores = self.scorer.score(different)
            if len(scores) != size:
                raise ValueError(f"{self.scorer!r}: {len(scores)} scores for {size} pairs")
            failed = False
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - started
            self._counts.add(batches=1, pairs_scored=size, failed_batches=failed)
            self._counts.raise_to("largest_batch", size)
        score_of = dict(zip(different, map(float, scores), strict=True))
        return [score_of[pair] for pair in pairs]

    def close(self) -> None:
        """See `PairScorer`."""
        self.scorer.close()

    def __repr__(self) -> str:
        return f"ScorerStats({self.scorer!r})"
