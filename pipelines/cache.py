"""Results of expensive stages on disk, shared by threads, processes and runs.

A stage has one SQLite file. A key is a hash of everything that the result depends on (the stage's
fingerprint, the query, the unit, the text), so that no entry is ever out of date.

SQLite's write-ahead log needs memory that all its processes share: "WAL does not work over a
network filesystem" (sqlite.org/wal.html). A rollback journal needs only POSIX locks
(sqlite.org/lockingv3.html, sqlite.org/faq.html#q5), and caches use one wherever the file system is
not known to be local. Each host has a file of its own there, because locks may not reach others.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import sqlite3
import threading
import time
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from soundingline.pipelines.stage import Counts
from soundingline.toolkit.console import notify, track
from soundingline.toolkit.errors import InputError, check_number
from soundingline.toolkit.files import form_at_rest, set_aside
from soundingline.toolkit.locks import file_lock, file_system, is_local, open_own
from soundingline.toolkit.obfuscation import decrypt_line

GB = 1_000_000_000
_MANY = 500  # keys in one SELECT; the limit of old builds of SQLite is 999
_USED_EVERY = 86400  # seconds between two updates of `used`, so that most hits write nothing
_BUSY_SECONDS = 60  # how long a connection waits for the transactions of others
# `used`: when an entry was last written or read, in seconds since 1970. `crc`: the CRC-32 of the
# value's bytes, because SQLite does not notice a changed bit in a value.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value TEXT, "
    "used INTEGER NOT NULL DEFAULT 0, crc INTEGER) WITHOUT ROWID"
)
_INSERT = "INSERT OR REPLACE INTO results (key, value, used, crc) VALUES (?, ?, ?, ?)"

_RANGE = 20_000  # entries that one transaction of `prune` rewrites while other writers wait
_PAGES = 2_000  # pages that one transaction returns to the disk
_ENTRY_BYTES = 33  # of an entry besides its value: key, time of use, checksum, headers
_FILLED = 0.9  # of a page whose range was rewritten
_SHRINK = 0.8  # of the limit, so that a cache at its limit is not pruned at every start
_ROUNDS = 8  # of pruning to a size, because entries of many sizes fill their pages less well

# Seconds between two attempts to claim prompts: a tenth of the wait so far, within these bounds.
_SHORTEST, _LONGEST = 0.01, 1.0
Key = tuple[str, ...]


class ResultCache:
    """JSON values by key in the SQLite file `path`, which is created with its folders; None stores
    nothing. `InputError` if the file cannot be opened, read or written, or is damaged.

    Threads and processes of a host may share the file: each thread of each process has its own
    connection. If two of them compute the same value, both write it. In an obfuscated folder the
    values are obfuscated; keys are hashes anyway. A value that does not match its checksum is moved
    to `<file>.damaged-<n>`, a line on standard error says so, and the entry is absent from then on.
    A pickled cache is opened again by its path.

    Args:
        path: the SQLite file.
        counts: receive `cache_hits` and `cache_misses`, if there is a path.
    """

    def __init__(self, path: Path | str | None, counts: Counts | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.counts = Counts() if counts is None else counts
        self._local = threading.local()
        self._inherited: list[sqlite3.Connection] = []
        if self.path:
            self.counts.add(cache_hits=0, cache_misses=0)
            mark = _host_mark(self.path)
            self._file = self.path.with_name(f"{self.path.stem}{mark}{self.path.suffix}")
            self._form = form_at_rest(self._file)
            self._connection()

    @property
    def file(self) -> Path | None:
        """The SQLite file, which may be this host's own; None without a cache."""
        return self._file if self.path else None

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry."""
        if not self.path:
            return True
        with _reported(self._file, "read"):
            return not self._connection().execute("SELECT 1 FROM results LIMIT 1").fetchone()

    def get(self, keys: Sequence[Key], *, counted: bool = True) -> list[Any | None]:
        """The value of each key, None for a key without an entry. `counted`: whether the lookups
        count as hits and misses."""
        digests = [_digest(key) for key in keys]
        stored: dict[bytes, Any] = {}
        for start in range(0, len(digests) if self.path else 0, _MANY):
            part = digests[start : start + _MANY]
            # As bytes, because SQLite would raise for text that is not UTF-8.
            query = (
                "SELECT key, CAST(value AS BLOB), crc, used FROM results "
                f"WHERE key IN ({','.join('?' * len(part))})"
            )
            with _reported(self._file, "read"):
                rows = self._connection().execute(query, part).fetchall()
                stored.update((key, self._decode(key, value, crc)) for key, value, crc, _ in rows)
                self._note_use([(key, used) for key, *_, used in rows])
        values = [stored.get(digest) for digest in digests]
        if counted and self.path:
            hits = sum(value is not None for value in values)
            self.counts.add(cache_hits=hits, cache_misses=len(values) - hits)
        return values

    def put(self, items: Iterable[tuple[Key, Any]]) -> None:
        """Store the values of keys: all of them or, if writing fails, none."""
        if not self.path:
            return
        now = int(time.time())
        texts = [(_digest(key), self._encode(value)) for key, value in items]
        rows = [(key, text, now, zlib.crc32(text.encode())) for key, text in texts]
        with _reported(self._file, "written"), self._connection() as connection:
            connection.executemany(_INSERT, rows)

    def _encode(self, value: Any) -> str:
        return self._form(json.dumps(value).encode()).decode("ascii")

    def _decode(self, key: bytes, value: bytes | None, crc: int | None) -> Any | None:
        if value is not None and crc == zlib.crc32(value):
            with suppress(ValueError):
                return json.loads(decrypt_line(value, self._file))
        with file_lock(_lock_of(self._file)), self._connection() as connection:
            query = "DELETE FROM results WHERE key = ? AND CAST(value AS BLOB) IS ?"
            # Another process may have set it aside in the meantime.
            if connection.execute(query, (key, value)).rowcount:
                kept = set_aside(self._file, value or b"")
                notify(
                    f"an entry of the cache {self._file} is damaged; it was moved to {kept.name}"
                )
        return None

    def _note_use(self, entries: Sequence[tuple[bytes, int]]) -> None:
        now = int(time.time())
        stale = [(now, key) for key, used in entries if used < now - _USED_EVERY]
        if stale:
            # A value that was read is good even if its use cannot be written.
            with suppress(sqlite3.OperationalError), self._connection() as connection:
                connection.executemany("UPDATE results SET used = ? WHERE key = ?", stale)

    def __reduce__(self) -> tuple[Any, ...]:
        return ResultCache, (self.path, self.counts)

    def _connection(self) -> sqlite3.Connection:
        owner = threading.get_native_id()
        held: tuple[int, sqlite3.Connection] | None = getattr(self._local, "held", None)
        if held is None or held[0] != owner:
            if held:
                # SQLite forbids a forked process to use its parent's connection, even to close it.
                self._inherited.append(held[1])
            held = owner, _opened(self._file)
            self._local.held = held
        return held[1]


def text_hash(text: str) -> str:
    """The hash of a text, for keys."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest(key: Key) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in key:
        coded = part.encode()
        # The lengths distinguish ("ab", "c") from ("a", "bc").
        digest.update(len(coded).to_bytes(8, "little") + coded)
    return digest.digest()


