"""The scorer without a model: how far the words of a requirement stand in the located evidence."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from soundingline.agents.keyword.clues import Rarity
from soundingline.agents.literature.clauses import Clause, read_clause
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.search.scoring import (
    CandidateDocument,
    DocumentScore,
    Evidence,
    RequirementScore,
    ScorerResources,
    verdict_of,
)


class OverlapScorer:
    """A requirement scores the share of its words in the best sentence of its evidence, weighted by
    rarity, and less where no number of the sentence is in its range; one that excludes (`not ...`,
    `without ...`) scores 1 less that. No overall probability. Deterministic and thread-safe.
    """

    asks_model = False

    def __init__(self) -> None:
        self._rarity = Rarity()

    @property
    def fingerprint(self) -> str:
        """See `RequirementScorer`."""
        return fingerprint("overlap", 1)

    @property
    def counts(self) -> Mapping[str, float]:
        """Nothing is out of the ordinary."""
        return {}

    def bind(self, resources: ScorerResources) -> OverlapScorer:
        """See `RequirementScorer`: the collection's statistics."""
        bound = copy.copy(self)
        bound._rarity = Rarity(resources.document_frequency, resources.documents)
        return bound

    def score(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        """See `RequirementScorer`."""
        texts = {row.requirement for candidate in candidates for row in candidate.evidence}
        clauses = {text: read_clause(text, self._rarity) for text in texts}
        return [
            DocumentScore(
                tuple(_scored(clauses[row.requirement], row) for row in candidate.evidence)
            )
            for candidate in candidates
        ]

    def close(self) -> None:
        """See `RequirementScorer`: it holds nothing open."""


def _scored(clause: Clause, evidence: Evidence) -> RequirementScore:
    best = max(
        (
            (value, -number, sentence, passage.unit_id)
            for number, passage in enumerate(evidence.passages)
            for value, sentence in [clause.best_sentence(passage.text)]
        ),
        default=(0.0, 0, "", ""),
    )
    value = 1 - best[0] if clause.excluded else best[0]
    return RequirementScore(verdict_of(value, evidence), value, best[2], best[3])
