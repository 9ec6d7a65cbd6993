"""The document-frequency filter: which phrases can tell documents apart.

A phrase is looked at through its sub-n-grams: its terms, and its n-grams where the index has them.
The limit is tau times the number of documents, rounded down. Two readings of the method differ:

                 corpus side                              query side
    paper        keep unless the phrase's rarest          keep where every sub-n-gram is in the
                 sub-n-gram is above the limit            index and the rarest is within the limit
    released     the same, over the sub-n-grams that      keep where any sub-n-gram is in the index
                 the index knows; all unknown: keep       and within the limit

`paper` takes a phrase for as frequent as its rarest sub-n-gram, which bounds its frequency from
above. A phrase without any index term (stop words) is never kept. Where tau times the number of
documents is below one, the limit is 0: every phrase that the index knows is too frequent, and
`note` says so. (The released code then has no limit on one side, and keeps nothing on the other.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolkit.errors import InputError

RULES = ("paper", "released")
UNSEEN = ("keep", "drop")
REASONS = ("kept", "too frequent", "not in the index", "no index term")
KEPT, TOO_FREQUENT, UNKNOWN, NO_TERMS = REASONS


class Decision(NamedTuple):
    """What became of a phrase and why. `frequencies` are the document frequencies of its
    sub-n-grams, in the order of `terms`."""

    phrase: str
    kept: bool
    reason: str
    terms: tuple[str, ...]
    frequencies: tuple[int, ...]


class DfFilter:
    """Keeps phrases that stand in few documents.

    `tau` (above 0, at most 1) is the largest share of the documents. `rule` is `paper` or
    `released` (see the module's text). `unseen`: what becomes of a phrase of which the index knows
    nothing: `keep`, `drop`, or None, which keeps it on the corpus side and drops it on the query
    side. `InputError` for other values.
    """

    def __init__(self, tau: float = 0.05, rule: str = "paper", unseen: str | None = None) -> None:
        if not 0 < tau <= 1:
            raise InputError(f"tau is {tau!r}", valid="above 0, at most 1 (no limit)")
        if rule not in RULES:
            raise InputError(f"rule is {rule!r}", valid=" or ".join(RULES))
        if unseen is not None and unseen not in UNSEEN:
            raise InputError(f"unseen is {unseen!r}", valid="keep, drop or null")
        self.tau, self.rule, self.unseen = float(tau), rule, unseen

    def limit(self, documents: int) -> int:
        """The largest document frequency that is kept, in a collection of so many documents."""
        # 0.29 * 100 is a little below 29 in binary.
        return math.floor(round(self.tau * documents, 9))

    def note(self, documents: int) -> str:
        """A line where the limit keeps nothing that the index knows; empty otherwise."""
        if self.limit(documents) >= 1:
            return ""
        return (
            f"tau={self.tau:g} of {documents:,} documents is below one document: every phrase that "
            "the index knows is too frequent; raise tau"
        )

    def decide(self, phrases: Sequence[str], index: Any, *, corpus_side: bool) -> list[Decision]:
        """A decision for each phrase. `index` has `analyzer`, `document_frequency` and a length."""
        limit = self.limit(len(index))
        rule = _RULES[self.rule, corpus_side]
        keep_unseen = corpus_side if self.unseen is None else self.unseen == "keep"
        decisions = []
        for phrase in phrases:
            terms = tuple(dict.fromkeys(index.analyzer.terms(phrase)))
            frequencies = tuple(int(index.document_frequency(term)) for term in terms)
            if not terms:
                keep, reason = False, NO_TERMS
            elif not any(frequencies):
                keep, reason = keep_unseen, UNKNOWN
            else:
                keep, reason = rule(frequencies, limit)
            decisions.append(Decision(phrase, keep, KEPT if keep else reason, terms, frequencies))
        return decisions

    def __repr__(self) -> str:
        return f"DfFilter(tau={self.tau}, rule={self.rule!r}, unseen={self.unseen!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DfFilter) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _corpus_paper(frequencies: Sequence[int], limit: int) -> tuple[bool, str]:
    return min(frequencies) <= limit, TOO_FREQUENT


def _corpus_released(frequencies: Sequence[int], limit: int) -> tuple[bool, str]:
    return min(filter(None, frequencies)) <= limit, TOO_FREQUENT


def _query_paper(frequencies: Sequence[int], limit: int) -> tuple[bool, str]:
    rarest = min(frequencies)
    return 0 < rarest <= limit, TOO_FREQUENT if rarest else UNKNOWN


def _query_released(frequencies: Sequence[int], limit: int) -> tuple[bool, str]:
    return any(0 < frequency <= limit for frequency in frequencies), TOO_FREQUENT


_RULES: dict[tuple[str, bool], Callable[[Sequence[int], int], tuple[bool, str]]] = {
    ("paper", True): _corpus_paper,
    ("released", True): _corpus_released,
    ("paper", False): _query_paper,
    ("released", False): _query_released,
}
