"""Scores of requirements: whether passages of a document meet what a question asks for. The Scorer
of PaSaMaster (Du et al., 2026, section 2.2) gives each requirement a score and a rationale that
names its passage, and each document a probability that it is relevant as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from soundingline.toolkit.data import DocumentStore, Unit
from soundingline.toolkit.search.tool import EVIDENCE, Page
from soundingline.toolkit.trajectory import Trajectory, scored_documents

SATISFIED, NOT, UNKNOWN = VERDICTS = ("satisfied", "not", "unknown")
# Where a probability was read.
BY_LOGPROBS, BY_STATEMENT, BY_SCORE = ORIGINS = ("log-probabilities", "stated", "score")
_LEAST_MET = 0.5


class Evidence(NamedTuple):
    """A requirement and the passages that concern it most, best first; there may be none."""

    requirement: str
    passages: tuple[Unit, ...] = ()


class CandidateDocument(NamedTuple):
    """A document whose evidence is to be scored. `context` holds passages of requirements that have
    a score already; they count for the probability of the document. `qid` is the question that a
    model's requests are charged to."""

    question: str
    docid: str
    title: str
    evidence: tuple[Evidence, ...]
    context: tuple[Unit, ...] = ()
    qid: str = ""

    @property
    def passages(self) -> tuple[Unit, ...]:
        """All passages, each once, in order of first appearance."""
        located = [passage for row in self.evidence for passage in row.passages]
        return tuple(dict.fromkeys([*located, *self.context]))


class RequirementScore(NamedTuple):
    """The score of a document for one requirement: one of `VERDICTS`, a number in [0, 1], and the
    id of the passage that the rationale refers to, if there is one."""

    verdict: str
    score: float
    rationale: str = ""
    passage: str = ""


class DocumentScore(NamedTuple):
    """What a scorer returns for a candidate: a score (or None) for each row of the evidence, the
    probability in [0, 1] that the document is relevant (or None) and where it was read (one of
    `ORIGINS`), and the code of what went wrong, if anything."""

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
    """What a run provides for its scorer: the folder that keeps scores between runs, a
    `soundingline.toolkit.llm.blocking.BlockingModel`, whether the model's API returns
    log-probabilities, the number of documents that contain a word, and the number of documents."""

    caches: Path | None = None
    model: Any = None
    gives_logprobs: bool = True
    document_frequency: Callable[[str], int] | None = None
    documents: int | None = None


@runtime_checkable
class RequirementScorer(Protocol):
    """Scores documents, each on its own. Constructors take plain values and are cheap; any number
    of threads may call a scorer at once."""

    @property
    def needs_llm(self) -> bool:
        """Whether it needs a language model."""

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints give equal scores; `InputError` if a file cannot be read."""

    @property
    def counts(self) -> Mapping[str, float]:
        """Requests and irregularities so far, by name."""

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """A copy that works with `resources`."""

    def score(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        """One score for each candidate, in order."""

    def close(self) -> None:
        """Close connections."""


@dataclass(frozen=True)
class ScoresPage(Page):
    """The page of a call that scores documents: a score for each of `docids`, whose evidence the
    scorer read, with the `requirements` in order."""

    docids: Sequence[str]
    requirements: Sequence[str]
    scores: Sequence[DocumentScore]
    layer: str = EVIDENCE
    tier: ClassVar[str] = "opened"

    @property
    def shown(self) -> Sequence[str]:
        return tuple(self.docids)

    @property
    def text(self) -> str:
        """A line for each document: verdict and score of each requirement, by number."""
        lines = [f"{number}. {text}" for number, text in enumerate(self.requirements, start=1)]
        for docid, score in zip(self.docids, self.scores, strict=True):
            cells = [
                f"{number} unscored" if row is None else f"{number} {row.verdict} {row.score:.2f}"
                for number, row in enumerate(score.requirements, start=1)
            ]
            known = score.probability
            overall = "" if known is None else f" | overall {known:.2f} ({score.origin})"
            wrong = f" | {score.error}" if score.error else ""
            lines.append(f"docid={docid} | {'; '.join(cells)}{overall}{wrong}")
        return "\n".join(lines)


def verdict_of(score: float, evidence: Evidence) -> str:
    """The verdict for a score alone: unknown without passages, else satisfied from 0.5."""
    if not evidence.passages:
        return UNKNOWN
    return SATISFIED if score >= _LEAST_MET else NOT


def training_rows(
    trajectory: Trajectory, passages: DocumentStore, repeat: int = 1
) -> Iterator[dict[str, Any]]:
    """A row for each document that the rounds of a navigator's trajectory scored, as `scorer=file`
    reads them, with the passages of the store that the scores name. Documents without a score, and
    passages that are missing from the store, are left out. `repeat` is the number of the repeat,
    from 1."""
    for docid, document in scored_documents(trajectory.rounds).items():
        if not document.requirements:
            continue
        units: list[Unit] = []
        for unit_id in document.passages:
            with suppress(KeyError):
                units += passages.texts([unit_id])
        yield {
            "query": trajectory.question,
            "docid": docid,
            "chunks": [{"id": unit.unit_id, "text": unit.text} for unit in units],
            "requirements": [
                {"requirement": need, **cell} for need, cell in document.requirements.items()
            ],
            "overall": document.probability,
            "origin": document.origin,
            "repeat": repeat,
        }
