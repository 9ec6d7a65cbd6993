"""The document store: raw text by id, and passages as positions in it.

Two folders: one holds a corpus's texts, once; the other, one a segmenter, holds the character
spans of its units (8 bytes each). Both carry fingerprints, so that a mismatch is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.contracts import PASSAGE_MARK, Document, Lines, Segmenter, Unit, parent
from toolkit.corpus.database import ReadOnly, within_limits, write_meta, written_once
from toolkit.corpus.lines import line_spans, without_break
from toolkit.corpus.resolve import Heading
from toolkit.corpus.writer import KIND, VERSION, write_texts
from toolkit.errors import InputError
from toolkit.progress import track

_UNITS_KIND = "unit table"
_UNITS_VERSION = 1
_SPAN = np.dtype("<u4")
_COMMAND = "python -m experiments.index"


class SqliteStore:
    """Raw text for many concurrent readers (`contracts.DocumentStore`), and its units.

    Thread-safe, also after a fork, and picklable (a copy opens the same folders). `units` is the
    folder of a unit table, without which only whole documents can be asked for.
    """

    def __init__(self, path: Path | str, units: Path | str | None = None) -> None:
        self.path = Path(path)
        self.units_path = Path(units) if units is not None else None
        self._texts = ReadOnly(self.path, kind=KIND, version=VERSION, rebuild=_COMMAND)
        self._units: ReadOnly | None = None
        if self.units_path is not None:
            self._units = ReadOnly(
                self.units_path, kind=_UNITS_KIND, version=_UNITS_VERSION, rebuild=_COMMAND
            )
            _check_same_corpus(self._texts, self._units)

    @classmethod
    def build(
        cls, path: Path | str, documents: Iterable[Document], *, corpus_fingerprint: str
    ) -> SqliteStore:
        """Write the texts of `documents` into the folder `path`, whole or not at all, and open it.

        `InputError` for an empty corpus, a docid that comes twice or is empty, one that ends like
        a passage id (`%p3`), text that is not valid Unicode, and a document of 1,000,000,000 bytes
        or more, which is SQLite's limit.
        """
        write_texts(Path(path), documents, corpus_fingerprint)
        return cls.open(path, corpus_fingerprint=corpus_fingerprint)

    @classmethod
    def open(
        cls,
        path: Path | str,
        units: Path | str | None = None,
        *,
        corpus_fingerprint: str | None = None,
        segmenter_fingerprint: str | None = None,
    ) -> SqliteStore:
        """Open what `build` (and `build_units`) wrote. `InputError`, with what to do, where it is
        absent, incomplete, of another version, or does not carry the fingerprints asked for."""
        store = cls(path, units)
        try:
            _expect(store.path, "corpus", store.corpus_fingerprint, corpus_fingerprint)
            _expect(
                store.units_path, "segmenter", store.segmenter_fingerprint, segmenter_fingerprint
            )
        except InputError:
            store.close()
            raise
        return store

    def __reduce__(self) -> tuple[type[SqliteStore], tuple[Path, Path | None]]:
        return type(self), (self.path, self.units_path)

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

    def _row(self, columns: str, docid: str) -> tuple[Any, ...] | None:
        query = f"SELECT {columns} FROM documents WHERE docid = ?"
        try:
            row: tuple[Any, ...] | None = self._texts.execute(query, (docid,)).fetchone()
        except UnicodeEncodeError:  # a lone surrogate, as a model may write: no docid has one
            return None
        return row

    @property
    def corpus_fingerprint(self) -> str:
        return self._texts.meta["corpus_fingerprint"]

    @property
    def segmenter_fingerprint(self) -> str | None:
        """The open unit table's; None without one."""
        return self._units.meta["segmenter_fingerprint"] if self._units else None

    @property
    def unit_count(self) -> int:
        """Number of units; of documents where no unit table is open."""
        return int(self._units.meta["units"]) if self._units else len(self)

    def docids(self) -> Iterator[str]:
        """Every docid, in the corpus's order."""
        for (docid,) in self._texts.execute("SELECT docid FROM documents ORDER BY number"):
            yield docid

    def documents(self) -> Iterator[Document]:
        """Every document, in the corpus's order, streamed."""
        query = "SELECT docid, title, text, url FROM documents ORDER BY number"
        return (Document(*row) for row in self._texts.execute(query))

    def headings(self) -> Iterator[Heading]:
        """Id, title and url of every document, in the corpus's order; no text is read."""
        query = "SELECT docid, title, url FROM documents ORDER BY number"
        return (Heading(*row) for row in self._texts.execute(query))

    def units(self) -> Iterator[Unit]:
        """Every unit, in the corpus's order, streamed, without cutting the texts again."""
        if self._units is None:
            yield from (Unit(d.docid, d.title, d.text) for d in self.documents())
            return
        tables = self._units.execute("SELECT spans FROM spans ORDER BY number")
        for document, (blob,) in zip(self.documents(), tables, strict=True):
            for at, (start, end) in enumerate(_pairs(blob)):
                unit_id = self._name(document.docid, at)
                yield Unit(unit_id, document.title, document.text[start:end])

    def document(self, docid: str) -> Document:
        """The whole document; `KeyError` if there is none of that id."""
        row = self._row("docid, title, text, url", docid)
        if row is None:
            raise KeyError(docid)
        return Document(*row)

    def lines(self, docid: str, offset: int = 1, limit: int = 200) -> Lines:
        """At most `limit` lines from line `offset` (from 1), without their line breaks.

        A line is one of the text, or a piece of at most 1000 characters of a longer one (see
        `corpus.lines`). `KeyError` for an unknown docid; `ValueError` for `limit` below 1 and for
        an `offset` that no line has.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1")
        document = self.document(docid)
        spans = line_spans(document.text)
        if not 1 <= offset <= len(spans):
            raise ValueError(f"offset is {offset}; document {docid!r} has lines 1 to {len(spans)}")
        chosen = spans[offset - 1 : offset - 1 + limit]
        lines = [without_break(document.text[start:end]) for start, end in chosen]
        return Lines(document.docid, document.title, offset, lines, len(spans))

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """The units, in the order asked; `KeyError` for an unknown id.

        A bare docid is the whole document, or its one unit where the unit table has one each.
        """
        return [self._unit(unit_id) for unit_id in unit_ids]

    @property
    def _passages(self) -> bool:
        return self._units is not None and self._units.meta["passages"] == "1"

    def _unit(self, unit_id: str) -> Unit:
        docid = parent(unit_id)
        row = self._row("number, title, text", docid)
        if row is None:
            raise KeyError(unit_id)
        number, title, text = row
        if unit_id == docid and (self._units is None or self._passages):
            return Unit(unit_id, title, text)
        spans = self._spans(number)
        # Comparing names, not parsing numbers, refuses every other spelling, `%p01` for one.
        names = [self._name(docid, at) for at in range(len(spans))]
        if unit_id not in names:
            raise KeyError(unit_id)
        start, end = spans[names.index(unit_id)]
        return Unit(unit_id, title, text[start:end])

    def _spans(self, number: int) -> list[list[int]]:
        if self._units is None:
            return []
        query = "SELECT spans FROM spans WHERE number = ?"
        return _pairs(self._units.execute(query, (number,)).fetchone()[0])

    def _name(self, docid: str, at: int) -> str:
        return f"{docid}{PASSAGE_MARK}{at}" if self._passages else docid

    def close(self) -> None:
        """Close all connections, of all threads of this process."""
        self._texts.close()
        if self._units:
            self._units.close()


def build_units(path: Path | str, store: SqliteStore, segmenter: Segmenter) -> int:
    """Cut every document of `store` and write the spans into the folder `path`, whole or not at
    all. Returns the number of units."""
    schema = "CREATE TABLE spans (number INTEGER PRIMARY KEY, spans BLOB NOT NULL)"
    label = f"Cutting into units ({segmenter.name})"
    documents = track(store.documents(), label, total=len(store))
    with written_once(Path(path), schema) as connection:
        total = 0
        for number, document in enumerate(documents, start=1):
            spans = segmenter.spans(document)
            blob = np.asarray(spans, dtype=_SPAN).tobytes()
            with within_limits(f"the list of {len(spans):,} units of document {document.docid!r}"):
                connection.execute("INSERT INTO spans VALUES (?, ?)", (number, blob))
            total += len(spans)
        meta = {"kind": _UNITS_KIND, "version": _UNITS_VERSION, "units": total}
        meta["passages"] = int(_marks_passages(store, segmenter))
        fingerprints = {
            "corpus_fingerprint": store.corpus_fingerprint,
            "segmenter": segmenter.name,
            "segmenter_fingerprint": segmenter.fingerprint,
        }
        write_meta(connection, {**meta, **fingerprints})
    return total


def _marks_passages(store: SqliteStore, segmenter: Segmenter) -> bool:
    """Whether the segmenter's unit ids are passage ids; all are or none is."""
    first = next(store.documents())
    return next(segmenter.units(first)).unit_id != first.docid


def _pairs(blob: bytes) -> list[list[int]]:
    pairs: list[list[int]] = np.frombuffer(blob, dtype=_SPAN).reshape(-1, 2).tolist()
    return pairs


def _check_same_corpus(texts: ReadOnly, units: ReadOnly) -> None:
    mine, theirs = texts.meta["corpus_fingerprint"], units.meta["corpus_fingerprint"]
    if mine != theirs:
        texts.close()
        units.close()
        raise InputError(
            f"{units.folder} cuts the corpus {theirs}, but {texts.folder} holds {mine}",
            do=f"delete the one that is out of date and run {_COMMAND}",
        )


def _expect(path: Path | None, what: str, actual: str | None, expected: str | None) -> None:
    if expected is not None and actual != expected:
        raise InputError(
            f"{path} was built for another {what} ({actual or 'none'})",
            valid=f"{what} {expected}",
            do=f"delete that folder and run {_COMMAND}",
        )
