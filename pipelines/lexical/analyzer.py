"""From text to index terms. The room's only place that decides what a term is.

`english` equals Lucene's English analysis as Anserini's `DefaultEnglishAnalyzer` does it: words of
Unicode Standard Annex #29, possessive `'s` off, lower case, 33 stop words out, Porter's stemmer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pipelines.lexical.byte_roles import make_byte_roles
from pipelines.lexical.porter import stem
from pipelines.lexical.sira_analyzer import SiraAnalyzer
from pipelines.lexical.strings import to_bytes
from pipelines.lexical.word_break import BYTE_ROLES, MAX_LENGTH, segment
from pipelines.lexical.word_break_data import VERSION
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import fingerprint

_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there
these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_WORDS_KEPT = 1 << 19
_RULES = 1  # counts changes of this room's rules, so that an older index is not taken for equal

# Character.isWhitespace of Java: no-break spaces are not white space.
_BLANK = r"\t-\r\x1c-\x20\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000"
_NOT_BLANK = re.compile(f"[^{_BLANK}]+")
_BLANK_ROLES = make_byte_roles(parts="".join(filter(_NOT_BLANK.match, map(chr, range(128)))))
_NGRAMS = re.compile(r"([0-9]{1,9})(:hashed)?")
_LONGEST = 4
_SLOTS = 1 << 23


class Analyzer(Protocol):
    """Turns text into terms. `words` cuts; `term` is context-free, so that callers may count words
    first and ask for the term of each distinct word once."""

    name: str
    longest: int
    """Words of the longest term: 1, or that of an `NgramAnalyzer`."""

    @property
    def fingerprint(self) -> str:
        """Hash of the name, all settings and the version of the Unicode data."""
        ...

    @property
    def byte_roles(self) -> bytes | None:
        """Where text may be cut (`make_byte_roles`): the terms of all pieces are those of
        the text. None where terms may span any cut."""
        ...

    def words(self, text: str) -> list[str]:
        """Raw words of `text` in order."""
        ...

    def term(self, word: str) -> str | None:
        """The index term of one raw word; None where the word is not indexed."""
        ...

    def terms(self, text: str) -> list[str]:
        """The index terms of `text` in order."""
        ...


class _Terms(dict[str, "str | None"]):
    """Remembers the term of each word, up to a number of words."""

    def __init__(self, compute: Callable[[str], str | None]) -> None:
        super().__init__()
        self.compute = compute

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _WORDS_KEPT:
            self.clear()
        term = self[word] = self.compute(word)
        return term


class LuceneAnalyzer:
    """Words of Annex #29 in lower case, then what is asked for, in Lucene's order.

    `possessive` takes a final `'s` off, `stop_words` are dropped, `stemming` is Porter's.
    """

    def __init__(
        self,
        name: str,
        *,
        possessive: bool = False,
        stop_words: frozenset[str] = frozenset(),
        stemming: bool = False,
    ) -> None:
        self.name, self.longest, self.byte_roles = name, 1, BYTE_ROLES
        self._settings = (possessive, stop_words, stemming)
        # Not a method: a circle would keep all words until the garbage collector comes by.
        self._terms = _Terms(partial(_term, *self._settings))

    @property
    def fingerprint(self) -> str:
        possessive, stop_words, stemming = self._settings
        return fingerprint(self.name, possessive, sorted(stop_words), stemming, VERSION, _RULES)

    def words(self, text: str) -> list[str]:
        return segment(text)

    def term(self, word: str) -> str | None:
        return self._terms[word]

    def terms(self, text: str) -> list[str]:
        return list(filter(None, map(self._terms.__getitem__, segment(text))))

    def __reduce__(self) -> tuple[Callable[[str], Analyzer], tuple[str]]:
        return make_analyzer, (self.name,)

    def __repr__(self) -> str:
        return f"make_analyzer({self.name!r})"


class WhitespaceAnalyzer:
    """Words between white space as they stand, longer ones cut after 255 UTF-16 units."""

    name = "whitespace"
    longest = 1
    byte_roles = _BLANK_ROLES

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, _BLANK, _RULES)

    def words(self, text: str) -> list[str]:
        words: list[str] = _NOT_BLANK.findall(text)
        if max(map(len, words), default=0) <= MAX_LENGTH // 2:
            return words
        return [part for word in words for part in _cut(word)]

    def term(self, word: str) -> str | None:
        return word

    def terms(self, text: str) -> list[str]:
        return self.words(text)

    def __repr__(self) -> str:
        return f"make_analyzer({self.name!r})"


class NgramAnalyzer:
    """The terms of `words_analyzer`, and each 2 to `longest` neighbours among them, joined by a
    space.

    N-grams stand on terms, so they span stop words. `longest` is 2 to 4. With `slots`, an n-gram is
    the number of its slot (MurmurHash3 of its UTF-8, modulo `slots`), as in SIRA's released code:
    n-grams that share a slot share their postings, which over-estimates document frequencies.
    """

    byte_roles = None

    def __init__(self, words_analyzer: Analyzer, longest: int, slots: int | None = None) -> None:
        if not 2 <= longest <= _LONGEST:
            raise InputError(
                f"n-grams of {longest} words", valid=f"2 to {_LONGEST}", do="set analyzer=english:2"
            )
        self._words, self.longest, self.slots = words_analyzer, longest, slots
        self.name = f"{words_analyzer.name}:{longest}" + (":hashed" if slots else "")
        self._slot_of = _hashed_ngram(slots) if slots else str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self._words.fingerprint, self.longest, self.slots, _RULES)

    def words(self, text: str) -> list[str]:
        return self._words.words(text)

    def term(self, word: str) -> str | None:
        return self._words.term(word)

    def terms(self, text: str) -> list[str]:
        """Single terms first, then pairs, and so on; each in the order of the text."""
        single = self._words.terms(text)
        terms = list(single)
        for size in range(2, self.longest + 1):
            starts = range(len(single) - size + 1)
            terms += [self._slot_of(" ".join(single[start : start + size])) for start in starts]
        return terms

    def __reduce__(self) -> tuple[Callable[[str], Analyzer], tuple[str]]:
        return make_analyzer, (self.name,)

    def __repr__(self) -> str:
        return f"make_analyzer({self.name!r})"


def is_ngram(term: str) -> bool:
    """Whether an index term is an n-gram of several words: no single term has a space."""
    return " " in term


def _hashed_ngram(slots: int) -> Callable[[str], str]:
    murmurhash3_32 = require("sklearn.utils").murmurhash3_32

    def slot(ngram: str) -> str:
        return f" {murmurhash3_32(to_bytes(ngram), positive=True) % slots}"

    return slot


def _cut(word: str) -> list[str]:
    """Pieces that end with the character that reaches 255 units, as Lucene's `CharTokenizer`."""
    parts, start, units = [], 0, 0
    for position, character in enumerate(word, start=1):
        units += 1 + (character > "\uffff")
        if units >= MAX_LENGTH:
            parts.append(word[start:position])
            start, units = position, 0
    return [*parts, word[start:]] if start < len(word) else parts


