"""BrowseComp-Plus (Chen et al., 2025), its questions over Wikipedia, and the TREC RAG track from
their published files. See docs/data.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import AliasChoices, BaseModel, Field
from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.formats import (
    JSON_LINES,
    Id,
    Location,
    OptionalText,
    Text,
    content_hash,
    distinct_topics,
    has_json_lines,
    read_qrels,
    read_topics,
    records,
    rows,
)
from soundingline.toolkit.data import PASSAGE_BREAK, Document, Topic
from soundingline.toolkit.errors import FileName, InputError, parse
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.obfuscation import VARIABLE, Canary, NotObfuscated, canary
from soundingline.toolkit.optional import hub_dataset, import_optional, is_hub_name

R = TypeVar("R")

_PARQUET = ".parquet"
_SUFFIXES = (_PARQUET, *JSON_LINES)
_PARQUET_MARK = b"PAR1"  # the first four bytes of a file
_PASSAGE = re.compile(r"browsecomp_plus_(.+)_\d+")
_CORPUS, _CORPUS_DOCUMENTS = "Tevatron/browsecomp-plus-corpus", 100_195  # arXiv 2508.06600
_BATCH = 128  # rows of a Parquet file in memory at once


class JudgedDocument(TypedDict):
    """A document in a list of a question."""

    docid: Text


class QuestionRow(TypedDict):
    """A question with its answer and the documents of each tier."""

    query_id: Id
    query: Text
    answer: Text
    evidence_docs: list[JudgedDocument] | None
    gold_docs: list[JudgedDocument] | None


class BrowseCompRow(TypedDict):
    """A document."""

    docid: Id
    title: NotRequired[OptionalText]
    text: Text
    url: NotRequired[OptionalText]


class BrowseCompPlus(Benchmark):
    """Questions, answers, judgements and corpus of BrowseComp-Plus, from rows in Parquet or JSON
    lines: a file, a folder at any depth, or a data set of the Hugging Face hub. All that a run
    writes of these texts is obfuscated again (option `sealed`).

    Args:
        questions: rows `query_id, query, answer, evidence_docs, gold_docs`, the last two lists of
            `{docid, ...}`. None if there are no answers and `topics` and `qrels` give the rest.
        corpus: rows `docid, text, url` in plain text, and an optional `title`; or the passages of
            arXiv 2602.21456, rows `docid, title, text` with the ids
            `browsecomp_plus_<docid>_<n>`, n from 1. The text of a document then is that of its
            passages, which `PASSAGE_BREAK` separates.
        name: of the benchmark.
        revision, corpus_revision: branch, tag or commit of `questions` and `corpus` on the hub.
        obfuscated: whether all strings of the questions but `query_id` are obfuscated. They are
            decoded in memory with the canary of the environment
            (`soundingline.toolkit.obfuscation`).
        topics: a file `qid<TAB>question` without header and quoting that replaces the questions of
            the rows.
        qrels, gold_qrels: TREC files that replace the lists of the rows as the tiers `evidence`
            and `gold`.
        qids, split, sample, seed, limit, corpus_share, front_matter, remove_evidence: see
            `Benchmark`.

    Raises:
        InputError: in one line for whatever is absent, malformed or not decoded by the canary.
    """

    obfuscated = True

    def __init__(
        self,
        questions: FileName[str | None] = "Tevatron/browsecomp-plus",
        corpus: FileName[str] = _CORPUS,
        *,
        name: str = "browsecomp_plus",
        revision: str | None = None,
        corpus_revision: str | None = None,
        obfuscated: bool = True,
        topics: FileName[str | None] = None,
        qrels: FileName[str | None] = None,
        gold_qrels: FileName[str | None] = None,
        qids: str | None = None,
        split: str | None = None,
        sample: int | None = None,
        seed: int = 0,
        limit: int | None = None,
        corpus_share: float = 1.0,
        front_matter: bool = True,
        remove_evidence: bool = False,
    ) -> None:
        if questions is None and not (topics and qrels):
            raise InputError("questions is null", do="give questions, or both topics and qrels")
        self._corpus, self._corpus_revision = corpus, corpus_revision
        if corpus == _CORPUS:
            self.document_count = _CORPUS_DOCUMENTS
        known_topics: list[Topic] = []
        answers: dict[str, list[str]] = {}
        tiers: dict[str, dict[str, dict[str, int]]] = {"evidence": {}, "gold": {}}
        if questions is not None:
            files = published_files(questions, revision)
            rows = self.question_rows(files)
            known_topics, answers, tiers = _read_questions(rows, files[0], obfuscated)
        if topics:
            known_topics = read_topics(_existing("topics", topics))
        for tier, path in (("evidence", qrels), ("gold", gold_qrels)):
            if path:
                tiers[tier] = read_qrels([_existing(f"{tier} qrels", path)])
        super().__init__(
            name,
            known_topics,
            tiers,
            answers,
            limit=limit,
            qids=qids,
            split=split,
            sample=sample,
            seed=seed,
            corpus_share=corpus_share,
            front_matter=front_matter,
            remove_evidence=remove_evidence,
        )

    def question_rows(self, files: Sequence[Path]) -> Iterator[tuple[Location, QuestionRow]]:
        """The rows of the questions."""
        return published_rows(files, QuestionRow)

    @cached_property
    def _corpus_files(self) -> list[Path]:
        return published_files(self._corpus, self._corpus_revision)

    def whole_fingerprint(self) -> str:
        """Hash of the corpus's files."""
        return fingerprint("browsecomp_plus", *map(content_hash, self._corpus_files))

    def read_documents(self) -> Iterator[Document]:
        """The corpus in the order of the files."""
        rows = published_rows(self._corpus_files, BrowseCompRow)
        for docid, group in groupby(rows, _document_of):
            if docid is not None:
                yield _joined(docid, group)
                continue
            for _, row in group:
                yield Document(row["docid"], row.get("title", ""), row["text"], row.get("url", ""))

    @cached_property
    def in_passages(self) -> bool:  # type: ignore[override]  # its first row tells
        first = next(published_rows(self._corpus_files, BrowseCompRow), None)
        return first is not None and _document_of(first) is not None


