"""Words, their stems and rarity, the clues of a question, and queries of clues.

A clue is a quoted string, a number, a capitalised name or another content word of the question.
Only spelling, sentence structure and rarity are used. The stems are not those of an index
(`soundingline.pipelines.lexical`): they serve to compare a question with text that a tool showed.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

WORD = re.compile(r"\d+(?:[.,]\d+)*(?![^\W_])|[^\W_]+(?:['’\-][^\W_]+)*")

_STOP = """
    a about above after again against all also although am among an and another any are as at be
    because been before being below between both but by called can could did do does doing down
    during each either else ever every few first following for from further get give given go had
    has have having he her here hers him his how however i if in into is it its itself just known
    last later least less like made many may me might more most much must my name named neither no
    nor not now of off often on once one only onto or other others our out over own per same says
    several shall she should since so some still such tell than that the their them then there
    these they this those though through thus to together too two under until up upon us use used
    very was we well were what when where whether which while who whom whose why will with within
    without would yes yet you your
"""
STOP_WORDS = frozenset(_STOP.split())

_SUFFIXES = ("ations", "ation", "ments", "ment", "ings", "ing", "ies", "ied", "ed", "es", "s", "e")
_TO_Y = ("ies", "ied")


def words(text: str) -> list[str]:
    """The words and numbers of `text`, as written, in order."""
    return WORD.findall(text)


@lru_cache(maxsize=1 << 16)
def crude_stem(word: str) -> str:
    """A crude stem, for comparison only: `Founded`, `founding` and `founds` have the stem `found`.

    At least four characters stay, so that short words keep their form.
    """
    word = word.lower().replace("’", "'").removesuffix("'s").rstrip("'")
    for suffix in _SUFFIXES:
        stay = word[: -len(suffix)] + ("y" if suffix in _TO_Y else "")
        if word.endswith(suffix) and len(stay) >= 4:
            word = stay
            break
    return word[:-1] if len(word) > 4 and word[-1] == word[-2] else word


def is_content(word: str) -> bool:
    """Whether the word is not a stop word and has more than one character, or is a digit."""
    return word.lower() not in STOP_WORDS and (len(word) > 1 or word.isdigit())


class Rarity:
    """The rarity of a word, from 0 to 1 (a word of one document).

    Lucene's idf divided by that of a word of one document. A word of no document has the rarity 0,
    because it can match nothing. Without statistics, rarity is estimated from the form of a word:
    numbers, capitals and long words are rarer.

    The statistics are the number of documents that contain a word as written, and that of all
    documents; both or neither.
    """

    def __init__(
        self, document_frequency: Callable[[str], int] | None = None, documents: int | None = None
    ) -> None:
        self._frequency = document_frequency
        self._documents = documents or 0
        self._most = self._idf(1) if documents else 1.0

    def __call__(self, word: str) -> float:
        if not is_content(word):
            return 0.0
        if self._frequency is None:
            marked = any(c.isdigit() for c in word) or word[0].isupper()
            return min(1.0, (0.6 if marked else 0.2) + 0.05 * min(len(word), 8))
        frequency = min(self._frequency(word), self._documents)
        return self._idf(frequency) / self._most if frequency > 0 else 0.0

    def _idf(self, frequency: int) -> float:
        return math.log(1 + (self._documents - frequency + 0.5) / (frequency + 0.5))


_QUOTED = re.compile(r"[\"“”«»]([^\"“”«»]{2,120})[\"“”«»]|(?<!\w)['‘]([^'‘’]{2,120})['’](?!\w)")
# How much more a marked word counts than a plain one of the same rarity.
_EMPHASIS = {"quoted": 1.3, "number": 1.2, "name": 1.3, "word": 1.0}


class Clue(NamedTuple):
    """A word of the question: its text, its stem, its kind (`quoted`, `number`, `name` or `word`)
    and its weight (0 to 1)."""

    text: str
    stem: str
    kind: str
    weight: float


class KeywordQuery(NamedTuple):
    """A query and the reason for it in one line."""

    text: str
    reason: str


def find_clues(question: str, rarity: Callable[[str], float]) -> list[Clue]:
    """The clues of a question in its order, each stem once. Words of weight 0 are left out."""
    quoted = [match.span() for match in _QUOTED.finditer(question)]
    openings = [start for start, _ in quoted]
    clues: dict[str, Clue] = {}
    for match in WORD.finditer(question):
        word, start = match.group(), match.start()
        weight = rarity(word) if is_content(word) else 0.0
        if weight <= 0:
            continue
        last = bisect_right(openings, start) - 1
        if last >= 0 and start < quoted[last][1]:
            kind = "quoted"
        elif word[0].isdigit():
            kind = "number"
        else:
            named = word[0].isupper() and not _opens_sentence(question, start)
            kind = "name" if named else "word"
        clue = Clue(word, crude_stem(word), kind, min(1.0, weight * _EMPHASIS[kind]))
        clues.setdefault(clue.stem, clue)
    return list(clues.values())


def _opens_sentence(text: str, position: int) -> bool:
    """Whether a sentence or a quotation begins at `position`."""
    end = position
    while end > 0 and text[end - 1].isspace():
        end -= 1
    last = text[end - 1 : end]
    return not last or last in '"“«' or (last in ".?!" and end < position)


def make_queries(clues: Sequence[Clue], *, limit: int, terms: int) -> list[KeywordQuery]:
    """At most `limit` different queries of at most `terms` words each: the whole question, its
    names, numbers and quotations, and its rarest words."""
    marked = [clue for clue in clues if clue.kind != "word"]
    choices = [
        (heaviest(clues, terms), "All distinctive terms of the question."),
        (heaviest(marked, terms), "Its names, numbers and quotations alone."),
        (heaviest(clues, min(4, terms)), "Its rarest words."),
    ]
    queries: dict[frozenset[str], KeywordQuery] = {}
    for chosen, reason in choices:
        if chosen:
            stems = frozenset(clue.stem for clue in chosen)
            queries.setdefault(stems, KeywordQuery(" ".join(clue.text for clue in chosen), reason))
    return list(queries.values())[:limit]


def heaviest(clues: Sequence[Clue], limit: int) -> list[Clue]:
    """The `limit` clues of most weight, in the question's order."""
    indexes = set(sorted(range(len(clues)), key=lambda i: (-clues[i].weight, i))[:limit])
    return [clue for i, clue in enumerate(clues) if i in indexes]
