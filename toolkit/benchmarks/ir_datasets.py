"""Any dataset of `ir_datasets` that has documents, queries and judgements, as a benchmark."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import StrictInt
from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.formats import (
    Id,
    OptionalText,
    Qrel,
    Text,
    distinct_topics,
    merge_qrels,
    read_answers,
)
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import FileName, InputError, parse
from soundingline.toolkit.files import fingerprint, read_record, write_json

_RULES = 1  # to be raised when the same files give other documents
# Fields of rows that judge a part of a document, or a subtopic: a pair has several of them.
_OF_PARTS = frozenset({"subtopic_id", "start"})
_CATALOGUE = "https://ir-datasets.com"
_LONGEST = 300  # characters of an error of another library


class IrDocument(TypedDict):
    """The fields of a document; `text` is its `default_text()`."""

    doc_id: Id
    title: NotRequired[OptionalText]
    text: Text
    url: NotRequired[OptionalText]


class IrQuery(TypedDict):
    """The fields of a query; `text` is its `default_text()`."""

    query_id: Id
    text: Text
    answers: NotRequired[list[str] | None]


class IrQrel(TypedDict):
    """The fields of a judgement."""

    query_id: Id
    doc_id: Id
    relevance: StrictInt


class IrDatasetsBenchmark(Benchmark):
    """The dataset with the id `dataset` in `ir_datasets` (MacAvaney et al., 2021), such as
    `vaswani` or `beir/scifact/test`. Missing files are downloaded into the folder of `ir_datasets`
    (`IR_DATASETS_HOME`, by default `~/.ir_datasets`).

    - Questions: all queries of the dataset in its order, by their `default_text()`; `answers` if
      the queries have a field of that name.
    - Documents: `default_text()`, or the field `text` if a document type has no such method. A
      title at its beginning (field `title`) is separated from the text; a field `url` is read.
    - Judgements: the tier `evidence`. If a dataset judges subtopics or parts of documents, a pair
      has its highest grade.

    Args:
        dataset: the id.
        name: of the benchmark; by default the id of the documents with dashes, so that all splits
            share an index.
        split: another dataset of the same documents, by the last part of its id: the one below
            `dataset` (`train` below `beir/scifact`) or next to it (`train` next to
            `beir/scifact/test`). `InputError` if there are both.
        sets: whether every question asks for documents, those with a grade above 0.
        answers: a file of JSON lines with `qid` and `answers`, a list of accepted short answers,
            which replaces the answers of the questions that it names.
        limit, qids, exclude_own, corpus_share, front_matter, remove_evidence: see `Benchmark`.

    Raises:
        InputError: for an unknown dataset or split, one without documents, queries or judgements,
            malformed rows, and whatever `ir_datasets` cannot download or read.
    """

    def __init__(
        self,
        dataset: str,
        name: str | None = None,
        split: str | None = None,
        limit: int | None = None,
        sets: bool = False,
        qids: str | None = None,
        answers: FileName[str | Path | None] = None,
        exclude_own: bool | None = None,
        corpus_share: float = 1.0,
        front_matter: bool = False,
        remove_evidence: bool = False,
    ) -> None:
        self.split = split
        self.dataset = _with_split(dataset, split)
        self._source = _complete(self.dataset)
        with _reading(self.dataset, "documents"):
            self._documents_id: str = _library().docs_parent_id(self.dataset)
            self.document_count = self._source.metadata().get("docs", {}).get("count")
        queries = [
            (place, parse(IrQuery, fields, where=place))
            for place, fields in self._rows("queries", self._source.queries_iter)
        ]
        # Queries of the NPL collection end with a line break.
        topics = [(place, Topic(row["query_id"], row["text"].strip())) for place, row in queries]
        answered = ((row["query_id"], row.get("answers")) for _, row in queries)
        answers_of_queries = {qid: texts for qid, texts in answered if texts is not None}
        super().__init__(
            name or self._documents_id.replace("/", "-"),
            distinct_topics(topics, self.dataset),
            {"evidence": merge_qrels(self._grades())},
            {**answers_of_queries, **read_answers(answers)},
            limit=limit,
            qids=qids,
            sets=sets,
            exclude_own=exclude_own,
            corpus_share=corpus_share,
            front_matter=front_matter,
            remove_evidence=remove_evidence,
        )

    def read_documents(self) -> Iterator[Document]:
        """The corpus in the order of the dataset."""
        for place, fields in self._rows("docs", self._source.docs_iter):
            row = parse(IrDocument, fields, where=place)
            title, text = row.get("title", ""), row["text"]
            if "title" in fields and text.startswith(title):
                text = text[len(title) :]
                text = text[1:] if text[:1].isspace() else text
            yield Document(row["doc_id"], title, text, row.get("url", ""))

    def whole_fingerprint(self) -> str:
        """Hash of the documents of the dataset, which takes a pass over them. It is stored in the
        folder `soundingline` of `ir_datasets`' own folder, and read from there as long as the files
        of the documents have the same sizes and times."""
        if self._corpus_fingerprint:
            return self._corpus_fingerprint
        home, name = Path(_library().util.home_path()), self._documents_id
        stamp = home / "soundingline" / f"{name.replace('/', '-')}-{fingerprint(name)}.json"
        state, stored = self._state(), read_record(stamp)
        if state and stored.get("state") == state:
            self._corpus_fingerprint = stored["corpus"]
        else:
            digest = super().whole_fingerprint()  # may download and so make the files
            if state := self._state():
                with suppress(OSError):  # a folder that is shared and not ours to write
                    write_json(stamp, {"dataset": name, "state": state, "corpus": digest})
        return self._corpus_fingerprint

    def _state(self) -> str:
        """Hash of sizes and times of the documents' files, as far as the dataset knows them; empty
        if there are none on disk. Downloads nothing."""
        handler, paths = self._source.docs_handler(), []
        with suppress(Exception):  # many readers have no such method, or one that downloads
            paths.append(Path(handler.docs_path(force=False)))
        with suppress(Exception):
            paths.append(Path(handler.docs_store().path))
        candidates = {file for path in paths for file in (path, *path.rglob("*"))}
        files = sorted(filter(Path.is_file, candidates))
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return fingerprint(_RULES, _library().__version__, stats) if stats else ""

    def _rows(self, kind: str, rows: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """The fields of what a reader of `ir_datasets` yields, with its place for messages."""
        label = {"docs": "document", "queries": "query", "qrels": "judgement"}[kind]
        with _reading(self.dataset, kind):
            iterator = iter(rows())
        for number in itertools.count(1):
            with _reading(self.dataset, kind):
                item = next(iterator, None)
                if item is None:
                    return
                fields = {name: getattr(item, name) for name in item._fields}
                if hasattr(item, "default_text"):
                    fields["text"] = item.default_text()
            yield f"{label} {number:,} of {self.dataset}", fields

    def _grades(self) -> Iterator[tuple[str, Qrel]]:
        highest: dict[tuple[str, str], tuple[str, Qrel]] = {}
        for place, fields in self._rows("qrels", self._source.qrels_iter):
            row = parse(IrQrel, fields, where=place)
            pair, grade = (row["query_id"], row["doc_id"]), row["relevance"]
            if not _OF_PARTS & fields.keys():
                yield place, (*pair, grade)
            elif pair not in highest or highest[pair][1][2] < grade:
                highest[pair] = place, (*pair, grade)
        yield from highest.values()


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
    """The dataset of that id; None if there is none."""
    with _reading(dataset, "description"):
        try:
            return _library().load(dataset)
        except KeyError:
            return None


def _complete(dataset: str) -> Any:
    """The dataset of that id. `InputError` if there is none, or if a part is missing."""
    source = _load(dataset)
    if source is None:
        raise InputError(f"ir_datasets has no dataset {dataset!r}", do=f"See {_CATALOGUE}")
    for kind in ("docs", "queries", "qrels"):
        if not source.has(kind):
            raise InputError(
                f"the dataset {dataset} has no {kind}",
                valid="one with docs, queries and qrels",
                do=f"See {_page(dataset)}",
            )
    return source


def _with_split(dataset: str, split: str | None) -> str:
    """The id of a split of `dataset`: below it or beside it, and of the same documents."""
    source = None if split is None else _load(dataset)
    if source is None:
        return dataset  # `_complete` raises the error for an unknown one
    beside = [dataset.rpartition("/")[0]] if "/" in dataset else []
    ids = [f"{prefix}/{split}" for prefix in (dataset, *beside)]
    present = [name for name in ids if _same_documents(source, _load(name))]
    if len(present) > 1:
        raise InputError(
            f"the split {split!r} of {dataset} could be {' or '.join(present)}",
            do="name one as the dataset, with split=null",
        )
    if not present:
        near = [n for n in _library().registry if n.rpartition("/")[0] in (dataset, *beside)]
        others = sorted(name for name in near if _same_documents(source, _load(name)))
        valid = (
            f"null, or the last part of another dataset: {', '.join(others) or 'there are none'}"
        )
        raise InputError(f"the dataset {dataset} has no split {split!r}", valid=valid)
    return present[0]


def _same_documents(one: Any, other: Any) -> bool:
    if other is None or not (one.has("docs") and other.has("docs")):
        return False
    return bool(one.docs_handler() == other.docs_handler())


def _page(dataset: str) -> str:
    return f"{_CATALOGUE}/{dataset.split('/')[0]}.html"


@contextmanager
def _reading(dataset: str, what: str) -> Iterator[None]:
    """A block in which `ir_datasets` works; its exceptions become an `InputError`. Besides errors
    of the network, its readers raise anything for a malformed file."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        # After several attempts, ir_datasets raises a list of mirrors with their errors.
        failures = next((part for part in error.args if isinstance(part, list) and part), [])
        addresses = [str(getattr(mirror, "url", "")) for mirror, _ in failures]
        cause = failures[0][1] if failures else error
        addresses = addresses or [str(getattr(getattr(error, "request", None), "url", "") or "")]
        source = f" from {' and '.join(filter(None, addresses))}" if any(addresses) else ""
        reason = getattr(next(iter(cause.args), None), "reason", cause)  # of a failed connection
        raise InputError(
            f"ir_datasets could not get the {what} of {dataset}{source}: {type(cause).__name__}:"
            f" {str(reason)[:_LONGEST]}",
            do=f"{_page(dataset)} says where the files come from. Check the network, or copy the"
            f" folder of an ir_datasets that has them to {_library().util.home_path()}"
            " (IR_DATASETS_HOME names another place)",
        ) from error
