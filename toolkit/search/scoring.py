"""Scorers of requirements: whether the passages of a document meet what a question asks for.

The Scorer of PaSaMaster (Du et al., 2026, section 2.2): for each requirement a score and a
rationale that names its passage, and a probability that the document is relevant as a whole.
What scores is given by whoever puts a run together (`toolkit.search.literature.Operators`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from toolkit.corpus.layers import EVIDENCE

SATISFIED, NOT, UNKNOWN = VERDICTS = ("satisfied", "not", "unknown")
# Where the overall probability comes from.
BY_LOGPROBS, BY_STATEMENT, BY_SCORE = ORIGINS = ("log-probabilities", "stated", "score")
_LEAST_MET = 0.5


class Passage(NamedTuple):
    """A passage of a document as a scorer reads it, perhaps cut."""

    unit_id: str
    text: str


class Evidence(NamedTuple):
    """A requirement and the passages that speak most of it, the best first; none where nothing
    does."""

    requirement: str
    passages: tuple[Passage, ...] = ()


class Candidate(NamedTuple):
    """A document whose `evidence` is to be scored. `context` holds passages that were located for
    requirements with a score already; they count for the overall probability. `qid` is the question
    on whose account a model is asked."""

    question: str
    docid: str
    title: str
    evidence: tuple[Evidence, ...]
    context: tuple[Passage, ...] = ()
    qid: str = ""

    @property
    def passages(self) -> tuple[Passage, ...]:
        """All of them, each once, in order of first appearance."""
        located = [passage for row in self.evidence for passage in row.passages]
        return tuple(dict.fromkeys([*located, *self.context]))


class RequirementScore(NamedTuple):
    """What a document got for one requirement: one of `VERDICTS`, a score from 0 to 1, why, and the
    unit id of the passage that says so (empty where none does)."""

    verdict: str
    score: float
    rationale: str = ""
    passage: str = ""


class Judgement(NamedTuple):
    """What a scorer gives for a candidate.

    `requirements`: one a row of its evidence, None where there is no score. `probability` (0 to 1)
    that the document is relevant as a whole, None where the scorer tells none; `origin`, one of
    `ORIGINS`, tells where it was read. `error` is the code of what went wrong.
    """

    requirements: tuple[RequirementScore | None, ...]
    probability: float | None = None
    origin: str = ""
    error: str = ""

    @property
    def complete(self) -> bool:
        """Whether every requirement has a score."""
        return not self.error and None not in self.requirements


@dataclass(frozen=True)
class ScorerResources:
    """What only a run can give its scorer.

    - `caches`: the folder where scores are kept between runs; None: nowhere.
    - `model`: a `toolkit.llm.blocking.BlockingModel` for scorers that ask one; `gives_logprobs`:
      whether its API knows log-probabilities.
    - `document_frequency`: word -> documents that hold it; `documents`: their number.
    """

    caches: Path | None = None
    model: Any = None
    gives_logprobs: bool = True
    document_frequency: Callable[[str], int] | None = None
    documents: int | None = None


@runtime_checkable
class RequirementScorer(Protocol):
    """Scores each candidate by itself. Its constructor takes plain arguments and is cheap; any
    number of threads may call it at once."""

    @property
    def asks_model(self) -> bool:
        """Whether it cannot work without a language model."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints give equal scores. `InputError` where what is named cannot be had."""
        ...

    @property
    def counts(self) -> Mapping[str, float]:
        """What was out of the ordinary, and what was asked, cumulatively."""
        ...

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """One that works with `resources`; this one stays as it is."""
        ...

    def score(self, candidates: Sequence[Candidate]) -> list[Judgement]:
        """One judgement a candidate, in the order given."""
        ...

    def close(self) -> None:
        """End connections, if there are any."""
        ...


@dataclass(frozen=True)
class ScoresPage:
    """`details` of a call that scores: a judgement for each document, whose evidence was read.
    `requirements` are those of every judgement, in order."""

    docids: Sequence[str]
    requirements: Sequence[str]
    judgements: Sequence[Judgement]
    layer: str = EVIDENCE
    tier: ClassVar[str] = "opened"

    @property
    def shown(self) -> Sequence[str]:
        return tuple(self.docids)

    @property
    def text(self) -> str:
        """A line for each document: verdict and score of each requirement, by number."""
        lines = [f"{number}. {text}" for number, text in enumerate(self.requirements, start=1)]
        for docid, judgement in zip(self.docids, self.judgements, strict=True):
            cells = [
                f"{number} unscored" if row is None else f"{number} {row.verdict} {row.score:.2f}"
                for number, row in enumerate(judgement.requirements, start=1)
            ]
            known = judgement.probability
            overall = "" if known is None else f" | overall {known:.2f} ({judgement.origin})"
            wrong = f" | {judgement.error}" if judgement.error else ""
            lines.append(f"docid={docid} | {'; '.join(cells)}{overall}{wrong}")
        return "\n".join(lines)


def verdict_of(score: float, evidence: Evidence) -> str:
    """The verdict of a scorer that gives numbers alone: unknown without any passage, else satisfied
    from 0.5 up."""
    if not evidence.passages:
        return UNKNOWN
    return SATISFIED if score >= _LEAST_MET else NOT


def judgement_row(candidate: Candidate, judgement: Judgement) -> dict[str, Any]:
    """A judgement as plain JSON values, with the texts that it is of: a line of a file of scores,
    and a row to train a scorer with."""
    pairs = zip(candidate.evidence, judgement.requirements, strict=True)
    return {
        "query": candidate.question,
        "docid": candidate.docid,
        "chunks": [{"id": unit_id, "text": text} for unit_id, text in candidate.passages],
        "requirements": [
            {"requirement": evidence.requirement, **row._asdict()}
            for evidence, row in pairs
            if row is not None
        ],
        "overall": judgement.probability,
        "origin": judgement.origin,
    }
