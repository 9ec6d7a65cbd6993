"""From text to index terms: the only module that decides what a term is.

`english` equals Lucene's English analysis as Anserini's `DefaultEnglishAnalyzer` does it: words of
Unicode Standard Annex #29, possessive `'s` removed, lower case, 33 stop words removed, Porter's
stemmer.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from string import ascii_letters, digits
from threading import Lock
from typing import Any

from soundingline.pipelines.lexical.word_break import (
    BYTE_CLASSES,
    MAX_LENGTH,
    VERSION,
    make_byte_classes,
    segment,
)
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

# Porter's stemmer as in his own Java version, which Lucene's `PorterStemFilter` carries.
#
# M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the departures that
# the author published later: `bli` for `abli`, and the ending `logi`. Words of one or two letters
# stay. Anything but a, e, i, o, u and some y is a consonant, digits and other scripts included.


_STEP2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP3 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
_STEP4 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("sion", "tion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def porter_stem(word: str) -> str:
    """The stem of a lower-case word. Lengths count UTF-16 units, as Java's do."""
    if not word.isascii() and _ASTRAL.search(word):
        units = word.encode("utf-16", "surrogatepass")
        pairs = "".join(map(chr, memoryview(units)[2:].cast("H")))
        return _stem(pairs).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return _stem(word)


def _stem(word: str) -> str:
    # A step is called only where the word has a letter of its endings: most words skip most steps.
    if len(word) <= 2:
        return word
    if word[-1] == "s":
        word = _plural(word)
    if word[-1] in "dg":
        word = _past_and_gerund(word)
    if word[-1] == "y" and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    if endings := _STEP2.get(word[-2:-1]):
        word = _replace(word, endings)
    if endings := _STEP3.get(word[-1]):
        word = _replace(word, endings)
    if word[-2:-1] in _STEP4:
        word = _strip(word)
    return _final(word) if word[-1] in "el" else word


def _shape(text: str) -> str:
    """`c` for each consonant and `v` for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in text:
        if letter in "aeiou" or (letter == "y" and shape[-1:] == "c"):
            shape += "v"
        else:
            shape += "c"
    return shape


def _measure(text: str) -> int:
    return _shape(text).count("vc")


def _ends_short(text: str) -> bool:
    """Consonant, vowel, consonant that is not w, x or y: an `e` was dropped here (hop, not how)."""
    return len(text) > 2 and _shape(text)[-3:] == "cvc" and text[-1] not in "wxy"


def _ends_double(text: str) -> bool:
    return len(text) > 1 and text[-1] == text[-2] and _shape(text)[-1] == "c"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word if word[-2] == "s" else word[:-1]


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    head = ""
    if word.endswith("ed"):
        head = word[:-2]
    elif word.endswith("ing"):
        head = word[:-3]
    if "v" not in _shape(head):
        return word
    if head.endswith(("at", "bl", "iz")):
        return head + "e"
    if _ends_double(head):
        return head if head[-1] in "lsz" else head[:-1]
    return head + "e" if _measure(head) == 1 and _ends_short(head) else head


def _replace(word: str, endings: tuple[tuple[str, str], ...]) -> str:
    for ending, other in endings:
        if word.endswith(ending):
            head = word[: -len(ending)]
            return head + other if _measure(head) > 0 else word
    return word


def _strip(word: str) -> str:
    for ending in _STEP4[word[-2:-1]]:
        if word.endswith(ending):
            head = word[: -len(ending)] + (ending[0] if ending in ("sion", "tion") else "")
            return head if _measure(head) > 1 else word
    return word


def _final(word: str) -> str:
    if word[-1] == "e":
        head = word[:-1]
        measure = _measure(head)
        if measure > 1 or (measure == 1 and not _ends_short(head)):
            word = head
    if word[-1] == "l" and _ends_double(word) and _measure(word) > 1:
        word = word[:-1]
    return word


_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there
these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_SIRA_STOP_WORDS = """
a about above after again against all am an and are as at be been being below between both but
by can could d dare did do does doing don during each every few for from further had has have
having he her here hers herself him himself his how i if in into is it its itself just ll m me
might more most my myself need no not now o of on once only or other ought our ours ourselves
out over own re s same shall she should so some such t than that the their theirs them
themselves then there these they this to too under until up ve very was we were what when where
which who whom why will with would you your yours yourself yourselves
"""
SIRA_STOP_WORDS = frozenset(_SIRA_STOP_WORDS.split())
"""The 132 words that SIRA's released code leaves out."""