def _term(possessive: bool, stop_words: frozenset[str], stemming: bool, word: str) -> str | None:
    """The term of a word under the settings of a `LuceneAnalyzer`."""
    if possessive and word[-1:] in ("s", "S") and word[-2:-1] in ("'", "\u2019", "\uff07"):
        word = word[:-2]
    word = _lower(word)
    if word in stop_words:
        return None
    return stem(word) if stemming else word


def _lower(word: str) -> str:
    """Java's lower case, one code point at a time: no final sigma, and one letter for U+0130."""
    return word.lower() if word.isascii() else "".join([letter.lower()[0] for letter in word])


_FACTORIES: dict[str, Callable[[], Analyzer]] = {
    "english": lambda: LuceneAnalyzer(
        "english", possessive=True, stop_words=STOP_WORDS, stemming=True
    ),
    "english_unstemmed": lambda: LuceneAnalyzer(
        "english_unstemmed", possessive=True, stop_words=STOP_WORDS
    ),
    "standard": lambda: LuceneAnalyzer("standard"),
    "whitespace": WhitespaceAnalyzer,
    "sira": SiraAnalyzer,
}


def make_analyzer(name: str = "english") -> Analyzer:
    """The analyzer of that name: `english`, `english_unstemmed` (no stemming), `standard` (no stop
    words, no stemming), `whitespace` (words between white space as they are), `sira` (that of
    SIRA's released code).

    `english:2` adds pairs of terms that follow each other (`NgramAnalyzer`; up to 4), and
    `english:2:hashed` puts them into 2^23 slots. Raises `InputError` for any other name.
    """
    words, colon, suffix = name.partition(":")
    shape = _NGRAMS.fullmatch(suffix)
    if words not in _FACTORIES or (colon and shape is None):
        raise InputError(
            f"analyzer {name!r} is unknown",
            valid=", ".join(_FACTORIES) + ", each also with n-grams, as english:2",
            do="set analyzer to one of these",
        )
    analyzer = _FACTORIES[words]()
    if shape is None:
        return analyzer
    return NgramAnalyzer(analyzer, int(shape[1]), _SLOTS if shape[2] else None)
