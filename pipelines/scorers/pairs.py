"""Requirements scored by a model of pairs: a cross-encoder of `pipelines.rerank`, or a student."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from pipelines.rerank.base import Pair, PairScorer
from pipelines.rerank.cross_encoder import CrossEncoderScorer
from pipelines.rerank.dynamic_batcher import DynamicBatcher, check_wait
from pipelines.scorers.cached import CachedScorer, whole_evidence
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.search.scoring import (
    BY_SCORE,
    Candidate,
    Evidence,
    Judgement,
    RequirementScore,
    RequirementScorer,
    ScorerResources,
    verdict_of,
)


def _sigmoid(score: float) -> float:
    # Each branch takes the exponential of a number below 0, which cannot overflow.
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))


def _exponential(score: float) -> float:
    return math.exp(min(score, 0.0))


def _as_it_is(score: float) -> float:
    return min(max(score, 0.0), 1.0)


# From what a model puts out to 0..1: a logit, a log-probability (monoT5), or a probability.
OUTPUTS: Mapping[str, Callable[[float], float]] = {
    "logit": _sigmoid,
    "log_probability": _exponential,
    "probability": _as_it_is,
}


class PairScorers:
    """A requirement scores what `scorer` gives its best passage; the overall probability is that of
    the question with the best of all passages.

    `scorer` is a `PairScorer`, or a stage that holds one as `scorer` (`MonoT5`, `RankLLaMA`).
    `output` says what it puts out: `logit`, `log_probability` or `probability`. A document without
    passages scores 0. A score that is not a number leaves its requirement unscored. Requests of
    several threads share batches for `max_wait_ms` (see `DynamicBatcher`).
    `counts`: the scorer's, `pairs`, and `not_a_number`.
    """

    asks_model = False

    def __init__(
        self, scorer: PairScorer, *, output: str = "logit", max_wait_ms: float = 5.0
    ) -> None:
        if output not in OUTPUTS:
            raise InputError(f"output={output!r}", valid=", ".join(OUTPUTS))
        check_wait(max_wait_ms)
        self.scorer: PairScorer = getattr(scorer, "scorer", scorer)
        if not callable(getattr(self.scorer, "score", None)):
            raise InputError(
                f"{type(scorer).__name__} scores no pairs",
                valid="a re-ranker that scores each pair by itself, such as monot5 or rankllama",
                do="choose one: reranker@scorer.scorer=...; for a language model scorer=chat",
            )
        self.output, self.max_wait_ms = output, max_wait_ms
        self._batched = DynamicBatcher(self.scorer, max_wait_ms)
        self._counts = Counts("pairs", "not_a_number")

    @property
    def fingerprint(self) -> str:
        """The scorer's, and how its output is read."""
        return fingerprint("pairs", self.scorer.fingerprint, self.output)

    @property
    def counts(self) -> Mapping[str, float]:
        """See the class."""
        return {**self._batched.counts, **self._counts()}

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """See `RequirementScorer`: with its scores kept."""
        return CachedScorer(self, resources.caches)

    def score(self, candidates: Sequence[Candidate]) -> list[Judgement]:
        """See `RequirementScorer`. All pairs of all candidates go to the model together."""
        rows = [[*candidate.evidence, whole_evidence(candidate)] for candidate in candidates]
        evidence = [one for row in rows for one in row]
        pairs = list(dict.fromkeys(pair for one in evidence for pair in _pairs(one)))
        scores = dict(zip(pairs, self._batched.score(pairs), strict=True)) if pairs else {}
        self._counts.add(pairs=len(pairs), not_a_number=sum(map(math.isnan, scores.values())))
        return [self._judgement(row, scores) for row in rows]

    def close(self) -> None:
        """See `RequirementScorer`: the scorer's connections."""
        self.scorer.close()

    def _judgement(self, row: Sequence[Evidence], scores: Mapping[Pair, float]) -> Judgement:
        *requirements, overall = (self._best(evidence, scores) for evidence in row)
        error = "not_a_number" if None in requirements else ""
        probability = overall.score if overall else None
        return Judgement(
            tuple(requirements), probability, BY_SCORE if overall is not None else "", error
        )

    def _best(self, evidence: Evidence, scores: Mapping[Pair, float]) -> RequirementScore | None:
        values = [scores[pair] for pair in _pairs(evidence)]
        if not values:
            return RequirementScore(verdict_of(0.0, evidence), 0.0)
        numbers = [number for number, value in enumerate(values) if not math.isnan(value)]
        if not numbers:
            return None
        best = max(numbers, key=lambda number: values[number])
        value = OUTPUTS[self.output](values[best])
        passage = evidence.passages[best].unit_id
        return RequirementScore(verdict_of(value, evidence), value, "", passage)


class StudentScorer(PairScorers):
    """`PairScorers` over a transformers classifier; arguments as of `CrossEncoderScorer`."""

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_length: int = 512,
        batch_tokens: int | None = None,
        max_wait_ms: float = 5.0,
    ) -> None:
        scorer = CrossEncoderScorer(
            model,
            revision=revision,
            device=device,
            dtype=dtype,
            max_length=max_length,
            batch_tokens=batch_tokens,
        )
        super().__init__(scorer, output="logit", max_wait_ms=max_wait_ms)


def _pairs(evidence: Evidence) -> list[Pair]:
    return [Pair(evidence.requirement, passage.text) for passage in evidence.passages]
