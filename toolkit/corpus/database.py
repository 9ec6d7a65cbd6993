"""SQLite files that are written once, in one go, and then only read, by many at a time."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.files import folder_made_whole

_FILE = "data.sqlite"
# Long texts lie on chains of pages; larger pages make the chains shorter.
_PAGE_BYTES = 16384
LARGEST_VALUE = 1_000_000_000  # bytes of a row, unless SQLite was compiled with another limit


@contextmanager
def written_once(folder: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """A connection to a new database that becomes `folder` when the block ends well.

    `schema` is SQL; the block must call `write_meta` last. A failing disk is an `InputError`.
    """
    with folder_made_whole(folder) as temporary:
        (temporary / _FILE).touch()  # With the rights that the umask leaves; SQLite gives 0644.
        connection = sqlite3.connect(temporary / _FILE, isolation_level=None)
        try:
            # A crash leaves a temporary folder that nobody opens, so a journal protects nothing.
            connection.executescript(
                f"PRAGMA page_size={_PAGE_BYTES}; PRAGMA journal_mode=OFF; "
                f"PRAGMA synchronous=OFF; {schema}; "
                "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL); BEGIN;"
            )
            yield connection
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise InputError(
                f"cannot write {folder}: {error}",
                do="free space there or choose another folder, then run the command again",
            ) from error
        finally:
            connection.close()
        _flush(temporary / _FILE)


@contextmanager
def within_limits(what: str) -> Iterator[None]:
    """Around what writes a row: a value that SQLite does not take is an `InputError` that names
    `what` is too large."""
    try:
        yield
    except (sqlite3.DataError, OverflowError):
        raise InputError(
            f"{what} is too large for the document store",
            valid=f"less than {LARGEST_VALUE:,} bytes, SQLite's limit (sqlite.org/limits.html)",
            do="split it into several documents, or shorten it",
        ) from None


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_meta(connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Write what readers check; the last thing that a writer does."""
    rows = [(key, str(value)) for key, value in values.items()]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)


class _Held:
    """One thread's connection in one process; closed when the thread's storage lets go of it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.process = os.getpid()
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class ReadOnly:
    """A database of `written_once` for any number of threads and processes.

    Each thread of each process gets a connection of its own on first use, also after a fork.
    `kind` and `version` are what the writer put into `meta`; `rebuild` is the command that makes
    the folder, told where it is absent, incomplete, or of another kind or version (`InputError`).
    """

    def __init__(self, folder: Path, *, kind: str, version: int, rebuild: str) -> None:
        self.folder = folder
        self._uri = f"{(folder / _FILE).resolve().as_uri()}?mode=ro&immutable=1"
        self._local = threading.local()
        # Weakly held, so that a thread's end closes its connection.
        self._opened: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._closed = False
        self.meta = self._checked(kind, version, rebuild)

    def _checked(self, kind: str, version: int, rebuild: str) -> dict[str, str]:
        if not (self.folder / _FILE).is_file():
            raise InputError(f"there is no {kind} at {self.folder}", do=f"run {rebuild}")
        again = f"delete that folder and run {rebuild}"
        try:
            meta = dict(self.execute("SELECT key, value FROM meta"))
        except sqlite3.DatabaseError as error:
            self.close()
            raise InputError(
                f"the {kind} at {self.folder} is damaged ({error})", do=again
            ) from None
        if meta.get("kind") != kind or meta.get("version") != str(version):
            self.close()
            description = (
                f"{meta.get('kind', 'nothing complete')}, version {meta.get('version', 'none')}"
            )
            raise InputError(
                f"{self.folder} holds {description}", valid=f"{kind}, version {version}", do=again
            )
        return meta

    def execute(self, query: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run a query on this thread's connection."""
        return self._connection().execute(query, parameters)

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise ValueError(f"{self.folder} was closed")
        # The process id guards against a connection inherited through a fork, which SQLite forbids.
        held: _Held | None = getattr(self._local, "held", None)
        if held is None or held.process != os.getpid():
            # Other threads do nothing with it but close it.
            held = _Held(sqlite3.connect(self._uri, uri=True, check_same_thread=False))
            self._opened.add(held)
            self._local.held = held
        return held.connection

    def close(self) -> None:
        """Close every thread's connection; later queries raise `ValueError`."""
        self._closed = True
        for held in list(self._opened):
            held.connection.close()
