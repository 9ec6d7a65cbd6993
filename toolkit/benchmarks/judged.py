"""What benchmarks of every format share: selected questions with judgements over a corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toolkit.benchmarks.reading import Judgements
from toolkit.benchmarks.slices import check_limit
from toolkit.contracts import Benchmark, Document, Topic
from toolkit.files import dump_json, fingerprint


class BenchmarkReport(NamedTuple):
    """What a pass over the corpus and the judgements finds; nothing here is an error.

    `unknown_judged` are judged (qid, docid) pairs whose document the corpus lacks,
    `unknown_questions` qids of the judgements that no question has, `unjudged` questions without
    any judgement.
    """

    documents: int
    questions: int
    judged: int
    unjudged: Sequence[str]
    unknown_judged: Sequence[tuple[str, str]]
    unknown_questions: Sequence[str]


class JudgedBenchmark:
    """A `Benchmark` of questions, answers and judgements that have been read. A format is a
    subclass that reads them and yields `documents()`.

    `topics` are all questions that a format selects, and `limit` keeps the first ones. `tiers`
    gives grades by qid and docid: `evidence`, and perhaps `gold`. `judgements` and `answers` are
    those of the questions kept, zero grades included. `known` are the qids of all questions of the
    collection, where `topics` is a part of them.

    Questions that ask for documents: those with a checklist, those that `sets` names, and all of
    them where `sets` is True. Their `targets` are the documents of the tier `evidence` with a grade
    above 0. See `contracts.DocumentSets` for `checklists` and `satisfaction`.
    """

    def __init__(
        self,
        name: str,
        topics: Sequence[Topic],
        tiers: Mapping[str, Judgements],
        answers: Mapping[str, Sequence[str]] | None = None,
        *,
        limit: int | None = None,
        known: Iterable[str] | None = None,
        sets: bool | Collection[str] = False,
        checklists: Mapping[str, Sequence[str]] | None = None,
        satisfaction: Mapping[str, Mapping[str, Sequence[bool]]] | None = None,
    ) -> None:
        self.name = name
        check_limit("limit", limit)
        self.limit = limit
        self.topics: Sequence[Topic] = list(topics[: self.limit])
        chosen = {topic.qid for topic in self.topics}
        self.judgements: Mapping[str, Mapping[str, Mapping[str, int]]] = {
            tier: {qid: grades for qid, grades in rows.items() if qid in chosen}
            for tier, rows in tiers.items()
        }
        self.answers: Mapping[str, Sequence[str]] = {
            qid: texts for qid, texts in (answers or {}).items() if qid in chosen
        }
        self.checklists = {qid: texts for qid, texts in (checklists or {}).items() if qid in chosen}
        self.satisfaction = {
            qid: rows for qid, rows in (satisfaction or {}).items() if qid in self.checklists
        }
        self.targets = {
            topic.qid: _relevant(self.judgements["evidence"].get(topic.qid, {}))
            for topic in self.topics
            if sets is True or topic.qid in self.checklists or topic.qid in (sets or ())
        }
        everyone = {topic.qid for topic in topics} if known is None else set(known)
        named = {qid: None for rows in tiers.values() for qid in rows}
        self.unknown_questions = [qid for qid in named if qid not in everyone]
        self._corpus_fingerprint = ""

    def documents(self) -> Iterator[Document]:
        """The corpus, in an order that does not change. `reading.distinct` refuses
        doubled ids."""
        raise NotImplementedError

    @property
    def corpus_fingerprint(self) -> str:
        """Hash of the documents: all that an index depends on. Reads them once an object."""
        if not self._corpus_fingerprint:
            self._corpus_fingerprint = documents_fingerprint(self.documents())
        return self._corpus_fingerprint

    @property
    def fingerprint(self) -> str:
        """Hash of the documents, the questions kept, their answers and their judgements, and of
        what is known of the documents that they ask for."""
        sets = [self.checklists, self.satisfaction, sorted(self.targets)] if self.targets else []
        return fingerprint(
            self.corpus_fingerprint, self.topics, self.answers, self.judgements, *sets
        )

    @property
    def unjudged(self) -> list[str]:
        """Selected questions without any judgement."""
        evidence = self.judgements["evidence"]
        return [topic.qid for topic in self.topics if not evidence.get(topic.qid)]

    def unknown_judged(self, docids: Container[str]) -> list[tuple[str, str]]:
        """The (qid, docid) pairs judged although the docid is not among `docids` (a set, a store's
        or an index's ids), a pair once. Published qrels have such ids; they are kept."""
        return unknown_judged(self.judgements, docids)

    def report(self) -> BenchmarkReport:
        """Counts of what does not fit together. Reads the whole corpus, and so also checks it."""
        tiers = self.judgements.values()
        judged = {docid for rows in tiers for grades in rows.values() for docid in grades}
        documents, present = 0, set()
        for document in self.documents():
            documents += 1
            if document.docid in judged:
                present.add(document.docid)
        return BenchmarkReport(
            documents=documents,
            questions=len(self.topics),
            judged=len(self.topics) - len(self.unjudged),
            unjudged=self.unjudged,
            unknown_judged=self.unknown_judged(present),
            unknown_questions=self.unknown_questions,
        )


def _relevant(grades: Mapping[str, int]) -> frozenset[str]:
    return frozenset(docid for docid, grade in grades.items() if grade > 0)


def documents_fingerprint(documents: Iterable[Document]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the documents' ids, titles, texts and URLs, in
    their order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(dump_json(document, indent=None).encode(errors="surrogatepass"))
    return digest.hexdigest()[:12]


def unknown_judged(
    judgements: Mapping[str, Mapping[str, Mapping[str, int]]], docids: Container[str]
) -> list[tuple[str, str]]:
    """The (qid, docid) pairs of any tier whose docid is not among `docids`, a pair once. Each docid
    is looked up once."""
    pairs = {
        (qid, docid): None
        for rows in judgements.values()
        for qid, grades in rows.items()
        for docid in grades
    }
    unknown = {docid for docid in {docid for _, docid in pairs} if docid not in docids}
    return [pair for pair in pairs if pair[1] in unknown]


def absent_documents(benchmark: Benchmark, docids: Collection[str]) -> set[str]:
    """Those of the docids that the corpus lacks. Asks the benchmark's `has_document` where it has
    one, and reads the corpus otherwise, up to the last of the documents looked for."""
    has_document = getattr(benchmark, "has_document", None)
    if has_document is not None:
        return {docid for docid in docids if not has_document(docid)}
    absent = set(docids)
    documents = benchmark.documents() if absent else iter(())
    for document in documents:
        absent.discard(document.docid)
        if not absent:
            break
    return absent


def texts_of(benchmark: Benchmark, docids: Collection[str]) -> Iterator[tuple[str, str]]:
    """Docid, and title and text, of those of the documents that the corpus has, in its order. Reads
    the corpus up to the last of them."""
    left = set(docids)
    documents = benchmark.documents() if left else iter(())
    for document in documents:
        if document.docid in left:
            left.remove(document.docid)
            yield document.docid, f"{document.title}\n{document.text}"
            if not left:
                return
