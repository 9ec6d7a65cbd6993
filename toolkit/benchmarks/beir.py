"""A test collection in the BEIR folder layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, StrictBool
from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.formats import (
    JSON_LINES,
    Id,
    OptionalText,
    Text,
    content_hash,
    distinct_topics,
    lines,
    read_answers,
    read_qrels,
    records,
    rows,
)
from soundingline.toolkit.data import Document, Link, Qrels, Topic
from soundingline.toolkit.errors import FileName, InputError, Runtime, parse
from soundingline.toolkit.files import fingerprint

GOLD = ".gold"
LINKS_HEADER = ["docid", "linked"]
LONGEST_CHECKLIST = 100  # requirements of one question


class BeirRow(TypedDict):
    """A line of `corpus.jsonl`, where `url` may also be a field of `metadata`. pydantic checks a
    `TypedDict` in half the time of a model, and corpora have millions of lines."""

    _id: Id
    title: NotRequired[OptionalText]
    text: Text
    url: NotRequired[OptionalText]


class QueryRow(BaseModel):
    """A line of `queries.jsonl`."""

    qid: Id = Field(alias="_id")
    text: Text
    answers: list[str] | None = None
    checklist: list[Annotated[str, Field(pattern=r"\S")]] | None = Field(
        None, min_length=1, max_length=LONGEST_CHECKLIST
    )
    targets: list[Text] | None = None


class SatisfactionRow(BaseModel):
    """A line of `satisfaction.jsonl`."""

    qid: Id = Field(alias="query-id")
    docid: Id = Field(alias="corpus-id")
    satisfied: list[StrictBool]


class BeirBenchmark(Benchmark):
    """Questions, judgements and corpus of a folder in the BEIR layout (Thakur et al., 2021).

    The folder contains:

    - `corpus.jsonl`: `_id`, `text` and optionally `title`, `url` or `metadata.url`.
    - `queries.jsonl`: `_id`, `text` and optionally `answers`, a list of accepted short answers.
      A question that asks for documents has `checklist`, a list of requirements, or `targets`, a
      list of docids. Targets are the documents with a grade above 0; those of the field count as
      graded 1.
    - `qrels/<split>.tsv`: `query-id, corpus-id, score` under a header line, or the four columns of
      TREC; the tier `evidence`. An optional `qrels/<split>.gold.tsv` is the tier `gold`.
    - `satisfaction.jsonl`, optional: `query-id`, `corpus-id` and `satisfied`, which requirements
      of the checklist the document meets.
    - `links.tsv`, optional: `docid, linked`, which documents a document refers to.

    Files of JSON lines may also have the names `corpus.json`, `corpus.jsonl.gz` or
    `corpus.json.gz`, and so on. Whether a file is compressed is read from its content.

    The constructor reads questions and judgements only; `documents()` streams the corpus.

    Args:
        path: the folder.
        name: of the benchmark; by default the name of the folder.
        split: the questions that the qrels of this split name. None selects every question and the
            union of all qrels.
        origin: whose collection it is and how to get it, for the message about a missing folder.
        notice: see `Benchmark`.
        sets: whether every question asks for documents.
        answers: a file of JSON lines with `qid` and `answers`, a list of accepted short answers,
            which replaces the answers of the questions that it names.
        limit, qids, exclude_own, corpus_share, front_matter, remove_evidence: see `Benchmark`. The
            judgements of all splits decide which documents are judged, so that the splits share a
            corpus.

    Raises:
        InputError: for anything malformed, with the file and the line.
    """

    def __init__(
        self,
        path: FileName[str | Path],
        name: str | None = None,
        split: str | None = "test",
        limit: int | None = None,
        origin: Runtime[str] = "",
        notice: Runtime[str] = "",
        sets: bool = False,
        qids: str | None = None,
        answers: FileName[str | Path | None] = None,
        exclude_own: bool | None = None,
        corpus_share: float = 1.0,
        front_matter: bool = False,
        remove_evidence: bool = False,
    ) -> None:
        self.qids, self.notice = qids, notice
        self.path = Path(path)
        self.split = split
        self.sets = sets
        self._answers = None if answers is None else Path(answers)
        self._corpus = _required(self.path, "corpus", origin)
        self._queries = _required(self.path, "queries", origin)
        self._satisfaction = _json_lines(self.path, "satisfaction")
        links = self.path / "links.tsv"
        self._links = links if links.is_file() else None
        self._qrels = _qrels_files(self.path, split)
        qrels = {tier: read_qrels(files) for tier, files in self._qrels.items()}
        evidence = qrels["evidence"]
        located = list(rows(self._queries, QueryRow))
        topics = ((location, Topic(row.qid, row.text)) for location, row in located)
        chosen = [
            topic
            for topic in distinct_topics(topics, self._queries)
            if split is None or topic.qid in evidence
        ]
        if not chosen:
            raise InputError(
                f"the qrels of split {split!r} in {self.path} name no question of"
                f" {self._queries.name}",
                do="Compare the ids in the two files",
            )
        qids_of_split = {topic.qid for topic in chosen}
        queries = [row for _, row in located]
        checklists = {row.qid: row.checklist for row in queries if row.checklist is not None}
        targets = {
            row.qid: row.targets
            for row in queries
            if row.targets is not None and row.qid in qids_of_split
        }
        for qid, docids in targets.items():
            for docid in docids:
                if evidence.setdefault(qid, {}).setdefault(docid, 1) <= 0:
                    raise InputError(
                        f"document {docid!r} is a target of question {qid!r}, and its qrels grade "
                        f"it {evidence[qid][docid]}",
                        do="Remove it from one of the two files",
                    )
        known_answers = {row.qid: row.answers for row in queries if row.answers is not None}
        super().__init__(
            name or self.path.resolve().name,
            chosen,
            qrels,
            {**known_answers, **read_answers(answers)},
            limit=limit,
            qids=qids,
            sets=sets or {*checklists, *targets},
            checklists=checklists,
            satisfaction=_read_satisfaction(self._satisfaction, checklists),
            exclude_own=exclude_own,
            corpus_share=corpus_share,
            front_matter=front_matter,
            remove_evidence=remove_evidence,
        )

    def _kept(self, qrels: Mapping[str, Qrels]) -> frozenset[str]:
        if self.corpus_share == 1:
            return frozenset()
        every = {tier: read_qrels(files) for tier, files in _qrels_files(self.path, None).items()}
        return super()._kept(qrels) | super()._kept(every)

    def whole_fingerprint(self) -> str:
        """Hash of the corpus file."""
        return content_hash(self._corpus)

    @property
    def fingerprint(self) -> str:
        """Hash of the corpus, the questions, the qrels in use, the satisfied requirements, the file
        of answers, and the selection among the questions."""
        files = [*self._qrels["evidence"], *self._qrels.get("gold", [])]
        files += [path for path in (self._satisfaction, self._answers) if path]
        hashes = [content_hash(path) for path in (self._queries, *files)]
        hashes.insert(0, self.corpus_fingerprint)
        sets = ["sets"] if self.sets else []
        own = ["exclude_own"] if self.exclude_own else []
        listed = [[topic.qid for topic in self.topics]] if self.qids else []
        return fingerprint("beir", *hashes, self.split, self.limit, *sets, *own, *listed)

    def links(self) -> Iterator[Link] | None:
        """The rows of `links.tsv`; None if there is no such file. They are not part of the
        fingerprint: whatever uses them has the fingerprint of their graph."""
        return _read_links(self._links) if self._links else None

    @property
    def links_fingerprint(self) -> str | None:
        return content_hash(self._links) if self._links else None

    def read_documents(self) -> Iterator[Document]:
        """The corpus in the order of the file."""
        for location, record in records(self._corpus):
            metadata = record.get("metadata")
            if isinstance(metadata, dict) and metadata.get("url"):
                record["url"] = metadata["url"]
            do = "rename id to _id, and contents to text" if "contents" in record else ""
            row = parse(BeirRow, record, where=location, do=do)
            yield Document(row["_id"], row.get("title", ""), row["text"], row.get("url", ""))


def _read_satisfaction(
    path: Path | None, checklists: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, tuple[bool, ...]]]:
    """Satisfied requirements by qid and docid, in the order of the question's checklist."""
    satisfaction: dict[str, dict[str, tuple[bool, ...]]] = {}
    for location, row in rows(path, SatisfactionRow) if path else ():
        requirements = len(checklists.get(row.qid, ()))
        if len(row.satisfied) != requirements:
            raise InputError(
                f"{location} does not fit the checklist of question {row.qid!r}",
                valid=f"'satisfied' as a list of {requirements} values, true or false",
            )
        satisfaction.setdefault(row.qid, {})[row.docid] = tuple(row.satisfied)
    return satisfaction


