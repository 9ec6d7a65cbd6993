"""Redaction of secrets in configurations, by the names of keys and by the forms of values. Secrets
belong in environment variables, which a configuration names (`key_env`) or refers to
(`${oc.env:NAME}`). One that it contains nevertheless must appear in no manifest, name or log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

REDACTED = "***"
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# A name with one of these words is secret, unless its last word is one of `_ELSE`.
_ALWAYS = {"authorization", "bearer", "cookie", "cookies", "credential", "credentials", "jwt"}
_ALWAYS |= {"passphrase", "passwd", "password", "passwords", "pwd", "secret", "secrets"}
_ELSE = {"count", "dir", "env", "field", "file", "id", "length", "limit", "name", "path", "type"}
_ELSE |= {"url", "variable"}
# A name that ends with one of these words is secret.
_LAST = {"accesskey", "accesstoken", "apikey", "auth", "authtoken", "key", "privatekey"}
_LAST |= {"secretkey"}
# Plurals are secret after these words: `api_keys`, but not `max_output_tokens`.
_OWNERS = {"access", "api", "auth", "bearer", "client", "hf", "private", "refresh", "service"}
# Words before a token that is part of a text, such as `pad_token`.
_TEXT = {"bos", "cls", "document", "end", "eos", "extra", "false", "first", "last", "mask", "max"}
_TEXT |= {"min", "next", "no", "pad", "per", "prompt", "query", "sep", "special", "start", "stop"}
_TEXT |= {"true", "unk", "yes"}

_SCHEME = r"(?:bearer|basic|token)\s+"
_REFERENCE = re.compile(rf"(?:{_SCHEME})?\$\{{oc\.env:\w+\}}", re.IGNORECASE)
# A whole text `name=value` or `name: value`, such as an override or a header.
_WHOLE = re.compile(r"[-+~]*(?P<name>[\w.@][\w.@-]*)\s*[:=]\s*(?P<value>.+)", re.DOTALL)
# Parts of a text: the password of a URL and the pairs of its query, pairs of JSON, YAML or a
# command line, and the value of a header.
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
_NOTHING = ("", REDACTED, "null", "true", "false")


def is_secret_key(name: str) -> bool:
    """Whether the value of a key is a secret. A dotted name is secret if one of its parts is.

    Example:
        >>> [name for name in ("api_key", "x-api-key", "clientSecret") if is_secret_key(name)]
        ['api_key', 'x-api-key', 'clientSecret']
        >>> [name for name in ("max_output_tokens", "key_env", "pad_token") if is_secret_key(name)]
        []
    """
    return any(map(_is_secret, name.split(".")))


def redact(value: Any, name: str = "") -> Any:
    """Plain values with `***` in place of every secret: by the names of keys at any depth (`name`
    is that of the value itself), and inside texts as `name=value`, `name: value` or the password of
    a URL. References to environment variables, None, truth values and empty texts do not change.

    Example:
        >>> redact({"api_key": "sk-1", "url": "https://me:pw@host/", "k1": 0.9})
        {'api_key': '***', 'url': 'https://me:***@host/', 'k1': 0.9}
    """
    if isinstance(value, Mapping):
        return {key: redact(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner, f"{name}.{option}") for option, inner in _with_options(value)]
    if value is None or isinstance(value, bool) or value == "":
        return value
    # A value that cannot be the name of a variable is probably the key itself.
    misplaced = name.endswith("key_env") and not VARIABLE.fullmatch(str(value))
    if misplaced or is_secret_key(name):
        return value if _refers(value) else REDACTED
    if not isinstance(value, str):
        return value
    pieces, end = [], 0
    for first, last in sorted(match.span("value") for match in _matches(value)):
        if first >= end:
            pieces += [value[end:first], REDACTED]
        end = max(end, last)
    return "".join([*pieces, value[end:]])


def find_secrets(value: Any, name: str = "") -> Iterator[str]:
    """The texts that `redact` would replace, at any depth, without the `Bearer` of a header."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from find_secrets(inner, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for option, inner in _with_options(value):
            yield from find_secrets(inner, f"{name}.{option}")
    elif redact(value, name) == REDACTED != value:
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


def _with_options(words: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The items of a list, each with the option before it, as on a command line."""
    option = ""
    for word in words:
        yield option, word
        option = word if isinstance(word, str) and word.startswith("-") else ""


def _matches(text: str) -> Iterator[re.Match[str]]:
    """The secrets inside a text: the group `value` of each match."""
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
