"""What the agent has been exposed to: the evidence tiers, in order of first exposure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat

from toolkit.contracts import TIERS, Exposure, ToolCall, parents


class EvidenceLog:
    """Ordered sets of docids (documents, never passages), one for each of `contracts.TIERS`.

    surfaced: in a ranking that a search cached, shown or not. previewed: shown in a page of
    results. opened: its text was read. cited: named by the answer. `exposures` holds the first
    showing of each document, and of each layer of it, in the last three; surfaced has no rows,
    since one search would give a thousand. The log counts every token of tool output, error texts
    included, because the agent reads them all; the tokens of an exposure are those up to the end of
    its call.
    """

    def __init__(self) -> None:
        self._tiers: dict[str, dict[str, None]] = {tier: {} for tier in TIERS}
        self._shown: set[str] = set()
        self._layers: set[tuple[str, str, str]] = set()
        self._exposures: list[Exposure] = []
        self._calls = 0
        self._tokens = 0

    @property
    def tiers(self) -> Mapping[str, Sequence[str]]:
        return {tier: tuple(docids) for tier, docids in self._tiers.items()}

    @property
    def exposures(self) -> Sequence[Exposure]:
        return tuple(self._exposures)

    @property
    def known(self) -> Collection[str]:
        """The docids that the session has brought up, which are those an answer can cite."""
        surfaced, previewed, opened = (self._tiers[tier] for tier in TIERS[:3])
        return (surfaced | previewed | opened).keys()

    def restore(self, calls: Sequence[ToolCall], exposures: Sequence[Exposure]) -> None:
        """Begin where a log with these calls and exposures ended."""
        for call in calls:
            self.count(call.tokens)
            self.surface(parents(call.ranking))
        for row in exposures:
            self._exposures.append(row)
            self._tiers[row.tier][row.docid] = None
            self._layers.add((row.tier, row.docid, row.layer))
            if row.tier != "cited":
                self._shown.add(row.docid)

    def count(self, tokens: int) -> None:
        """A call ended whose output has `tokens` tokens. Comes before its `surface` and `show`."""
        self._calls += 1
        self._tokens += tokens

    def surface(self, docids: Iterable[str]) -> None:
        """A fresh ranking holds these documents, best first."""
        self._tiers["surfaced"].update(zip(docids, repeat(None)))

    def show(self, tier: str, docids: Iterable[str], layer: str = "") -> None:
        """The newest call showed these documents in `tier`, in this order, and of them `layer`."""
        for docid in docids:
            if tier != "cited":
                self._shown.add(docid)
            self._tiers[tier][docid] = None
            if (tier, docid, layer) not in self._layers:
                self._layers.add((tier, docid, layer))
                self._exposures.append(
                    Exposure(self._calls, tier, docid, len(self._shown), self._tokens, layer)
                )
