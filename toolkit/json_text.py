"""JSON and strings of others: of models, of servers, of files that other programs wrote."""

from __future__ import annotations

import json
from typing import Any, NoReturn

DEEPEST = 100  # nested lists and objects


def replace_surrogates(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate, which UTF-8 cannot represent. Two that are a pair
    become their character.

    Example:
        >>> replace_surrogates("a\\ud83d b")
        'a� b'
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def has_surrogates(text: str) -> bool:
    """Whether a text has a lone surrogate."""
    return text != replace_surrogates(text)


def replace_surrogates_in(value: Any, levels: int = DEEPEST) -> Any:
    """Plain values with the same in every string, and in every key. `ValueError` for lists and
    objects that are nested in more than so many `levels`."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if not isinstance(value, (dict, list)):
        return value
    if not levels:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [replace_surrogates_in(item, levels - 1) for item in value]
    pairs = value.items()
    return {replace_surrogates(key): replace_surrogates_in(item, levels - 1) for key, item in pairs}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER, _STANDARD = json.JSONDecoder(), json.JSONDecoder(parse_constant=_refuse)


def decode_json(text: str | bytes, *, constants: bool = True, replace: bool = True) -> Any:
    """The value of a JSON text (as bytes in UTF-8), without lone surrogates.

    Args:
        text: the text, which may begin with a byte order mark.
        constants: accept `NaN` and `Infinity`, which some programs write.
        replace: put U+FFFD in the place of lone surrogates, which an escape can hold
            (`replace_surrogates`); False leaves them to the caller, and values of any depth that
            Python reads, which is faster.

    Raises:
        ValueError: in one line, if it is not JSON, or is nested in more than `DEEPEST` levels.

    Example:
        >>> decode_json('{"a": "\\\\ud83d"}')
        {'a': '�'}
    """
    text = (text.decode() if isinstance(text, bytes) else text).removeprefix("\ufeff")
    try:
        value = (_DECODER if constants else _STANDARD).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _checked(value, text, 0, len(text)) if replace else value


def decode_json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at the character `start` of `text`, and the character after it;
    the value and the errors are those of `decode_json`."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _checked(value, text, start, end), end


def try_json(text: str | bytes, otherwise: Any = None) -> Any:
    """The value of `decode_json`, or `otherwise` if the text has none."""
    try:
        return decode_json(text)
    except ValueError:
        return otherwise


def _checked(value: Any, text: str, start: int, end: int) -> Any:
    """`value`, which is walked through only if its text makes that necessary."""
    escaped = any(text.find(begin, start, end) >= 0 for begin in ("\\ud", "\\uD"))
    brackets = sum(text.count(bracket, start, end) for bracket in "[{")
    return replace_surrogates_in(value) if escaped or brackets > DEEPEST else value