_CACHED_TERMS = 1 << 19
# Both count changes of the rules below, so that an older index is not taken for an equal one.
_RULES = 1
_NGRAM_RULES = 2

# Character.isWhitespace of Java: no-break spaces are not white space.
_BLANK = r"\t-\r\x1c-\x20\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000"
_NOT_BLANK = re.compile(f"[^{_BLANK}]+")
_SIRA_WORD = re.compile(r"[a-z0-9]+")
_LONGEST_SIRA_WORD = 128  # characters of a word that the released code indexes
_NGRAMS = re.compile(r"([0-9]{1,9})(:hashed)?")
_LONGEST_NGRAM = 4
_SLOTS = 1 << 23

SEPARATOR = "\x1e"
"""The record separator of ASCII: no word and no n-gram of any analyzer spans it."""


class Analyzer(ABC):
    """Turns text into index terms. `words` cuts the text, and `term` does not depend on context, so
    that a caller may ask for the term of each distinct word once. `make_analyzer` makes one by its
    name, also when it is unpickled.
    """

    name: str
    longest = 1
    """The number of words in the longest term."""
    byte_classes: bytes | None = None
    """Where text may be cut (see `make_byte_classes`) so that the terms of all word forms are the
    terms of the text. None if terms may span any cut."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the name, all settings and the version of the Unicode data."""

    @abstractmethod
    def words(self, text: str) -> list[str]:
        """Raw words of `text` in order."""

    @abstractmethod
    def term(self, word: str) -> str | None:
        """The index term of one raw word; None if the word is not indexed."""

    def terms(self, text: str) -> list[str]:
        """The index terms of `text` in order."""
        return list(filter(None, map(self.term, self.words(text))))

    def __reduce__(self) -> tuple[Callable[[str], Analyzer], tuple[str]]:
        return make_analyzer, (self.name,)

    def __repr__(self) -> str:
        return f"make_analyzer({self.name!r})"


class _TermCache(dict[str, "str | None"]):
    """The term of each word, for a limited number of words."""

    def __init__(self, compute: Callable[[str], str | None]) -> None:
        super().__init__()
        self.compute = compute

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _CACHED_TERMS:
            self.clear()
        term = self[word] = self.compute(word)
        return term


class _CachingAnalyzer(Analyzer):
    """Computes the term of each distinct word once, for a limited number of words."""

    # `compute` must not refer to the analyzer: such a reference cycle would keep all words in
    # memory until the garbage collector runs.
    def __init__(self, compute: Callable[[str], str | None]) -> None:
        self._cached = _TermCache(compute)

    def term(self, word: str) -> str | None:
        return self._cached[word]

    def terms(self, text: str) -> list[str]:
        return list(filter(None, map(self._cached.__getitem__, self.words(text))))


class LuceneAnalyzer(_CachingAnalyzer):
    """Words of Annex #29 in lower case, then the filters that are switched on, in Lucene's order.

    Args:
        name: the analyzer's name in `make_analyzer`.
        possessive: remove a final `'s`.
        stop_words: words that are not indexed.
        stemming: apply Porter's stemmer.
    """

    byte_classes = BYTE_CLASSES

    def __init__(
        self,
        name: str,
        *,
        possessive: bool = False,
        stop_words: frozenset[str] = frozenset(),
        stemming: bool = False,
    ) -> None:
        self.name = name
        self._settings = (possessive, sorted(stop_words), stemming)

        def term(word: str) -> str | None:
            if possessive and word[-1:] in ("s", "S") and word[-2:-1] in ("'", "\u2019", "\uff07"):
                word = word[:-2]
            word = _lower(word)
            if word in stop_words:
                return None
            return porter_stem(word) if stemming else word

        super().__init__(term)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, *self._settings, VERSION, _RULES)

    def words(self, text: str) -> list[str]:
        return segment(text)


