"""Words, their stems and their rarity, as the agent without a model sees them.

Not the index's analyzer (`soundingline.pipelines.lexical`): agents know no engine, so these stems
serve only to compare a question with text that a tool showed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache

from soundingline.toolkit.errors import InputError, check_int

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
def stem(word: str) -> str:
    """A crude stem, for comparison only: `Founded`, `founding` and `founds` agree with `found`.

    At least four characters stay (`cities` and `city` are four), so that short words keep their
    form.
    """
    word = word.lower().replace("’", "'").removesuffix("'s").rstrip("'")
    for suffix in _SUFFIXES:
        stay = word[: -len(suffix)] + ("y" if suffix in _TO_Y else "")
        if word.endswith(suffix) and len(stay) >= 4:
            word = stay
            break
    return word[:-1] if len(word) > 4 and word[-1] == word[-2] else word


def is_content(word: str) -> bool:
    """Whether the word says what a text is about: no stop word, and more than one character."""
    return word.lower() not in STOP_WORDS and (len(word) > 1 or word.isdigit())


class Rarity:
    """How much a word tells, from 0 (nothing) to 1 (it is in one document alone).

    With `document_frequency` (word as written -> number of documents with it) and `documents` (the
    corpus's size) it is Lucene's idf divided by that of a word in one document; a word that no
    document has tells nothing, since it can match nothing. Without them it is guessed from the
    word's form: numbers and capitals tell more, and so does length.
    """

    def __init__(
        self,
        document_frequency: Callable[[str], int] | None = None,
        documents: int | None = None,
    ) -> None:
        if (document_frequency is None) != (documents is None):
            raise InputError(
                "only one of document_frequency and documents was given",
                valid="both or neither",
                do="give both from the index, or leave both out",
            )
        if documents is not None:
            check_int("documents", documents)
        self._frequency = document_frequency
        self._documents = documents or 0
        self._most = self._idf(1) if documents else 1.0

    def __call__(self, word: str) -> float:
        if not is_content(word):
            return 0.0
        if self._frequency is None:
            return self._by_form(word)
        frequency = min(self._frequency(word), self._documents)
        return self._idf(frequency) / self._most if frequency > 0 else 0.0

    def _idf(self, frequency: int) -> float:
        return math.log(1 + (self._documents - frequency + 0.5) / (frequency + 0.5))

    @staticmethod
    def _by_form(word: str) -> float:
        marked = any(c.isdigit() for c in word) or word[0].isupper()
        return min(1.0, (0.6 if marked else 0.2) + 0.05 * min(len(word), 8))
