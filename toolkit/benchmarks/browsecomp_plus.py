"""BrowseComp-Plus (Chen et al., 2025) from its published files. See docs/browsecomp-plus.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.benchmarks.published import published_files, published_rows
from toolkit.benchmarks.reading import (
    Judgements,
    Place,
    content_hash,
    distinct,
    read_qrels,
    read_topics,
    text_field,
)
from toolkit.benchmarks.slices import sliced
from toolkit.contracts import Document, Topic
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.sealing import VARIABLE, NotSealed, seal

_TIERS = {"evidence": "evidence_docs", "gold": "gold_docs"}
_TELLING = 24  # characters of base64 that another canary does not open by chance


class BrowseCompPlus:
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
        self.name = name
        self._corpus, self._corpus_revision = corpus, corpus_revision
        self._slice = (split, dev_share, sample, seed, limit)
        self._files = {
            "questions": published_files(questions, revision) if questions else [],
            "topics": _existing("topics", topics),
            "evidence": _existing("qrels", qrels),
            "gold": _existing("gold_qrels", gold_qrels),
        }
        rows = _Rows(obfuscated)
        rows.read(self._files["questions"])
        asked = read_topics(self._files["topics"][0]) if topics else rows.topics
        self.topics: Sequence[Topic] = sliced(
            asked, split=split, dev_share=dev_share, sample=sample, seed=seed, limit=limit
        )
        chosen = {topic.qid: None for topic in self.topics}
        judgements = {
            tier: read_qrels(self._files[tier]) if self._files[tier] else rows.judgements[tier]
            for tier in _TIERS
        }
        self.judgements: Mapping[str, Mapping[str, Mapping[str, int]]] = {
            tier: {qid: grades[qid] for qid in chosen if qid in grades}
            for tier, grades in judgements.items()
        }
        self.answers: Mapping[str, Sequence[str]] = {
            qid: [rows.answers[qid]] for qid in chosen if rows.answers.get(qid)
        }

    @cached_property
    def _corpus_files(self) -> list[Path]:
        return published_files(self._corpus, self._corpus_revision)

    @property
    def corpus_fingerprint(self) -> str:
        """Hash of the corpus's files: all that an index depends on."""
        return fingerprint("browsecomp_plus", *map(content_hash, self._corpus_files))

    @property
    def fingerprint(self) -> str:
        """Hash of all files, as they were published, and of the selection among the questions."""
        files = {group: list(map(content_hash, paths)) for group, paths in self._files.items()}
        return fingerprint(self.corpus_fingerprint, files, self._slice)

    def documents(self) -> Iterator[Document]:
        """The corpus in the files' order. A doubled docid raises `InputError` too; see
        `reading.distinct`."""
        return distinct(_documents(self._corpus_files), self._corpus)


class _Rows:
    """The rows of the questions, opened: `topics`, `answers` by qid, `judgements` by tier."""

    def __init__(self, obfuscated: bool) -> None:
        self.topics: list[Topic] = []
        self.answers: dict[str, str] = {}
        self.judgements: dict[str, Judgements] = {tier: {} for tier in _TIERS}
        self._obfuscated = obfuscated
        self._canary_is_right = False

    def read(self, files: Sequence[Path]) -> None:
        """All rows of the files; `InputError` for the first that is not as it should be."""
        if files and self._obfuscated:
            seal()  # An absent canary is told before anything is read.
        for place, row in published_rows(files, ("query_id", "query", "answer", *_TIERS.values())):
            self._add(place, row)
        if files and not self.topics:
            raise InputError(f"{files[0]} holds no question", valid="at least one")

    def _add(self, place: Place, row: dict[str, Any]) -> None:
        qid = text_field(place, row, "query_id")
        if not qid or qid in self.answers:
            what = f"the qid {qid!r} a second time" if qid else "an empty 'query_id'"
            raise InputError(f"{place} has {what}", valid="one row a question")
        self.topics.append(Topic(qid, self._opened(place, row, row, "query")))
        self.answers[qid] = self._opened(place, row, row, "answer")
        for tier, field in _TIERS.items():
            docids = [
                self._opened(place, row, each, "docid") for each in _listed(place, row, field)
            ]
            if docids:
                self.judgements[tier][qid] = dict.fromkeys(docids, 1)

    def _opened(self, place: Place, row: dict[str, Any], inner: dict[str, Any], field: str) -> str:
        text = text_field(place, inner, field)
        if not self._obfuscated:
            return text
        try:
            opened = seal().open(text)
        except NotSealed:
            raise self._not_opened(place, row, field) from None
        self._canary_is_right |= len(text) >= _TELLING
        return opened

    def _not_opened(self, place: Place, row: dict[str, Any], field: str) -> InputError:
        if self._canary_is_right or any(map(_opens, _strings(row))):
            return InputError(
                f"{place} is damaged: the canary opens other texts, and not its {field!r}",
                do="fetch the file again",
            )
        return InputError(
            f"the canary in ${VARIABLE} does not open {place}",
            valid="the canary string that the benchmark's authors publish with it",
            do="set it to that, or obfuscated=false for rows in plain text",
        )


def _documents(files: Sequence[Path]) -> Iterator[tuple[Place, Document]]:
    for place, row in published_rows(files, ("docid", "title", "text", "url")):
        docid = text_field(place, row, "docid")
        if not docid:
            raise InputError(f"{place} has an empty 'docid'", valid="any non-empty string")
        title = text_field(place, row, "title", default="")
        url = text_field(place, row, "url", default="")
        yield place, Document(docid, title, text_field(place, row, "text"), url)


def _listed(place: Place, row: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """The documents of a list, which may be empty or null."""
    if field not in row:
        raise InputError(f"{place} has no field {field!r}", valid="its fields: " + ", ".join(row))
    documents = row[field] or []
    if not isinstance(documents, list) or not all(isinstance(each, dict) for each in documents):
        raise InputError(f"{place} has a {field!r} that is no list of documents")
    return documents


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in _strings(item)]


def _opens(text: str) -> bool:
    try:
        seal().open(text)
    except NotSealed:
        return False
    return len(text) >= _TELLING


def _existing(name: str, path: str | None) -> list[Path]:
    if path is None:
        return []
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}", valid=f"a file for {name}, or null")
    return [Path(path)]
