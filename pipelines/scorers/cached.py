"""Scores of requirements, from disk where they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.caching import Key, ResultCache, text_hash
from toolkit.files import fingerprint
from toolkit.search.scoring import (
    Candidate,
    Evidence,
    Judgement,
    RequirementScore,
    RequirementScorer,
    ScorerResources,
)


class CachedScorer:
    """A bound `scorer` that is asked once for each requirement of a question and each text: scores
    are kept in the folder `caches` under (the scorer's fingerprint, question, document,
    requirement, hash of the passages located for it), the overall probability under the question
    and all passages. None: nothing is kept.

    A candidate goes to the scorer with the requirements that have no score yet; passages of the
    others are its context. `counts`: those of the scorer, and with a
    folder `cache_hits` and `cache_misses`.
    """

    def __init__(self, scorer: RequirementScorer, caches: Path | None) -> None:
        self.scorer = scorer
        self.asks_model = scorer.asks_model
        self._fingerprint = scorer.fingerprint
        name = f"requirements-{fingerprint(self._fingerprint)}.sqlite"
        self._cache = ResultCache(caches / name if caches else None)

    @property
    def fingerprint(self) -> str:
        """The scorer's."""
        return self._fingerprint

    @property
    def counts(self) -> Mapping[str, float]:
        """See the class."""
        return {**self.scorer.counts, **(self._cache.lookups if self._cache.path else {})}

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """See `RequirementScorer`: a new cache for the scorer's new resources."""
        return self.scorer.bind(resources)

    def score(self, candidates: Sequence[Candidate]) -> list[Judgement]:
        """See `RequirementScorer`."""
        keys = [self._keys(candidate) for candidate in candidates]
        known = self._get([key for row in keys for key in row])
        missing = {
            number: reduced
            for number, candidate in enumerate(candidates)
            if (reduced := _missing(candidate, keys[number], known)) is not None
        }
        results = self.scorer.score(list(missing.values()))
        new: dict[Key, Any] = {}
        errors = {}
        for (number, reduced), judgement in zip(missing.items(), results, strict=True):
            errors[number] = judgement.error
            new |= _values(candidates[number], keys[number], reduced, judgement)
        self._cache.put(new.items())
        known |= new
        return [_judgement(row, known, errors.get(number, "")) for number, row in enumerate(keys)]

    def close(self) -> None:
        """The scorer's."""
        self.scorer.close()

    def _get(self, keys: Sequence[Key]) -> dict[Key, Any]:
        different = list(dict.fromkeys(keys))
        values = self._cache.get(different)
        return {key: row for key, row in zip(different, values, strict=True) if row is not None}

    def _keys(self, candidate: Candidate) -> list[Key]:
        """One key a requirement, and last that of the overall probability."""
        hashes = {
            passage: text_hash(f"{passage.unit_id}\n{passage.text}")
            for passage in candidate.passages
        }
        document = (self._fingerprint, candidate.question, candidate.docid, candidate.title)
        rows = [*candidate.evidence, Evidence("", tuple(sorted(hashes)))]
        return [
            (*document, requirement, " ".join(hashes[passage] for passage in passages))
            for requirement, passages in rows
        ]


def _missing(
    candidate: Candidate, keys: Sequence[Key], known: Mapping[Key, Any]
) -> Candidate | None:
    """What is to be asked for; None where all is known."""
    *needs, overall = keys
    rows = list(zip(needs, candidate.evidence, strict=True))
    unscored = tuple(evidence for key, evidence in rows if key not in known)
    if not unscored and overall in known:
        return None
    scored = [passage for key, evidence in rows if key in known for passage in evidence.passages]
    context = tuple(dict.fromkeys([*scored, *candidate.context]))
    return candidate._replace(evidence=unscored, context=context)


def _values(
    candidate: Candidate, keys: Sequence[Key], reduced: Candidate, judgement: Judgement
) -> dict[Key, Any]:
    """What is to be kept of the judgement of what was missing."""
    *needs, overall = keys
    key_of = dict(zip(candidate.evidence, needs, strict=True))
    rows = zip(reduced.evidence, judgement.requirements, strict=True)
    values: dict[Key, Any] = {
        key_of[evidence]: list(row) for evidence, row in rows if row is not None
    }
    if not judgement.error:
        values[overall] = [judgement.probability, judgement.origin]
    return values


def _judgement(keys: Sequence[Key], known: Mapping[Key, Any], error: str) -> Judgement:
    *needs, overall = keys
    rows = [RequirementScore(*known[key]) if key in known else None for key in needs]
    probability, origin = known.get(overall, (None, ""))
    return Judgement(tuple(rows), probability, origin, error)


def whole_evidence(candidate: Candidate) -> Evidence:
    """The question as one requirement, whose evidence are all passages."""
    return Evidence(candidate.question, candidate.passages)
