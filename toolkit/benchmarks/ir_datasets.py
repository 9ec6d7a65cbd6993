"""Any dataset of `ir_datasets` that has documents, queries and judgements, as a benchmark."""

from __future__ import annotations

import difflib
import importlib
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

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

_CATALOGUE = "https://ir-datasets.com"
_RULES = 1  # raised when the same files give other documents
_SHOWN = 12  # ids or names in a message
_LONGEST = 300  # characters of an error of others
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
    ) -> None:
        self.split = split
        self.dataset = _with_split(dataset, split)
        self._source = _complete(self.dataset)
        with _reading(self.dataset, "documents"):
            self._documents_id: str = _library().docs_parent_id(self.dataset)
        topics, answers = united_topics(self._queries(), self.dataset)
        tiers = {"evidence": united(self._grades())}
        super().__init__(
            name or self._documents_id.replace("/", "-"), topics, tiers, answers, limit=limit
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
        return fingerprint(_RULES, _library().__version__, stats) if stats else ""

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


def _library() -> Any:
    """The package `ir_datasets`, which makes its folder when it is imported."""
    try:
        return importlib.import_module("ir_datasets")
    except OSError as error:
        raise InputError(
            f"ir_datasets cannot make its folder: {error}",
            do="name another one with the environment variable IR_DATASETS_HOME",
        ) from error


def _load(dataset: str) -> Any:
    """The dataset of that id; None where there is none."""
    try:
        with _reading(dataset, "description"):
            return _library().load(dataset)
    except InputError as error:
        if isinstance(error.__cause__, KeyError):
            return None
        raise


def _complete(dataset: str) -> Any:
    """The dataset of that id; `InputError` where there is none, and where it lacks a part."""
    source = _load(dataset)
    if source is None:
        raise InputError(
            f"ir_datasets has no dataset {dataset!r}",
            valid=_similar(dataset),
            do=f"See {_CATALOGUE}",
        )
    for kind in ("docs", "queries", "qrels"):
        if not source.has(kind):
            raise InputError(
                f"the dataset {dataset} has no {kind}",
                valid=f"one with docs, queries and qrels: {_relatives(dataset, source)}",
                do=f"See {_page(dataset)}",
            )
    return source


def _with_split(dataset: str, split: str | None) -> str:
    """The id of a split of `dataset`: below it, or beside it, and of the same documents."""
    if split is None:
        return dataset
    source = _load(dataset)
    if source is None:
        return dataset  # whose message is that of `_complete`
    beside = [dataset.rpartition("/")[0]] if "/" in dataset else []
    ids = [f"{place}/{split}" for place in (dataset, *beside)]
    present = [name for name in ids if _same_documents(source, _load(name))]
    if len(present) > 1:
        raise InputError(
            f"the split {split!r} of {dataset} could be {' or '.join(present)}",
            do="name one as the dataset, with split=null",
        )
    if not present:
        raise InputError(
            f"the dataset {dataset} has no split {split!r}",
            valid=f"null, or the last part of another dataset: {_relatives(dataset, source)}",
        )
    return present[0]


def _same_documents(one: Any, other: Any) -> bool:
    if other is None or not (one.has("docs") and other.has("docs")):
        return False
    return bool(one.docs_handler() == other.docs_handler())


def _relatives(dataset: str, source: Any) -> str:
    """Ids below and beside a dataset that have its documents, queries and judgements."""
    places = {dataset, dataset.rpartition("/")[0]} - {""}
    near = sorted(name for name in _library().registry if name.rpartition("/")[0] in places)
    loaded = [(name, _load(name)) for name in near]
    names = [
        name
        for name, other in loaded
        if other.has("queries") and other.has("qrels") and _same_documents(source, other)
    ]
    return _listed(names) or "there are none"


def _similar(dataset: str) -> str:
    ids = sorted(_library().registry)
    near = difflib.get_close_matches(dataset, ids, n=_SHOWN)
    return _listed(near or sorted({name.split("/")[0] for name in ids}))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _page(dataset: str) -> str:
    return f"{_CATALOGUE}/{dataset.split('/')[0]}.html"


@contextmanager
def _reading(dataset: str, what: str) -> Iterator[None]:
    """A block in which `ir_datasets` works; what it raises becomes an `InputError`. Besides errors
    of the network, its readers raise anything for a file that is not as it should be."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise _unreadable(dataset, what, error) from error


def _unreadable(dataset: str, what: str, error: Exception) -> InputError:
    failures = _failures(error)
    addresses = " and ".join(filter(None, (address for address, _ in failures)))
    source = f" from {addresses}" if addresses else ""
    cause = failures[0][1]
    reason = getattr(next(iter(cause.args), None), "reason", cause)  # of a failed connection
    home = _library().util.home_path()
    return InputError(
        f"ir_datasets could not get the {what} of {dataset}{source}: {type(cause).__name__}:"
        f" {str(reason)[:_LONGEST]}",
        do=f"{_page(dataset)} tells where the files come from. Check the network, or copy the"
        f" folder of an ir_datasets that has them to {home} (IR_DATASETS_HOME names another place)",
    )


def _failures(error: Exception) -> list[tuple[str, Exception]]:
    """Addresses of downloads and what went wrong there; ir_datasets raises a list of mirrors with
    their errors where it has tried several. Empty for the address of what is no download."""
    for part in error.args:
        if isinstance(part, list) and part:
            return [(str(getattr(mirror, "url", "")), cause) for mirror, cause in part]
    address = getattr(getattr(error, "request", None), "url", "")
    return [(str(address or ""), error)]


def _rows(dataset: str, kind: str, rows: Any) -> Iterator[tuple[Row, Any]]:
    """What a reader of `ir_datasets` yields, each with its place."""
    label = {"docs": "document", "queries": "query", "qrels": "judgement"}[kind]
    with _reading(dataset, kind):
        iterator = iter(rows())
    for number in itertools.count(1):
        with _reading(dataset, kind):
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
    with _reading(row.dataset, row.kind):
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
    home = Path(_library().util.home_path())
    return home / "soundingline" / f"{documents.replace('/', '-')}-{fingerprint(documents)}.json"


def _stamped(stamp: Path, state: str) -> str:
    """The fingerprint that was kept for these files; empty where there is none."""
    try:
        content = json.loads(stamp.read_text(encoding="utf-8"))
        known = content["corpus"] if state and content["state"] == state else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return known if isinstance(known, str) else ""
