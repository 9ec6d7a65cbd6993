"""Texts that crawlers must not find: obfuscated as BrowseComp-Plus publishes its questions.

The key is the SHA-256 of a canary string in UTF-8, repeated to the length of the text; a sealed
text is the text in UTF-8, XOR the key, in base64. This keeps a benchmark out of training data. It
keeps no secret: whoever has the canary, which the benchmark's authors publish, can read everything.

A folder with a file `SEALED.txt` holds sealed files: every line that this project writes there, or
below it, is `~sealed:` and the sealed line, unless whoever writes it says that it holds no text of
a benchmark. Lines are sealed one by one, so that a log can be appended to and the beginning of a
record read alone. Readers open such lines wherever they find them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from functools import lru_cache
from pathlib import Path

from toolkit.errors import InputError

VARIABLE = "SOUNDINGLINE_CANARY"
MARKER = "SEALED.txt"
_PREFIX = b"~sealed:"
_CHECK = "The canary is right if this can be read."
_NOTE = f"""\
The texts in this folder and below it are those of a sealed benchmark. They are obfuscated, so that
they do not end up in training data; set {VARIABLE} to the benchmark's canary to work with them.
Please do not publish them in plain text.
"""


class NotSealed(ValueError):
    """A text that the canary does not open: sealed by another one, or damaged."""


class Seal:
    """Closes and opens texts with the key of `canary`. Safe for threads; does not keep or show the
    canary. `InputError` for an empty one."""

    def __init__(self, canary: str) -> None:
        if not canary:
            raise _absent()
        self._key = hashlib.sha256(canary.encode()).digest()

    def close(self, text: str) -> str:
        """The sealed form of a text, in base64's alphabet."""
        return base64.b64encode(self._turned(text.encode())).decode("ascii")

    def open(self, sealed: str | bytes) -> str:
        """The text of a sealed form; `NotSealed` where this is none of this canary."""
        try:
            return self._turned(base64.b64decode(sealed, validate=True)).decode()
        except (binascii.Error, ValueError):
            raise NotSealed("the canary does not open it") from None

    def _turned(self, content: bytes) -> bytes:
        size = len(content)
        key = (self._key * (size // len(self._key) + 1))[:size]
        turned = int.from_bytes(content, "little") ^ int.from_bytes(key, "little")
        return turned.to_bytes(size, "little")


def seal() -> Seal:
    """The seal of the canary in the environment; `InputError` where there is none."""
    return _seal(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=4)
def _seal(canary: str) -> Seal:
    return Seal(canary)


def mark_sealed(folder: Path) -> None:
    """Have all that is written in `folder` and below it sealed from now on. `InputError` where
    there is no canary, or where the folder was sealed with another one."""
    marker = folder / MARKER
    if marker.is_file():
        for line in marker.read_bytes().splitlines():
            open_line(line, marker)
        return
    line = _closed(_CHECK.encode(), seal())
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{MARKER}.{secrets.token_hex(8)}.tmp"
    temporary.write_bytes(_NOTE.encode() + line + b"\n")
    temporary.replace(marker)


def is_sealed(path: Path) -> bool:
    """Whether what is written at `path` is to be sealed: a marker stands in its folder or above."""
    return any((folder / MARKER).is_file() for folder in path.resolve().parents)


def close_lines(content: bytes) -> bytes:
    """UTF-8 text, each line sealed; a last line without its end stays without."""
    by = seal()
    return b"\n".join(_closed(line, by) if line else b"" for line in content.split(b"\n"))


def open_line(line: bytes, path: Path) -> bytes:
    """A line (without its end) as it was before it was sealed; others as they are. `path` is for
    the message of the `InputError` where it cannot be opened."""
    if not line.startswith(_PREFIX):
        return line
    try:
        return seal().open(line[len(_PREFIX) :]).encode()
    except NotSealed:
        raise InputError(
            f"{path} cannot be opened with the canary in ${VARIABLE}",
            valid="the canary that it was sealed with",
            do=f"set {VARIABLE} to it; if that is right, the file is damaged",
        ) from None


def open_lines(content: bytes, path: Path) -> bytes:
    """A file's content with its sealed lines opened; see `open_line`."""
    if _PREFIX not in content:
        return content
    return b"\n".join(open_line(line, path) for line in content.split(b"\n"))


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The UTF-8 text of a file, sealed or not. `OSError` and `UnicodeDecodeError` as from reading
    it; `InputError` where it is sealed and the canary is absent or does not open it."""
    return open_lines(path.read_bytes(), path).decode("utf-8", errors)


def _closed(line: bytes, by: Seal) -> bytes:
    # What is no UTF-8 (a server's log) must not be lost for being sealed.
    return _PREFIX + by.close(line.decode("utf-8", "replace")).encode("ascii")


def _absent() -> InputError:
    return InputError(
        f"a sealed benchmark is used, and the environment variable {VARIABLE} is not set",
        valid="the canary string that the benchmark's authors publish with it",
        do=f"export {VARIABLE}='...'; it is never written anywhere",
    )
