"""The fictional world as a benchmark: documents, questions, judgements, answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from soundingline.toolkit.benchmarks.benchmark import SPLITS, Benchmark, check_split
from soundingline.toolkit.benchmarks.fictional.pages import Articles, docid, document_number
from soundingline.toolkit.benchmarks.fictional.questions import (
    QuestionMaker,
    Satisfaction,
    SetQuestionMaker,
    Wording,
    answers,
    checklist,
    needed_attributes,
    needed_facts,
    set_wording,
)
from soundingline.toolkit.benchmarks.fictional.world import (
    PERIOD,
    Entity,
    Fact,
    Random,
    World,
    hash64,
    splitmix64,
)
from soundingline.toolkit.data import Document, Link, Qrels, Topic
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.files import fingerprint

VERSION = 1  # of the generator: to be raised when the same settings give another world
SETS_VERSION = 1  # of the questions that ask for documents, to be raised in the same case
SETS, SET_QUESTIONS = "sets", 100
LINK_RATE = 0.5  # share of the references between pages that become links
LINK_SEED = 1
FEWEST, MOST = 4 * PERIOD, 5_000_000


@dataclass(frozen=True)
class Worded:
    """A question with its id, its wording, and its accepted answers or, if it asks for documents,
    its checklist."""

    qid: str
    text: str
    question: Any  # a `Question` or a `SetQuestion`
    answers: Sequence[str] = ()
    checklist: Sequence[str] = ()


class FictionalWorld(Benchmark):
    """A generated world, one web page for each entity, and chained questions about it. The same
    arguments give the same bytes in every process and on every platform. No document stays in
    memory once it has been yielded.

    Args:
        documents: number of entities, and of pages.
        questions: number of questions before `split` selects, or `sets` for 100 questions that ask
            for documents (`sets:50` for 50 of them), which do not depend on `hops` and `clues`.
        hops: documents that each question chains, 1 to 4.
        seed: of everything.
        median_words, p90_words: median and 90th percentile of the log-normal lengths.
        twins: share of entities that are near copies of another one, 0 to 0.5.
        clues: most clues about one entity of a question, 1 to 5.
        obfuscation: share of clue phrases and values in other words than those of the pages.
        yes_no: whether some questions ask for yes or no; False: all ask for a name, a number or a
            year.
        repetition: `(scale, exponent, deviation)`: an article of so many words states each of its
            facts as often as a log-normal law with the median `scale * words ** exponent` gives,
            and the standard deviation `deviation` of the logarithm. None: once.
        told: `(mentions, facts)`: the share of the mentions of another entity after which a page
            states facts about it, and the share of that entity's facts that it states. None: a page
            states no fact about another entity.
        name: of the benchmark.
        split: `dev` or `test` for half of the questions each, None for all. No entity that a
            question is about and no entity of an answer occurs in both.
        qids, corpus_share, remove_evidence: see `Benchmark`. A share has the pages of the questions
            of both splits.

    `qrels["evidence"]` are the articles about the entities of a question's path and, with `told`,
    the other pages that state one of its facts; `qrels["gold"]` are those that state the answer.
    Each has grade 1.

    Raises `InputError` for arguments out of range and, when the questions are first read, if the
    world is too small for so many.
    """

    def __init__(
        self,
        documents: int = 2000,
        questions: int | str = SET_QUESTIONS,
        hops: int = 2,
        seed: int = 7,
        median_words: int = 1500,
        p90_words: int = 10000,
        twins: float = 0.2,
        clues: int = 4,
        obfuscation: float = 0.5,
        yes_no: bool = True,
        repetition: Sequence[float] | None = None,
        told: Sequence[float] | None = None,
        name: str = "fictional",
        split: str | None = None,
        qids: str | None = None,
        corpus_share: float = 1.0,
        remove_evidence: bool = False,
    ) -> None:
        check_int("documents", documents, ge=FEWEST, le=MOST)
        self.asks_sets, count = _asked(questions)
        check_int("questions", count, le=max(1, documents // 2))
        check_int("hops", hops, le=4)
        check_int("clues", clues, le=5)
        check_int("seed", seed, ge=0, le=2**63 - 1)
        check_int("median_words", median_words, ge=20, le=50_000)
        check_int("p90_words", p90_words, ge=median_words + 1, le=100_000)
        check_number("twins", twins, le=0.5)
        check_number("obfuscation", obfuscation, le=1)
        check_split(split)
        self.size, self.count, self.hops, self.clues = documents, count, hops, clues
        self.document_count = documents
        self.seed, self.median_words, self.p90_words = seed, median_words, p90_words
        self.twins, self.obfuscation = float(twins), float(obfuscation)
        self.name, self.split, self.qids = name, split, qids
        self._choose_corpus(corpus_share, False, remove_evidence)
        self.world = World(self.size, self.seed, self.twins)
        self.yes_no, shares = yes_no, {"mentions": {"le": 1}, "facts": {"le": 1}}
        law = {"scale": {"gt": 0, "le": 10}, "exponent": {"le": 1}, "deviation": {"le": 2}}
        self.repetition = _checked("repetition", repetition, **law)
        self.told = _checked("told", told, **shares)
        lengths = (self.median_words, self.p90_words)
        self._articles = Articles(self.world, *lengths, self.repetition, self.told)

    def whole_fingerprint(self) -> str:
        """Hash of the settings that the pages depend on."""
        lengths = (self.median_words, self.p90_words, *(self.repetition or ()))
        settings = [VERSION, self.size, self.seed, self.twins, lengths]
        settings += [self.told] if self.told else []
        return fingerprint("fictional", *settings)

    @property
    def fingerprint(self) -> str:
        """Hash of all settings that documents, questions and judgements depend on."""
        settings: list[object] = [self.count, self.hops, self.clues]
        if self.asks_sets:
            settings = ["sets", SETS_VERSION, self.count]
        settings += [self.obfuscation, self.split, *([] if self.yes_no else ["open"])]
        settings += [[topic.qid for topic in self.topics]] if self.qids else []
        return fingerprint(self.corpus_fingerprint, settings)

    def read_documents(self) -> Iterator[Document]:
        return map(self._articles.document, range(self.size))

    def _kept(self, qrels: Mapping[str, Qrels]) -> frozenset[str]:
        if self.corpus_share == 1:
            return frozenset()
        return frozenset(name for each in self._every_question for name in self._evidence(each))

    def _evidence(self, worded: Worded) -> list[str]:
        """The documents that a question asks for, or those on its path and the others that state
        one of its facts."""
        if self.asks_sets:
            return sorted(self._set_maker.targets(worded.question))
        path = [docid(self.world.index(entity)) for entity in worded.question.path]
        return [*path, *self._telling(needed_attributes(worded.question))]

    def _gold(self, worded: Worded) -> list[str]:
        """The documents that state the answer."""
        about = docid(self.world.index(worded.question.path[-1]))
        return [about, *self._telling(needed_attributes(worded.question)[-1:])]

    def _telling(self, needed: Iterable[tuple[Entity, str]]) -> list[str]:
        """The pages that state one of these facts about another entity, each once."""
        numbers = {number for fact in needed for number in self._tellers[fact]}
        return [docid(number) for number in sorted(numbers)]

    @cached_property
    def _tellers(self) -> Mapping[tuple[Entity, str], list[int]]:
        """The numbers of the pages that state a fact about another entity."""
        tellers = defaultdict[tuple[Entity, str], list[int]](list)
        for index in range(self.size if self.told else 0):
            for other, attributes in self._articles.told(index):
                for attribute in attributes:
                    tellers[self.world.entity(other), attribute.name].append(index)
        return tellers

    @cached_property
    def _judged(self) -> frozenset[str]:  # type: ignore[override]
        return self._kept({})

    def facts(self, docid: str) -> list[Fact]:
        """All facts that a document states about its entity. Raises `KeyError` for an unknown
        docid."""
        return self.world.facts(self.world.entity(document_number(docid, self.size)))

    def missing_documents(self, docids: Iterable[str]) -> set[str]:
        """Those of the docids that are not in the corpus. Makes no document."""
        missing = set(docids)
        for name in tuple(missing):
            with suppress(KeyError):
                document_number(name, self.size)
                if self._in_share(name):
                    missing.remove(name)
        return missing

    def links(self) -> Iterator[Link]:
        """A random part of all pairs (page, page that it names), in the order of the documents,
        each once. Whether a link exists is a function of its two ends and the world's seed.

        All links together would solve every question that names an entity, so that some are left
        out. Their share was fixed before any retrieval was run on the links; it was not tuned.
        """
        key = hash64("links", LINK_SEED, self.seed)
        threshold = round(LINK_RATE * (1 << 20))
        for source in range(self.size):
            for target in self._articles.named(source):
                if splitmix64(key ^ (source * self.size + target)) >> 44 < threshold:
                    yield Link(docid(source), docid(target))

    @property
    def links_fingerprint(self) -> str:
        """Hash of all settings that the links depend on."""
        return fingerprint(self.corpus_fingerprint, LINK_RATE, LINK_SEED)

    @cached_property
    def worded_questions(self) -> Sequence[Worded]:
        """The questions of the split with their formal shapes. Made at their first use."""
        every = self._every_question
        return every if self.split is None else every[SPLITS.index(self.split) :: 2]

    @cached_property
    def _every_question(self) -> Sequence[Worded]:
        world, worded = self.world, []
        if self.asks_sets:
            sort, remedy = "that ask for documents", "or more documents"
            for number, asked in enumerate(self._set_maker.questions(self.count), start=1):
                random = Random("set wording", self.seed, number)
                text, items = set_wording(asked, self.obfuscation, random), checklist(asked)
                worded.append(Worded(f"s{number:04d}", text, asked, checklist=items))
        else:
            sort, remedy = f"of {self.hops} hops", "more documents, or more clues"
            maker = QuestionMaker(world, self.hops, self.clues, self.yes_no)
            for number, question in enumerate(maker.questions(self.count), start=1):
                random = Random("wording", self.seed, self.hops, number)
                text = Wording(question, self.obfuscation, random).text()
                worded.append(Worded(f"q{number:04d}", text, question, answers(world, question)))
        if len(worded) < self.count:
            raise InputError(
                f"{self.size} documents hold only {len(worded)} of {self.count} questions {sort}",
                do=f"Ask for fewer questions, {remedy}",
            )
        return worded

    @cached_property
    def _set_maker(self) -> SetQuestionMaker:
        return SetQuestionMaker(self.world)

    @cached_property
    def _judged_questions(self) -> Benchmark:
        """The questions with all that is known of them, which index building does not need."""
        worded = self.worded_questions
        sets, chained = (worded, []) if self.asks_sets else ([], worded)
        documents = {each.qid: self._evidence(each) for each in worded}
        qrels = {"evidence": {qid: dict.fromkeys(docids, 1) for qid, docids in documents.items()}}
        if not self.asks_sets:
            qrels["gold"] = {each.qid: dict.fromkeys(self._gold(each), 1) for each in worded}
        return Benchmark(
            self.name,
            [Topic(each.qid, each.text) for each in worded],
            qrels,
            {each.qid: each.answers for each in chained},
            qids=self.qids,
            checklists={each.qid: each.checklist for each in sets},
            satisfaction={each.qid: Satisfaction(self._set_maker, each.question) for each in sets},
            needed_facts={each.qid: needed_facts(self.world, each.question) for each in chained},
        )

    topics: Any = cached_property(attrgetter("_judged_questions.topics"))
    qrels: Any = cached_property(attrgetter("_judged_questions.qrels"))
    answers: Any = cached_property(attrgetter("_judged_questions.answers"))
    targets: Any = cached_property(attrgetter("_judged_questions.targets"))
    checklists: Any = cached_property(attrgetter("_judged_questions.checklists"))
    satisfaction: Any = cached_property(attrgetter("_judged_questions.satisfaction"))
    needed_facts: Any = cached_property(attrgetter("_judged_questions.needed_facts"))


def _checked(
    name: str, values: Sequence[float] | None, **parts: Mapping[str, Any]
) -> tuple[float, ...] | None:
    """The numbers of an argument, by the names of its parts with their bounds; None for None."""
    if values is None:
        return None
    if isinstance(values, str) or len(values) != len(parts):
        raise InputError(f"{name}={values!r}", valid=f"[{', '.join(parts)}], or null for none")
    for (part, bounds), value in zip(parts.items(), values, strict=True):
        check_number(f"{name}'s {part}", value, **bounds)
    return tuple(map(float, values))


def _asked(questions: int | str) -> tuple[bool, int]:
    """Whether questions ask for documents, and how many there are."""
    if not isinstance(questions, str):
        return False, questions
    kind, colon, count = questions.partition(":")
    if kind != SETS or (colon and not count.isdecimal()):
        raise InputError(
            f"questions={questions!r}", valid="a number, or sets, or sets:50 for 50 of those"
        )
    return True, int(count) if colon else SET_QUESTIONS
