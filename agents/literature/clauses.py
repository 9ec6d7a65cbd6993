"""From a question to the requirements that it states, by rules of its wording alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from soundingline.agents.keyword.clues import is_content, stem, words

_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_RANGE = re.compile(
    r"between\s+(?P<a>[\d,]+)\s+and\s+(?P<b>[\d,]+)"
    r"|no earlier than\s+(?P<c>[\d,]+)\s+and no later than\s+(?P<d>[\d,]+)"
    r"|at least\s+(?P<e>[\d,]+)\s+but at most\s+(?P<f>[\d,]+)"
    r"|in the (?P<decade>\d{3}0)s|in the decade that began in (?P<began>\d{3}0)",
    re.IGNORECASE,
)
_HELD = "\x00{}\x00"
_HELD_BACK = re.compile("\x00(\\d+)\x00")
_JOINT = re.compile(r",\s+|\s+(?:and|that|who|which|where)\s+", re.IGNORECASE)
_EXCLUDES = re.compile(
    r"\b(leave out|leaving out|do not|does not|exclud\w+|except|without|but not|not)\b",
    re.IGNORECASE,
)
_EXCLUSION = re.compile(r"^\s*not\s+", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d,]*")
# What a request says of itself and not of the documents.
_REQUEST_WORDS = """
    find list collect show want wanted need pages page document documents paper papers article
    articles every all leave out count excluding except without those them
"""
_REQUEST = frozenset(map(stem, _REQUEST_WORDS.split()))
_OUT_OF_RANGE = 0.3  # of a match that holds no number in the range
Span = tuple[int, int]


class Clause(NamedTuple):
    """A requirement. `query`: its words that tell something; `weights`: how much each of their
    stems does (0 to 1); `span`: the range that a number of it must lie in; `excluded`: the
    documents must not meet it."""

    text: str
    query: str
    weights: Mapping[str, float]
    span: Span | None = None
    excluded: bool = False

    @property
    def requirement(self) -> str:
        """The requirement in words, whose exclusion `read_clause` sees."""
        return f"not {self.text}" if self.excluded else self.text

    def met_by(self, passage: str) -> float:
        """How far the best sentence of a passage speaks of it, 0 to 1: the share of its words,
        less where the sentence holds no number in its range."""
        return self.best_sentence(passage)[0]

    def best_sentence(self, passage: str) -> tuple[float, str]:
        """What `met_by` gives, and the sentence that it is of, the first of equals."""
        sentences = re.split(r"\n|(?<=[.?!])\s", passage)
        best = max(sentences, key=self._met_by)
        return self._met_by(best), best

    def _met_by(self, sentence: str) -> float:
        stems = {stem(word) for word in words(sentence)}
        total = sum(self.weights.values())
        share = sum(w for name, w in self.weights.items() if name in stems) / total if total else 0
        if self.span is None:
            return share
        low, high = self.span
        inside = any(low <= number <= high for number in _numbers(sentence))
        return share if inside else _OUT_OF_RANGE * share


def read_clause(requirement: str, rarity: Callable[[str], float]) -> Clause:
    """A requirement as one clause."""
    spans: list[str] = []
    held, excluded = _hold_ranges(requirement, spans), _excludes(requirement)
    return _clause(_EXCLUSION.sub("", held), spans, excluded, rarity)


def find_clauses(question: str, rarity: Callable[[str], float]) -> list[Clause]:
    """The requirements in the order of the question; of a question without any structure, all of it
    as one."""
    clauses = []
    for sentence in _SENTENCE.split(question):
        spans: list[str] = []
        for part in _JOINT.split(_hold_ranges(sentence, spans)):
            clause = _clause(part, spans, _excludes(sentence), rarity)
            if clause.weights:
                clauses.append(clause)
    return clauses or [_clause(question, [], False, rarity)]


def _excludes(sentence: str) -> bool:
    return bool(_EXCLUDES.search(_RANGE.sub(" ", sentence)))


def _hold_ranges(sentence: str, spans: list[str]) -> str:
    """The sentence with a mark in the place of each range, which is added to `spans`."""

    def hold(match: re.Match[str]) -> str:
        spans.append(match[0])
        return _HELD.format(len(spans) - 1)

    return _RANGE.sub(hold, sentence)


def _clause(part: str, spans: list[str], excluded: bool, rarity: Callable[[str], float]) -> Clause:
    ranges = [spans[int(number)] for number in _HELD_BACK.findall(part)]
    plain = _HELD_BACK.sub(" ", part)
    telling = [word for word in words(plain) if is_content(word) and stem(word) not in _REQUEST]
    weights = {stem(word): rarity(word) for word in telling}
    text = _HELD_BACK.sub(lambda match: spans[int(match[1])], part).strip(" .?!")
    positive = {name: weight for name, weight in weights.items() if weight > 0}
    return Clause(text, " ".join(telling), positive, _span(ranges[0]) if ranges else None, excluded)


def _span(text: str) -> Span:
    match = _RANGE.fullmatch(text)
    assert match is not None
    decade = match["decade"] or match["began"]
    if decade:
        return int(decade), int(decade) + 9
    low, high = (int(value.replace(",", "")) for value in match.groups() if value)
    return low, high


def _numbers(text: str) -> list[int]:
    return [int(digits.replace(",", "")) for digits in _NUMBER.findall(text)]
