"""The document store: raw texts by id, and units as character spans of these texts. The texts of a
corpus are one folder; each segmenter adds a folder with the spans of its units. Both hold an SQLite
database that is written once and then only read, and record fingerprints of what they were made
from, which are compared when they are opened."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from soundingline.toolkit.checksums import verify_checksum_list, write_checksum_list
from soundingline.toolkit.console import track
from soundingline.toolkit.corpus.segmentation import Segmenter, line_spans, without_break
from soundingline.toolkit.data import PASSAGE_MARK, Document, Lines, Unit, parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, fingerprint

_TEXTS_KIND, _TEXTS_VERSION = "document store", 2
_UNITS_KIND, _UNITS_VERSION = "unit table", 2
_TEXTS_SCHEMA = (
    "CREATE TABLE documents (number INTEGER PRIMARY KEY, docid TEXT NOT NULL UNIQUE, "
    "title TEXT NOT NULL, text TEXT NOT NULL, url TEXT NOT NULL)"
)
_UNITS_SCHEMA = "CREATE TABLE spans (number INTEGER PRIMARY KEY, spans BLOB NOT NULL)"
_META_SCHEMA = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_FILE = "data.sqlite"
# SQLite stores a long text as a chain of pages; larger pages make shorter chains.
_PAGE_BYTES = 16384
_LARGEST_VALUE = 1_000_000_000  # bytes of a row, SQLite's default limit
_SPAN = np.dtype("<u4")
_COMMAND = "soundingline index"
_memory_names = count(1)


class SqliteStore:
    """Raw texts for any number of concurrent readers, and the units of one segmenter. Implements
    `soundingline.toolkit.data.DocumentStore`. Thread-safe, also after a fork, and picklable.

    Args:
        path: the folder that `build` wrote.
        units: the folder that `add_units` wrote; None: every document is one unit.
        corpus_fingerprint, segmenter_fingerprint: what the folders must have been built from; None
            accepts anything.

    Raises:
        InputError: if a folder is absent, damaged, of another version or of something else.

    Example:
        >>> store = SqliteStore.in_memory({"d1": "The old mill.", "d2": "A harbour."})
        >>> (len(store), "d1" in store, store.document("d2").text)
        (2, True, 'A harbour.')
    """

    def __init__(
        self,
        path: Path | str,
        units: Path | str | None = None,
        *,
        corpus_fingerprint: str | None = None,
        segmenter_fingerprint: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._reopen: tuple[Any, ...] = (type(self), (path, units))
        self._texts = _Database.open(self.path, _TEXTS_KIND, _TEXTS_VERSION)
        self._units = None
        if units is not None:
            self._units = _Database.open(Path(units), _UNITS_KIND, _UNITS_VERSION)
        texts = self.corpus_fingerprint
        units_of = self._units.meta["corpus_fingerprint"] if self._units else texts
        for folder, what, actual, expected in (
            (path, "corpus", texts, corpus_fingerprint),
            (units, "corpus", units_of, texts),
            (units, "segmenter", self.segmenter_fingerprint, segmenter_fingerprint),
        ):
            if expected is not None and actual != expected:
                self.close()
                raise InputError(
                    f"{folder} was built for another {what} ({actual or 'none'})",
                    valid=f"{what} {expected}",
                    do=f"delete that folder and run {_COMMAND}",
                )

    @classmethod
    def build(
        cls, path: Path | str, documents: Iterable[Document], *, corpus_fingerprint: str
    ) -> SqliteStore:
        """Write the documents to the folder `path`, atomically, and open it. `InputError` for a
        folder that exists and is not empty; an empty corpus; a docid that is empty, repeated, or
        ends like the id of a passage (`%p3`); text that is not valid Unicode; a document of
        1,000,000,000 bytes or more, SQLite's limit.
        """
        with _writing(Path(path), _TEXTS_SCHEMA) as connection:
            if not _write_texts(connection, documents, corpus_fingerprint):
                raise InputError("the corpus holds no document", do="check the benchmark's corpus")
        return cls(path)

    @classmethod
    def in_memory(
        cls, documents: Iterable[Document] | Mapping[str, str], segmenter: Segmenter | None = None
    ) -> SqliteStore:
        """A store without files, for tests, examples and toy corpora, of documents or of texts by
        docid. Without a segmenter every document is one unit."""
        if isinstance(documents, Mapping):
            documents = [Document(docid, "", text) for docid, text in documents.items()]
        rows = list(documents)
        store = cls.__new__(cls)
        store.path, store._units = Path("in memory"), None
        store._reopen = (cls.in_memory, (rows, segmenter))
        with _Database.in_memory(_TEXTS_SCHEMA) as store._texts:
            _write_texts(store._texts.connection(), rows, fingerprint(*rows))
        if segmenter is not None:
            with _Database.in_memory(_UNITS_SCHEMA) as store._units:
                store._write_units(store._units.connection(), segmenter, rows)
        return store

    def add_units(self, path: Path | str, segmenter: Segmenter) -> int:
        """Cut every document into units and write their spans to the folder `path`, atomically, for
        `SqliteStore(store.path, path)`. Returns the number of units."""
        label = f"Cutting into units ({segmenter.name})"
        with _writing(Path(path), _UNITS_SCHEMA) as connection:
            documents = track(self.documents(), label, total=len(self))
            return self._write_units(connection, segmenter, documents)

    def _write_units(
        self, connection: sqlite3.Connection, segmenter: Segmenter, documents: Iterable[Document]
    ) -> int:
        total = 0
        for number, document in enumerate(documents, start=1):
            spans = segmenter.spans(document)
            blob = np.asarray(spans, dtype=_SPAN).tobytes()
            with _within_limits(f"the list of {len(spans):,} units of document {document.docid!r}"):
                connection.execute("INSERT INTO spans VALUES (?, ?)", (number, blob))
            total += len(spans)
        _write_meta(
            connection,
            kind=_UNITS_KIND,
            version=_UNITS_VERSION,
            units=total,
            passages=int(segmenter.passages),
            first=segmenter.first,
            corpus_fingerprint=self.corpus_fingerprint,
            segmenter=segmenter.name,
            segmenter_fingerprint=segmenter.fingerprint,
        )
        return total

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r}, {len(self)} documents)"

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._texts.meta["documents"])

    def __contains__(self, docid: object) -> bool:
        return isinstance(docid, str) and self._row("1", docid) is not None

    @property
    def corpus_fingerprint(self) -> str:
        return self._texts.meta["corpus_fingerprint"]

    @property
    def segmenter_fingerprint(self) -> str | None:
        """None if the units are the documents."""
        return self._units.meta["segmenter_fingerprint"] if self._units else None

    @property
    def unit_count(self) -> int:
        return int(self._units.meta["units"]) if self._units else len(self)

    def documents(self, *, texts: bool = True) -> Iterator[Document]:
        """Every document, in the order of the corpus, streamed. Without `texts` the texts are not
        read and are empty."""
        columns = "docid, title, text, url" if texts else "docid, title, '', url"
        query = f"SELECT {columns} FROM documents ORDER BY number"
        return (Document(*row) for row in self._texts.execute(query))

    def units(self) -> Iterator[Unit]:
        """Every unit, in the order of the corpus, streamed; the texts are not cut again."""
        if self._units is None:
            yield from (Unit(d.docid, d.title, d.text) for d in self.documents())
            return
        tables = self._units.execute("SELECT spans FROM spans ORDER BY number")
        for document, (blob,) in zip(self.documents(), tables, strict=True):
            for number, (start, end) in enumerate(_spans(blob)):
                unit_id = self._unit_id(document.docid, number)
                yield Unit(unit_id, document.title, document.text[start:end])

    def sample(self, count: int, seed: int = 0) -> list[Document]:
        """At most `count` documents, drawn with `seed` without replacement, in the order of the
        corpus."""
        drawn = Random(seed).sample(range(1, len(self) + 1), min(count, len(self)))
        places = ", ".join("?" * len(drawn))
        columns = "docid, title, text, url"
        query = f"SELECT {columns} FROM documents WHERE number IN ({places}) ORDER BY number"
        return [Document(*row) for row in self._texts.execute(query, tuple(drawn))]

    def document(self, docid: str) -> Document:
        """The whole document; `KeyError` for an unknown docid."""
        row = self._row("docid, title, text, url", docid)
        if row is None:
            raise KeyError(docid)
        return Document(*row)

    def lines(self, docid: str, offset: int = 1, limit: int = 200) -> Lines:
        """At most `limit` lines of a document from line `offset` (from 1), without their line
        breaks, and none from past the end on; see `segmentation.line_spans`. `KeyError` for an
        unknown docid."""
        document = self.document(docid)
        spans = line_spans(document.text)
        chosen = spans[offset - 1 : offset - 1 + limit]
        lines = [without_break(document.text[start:end]) for start, end in chosen]
        return Lines(document.docid, document.title, offset, lines, len(spans))

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """Units by id, in the order of `unit_ids`; `KeyError` for an unknown id. A docid means the
        complete document, unless its one unit is only a part of it."""
        return [self._unit(unit_id) for unit_id in unit_ids]

    def _unit(self, unit_id: str) -> Unit:
        docid = parent(unit_id)
        row = self._row("number, title, text", docid)
        if row is None:
            raise KeyError(unit_id)
        number, title, text = row
        if unit_id == docid and (self._units is None or self._passages):
            return Unit(unit_id, title, text)
        if self._units is not None:
            query = "SELECT spans FROM spans WHERE number = ?"
            spans = _spans(self._units.execute(query, (number,)).fetchone()[0])
            # Ids are compared as texts, so that other spellings of a number (`%p01`) are refused.
            for position, (start, end) in enumerate(spans):
                if unit_id == self._unit_id(docid, position):
                    return Unit(unit_id, title, text[start:end])
        raise KeyError(unit_id)

    def _row(self, columns: str, docid: str) -> tuple[Any, ...] | None:
        query = f"SELECT {columns} FROM documents WHERE docid = ?"
        row: tuple[Any, ...] | None = self._texts.execute(query, (docid,)).fetchone()
        return row

    @property
    def _passages(self) -> bool:
        return self._units is not None and self._units.meta["passages"] == "1"

    def _unit_id(self, docid: str, number: int) -> str:
        if self._units is None or not self._passages:
            return docid
        return f"{docid}{PASSAGE_MARK}{number + int(self._units.meta['first'])}"

    def close(self) -> None:
        """Close all connections, of all threads of this process."""
        self._texts.close()
        if self._units:
            self._units.close()


def _spans(blob: bytes) -> list[list[int]]:
    spans: list[list[int]] = np.frombuffer(blob, dtype=_SPAN).reshape(-1, 2).tolist()
    return spans


def _write_texts(
    connection: sqlite3.Connection, documents: Iterable[Document], corpus_fingerprint: str
) -> int:
    number = 0
    for number, document in enumerate(documents, start=1):
        docid = document.docid
        if not docid or parent(docid) != docid:
            raise InputError(
                f"document {number} has the docid {docid!r}",
                valid=f"a docid that is not empty and does not end with {PASSAGE_MARK}<digits>",
                do="rename it in the corpus and in the judgements",
            )
        try:
            with _within_limits(f"document {docid!r} ({len(document.text):,} characters)"):
                connection.execute(
                    "INSERT INTO documents VALUES (?, ?, ?, ?, ?)", (number, *document)
                )
        except sqlite3.IntegrityError:
            raise InputError(
                f"docid {docid!r} comes twice (again as document {number})",
                valid="each docid once",
                do="remove or rename one of the two in the corpus",
            ) from None
        except UnicodeEncodeError as error:
            raise InputError(
                f"document {docid!r} is not valid Unicode ({error.reason} at {error.start})",
                do="repair its text in the corpus",
            ) from None
    meta = {"documents": number, "corpus_fingerprint": corpus_fingerprint}
    _write_meta(connection, kind=_TEXTS_KIND, version=_TEXTS_VERSION, **meta)
    return number


def _write_meta(connection: sqlite3.Connection, **values: Any) -> None:
    rows = [(key, str(value)) for key, value in values.items()]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)


@contextmanager
def _writing(folder: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """A connection to a new database, which becomes `folder` if the block succeeds."""
    with atomic_folder(folder) as temporary:
        file = temporary / _FILE
        file.touch()  # with the permissions of the umask; SQLite would create it with 0644
        connection = sqlite3.connect(file, isolation_level=None)
        try:
            # A crash leaves a temporary folder that nobody opens, so no journal is needed.
            connection.executescript(
                f"PRAGMA page_size={_PAGE_BYTES}; PRAGMA journal_mode=OFF; "
                f"PRAGMA synchronous=OFF; {schema}; {_META_SCHEMA}; BEGIN;"
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
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        write_checksum_list(temporary)


@contextmanager
def _within_limits(what: str) -> Iterator[None]:
    """Turns SQLite's error about a value that is too large into an `InputError` about `what`."""
    try:
        yield
    except (sqlite3.DataError, OverflowError):
        raise InputError(
            f"{what} is too large for the document store",
            valid=f"less than {_LARGEST_VALUE:,} bytes, SQLite's limit (sqlite.org/limits.html)",
            do="split it into several documents, or shorten it",
        ) from None


