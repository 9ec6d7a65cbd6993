"""Scorers of requirements without a language model, and the cache of all scores.

See `soundingline.toolkit.search.scoring` for the protocol and
`soundingline.pipelines.requirements.chat` for the scorer that asks a language model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from soundingline.pipelines.cache import Key, ResultCache, text_hash
from soundingline.pipelines.prompting import sigmoid
from soundingline.pipelines.rerank.reranker import Pair, Scorer
from soundingline.pipelines.stage import Counts
from soundingline.toolkit.errors import FileName, InputError, parse
from soundingline.toolkit.files import file_hash, fingerprint, read_text
from soundingline.toolkit.json_text import decode_json
from soundingline.toolkit.search.scoring import (
    BY_SCORE,
    CandidateDocument,
    DocumentScore,
    Evidence,
    RequirementScore,
    RequirementScorer,
    ScorerResources,
    verdict_of,
)

NOT_IN_FILE = "not_in_file"
_LONGEST_QUOTATION = 220  # characters


class CachedRequirementScorer:
    """Requests each score from a bound scorer once.

    The score of a requirement is cached under the fingerprint of the scorer, the question, the
    document, the requirement, and a hash of the passages that were located for it; the overall
    probability under the question and all passages. A candidate goes to the scorer with those
    requirements only that have no score yet; the passages of the others are its context. Without
    the folder `caches` nothing is cached.
    """

    def __init__(self, scorer: RequirementScorer, caches: Path | None) -> None:
        self.scorer = scorer
        self.needs_llm = scorer.needs_llm
        self.fingerprint = scorer.fingerprint
        name = f"requirements-{fingerprint(self.fingerprint)}.sqlite"
        self._counts = Counts()
        self._cache = ResultCache(caches / name if caches else None, self._counts)

    @property
    def counts(self) -> Mapping[str, float]:
        """The counts of the scorer, and with a folder `cache_hits` and `cache_misses`."""
        return {**self.scorer.counts, **self._counts()}

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """The scorer bound to new resources, with a cache of its own."""
        return self.scorer.bind(resources)

    def score(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        keys = [self._keys(candidate) for candidate in candidates]
        distinct = list(dict.fromkeys(key for row in keys for key in row))
        values = zip(distinct, self._cache.get(distinct), strict=True)
        known = {key: value for key, value in values if value is not None}
        requests = {
            number: without_scored(candidates[number], [key in known for key in row[:-1]])
            for number, row in enumerate(keys)
            if any(key not in known for key in row)
        }
        scores = self.scorer.score(list(requests.values()))
        results = dict(zip(requests, scores, strict=True))
        new: dict[Key, Any] = {}
        for number, result in results.items():
            *needs, overall = keys[number]
            requested = (key for key in needs if key not in known)
            for key, score in zip(requested, result.requirements, strict=True):
                if score is not None:
                    new[key] = list(score)
            if not result.error:
                new[overall] = [result.probability, result.origin]
        self._cache.put(new.items())
        known |= new
        errors = {number: result.error for number, result in results.items()}
        return [_combined(row, known, errors.get(number, "")) for number, row in enumerate(keys)]

    def close(self) -> None:
        """Close the scorer."""
        self.scorer.close()

    def _keys(self, candidate: CandidateDocument) -> list[Key]:
        """A key for each requirement, and last that of the overall probability."""
        hashes = {
            passage: text_hash(f"{passage.unit_id}\n{passage.text}")
            for passage in candidate.passages
        }
        document = (self.fingerprint, candidate.question, candidate.docid, candidate.title)
        rows = [*candidate.evidence, Evidence("", tuple(sorted(hashes)))]
        return [
            (*document, requirement, " ".join(hashes[passage] for passage in passages))
            for requirement, passages in rows
        ]


def without_scored(candidate: CandidateDocument, scored: Sequence[bool]) -> CandidateDocument:
    """The candidate with the requirements that are not `scored` yet. The passages of the others are
    its context."""
    rows = list(zip(scored, candidate.evidence, strict=True))
    passages = [passage for done, row in rows if done for passage in row.passages]
    return candidate._replace(
        evidence=tuple(row for done, row in rows if not done),
        context=tuple(dict.fromkeys([*passages, *candidate.context])),
    )


def _combined(keys: Sequence[Key], known: Mapping[Key, Any], error: str) -> DocumentScore:
    *needs, overall = keys
    rows = tuple(RequirementScore(*known[key]) if key in known else None for key in needs)
    probability, origin = known.get(overall, (None, ""))
    return DocumentScore(rows, probability, origin, error)


OUTPUTS: Mapping[str, Callable[[float], float]] = {
    "logit": sigmoid,
    "log_probability": lambda score: math.exp(min(score, 0.0)),
    "probability": lambda score: min(max(score, 0.0), 1.0),
}
"""From the score of a re-ranker to [0, 1], by the kind of score."""


class RerankerScorer:
    """Scores requirements by a re-ranker: a requirement scores as its best passage.

    The overall probability is that of the question with the best of all passages. A document
    without passages scores 0. A score that is not a number leaves its requirement unscored. The
    rationale of a requirement quotes the stretch of its best passage with the most of its words.

    Args:
        scorer: A re-ranker that scores each pair by itself, such as `MonoT5` or `CrossEncoder`.
        output: What its scores are: `logit`, `log_probability` or `probability`.

    Raises:
        InputError: For another output, and for a re-ranker that does not score pairs.

    The `counts` are those of the re-ranker, `pairs`, and `not_a_number`.
    """

    needs_llm = False

    def __init__(self, scorer: Scorer, *, output: str = "logit") -> None:
        if output not in OUTPUTS:
            raise InputError(f"output={output!r}", valid=", ".join(OUTPUTS))
        if not isinstance(scorer, Scorer):
            raise InputError(
                f"{type(scorer).__name__} scores no pairs",
                valid="a re-ranker that scores each pair by itself, such as monot5 or rankllama",
                do="choose one: reranker@scorer.scorer=...; for a language model scorer=chat",
            )
        self.scorer, self.output = scorer, output
        self._counts = Counts("pairs", "not_a_number")

    @property
    def fingerprint(self) -> str:
        """Hash of the re-ranker's fingerprint and of `output`."""
        return fingerprint("pairs with quotations", self.scorer.fingerprint, self.output)

    @property
    def counts(self) -> Mapping[str, float]:
        return {**self.scorer.counts, **self._counts()}

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """The scorer with a cache of its scores."""
        return CachedRequirementScorer(self, resources.caches)

    def score(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        """See `RequirementScorer`. The pairs of all candidates are scored together."""
        rows = [
            [*candidate.evidence, Evidence(candidate.question, candidate.passages)]
            for candidate in candidates
        ]
        pairs = list(dict.fromkeys(pair for row in rows for one in row for pair in _pairs(one)))
        values = self.scorer.score_pairs(*([pair[side] for pair in pairs] for side in (0, 1)))
        scores = dict(zip(pairs, values, strict=True))
        self._counts.add(pairs=len(pairs), not_a_number=sum(map(math.isnan, scores.values())))
        return [self._document_score(row, scores) for row in rows]

    def close(self) -> None:
        """Close the re-ranker."""
        self.scorer.close()

    def _document_score(
        self, row: Iterable[Evidence], scores: Mapping[Pair, float]
    ) -> DocumentScore:
        *requirements, overall = (self._best(evidence, scores) for evidence in row)
        error = "not_a_number" if None in requirements else ""
        if overall is None:
            return DocumentScore(tuple(requirements), error=error)
        return DocumentScore(tuple(requirements), overall.score, BY_SCORE, error)

    def _best(self, evidence: Evidence, scores: Mapping[Pair, float]) -> RequirementScore | None:
        values = [scores[pair] for pair in _pairs(evidence)]
        if not values:
            return RequirementScore(verdict_of(0.0, evidence), 0.0)
        numbers = [number for number, value in enumerate(values) if not math.isnan(value)]
        if not numbers:
            return None
        best = max(numbers, key=lambda number: values[number])
        value = OUTPUTS[self.output](values[best])
        passage = evidence.passages[best]
        # Here, because it loads numba.
        from soundingline.toolkit.search.snippets import QueryTerms, best_window

        terms = QueryTerms(evidence.requirement)
        quotation = best_window(terms, passage.text, _LONGEST_QUOTATION)
        return RequirementScore(verdict_of(value, evidence), value, quotation, passage.unit_id)


def _pairs(evidence: Evidence) -> list[Pair]:
    return [Pair(evidence.requirement, passage.text) for passage in evidence.passages]


class _Row(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class RequirementRow(_Row):
    """The score of a requirement in a file of `FileScorer`."""

    requirement: str
    score: float = Field(ge=0, le=1, allow_inf_nan=False)
    verdict: Literal["satisfied", "not", "unknown"] | None = None
    rationale: str | None = None
    passage: str | None = None

    def requirement_score(self) -> RequirementScore:
        """The score; without a verdict, the score decides from 0.5."""
        verdict = self.verdict or ("satisfied" if self.score >= 0.5 else "not")
        return RequirementScore(verdict, self.score, self.rationale or "", self.passage or "")


class DocumentRow(_Row):
    """A line of a file of `FileScorer`: the scores of a document for a question."""

    query: str
    docid: str
    requirements: list[RequirementRow]
    overall: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    origin: str | None = None


class _FileContent(NamedTuple):
    """Hash of a file; the scores by requirement, and the overall probability with its origin, by
    question and document."""

    digest: str
    documents: dict[tuple[str, str], tuple[dict[str, RequirementScore], tuple[float | None, str]]]


class FileScorer:
    """Scores that were made elsewhere, from a file.

    Texts are compared without regard to case and white space. If several lines score a requirement
    of a document, the last one counts. A document without a score for each requirement has the
    error `not_in_file`, which `counts` has as `absent`.

    Args:
        path: JSON lines as `soundingline export format=judgements` writes them. `query`, `docid`
            and, under `requirements`, `requirement` and `score` are needed (see `DocumentRow`).

    Raises:
        InputError: When the file is first needed, if it cannot be read or has other lines.
    """

    needs_llm = False

    def __init__(self, path: FileName[str]) -> None:
        self.path = path
        self._counts = Counts("documents", "absent")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the file, whose lines have been checked."""
        return fingerprint("file", self._content.digest)

    @property
    def counts(self) -> Mapping[str, float]:
        return self._counts()

    def bind(self, resources: ScorerResources) -> FileScorer:
        """The scorer itself, which needs no resources."""
        return self

    def score(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        scores = [self._document_score(candidate) for candidate in candidates]
        absent = sum(score.error == NOT_IN_FILE for score in scores)
        self._counts.add(documents=len(scores), absent=absent)
        return scores

    def close(self) -> None:
        """Nothing is open."""

    def _document_score(self, candidate: CandidateDocument) -> DocumentScore:
        document = _normalised(candidate.question), candidate.docid
        scores, overall = self._content.documents.get(document, ({}, (None, "")))
        rows = tuple(scores.get(_normalised(need.requirement)) for need in candidate.evidence)
        return DocumentScore(rows, *overall, NOT_IN_FILE if None in rows else "")

    @cached_property
    def _content(self) -> _FileContent:
        documents: dict[Any, Any] = {}
        try:
            lines = read_text(Path(self.path)).split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read the scores {self.path}: {error}", do="check scorer.path"
            ) from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"line {number} of {self.path}"
            try:
                data = decode_json(line)
            except ValueError as error:
                raise InputError(f"{where} is not JSON ({error})") from None
            row = parse(DocumentRow, data, where=where)
            document = _normalised(row.query), row.docid
            scores, overall = documents.get(document, ({}, (None, "")))
            for score in row.requirements:
                scores[_normalised(score.requirement)] = score.requirement_score()
            if row.overall is not None:
                overall = row.overall, row.origin or ""
            documents[document] = scores, overall
        return _FileContent(file_hash(Path(self.path)), documents)


def _normalised(text: str) -> str:
    return " ".join(text.split()).casefold()
