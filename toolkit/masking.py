"""What a secret looks like in a configuration, and the same configuration without it.

Keys, tokens and passwords belong in environment variables: a configuration names the variable
(`key_env`) or refers to it (`${oc.env:NAME}`). One that stands in a file of options all the same
must not reach a manifest, a folder's name, a report or a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

MASK = "***"
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Secret wherever they stand in a name, unless its last word says that it is something else.
_ALWAYS = {"authorization", "bearer", "cookie", "cookies", "credential", "credentials", "jwt"}
_ALWAYS |= {"passphrase", "passwd", "password", "passwords", "pwd", "secret", "secrets"}
_ELSE = {"count", "dir", "env", "field", "file", "id", "length", "limit", "name", "path", "type"}
_ELSE |= {"url", "variable"}
# Secret as the last word of a name.
_LAST = {"accesskey", "accesstoken", "apikey", "auth", "authtoken", "key", "privatekey"}
_LAST |= {"secretkey"}
# Their plurals are secret after these: `api_keys`, and not `max_output_tokens`.
_OWNERS = {"access", "api", "auth", "bearer", "client", "hf", "private", "refresh", "service"}
# What stands before a token that is part of a text.
_TEXT = {"bos", "cls", "document", "end", "eos", "extra", "false", "first", "last", "mask", "max"}
_TEXT |= {"min", "next", "no", "pad", "per", "prompt", "query", "sep", "special", "start", "stop"}
_TEXT |= {"true", "unk", "yes"}

_REFERENCE = re.compile(r"(?:(?:bearer|basic|token)\s+)?\$\{oc\.env:\w+\}", re.IGNORECASE)
# A text that is `name=value` or `name: value` from its beginning, as an override or a header is.
_WHOLE = re.compile(r"([-+~]*)(?P<name>[\w.@][\w.@-]*)(\s*[:=]\s*)(?P<value>.+)", re.DOTALL)
# The same inside a text, be it of JSON, YAML or a command line.
_PAIR = re.compile(
    r"""(?<![\w.@-])(?P<name>[\w.@-]+)(["']?\s*[:=]\s*)"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\$\{[^{}]*\}|[^\s,;&{}\[\]"']+)"""
)
_QUERY = re.compile(r"(?<=[?&])(?P<name>[\w.~%-]+)(=)(?P<value>[^&#\s]+)")
_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")  # of an address
_SCHEME = re.compile(r"((?:bearer|basic)\s+)[\w+/.=~-]{12,}", re.IGNORECASE)


def is_secret_key(name: str) -> bool:
    """Whether a value of that name is a secret: `api_key`, `Authorization`, `x-api-key`,
    `HF_TOKEN`, `clientSecret`; of a dotted name any part. Not `max_output_tokens`, `batch_tokens`,
    `key_env`, `tokenizer`, `pad_token`."""
    return any(_is_secret(part) for part in name.split("."))


def masked(value: Any, name: str = "") -> Any:
    """Plain values with `***` in the place of every secret: found by its name at any depth, and
    inside texts as `name=value`, `name: value` or the password of an address. References to the
    environment stay, and so do None, truth values and empty texts."""
    if isinstance(value, Mapping):
        return {key: masked(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(inner, f"{name}.{option}") for option, inner in _with_options(value)]
    if value is None or isinstance(value, bool) or value == "":
        return value
    if is_secret_key(name) or _misplaced(name, value):
        return value if _REFERENCE.fullmatch(str(value)) else MASK
    return _text_masked(value) if isinstance(value, str) else value


def secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """The values that `masked` would replace for their names, at any depth."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secrets_in(inner, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for option, inner in _with_options(value):
            yield from secrets_in(inner, f"{name}.{option}")
    elif masked(value, name) == MASK != value:
        yield str(value)


def _is_secret(name: str) -> bool:
    *before, last = [word.lower() for word in _WORD.findall(name)] or [""]
    if last in _ELSE:
        return False
    if _ALWAYS & {*before, last} or last in _LAST or ("api", "key") in pairwise([*before, last]):
        return True
    if last == "token":
        return not before or before[-1] not in _TEXT
    return last in ("keys", "tokens") and bool(before) and before[-1] in _OWNERS


def _misplaced(name: str, value: Any) -> bool:
    """Whether a variable's name was wanted, and something else, probably the key itself, came."""
    return name.endswith("key_env") and not VARIABLE.fullmatch(str(value))


def _with_options(words: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Items of a list, each with the option before it, as on a command line."""
    option = ""
    for word in words:
        yield option, word
        option = word if isinstance(word, str) and word.startswith("-") else ""


def _text_masked(text: str) -> str:
    if (pair := _WHOLE.fullmatch(text)) and is_secret_key(pair["name"]):
        return _pair_masked(pair)
    text = _PASSWORD.sub(rf"\1{MASK}", text)
    for pattern in (_QUERY, _PAIR):
        text = pattern.sub(_pair_masked, text)
    return _SCHEME.sub(rf"\1{MASK}", text)


def _pair_masked(pair: re.Match[str]) -> str:
    value = pair["value"].strip("\"'")
    if not is_secret_key(unquote(pair["name"])) or value in ("", MASK, "null", "true", "false"):
        return pair[0]
    return pair[0] if _REFERENCE.fullmatch(value) else pair[0][: -len(pair["value"])] + MASK
