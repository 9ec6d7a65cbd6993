"""Counting and cutting text by tokens, the same way everywhere (segmentation, budgets, exposure).

A token is a run of word characters or one other visible character, which is close to what spaCy's
English tokenizer counts; it needs no model. Not the index's analyzer: see `pipelines.lexical`.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TOKEN = re.compile(r"\w+|[^\w\s]")
_SPACE, _WORD, _MARK = 0, 1, 2
_CHARACTERS_A_TOKEN = 8
_NONE = np.empty(0, dtype=np.intp)
_SHORT = 400  # characters, below which the expression is faster than arrays


def token_spans(text: str) -> Iterator[tuple[int, int]]:
    """Half-open character spans of the tokens of `text`, in order."""
    return (match.span() for match in _TOKEN.finditer(text))


def token_starts(text: str) -> NDArray[np.intp]:
    """Character positions at which the tokens of `text` begin, ascending: `token_spans` without
    the ends, by array operations, which is faster on long texts."""
    kinds = _kinds()[character_codes(text)]
    words = kinds == _WORD
    starts = kinds == _MARK
    starts[:1] |= words[:1]
    starts[1:] |= words[1:] & ~words[:-1]
    return np.flatnonzero(starts)


def count_tokens(text: str) -> int:
    """Number of tokens of `text`."""
    return len(_TOKEN.findall(text)) if len(text) < _SHORT else len(token_starts(text))


def head(text: str, limit: int) -> str:
    """The shortest prefix of `text` with its first `limit` tokens; all of it if it has fewer."""
    if limit <= 0:
        return ""
    # By arrays where so many characters will hold them; one token may be of any length.
    prefix = text[: _CHARACTERS_A_TOKEN * limit + _SHORT]
    starts = token_starts(prefix) if len(prefix) >= _SHORT else _NONE
    if len(starts) > limit or (len(starts) == limit and len(prefix) == len(text)):
        match = _TOKEN.match(text, int(starts[limit - 1]))
        assert match is not None
        return text[: match.end()]
    if len(starts) and len(prefix) == len(text):
        return text
    for index, (_, end) in enumerate(token_spans(text), start=1):
        if index == limit:
            return text[:end]
    return text


def is_format_character(character: str) -> bool:
    """Whether it is of Unicode's category Cf, as zero-width spaces and joiners, byte-order marks,
    soft hyphens and direction marks are. Readers do not see them, comparisons do."""
    return unicodedata.category(character) == "Cf"


def without_format_characters(text: str) -> str:
    """`text` without its format characters; see `is_format_character`."""
    return text if text.isascii() else text.translate(_VISIBLE)


class _Visible(dict[int, int | None]):
    """A table for `str.translate` that drops format characters, of the codes that texts have had:
    one of all codes takes as long as many commands."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if is_format_character(chr(code)) else code
        return self[code]


_VISIBLE = _Visible()


@cache
def word_characters() -> NDArray[np.bool_]:
    """Whether each code point is one of a word (`\\w`)."""
    return _kinds() == _WORD


@cache
def _kinds() -> NDArray[np.uint8]:
    """Kind of every code point, asked of the expressions that a token is defined by."""
    characters = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = np.full(len(characters), _MARK, dtype=np.uint8)
    for pattern, kind in ((r"\w+", _WORD), (r"\s+", _SPACE)):
        for run in re.finditer(pattern, characters):
            kinds[run.start() : run.end()] = kind
    return kinds


def character_codes(text: str) -> NDArray[Any]:
    """The code of each character, in bytes where all are ASCII, else in 32 bits; read only."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
