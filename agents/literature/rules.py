"""Literature search without a language model: requirements are the clauses of the question."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from soundingline.agents.keyword.clues import Rarity, crude_stem, is_content, words
from soundingline.agents.literature.planner import (
    EXPAND,
    RESOLVE,
    PlanQuery,
    SearchPlan,
    normalize_requirement,
)
from soundingline.agents.literature.scores import CandidateScores
from soundingline.toolkit.data import Topic
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.search.scoring import (
    CandidateDocument,
    DocumentScore,
    Evidence,
    RequirementScore,
    ScorerResources,
    verdict_of,
)

_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_RANGE = re.compile(
    r"between\s+(?P<a>[\d,]+)\s+and\s+(?P<b>[\d,]+)"
    r"|no earlier than\s+(?P<c>[\d,]+)\s+and no later than\s+(?P<d>[\d,]+)"
    r"|at least\s+(?P<e>[\d,]+)\s+but at most\s+(?P<f>[\d,]+)"
    r"|in the (?P<decade>\d{3}0)s|in the decade that began in (?P<began>\d{3}0)",
    re.IGNORECASE,
)
_MARK = "\x00{}\x00"  # takes the place of a range while a sentence is split
_MARKS = re.compile("\x00(\\d+)\x00")
_JOINT = re.compile(r",\s+|\s+(?:and|that|who|which|where)\s+", re.IGNORECASE)
_EXCLUDES = re.compile(
    r"\b(leave out|leaving out|do not|does not|exclud\w+|except|without|but not|not)\b",
    re.IGNORECASE,
)
_EXCLUSION = re.compile(r"^\s*not\s+", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d,]*")
# What a request says about itself and not about the documents.
_REQUEST_WORDS = """
    find list collect show want wanted need pages page document documents paper papers article
    articles every all leave out count excluding except without those them
"""
_REQUEST = frozenset(map(crude_stem, _REQUEST_WORDS.split()))
_OUT_OF_RANGE = 0.3  # factor for a match that contains no number in the range


class Clause(NamedTuple):
    """A requirement.

    `query` are its content words, `weights` the weight of each of their stems (0 to 1), `span` the
    range that a number must be in, and `excluded` says that documents must not meet it.
    """

    text: str
    query: str
    weights: Mapping[str, float]
    span: tuple[int, int] | None = None
    excluded: bool = False

    @property
    def requirement(self) -> str:
        """The requirement in words, from which `read_clause` reads the exclusion."""
        return f"not {self.text}" if self.excluded else self.text

    def best_sentence(self, passage: str) -> tuple[float, str]:
        """The sentence of a passage that matches best, the first of equals, and its score: the
        weighted share of the clause's words, reduced if no number is in the range."""
        sentences = re.split(r"\n|(?<=[.?!])\s", passage)
        best = max(sentences, key=self._score)
        return self._score(best), best

    def _score(self, sentence: str) -> float:
        stems = {crude_stem(word) for word in words(sentence)}
        total = sum(self.weights.values())
        share = sum(w for name, w in self.weights.items() if name in stems) / total if total else 0
        if self.span is None:
            return share
        low, high = self.span
        numbers = [int(digits.replace(",", "")) for digits in _NUMBER.findall(sentence)]
        inside = any(low <= number <= high for number in numbers)
        return share if inside else _OUT_OF_RANGE * share


def read_clause(requirement: str, rarity: Callable[[str], float]) -> Clause:
    """A requirement as one clause."""
    marked, ranges = _mark_ranges(requirement)
    return _clause(_EXCLUSION.sub("", marked), ranges, _excludes(requirement), rarity)


def find_clauses(question: str, rarity: Callable[[str], float]) -> list[Clause]:
    """The requirements of a question in their order. A question without any structure is one
    requirement."""
    clauses = []
    for sentence in _SENTENCE.split(question):
        marked, ranges = _mark_ranges(sentence)
        for part in _JOINT.split(marked):
            clause = _clause(part, ranges, _excludes(sentence), rarity)
            if clause.weights:
                clauses.append(clause)
    return clauses or [_clause(question, [], False, rarity)]


def _excludes(sentence: str) -> bool:
    return bool(_EXCLUDES.search(_RANGE.sub(" ", sentence)))


def _mark_ranges(sentence: str) -> tuple[str, list[str]]:
    """The sentence with a mark in the place of each range, and the ranges."""
    ranges: list[str] = []

    def mark(match: re.Match[str]) -> str:
        ranges.append(match[0])
        return _MARK.format(len(ranges) - 1)

    return _RANGE.sub(mark, sentence), ranges


