"""Counting and cutting texts by words or by the tokens of a model."""

from __future__ import annotations

import re
import sys
import unicodedata
from abc import ABC, abstractmethod
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import file_hash
from soundingline.toolkit.optional import hub_file, import_optional, is_hub_name

_TOKEN = re.compile(r"\w+|[^\w\s]")
_SPACE, _WORD, _MARK = 0, 1, 2
_CHARACTERS_PER_TOKEN = 8  # a first guess of how much text to read
_SHORT = 400  # characters; for shorter texts the expression is faster than arrays
_TOKENIZER_FILE = "tokenizer.json"


class Tokenizer(ABC):
    """Base class of tokenizers. Its `fingerprint` identifies the tokenizer and its content."""

    fingerprint: str

    @abstractmethod
    def count(self, text: str) -> int:
        """The number of tokens of a text."""

    @abstractmethod
    def truncate(self, text: str, limit: int) -> str:
        """The shortest prefix with the first `limit` tokens, or the text if it has fewer."""


class WordTokenizer(Tokenizer):
    """Words (`\\w+`) and single other marks; needs no model.

    Example:
        >>> count_tokens("Isn't it?")
        5
    """

    fingerprint = "words and marks"

    def count(self, text: str) -> int:
        return len(_TOKEN.findall(text)) if len(text) < _SHORT else len(token_starts(text))

    def truncate(self, text: str, limit: int) -> str:
        if limit <= 0:
            return ""
        # Arrays are faster if so many characters contain enough tokens; a token may have any
        # length.
        prefix = text[: _CHARACTERS_PER_TOKEN * limit + _SHORT]
        if len(prefix) >= _SHORT:
            starts = token_starts(prefix)
            whole = len(prefix) == len(text)
            if len(starts) > limit or (len(starts) == limit and whole):
                match = _TOKEN.match(text, int(starts[limit - 1]))
                assert match is not None
                return text[: match.end()]
            if len(starts) and whole:
                return text
        last = next(islice(_TOKEN.finditer(text), limit - 1, None), None)
        return text[: last.end()] if last else text


class FileTokenizer(Tokenizer):
    """The tokenizer of a `tokenizer.json` that the user named `source`, without the special tokens
    that models add. Thread-safe. `InputError` if the file is damaged."""

    def __init__(self, path: Path, source: str) -> None:
        self.fingerprint = f"{source}@{file_hash(path)}"
        try:
            self._tokenizer: Any = import_optional("tokenizers").Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no class of its own
            raise InputError(
                f"{path} is not a tokenizer: {error}", valid="a tokenizer.json as models have it"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        return len(self._encoded(text).ids)

    def truncate(self, text: str, limit: int) -> str:
        if limit <= 0:
            return ""
        size = _CHARACTERS_PER_TOKEN * limit
        while True:
            part = text[:size]
            ends = [end for _, end in self._encoded(part).offsets]
            cut = ends[limit - 1] if len(ends) >= limit else len(part)
            # Text after a space does not change how the tokens before it are cut.
            settled = len(ends) > limit and any(map(str.isspace, part[cut:-1]))
            if settled or len(part) == len(text):
                return text[:cut] if len(ends) >= limit else text
            size *= 2

    def _encoded(self, text: str) -> Any:
        return self._tokenizer.encode(text, add_special_tokens=False)


WORDS = WordTokenizer()
count_tokens, truncate = WORDS.count, WORDS.truncate


def load_tokenizer(source: str | None) -> Tokenizer:
    """A tokenizer by the path of a `tokenizer.json` or of a folder with one, or by the name of a
    model on the Hugging Face hub; None: words and marks. `InputError` if it cannot be found."""
    return WORDS if source is None else _loaded(source)


@lru_cache(maxsize=8)
def _loaded(source: str) -> FileTokenizer:
    path = Path(source).expanduser()
    file = path / _TOKENIZER_FILE if path.is_dir() else path
    if file.is_file():
        return FileTokenizer(file, path.name)
    if path.exists() or not is_hub_name(source):
        raise InputError(
            f"there is no tokenizer at {source}",
            valid="the path of a tokenizer.json, or a model's name on the Hugging Face hub",
            do="check the path",
        )
    return FileTokenizer(hub_file(source, _TOKENIZER_FILE), source)


def token_starts(text: str) -> NDArray[np.intp]:
    """The character positions at which the words and marks of a text begin, ascending."""
    kinds = _kinds()[character_codes(text)]
    words = kinds == _WORD
    starts = kinds == _MARK
    starts[:1] |= words[:1]
    starts[1:] |= words[1:] & ~words[:-1]
    return np.flatnonzero(starts)


def character_codes(text: str) -> NDArray[Any]:
    """The code of each character: 8 bits each if all are ASCII, else 32 bits. Read-only."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


@cache
def word_characters() -> NDArray[np.bool_]:
    """By code point: whether it is a word character (`\\w`)."""
    return _kinds() == _WORD


@cache
def _kinds() -> NDArray[np.uint8]:
    characters = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = np.full(len(characters), _MARK, dtype=np.uint8)
    for pattern, kind in ((r"\w+", _WORD), (r"\s+", _SPACE)):
        for run in re.finditer(pattern, characters):
            kinds[run.start() : run.end()] = kind
    return kinds


def is_format_character(character: str) -> bool:
    """Whether a character is of Unicode's category Cf, which readers do not see: zero-width spaces
    and joiners, byte-order marks, soft hyphens and direction marks."""
    return unicodedata.category(character) == "Cf"


def without_format_characters(text: str) -> str:
    """The text without its format characters, see `is_format_character`."""
    return text if text.isascii() else text.translate(_DROPPED)


def with_zero_width_spaces(text: str) -> str:
    """The text, of the same length, with a zero-width space for each format character."""
    return text if text.isascii() else text.translate(_REPLACED)


class _FormatCharacters(dict[int, int | None]):
    """A table for `str.translate`, filled as codes occur, because there are many."""

    def __init__(self, replacement: int | None) -> None:
        self._replacement = replacement

    def __missing__(self, code: int) -> int | None:
        self[code] = self._replacement if is_format_character(chr(code)) else code
        return self[code]


_DROPPED, _REPLACED = _FormatCharacters(None), _FormatCharacters(0x200B)
