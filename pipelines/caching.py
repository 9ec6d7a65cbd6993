"""Results of expensive stages on disk, shared by threads and processes.

One SQLite file a stage (see `cache_files`). A key is hashed from everything that the result depends
on (the stage's fingerprint, the query, the unit, the text), so that nothing in here is ever out of
date: what changed has another key.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.cache_files import opened, placed, reported
from toolkit.counts import Counts
from toolkit.sealing import close_lines, is_sealed, open_line

_MANY = 500  # keys in one SELECT; SQLite's own limit is 999 in old builds
_USED_EVERY = 86400  # seconds after which a hit is noted again: most hits write nothing
Key = tuple[str, ...]


class ResultCache:
    """JSON values by key, at `path` (made with its folders); None: kept nowhere, every lookup a
    miss. `counts` are this object's hits, misses and entries written since it was made.

    Safe for any number of threads and processes, on network file systems too: one connection a
    thread and process, in the mode that the file system needs. A value that two compute at once is
    written by both and is the same. When an entry was last used is kept to the day. In a sealed
    folder values are sealed (`toolkit.sealing`); keys are hashes anyway. `InputError` where the
    file or its folder cannot be opened, read or written, or is damaged.
    """

    def __init__(self, path: Path | str | None) -> None:
        self.path = None if path is None else Path(path)
        self._local = threading.local()
        self._inherited: list[sqlite3.Connection] = []
        self._counts = Counts("hits", "misses", "written")
        if self.path:
            self._file = placed(self.path)
            self._sealed = is_sealed(self._file)
            self._connection()

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts()

    @property
    def lookups(self) -> Mapping[str, int]:
        """The counts of lookups by the names that stages show them under."""
        known = self.counts
        return {"cache_hits": known["hits"], "cache_misses": known["misses"]}

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry at all."""
        if not self.path:
            return True
        with reported(self._file, "read"):
            query = "SELECT NOT EXISTS (SELECT 1 FROM results)"
            return bool(self._connection().execute(query).fetchone()[0])

    def get(self, keys: Sequence[Key]) -> list[Any | None]:
        """The value of each key, None where there is none."""
        digests = [_digest(key) for key in keys]
        stored: dict[bytes, Any] = {}
        if self.path:
            for start in range(0, len(digests), _MANY):
                part = digests[start : start + _MANY]
                marks = ",".join("?" * len(part))
                with reported(self._file, "read"):
                    query = f"SELECT key, value, used FROM results WHERE key IN ({marks})"
                    rows = self._connection().execute(query, part).fetchall()
                    stored.update((key, self._read(value)) for key, value, _ in rows)
                    self._note_use([(key, used) for key, _, used in rows])
        values = [stored.get(digest) for digest in digests]
        hits = sum(value is not None for value in values)
        self._counts.add(hits=hits, misses=len(values) - hits)
        return values

    def put(self, items: Iterable[tuple[Key, Any]]) -> None:
        """Keep the values; all of them or, where writing fails, none."""
        if not self.path:
            return
        now = int(time.time())
        rows = [(_digest(key), self._written(value), now) for key, value in items]
        with reported(self._file, "written"), self._connection() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO results (key, value, used) VALUES (?, ?, ?)", rows
            )
        self._counts.add(written=len(rows))

    def _written(self, value: Any) -> str:
        text = json.dumps(value)
        return close_lines(text.encode()).decode("ascii") if self._sealed else text

    def _read(self, text: str) -> Any:
        return json.loads(open_line(text.encode(), self._file))

    def _note_use(self, entries: Sequence[tuple[bytes, int]]) -> None:
        now = int(time.time())
        stale = [(now, key) for key, used in entries if used < now - _USED_EVERY]
        if stale:
            # Where it cannot be written, a value that was read is still good.
            with suppress(sqlite3.OperationalError), self._connection() as connection:
                connection.executemany("UPDATE results SET used = ? WHERE key = ?", stale)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def _connection(self) -> sqlite3.Connection:
        owner = threading.get_native_id()
        held: tuple[int, sqlite3.Connection] | None = getattr(self._local, "held", None)
        if held is None or held[0] != owner:
            if held:
                # SQLite forbids a forked process to use its parent's connection, even to close it.
                self._inherited.append(held[1])
            held = owner, opened(self._file)
            self._local.held = held
        return held[1]


def text_hash(text: str) -> str:
    """The hash of a text, for keys."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _digest(key: Key) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in key:
        coded = part.encode("utf-8", "surrogatepass")
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(len(coded).to_bytes(8, "little") + coded)
    return digest.digest()
