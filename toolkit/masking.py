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

_SCHEME = r"(?:bearer|basic|token)\s+"
_REFERENCE = re.compile(rf"(?:{_SCHEME})?\$\{{oc\.env:\w+\}}", re.IGNORECASE)
# A text that is `name=value` or `name: value` from its beginning, as an override or a header is.
_WHOLE = re.compile(r"[-+~]*(?P<name>[\w.@][\w.@-]*)\s*[:=]\s*(?P<value>.+)", re.DOTALL)
# What may be inside a text: the password of an address and the pairs of its query, pairs of JSON,
# YAML or a command line, and what stands in a header.
_INSIDE = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"://[^/\s:@]*:(?P<value>[^/\s@]+)(?=@)",
        r"(?<=[?&])(?P<name>[\w.~%-]+)=(?P<value>[^&#\s]+)",
        r"""(?<![\w.@-])(?P<name>[\w.@-]+)["']?\s*[:=]\s*"""
        r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\$\{[^{}]*\}|[^\s,;&{}\[\]"']+)""",
        r"(?:bearer|basic)\s+(?P<value>[\w+/.=~-]{12,})",
    )
)
_NOTHING = ("", MASK, "null", "true", "false")


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
        return value if _refers(value) else MASK
    return _text_masked(value) if isinstance(value, str) else value


def secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """The texts that `masked` would replace, at any depth; of a header without `Bearer`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secrets_in(inner, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for option, inner in _with_options(value):
            yield from secrets_in(inner, f"{name}.{option}")
    elif masked(value, name) == MASK != value:
        yield _bare(str(value))
    elif isinstance(value, str):
        yield from (_bare(match["value"]) for match in _matches(value))


def _is_secret(name: str) -> bool:
    *before, last = [word.lower() for word in _WORD.findall(name)] or [""]
    if last in _ELSE:
        return False
    if _ALWAYS & {*before, last} or last in _LAST or ("api", "key") in pairwise([*before, last]):
        return True
    if last == "token":
        return not before or before[-1] not in _TEXT
    return last in ("keys", "tokens") and bool(before) and before[-1] in _OWNERS


def _refers(value: Any) -> bool:
    return bool(_REFERENCE.fullmatch(str(value).strip("\"'")))


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
    pieces, end = [], 0
    for first, last in sorted(match.span("value") for match in _matches(text)):
        if first >= end:
            pieces += [text[end:first], MASK]
        end = max(end, last)
    return "".join([*pieces, text[end:]])


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Secrets inside a text, as the group `value` of each match."""
    quoted = _WHOLE.fullmatch(text)
    if quoted and _holds_secret(quoted):
        yield quoted
        return
    for pattern in _INSIDE:
        yield from filter(_holds_secret, pattern.finditer(text))


def _bare(value: str) -> str:
    return re.sub(f"^{_SCHEME}", "", value.strip("\"'"), flags=re.IGNORECASE)


def _holds_secret(match: re.Match[str]) -> bool:
    named = match.groupdict().get("name")
    value = match["value"].strip("\"'")
    secret = named is None or is_secret_key(unquote(named))
    return secret and value not in _NOTHING and not _refers(value)
