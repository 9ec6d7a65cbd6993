"""Scores of candidates, from disk where they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import NamedTuple

from pipelines.caching import Key, ResultCache, text_hash
from pipelines.rerank.base import Pair, PairScorer
from toolkit.files import fingerprint

# Pairs after which scores are written: what a kill may lose of a long run.
_WRITTEN_EVERY = 4096


class Candidate(NamedTuple):
    """A query and one row of its ranking."""

    query: str
    docno: str
    text: str

    @property
    def pair(self) -> Pair:
        return Pair(self.query, self.text)


class CachedScores:
    """Scores of candidates by `scorer`, kept in the folder `cache` (None: nowhere) under (the
    scorer's fingerprint, query, docno, hash of the text).

    A score that is read is to the bit the one that was computed; one that is not a number is not
    kept. `counts`, where there is a folder: `cache_hits` and `cache_misses`, of different
    candidates of a call.
    """

    def __init__(self, scorer: PairScorer, cache: Path | str | None) -> None:
        self._scorer = scorer
        self._cache: ResultCache | None = None
        if cache is not None:
            self._fingerprint = scorer.fingerprint
            name = f"rerank-{fingerprint(self._fingerprint)}.sqlite"
            self._cache = ResultCache(Path(cache) / name)

    @property
    def counts(self) -> Mapping[str, int]:
        return {} if self._cache is None else self._cache.lookups

    def scores(self, candidates: Sequence[Candidate]) -> list[float]:
        """One score a candidate. Those that are not known go to the scorer in one call (one in
        4096 candidates, after which they are kept)."""
        if self._cache is None:
            return self._scorer.score([candidate.pair for candidate in candidates])
        different = list(dict.fromkeys(candidates))
        keys = dict(zip(different, map(self._key, different), strict=True))
        cached = zip(different, self._cache.get(list(keys.values())), strict=True)
        scores: dict[Candidate, float] = {
            candidate: score for candidate, score in cached if score is not None
        }
        missing = [candidate for candidate in different if candidate not in scores]
        for start in range(0, len(missing), _WRITTEN_EVERY):
            part = missing[start : start + _WRITTEN_EVERY]
            new = self._scorer.score([candidate.pair for candidate in part])
            scores.update(zip(part, new, strict=True))
            self._cache.put(
                (keys[candidate], scores[candidate])
                for candidate in part
                if not isnan(scores[candidate])
            )
        return [scores[candidate] for candidate in candidates]

    def _key(self, candidate: Candidate) -> Key:
        return self._fingerprint, candidate.query, candidate.docno, text_hash(candidate.text)
