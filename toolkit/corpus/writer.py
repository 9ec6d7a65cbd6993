"""Writing the document store: a corpus's texts, checked as they pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from toolkit.contracts import PASSAGE_MARK, Document, parent
from toolkit.corpus.database import within_limits, write_meta, written_once
from toolkit.errors import InputError

KIND = "document store"
VERSION = 1
_SCHEMA = (
    "CREATE TABLE documents (number INTEGER PRIMARY KEY, docid TEXT NOT NULL UNIQUE, "
    "title TEXT NOT NULL, text TEXT NOT NULL, url TEXT NOT NULL)"
)


def write_texts(path: Path, documents: Iterable[Document], corpus_fingerprint: str) -> None:
    """Write the documents into the folder `path`, whole or not at all.

    `InputError` as `SqliteStore.build` tells.
    """
    with written_once(path, _SCHEMA) as connection:
        count = 0
        for count, document in enumerate(documents, start=1):
            _insert(connection, count, document)
        if not count:
            raise InputError("the corpus holds no document", do="check the benchmark's corpus")
        meta = {"kind": KIND, "version": VERSION, "documents": count}
        write_meta(connection, {**meta, "corpus_fingerprint": corpus_fingerprint})


def _insert(connection: sqlite3.Connection, number: int, document: Document) -> None:
    docid = document.docid
    if not docid or parent(docid) != docid:
        raise InputError(
            f"document {number} has the docid {docid!r}",
            valid=f"a non-empty docid that does not end like a passage's ({PASSAGE_MARK}<digits>)",
            do="rename it in the corpus and in the judgements",
        )
    row = (number, *document)
    try:
        with within_limits(f"document {docid!r} ({len(document.text):,} characters)"):
            connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", row)
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