def _host_mark(path: Path) -> str:
    """The mark of this host in the names of its own files; empty on a local file system."""
    if is_local(path):
        return ""
    return "@" + re.sub(r"[^\w.-]", "_", socket.gethostname())


def _lock_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.lock")


def _opened(file: Path) -> sqlite3.Connection:
    """A connection to a cache's file, which is created with its folders, in the mode that the file
    system needs."""
    wanted, level = ("wal", "NORMAL") if is_local(file) else ("delete", "FULL")
    # SQLite does not wait if two connections turn on the log of a new file at once; it fails.
    with _reported(file, "opened"), file_lock(_lock_of(file)):
        if not file.exists():
            file.touch()  # SQLite would create it without the group's rights, whatever the umask.
        connection = sqlite3.connect(file, timeout=_BUSY_SECONDS)
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # for `prune`
        (mode,) = connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()
        if mode != wanted:
            raise sqlite3.OperationalError(f"its journal mode stays {mode}")
        # A power cut may lose the newest results of a log, but never damages the file. A rollback
        # journal promises that only at the default level.
        connection.execute(f"PRAGMA synchronous={level}")
        # Hundreds of threads have a connection each, whose caches of SQLite's default size would
        # need much memory; few entries are read twice, and the system caches files as well.
        connection.execute("PRAGMA cache_size=-256")
        with connection:
            connection.execute(_SCHEMA)
    return connection


