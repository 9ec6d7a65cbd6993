"""The SQLite files of caches: where they lie, and in which mode they are opened.

A write-ahead log needs memory that all its processes share: "WAL does not work over a network
filesystem" (sqlite.org/wal.html). A rollback journal needs nothing but POSIX locks that work
(sqlite.org/lockingv3.html, sqlite.org/faq.html#q5). On a network file system caches therefore use
a rollback journal. Where the locks of all hosts are known to hold for each other, they share one
file; otherwise each host has its own. One file a process, merged later, would need no locks at all,
but others would see a result that was paid for late, or never where its process was killed.
"""

from __future__ import annotations

import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import InputError
from toolkit.files import waiting_lock
from toolkit.filesystems import file_system

SUFFIX = ".sqlite"
_PATIENCE = 60  # seconds that one waits for others
# `used`: when an entry was written or found, in seconds since 1970; 0: before this was kept.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value TEXT, "
    "used INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"
)


def placed(path: Path) -> Path:
    """The file of the cache `path`: that path, or this host's own where the file system does not
    share locks between hosts."""
    if not _one_a_host(path):
        return path
    return path.with_name(f"{path.stem}{_host_mark()}{path.suffix}")


def usable(file: Path) -> bool:
    """Whether this host may open the cache's file: not one that belongs to another host."""
    return not _one_a_host(file) or file.stem.endswith(_host_mark())


def _one_a_host(path: Path) -> bool:
    system = file_system(path)
    return system is not None and system.network and not system.shares_locks


def _host_mark() -> str:
    return "@" + re.sub(r"[^\w.-]", "_", socket.gethostname())


def network_note(folder: Path) -> str:
    """What a user must know about caches in `folder`, in one line; empty for a local disk."""
    system = file_system(folder)
    if system is None or not system.network:
        return ""
    line = f"the caches in {folder} lie on a network file system ({system.kind}): SQLite uses "
    if system.shares_locks:
        return line + "a rollback journal there, which is slower than a local disk"
    return line + "a rollback journal and one file a host, because locks stay on their host"


def connect(file: Path) -> sqlite3.Connection:
    """A connection to a file as it is, which waits for others as `opened` does."""
    return sqlite3.connect(file, timeout=_PATIENCE)


def opened(file: Path) -> sqlite3.Connection:
    """A connection to a cache's file, which is made with its folders where it is absent."""
    system = file_system(file)
    network = system is not None and system.network
    # SQLite does not wait where two turn a new file's log on at once; it fails.
    with reported(file, "opened"), waiting_lock(file.with_name(f"{file.name}.lock")):
        if not file.exists():
            file.touch()  # SQLite would make it without the group's rights, whatever the umask.
        connection = connect(file)
        # Lets `cache_limits.prune` shrink a file under its users; without effect on an older file.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        _set_journal(connection, "delete" if network else "wal")
        # A power cut may lose a log's newest results, never damage the file. A rollback journal
        # promises that at the default level alone.
        connection.execute(f"PRAGMA synchronous={'FULL' if network else 'NORMAL'}")
        # Each thread has a connection, and hundreds of them would hold much memory at SQLite's
        # default; what is looked up once is not read again, and the system caches files as well.
        connection.execute("PRAGMA cache_size=-256")
        with connection:
            connection.execute(_SCHEMA)
            columns = connection.execute("SELECT name FROM pragma_table_info('results')")
            if ("used",) not in columns.fetchall():
                connection.execute("ALTER TABLE results ADD COLUMN used INTEGER NOT NULL DEFAULT 0")
    return connection


def _set_journal(connection: sqlite3.Connection, wanted: str) -> None:
    (mode,) = connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()
    if wanted == "delete" and mode != wanted:
        raise sqlite3.OperationalError(f"its journal mode stays {mode}")


@contextmanager
def reported(path: Path, what: str) -> Iterator[None]:
    """Around all that touches the file: what went wrong in one line."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise InputError(
            f"the cache {path} cannot be {what}: {error}",
            do="make room or rights for it, or set another folder (paths.caches, on a local disk)",
        ) from error
    except (sqlite3.DatabaseError, ValueError) as error:
        raise InputError(
            f"the cache {path} is damaged: {error}",
            do="delete that file; only computed results are in it",
        ) from error