class WikipediaQuestionRow(TypedDict):
    """A question of BrowseComp-Wikipedia with the titles of its gold pages by number."""

    query_id: Id
    problem: Text
    answer: Text
    wiki_gold_titles: dict[str, Id]


class WikipediaPageRow(TypedDict):
    """A page of a Wikipedia dump."""

    namespace: int
    title: Id
    description: NotRequired[OptionalText]
    categories: NotRequired[list[Text] | None]
    text: OptionalText


class BrowseCompWikipedia(BrowseCompPlus):
    """BrowseComp-Wikipedia: the 232 questions of BrowseComp-Plus that a model answered from their
    gold pages of the English Wikipedia alone, over all 25,587,229 pages of the dump of 2026-05-01
    (facebookresearch/sira, `browsecomp-wiki` at 57f9cbb, where the questions and the script are
    that makes the corpus).

    The corpus is `pages_with_categories.parquet` of that script, with the pages of all namespaces
    and the redirects. A docid is the title with `_` for spaces, outside the namespace 0 after the
    number of the namespace and `:`. A text is the short description, the wikitext, and the
    categories as words; the authors also index each category as one term. The gold pages of a
    question, by their titles, are both tiers. Arguments and errors are those of `BrowseCompPlus`.
    """

    in_passages = False

    def question_rows(self, files: Sequence[Path]) -> Iterator[tuple[Location, QuestionRow]]:
        """The rows of the questions, with their gold pages in both lists."""
        for location, row in published_rows(files, WikipediaQuestionRow):
            titles = row["wiki_gold_titles"].values()
            gold: list[JudgedDocument] = [{"docid": _page_id(0, title)} for title in titles]
            named = {"query_id": row["query_id"], "query": row["problem"], "answer": row["answer"]}
            yield location, QuestionRow(**named, evidence_docs=gold, gold_docs=gold)  # type: ignore[typeddict-item]

    def whole_fingerprint(self) -> str:
        """Hash of the corpus's files."""
        return fingerprint("browsecomp_wikipedia", super().whole_fingerprint())

    def read_documents(self) -> Iterator[Document]:
        """The pages in the order of the files."""
        for _, row in published_rows(self._corpus_files, WikipediaPageRow):
            docid = _page_id(row["namespace"], row["title"])
            categories = [name.replace("_", " ") for name in row.get("categories") or ()]
            parts = (row.get("description", ""), row["text"], "\n".join(categories))
            url = f"https://en.wikipedia.org/wiki/{quote(docid)}" if row["namespace"] == 0 else ""
            yield Document(docid, row["title"], "\n\n".join(filter(None, parts)), url)


