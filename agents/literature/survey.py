"""What is known of one question: candidates, how they were retrieved, and what each requirement got
in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from soundingline.toolkit.data import parent
from soundingline.toolkit.search.scoring import DocumentScore, RequirementScore

_FUSION = 60  # of reciprocal rank fusion


class Survey:
    """Candidates of one question.

    - `checklist`: the requirements of the round. `scores[docid][requirement]`: what was scored,
      also for requirements of earlier rounds. `overall[docid]`: a scorer's probability and where it
      was read. `unscored[docid]`: why a candidate has no scores. `titles[docid]`, where one was
      shown.
    - Retrieval scores are reciprocal ranks (Cormack et al., SIGIR 2009), summed over all rankings.
    - A document's score is (the mean of its requirements' scores + its probability) / 2, each 0 to
      1, as in the paper: 2 is the largest value of the sum. `calibrate` is applied to the
      probability. Where the scorer tells none, the retrieval score takes its place, divided by the
      largest.
    """

    def __init__(self, calibrate: Callable[[float], float] | None = None) -> None:
        self.checklist: tuple[str, ...] = ()
        self.scores: dict[str, dict[str, RequirementScore]] = {}
        self.overall: dict[str, tuple[float, str]] = {}
        self.unscored: dict[str, str] = {}
        self.retrieval: dict[str, float] = {}
        self.titles: dict[str, str] = {}
        self._calibrate = calibrate

    def take(self, ranking: Sequence[str]) -> None:
        """Add a ranking to the retrieval scores."""
        for rank, docid in enumerate(dict.fromkeys(map(parent, ranking)), start=1):
            self.retrieval[docid] = self.retrieval.get(docid, 0.0) + 1 / (_FUSION + rank)

    def add(self, docid: str, requirements: Sequence[str], judgement: DocumentScore) -> None:
        """What a scorer gave for a candidate. One that has no score before and now an error has
        none; what was scored of it counts once the rest is."""
        rows = zip(requirements, judgement.requirements, strict=True)
        known = self.scores.setdefault(docid, {})
        known.update((need, row) for need, row in rows if row is not None)
        if judgement.probability is not None:
            self.overall[docid] = judgement.probability, judgement.origin
        if judgement.complete:
            self.unscored.pop(docid, None)
        else:
            self.unscored[docid] = judgement.error or "unscored"

    def judged(self, docid: str) -> bool:
        """Whether the document counts with its scores."""
        return docid in self.scores and docid not in self.unscored

    def missing(self, docid: str) -> tuple[str, ...]:
        """Requirements of the checklist that have no score in the document."""
        known = self.scores.get(docid, {})
        return tuple(need for need in self.checklist if need not in known)

    def fresh(self) -> list[str]:
        """Candidates that have no scores, the best retrieved first."""
        return [docid for docid in self.by_retrieval() if not self.judged(docid)]

    def ranked(self) -> list[str]:
        """Documents with scores, the best first; then the others as they were retrieved."""
        order = self.by_retrieval()
        judged = [docid for docid in order if self.judged(docid)]
        scores = {docid: self.score(docid) for docid in judged}
        judged.sort(key=lambda docid: -scores[docid])
        return judged + [docid for docid in order if docid not in scores]

    def by_retrieval(self) -> list[str]:
        """All candidates, the best retrieved first."""
        scores = self.retrieval
        return sorted(scores, key=lambda docid: -scores[docid])

    def score(self, docid: str) -> float:
        """See the class. A requirement without a score counts 0."""
        known = self.scores[docid]
        rows = [known[need].score for need in self.checklist if need in known]
        mean = sum(rows) / len(self.checklist) if self.checklist else 0.0
        return (mean + self.probability(docid)) / 2

    def probability(self, docid: str) -> float:
        """Of overall relevance, calibrated where it can be; else the retrieval score's share of
        the largest."""
        if docid in self.overall:
            probability = self.overall[docid][0]
            return self._calibrate(probability) if self._calibrate else probability
        return self.retrieval[docid] / max(self.retrieval.values())

    @property
    def kind_of_probability(self) -> str:
        """`calibrated`, `raw`, or empty where the scorer has told none."""
        if not self.overall:
            return ""
        return "calibrated" if self._calibrate else "raw"

    def table(self, docids: Sequence[str]) -> str:
        """Documents by requirements, in a line each."""
        rows = [
            f"{docid} ({', '.join(self._cells(docid))})" for docid in docids if self.judged(docid)
        ]
        requirements = "; ".join(self.checklist)
        return f"Requirements: {requirements}. Met by the best: {'; '.join(rows) or 'none'}."

    def row(self, docid: str) -> dict[str, Any]:
        """All that is known of a document as JSON values, by requirement."""
        probability, origin = self.overall.get(docid, (None, ""))
        row: dict[str, Any] = {
            "retrieval": self.retrieval.get(docid, 0.0),
            "requirements": {n: s._asdict() for n, s in self.scores.get(docid, {}).items()},
        }
        if probability is not None:
            row |= {"probability": probability, "origin": origin}
            if self._calibrate:
                row["calibrated"] = self._calibrate(probability)
        if docid in self.unscored:
            row["unscored"] = self.unscored[docid]
        if self.judged(docid):
            row["score"] = self.score(docid)
        return row

    def restore(
        self,
        rounds: Sequence[Mapping[str, Any]],
        retrieval: Mapping[str, float],
        titles: Mapping[str, str],
    ) -> None:
        """Begin where rounds with these rows ended, with all retrieval scores and titles."""
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

    def _cells(self, docid: str) -> list[str]:
        known = self.scores[docid]
        return [f"{known[need].score:.2f}" if need in known else "?" for need in self.checklist]
