"""Long documents by their best window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from pipelines.rerank.base import Pair, PairScorer
from toolkit.counts import Counts
from toolkit.errors import InputError


class Splitting(PairScorer, Protocol):
    """A scorer that can cut a pair's text into windows which each fit its model whole."""

    def split(self, pair: Pair) -> list[Pair]: ...


def can_split(scorer: PairScorer) -> bool:
    """Whether a scorer is a `Splitting` one."""
    return callable(getattr(scorer, "split", None))


class BestWindow:
    """A `PairScorer` of whole texts around one that reads windows: a text's score is its best
    window's. All windows of all pairs go to `scorer` in one call. A window without a score (not a
    number) does not count; a text has none where none of its windows has. `InputError` for a
    scorer that cannot split."""

    def __init__(self, scorer: PairScorer) -> None:
        if not can_split(scorer):
            raise InputError(
                f"long_documents=max_passage, and {type(scorer).__name__} cannot split texts",
                valid="truncate",
                do="set long_documents=truncate, or index passages",
            )
        self.scorer: Splitting = scorer  # type: ignore[assignment]
        self._counts = Counts("windows")

    @property
    def fingerprint(self) -> str:
        return f"{self.scorer.fingerprint} max_passage"

    @property
    def counts(self) -> Mapping[str, int]:
        """The scorer's, and `windows`: the windows that were scored."""
        return {**self.scorer.counts, **self._counts()}

    def close(self) -> None:
        """See `PairScorer`."""
        self.scorer.close()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        # A text without a word may have no window.
        windows_of = [self.scorer.split(pair) or [pair] for pair in pairs]
        windows = list(chain.from_iterable(windows_of))
        if not windows:
            return []
        scores = np.array(self.scorer.score(windows), dtype=float)
        self._counts.add(windows=len(windows))
        starts = np.cumsum([0, *map(len, windows_of[:-1])])
        best: list[float] = np.fmax.reduceat(scores, starts).tolist()
        return best