def _page_id(namespace: int, title: str) -> str:
    name = "_".join(title.split())
    return f"{namespace}:{name}" if namespace else name


def _document_of(located: tuple[Location, BrowseCompRow]) -> str | None:
    """The document of a passage; None if the row is a document."""
    match = _PASSAGE.fullmatch(located[1]["docid"])
    return match[1] if match else None


def _joined(docid: str, rows: Iterable[tuple[Location, BrowseCompRow]]) -> Document:
    """The document that the passages make. Their numbers are their places, from 1."""
    title, texts = "", []
    for location, row in rows:
        title = title or row.get("title", "")
        texts.append(row["text"].replace(PASSAGE_BREAK, " ").strip())
        if not row["docid"].endswith(f"_{len(texts)}"):
            raise InputError(
                f"{location} has the passage {row['docid']}",
                valid=f"passage {len(texts)} of document {docid}",
                do="fetch the file again",
            )
    return Document(docid, title, f"\n{PASSAGE_BREAK}".join(texts))


def _read_questions(
    located: Iterable[tuple[Location, QuestionRow]], file: Path, obfuscated: bool
) -> tuple[list[Topic], dict[str, list[str]], dict[str, dict[str, dict[str, int]]]]:
    """Questions, answers by qid, and judgements by tier, decoded."""
    key = canary() if obfuscated else None
    topics: list[tuple[Location, Topic]] = []
    answers: dict[str, list[str]] = {}
    tiers: dict[str, dict[str, dict[str, int]]] = {"evidence": {}, "gold": {}}
    for location, row in located:
        qid = row["query_id"]
        topics.append((location, Topic(qid, _decrypted(key, location, row["query"]))))
        for tier, documents in (("evidence", row["evidence_docs"]), ("gold", row["gold_docs"])):
            if documents:
                docids = (_decrypted(key, location, judged["docid"]) for judged in documents)
                tiers[tier][qid] = dict.fromkeys(docids, 1)
        answer = _decrypted(key, location, row["answer"])
        answers[qid] = [answer] if answer else []
    return distinct_topics(topics, file), answers, tiers


def _decrypted(key: Canary | None, location: Location, text: str) -> str:
    try:
        return text if key is None else key.decrypt(text)
    except NotObfuscated:
        raise InputError(
            f"the canary in ${VARIABLE} does not open {location}",
            valid="the canary string that the benchmark's authors publish with it",
            do="set it to that, or obfuscated=false for plain text. If it is right, fetch the file",
        ) from None


