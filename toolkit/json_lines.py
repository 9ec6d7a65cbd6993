"""Logs of JSON lines that survive a kill."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_file, dump_json, form_at_rest, set_aside
from soundingline.toolkit.json_text import try_json
from soundingline.toolkit.locks import open_own
from soundingline.toolkit.obfuscation import canary_decrypts, decrypt_line

_SYNC_SECONDS = 1.0


class JsonLinesLog:
    """A log of JSON objects, one a line, that one process appends to from any number of threads.
    The caller holds a lock, because two processes must not append to one file.

    A line is passed to the kernel before `append` returns, so that kill -9 loses at most the line
    that is being written, and a power failure the lines of the last second. An unfinished last line
    is set aside before the first append (`set_aside_unfinished`). `append` and `close` raise
    `OSError` if the file cannot be written, and a line that could not be written whole is removed.
    `append` raises what `open_own` raises.

    Args:
        path: the file, which is created with its first line.
        head: the first line of a new file.
        quoting: the lines quote a benchmark, and are written in their `form_at_rest`.
    """

    def __init__(
        self, path: Path, *, head: Mapping[str, Any] | None = None, quoting: bool = False
    ) -> None:
        self.path = path
        self._head, self._quoting = head, quoting
        self._form: Callable[[bytes], bytes] = bytes
        self._handle: int | None = None
        self._length = 0  # of the finished lines, in bytes
        self._synced = float("-inf")
        self._lock = threading.Lock()

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one line."""
        line = _line(value)
        with self._lock:
            if self._handle is None:
                self._form = form_at_rest(self.path) if self._quoting else bytes
                self._handle = open_own(self.path, append=True)
                self._length = set_aside_unfinished(self.path)
                if self._head is not None and not self._length:
                    self._write(self._handle, _line(self._head))
            self._write(self._handle, line)
            if time.monotonic() - self._synced >= _SYNC_SECONDS:
                self._sync(self._handle)

    def close(self) -> None:
        """Sync and close the file; a later `append` opens it again."""
        with self._lock:
            if self._handle is None:
                return
            try:
                self._sync(self._handle)
            finally:
                os.close(self._handle)
                self._handle = None

    def _write(self, handle: int, line: bytes) -> None:
        line = self._form(line)
        written = 0
        try:
            while written < len(line):
                written += os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, self._length)
            raise
        self._length += written

    def _sync(self, handle: int) -> None:
        os.fsync(handle)
        self._synced = time.monotonic()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a log in their order; none if there is no file. An unfinished last line is
    left out, because it may be being written. `ValueError` with the number of the first damaged
    line, from 1, and `InputError` if the lines are obfuscated and cannot be decrypted."""
    values = []
    for number, (_, value) in enumerate(_rows(_content(path), path), start=1):
        if isinstance(value, str):
            raise ValueError(f"line {number} {value}")
        values.append(value)
    return values


def recover_json_lines(
    path: Path, *, head: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The objects of a log that may be damaged, for its only writer. `InputError` if another canary
    obfuscated the file.

    If a line is damaged, the file is copied to `<name>.damaged-<n>`, only good lines stay in the
    file, and a line on standard error says so. These are the lines before the first damaged one, or
    all others if the lines do not depend on each other: such a log has a `head`, its first line,
    which is written again if it is damaged.
    """
    content = _content(path)
    rows = list(_rows(content, path, recovering=True))
    damages = [number for number, (_, value) in enumerate(rows) if isinstance(value, str)]
    if damages:
        first, damage = damages[0], rows[damages[0]][1]
        good = [row for row in (rows if head else rows[:first]) if not isinstance(row[1], str)]
        if head and first == 0:
            line = form_at_rest(path)(_line(head))
            good.insert(0, (line.rstrip(b"\n"), dict(head)))
        copy = set_aside(path, content)
        with atomic_file(path) as stream:
            stream.write(b"".join(line + b"\n" for line, _ in good))
        notify(
            f"{path} is damaged: line {first + 1} {damage}; it was copied to {copy.name}, "
            f"and {len(good)} of its {len(rows)} lines are used"
        )
        rows = good
    return [value for _, value in rows if not isinstance(value, str)]


def set_aside_unfinished(path: Path) -> int:
    """Move an unfinished last line of a file to `<name>.damaged-<n>` and report it in one line, for
    the only writer of the file. Returns the size in bytes of the finished lines."""
    content = _content(path)
    length = content.rfind(b"\n") + 1
    if length < len(content):
        aside = set_aside(path, content[length:])
        os.truncate(path, length)
        notify(f"the last line of {path} was never finished; it is moved to {aside.name}")
    return length


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _rows(
    content: bytes, path: Path, *, recovering: bool = False
) -> Iterator[tuple[bytes, dict[str, Any] | str]]:
    """The finished lines, without their ends, each with its object or with its damage in words."""
    for line in content.split(b"\n")[:-1]:
        try:
            text = decrypt_line(line, path)
        except InputError:
            if not recovering or not canary_decrypts(path):
                raise
            yield line, "cannot be decrypted"
            continue
        value = try_json(text)
        yield line, value if isinstance(value, dict) else "is not a JSON object"


def _line(value: Mapping[str, Any]) -> bytes:
    return dump_json(value, indent=None, separators=(",", ":")).encode()
