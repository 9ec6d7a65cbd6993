"""BrowseComp-Plus (Chen et al., 2025) from its published files. See docs/browsecomp-plus.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.benchmarks.judged import JudgedBenchmark
from toolkit.benchmarks.published import published_files, published_rows
from toolkit.benchmarks.reading import (
    Judgements,
    Place,
    content_hash,
    distinct,
    identifier,
    read_qrels,
    read_topics,
    text_field,
    united_topics,
)
from toolkit.benchmarks.slices import sliced
from toolkit.contracts import Document, Topic
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.sealing import VARIABLE, NotSealed, seal

_TIERS = {"evidence": "evidence_docs", "gold": "gold_docs"}
_TELLING = 24  # characters of base64 that another canary does not open by chance


class BrowseCompPlus(JudgedBenchmark):
    """Questions, answers, judgements and corpus of BrowseComp-Plus.

    - `questions`: rows `query_id, query, answer, evidence_docs, gold_docs`, the last two lists of
      `{docid, ...}`. All their strings but `query_id` are obfuscated, unless `obfuscated` is false,
      and are opened in memory with the canary of the environment (`toolkit.sealing`). None: there
      are no answers, and `topics` and `qrels` give the rest.
    - `corpus`: rows `docid, text, url` in plain text.
    - `topics`: a file `qid<TAB>question` without header and quoting, in the place of the rows'
      questions. `qrels`, `gold_qrels`: TREC files of the tiers `evidence` and `gold`, in the place
      of the rows' lists.
    - `split`, `dev_share`, `sample`, `seed`, `limit`: which questions; see `slices.sliced`.

    Rows are Parquet or JSON lines, as a path or as a name on the hub at `revision` and
    `corpus_revision` (`published.published_files`). Constructing reads the questions;
    `documents()` streams the corpus. `InputError` in one line for whatever is absent, malformed or
    not opened by the canary.

    `sealed`: what a run writes of these texts is obfuscated again.
    """

    sealed = True

    def __init__(
        self,
        questions: str | None = "Tevatron/browsecomp-plus",
        corpus: str = "Tevatron/browsecomp-plus-corpus",
        *,
        name: str = "browsecomp_plus",
        revision: str | None = None,
        corpus_revision: str | None = None,
        obfuscated: bool = True,
        topics: str | None = None,
        qrels: str | None = None,
        gold_qrels: str | None = None,
        split: str | None = None,
        dev_share: float = 0.5,
        sample: int | None = None,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        if questions is None and not (topics and qrels):
            raise InputError("questions is null", do="give questions, or both topics and qrels")
        self._corpus, self._corpus_revision = corpus, corpus_revision
        rows = _Rows(obfuscated, published_files(questions, revision) if questions else [])
        known_topics = read_topics(_existing("topics", topics)) if topics else rows.topics
        judged = {"evidence": qrels, "gold": gold_qrels}
        tiers = {
            tier: read_qrels([_existing(f"{tier} qrels", path)]) if path else rows.judgements[tier]
            for tier, path in judged.items()
        }
        chosen = sliced(
            known_topics, split=split, dev_share=dev_share, sample=sample, seed=seed, limit=limit
        )
        known = [topic.qid for topic in known_topics]
        super().__init__(name, chosen, tiers, rows.answers, known=known)

    @cached_property
    def _corpus_files(self) -> list[Path]:
        return published_files(self._corpus, self._corpus_revision)

    @property
    def corpus_fingerprint(self) -> str:
        """Hash of the corpus's files: all that an index depends on."""
        return fingerprint("browsecomp_plus", *map(content_hash, self._corpus_files))

    def documents(self) -> Iterator[Document]:
        """The corpus in the files' order. A doubled docid raises `InputError` too; see
        `reading.distinct`."""
        return distinct(_documents(self._corpus_files), self._corpus)


class _Rows:
    """The rows of the questions, opened: `topics`, `answers` by qid, `judgements` by tier.
    `InputError` for the first row that is not as it should be."""

    def __init__(self, obfuscated: bool, files: Sequence[Path]) -> None:
        self.topics: list[Topic] = []
        self.answers: dict[str, list[str]] = {}
        self.judgements: dict[str, Judgements] = {tier: {} for tier in _TIERS}
        self._obfuscated = obfuscated
        self._canary_is_right = False
        if files and obfuscated:
            seal()  # An absent canary is told before anything is read.
        if files:
            self.topics, self.answers = united_topics(self._read(files), str(files[0]))

    def _read(self, files: Sequence[Path]) -> Iterator[tuple[Place, Topic, list[str]]]:
        for location, row in published_rows(
            files, ("query_id", "query", "answer", *_TIERS.values())
        ):
            topic = Topic(
                identifier(location, row, "query_id"), self._opened(location, row, row, "query")
            )
            for tier, field in _TIERS.items():
                documents = _listed(location, row, field)
                docids = [self._opened(location, row, document, "docid") for document in documents]
                if docids:
                    self.judgements[tier][topic.qid] = dict.fromkeys(docids, 1)
            answer = self._opened(location, row, row, "answer")
            yield location, topic, [answer] if answer else []

    def _opened(
        self, location: Place, row: dict[str, Any], inner: dict[str, Any], field: str
    ) -> str:
        text = text_field(location, inner, field)
        if not self._obfuscated:
            return text
        try:
            opened = seal().open(text)
        except NotSealed:
            raise self._not_opened(location, row, field) from None
        self._canary_is_right |= len(text) >= _TELLING
        return opened

    def _not_opened(self, location: Place, row: dict[str, Any], field: str) -> InputError:
        if self._canary_is_right or any(map(_opens, _strings(row))):
            return InputError(
                f"{location} is damaged: the canary opens other texts, and not its {field!r}",
                do="fetch the file again",
            )
        return InputError(
            f"the canary in ${VARIABLE} does not open {location}",
            valid="the canary string that the benchmark's authors publish with it",
            do="set it to that, or obfuscated=false for rows in plain text",
        )


def _documents(files: Sequence[Path]) -> Iterator[tuple[Place, Document]]:
    for location, row in published_rows(files, ("docid", "title", "text", "url")):
        title = text_field(location, row, "title", default="")
        url = text_field(location, row, "url", default="")
        docid = identifier(location, row, "docid")
        yield location, Document(docid, title, text_field(location, row, "text"), url)


def _listed(location: Place, row: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """The documents of a list, which may be empty or null."""
    if field not in row:
        raise InputError(
            f"{location} has no field {field!r}", valid="its fields: " + ", ".join(row)
        )
    documents = row[field] or []
    if not isinstance(documents, list) or not all(
        isinstance(document, dict) for document in documents
    ):
        raise InputError(f"{location} has a {field!r} that is no list of documents")
    return documents


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, (dict, list)):
        return []
    items = value.values() if isinstance(value, dict) else value
    return [text for item in items for text in _strings(item)]


def _opens(text: str) -> bool:
    try:
        seal().open(text)
    except NotSealed:
        return False
    return len(text) >= _TELLING


def _existing(name: str, path: str) -> Path:
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}", valid=f"a file for {name}, or null")
    return Path(path)