def published_files(source: str, revision: str | None = None) -> list[Path]:
    """The files of a data set in the order of their names: `source` is a file, a folder with such
    files at any depth or, if no such path exists, the name of a data set on the hub. The files of a
    folder are of one kind. Files of JSON next to Parquet or `.jsonl` describe the data set, and are
    left out."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if not path.exists() and is_hub_name(source):
        path = hub_dataset(source, [f"*{suffix}" for suffix in _SUFFIXES], revision)
    kinds: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*")) if path.is_dir() else ():
        if (suffix := _suffix(file)) and file.is_file():
            kinds.setdefault(suffix, []).append(file)
    if kinds.keys() & {_PARQUET, ".jsonl"}:
        kinds.pop(".json", None)
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    raise InputError(
        f"there are no rows at {source}"
        if not kinds
        else f"{source} has files of {len(kinds)} kinds ({', '.join(kinds)})",
        valid="a file of Parquet or JSON lines (which may be compressed by gzip), a folder with "
        f"files of one of the kinds {', '.join(_SUFFIXES)}, or the name of a data set on the "
        "Hugging Face hub",
        do="check the path",
    )


def _suffix(path: Path) -> str:
    """The kind of a file by its name; empty for another file."""
    return next((suffix for suffix in _SUFFIXES if path.name.endswith(suffix)), "")


def published_rows(files: Sequence[Path], model: type[R]) -> Iterator[tuple[Location, R]]:
    """The rows of the files, each with its location: the row of a Parquet file or the line of a
    JSON-lines file, counted from 1."""
    columns = list(model.__annotations__)
    for path in files:
        rows = _parquet_rows(path, columns) if _is_parquet(path) else records(path)
        for location, row in rows:
            yield location, parse(model, row, where=location)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as stream:
        return path.suffix == _PARQUET or stream.read(len(_PARQUET_MARK)) == _PARQUET_MARK


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Location, dict[str, Any]]]:
    parquet, errors = import_optional("pyarrow.parquet"), import_optional("pyarrow").ArrowException
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            present = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=_BATCH, columns=present):
                for row in batch.to_pylist():
                    number += 1
                    yield Location(path, number), row
    except (errors, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read after row {number}: {error}",
            valid="a complete Parquet file",
            do="fetch the file again",
        ) from error


def _existing(name: str, path: str) -> Path:
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}", do=f"correct the path of the {name}")
    return Path(path)


# The TREC RAG track.

_TEXTS = ("contents", "segment", "text", "body")


class NarrativeRow(BaseModel):
    """A line of the questions of 2025."""

    qid: Id = Field(validation_alias=AliasChoices("id", "qid"))
    text: Text = Field(validation_alias=AliasChoices("narrative", "title"))


class JudgedRow(TypedDict):
    """A document. ClimbMix's shards have only `text`; MS MARCO V2.1 has `docid`, `url` and `title`
    with the `body` of a document or with a `segment` of it."""

    docid: NotRequired[OptionalText]
    id: NotRequired[OptionalText]
    url: NotRequired[OptionalText]
    title: NotRequired[OptionalText]
    text: NotRequired[OptionalText]
    contents: NotRequired[OptionalText]
    segment: NotRequired[OptionalText]
    body: NotRequired[OptionalText]


class TrecRag(Benchmark):
    """Questions, judgements and corpus of a TREC RAG track, from its files.

    Args:
        topics: a file `id<TAB>narrative` without a header (2026), or JSON lines with `id` and
            `narrative` or `title` (2025).
        corpus: a Parquet or JSON-lines file, which may be compressed by gzip, a folder of them, or
            a data set of the Hugging Face hub. A document without a `docid` or `id` has the
            organizers' id of a row of ClimbMix, the name of its file and the number of the row from
            0: `shard_00459_61697`.
        qrels: a TREC file of judgements; None for questions without any.
        name: of the benchmark.
        corpus_revision: branch, tag or commit of the data set on the hub.
        qids, split, sample, seed, limit, corpus_share, remove_evidence: see `Benchmark`.

    Raises:
        InputError: in one line for whatever is absent or malformed.
    """

    def __init__(
        self,
        topics: FileName[str],
        corpus: FileName[str],
        qrels: FileName[str | None] = None,
        *,
        name: str = "trec_rag",
        corpus_revision: str | None = None,
        qids: str | None = None,
        split: str | None = None,
        sample: int | None = None,
        seed: int = 0,
        limit: int | None = None,
        corpus_share: float = 1.0,
        remove_evidence: bool = False,
    ) -> None:
        path = _existing("topics", topics)
        grades = read_qrels([_existing("qrels", qrels)]) if qrels else {}
        self._files = published_files(corpus, corpus_revision)
        if has_json_lines(path):
            located = rows(path, NarrativeRow)
            asked = distinct_topics(((at, Topic(row.qid, row.text)) for at, row in located), path)
        else:
            asked = read_topics(path)
        super().__init__(
            name,
            asked,
            {"evidence": grades},
            limit=limit,
            qids=qids,
            split=split,
            sample=sample,
            seed=seed,
            corpus_share=corpus_share,
            remove_evidence=remove_evidence,
        )

    def whole_fingerprint(self) -> str:
        """Hash of the corpus's files and of their names, which are part of ids."""
        return fingerprint("trec_rag", [(_shard(file), content_hash(file)) for file in self._files])

    def read_documents(self) -> Iterator[Document]:
        for place, row in published_rows(self._files, JudgedRow):
            docid = row.get("docid") or row.get("id") or f"{_shard(place.path)}_{place.line - 1}"
            texts = [row[field] for field in _TEXTS if field in row]  # type: ignore[literal-required]
            if not texts:
                raise InputError(f"{place} has no text", valid=f"a field {', '.join(_TEXTS)}")
            yield Document(docid, row.get("title", ""), texts[0], row.get("url", ""))


def _shard(path: Path) -> str:
    """The name of a shard without its kind."""
    return path.name.removesuffix(_suffix(path) or path.suffix)