class _Connection:
    """The connection of one thread in one process, closed when the thread ends. sqlite3's object is
    part of a reference cycle, which the garbage collector would close much later."""

    def __init__(self, uri: str) -> None:
        self.process = os.getpid()
        # Other threads do nothing with it but close it.
        self.connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False
        )

    def __del__(self) -> None:
        self.connection.close()


class _Database:
    """A finished database, with a connection for each thread of each process."""

    def __init__(self, uri: str, name: str) -> None:
        self.meta: dict[str, str] = {}
        self._uri, self._name = uri, name
        self._local = threading.local()
        # Weak references, so that the end of a thread closes its connection.
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._first: _Connection | None = None
        self._closed = False

    @classmethod
    def open(cls, folder: Path, kind: str, version: int) -> _Database:
        """The database in a folder; `InputError` unless it is complete and of this kind."""
        if not folder.is_dir():
            raise InputError(f"there is no {kind} at {folder}", do=f"run {_COMMAND}")
        again = f"delete that folder and run {_COMMAND}"
        verify_checksum_list(folder, what=f"the {kind} at {folder}", do=again)
        database = cls(f"{(folder / _FILE).resolve().as_uri()}?mode=ro&immutable=1", str(folder))
        database._read_meta()
        actual = "{kind}, version {version}".format_map(database.meta)
        valid = f"{kind}, version {version}"
        if actual != valid:
            database.close()
            raise InputError(f"{folder} holds {actual}", valid=valid, do=again)
        return database

    @classmethod
    @contextmanager
    def in_memory(cls, schema: str) -> Iterator[_Database]:
        """A new database in memory, which the block fills."""
        # Connections of one process to the same name share the database (sqlite.org/inmemorydb).
        name = f"soundingline-{next(_memory_names)}"
        database = cls(f"file:{name}?mode=memory&cache=shared", name)
        # The database lives as long as its first connection, so it must outlive this thread.
        database._first = database._own()
        database.connection().executescript(f"{schema}; {_META_SCHEMA}; BEGIN;")
        yield database
        database.execute("COMMIT")
        database._read_meta()

    def _read_meta(self) -> None:
        self.meta = dict(self.execute("SELECT key, value FROM meta"))

    def execute(self, query: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run a query on the connection of this thread."""
        return self.connection().execute(query, parameters)

    def connection(self) -> sqlite3.Connection:
        """The connection of this thread."""
        return self._own().connection

    def _own(self) -> _Connection:
        if self._closed:
            raise ValueError(f"{self._name} was closed")
        # SQLite forbids the use of a connection that was inherited through a fork.
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.process != os.getpid():
            connection = self._local.connection = _Connection(self._uri)
            self._connections.add(connection)
        return connection

    def close(self) -> None:
        """Close the connections of all threads; later queries raise `ValueError`."""
        self._closed = True
        for each in list(self._connections):
            each.connection.close()
