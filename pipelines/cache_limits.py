"""What the caches of a folder hold, and keeping them below a size or an age.

Keys are hashes, so the entries of one age lie all over a file, and deleting them would leave nearly
every page in use. Pruning therefore goes through a file in ranges of keys and writes what stays of
each range anew, one short transaction after the other: other processes go on reading and writing.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipelines.cache_files import SUFFIX, connect, network_note, opened, reported, usable
from toolkit.console import tell
from toolkit.errors import InputError
from toolkit.files import waiting_lock
from toolkit.progress import track

GB = 1_000_000_000
_LOCK = ".prune.lock"
_RANGE = 20_000  # entries in one transaction, for whose end writers wait
_PAGES = 2_000  # given back to the disk in one transaction
_ENTRY_BYTES = 28  # beside the value: key, time of use, headers
_FILLED = 0.9  # of a page, after its range was written anew
_SHRINK = 0.8  # beyond the limit, so that a cache at its limit is not pruned at every start
_ROUNDS = 8  # until a size is reached: entries of many sizes fill pages less well
_IS_CACHE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'results'"


class CacheSummary(NamedTuple):
    """A cache's file. `bytes` are its pages in use. `used` is when an entry was last written or
    found, to the day, in seconds since 1970 (0: never since this is kept). `entries` is None for a
    file that belongs to another host: only its size and time of change are looked at."""

    path: Path
    entries: int | None
    bytes: int
    used: int


def survey(folder: Path) -> list[CacheSummary]:
    """Every cache of `folder`, by name. Reads the files whole. `InputError` for a damaged one."""
    return [
        _summary(file) if usable(file) else _summary_from_outside(file)
        for file in sorted(folder.rglob(f"*{SUFFIX}"))
        if not usable(file) or _is_cache(file)
    ]


def _is_cache(file: Path) -> bool:
    with reported(file, "read"), closing(connect(file)) as connection:
        return connection.execute(_IS_CACHE).fetchone() is not None


def _caches(folder: Path) -> list[Path]:
    """The files that may be pruned from here."""
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    return [file for file in files if usable(file) and _is_cache(file)]


def _summary(file: Path) -> CacheSummary:
    with reported(file, "read"), closing(opened(file)) as connection:
        query = "SELECT COUNT(*), COALESCE(MAX(used), 0) FROM results"
        entries, used = connection.execute(query).fetchone()
        return CacheSummary(file, entries, _bytes(connection), used)


def _summary_from_outside(file: Path) -> CacheSummary:
    status = file.stat()
    return CacheSummary(file, None, status.st_size, int(status.st_mtime))


def _bytes(connection: sqlite3.Connection) -> int:
    size = _pragma(connection, "page_size")
    return size * (_pragma(connection, "page_count") - _pragma(connection, "freelist_count"))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def keep_bound(caches: Path | str | None, gigabytes: float | None) -> None:
    """Hold the caches at `caches` (None: there are none) at `paths.caches_gb` (None: at no size),
    and tell once what their file system asks for.

    Caches that cannot be pruned are told and stop nothing: the stage that needs one refuses it.
    """
    limit = checked_amount("paths.caches_gb", gigabytes)
    if caches is None:
        return
    folder = Path(caches)
    tell_once(network_note(folder))
    if limit is None:
        return
    try:
        freed = bound(folder, int(limit * GB))
    except InputError as error:
        tell(str(error))
        return
    if freed:
        size = megabytes(freed)
        tell(f"the caches in {folder} were above paths.caches_gb={limit:g}: {size} freed")


@cache
def tell_once(line: str) -> None:
    """A line, once a process; nothing for an empty one."""
    if line:
        tell(line)


def checked_amount(name: str, value: float | None) -> float | None:
    """A size or an age, which may be absent (null)."""
    if value is not None and not 0 <= value < math.inf:
        raise InputError(f"{name}={value}", valid="a number, 0 or more")
    return value


def megabytes(number: int) -> str:
    """So many bytes, for a person."""
    return f"{number / 1_000_000:,.1f} MB"


def bound(folder: Path, limit: int) -> int:
    """Prune the caches of `folder` to four fifths of `limit` bytes where they are above it. Gives
    the bytes that were freed. Costs next to nothing where they are not."""
    if _total(_caches(folder)) <= limit:
        return 0
    return prune(folder, limit=int(_SHRINK * limit))


def prune(folder: Path, *, limit: int | None = None, before: int | None = None) -> int:
    """Delete the entries last used before the time `before` (seconds since 1970), then the
    least recently used ones until the caches of `folder` use at most `limit` bytes together. Gives
    the bytes that were freed.

    Other processes may use the caches meanwhile; one process prunes at a time. Files are never
    removed: others may have them open. On a network file system whose locks stay on their host,
    only the files of this host count and are pruned.
    """
    with waiting_lock(folder / _LOCK):
        files = _caches(folder)
        size = _total(files)
        if before is not None:
            for file in files:
                _rewrite(file, _Cut(before))
        wanted = float(limit or 0)
        for _ in range(_ROUNDS):
            if limit is None or _total(files) <= limit:
                break
            cut = _cut(files, wanted * _FILLED)
            for file in files:
                _rewrite(file, cut, all_ranges=True)
            wanted *= _SHRINK
        return size - _total(files)


def _total(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with reported(file, "read"), closing(connect(file)) as connection:
            total += _bytes(connection)
    return total


class _Cut:
    """Which entries go: those used before `time`, and of those used just then as many as have
    `budget` bytes."""

    def __init__(self, time: int, budget: float = 0) -> None:
        self.time, self._budget = time, budget

    def drops(self, value: str, used: int) -> bool:
        if used == self.time and self._budget > 0:
            self._budget -= len(value.encode()) + _ENTRY_BYTES
            return True
        return used < self.time


def _cut(files: Sequence[Path], keep: float) -> _Cut:
    """The one that leaves about `keep` bytes of entries."""
    sizes: Counter[int] = Counter()
    query = (
        f"SELECT used, SUM(LENGTH(CAST(value AS BLOB)) + {_ENTRY_BYTES}) FROM results GROUP BY used"
    )
    for file in files:
        with reported(file, "read"), closing(opened(file)) as connection:
            for used, size in connection.execute(query):
                sizes[used] += size
    excess = sizes.total() - keep
    for used in sorted(sizes):
        if excess <= sizes[used]:
            return _Cut(used, excess)
        excess -= sizes[used]
    return _Cut(max(sizes, default=0) + 1)


def _rewrite(file: Path, cut: _Cut, *, all_ranges: bool = False) -> None:
    """Drop what goes and pack what stays; ranges of keys from which nothing goes are left alone
    unless `all_ranges`."""
    with reported(file, "pruned"), closing(opened(file)) as connection:
        (entries,) = connection.execute("SELECT COUNT(*) FROM results").fetchone()
        ranges = track(_ranges(connection), f"Pruning {file.name}", entries // _RANGE + 1)
        for first, last in ranges:
            _rewrite_range(connection, first, last, cut, all_ranges)
        _give_back(connection)


def _ranges(connection: sqlite3.Connection) -> Iterator[tuple[bytes, bytes]]:
    """Ranges of keys (first excluded, last included) that cover the table."""
    query = "SELECT key FROM results WHERE key > ? ORDER BY key LIMIT 1 OFFSET ?"
    first, end = b"", b"\xff" * 17  # longer than any key, and so behind all
    while first != end:
        row = connection.execute(query, (first, _RANGE - 1)).fetchone()
        last = row[0] if row else end
        yield first, last
        first = last


def _rewrite_range(
    connection: sqlite3.Connection, first: bytes, last: bytes, cut: _Cut, always: bool
) -> None:
    limits = (first, last)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(
            "SELECT key, value, used FROM results WHERE key > ? AND key <= ? ORDER BY key", limits
        ).fetchall()
        stay = [row for row in rows if not cut.drops(row[1], row[2])]
        if always or len(stay) < len(rows):
            connection.execute("DELETE FROM results WHERE key > ? AND key <= ?", limits)
            connection.executemany("INSERT INTO results VALUES (?, ?, ?)", stay)


def _give_back(connection: sqlite3.Connection) -> None:
    """Shrink the file by its free pages, which a file made without `auto_vacuum` keeps for later
    entries, and empty its log."""
    before, free = -1, _pragma(connection, "freelist_count")
    while free and free != before:
        connection.executescript(f"PRAGMA incremental_vacuum({_PAGES})")
        before, free = free, _pragma(connection, "freelist_count")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
