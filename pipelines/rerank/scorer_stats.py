"""How much a scorer was asked, and how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from pipelines.rerank.base import Pair, PairScorer


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
        self._counts = dict.fromkeys(
            ("batches", "pairs_scored", "largest_batch", "failed_batches"), 0
        )

    @property
    def fingerprint(self) -> str:
        return self.scorer.fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        with self._lock:
            own = dict(self._counts)
        return {**self.scorer.counts, **own}

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """The scorer's scores of `pairs`. `ValueError` where it gives another number of them."""
        asked = list(dict.fromkeys(pairs))
        if not asked:
            return []
        started, failed = time.perf_counter(), True
        try:
            scores = self.scorer.score(asked)
            if len(scores) != len(asked):
                raise ValueError(f"{self.scorer!r}: {len(scores)} scores for {len(asked)} pairs")
            failed = False
        finally:
            self._count(len(asked), time.perf_counter() - started, failed)
        found = dict(zip(asked, map(float, scores), strict=True))
        return [found[pair] for pair in pairs]

    def _count(self, pairs: int, seconds: float, failed: bool) -> None:
        with self._lock:
            self.seconds += seconds
            self._counts["batches"] += 1
            self._counts["pairs_scored"] += pairs
            self._counts["largest_batch"] = max(self._counts["largest_batch"], pairs)
            self._counts["failed_batches"] += failed

    def close(self) -> None:
        """See `PairScorer`."""
        self.scorer.close()

    def __repr__(self) -> str:
        return f"ScorerStats({self.scorer!r})"
