"""What kind of answer a question expects, read from its question word."""

from __future__ import annotations

import re
from typing import NamedTuple

from agents.words import is_content, stem, words

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


class Expected(NamedTuple):
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


def expected(question: str) -> Expected:
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
        return Expected("phrase")
    kind = match.lastgroup or "phrase"
    focus = _focus(text[match.end() :]) if kind in ("phrase", "number") else frozenset()
    if kind == "phrase" and focus & _NAMED:
        kind = "name"
    return Expected(kind, focus)


def _polar(text: str) -> Expected:
    match = _OPTIONS.search(text)
    if match is None:
        return Expected("yes_no")
    return Expected("choice", options=tuple(option for option in match.groups() if option))


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
