"""Line formats of test collections, read with errors that name the file and the line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from soundingline.toolkit.data import LARGEST_GRADE, Topic
from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.files import file_hash
from soundingline.toolkit.json_text import decode_json, has_surrogates

R = TypeVar("R")

_HASHES: dict[tuple[str, int, int], str] = {}
JSON_LINES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
"""What names of JSON-lines files end with, compressed by gzip or not; the content decides."""
_GZIP = b"\x1f\x8b"  # RFC 1952, section 2.3.1
HEADERS = frozenset({"query-id", "query_id", "queryid", "qid", "query", "topic"})


def _as_text(value: Any) -> Any:
    """The digits of an integer, and other values as they are. `ValueError` for a string that UTF-8
    cannot encode."""
    if isinstance(value, str) and has_surrogates(value):
        raise ValueError("half a surrogate pair, from a broken \\u escape")
    return str(value) if type(value) is int else value


Text = Annotated[str, BeforeValidator(_as_text)]
Id = Annotated[Text, Field(min_length=1)]
OptionalText = Annotated[Text, BeforeValidator(lambda value: "" if value is None else value)]


Qrel = tuple[str, str, int]
"""One judgement: qid, docid, and the grade of the document for the question."""


class Location(NamedTuple):
    """A line of a file, for messages; lines count from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def lines(path: Path) -> Iterator[tuple[Location, str]]:
    """The lines of a UTF-8 file that are not blank, without their line end and a byte order mark.
    Lines end at a newline character only, because JSON strings contain other line ends of Unicode.
    A file that is compressed by gzip, whatever its name, is decompressed."""
    number = 0
    with path.open("rb") as file:
        stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file
        try:
            for number, raw in enumerate(stream, start=1):
                location = Location(path, number)
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{location} is not UTF-8 ({error.reason})", do="Convert the file to UTF-8"
                    ) from None
                if line and not line.isspace():
                    yield location, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path} cannot be decompressed after line {number} ({error})",
                valid="a complete gzip file",
                do="fetch the file again",
            ) from None


def has_json_lines(path: Path) -> bool:
    """Whether the first line of a file begins a JSON object."""
    return next((line.lstrip().startswith("{") for _, line in lines(path)), False)


def records(path: Path) -> Iterator[tuple[Location, dict[str, Any]]]:
    """The objects of a JSON-lines file."""
    for location, line in lines(path):
        try:
            record = decode_json(line, replace=False)
        except ValueError as error:
            raise InputError(
                f"{location} is not JSON ({error})", valid="one JSON object a line", do="Repair it"
            ) from None
        if not isinstance(record, dict):
            raise InputError(
                f"{location} is a JSON {type(record).__name__}", valid="one JSON object a line"
            )
        yield location, record


def rows(path: Path, model: type[R]) -> Iterator[tuple[Location, R]]:
    """The objects of a JSON-lines file as rows of this model."""
    for location, record in records(path):
        yield location, parse(model, record, where=location)


class AnswersRow(BaseModel):
    """A line of a file of answers."""

    qid: Id
    answers: list[Text]


def read_answers(path: str | Path | None) -> dict[str, list[str]]:
    """Accepted answers by qid, of a file of JSON lines `{"qid": ..., "answers": [...]}`; none
    without a path."""
    if path is not None and not Path(path).is_file():
        raise InputError(f"there is no file of answers {path}", do="correct benchmark.answers")
    return {row.qid: row.answers for _, row in rows(Path(path), AnswersRow)} if path else {}


def read_qrels(files: Sequence[Path]) -> dict[str, dict[str, int]]:
    """The union of qrels files: grades by qid and docid. They have three columns (`query-id,
    corpus-id, score`, with or without the header line) or TREC's four (`qid, iteration, docid,
    grade`), separated by tabs, or by white space if a line has no tab. White space at the end of a
    line is ignored."""
    return merge_qrels(row for path in files for row in _qrels(path))


def _qrels(path: Path) -> Iterator[tuple[Location, Qrel]]:
    for number, (location, line) in enumerate(lines(path)):
        row = line.rstrip()
        fields = [part.strip() for part in row.split("\t")] if "\t" in row else row.split()
        if number == 0 and fields[0].lower() in HEADERS:
            continue
        if len(fields) not in (3, 4) or not all(fields):
            empty = "" if all(fields) else ", and one of them is empty"
            raise InputError(
                f"{location} has {len(fields)} fields{empty}",
                valid="query-id, corpus-id, score; or TREC's qid, iteration, docid, grade",
            )
        try:
            grade = int(fields[-1])
        except ValueError:
            raise InputError(
                f"{location} has the grade {fields[-1]!r}", valid="an integer"
            ) from None
        yield location, (fields[0], fields[-2], grade)


def merge_qrels(qrels: Iterable[tuple[object, Qrel]]) -> dict[str, dict[str, int]]:
    """Grades by qid and docid of judgements that come with their locations. A pair may occur
    repeatedly with the same grade. `InputError` for a grade above `LARGEST_GRADE`."""
    grades: dict[str, dict[str, int]] = {}
    for location, (qid, docid, grade) in qrels:
        if grade > LARGEST_GRADE:
            raise InputError(
                f"{location} has the grade '{grade}'", valid=f"at most {LARGEST_GRADE:,}"
            )
        earlier = grades.setdefault(qid, {}).setdefault(docid, grade)
        if earlier != grade:
            raise InputError(
                f"{location} gives {docid!r} the grade {grade} for question {qid!r}, an earlier "
                f"line {earlier}",
                valid="one grade for a pair",
            )
    return grades


def distinct_topics(topics: Iterable[tuple[object, Topic]], source: object) -> list[Topic]:
    """The questions of `source`, which come with their locations, in their order. Raises
    `InputError` for a qid that occurs twice, and if there is no question."""
    distinct: dict[str, Topic] = {}
    for location, topic in topics:
        if topic.qid in distinct:
            raise InputError(f"{location} has the qid {topic.qid!r} a second time", do="Rename it")
        distinct[topic.qid] = topic
    if not distinct:
        raise InputError(f"{source} holds no question", valid="at least one")
    return list(distinct.values())


def read_topics(path: Path) -> list[Topic]:
    """The questions of a file `qid<TAB>question`, in its order. The file has no header and no
    quoting: the question is everything after the first tab, quotation marks and tabs included."""
    topics = []
    for location, line in lines(path):
        qid, _, text = line.partition("\t")
        if not (qid and text.strip()):
            raise InputError(f"{location} is not a question", valid="qid, a tab, and its text")
        topics.append((location, Topic(qid, text)))
    return distinct_topics(topics, path)


def content_hash(path: Path) -> str:
    """The hash of a file's bytes, computed once a process for each (path, size, time of change)."""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _HASHES:
        _HASHES[key] = file_hash(path)
    return _HASHES[key]
