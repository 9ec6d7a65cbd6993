"""Typed answer candidates in a sentence: names, places, numbers, measures, dates, years, reasons
and phrases, found by spelling alone. The vote over them is in `agents.vote`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from agents.words import STOP_WORDS

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
)
_YEAR = r"(?:1\d{3}|20\d{2})(?:\s?(?:BC|AD|BCE|CE))?"
_DATE = re.compile(
    rf"\b(?:{_MONTH}\s+\d{{1,2}}(?:,?\s+{_YEAR})?|\d{{1,2}}\s+{_MONTH}(?:,?\s+{_YEAR})?"
    rf"|{_MONTH},?\s+{_YEAR}|{_YEAR}|\d{{1,3}}\s(?:BC|AD|BCE|CE))\b"
)
_YEARS = re.compile(rf"\b{_YEAR}\b|\b\d{{1,2}}(?:st|nd|rd|th)\s+century\b")
_SPELLED = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand million billion dozen"
).replace(" ", "|")
_FIGURE = (
    rf"(?:[$€£]\s?)?(?:\d+(?:[.,]\d+)*|\b(?:{_SPELLED})(?:[\s-](?:{_SPELLED}))*\b)"
    r"(?:\s(?:hundred|thousand|million|billion|trillion)\b)?(?:\s?(?:%|percent\b|per cent\b))?"
)
_NUMBER = re.compile(rf"(?<![\w.,]){_FIGURE}(?!\w)", re.IGNORECASE)
_MEASURE = re.compile(rf"(?<![\w.,]){_FIGURE}(?!\w)(?:\s(?-i:[a-z])[\w²³/]*)?", re.IGNORECASE)
_CAPITAL = r"[^\W\d_a-zß-ÿ][\w'’.\-]*\w|[A-Z]\."
_INSIDE = r"(?:(?:of the|of|de la|de|la|du|von|van der|van|del|di|al|&)\s)?"
_NAME = re.compile(rf"(?:{_CAPITAL})(?:\s{_INSIDE}(?:{_CAPITAL}))*")
_CHUNK = re.compile(r"[^\W_][\w'’\-]*(?:\s[^\W_][\w'’\-]*)*")
_REASON = re.compile(
    r"\b(?:because(?:\sof)?|due\sto|in\sorder\sto|so\sthat)\s+([^.;:()]{3,120})", re.I
)
_DATE_WORDS = re.compile(rf"^(?:{_MONTH}|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)$")
_PLACE_BEFORE = re.compile(
    r"\b(?:in|at|from|near|to|of|outside|around)\s(?:the\s)?$", re.IGNORECASE
)


_UNCERTAIN = 0.5


class Candidate(NamedTuple):
    """A possible answer, its character position in the sentence, and how well its surroundings
    fit the kind (1: neutral)."""

    text: str
    start: int
    weight: float = 1.0


def _matches(pattern: re.Pattern[str]) -> Callable[[str], Iterator[Candidate]]:
    def find(text: str) -> Iterator[Candidate]:
        for match in pattern.finditer(text):
            yield Candidate(match.group().strip(), match.start())

    return find


def _names(text: str) -> Iterator[Candidate]:
    for match in _NAME.finditer(text):
        name, start = _without_leading_stop_words(match.group(), match.start())
        if len(name) > 1 and not _DATE_WORDS.match(name):
            # A capital at the start of a sentence may be no name.
            certain = start > 0 or " " in name
            yield Candidate(name, start, 1.0 if certain else _UNCERTAIN)


def _without_leading_stop_words(name: str, start: int) -> tuple[str, int]:
    skipped = 0
    for word in name.split(" "):
        if word.lower() not in STOP_WORDS:
            break
        skipped += len(word) + 1
    return name[skipped:], start + skipped


def _places(text: str) -> Iterator[Candidate]:
    for name in _names(text):
        after_preposition = _PLACE_BEFORE.search(text[max(0, name.start - 16) : name.start])
        yield name._replace(weight=1.5 if after_preposition else 0.5)


def _reasons(text: str) -> Iterator[Candidate]:
    for match in _REASON.finditer(text):
        yield Candidate(match.group(1).strip(" ,"), match.start())


def _phrases(text: str) -> Iterator[Candidate]:
    """Names, and runs of at most four words between stop words or punctuation."""
    yield from _names(text)
    for match in _CHUNK.finditer(text):
        start = match.start()
        run: list[str] = []
        for word in [*match.group().split(" "), ""]:
            if word and word.lower() not in STOP_WORDS:
                run.append(word)
            else:
                if run and len(run) <= 4:
                    yield Candidate(" ".join(run), start - len(" ".join(run)) - 1)
                run = []
            start += len(word) + 1


_FINDERS: Mapping[str, Callable[[str], Iterator[Candidate]]] = {
    "name": _names,
    "place": _places,
    "date": _matches(_DATE),
    "year": _matches(_YEARS),
    "number": _matches(_NUMBER),
    "measure": _matches(_MEASURE),
    "reason": _reasons,
    "phrase": _phrases,
}


def candidates(kind: str, text: str) -> list[Candidate]:
    """The candidates of one of the open kinds (all but `yes_no` and `choice`) in a sentence."""
    return list(_FINDERS[kind](text))
