"""What type of answer a question expects, and the candidates of that type in a sentence.

Types are names, places, numbers, measures, dates, years, reasons and phrases, yes/no, and a choice
among what the question offers. Both are read from spelling alone; the vote over candidates is in
`soundingline.agents.keyword.vote`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from soundingline.agents.keyword.words import STOP_WORDS, is_content, stem, words

KINDS = (
    "name",
    "place",
    "number",
    "measure",
    "date",
    "year",
    "yes_no",
    "choice",
    "reason",
    "phrase",
)


class AnswerType(NamedTuple):
    """The kind (one of `KINDS`), the stems of the noun asked for (`which county` -> `county`), and
    for `choice` the alternatives that the question offers."""

    kind: str
    focus: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()


_AUXILIARIES = (
    "is are was were am do does did has have had can could will would should may might must"
)
_VERBS = frozenset(f"{_AUXILIARIES} be been being".split())
_QUESTION = re.compile(
    r"\b(?:(?P<year>(?:what|which)\s+(?:year|decade|century))"
    r"|(?P<date>when|(?:what|which)\s+(?:date|day|month))"
    r"|(?P<measure>how\s+(?:long|old|far|tall|high|heavy|deep|wide|large|big|fast|often|hot|cold))"
    r"|(?P<number>how\s+(?:many|much)|what\s+(?:number|percentage|population|fraction))"
    r"|(?P<place>where)"
    r"|(?P<name>who|whom|whose)"
    r"|(?P<reason>why)"
    r"|(?P<phrase>what|which|how|name|give))\b",
    re.IGNORECASE,
)
_POLAR = re.compile(rf"\s*(?:{_AUXILIARIES.replace(' ', '|')})(?:n't)?\b", re.IGNORECASE)
# From the beginning of a word only: from inside it, the rest of the match would be the same.
_OPTIONS = re.compile(
    r"(?<![\w'’\-])([\w'’\-]+)(?:,\s*([\w'’\-]+))?,?\s+or\s+(?:an?\s+|the\s+)?([\w'’\-]+)"
)
_NAMED_NOUNS = """
    actor actress album artist author band book capital character city club college company
    country county director district film game group island king lake language leader man
    mountain movie nation novel organization party people person place planet player president
    province queen religion river school sea show singer song state street team town university
    village woman writer
"""
_NAMED = frozenset(map(stem, _NAMED_NOUNS.split()))


def answer_type(question: str) -> AnswerType:
    """The kind of answer expected.

    In a question of several sentences the last one decides; without any question word, a `phrase`.
    """
    sentences = [part for part in re.split(r"(?<=[.?!])\s+", question.strip()) if part]
    questions = [part for part in sentences if part.endswith("?")] or sentences or [""]
    text = questions[-1]
    if _POLAR.match(text):
        return _polar(text)
    match = _QUESTION.search(text)
    if match is None:
        return AnswerType("phrase")
    kind = match.lastgroup or "phrase"
    focus = _focus(text[match.end() :]) if kind in ("phrase", "number") else frozenset()
    if kind == "phrase" and focus & _NAMED:
        kind = "name"
    return AnswerType(kind, focus)


def _polar(text: str) -> AnswerType:
    match = _OPTIONS.search(text)
    if match is None:
        return AnswerType("yes_no")
    return AnswerType("choice", options=tuple(option for option in match.groups() if option))


def _focus(rest: str) -> frozenset[str]:
    """The first words after the question word, up to a verb; over a leading `is the`."""
    nouns: list[str] = []
    for word in words(rest):
        if nouns and not is_content(word):
            break
        if is_content(word):
            nouns.append(stem(word))
        if len(nouns) == 3:
            break
    return frozenset(nouns)


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
