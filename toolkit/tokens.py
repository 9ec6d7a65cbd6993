"""Counting and cutting text by the tokens of a model, as published protocols do.

Where a protocol names no tokenizer, tokens are the words and single marks of `toolkit.text`. Of
English prose these are somewhat fewer than a model's tokens, of other texts many fewer. What is
compared must be counted alike.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import file_fingerprint
from toolkit.hub import hub_file, is_hub_name
from toolkit.text import count_tokens, head

_FILE = "tokenizer.json"
_CHARACTERS = 8  # of a token, as a first guess of how much text to read


class Tokens(Protocol):
    """One way to count tokens; `fingerprint` names it, with its content."""

    @property
    def fingerprint(self) -> str: ...

    def count(self, text: str) -> int:
        """Number of tokens of a text."""
        ...

    def head(self, text: str, limit: int) -> str:
        """The shortest prefix with the first `limit` tokens; all of a text that has fewer."""
        ...


class WordTokens:
    """The words and single marks of `toolkit.text`; needs no model."""

    fingerprint = "words and marks"

    def count(self, text: str) -> int:
        """See `Tokens`."""
        return count_tokens(text)

    def head(self, text: str, limit: int) -> str:
        """See `Tokens`."""
        return head(text, limit)


class ModelTokens:
    """Those of the `tokenizer.json` at `path`, without the special tokens that a model adds.
    `source` is what the user called it. Safe for threads. `InputError` for a damaged file."""

    def __init__(self, path: Path, source: str) -> None:
        self.fingerprint = f"{source}@{file_fingerprint(path)}"
        try:
            self._tokenizer: Any = require("tokenizers").Tokenizer.from_file(str(path))
        except Exception as error:  # The library raises no class of its own.
            raise InputError(
                f"{path} is no tokenizer: {error}", valid="a tokenizer.json as models have it"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        """See `Tokens`."""
        return len(self._encoded(text).ids)

    def head(self, text: str, limit: int) -> str:
        """See `Tokens`. Reads no more of a long text than the cut depends on."""
        if limit <= 0:
            return ""
        size = _CHARACTERS * limit
        while True:
            part = text[:size]
            ends = [end for _, end in self._encoded(part).offsets]
            cut = ends[limit - 1] if len(ends) >= limit else len(part)
            # What follows a space has no say in how the tokens before it are cut.
            settled = len(ends) > limit and any(map(str.isspace, part[cut:-1]))
            if settled or len(part) == len(text):
                return text[:cut] if len(ends) >= limit else text
            size *= 2

    def _encoded(self, text: str) -> Any:
        # Halves of surrogate pairs, which models write, cannot be passed on.
        return self._tokenizer.encode(
            text.encode("utf-8", "replace").decode(), add_special_tokens=False
        )


WORDS = WordTokens()


def tokens_of(source: str | None) -> Tokens:
    """The tokens of a tokenizer: the path of a `tokenizer.json` or of a folder with one, or the
    name of a model on the hub; None: words and marks. `InputError` where it cannot be had."""
    return WORDS if source is None else _loaded(source)


@lru_cache(maxsize=8)
def _loaded(source: str) -> ModelTokens:
    path = Path(source).expanduser()
    file = path / _FILE if path.is_dir() else path
    if file.is_file():
        return ModelTokens(file, path.name)
    if path.exists() or not is_hub_name(source):
        raise InputError(
            f"there is no tokenizer at {source}",
            valid="the path of a tokenizer.json, or a model's name on the Hugging Face hub",
            do="check the path",
        )
    return ModelTokens(hub_file(source, _FILE), source)
