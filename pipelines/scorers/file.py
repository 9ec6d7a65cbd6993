"""Requirements scored before, read from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.files import file_fingerprint, fingerprint
from toolkit.sealing import read_text
from toolkit.search.scoring import (
    VERDICTS,
    Candidate,
    Judgement,
    RequirementScore,
    ScorerResources,
)

ABSENT = "not_in_file"
# By question, document and requirement; by question and document.
Scores = dict[tuple[str, str, str], RequirementScore]
Overall = dict[tuple[str, str], tuple[float, str]]


class FileScorer:
    """Scores from `path`: JSON lines as `toolkit.search.scoring.judgement_row` writes them, of
    which `query`, `docid`, and under `requirements` `requirement` and `score` are needed. Texts are
    compared without regard to case and white space; of several lines on a document and requirement
    the last counts. What the file lacks has the error `not_in_file`, counted as `absent`.
    `InputError` where the file cannot be read.
    """

    asks_model = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._counts = Counts("documents", "absent")

    @cached_property
    def fingerprint(self) -> str:
        """The file's content."""
        _ = self._rows
        return fingerprint("file", file_fingerprint(Path(self.path)))

    @property
    def counts(self) -> Mapping[str, float]:
        """See the class."""
        return self._counts()

    def bind(self, resources: ScorerResources) -> FileScorer:
        """See `RequirementScorer`: it needs nothing of a run."""
        return self

    def score(self, candidates: Sequence[Candidate]) -> list[Judgement]:
        """See `RequirementScorer`."""
        judgements = [self._judgement(candidate) for candidate in candidates]
        absent = sum(judgement.error == ABSENT for judgement in judgements)
        self._counts.add(documents=len(judgements), absent=absent)
        return judgements

    def close(self) -> None:
        """See `RequirementScorer`: it holds nothing open."""

    def _judgement(self, candidate: Candidate) -> Judgement:
        scores, overall = self._rows
        document = _plain(candidate.question), candidate.docid
        rows = tuple(
            scores.get((*document, _plain(evidence.requirement))) for evidence in candidate.evidence
        )
        probability, origin = overall.get(document, (None, ""))
        return Judgement(rows, probability, origin, ABSENT if None in rows else "")

    @cached_property
    def _rows(self) -> tuple[Scores, Overall]:
        scores: Scores = {}
        overall: Overall = {}
        for number, line in enumerate(self._lines(), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                document = _plain(str(record["query"])), str(record["docid"])
                for row in record["requirements"]:
                    key = (*document, _plain(str(row["requirement"])))
                    scores[key] = _score(row)
                if record.get("overall") is not None:
                    probability = _checked(record["overall"])
                    overall[document] = probability, str(record.get("origin") or "")
            except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
                raise InputError(
                    f"line {number} of {self.path} is no row of scores: {error!r}",
                    valid='{"query", "docid", "requirements": [{"requirement", "score"}]}',
                ) from error
        return scores, overall

    def _lines(self) -> list[str]:
        try:
            return read_text(Path(self.path)).split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read the scores {self.path}: {error}", do="check scorer.path"
            ) from error


def _score(row: Mapping[str, Any]) -> RequirementScore:
    score = _checked(row["score"])
    verdict = str(row.get("verdict") or ("satisfied" if score >= 0.5 else "not"))
    if verdict not in VERDICTS:
        raise ValueError(f"verdict {verdict!r}")
    rationale, passage = str(row.get("rationale") or ""), str(row.get("passage") or "")
    return RequirementScore(verdict, score, rationale, passage)


def _checked(value: Any) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{value!r} is not within 0 and 1")
    return number


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