@contextmanager
def _reported(path: Path, what: str) -> Iterator[None]:
    """Errors of the file as `InputError`."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise InputError(
            f"the cache {path} cannot be {what}: {error}",
            do="free disk space, allow writing, or set paths.caches to a local disk",
        ) from error
    except (sqlite3.DatabaseError, ValueError) as error:
        raise InputError(
            f"the cache {path} is damaged: {error}",
            do="move that file away, and what was in it is computed or paid for again; the command "
            "`sqlite3 FILE .recover` prints what can still be read",
        ) from error


def list_caches(folder: Path) -> list[Path]:
    """The files of the caches of a folder by name, those of other hosts too; none is opened."""
    return sorted(folder.rglob("*.sqlite"))


def network_note(folder: Path) -> str:
    """What a user must know about caches in `folder`, in one line; empty for a local disk."""
    if is_local(folder):
        return ""
    return (
        f"the caches in {folder} lie on a file system that is not known to be local "
        f"({file_system(folder)}): SQLite uses a rollback journal and one file a host, which is "
        "slower than a local disk"
    )


def keep_bound(caches: Path | str | None, gigabytes: float | None) -> None:
    """Prune caches (`paths.caches`) that are above their bound (`paths.caches_gb`), and report once
    per process what their file system needs. Caches that cannot be pruned are reported and stop
    nothing: the stage that needs one refuses it. `InputError` if the bound is not a size."""
    if gigabytes is not None:
        check_number("paths.caches_gb", gigabytes)
    if caches is None:
        return
    folder = Path(caches)
    notify_once(network_note(folder))
    if gigabytes is None:
        return
    try:
        freed = limit_size(folder, int(gigabytes * GB))
    except InputError as error:
        notify(str(error))
        return
    if freed:
        size = megabytes(freed)
        notify(f"the caches in {folder} were above paths.caches_gb={gigabytes:g}: {size} freed")


@cache
def notify_once(line: str) -> None:
    """Print a line once per process; nothing for an empty one."""
    if line:
        notify(line)


def megabytes(number: int) -> str:
    return f"{number / 1_000_000:,.1f} MB"


def limit_size(folder: Path, limit: int) -> int:
    """Prune the caches of `folder` to four fifths of `limit` bytes if they are above it; the bytes
    that were freed."""
    if _total(_caches(folder)) <= limit:
        return 0
    return prune(folder, limit=int(_SHRINK * limit))


def prune(folder: Path, *, limit: int | None = None, before: int | None = None) -> int:
    """Delete old entries of the caches of `folder`; the bytes that were freed.

    Other processes may use the caches meanwhile. Only one process prunes at a time. Files are not
    removed, because others may have them open. Those of other hosts do not count and stay.

    Args:
        limit: the bytes that the caches may use together; the least recently used entries go first.
        before: a time in seconds since 1970; entries that were last used before it are deleted.
    """
    with file_lock(folder / ".prune.lock"):
        files = _caches(folder)
        size = _total(files)
        if before is not None:
            for file in files:
                _delete(file, before, 0.0, pack=False)
        for number in range(_ROUNDS):
            if limit is None or _total(files) <= limit:
                break
            used, share = _oldest(files, limit * _FILLED * _SHRINK**number)
            for file in files:
                _delete(file, used, share, pack=True)
        return size - _total(files)


def _caches(folder: Path) -> list[Path]:
    """The files of caches that this host may open."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'results'"
    caches = []
    for file in list_caches(folder):
        if not file.stem.endswith(_host_mark(file)):
            continue  # another host's
        connected = closing(sqlite3.connect(file, timeout=_BUSY_SECONDS))
        with _reported(file, "read"), connected as connection:
            if connection.execute(query).fetchone():
                caches.append(file)
    return caches


