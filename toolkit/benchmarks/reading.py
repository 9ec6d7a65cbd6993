"""Reading the line formats of test collections, with errors that name the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from toolkit.contracts import Document, Topic
from toolkit.errors import InputError
from toolkit.files import file_fingerprint
from toolkit.identifiers import DistinctIds

Judgements = dict[str, dict[str, int]]
Mark = TypeVar("Mark")

_HASHES: dict[tuple[str, int, int], str] = {}
HEADERS = frozenset({"query-id", "query_id", "queryid", "qid", "query", "topic"})


class Judgement(NamedTuple):
    """One qrels row."""

    qid: str
    docid: str
    grade: int


class Place(NamedTuple):
    """A line of a file, for messages; lines count from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def lines(path: Path) -> Iterator[tuple[Place, str]]:
    """The lines of a UTF-8 file that hold anything, without their line end.

    Lines end at a newline character only (not at the other characters that Unicode counts as line
    ends, which occur inside JSON strings). A byte order mark is dropped.
    """
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            location = Place(path, number)
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{location} is not UTF-8 ({error.reason})", do="Convert the file to UTF-8"
                ) from None
            if line.strip():
                yield location, line


def records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a JSON-lines file."""
    for location, line in lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{location} is not JSON ({error})", valid="one JSON object a line", do="Repair it"
            ) from None
        if not isinstance(record, dict):
            raise InputError(
                f"{location} is a JSON {type(record).__name__}", valid="one JSON object a line"
            )
        yield location, record


def text_field(
    location: object, record: Mapping[str, Any], field: str, default: str | None = None
) -> str:
    """A string field of the record at `location`. Integers are taken as their digits; absent (or
    null) gives `default`."""
    value = record.get(field)
    if value is None:
        if default is not None:
            return default
        raise InputError(
            f"{location} has no field {field!r}",
            valid="its fields: " + (", ".join(record) or "none"),
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(
            f"{location} has {field!r} of type {type(value).__name__}", valid="a string"
        )
    return _encodable(location, field, value)


def identifier(location: object, record: Mapping[str, Any], field: str = "_id") -> str:
    """The id of a record, which must not be empty."""
    value = text_field(location, record, field)
    if not value:
        raise InputError(f"{location} has an empty {field!r}", valid="any non-empty string")
    return value


def _encodable(location: object, field: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{location} has half a surrogate pair in {field!r}", do="Repair the broken \\u escape"
        ) from None
    return value


def judgements(path: Path) -> Iterator[tuple[Place, Judgement]]:
    """The rows of a qrels file.

    Three columns (`query-id, corpus-id, score`, with or without the header line) or TREC's four
    (`qid, iteration, docid, grade`); separated by tabs, or by white space where there is no tab.
    """
    for number, (location, line) in enumerate(lines(path)):
        fields = [part.strip() for part in line.split("\t")] if "\t" in line else line.split()
        if number == 0 and fields[0].lower() in HEADERS:
            continue
        if len(fields) not in (3, 4) or not all(fields):
            raise InputError(
                f"{location} has {sum(map(bool, fields))} fields",
                valid="query-id, corpus-id, score; or TREC's qid, iteration, docid, grade",
            )
        yield location, Judgement(fields[0], fields[-2], _grade(location, fields[-1]))


def _grade(location: Place, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InputError(f"{location} has the grade {value!r}", valid="an integer") from None


def read_qrels(files: Sequence[Path]) -> Judgements:
    """The union of qrels files: grades by qid and docid. A pair may repeat with the same grade."""
    return united(row for path in files for row in judgements(path))


def united(rows: Iterable[tuple[object, Judgement]]) -> Judgements:
    """Grades by qid and docid of rows that come with their places. A pair may repeat with the same
    grade."""
    grades: Judgements = {}
    for location, row in rows:
        known = grades.setdefault(row.qid, {}).setdefault(row.docid, row.grade)
        if known != row.grade:
            raise InputError(
                f"{location} gives {row.docid!r} the grade {row.grade} for question {row.qid!r},"
                f" an earlier line {known}",
                valid="one grade for a pair",
            )
    return grades


def read_queries(path: Path) -> tuple[list[Topic], dict[str, list[str]]]:
    """The questions of a queries.jsonl, in its order, and the answers of those that have any."""
    rows = (
        (location, _topic(location, record), record.get("answers"))
        for location, record in records(path)
    )
    return united_topics(rows, str(path))


def _topic(location: Place, record: Mapping[str, Any]) -> Topic:
    return Topic(identifier(location, record), text_field(location, record, "text"))


def united_topics(
    rows: Iterable[tuple[object, Topic, Any]], source: str
) -> tuple[list[Topic], dict[str, list[str]]]:
    """Questions of `source` in their order, and the answers of those that have any; the rows are
    a place, a question, and its answers or None."""
    topics: dict[str, Topic] = {}
    answers: dict[str, list[str]] = {}
    for location, topic, texts in rows:
        if topic.qid in topics:
            raise InputError(f"{location} has the qid {topic.qid!r} a second time", do="Rename it")
        topics[topic.qid] = topic
        if texts is not None:
            answers[topic.qid] = _answers(location, texts)
    if not topics:
        raise InputError(f"{source} holds no question", valid="at least one")
    return list(topics.values()), answers


def _answers(location: object, value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise InputError(
            f"{location} has 'answers' that are no list of strings", valid='["one", ...]'
        )
    return list(value)


def read_topics(path: Path) -> list[Topic]:
    """The questions of a file `qid<TAB>question`, in its order. There is no header and no quoting:
    all behind the first tab is the question, quotation marks and further tabs included."""
    rows = ((location, _tabbed_topic(location, line), None) for location, line in lines(path))
    return united_topics(rows, str(path))[0]


def _tabbed_topic(location: Place, line: str) -> Topic:
    qid, tab, text = line.partition("\t")
    if not (qid and tab and text.strip()):
        raise InputError(f"{location} is no question", valid="qid, a tab, and its text")
    return Topic(qid, text)


def distinct(documents: Iterable[tuple[Mark, Document]], corpus: object) -> Iterator[Document]:
    """The documents of `corpus`, each given with its place; their ids must differ. A docid that
    comes again raises `InputError`: at once, or up to 65,536 documents later where more than that
    lie between the two. So does a corpus without any document, at its end."""
    ids = DistinctIds[Mark]()
    for location, document in documents:
        _refuse(ids.add(document.docid, location))
        yield document
    _refuse(ids.close())
    if not len(ids):
        raise InputError(f"{corpus} holds no document", valid="at least one")


def _refuse(doubled: tuple[str, object] | None) -> None:
    if doubled:
        docid, location = doubled
        raise InputError(f"{location} has the docid {docid!r} a second time", do="Rename it")


def content_hash(path: Path) -> str:
    """The hash of a file's bytes, computed once a process for each (path, size, time of change)."""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _HASHES:
        _HASHES[key] = file_fingerprint(path)
    return _HASHES[key]
