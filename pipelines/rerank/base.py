"""What a re-ranker's model shows to the stage around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Pair(NamedTuple):
    """A query and the text of a candidate (title in front, as it was indexed)."""

    query: str
    text: str


class PairScorer(Protocol):
    """Scores each pair by itself: neither the other pairs nor their order change a score.

    Thread-safe or not as it says; `DynamicBatcher` serialises what is not. `counts` tells what was
    out of the ordinary (`truncated`, `unparsable`, ...), cumulatively."""

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints give equal scores: model, its content, and every setting that changes
        a score (batch sizes do not)."""
        ...

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """One score a pair, in the order given; higher is more relevant. An empty list for none."""
        ...

    @property
    def counts(self) -> Mapping[str, int]: ...

    def close(self) -> None:
        """End connections, if it has any; the next `score` opens them again."""
        ...
