"""Where sentences begin and end, by rules for English. For spaCy's model see `spacy_sentences`.

A splitter takes a text and gives half-open character spans: in order, disjoint, trimmed of white
space, and together covering every visible character. A line break always ends a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Spans = list[tuple[int, int]]
Splitter = Callable[[str], Spans]

# Raised when a rule below changes, so that passages cut by other rules are recognised as such.
RULES_VERSION = 1

# One leading character class lets the regex engine skip to candidates without trying each
# position. Group 1 is the first visible letter or digit of what follows, behind opening quotes.
_CANDIDATE = re.compile(
    r"[.!?…\n。！？](?:"
    r"(?<=\n)\s*"
    r"|(?<=[.!?…])[\"'”’»)\]]*(?:\s+|\Z)(?=[\"'“‘«(\[]*(\w?))"
    r"|(?<=[。！？])[」』”’）]*\s*"
    r")"
)
_OPENING = "\"'“‘«(["


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Followed by a name or a figure in nearly every use: never the end of a sentence.
_BINDING = _words(
    "mr mrs ms mx dr prof st rev fr gen col lt sgt capt cpl maj cmdr adm gov sen rep hon pres supt "
    "messrs mme mlle mt ft vs v cf ca approx e.g i.e viz resp"
)
# Followed by a number when they abbreviate; ordinary words or sentence ends otherwise.
_COUNTING = _words(
    "no nos fig figs vol vols p pp pg pgs ch chap sec sect art eq eqs ed eds op par para tab app "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
# May stand inside a sentence or end it: the next word decides, as it does after initials.
_LOOSE = _words(
    "al etc inc ltd co corp bros jr sr esq ph.d m.d b.a m.a d.c univ dept est assn ave blvd rd "
    "bldg dist div gov't int'l mfg natl min max avg misc trans repr"
)
_STARTERS = _words(
    "the a an this that these those he she it they we you i his her its their our my there here "
    "in on at by for from to with as of and but or nor so yet if when while where after before "
    "since during although though however because both each some many most all no not one two "
    "what who why how which also then thus today later another other such"
)
_LONGEST_ABBREVIATION = 16
# White space, opening quotes and a letter: what a candidate needs to see behind itself.
_AHEAD = 16


def rule_spans(text: str) -> Spans:
    """Sentences by rules: `.`, `!`, `?`, `…` with closing quotes, before white space, unless what
    stands around speaks for an abbreviation, an initial, a numbered item or a lower-case go-on."""
    spans: Spans = []
    start = len(text) - len(text.lstrip())
    for match in _CANDIDATE.finditer(text, start):
        if not _ends(text, match):
            continue
        end = _visible_end(text, match)
        spans.append((start, end))
        start = match.end()
    end = len(text.rstrip())
    if start < end:
        spans.append((start, end))
    return spans


def last_sentence_start(text: str, start: int, limit: int, near: int = 300) -> int:
    """The last position in `(start, limit]` at which a sentence of `text` begins, or 0.

    The last `near` characters are searched first, which spares the rest in nearly every text.
    """
    for begin in dict.fromkeys((max(start, limit - near), start)):
        candidates = list(_CANDIDATE.finditer(text, begin, limit + _AHEAD))
        for match in reversed(candidates):
            if start < match.end() <= limit and _ends(text, match):
                return match.end()
    return 0


def _visible_end(text: str, match: re.Match[str]) -> int:
    end = match.end()
    while text[end - 1].isspace():
        end -= 1
    return end


def _ends(text: str, match: re.Match[str]) -> bool:
    mark, following = match.start(), match.group(1)
    # Groups are absent for a line break and for full-width marks, which need no second look.
    if following is None or "\n" in match.group():
        return True
    if following.islower():
        return False
    if text[mark] != "." or text[mark - 1 : mark] == ".":
        return True
    return _full_stop_ends(text, mark, following, match.end())


def _full_stop_ends(text: str, mark: int, following: str, after: int) -> bool:
    word = _word_before(text, mark)
    stem = word.lstrip(_OPENING)
    low = stem.lower()
    if low in _BINDING or (stem.isdecimal() and _opens(text, mark - len(word))):
        return False
    if low in _COUNTING:
        return not following.isdecimal()
    if low in _LOOSE or (len(stem) == 1 and stem.isupper()) or _dotted(stem):
        return _next_word(text, after) in _STARTERS
    return True


def _word_before(text: str, position: int) -> str:
    """What stands before `position` up to white space; no more of it than rules look at."""
    piece = text[max(0, position - _LONGEST_ABBREVIATION) : position]
    return piece.split()[-1] if piece and not piece[-1].isspace() else ""


def _opens(text: str, position: int) -> bool:
    """Whether a sentence or a line begins at `position`, by the two characters before it."""
    before = text[max(0, position - 2) : position]
    return "\n" in before or before.strip()[-1:] in ("", *".!?…")


def _dotted(stem: str) -> bool:
    """`U.S`, `a.m`, `Ph.D`: letters with full stops between."""
    return "." in stem and all(len(part) in (1, 2) and part.isalpha() for part in stem.split("."))


def _next_word(text: str, position: int) -> str:
    word = text[position : position + 24].lstrip(_OPENING).split(maxsplit=1)
    return word[0].rstrip(",.;:!?").lower() if word else ""
