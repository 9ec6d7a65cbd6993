"""The scores of one question's candidates, and the calibration of a scorer's probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from typing_extensions import TypedDict

from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint, read_json
from soundingline.toolkit.search.scoring import SATISFIED, DocumentScore, RequirementScore

_FUSION = 60  # constant of reciprocal rank fusion


@dataclass(eq=False)
class CandidateScores:
    """Candidates of one question, their retrieval scores, and the score of each requirement.

    A document's score is (the mean of its requirements' scores + its probability of relevance) / 2,
    each from 0 to 1 (PaSaMaster, Du et al., 2026; the paper gives the sum, up to 2). If the scorer
    returns no probability, the retrieval score divided by the largest takes its place. Retrieval
    scores are reciprocal ranks (Cormack et al., SIGIR 2009), summed over all rankings.

    Args:
        calibrate: applied to the scorer's probability. None: the probability is used as it is.
        by_checklist: whether the requirements' scores count. If not, the score is the probability.

    Attributes:
        checklist: the requirements of the current round.
        scores: docid -> requirement -> score, also of requirements of earlier rounds.
        overall: docid -> the scorer's probability and where it was read.
        unscored: docid -> why a candidate has no scores.
    """

    calibrate: Callable[[float], float] | None = None
    by_checklist: bool = field(default=True, kw_only=True)
    checklist: tuple[str, ...] = ()
    scores: dict[str, dict[str, RequirementScore]] = field(default_factory=dict)
    overall: dict[str, tuple[float, str]] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)
    retrieval: dict[str, float] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    def add_ranking(self, ranking: Sequence[str]) -> None:
        """Add a ranking of units to the retrieval scores of their documents."""
        for rank, docid in enumerate(dict.fromkeys(map(parent, ranking)), start=1):
            self.retrieval[docid] = self.retrieval.get(docid, 0.0) + 1 / (_FUSION + rank)

    def add(self, docid: str, requirements: Sequence[str], judgement: DocumentScore) -> None:
        """Add what a scorer returned for a candidate. A candidate with an error counts as unscored
        until all its requirements are scored."""
        rows = zip(requirements, judgement.requirements, strict=True)
        cells = self.scores.setdefault(docid, {})
        cells.update((need, row) for need, row in rows if row is not None)
        if judgement.probability is not None:
            self.overall[docid] = judgement.probability, judgement.origin
        if judgement.complete:
            self.unscored.pop(docid, None)
        else:
            self.unscored[docid] = judgement.error or "unscored"

    def is_scored(self, docid: str) -> bool:
        """Whether the document is ranked by its scores."""
        return docid in self.scores and docid not in self.unscored

    def missing(self, docid: str) -> tuple[str, ...]:
        """Requirements of the checklist that have no score in the document."""
        cells = self.scores.get(docid, {})
        return tuple(need for need in self.checklist if need not in cells)

    def by_retrieval(self) -> list[str]:
        """All candidates by descending retrieval score."""
        return sorted(self.retrieval, key=lambda docid: -self.retrieval[docid])

    def best(self) -> list[str]:
        """Scored documents by descending score; equal ones in the order of retrieval."""
        scored = filter(self.is_scored, self.by_retrieval())
        return sorted(scored, key=self.score, reverse=True)

    def meeting_all(self) -> list[str]:
        """Scored documents that satisfy every requirement of the checklist, best first."""

        def satisfies(need: str, docid: str) -> bool:
            row = self.scores[docid].get(need)
            return row is not None and row.verdict == SATISFIED

        return [d for d in self.best() if all(satisfies(need, d) for need in self.checklist)]

    def unscored_candidates(self) -> list[str]:
        """Candidates without scores by descending retrieval score."""
        return [docid for docid in self.by_retrieval() if not self.is_scored(docid)]

    def ranked(self) -> list[str]:
        """The scored documents, then the others."""
        return self.best() + self.unscored_candidates()

    def score(self, docid: str) -> float:
        """The score of a scored document, 0 to 1. A requirement without a score counts 0."""
        if not self.by_checklist:
            return self.probability(docid)
        cells = self.scores[docid]
        rows = [cells[need].score for need in self.checklist if need in cells]
        mean = sum(rows) / len(self.checklist) if self.checklist else 0.0
        return (mean + self.probability(docid)) / 2

    def probability(self, docid: str) -> float:
        """The probability of relevance, calibrated if possible; without one, the retrieval score's
        share of the largest."""
        if docid in self.overall:
            probability = self.overall[docid][0]
            return self.calibrate(probability) if self.calibrate else probability
        return self.retrieval[docid] / max(self.retrieval.values())

    @property
    def kind_of_probability(self) -> str:
        """`calibrated`, `raw`, or empty if the scorer returned none."""
        if not self.overall:
            return ""
        return "calibrated" if self.calibrate else "raw"

    def table(self, docids: Sequence[str]) -> str:
        """The scores of documents by requirement, in one line of text."""
        rows = []
        for docid in docids:
            scores = [self.scores[docid].get(need) for need in self.checklist]
            cells = ", ".join(f"{row.score:.2f}" if row else "?" for row in scores)
            rows.append(f"{docid} ({cells})")
        requirements = "; ".join(self.checklist)
        return f"Requirements: {requirements}. Met by the best: {'; '.join(rows) or 'none'}."

    def row(self, docid: str) -> dict[str, Any]:
        """All that is known of a document as JSON values."""
        probability, origin = self.overall.get(docid, (None, ""))
        row: dict[str, Any] = {
            "retrieval": self.retrieval.get(docid, 0.0),
            "requirements": {n: s._asdict() for n, s in self.scores.get(docid, {}).items()},
        }
        if probability is not None:
            row |= {"probability": probability, "origin": origin}
            if self.calibrate:
                row["calibrated"] = self.calibrate(probability)
        if docid in self.unscored:
            row["unscored"] = self.unscored[docid]
        if self.is_scored(docid):
            row["score"] = self.score(docid)
        return row

    def restore(
        self,
        rounds: Sequence[Mapping[str, Any]],
        retrieval: Mapping[str, float],
        titles: Mapping[str, str],
    ) -> None:
        """Continue after rounds with these rows, with all retrieval scores and titles."""
        self.retrieval = {docid: float(score) for docid, score in retrieval.items()}
        self.titles = dict(titles)
        for record in rounds:
            self.checklist = tuple(record["checklist"])
            for docid, row in record["documents"].items():
                cells = row["requirements"].items()
                self.scores[docid] = {need: RequirementScore(**cell) for need, cell in cells}
                if "probability" in row:
                    self.overall[docid] = row["probability"], row["origin"]
                self.unscored.pop(docid, None)
                if "unscored" in row:
                    self.unscored[docid] = row["unscored"]


class _Isotonic(TypedDict):
    method: Literal["isotonic"]
    scorer: str
    x: list[float]
    y: list[float]


class _Logistic(TypedDict):
    method: Literal["platt", "temperature"]
    scorer: str
    slope: float
    intercept: float


class Calibration:
    """Maps a scorer's probability to the share of documents that met their question at it, by a
    file of `soundingline calibrate` (`InputError` if it cannot be read). `scorer` is the
    fingerprint of the scorer that it was fitted for."""

    def __init__(self, path: str) -> None:
        do = "set agent.calibration to a file of soundingline calibrate, or to null"
        self._fitted: Any = read_json(Path(path), _Isotonic | _Logistic, do=do)
        self.scorer: str = self._fitted["scorer"]
        if self._fitted["method"] == "isotonic":
            x, y = self._fitted["x"], self._fitted["y"]
            if not x or len(x) != len(y) or sorted(x) != x:
                raise InputError(f"x and y of the calibration {path} are not a function", do=do)

    @property
    def fingerprint(self) -> str:
        """A hash of the file's content."""
        return fingerprint(self._fitted)

    def __call__(self, probability: float) -> float:
        """The calibrated probability, 0 to 1."""
        fitted = self._fitted
        if fitted["method"] == "isotonic":
            value = float(np.interp(probability, fitted["x"], fitted["y"]))
        else:
            # The logistic function by the hyperbolic tangent, which does not overflow.
            odds = fitted["slope"] * logit(probability) + fitted["intercept"]
            value = (1 + math.tanh(odds / 2)) / 2
        return min(max(value, 0.0), 1.0)


def logit(probability: float) -> float:
    """The logarithm of the odds, with the probability limited to a millionth from 0 and 1."""
    bounded = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(bounded / (1 - bounded))
