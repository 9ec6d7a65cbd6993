"""Questions with judgements over a corpus, in benchmarks of every format."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from soundingline.toolkit.benchmarks.formats import lines
from soundingline.toolkit.data import Document, Link, Qrels, StatedFact, Topic, front_matter_title
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.files import dump_json, fingerprint

T = TypeVar("T")

SPLITS = ("dev", "test")
QID_LISTS = Path(__file__).resolve().parent / "qids"
# Other collections number questions and documents alike, without any relation between the two.
_QUESTIONS_ARE_DOCUMENTS = frozenset({"arguana", "quora"})
_FRONT_MATTER_VERSION = 2  # to be raised when the same text gives another title or other contents


class Benchmark:
    """Questions, judgements, answers and a corpus. A format is a subclass that reads the first
    three and yields the corpus in `read_documents()`.

    Args:
        name: names the collection in folders and reports.
        topics: the questions that a format selects.
        qrels: grades by tier, qid and docid. The tier `evidence` is required; the tier `gold`
            has the documents that contain the answer itself.
        answers: accepted short answers by qid.
        qids: a list of the questions among which the next arguments select, see `listed_topics`;
            None for all.
        split: `dev` or `test`; None for both. A question belongs to `dev` if the hash of its id is
            in the lower half of all hashes; it keeps its split when others come or go.
        sample: number of questions of the split, drawn with `seed`; None for all. A larger sample
            of one seed contains the smaller ones.
        seed: of the sample.
        limit: number of questions of the sample, the first ones; None for all.
        sets: which questions ask for documents besides those with a checklist: True for all of
            them, or their qids.
        checklists: requirements in words by qid, for questions that ask for documents.
        satisfaction: by qid and docid, whether the document meets each requirement, in the order of
            the checklist.
        exclude_own: whether a document whose id equals the question's is left out of the question's
            ranking before it is measured, as BEIR's evaluation does. None: for ArguAna and Quora,
            whose questions are documents of the corpus (recognised by `name`).
        needed_facts: all facts by qid that an answer rests on, for a simulated reader.
        corpus_share: the expected share of the unjudged documents in the corpus, above 0 and up to
            1: those the hash of whose id is in the first `corpus_share` of all hashes, so that a
            smaller share is part of a larger one. All documents that the `qrels` name stay.
        front_matter: whether a document without a title has the one that the front matter at the
            head of its text states (`front_matter_title`). The text stays as it is, and is indexed
            without the title in front of it where it states the title itself.
        remove_evidence: whether the rankings for a question are without its relevant documents
            (`removed`). Indexes, judgements and fingerprints stay as they are.

    Attributes:
        targets: the documents that a question asks for, by qid: those of the tier `evidence` with a
            grade above 0. They meet every requirement, and there may be none.
        obfuscated: whether a run must obfuscate the texts of the benchmark that it writes
            (`soundingline.toolkit.obfuscation`).
        document_count: the number of documents that the publication of the corpus states, before a
            share of it is taken; None where that is not known.
        in_passages: whether the corpus was released in passages, which `PASSAGE_BREAK` separates
            in the texts (`unit.splitter=released`).
        notice: whose texts and questions these are and under which licence, for the manifests,
            reports and traces of runs on them; empty if nothing is to be said.
        links_fingerprint: a hash of whatever `links()` depends on, under which a graph of them is
            stored; None if the graph must be built at each start.
    """

    name: str
    topics: Sequence[Topic]
    qrels: Mapping[str, Qrels]
    answers: Mapping[str, Sequence[str]]
    targets: Mapping[str, Collection[str]]
    checklists: Mapping[str, Sequence[str]]
    satisfaction: Mapping[str, Mapping[str, Sequence[bool]]]
    needed_facts: Mapping[str, Sequence[StatedFact]]
    obfuscated: bool = False
    notice: str = ""
    document_count: int | None = None
    exclude_own: bool = False
    corpus_share: float = 1.0
    front_matter: bool = False
    remove_evidence: bool = False
    _judged: frozenset[str] = frozenset()
    _corpus_fingerprint: str = ""

    def __init__(
        self,
        name: str,
        topics: Sequence[Topic],
        qrels: Mapping[str, Qrels],
        answers: Mapping[str, Sequence[str]] | None = None,
        *,
        limit: int | None = None,
        qids: str | None = None,
        split: str | None = None,
        sample: int | None = None,
        seed: int = 0,
        sets: bool | Collection[str] = False,
        checklists: Mapping[str, Sequence[str]] | None = None,
        satisfaction: Mapping[str, Mapping[str, Sequence[bool]]] | None = None,
        exclude_own: bool | None = None,
        needed_facts: Mapping[str, Sequence[StatedFact]] | None = None,
        corpus_share: float = 1.0,
        front_matter: bool = False,
        remove_evidence: bool = False,
    ) -> None:
        _check_count("limit", limit)
        _check_count("sample", sample)
        check_split(split)
        self._choose_corpus(corpus_share, front_matter, remove_evidence)
        self._judged = self._kept(qrels)
        self.name = name
        if exclude_own is None:
            exclude_own = not _QUESTIONS_ARE_DOCUMENTS.isdisjoint(name.split("-"))
        self.exclude_own = exclude_own
        self.limit = limit
        self.topics = _part_of(listed_topics(topics, qids), split, sample, seed)[:limit]
        chosen = {topic.qid for topic in self.topics}

        def of_chosen(rows: Mapping[str, T] | None) -> dict[str, T]:
            return {qid: row for qid, row in (rows or {}).items() if qid in chosen}

        self.qrels = {tier: of_chosen(rows) for tier, rows in qrels.items()}
        self.answers, self.needed_facts = of_chosen(answers), of_chosen(needed_facts)
        self.checklists, known = of_chosen(checklists), of_chosen(satisfaction)
        self.satisfaction = {qid: met for qid, met in known.items() if qid in self.checklists}
        evidence = self.qrels["evidence"]
        self.targets = {
            topic.qid: frozenset(
                docid for docid, grade in evidence.get(topic.qid, {}).items() if grade > 0
            )
            for topic in self.topics
            if sets is True or topic.qid in self.checklists or topic.qid in (sets or ())
        }

    def _choose_corpus(self, share: float, front_matter: bool, remove_evidence: bool) -> None:
        check_number("corpus_share", share, gt=0, le=1)
        self.corpus_share, self.front_matter = float(share), front_matter
        self.remove_evidence = remove_evidence

    def _kept(self, qrels: Mapping[str, Qrels]) -> frozenset[str]:
        """The documents that a share of the corpus always has."""
        if self.corpus_share == 1:
            return frozenset()
        return frozenset(
            docid for rows in qrels.values() for grades in rows.values() for docid in grades
        )

    def read_documents(self) -> Iterator[Document]:
        """The whole corpus as the format has it, in an order that does not change. The document
        store refuses an id that occurs twice, and a corpus without any document."""
        raise NotImplementedError(f"{type(self).__name__} has no method read_documents()")

    def documents(self) -> Iterator[Document]:
        """The corpus in the order of `read_documents()`, in the share and with the titles that the
        arguments `corpus_share` and `front_matter` ask for."""
        for document in self.read_documents():
            if self._in_share(document.docid):
                if self.front_matter and not document.title:
                    document = document._replace(title=front_matter_title(document.text))
                yield document

    def _in_share(self, docid: str) -> bool:
        share = self.corpus_share
        return share == 1 or docid in self._judged or _share("corpus", docid) < share

    @property
    def in_passages(self) -> bool:
        return False

    def links(self) -> Iterator[Link] | None:
        """The references between documents; None if the benchmark has none."""
        return None

    @property
    def links_fingerprint(self) -> str | None:
        return None

    def whole_fingerprint(self) -> str:
        """Hash of the whole corpus, `read_documents()`. Reads it once an object."""
        if not self._corpus_fingerprint:
            digest = hashlib.sha256()
            for document in self.read_documents():
                digest.update(dump_json(document, indent=None).encode())
            self._corpus_fingerprint = digest.hexdigest()[:12]
        return self._corpus_fingerprint

    @property
    def corpus_fingerprint(self) -> str:
        """Hash of the documents: all that an index depends on."""
        whole = self.whole_fingerprint()
        titles = ["front_matter", _FRONT_MATTER_VERSION] if self.front_matter else []
        share = [self.corpus_share, sorted(self._judged)] if self.corpus_share < 1 else []
        return fingerprint(whole, *titles, *share) if titles or share else whole

    @property
    def fingerprint(self) -> str:
        """Hash of the documents, and of the selected questions with their answers, judgements,
        checklists, satisfied requirements and targets."""
        sets = [self.checklists, self.satisfaction, sorted(self.targets)] if self.targets else []
        own = ["exclude_own"] if self.exclude_own else []
        return fingerprint(
            self.corpus_fingerprint, self.topics, self.answers, self.qrels, *sets, *own
        )

    @property
    def removed(self) -> dict[str, frozenset[str]]:
        """With `remove_evidence`, the documents by qid that have a grade above 0 in any tier."""
        relevant: dict[str, set[str]] = {}
        for rows in self.qrels.values() if self.remove_evidence else ():
            for qid, grades in rows.items():
                kept = relevant.setdefault(qid, set())
                kept.update(docid for docid, grade in grades.items() if grade > 0)
        return {qid: frozenset(docids) for qid, docids in relevant.items()}

    def unknown_judged(self, docids: Container[str]) -> list[tuple[str, str]]:
        """The judged (qid, docid) pairs of all tiers whose docid is not among `docids` (a set, or a
        store), each pair once. Published qrels have such pairs, and they count as judgements."""
        tiers = self.qrels.values()
        judged = {docid for rows in tiers for grades in rows.values() for docid in grades}
        unknown = {docid for docid in judged if docid not in docids}
        pairs = ((qid, docid) for rows in tiers for qid, grades in rows.items() for docid in grades)
        return list(dict.fromkeys(pair for pair in pairs if pair[1] in unknown))

    def missing_documents(self, docids: Iterable[str]) -> set[str]:
        """Those of the docids that are not in the corpus. Reads the corpus until all are found."""
        missing = set(docids)
        return missing - {docid for docid, _ in self.document_texts(missing)}

    def document_texts(self, docids: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The docid, and the title and text, of those of the documents that are in the corpus, in
        its order. Reads the corpus until all are found."""
        left = set(docids)
        documents = self.documents() if left else iter(())
        for document in documents:
            if document.docid in left:
                left.remove(document.docid)
                yield document.docid, f"{document.title}\n{document.text}"
                if not left:
                    return


