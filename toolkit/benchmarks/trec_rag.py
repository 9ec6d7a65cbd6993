"""The TREC RAG track: its questions, and its corpora of documents or segments. See docs/data.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field
from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.benchmarks.benchmark import Benchmark, select_topics
from soundingline.toolkit.benchmarks.browsecomp_plus import published_files, published_rows
from soundingline.toolkit.benchmarks.formats import (
    Id,
    OptionalText,
    Text,
    content_hash,
    distinct_topics,
    read_qrels,
    read_topics,
    rows,
)
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint

_TEXTS = ("contents", "segment", "text")


class NarrativeRow(BaseModel):
    """A line of the questions of 2025."""

    qid: Id = Field(validation_alias=AliasChoices("id", "qid"))
    text: Text = Field(validation_alias=AliasChoices("narrative", "title"))


class CorpusRow(TypedDict):
    """A document. ClimbMix's shards have only `text`, MS MARCO V2.1's segments `docid`, `url`,
    `title` and `segment`."""

    docid: NotRequired[OptionalText]
    id: NotRequired[OptionalText]
    url: NotRequired[OptionalText]
    title: NotRequired[OptionalText]
    text: NotRequired[OptionalText]
    contents: NotRequired[OptionalText]
    segment: NotRequired[OptionalText]


class TrecRag(Benchmark):
    """Questions, judgements and corpus of a TREC RAG track, from its files.

    Args:
        topics: a file `id<TAB>narrative` without a header (2026), or JSON lines with `id` and
            `narrative` or `title` (2025).
        corpus: a Parquet or JSON-lines file, a folder of them, or a data set of the Hugging Face
            hub. A document without a `docid` or `id` has the organizers' id of a row of ClimbMix,
            the name of its file and the number of the row from 0: `shard_00459_61697`.
        qrels: a TREC file of judgements; None for questions without any.
        name: of the benchmark.
        corpus_revision: branch, tag or commit of the data set on the hub.
        split, dev_share, sample, seed, limit: the selection among those of `qids`; see
            `select_topics`.
        qids, corpus_share: see `Benchmark`.

    Raises:
        InputError: in one line for whatever is absent or malformed.
    """

    def __init__(
        self,
        topics: str,
        corpus: str,
        qrels: str | None = None,
        *,
        name: str = "trec_rag",
        corpus_revision: str | None = None,
        qids: str | None = None,
        split: str | None = None,
        dev_share: float = 0.5,
        sample: int | None = None,
        seed: int = 0,
        limit: int | None = None,
        corpus_share: float = 1.0,
    ) -> None:
        for what, file in (("questions", topics), ("judgements", qrels)):
            if file is not None and not Path(file).is_file():
                raise InputError(f"there is no file of {what} {file}", do="correct the path")
        self._files = published_files(corpus, corpus_revision)
        path = Path(topics)
        if path.suffix == ".jsonl":
            located = rows(path, NarrativeRow)
            known = distinct_topics(((at, Topic(row.qid, row.text)) for at, row in located), path)
        else:
            known = read_topics(path)
        chosen = select_topics(
            known,
            qids=qids,
            split=split,
            dev_share=dev_share,
            sample=sample,
            seed=seed,
            limit=limit,
        )
        grades = read_qrels([Path(qrels)]) if qrels else {}
        super().__init__(name, chosen, {"evidence": grades}, corpus_share=corpus_share)

    def whole_fingerprint(self) -> str:
        """Hash of the corpus's files and of their names, which are part of ids."""
        return fingerprint("trec_rag", [(file.stem, content_hash(file)) for file in self._files])

    def read_documents(self) -> Iterator[Document]:
        for place, row in published_rows(self._files, CorpusRow):
            docid = row.get("docid") or row.get("id") or f"{place.path.stem}_{place.line - 1}"
            texts = [row[field] for field in _TEXTS if field in row]  # type: ignore[literal-required]
            if not texts:
                raise InputError(f"{place} has no text", valid=f"a field {', '.join(_TEXTS)}")
            yield Document(docid, row.get("title", ""), texts[0], row.get("url", ""))
