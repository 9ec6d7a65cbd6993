"""An append-only file of JSON lines, for what must outlive the process that writes it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolkit.files import open_own
from toolkit.sealing import close_lines, is_sealed, open_line

SYNC_SECONDS = 1.0


class Journal:
    """JSON objects, one per line, appended by one process from any number of threads.

    A line is handed to the kernel before `append` returns, so kill -9 loses at most the line that
    is being written. It reaches the disk at most `sync_seconds` later than the one synced before
    it, and at `close`; a power failure may lose what came in between. The file appears with its
    first line, in front of which a new file gets `head`. An unfinished last line, which a killed
    process leaves, is cut off first. In a sealed folder lines are sealed (`toolkit.sealing`),
    unless they are `clear`: then they hold no text of a benchmark.

    The caller holds a lock: two processes must not append to one file. `append` and `close` raise
    `OSError`, and `append` what `open_own` raises; a line that could not be written whole is taken
    back.
    """

    def __init__(
        self,
        path: Path,
        *,
        head: Mapping[str, Any] | None = None,
        clear: bool = False,
        sync_seconds: float = SYNC_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._head = head
        self._clear = clear
        self._sealed = False
        self._sync_seconds = sync_seconds
        self._clock = clock
        self._synced = float("-inf")
        self._handle: int | None = None
        self._length = 0
        self._lock = threading.Lock()

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one line."""
        line = _line(value)
        with self._lock:
            if self._handle is None:
                self._open()
            self._write(line)
            if self._clock() - self._synced >= self._sync_seconds:
                self._sync()

    def close(self) -> None:
        """Sync and close the file; a later `append` opens it again."""
        with self._lock:
            if self._handle is None:
                return
            try:
                self._sync()
            finally:
                os.close(self._handle)
                self._handle = None

    def _open(self) -> None:
        self._sealed = not self._clear and is_sealed(self.path)
        self._handle = open_own(self.path, append=True)
        self._length = self.path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._handle, self._length)
        if self._head is not None and not self._length:
            self._write(_line(self._head))

    def _write(self, line: bytes) -> None:
        if self._handle is None:
            raise RuntimeError("the journal is not open")
        line = close_lines(line) if self._sealed else line
        written = 0
        try:
            while written < len(line):
                written += os.write(self._handle, line[written:])
        except OSError:
            os.ftruncate(self._handle, self._length)
            raise
        self._length += written

    def _sync(self) -> None:
        if self._handle is not None:
            os.fsync(self._handle)
        self._synced = self._clock()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The objects of a journal, in order; none where there is no file. An unfinished last line is
    left out. `InputError` where it is sealed and cannot be opened; `ValueError` with the line's
    number, from 1, where another line is no JSON object."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
    opened = (open_line(line, path) for line in lines)
    return [_parsed(line, number) for number, line in enumerate(opened, start=1)]


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not a JSON object")
    return value


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:  # Half a surrogate pair, which models write.
        return f"{json.dumps(value, separators=(',', ':'))}\n".encode()
