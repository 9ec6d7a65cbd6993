"""The document-frequency filter: keeps the phrases that discriminate between documents.

A phrase is judged by its parts: its index terms, and its n-grams if the index has them. The limit
is tau times the number of documents, rounded down. The paper and the released code of SIRA differ:

                 corpus side                              query side
    none         keep                                     keep
    paper        keep unless the rarest part of the       keep if every part is in the index and
                 phrase is above the limit                the rarest is within the limit
    released     the same over the parts that are in      keep if any part is in the index and
                 the index; none is: keep                 within the limit

The paper does not define the frequency of a phrase; that of its rarest part is an upper bound. A
phrase without any index term (stop words) is never kept. If tau times the number of documents is
below one, the limit is 0: every phrase in the index is too frequent, and `note` reports it. (The
released code then has no limit on one side, and keeps nothing on the other.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from soundingline.pipelines.enrich.phrases import WeightedPhrase, weight_of
from soundingline.toolkit.errors import InputError

RULES = ("paper", "released", "none")
REASONS = ("kept", "too frequent", "not in the index", "no index term")
KEPT, TOO_FREQUENT, UNKNOWN, NO_TERMS = REASONS


class FilterDecision(NamedTuple):
    """Whether a phrase is kept, and the reason. `frequencies` has the document frequency of each of
    its `terms`."""

    phrase: str
    kept: bool
    reason: str
    terms: tuple[str, ...]
    frequencies: tuple[int, ...]

    def row(self) -> dict[str, Any]:
        """The decision as it is written to disk; `df` is that of the rarest part."""
        df = min(self.frequencies, default=0)
        row = {"phrase": self.phrase, "kept": self.kept, "reason": self.reason, "df": df}
        weighted = isinstance(self.phrase, WeightedPhrase)
        return {**row, "weight": weight_of(self.phrase)} if weighted else row


@dataclass(frozen=True)
class DfFilter:
    """Keeps phrases that occur in few documents.

    Args:
        tau: The largest share of the documents, above 0 and at most 1.
        rule: `paper`, `released` or `none` (see the module).

    Raises:
        InputError: For other values.

    Example:
        >>> DfFilter(tau=0.05).limit(documents=1010)
        50
    """

    tau: float = 0.05
    rule: str = "paper"

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise InputError(f"tau is {self.tau!r}", valid="above 0, at most 1 (no limit)")
        if self.rule not in RULES:
            raise InputError(f"rule is {self.rule!r}", valid=", ".join(RULES))
        # The representation is part of the fingerprint of an index: 1 and 1.0 are the same tau.
        object.__setattr__(self, "tau", float(self.tau))

    def limit(self, documents: int) -> int:
        """The largest document frequency that is kept, in a collection of so many documents."""
        # 0.29 * 100 is a little below 29 in binary.
        return math.floor(round(self.tau * documents, 9))

    def note(self, documents: int) -> str:
        """A warning if the limit keeps nothing that is in the index; otherwise empty."""
        if self.rule == "none" or self.limit(documents) >= 1:
            return ""
        return (
            f"tau={self.tau:g} of {documents:,} documents is below one document: every phrase that "
            "the index knows is too frequent; raise tau"
        )

    def decide(
        self, phrases: Sequence[str], index: Any, *, corpus_side: bool
    ) -> list[FilterDecision]:
        """A decision for each phrase. `index` has `analyzer`, `document_frequency` and a length."""
        limit = self.limit(len(index))
        decisions = []
        for phrase in phrases:
            terms = tuple(dict.fromkeys(index.analyzer.terms(phrase)))
            frequencies = tuple(int(index.document_frequency(term)) for term in terms)
            keep, reason = self._decision(frequencies, limit, corpus_side)
            decisions.append(
                FilterDecision(phrase, keep, KEPT if keep else reason, terms, frequencies)
            )
        return decisions

    def _decision(
        self, frequencies: Sequence[int], limit: int, corpus_side: bool
    ) -> tuple[bool, str]:
        """Whether a phrase with these frequencies is kept, and the reason if it is not."""
        if not frequencies:
            return False, NO_TERMS
        if self.rule == "none":
            return True, KEPT
        known = [frequency for frequency in frequencies if frequency]
        if not known or (self.rule == "paper" and len(known) < len(frequencies)):
            return corpus_side, UNKNOWN
        return min(known) <= limit, TOO_FREQUENT


NO_FILTER = DfFilter(tau=1.0, rule="none")
"""Keeps every phrase that has an index term."""