def _total(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        connected = closing(sqlite3.connect(file, timeout=_BUSY_SECONDS))
        with _reported(file, "read"), connected as connection:
            pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
            total += _pragma(connection, "page_size") * pages
    return total


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _oldest(files: Sequence[Path], keep: float) -> tuple[int, float]:
    """A time, and a share of the entries that were last used at it: if these entries and all older
    ones are deleted, about `keep` bytes are left."""
    sizes: Counter[int] = Counter()
    query = (
        f"SELECT used, SUM(LENGTH(CAST(value AS BLOB)) + {_ENTRY_BYTES}) FROM results GROUP BY used"
    )
    for file in files:
        with _reported(file, "read"), closing(_opened(file)) as connection:
            for used, size in connection.execute(query):
                sizes[used] += size
    excess = sizes.total() - keep
    for used in sorted(sizes):
        if excess <= sizes[used]:
            return used, max(excess, 0) / sizes[used]
        excess -= sizes[used]
    return max(sizes, default=0), 1.0


def _delete(file: Path, used: int, share: float, *, pack: bool) -> None:
    """Delete the entries that were last used before a time, and a share of those used at it.

    Keys are hashes, so that the entries of one age lie all over the file, and a deletion alone
    would leave nearly every page in use. The rest of each range of keys from which entries were
    deleted (of all ranges if `pack`) is therefore written again, in one short transaction each.
    """
    with _reported(file, "pruned"), closing(_opened(file)) as connection:
        (entries,) = connection.execute("SELECT COUNT(*) FROM results").fetchone()
        count = entries // _RANGE + 1
        for number in track(range(count), f"Pruning {file.name}"):
            limits = _key_at(number / count), _key_at((number + 1) / count)
            inside = "FROM results WHERE key >= ? AND key < ?"
            old = "AND (used < ? OR used = ? AND key < ?)"
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                values = (*limits, used, used, _key_at(share))
                deleted = connection.execute(f"DELETE {inside} {old}", values).rowcount
                if deleted or pack:
                    query = f"SELECT key, value, used, crc {inside} ORDER BY key"
                    rows = connection.execute(query, limits).fetchall()
                    connection.execute(f"DELETE {inside}", limits)
                    connection.executemany(_INSERT, rows)
        for _ in range(0, _pragma(connection, "freelist_count"), _PAGES):
            connection.executescript(f"PRAGMA incremental_vacuum({_PAGES})")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _key_at(share: float) -> bytes:
    """The key below which a share of all keys lies, because hashes are uniformly distributed."""
    return int(share * 2**64).to_bytes(8, "big") if share < 1 else b"\xff" * 17


class Claims:
    """Which prompts this client is sending to a model, so that other processes wait for the replies
    in the cache instead of paying for them too.

    A claim is a POSIX lock on one byte of the file `<cache>.claims`, which stays empty: the byte
    whose offset is the hash of the prompt. The kernel frees the claims of a process that dies. One
    client claims a prompt in one thread at a time. Without a `cache` nothing is claimed.

    A process that is stopped, or whose server does not answer, still has its claims. After
    `patience` seconds without a new claim a client sends the rest of its prompts anyway, and a line
    on standard error says so; they may be paid for twice. The same is true if the file system has
    no such locks.
    """

    def __init__(self, cache: Path | None, patience: float) -> None:
        self._path = None if cache is None else cache.with_name(f"{cache.name}.claims").absolute()
        self._patience = patience

    def in_turn(self, prompts: Sequence[str]) -> Generator[list[str], None, None]:
        """Yield all prompts in parts: the unclaimed ones first, and others as soon as their process
        releases them.

        The claims of a part end when the next part is requested and when the iterator is closed;
        `release` ends single ones earlier. A caller must not wait for a part while it holds parts
        of another call, or two callers may wait for each other.
        """
        file = self._file()
        if file is None:
            yield list(prompts)
            return
        waiting = {_place(prompt): prompt for prompt in prompts}
        since = time.monotonic()
        while waiting:
            waited = time.monotonic() - since
            if places := file.take(waiting, self):
                try:
                    yield [waiting.pop(place) for place in places]
                finally:
                    file.release(places, self)
                since = time.monotonic()
            elif waited < self._patience:
                time.sleep(min(max(_SHORTEST, waited / 10), _LONGEST))
            else:
                notify(
                    f"another process has been asking for {len(waiting)} of the same prompts for "
                    f"{waited:.0f} s without a reply; they are requested here too"
                )
                yield list(waiting.values())
                return

    def release(self, prompt: str) -> None:
        """End the claim of a prompt whose reply is in the cache."""
        if file := self._file():
            file.release([_place(prompt)], self)

    def _file(self) -> _ClaimsFile | None:
        if self._path is None:
            return None
        # A forked child has none of its parent's claims, and its copy of a lock may never be freed.
        return _claims_files.setdefault((os.getpid(), self._path), _ClaimsFile(self._path))


class _ClaimsFile:
    """The claims of this process in one file. POSIX locks belong to a process, and all of them end
    when it closes any descriptor of the file; so there is one, which is open as long as there are
    claims."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._owners: dict[int, Claims] = {}
        self._handle: int | None = None

    def take(self, places: Iterable[int], owner: Claims) -> list[int]:
        """Claim those that are free."""
        with self._lock:
            if self._handle is None:
                self._handle = open_own(self._path)
            handle = self._handle
            taken = [
                place for place in places if place not in self._owners and _locked(handle, place)
            ]
            self._owners.update(dict.fromkeys(taken, owner))
            self._close_unused()
            return taken

    def release(self, places: Iterable[int], owner: Claims) -> None:
        """Free those that are the owner's."""
        with self._lock:
            for place in places:
                if self._handle is not None and self._owners.get(place) is owner:
                    fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, place)
                    del self._owners[place]
            self._close_unused()

    def _close_unused(self) -> None:
        if self._handle is not None and not self._owners:
            os.close(self._handle)
            self._handle = None


_claims_files: dict[tuple[int, Path], _ClaimsFile] = {}


def _locked(handle: int, place: int) -> bool:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as error:
        # A file system without locks cannot make anybody wait.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def _place(prompt: str) -> int:
    """The offset of a prompt's byte, below 2**60."""
    return int(text_hash(prompt)[:15], 16)
