"""Optional packages, server addresses, and keys, which stay in the environment."""

from __future__ import annotations

import importlib
import os
from typing import Any
from urllib.parse import urlsplit

from toolkit.errors import InputError
from toolkit.masking import MASK, VARIABLE

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def load(name: str) -> Any:
    """An optional module, imported when it is first needed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the Python package {name!r} is not installed",
            do="pip install 'soundingline[llm]'",
        ) from error


class Key:
    """A key in the environment variable `variable` (None: none is needed). Holds the name alone:
    the value is read when it is used and appears in no representation, record or error."""

    def __init__(self, variable: str | None) -> None:
        # The value is not repeated: it may be the key itself.
        if variable is not None and not VARIABLE.fullmatch(variable):
            raise InputError(
                "key_env is not the name of an environment variable",
                valid="capital letters, digits and underscores, such as OPENAI_API_KEY",
                do="export the key under such a name; never write it into the configuration",
            )
        self.variable = variable

    def value(self, where: str) -> str:
        """The key for `where`, empty if none is needed; `InputError` where it is not there."""
        if self.variable is None:
            return ""
        key = os.environ.get(self.variable, "").strip()
        if not key:
            raise InputError(
                f"the environment variable {self.variable} with the key for {where} is not set",
                do=f"export {self.variable}=... in the shell that starts the run",
            )
        if not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(
                f"the key in {self.variable} has characters that no key has",
                do="export it again, without quotation marks or line breaks",
            )
        return key

    def hide(self, text: str) -> str:
        """See `hidden`."""
        return hidden(text, os.environ.get(self.variable or "", "").strip())


def hidden(text: str, secret: str) -> str:
    """An error's or a log's `text` with `***` for a key or password, which a server may quote back.

    For messages alone, never for a model's reply. A secret that could be a word stays (see
    `_could_be_a_word`): it guards nothing but a server of one's own, and replacing it would make
    the message wrong.
    """
    return text if _could_be_a_word(secret) else text.replace(secret, MASK)


def _could_be_a_word(key: str) -> bool:
    """Whether a key can turn up in a text by chance: `EMPTY`, `token-abc123`, `authentication`.

    Providers issue 32 characters and more, and `openssl rand -hex 8` gives 16 with digits among
    them. Words and identifiers of 16 characters are common, those with a digit are not.
    """
    return len(key) < 16 or (len(key) < 32 and not any(map(str.isdigit, key)))


def checked_url(url: str) -> str:
    """A server's address without a slash at its end; `InputError` where it is none, or holds a
    password."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise InputError(
            "base_url has a user name or password in it",
            valid="http://host:port/v1, and the key in an environment variable",
            do="name that variable in key_env",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"base_url is {url!r}", valid="http://host:port/v1 or https://host/v1")
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Whether the address is of this machine."""
    return urlsplit(url).hostname in _LOOPBACK
