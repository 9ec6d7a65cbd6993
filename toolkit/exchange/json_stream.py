"""The items of a list in a JSON object that is too large to be read whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from toolkit.errors import InputError
from toolkit.exchange.run_files import LARGEST

_CHUNK = 1 << 20  # characters
_WHITE = " \t\r\n"


def items_of(path: Path, name: str) -> Iterator[Any]:
    """The items of the list `name` of the object in a file, one at a time; none where there is no
    such list. `InputError` where the file is not JSON up to the end of the list."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            yield from _Reader(stream).items(name)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON: {str(error)[:200]}", valid="a whole JSON object"
        ) from None


class _Reader:
    """A stream, and the part of it that is not read yet."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = json.JSONDecoder()
        self._buffer = ""
        self._at = 0
        self._ended = False

    def items(self, name: str) -> Iterator[Any]:
        self._expect("{")
        while self._peek() != "}":
            key = self._value()
            self._expect(":")
            if key == name and self._peek() == "[":
                yield from self._list()
                return
            self._value()
            if self._peek() != "}":
                self._expect(",")

    def _list(self) -> Iterator[Any]:
        self._expect("[")
        while self._peek() != "]":
            yield self._value()
            if self._peek() != "]":
                self._expect(",")

    def _value(self) -> Any:
        """The next value. The buffer doubles until it holds it, so that all readings of a long one
        together take twice its length."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except ValueError:
                if self._ended:
                    raise
            else:
                # A number may go on behind the end of the buffer.
                if end < len(self._buffer) or self._ended:
                    self._at = end
                    return value
            self._more(max(_CHUNK, len(self._buffer) - self._at))

    def _peek(self) -> str:
        """The next character that is no white space, which stays; `ValueError` at the end."""
        while True:
            while self._at < len(self._buffer):
                if self._buffer[self._at] not in _WHITE:
                    return self._buffer[self._at]
                self._at += 1
            if self._ended:
                raise ValueError("it ends too early")
            self._more(_CHUNK)

    def _expect(self, character: str) -> None:
        if (actual := self._peek()) != character:
            raise ValueError(f"{character!r} was expected, {actual!r} came")
        self._at += 1

    def _more(self, count: int) -> None:
        rest = self._buffer[self._at :]
        if len(rest) > LARGEST:
            raise ValueError(f"one value is longer than {LARGEST:,} characters")
        chunk = self._stream.read(count)
        self._ended = not chunk
        self._buffer, self._at = rest + chunk, 0