def _read_links(path: Path) -> Iterator[Link]:
    """The rows of a `links.tsv`: two ids with a tab between them, and an optional header line."""
    for number, (location, line) in enumerate(lines(path)):
        ends = [part.strip() for part in line.split("\t")]
        if number == 0 and ends == LINKS_HEADER:
            continue
        if len(ends) != 2 or not all(ends):
            raise InputError(
                f"{location} is not a link", valid="a docid, a tab, and the docid it links to"
            )
        yield Link(*ends)


def _json_lines(folder: Path, stem: str) -> Path | None:
    paths = (folder / f"{stem}{suffix}" for suffix in JSON_LINES)
    return next((path for path in paths if path.is_file()), None)


def _required(folder: Path, stem: str, origin: str) -> Path:
    if not folder.is_dir():
        do = f"It should hold {origin or 'a collection in the BEIR layout'}"
        raise InputError(f"there is no folder {folder}", do=do)
    path = _json_lines(folder, stem)
    if path is None or not path.stat().st_size:
        names = sorted(entry.name for entry in folder.iterdir())
        raise InputError(
            f"{path or folder / f'{stem}.jsonl'} is absent or empty",
            valid="corpus.jsonl, queries.jsonl and qrels/<split>.tsv",
            do=f"The folder holds: {', '.join(names[:12]) or 'nothing'}",
        )
    return path


def _qrels_files(folder: Path, split: str | None) -> dict[str, list[Path]]:
    stems = sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
    splits = [stem for stem in stems if not stem.endswith(GOLD)]
    if split is not None and split not in splits:
        raise InputError(
            f"{folder} has no split {split!r}",
            valid=f"{', '.join(splits) or 'none'}, or null for all questions",
            do="Splits are the files qrels/<split>.tsv",
        )
    chosen = splits if split is None else [split]
    evidence = [folder / "qrels" / f"{name}.tsv" for name in chosen]
    gold = [path.with_name(f"{path.stem}{GOLD}.tsv") for path in evidence]
    present = [path for path in gold if path.is_file()]
    return {"evidence": evidence, **({"gold": present} if present else {})}
