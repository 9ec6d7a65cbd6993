"""What a model replied, as one question. Deterministic, and strict: no reply is worth a guess."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

EMPTY, PROSE, COPIED = "empty", "prose", "copied"
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
# They say nothing of what a question is about.
_FUNCTION_WORDS = """
    a about all an and any are as at be been but by can could did do does find for from had has have
    how i in into is it its many me most much of on or some such than that the their them there
    these they this those to was were what when where which who whom whose why will with would you
    your
"""
_STEM = 5  # letters, so that `shark` and `sharks` are one word


class Reading(NamedTuple):
    """`question` is empty where there is `trouble`: `empty`, `prose` (text that is not one
    question), or `copied` (a line of the prompt). `cleaned`: it is not the reply as it came."""

    question: str = ""
    cleaned: bool = False
    trouble: str = ""


def read_question(
    reply: str, query: str, max_words: int, *, prompt: str = "", reasoning: str = ""
) -> Reading:
    """The question in a reply: its only line, or its first line that is a question, without labels,
    marks and quotation marks around it.

    Prose is a reply of several lines without a question, a line of more than `max_words` words, and
    a line that neither is a question nor shares a word with the query (say, an apology). Copied is
    a question of which half the words that tell something are neither in the query nor in the
    `reasoning` but in one line of the `prompt`, and are half of that line's: small models give an
    example of the prompt back.
    """
    lines = _lines(reply)
    if not lines:
        return Reading(trouble=EMPTY)
    question = lines[0] if len(lines) == 1 else next(filter(is_question, lines), "")
    off = not is_question(question) and not _words(question) & _words(query)
    if off or len(question.split()) > max_words:
        return Reading(trouble=PROSE)
    if _is_copied(question, f"{query}\n{reasoning}", prompt):
        return Reading(trouble=COPIED)
    return Reading(question, question != reply.strip())


def _is_copied(question: str, source: str, prompt: str) -> bool:
    telling = _telling(question)
    added = telling - _telling(source)
    for words in _telling_lines(prompt):
        borrowed = len(added & words)
        if borrowed and 2 * borrowed >= len(telling) and 2 * borrowed >= len(words):
            return True
    return False


@lru_cache(maxsize=8)
def _telling_lines(prompt: str) -> tuple[frozenset[str], ...]:
    return tuple(map(_telling, prompt.splitlines()))


def _telling(text: str) -> frozenset[str]:
    """The stems of the words that say what a text is about."""
    return frozenset(word[:_STEM] for word in _words(text) - _words(_FUNCTION_WORDS))


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
