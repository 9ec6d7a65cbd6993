"""Secrets in configurations. A configuration names the environment variable of a key (`key_env`) or
refers to it (`${oc.env:NAME}`). What `find_secrets` finds beside such references is refused before
anything is written, and `redact` masks the values that references stand for in what is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

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
_REFERENCE = re.compile(rf"[\"']?(?:{_SCHEME})?\$\{{oc\.env:\w+\}}[\"']?", re.IGNORECASE)
# An override, an assignment or a header, which is the whole text.
_PAIR = re.compile(r"[-+~]*(?P<name>[\w.@][\w.@-]*)\s*[:=]\s*(?P<value>.+)", re.DOTALL)
# What looks like a key in any text: the password of a URL, a key in its query, the value of a
# header, and what providers issue.
_FORMS = re.compile(
    r"://[^/\s:@]*:(?P<password>[^/\s@]+)@"
    r"|[?&][\w.~%-]*(?:key|token|secret|password)=(?P<query>[^&#\s]+)"
    r"|\b(?:bearer|basic)\s+(?P<header>[\w+/.=~-]{12,})"
    r"|\b(?P<key>(?:sk-|hf_|gsk_|xai-|ghp_|github_pat_|pplx-)(?=[\w-]*\d)[\w-]{16,})",
    re.IGNORECASE,
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
    is that of the value itself), in a text `name=value` or `name: value`, and what looks like a key
    in any text. References to environment variables, None, truth values and empty texts do not
    change.

    Example:
        >>> redact({"api_key": "sk-1", "url": "https://me:pw@host/", "k1": 0.9})
        {'api_key': '***', 'url': 'https://me:***@host/', 'k1': 0.9}
    """
    if isinstance(value, Mapping):
        return {key: redact(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner, name) for inner in value]
    text, spans = str(value), list(_spans(value, name))
    for first, last in reversed(spans):
        text = text[:first] + REDACTED + text[last:]
    return text if spans else value


def find_secrets(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The name and the text of each secret that `redact` masks, at any depth, without the `Bearer`
    of a header."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from find_secrets(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from find_secrets(inner, name)
    else:
        for first, last in _spans(value, name):
            secret = str(value)[first:last].strip("\"'")
            yield name, re.sub(f"^{_SCHEME}", "", secret, flags=re.IGNORECASE)


def _spans(value: Any, name: str) -> Iterator[tuple[int, int]]:
    """Where the secrets of a single value are in its text."""
    text = str(value)
    if value is None or isinstance(value, bool) or text in _NOTHING or _REFERENCE.fullmatch(text):
        return
    # A value that cannot be the name of a variable is probably the key itself.
    misplaced = name.endswith("key_env") and not VARIABLE.fullmatch(text)
    if misplaced or is_secret_key(name):
        yield 0, len(text)
    elif (pair := _PAIR.fullmatch(text)) and is_secret_key(pair["name"]):
        if list(_spans(pair["value"], pair["name"])):
            yield pair.span("value")
    else:
        for form in _FORMS.finditer(text):
            yield form.span(str(form.lastgroup))


def _is_secret(name: str) -> bool:
    *before, last = [word.lower() for word in _WORD.findall(name)] or [""]
    if last in _ELSE:
        return False
    if _ALWAYS & {*before, last} or last in _LAST or ("api", "key") in pairwise([*before, last]):
        return True
    if last == "token":
        return not before or before[-1] not in _TEXT
    return last in ("keys", "tokens") and bool(before) and before[-1] in _OWNERS
