"""A test collection in the BEIR folder layout. What the numbers mean belongs to evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.benchmarks.judged import JudgedBenchmark
from toolkit.benchmarks.links import read_links
from toolkit.benchmarks.reading import (
    Judgements,
    Place,
    content_hash,
    distinct,
    identifier,
    read_qrels,
    read_queries,
    records,
    text_field,
)
from toolkit.benchmarks.sets import AskedSets, read_asked_sets, read_satisfaction, with_targets
from toolkit.contracts import Document, Link, Topic
from toolkit.errors import InputError
from toolkit.files import fingerprint

GOLD = ".gold"


class BeirBenchmark(JudgedBenchmark):
    """Questions, judgements and corpus of a folder in the BEIR layout.

    `corpus.jsonl` holds `_id, text` and optionally `title`, `url` or `metadata.url`;
    `queries.jsonl` holds `_id, text` and optionally `answers`, a list of accepted short answers;
    `qrels/<split>.tsv` holds `query-id, corpus-id, score` under a header line (TREC's four columns
    are read too) and gives the tier `evidence`; `qrels/<split>.gold.tsv`, where there is one, gives
    the tier `gold`.

    Questions that ask for documents have `checklist`, a list of requirements, or `targets`, a list
    of docids, in `queries.jsonl`; with `sets` every question asks for documents. Targets are the
    documents with a grade above 0; those of the field count as graded 1. `satisfaction.jsonl`
    (`query-id, corpus-id, satisfied`) tells which requirements a document meets, and `links.tsv`
    (`docid, linked`) which documents a document refers to; both are optional.

    A named `split` selects the questions that its qrels name; `split=None` selects every question
    and the union of all qrels. Questions keep the order of queries.jsonl, and `limit` keeps the
    first ones. `judgements` are those of the selected questions, zero grades included. `name` is
    the folder's unless given. `origin` is told where the folder is missing: whose collection it is
    and how to get it.

    Constructing reads questions and judgements only; `documents()` streams the corpus. Anything
    malformed raises `InputError` with the file and the line.
    """

    def __init__(
        self,
        path: str | Path,
        name: str | None = None,
        split: str | None = "test",
        limit: int | None = None,
        origin: str = "",
        sets: bool = False,
    ) -> None:
        self.path = Path(path)
        self.split = split
        self.sets = sets
        self._corpus = _required(self.path, "corpus.jsonl", origin)
        self._queries = _required(self.path, "queries.jsonl", origin)
        self._qrels = _qrels_files(self.path, split)
        tiers = {tier: read_qrels(files) for tier, files in self._qrels.items()}
        topics, answers = read_queries(self._queries)
        asked_sets = read_asked_sets(self._queries)
        tiers["evidence"] = with_targets(
            tiers["evidence"], self._in_split(asked_sets, tiers["evidence"])
        )
        self._satisfaction = self._optional("satisfaction.jsonl")
        self._links = self._optional("links.tsv")
        super().__init__(
            name or self.path.resolve().name,
            self._selected(topics, tiers["evidence"]),
            tiers,
            answers,
            limit=limit,
            known=[topic.qid for topic in topics],
            sets=sets or asked_sets.qids,
            checklists=asked_sets.checklists,
            satisfaction=read_satisfaction(self._satisfaction, asked_sets.checklists)
            if self._satisfaction
            else None,
        )

    def _in_split(self, asked_sets: AskedSets, evidence: Judgements) -> Mapping[str, Sequence[str]]:
        """The targets of the questions that the split selects; qrels alone name those."""
        chosen = (
            asked_sets.targets if self.split is None else set(evidence) & set(asked_sets.targets)
        )
        return {qid: asked_sets.targets[qid] for qid in chosen}

    def _optional(self, name: str) -> Path | None:
        path = self.path / name
        return path if path.is_file() else None

    def _selected(self, topics: Sequence[Topic], evidence: Judgements) -> Sequence[Topic]:
        if self.split is not None:
            topics = [topic for topic in topics if topic.qid in evidence]
        if not topics:
            raise InputError(
                f"the qrels of split {self.split!r} in {self.path} name no question of"
                f" {self._queries.name}",
                do="Compare the ids in the two files",
            )
        return topics

    @property
    def corpus_fingerprint(self) -> str:
        """Hash of the corpus file: all that an index depends on."""
        return content_hash(self._corpus)

    @property
    def fingerprint(self) -> str:
        """Hash of the corpus, the questions, the qrels in use and what is known of requirements,
        and of the selection among the questions."""
        files = [*self._qrels["evidence"], *self._qrels.get("gold", [])]
        files += [self._satisfaction] if self._satisfaction else []
        hashes = [content_hash(path) for path in (self._corpus, self._queries, *files)]
        sets = ["sets"] if self.sets else []
        return fingerprint("beir", *hashes, self.split, self.limit, *sets)

    def links(self) -> Iterator[Link] | None:
        """The rows of `links.tsv`; None where there is no such file. They are no part of the
        fingerprint: what uses them has the fingerprint of their graph."""
        return iter(read_links(self._links)) if self._links else None

    @property
    def links_fingerprint(self) -> str | None:
        """Hash of the file of links; None where there is none."""
        return content_hash(self._links) if self._links else None

    def documents(self) -> Iterator[Document]:
        """The corpus in the file's order."""
        return distinct(self._documents(), self._corpus)

    def _documents(self) -> Iterator[tuple[Place, Document]]:
        for location, record in records(self._corpus):
            docid = identifier(location, record)
            title = text_field(location, record, "title", default="")
            text = text_field(location, record, "text")
            yield location, Document(docid, title, text, _url(location, record))


def _required(folder: Path, name: str, origin: str) -> Path:
    if not folder.is_dir():
        if origin:
            raise InputError(f"there is no folder {folder}", do=f"It should hold {origin}")
        beside = _listing(folder.parent) if folder.parent.is_dir() else "no such parent folder"
        raise InputError(
            f"there is no folder {folder}", valid=f"beside it: {beside}", do="Give a BEIR folder"
        )
    path = folder / name
    if not path.is_file():
        raise InputError(
            f"{folder} has no {name}",
            valid="corpus.jsonl, queries.jsonl and qrels/<split>.tsv",
            do=f"It holds: {_listing(folder)}; splits: {_named(_splits(folder))}",
        )
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty", valid="one JSON object a line")
    return path


def _listing(folder: Path, most: int = 12) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") or "nothing"


def _splits(folder: Path) -> list[str]:
    return sorted(
        path.stem for path in (folder / "qrels").glob("*.tsv") if not path.stem.endswith(GOLD)
    )


def _named(splits: Sequence[str]) -> str:
    return ", ".join(splits) or "none"


def _qrels_files(folder: Path, split: str | None) -> dict[str, list[Path]]:
    splits = _splits(folder)
    if split is not None and split not in splits:
        raise InputError(
            f"{folder} has no split {split!r}",
            valid=f"{_named(splits)}, or null for all questions",
            do="Splits are the files qrels/<split>.tsv",
        )
    chosen = splits if split is None else [split]
    evidence = [folder / "qrels" / f"{name}.tsv" for name in chosen]
    gold = [path.with_name(f"{path.stem}{GOLD}.tsv") for path in evidence]
    present = [path for path in gold if path.is_file()]
    return {"evidence": evidence, **({"gold": present} if present else {})}


def _url(location: Place, record: dict[str, Any]) -> str:
    metadata = record.get("metadata")
    if isinstance(metadata, dict) and metadata.get("url"):
        return text_field(location, metadata, "url", default="")
    return text_field(location, record, "url", default="")
