"""Obfuscation of texts that crawlers must not find, as BrowseComp-Plus publishes its questions: the
text in UTF-8, XOR the repeated SHA-256 of a canary string, in base64. It keeps a benchmark out of
training data and is not a secret, because the benchmark's authors publish the canary. In a folder
with a file `SEALED.txt`, and below it, each line that quotes the benchmark is written as `~sealed:`
and the obfuscated line, so that logs can be appended to (`form_at_rest` of
`soundingline.toolkit.files`). Readers recognize such lines everywhere."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from pathlib import Path

from soundingline.toolkit.errors import InputError

VARIABLE = "SOUNDINGLINE_CANARY"
MARKER = "SEALED.txt"
_PREFIX = b"~sealed:"
_CHECK = "The canary is right if this can be read."
_NOTE = f"""\
The texts in this folder and below it are those of a sealed benchmark. They are obfuscated, so that
they do not end up in training data; set {VARIABLE} to the benchmark's canary to work with them.
Please do not publish them in plain text.
"""


class NotObfuscated(ValueError):
    """A text that the canary cannot decrypt: obfuscated with another canary, or damaged."""


class Canary:
    """Obfuscates texts with the key of a canary string (not empty), and decrypts them. An object is
    safe for threads, and neither stores nor shows the string.

    Example:
        >>> canary = Canary("a canary")
        >>> canary.decrypt(canary.encrypt("a question"))
        'a question'
    """

    def __init__(self, text: str) -> None:
        if not text:
            raise InputError(
                f"a sealed benchmark is used, and the environment variable {VARIABLE} is not set",
                valid="the canary string that the benchmark's authors publish with it",
                do=f"export {VARIABLE}='...'; it is never written anywhere",
            )
        self._key = hashlib.sha256(text.encode()).digest()

    def encrypt(self, text: str) -> str:
        """The obfuscated text, in the alphabet of base64."""
        return base64.b64encode(self._xor(text.encode())).decode("ascii")

    def decrypt(self, obfuscated: str | bytes) -> str:
        """The text of an obfuscated one; `NotObfuscated` if this canary cannot decrypt it."""
        try:
            return self._xor(base64.b64decode(obfuscated, validate=True)).decode()
        except (binascii.Error, ValueError):
            raise NotObfuscated("the canary cannot decrypt it") from None

    def _xor(self, content: bytes) -> bytes:
        size = len(content)
        key = (self._key * (size // len(self._key) + 1))[:size]
        result = int.from_bytes(content, "little") ^ int.from_bytes(key, "little")
        return result.to_bytes(size, "little")


def canary() -> Canary:
    """The canary of the environment variable `SOUNDINGLINE_CANARY`; `InputError` if it is not
    set."""
    return Canary(os.environ.get(VARIABLE, ""))


def marker_text() -> str:
    """The text of the file that marks an obfuscated folder: a note, and a line by which readers see
    whether their canary is the right one. `InputError` if no canary is set."""
    return _NOTE + encrypt_lines(_CHECK.encode()).decode("ascii") + "\n"


def canary_decrypts(path: Path) -> bool:
    """Whether `path` lies in an obfuscated folder whose marker the canary decrypts. A line there
    that it cannot decrypt is then damaged. `InputError` where no canary is set."""
    markers = [marker for folder in path.resolve().parents if (marker := folder / MARKER).is_file()]
    lines = [line for marker in markers for line in marker.read_bytes().splitlines()]
    obfuscated = [line for line in lines if line.startswith(_PREFIX)]
    try:
        return bool([canary().decrypt(line[len(_PREFIX) :]) for line in obfuscated])
    except NotObfuscated:
        return False


def is_obfuscated(path: Path) -> bool:
    """Whether a file at `path` is to be obfuscated: its folder, or one above it, is marked."""
    return any((folder / MARKER).is_file() for folder in path.resolve().parents)


def encrypt_lines(content: bytes) -> bytes:
    """UTF-8 text with each line obfuscated. A last line without a line break stays without one."""
    encrypt = canary().encrypt
    # Text that is not UTF-8, as in the log of a server, must not be lost.
    lines = [line.decode("utf-8", "replace") for line in content.split(b"\n")]
    return b"\n".join(_PREFIX + encrypt(line).encode("ascii") if line else b"" for line in lines)


def decrypt_line(line: bytes, path: Path) -> bytes:
    """A line (without its line break), decrypted if it is obfuscated. `path` appears in the
    message of the `InputError` for a line that cannot be decrypted."""
    if not line.startswith(_PREFIX):
        return line
    try:
        return canary().decrypt(line[len(_PREFIX) :]).encode()
    except NotObfuscated:
        raise InputError(
            f"{path} cannot be decrypted with the canary in ${VARIABLE}",
            valid="the canary that it was obfuscated with",
            do=f"set {VARIABLE} to it; if that is right, the file is damaged",
        ) from None


def decrypt_lines(content: bytes, path: Path) -> bytes:
    """The content of a file with its obfuscated lines decrypted; see `decrypt_line`."""
    if _PREFIX not in content:
        return content
    return b"\n".join(decrypt_line(line, path) for line in content.split(b"\n"))


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The UTF-8 text of a file, which may be obfuscated. Errors are those of reading a file, and
    `InputError` for an obfuscated one where no canary is set or it cannot decrypt the text."""
    return decrypt_lines(path.read_bytes(), path).decode("utf-8", errors)
