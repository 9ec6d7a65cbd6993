"""Phrases that enrich a text: reading them out of a model's answer, and cleaning them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from toolkit.checks import check_integer
from toolkit.llm.json_answers import json_values

KEY = "keywords"
_LONGEST_CHARACTERS = 200
_CONTROL = ("Cc", "Cf", "Cs", "Co", "Cn")


class Limits(NamedTuple):
    """At most `phrases` a text, each of at most `words` words."""

    phrases: int = 10
    words: int = 4

    def checked(self) -> Limits:
        """These limits; `InputError` where they have no meaning."""
        for name, value in self._asdict().items():
            check_integer(name, value)
        return self


LEFT_OUT = ("repeated", "too_long", "beyond", "empty")


class Cleaned(NamedTuple):
    """`phrases` that may be used, and how many were left out: `repeated`, `too_long` (in words or
    characters), `beyond` the number allowed, `empty` (or no text at all)."""

    phrases: tuple[str, ...]
    repeated: int = 0
    too_long: int = 0
    beyond: int = 0
    empty: int = 0

    @property
    def left_out(self) -> dict[str, int]:
        """The numbers by name."""
        return {name: getattr(self, name) for name in LEFT_OUT}


def clean(phrases: Iterable[Any], limits: Limits) -> Cleaned:
    """Phrases with single spaces and without control or format characters, each once (whatever its
    case), within `limits`."""
    usable: dict[str, str] = {}
    repeated = too_long = beyond = empty = 0
    for phrase in phrases:
        # Beyond that it is too long, however much of it is white space.
        text = _visible(phrase[: 10 * _LONGEST_CHARACTERS]) if isinstance(phrase, str) else ""
        words = len(text.split())
        if not words:
            empty += 1
        elif words > limits.words or len(text) > _LONGEST_CHARACTERS:
            too_long += 1
        elif text.casefold() in usable:
            repeated += 1
        elif len(usable) == limits.phrases:
            beyond += 1
        else:
            usable[text.casefold()] = text
    return Cleaned(tuple(usable.values()), repeated, too_long, beyond, empty)


def clean_text(text: str, words: int) -> str:
    """The first `words` words of a text, with single spaces and without control or format
    characters."""
    return " ".join(_visible(text).split()[:words])


def read_phrases(answer: str) -> list[Any] | None:
    """The phrases of a model's answer: the list under `keywords` of its last JSON object, else its
    last JSON list; None where it has neither. What stands in the list is not looked at."""
    newest_list: list[Any] | None = None
    newest_object: list[Any] | None = None
    for value in json_values(answer):
        if isinstance(value, dict) and isinstance(value.get(KEY), list):
            newest_object = value[KEY]
        elif isinstance(value, list):
            newest_list = value
    return newest_object if newest_object is not None else newest_list


def _visible(text: str) -> str:
    characters = (
        " " if character.isspace() else character
        for character in text
        if character.isspace() or unicodedata.category(character) not in _CONTROL
    )
    return " ".join("".join(characters).split())