class SiraAnalyzer(_CachingAnalyzer):
    """The analysis of SIRA's released code (its engine bm25x with the tokenizer `unicode_stem`).

    Text is put into lower case and NFKD, and characters that are not ASCII are removed. Words are
    runs of letters and digits, without `SIRA_STOP_WORDS`, stemmed by Snowball's stemmer for English
    (the extra `enrich`).

    As in the released code, a dash or quotation mark of Unicode is removed like an accent, so that
    it joins the words around it, and of text in other scripts only the digits remain.

    Raises:
        InputError: the stemmer is not installed.
    """

    name = "sira"
    # Whether a character that is not ASCII parts words is known when it is folded.
    byte_classes = make_byte_classes(parts=ascii_letters + digits)

    def __init__(self) -> None:
        stem_word = import_optional("snowballstemmer").stemmer("english").stemWord
        stemming = Lock()  # a stemmer works on one word at a time

        def term(word: str) -> str | None:
            if word in SIRA_STOP_WORDS:
                return None
            with stemming:
                return str(stem_word(word[:_LONGEST_SIRA_WORD]))

        super().__init__(term)

    @property
    def fingerprint(self) -> str:
        """Hash of the stop words and of the versions of Unicode's data and of the stemmer."""
        versions = unicodedata.unidata_version, version("snowballstemmer")
        return fingerprint(self.name, sorted(SIRA_STOP_WORDS), *versions)

    def words(self, text: str) -> list[str]:
        if not text.isascii():
            text = unicodedata.normalize("NFKD", text.lower())
            text = text.encode("ascii", "ignore").decode("ascii")
        return _SIRA_WORD.findall(text.lower())


class WhitespaceAnalyzer(Analyzer):
    """Words between white space as they are, longer ones cut after 255 UTF-16 units."""

    name = "whitespace"
    byte_classes = make_byte_classes(parts="".join(filter(_NOT_BLANK.match, map(chr, range(128)))))

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


class NgramAnalyzer(Analyzer):
    """The terms of another analyzer, and each 2 to `longest` neighbours among them, joined by a
    space.

    N-grams are made of terms, so they span stop words, but never a `SEPARATOR`.

    Args:
        words_analyzer: gives the single terms.
        longest: words of the longest n-gram, 2 to 4.
        slots: replace each n-gram by the number of its slot (MurmurHash3 of its UTF-8, modulo
            `slots`), as SIRA's released code does: n-grams that share a slot share their postings,
            which over-estimates document frequencies. None keeps the n-grams themselves.

    Raises:
        InputError: `longest` is out of range.
    """

    def __init__(self, words_analyzer: Analyzer, longest: int, slots: int | None = None) -> None:
        if not 2 <= longest <= _LONGEST_NGRAM:
            raise InputError(
                f"n-grams of {longest} words",
                valid=f"2 to {_LONGEST_NGRAM}",
                do="set analyzer=english:2",
            )
        self._words, self.longest, self.slots = words_analyzer, longest, slots
        self.name = f"{words_analyzer.name}:{longest}" + (":hashed" if slots else "")
        self._hash: Any = import_optional("sklearn.utils").murmurhash3_32 if slots else None

    @property
    def fingerprint(self) -> str:
        return fingerprint(self._words.fingerprint, self.longest, self.slots, _NGRAM_RULES)

    def words(self, text: str) -> list[str]:
        return self._words.words(text)

    def term(self, word: str) -> str | None:
        return self._words.term(word)

    def terms(self, text: str) -> list[str]:
        """Of each part of the text between separators: single terms first, then pairs, and so on;
        each in the order of the text."""
        terms: list[str] = []
        for part in text.split(SEPARATOR):
            single = self._words.terms(part)
            terms += single
            for size in range(2, self.longest + 1):
                starts = range(len(single) - size + 1)
                ngrams = [" ".join(single[start : start + size]) for start in starts]
                terms += ngrams if self._hash is None else map(self._slot, ngrams)
        return terms

    def _slot(self, ngram: str) -> str:
        return f" {self._hash(ngram.encode(), positive=True) % self.slots}"


def is_ngram(term: str) -> bool:
    """Whether an index term is an n-gram of several words: no single term has a space."""
    return " " in term


def _cut(word: str) -> list[str]:
    """Pieces that end with the character that reaches 255 units, as Lucene's `CharTokenizer`."""
    parts, start, units = [], 0, 0
    for position, character in enumerate(word, start=1):
        units += 1 + (character > "\uffff")
        if units >= MAX_LENGTH:
            parts.append(word[start:position])
            start, units = position, 0
    return [*parts, word[start:]] if start < len(word) else parts


def _lower(word: str) -> str:
    """Java's lower case, one code point at a time: no final sigma, and one letter for U+0130."""
    return word.lower() if word.isascii() else "".join([letter.lower()[0] for letter in word])


_ENGLISH: dict[str, Any] = {"possessive": True, "stop_words": STOP_WORDS}
_FACTORIES: dict[str, Callable[[], Analyzer]] = {
    "english": partial(LuceneAnalyzer, "english", stemming=True, **_ENGLISH),
    "english_unstemmed": partial(LuceneAnalyzer, "english_unstemmed", **_ENGLISH),
    "standard": partial(LuceneAnalyzer, "standard"),
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
