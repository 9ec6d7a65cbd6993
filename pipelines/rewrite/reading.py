"""What a model replied, as one question. Deterministic, and strict: no reply is worth a guess."""

from __future__ import annotations

import re
from typing import NamedTuple

EMPTY, PROSE = "empty", "prose"
# A reply may be a megabyte of anything: no expression here may look at a character again for each
# place that a match could start from.
_THINK = re.compile(r"<(/?)think>", re.IGNORECASE)
_TAGS = re.compile(r"</?(?:question|query|answer|output|rewrite)>", re.IGNORECASE)
_FENCE = re.compile(r"^[^\S\n]*```.*$", re.MULTILINE)
_MARKS = re.compile(r"(?:[-*•>#]+|\d{1,2}[.)])\s+")
_LABEL = re.compile(
    r"[*_]*(?:(?:the|natural[- ]language|rewritten|reformulated|search|final|web)\s+)*"
    r"(?:question|query|rewrite|output|q)[*_]*\s*[:：][*_]*\s*",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"(?:(?:sure|certainly|of course|okay|ok)[,!.:]+\s+|here(?:['’]s| is)\b[^:：?]{0,60}[:：]\s*)",
    re.IGNORECASE,
)
_AROUND = (
    *(("**", "**"), ("__", "__"), ('"', '"'), ("'", "'"), ("`", "`")),
    *(("“", "”"), ("‘", "’"), ("«", "»"), ("„", "“")),
)
_QUESTION_MARKS = "?？؟"
_OPENING = re.compile(
    r"(?:who|whose|whom|what|when|where|which|why|how|is|are|was|were|do|does|did|has|have|had|can"
    r"|could|in what|in which|at what|on what|by what|for what|to what)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


class Reading(NamedTuple):
    """`question` is empty where there is `trouble`: `empty`, or `prose` (text that is not one
    question). `cleaned`: it is not the reply as it came."""

    question: str = ""
    cleaned: bool = False
    trouble: str = ""


def read_question(reply: str, query: str, max_words: int) -> Reading:
    """The question in a reply: its only line, or its first line that is a question, without labels,
    marks and quotation marks around it.

    Prose is a reply of several lines without a question, a line of more than `max_words` words, and
    a line that neither is a question nor shares a word with the query (say, an apology).
    """
    lines = _lines(reply)
    if not lines:
        return Reading(trouble=EMPTY)
    question = lines[0] if len(lines) == 1 else next(filter(is_question, lines), "")
    off = not is_question(question) and not _words(question) & _words(query)
    if off or len(question.split()) > max_words:
        return Reading(trouble=PROSE)
    return Reading(question, question != reply.strip())


def is_empty(reply: str) -> bool:
    """Whether nothing is said: white space, quotation marks, a bare label."""
    return not _lines(reply)


def is_question(line: str) -> bool:
    """Whether it ends with a question mark or opens as an English question does."""
    return _ends_with_question_mark(line) or bool(_OPENING.match(line))


def _ends_with_question_mark(line: str) -> bool:
    """Whether a question mark stands behind the last letter or digit."""
    for character in reversed(line):
        if character in _QUESTION_MARKS:
            return True
        if character.isalnum() or character == "_":
            return False
    return False


def lost_numbers(query: str, question: str) -> set[str]:
    """Numbers of the query that the question does not have."""
    return set(_NUMBER.findall(query)) - set(_NUMBER.findall(question))


def _lines(reply: str) -> list[str]:
    text = _FENCE.sub("", _TAGS.sub(" ", _without_thoughts(reply)))
    lines = (_bare(line) for line in text.splitlines())
    return [line for line in lines if re.search(r"\w", line)]


def _without_thoughts(reply: str) -> str:
    """Without what stands from a `<think>` to the next `</think>`; one without an end stays."""
    pieces, end, opened = [], 0, -1
    for tag in _THINK.finditer(reply):
        if opened < 0 and not tag[1]:
            opened = tag.start()
        elif opened >= 0 and tag[1]:
            pieces.append(reply[end:opened])
            end, opened = tag.end(), -1
    return " ".join([*pieces, reply[end:]])


def _bare(line: str) -> str:
    """The line without marks, labels and quotation marks around it, however many there are."""
    start, end, before = 0, len(line), None
    while (start, end) != before:
        before = start, end
        while start < end and line[start].isspace():
            start += 1
        while end > start and line[end - 1].isspace():
            end -= 1
        for pattern in (_MARKS, _LABEL, _LEAD):
            match = pattern.match(line, start, end)
            start = match.end() if match else start
        for opening, closing in _AROUND:
            if _surrounds(line, start, end, opening, closing):
                start, end = start + len(opening), end - len(closing)
    return line[start:end]


def _surrounds(line: str, start: int, end: int, opening: str, closing: str) -> bool:
    """Whether a pair stands around `line[start:end]` and around something. Where one of the two
    stands inside as well, the pair may belong to words."""
    inner = start + len(opening), end - len(closing)
    if inner[0] >= inner[1] or not line.startswith(opening, start, end):
        return False
    if not line.endswith(closing, start, end):
        return False
    return line.find(opening, *inner) < 0 and line.find(closing, *inner) < 0


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
