"""Any dataset of `ir_datasets` that has documents, queries and judgements, as a benchmark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.benchmarks.ir_datasets_catalogue import complete, library, reading, with_split
from toolkit.benchmarks.judged import JudgedBenchmark
from toolkit.benchmarks.reading import (
    Judgement,
    distinct,
    identifier,
    text_field,
    united,
    united_topics,
)
from toolkit.contracts import Document, Topic
from toolkit.errors import InputError
from toolkit.files import fingerprint, write_json

_RULES = 1  # raised when the same files give other documents
# Rows that judge a part of a document, or a subtopic: a pair has several of them.
_OF_PARTS = frozenset({"subtopic_id", "start"})


class Row(NamedTuple):
    """A row of a dataset, for messages; rows count from 1."""

    kind: str
    number: int
    dataset: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number:,} of {self.dataset}"


class IrDatasetsBenchmark(JudgedBenchmark):
    """The dataset that `ir_datasets` calls `dataset`, such as `vaswani` or `beir/scifact/test`.

    What is missing is downloaded into the folder of `ir_datasets` (`IR_DATASETS_HOME`, by default
    `~/.ir_datasets`).

    - Questions: all queries of the dataset in its order, by their `default_text()`; `answers` where
      the queries have a field of that name. `limit` keeps the first ones.
    - Documents: `default_text()`, which is the field `text` where a document type has no such
      method. A title at its beginning (field `title`) is kept apart from the text; a field `url`
      is kept.
    - Judgements: the tier `evidence`. Where a dataset judges subtopics or parts of documents, a
      pair has its highest grade.
    - `split` names another dataset of the same documents by the last part of its id: the one below
      `dataset` (`train` below `beir/scifact`) or beside it (`train` beside `beir/scifact/test`).
      Where there are both, it is refused.
    - `sets`: every question asks for documents, those with a grade above 0.
    - `name`: the id of the documents with dashes unless given, so that all splits share an index.

    `corpus_fingerprint` is a hash of the documents, which takes a pass over them. It is kept in the
    folder `soundingline` of `ir_datasets`' own, and taken from there while the files of the
    documents have the sizes and times that they had.

    `InputError` for an unknown dataset or split, one without documents, queries or judgements,
    malformed rows, and whatever `ir_datasets` cannot download or read.
    """

    def __init__(
        self,
        dataset: str,
        name: str | None = None,
        split: str | None = None,
        limit: int | None = None,
        sets: bool = False,
    ) -> None:
        self.split = split
        self.dataset = with_split(dataset, split)
        self._source = complete(self.dataset)
        with reading(self.dataset, "documents"):
            self._documents_id: str = library().docs_parent_id(self.dataset)
        topics, answers = united_topics(self._queries(), self.dataset)
        tiers = {"evidence": united(self._grades())}
        super().__init__(
            name or self._documents_id.replace("/", "-"),
            topics,
            tiers,
            answers,
            limit=limit,
            sets=sets,
        )

    def documents(self) -> Iterator[Document]:
        """The corpus in the dataset's order."""
        return distinct(self._documents(), self.dataset)

    @property
    def corpus_fingerprint(self) -> str:
        """Hash of the documents: all that an index depends on."""
        if self._corpus_fingerprint:
            return self._corpus_fingerprint
        before = self._state()
        stamp = _stamp(self._documents_id)
        self._corpus_fingerprint = _stamped(stamp, before)
        if not self._corpus_fingerprint:
            digest = super().corpus_fingerprint  # may download and so make the files
            if state := self._state():
                with suppress(OSError):  # a folder that is shared and not ours to write
                    content = {"dataset": self._documents_id, "state": state, "corpus": digest}
                    write_json(stamp, content)
        return self._corpus_fingerprint

    def _state(self) -> str:
        """Hash of sizes and times of the documents' files; empty where there are none on disk."""
        files = sorted({file for path in _paths(self._source) for file in _files(path)})
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return fingerprint(_RULES, library().__version__, stats) if stats else ""

    def _queries(self) -> Iterator[tuple[Row, Topic, Any]]:
        for row, query in _rows(self.dataset, "queries", self._source.queries_iter):
            qid = identifier(row, _fields(query), "query_id")
            text = _default_text(row, query).strip()  # the NPL collection's end with their line
            yield row, Topic(qid, text), getattr(query, "answers", None)

    def _grades(self) -> Iterator[tuple[Row, Judgement]]:
        highest: dict[tuple[str, str], tuple[Row, Judgement]] = {}
        for row, qrel in _rows(self.dataset, "qrels", self._source.qrels_iter):
            fields = _fields(qrel)
            grade = fields.get("relevance")
            if not isinstance(grade, int):
                raise InputError(f"{row} has the relevance {grade!r}", valid="an integer")
            qid, docid = (identifier(row, fields, name) for name in ("query_id", "doc_id"))
            judgement = Judgement(qid, docid, int(grade))
            if not _OF_PARTS & set(fields):
                yield row, judgement
            elif (qid, docid) not in highest or highest[qid, docid][1].grade < grade:
                highest[qid, docid] = row, judgement
        yield from highest.values()

    def _documents(self) -> Iterator[tuple[Row, Document]]:
        for row, document in _rows(self.dataset, "docs", self._source.docs_iter):
            fields = _fields(document)
            docid = identifier(row, fields, "doc_id")
            title = text_field(row, fields, "title", default="")
            text = _default_text(row, document)
            if "title" in fields and text.startswith(title):
                text = text[len(title) :]
                text = text[1:] if text[:1].isspace() else text
            url = text_field(row, fields, "url", default="")
            yield row, Document(docid, title, text, url)


def _rows(dataset: str, kind: str, rows: Any) -> Iterator[tuple[Row, Any]]:
    """What a reader of `ir_datasets` yields, each with its place."""
    label = {"docs": "document", "queries": "query", "qrels": "judgement"}[kind]
    with reading(dataset, kind):
        iterator = iter(rows())
    for number in itertools.count(1):
        with reading(dataset, kind):
            item = next(iterator, None)
        if item is None:
            return
        yield Row(label, number, dataset), item


def _fields(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item._fields}


def _default_text(row: Row, item: Any) -> str:
    """What `ir_datasets` calls the text of a document or a query."""
    if not hasattr(item, "default_text"):
        return text_field(row, _fields(item), "text")
    with reading(row.dataset, row.kind):
        text = item.default_text()
    return text_field(row, {"default_text()": text}, "default_text()")


def _paths(source: Any) -> Iterator[Path]:
    """Where the documents of a dataset lie, as far as it tells. Downloads nothing."""
    handler = source.docs_handler()
    with suppress(Exception):  # many readers have no such method, or one that downloads
        yield Path(handler.docs_path(force=False))
    with suppress(Exception):
        yield Path(handler.docs_store().path)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())


def _stamp(documents: str) -> Path:
    home = Path(library().util.home_path())
    return home / "soundingline" / f"{documents.replace('/', '-')}-{fingerprint(documents)}.json"


def _stamped(stamp: Path, state: str) -> str:
    """The fingerprint that was kept for these files; empty where there is none."""
    try:
        content = json.loads(stamp.read_text(encoding="utf-8"))
        known = content["corpus"] if state and content["state"] == state else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return known if isinstance(known, str) else ""
