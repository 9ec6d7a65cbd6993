"""The analysis of SIRA's released code (its engine bm25x with the tokenizer `unicode_stem`)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.metadata import version
from string import ascii_letters, digits
from threading import Lock

from pipelines.lexical.byte_roles import make_byte_roles
from toolkit.extras import require
from toolkit.files import fingerprint

_STOP_WORDS = """
a about above after again against all am an and are as at be been being below between both but
by can could d dare did do does doing don during each every few for from further had has have
having he her here hers herself him himself his how i if in into is it its itself just ll m me
might more most my myself need no not now o of on once only or other ought our ours ourselves
out over own re s same shall she should so some such t than that the their theirs them
themselves then there these they this to too under until up ve very was we were what when where
which who whom why will with would you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""The 132 words that the released code leaves out."""
_WORD = re.compile(r"[a-z0-9]+")
_LONGEST = 128  # characters of a word that the released code indexes
_WORDS_KEPT = 1 << 19


class SiraAnalyzer:
    """Lower case, NFKD, no character that is not ASCII then; words are runs of letters and digits;
    `STOP_WORDS` out; Snowball's stemmer for English (the extra `enrich`).

    As there, a dash or quotation mark of Unicode is dropped like an accent, so that it joins the
    words around it, and text of other scripts leaves nothing but its digits. `InputError` where
    the stemmer is not installed.
    """

    name = "sira"
    longest = 1
    # Whether a character that is not ASCII parts words is known when it is folded.
    byte_roles = make_byte_roles(parts=ascii_letters + digits)

    def __init__(self) -> None:
        stem = require("snowballstemmer").stemmer("english").stemWord
        # Not a method: a circle would keep all words until the garbage collector comes by.
        self._terms = lru_cache(_WORDS_KEPT)(partial(_term, stem, Lock()))

    @property
    def fingerprint(self) -> str:
        """Of the words left out, and of the versions of Unicode's data and of the stemmer."""
        versions = unicodedata.unidata_version, version("snowballstemmer")
        return fingerprint(self.name, sorted(STOP_WORDS), *versions)

    def words(self, text: str) -> list[str]:
        if not text.isascii():
            text = unicodedata.normalize("NFKD", text.lower())
            text = text.encode("ascii", "ignore").decode("ascii")
        return _WORD.findall(text.lower())

    def term(self, word: str) -> str | None:
        return self._terms(word)

    def terms(self, text: str) -> list[str]:
        return list(filter(None, map(self._terms, self.words(text))))

    def __reduce__(self) -> tuple[type[SiraAnalyzer], tuple[()]]:
        return SiraAnalyzer, ()

    def __repr__(self) -> str:
        return f"make_analyzer({self.name!r})"


def _term(stem: Callable[[str], str], stemming: Lock, word: str) -> str | None:
    """The term of a word; `stemming` is held meanwhile, for a stemmer works on one at a time."""
    if word in STOP_WORDS:
        return None
    with stemming:
        return str(stem(word[:_LONGEST]))