def _part_of(
    topics: Sequence[Topic], split: str | None, sample: int | None, seed: int
) -> Sequence[Topic]:
    """The questions of a split, or a sample of them, in their order. `InputError` for a sample of
    more questions than there are, and if a split has none."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r}", valid="an integer")
    chosen = topics
    if split is not None:
        is_dev = split == "dev"
        chosen = [t for t in topics if (_share("split", t.qid) < 0.5) == is_dev]
    if sample is not None:
        if sample > len(chosen):
            valid = f"at most {len(chosen)}, the number of questions"
            raise InputError(f"sample={sample}", valid=valid)
        lowest = set(sorted(chosen, key=lambda t: _share(f"sample {seed}", t.qid))[:sample])
        chosen = [topic for topic in chosen if topic in lowest]
    if topics and not chosen:
        raise InputError(
            f"split={split} of {len(topics)} questions holds none", do="choose another share"
        )
    return chosen


def check_split(split: str | None) -> None:
    """`InputError` for anything but `dev`, `test` or None."""
    if split is not None and split not in SPLITS:
        valid = f"{', '.join(SPLITS)}, or null for all questions"
        raise InputError(f"split={split!r}", valid=valid)


def _share(purpose: str, qid: str) -> float:
    """A number from 0 to 1 that depends on the purpose and the id."""
    digest = hashlib.sha256(f"{purpose}\0{qid}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _check_count(name: str, value: int | None) -> None:
    if value is not None:
        check_int(name, value, do="set it to null for all questions")


def listed_topics(topics: Iterable[Topic], qids: str | Path | None) -> list[Topic]:
    """The questions whose ids a file lists, in the order of `topics`; all without a file. `qids` is
    a file with one id a line (what follows a tab is ignored), or the name of a list of the package,
    such as `pi_serini_q9`. `InputError` if there is no such file, if it lists no id, and for an id
    of no question."""
    topics = list(topics)
    if qids is None:
        return topics
    path = QID_LISTS / f"{qids}.txt"
    if not path.is_file():
        path = Path(qids)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in QID_LISTS.glob("*.txt")))
        raise InputError(
            f"there is no list of questions {str(qids)!r}",
            valid=f"{known}, or a file of ids, one a line",
            do="soundingline slices RUN writes pi_serini_q100.txt and pi_serini_q300.txt",
        )
    listed = {line.partition("\t")[0].strip(): None for _, line in lines(path)}
    known_qids = {topic.qid for topic in topics}
    unknown = [qid for qid in listed if qid not in known_qids]
    if unknown or not listed:
        fault = f"{len(unknown)} ids of no question, such as {unknown[0]!r}" if unknown else "no id"
        raise InputError(f"{path} lists {fault}", valid="ids of the selected questions, one a line")
    return [topic for topic in topics if topic.qid in listed]