def _clause(
    part: str, ranges: Sequence[str], excluded: bool, rarity: Callable[[str], float]
) -> Clause:
    inside = [ranges[int(number)] for number in _MARKS.findall(part)]
    candidates = words(_MARKS.sub(" ", part))
    content = [word for word in candidates if is_content(word) and crude_stem(word) not in _REQUEST]
    weights = {crude_stem(word): rarity(word) for word in content}
    text = _MARKS.sub(lambda match: ranges[int(match[1])], part).strip(" .?!")
    positive = {name: weight for name, weight in weights.items() if weight > 0}
    span = _span(inside[0]) if inside else None
    return Clause(text, " ".join(content), positive, span, excluded)


def _span(text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    assert match is not None
    decade = match["decade"] or match["began"]
    if decade:
        return int(decade), int(decade) + 9
    low, high = (int(value.replace(",", "")) for value in match.groups() if value)
    return low, high


_SEEDS = 10  # best documents whose links are followed


class RulePlanner:
    """Plans by rules.

    The first round has one query for each clause and one of all together. Later rounds follow the
    links of what the question names and of the best documents, and search for the requirement that
    those meet least.

    Args:
        topic: the question.
        rarity: word -> weight, 0 to 1.
        tools: the names of the tools of the interface.
    """

    def __init__(
        self, topic: Topic, rarity: Callable[[str], float], tools: Collection[str]
    ) -> None:
        clauses = find_clauses(topic.text, rarity)
        self._wanted = [clause for clause in clauses if not clause.excluded] or clauses
        self._question, self._tools = topic.text, set(tools)
        requirements = [normalize_requirement(clause.requirement) for clause in clauses]
        self._checklist = tuple(dict.fromkeys(requirements))

    def plan(self, scores: CandidateScores, number: int) -> SearchPlan:
        """The plan of round `number`, from 1."""
        queries = self._first() if number == 1 else self._later(scores)
        return SearchPlan(tuple(queries), self._checklist)

    def _first(self) -> list[PlanQuery]:
        together = " ".join(clause.query for clause in self._wanted)
        queries = [PlanQuery(text=together, reason="All requirements together.")]
        if len(self._wanted) > 1:
            queries += [PlanQuery(text=c.query, reason="One requirement.") for c in self._wanted]
        usable = [query for query in queries if query.text.strip()]
        return usable or [PlanQuery(text=self._question, reason="The question as it is.")]

    def _later(self, scores: CandidateScores) -> list[PlanQuery]:
        queries = []
        best = tuple(scores.ranked()[:_SEEDS])
        if {"expand", "resolve"} <= self._tools:
            findings = "\n".join(clause.text for clause in self._wanted)
            reason = "Who refers to what the question names?"
            queries.append(PlanQuery(RESOLVE, findings, direction="in", reason=reason))
        if "expand" in self._tools and best:
            reason = "What are the best linked with?"
            queries.append(PlanQuery(EXPAND, docids=best, direction="both", reason=reason))
        return [*queries, *self._least_met(scores)]

    def _least_met(self, scores: CandidateScores) -> list[PlanQuery]:
        """The requirement that the best documents meet least, with the words of the requirement
        that they meet best."""
        best = scores.best()[:_SEEDS]
        if len(self._wanted) < 2 or not best:
            return []

        def met(clause: Clause) -> float:
            need = normalize_requirement(clause.requirement)
            rows = [scores.scores[docid].get(need) for docid in best]
            return sum(row.score for row in rows if row)

        text = f"{min(self._wanted, key=met).query} {max(self._wanted, key=met).query}"
        return [PlanQuery(text=text, reason="The requirement that is met least.")]


class OverlapScorer:
    """A `RequirementScorer` without a model.

    A requirement scores the share of its words, weighted by rarity, in the best sentence of its
    evidence, reduced if no number of the sentence is in its range. A requirement that excludes
    (`not ...`, `without ...`) scores 1 minus that. There is no overall probability. Deterministic
    and thread-safe.
    """

    needs_llm = False

    def __init__(self) -> None:
        self._rarity = Rarity()

    @property
    def fingerprint(self) -> str:
        return fingerprint("overlap", 1)

    @property
    def counts(self) -> Mapping[str, float]:
        return {}

    def bind(self, resources: ScorerResources) -> OverlapScorer:
        """See `RequirementScorer`: binds the collection's statistics."""
        bound = copy.copy(self)
        bound._rarity = Rarity(resources.document_frequency, resources.documents)
        return bound

    def score(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        texts = {row.requirement for candidate in candidates for row in candidate.evidence}
        clauses = {text: read_clause(text, self._rarity) for text in texts}
        return [
            DocumentScore(
                tuple(_scored(clauses[row.requirement], row) for row in candidate.evidence)
            )
            for candidate in candidates
        ]

    def close(self) -> None:
        pass


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
