"""The fictional world as a benchmark: documents, questions, judgements, answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from soundingline.toolkit.benchmarks.benchmark import SPLITS, Benchmark
from soundingline.toolkit.benchmarks.fictional.pages import (
    LINK_RATE,
    LINK_SEED,
    Articles,
    Repetition,
    docid,
    document_number,
)
from soundingline.toolkit.benchmarks.fictional.questions import (
    Question,
    QuestionMaker,
    Wording,
    answers,
    needed_facts,
)
from soundingline.toolkit.benchmarks.fictional.set_questions import (
    Satisfaction,
    SetQuestion,
    SetQuestionMaker,
    checklist,
    set_wording,
)
from soundingline.toolkit.benchmarks.fictional.world import PERIOD, Fact, Random, World
from soundingline.toolkit.data import Document, Link, Qrels, Topic
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.files import fingerprint

VERSION = 1  # of the generator: to be raised when the same settings give another world
SETS_VERSION = 1  # of the questions that ask for documents, likewise
SETS, SET_QUESTIONS = "sets", 100
FEWEST, MOST = 4 * PERIOD, 5_000_000
W = TypeVar("W")


class WordedQuestion(NamedTuple):
    """A question with its id, its wording and its accepted answers."""

    qid: str
    text: str
    answers: Sequence[str]
    question: Question


class WordedSetQuestion(NamedTuple):
    """A question that asks for documents, with its id, its wording and its checklist."""

    qid: str
    text: str
    checklist: Sequence[str]
    question: SetQuestion


class FictionalWorld(Benchmark):
    """A generated world, one web page for each entity, and chained questions about it.

    Everything is a function of the arguments: the same arguments give the same bytes in every
    process and on every platform. No document stays in memory once it has been yielded.

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
        name: of the benchmark.
        split: `dev` or `test` for half of the questions each, None for all. No entity that a
            question is about and no entity of an answer occurs in both.
        qids: a list of the questions to select, see `Benchmark`.
        corpus_share: see `Benchmark`. The pages of the questions of both splits are kept.

    `qrels["evidence"]` are all documents on the path of a question, `qrels["gold"]` the
    one that states the answer; each has grade 1.

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
        name: str = "fictional",
        split: str | None = None,
        qids: str | None = None,
        corpus_share: float = 1.0,
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
        if split is not None and split not in SPLITS:
            raise InputError(
                f"split={split!r}", valid=f"{', '.join(SPLITS)}, or null for all questions"
            )
        self.size, self.count, self.hops, self.clues = documents, count, hops, clues
        self.seed, self.median_words, self.p90_words = seed, median_words, p90_words
        self.twins, self.obfuscation = float(twins), float(obfuscation)
        self.name = name
        self.split = split
        self.qids = qids
        self._choose_corpus(corpus_share, front_matter=False)
        self.world = World(self.size, self.seed, self.twins)
        self.yes_no, self.repetition = yes_no, _repetition(repetition)
        self._articles = Articles(self.world, self.median_words, self.p90_words, self.repetition)

    def whole_fingerprint(self) -> str:
        """Hash of the settings that the pages depend on."""
        lengths = (self.median_words, self.p90_words, *(self.repetition or ()))
        return fingerprint("fictional", VERSION, self.size, self.seed, self.twins, lengths)

    @property
    def fingerprint(self) -> str:
        """Hash of all settings that documents, questions and judgements depend on."""
        settings: tuple[object, ...] = (self.count, self.hops, self.clues)
        if self.asks_sets:
            settings = ("sets", SETS_VERSION, self.count)
        settings = (*settings, self.obfuscation, self.split)
        if not self.yes_no:
            settings = (*settings, "open")
        if self.qids:
            settings = (*settings, [topic.qid for topic in self.topics])
        return fingerprint(self.corpus_fingerprint, settings)

    def read_documents(self, start: int = 0, stop: int | None = None) -> Iterator[Document]:
        for index in range(start, self.size if stop is None else min(stop, self.size)):
            yield self._articles.document(index)

    def documents(self, start: int = 0, stop: int | None = None) -> Iterator[Document]:
        """Documents number `start` (from 0) up to `stop` (not included; None for all), in order, as
        far as they are in the share of the corpus. Ranges are independent of each other, so
        processes may share the work."""
        pages = self.read_documents(start, stop)
        return (page for page in pages if self._in_share(page.docid))

    def _kept(self, qrels: Mapping[str, Qrels]) -> frozenset[str]:
        if self.corpus_share == 1:
            return frozenset()
        if self.asks_sets:
            targets = (self._set_maker.targets(each.question) for each in self._every_set)
            return frozenset(name for docids in targets for name in docids)
        entities = {entity for each in self._every_question for entity in each.question.path}
        return frozenset(docid(self.world.index(entity)) for entity in entities)

    @cached_property
    def _judged(self) -> frozenset[str]:  # type: ignore[override]
        return self._kept({})

    def statistics(self, sample: int = 500) -> dict[str, float]:
        """Counts and lengths of `sample` documents spread over the corpus (all, if it has fewer).

        `words` are runs of letters and digits; `mean`, `median`, `p90`, `max` are of words a
        document; `distinct` and `singletons` count the sample's different words and those that
        occur once; `expected_words` scales the mean to the whole corpus.
        """
        check_int("sample", sample)
        return self._articles.statistics(min(sample, self.size))

    def words(self, docid: str) -> int:
        """The intended length of a document; a short page is longer, as its facts need."""
        return self._articles.words(document_number(docid, self.size))

    def facts(self, docid: str) -> list[Fact]:
        """All facts that a document states about its entity. Raises `KeyError` for an unknown
        docid."""
        return self.world.facts(self.world.entity(document_number(docid, self.size)))

    def missing_documents(self, docids: Iterable[str]) -> set[str]:
        """Those of the docids that are not in the corpus. Makes no document."""
        return {name for name in docids if not self.has_document(name)}

    def has_document(self, docid: str) -> bool:
        """Whether there is a document of this id."""
        try:
            return document_number(docid, self.size) >= 0 and self._in_share(docid)
        except KeyError:
            return False

    def links(self) -> Iterator[Link]:
        """A random part of the pairs (page, page that it names); see `Articles.links`."""
        return self._articles.links()

    @property
    def links_fingerprint(self) -> str:
        """Hash of all settings that the links depend on."""
        return fingerprint(self.corpus_fingerprint, LINK_RATE, LINK_SEED)

    @cached_property
    def worded_questions(self) -> Sequence[WordedQuestion]:
        """The chained questions of the split, with their formal shapes. Made at their first use."""
        return self._of_split(self._every_question)

    @cached_property
    def _every_question(self) -> Sequence[WordedQuestion]:
        maker = QuestionMaker(self.world, self.hops, self.clues, self.yes_no)
        worded = []
        for number, question in enumerate(maker.questions(self.count), start=1):
            random = Random("wording", self.seed, self.hops, number)
            text = Wording(question, self.obfuscation, random).text()
            accepted = answers(self.world, question)
            worded.append(WordedQuestion(f"q{number:04d}", text, accepted, question))
        return self._enough(worded, f"of {self.hops} hops", "more documents, or more clues")

    def _of_split(self, worded: Sequence[W]) -> Sequence[W]:
        return worded if self.split is None else worded[SPLITS.index(self.split) :: 2]

    def _enough(self, worded: Sequence[W], sort: str, instead: str) -> Sequence[W]:
        """The questions. `InputError` if the world is too small for all that were asked for."""
        if len(worded) < self.count:
            raise InputError(
                f"{self.size} documents hold only {len(worded)} of {self.count} questions {sort}",
                do=f"Ask for fewer questions, {instead}",
            )
        return worded

    @cached_property
    def _set_maker(self) -> SetQuestionMaker:
        return SetQuestionMaker(self.world)

    @cached_property
    def worded_sets(self) -> Sequence[WordedSetQuestion]:
        """The questions of the split that ask for documents; none if questions are chained."""
        return self._of_split(self._every_set)

    @cached_property
    def _every_set(self) -> Sequence[WordedSetQuestion]:
        if not self.asks_sets:
            return []
        worded = []
        for number, question in enumerate(self._set_maker.questions(self.count), start=1):
            random = Random("set wording", self.seed, number)
            text = set_wording(question, self.obfuscation, random)
            worded.append(WordedSetQuestion(f"s{number:04d}", text, checklist(question), question))
        return self._enough(worded, "that ask for documents", "or more documents")

    def __getattr__(self, name: str) -> Any:
        # The attributes of the base class, which index building does not need, are made at the
        # first use of any of them.
        if name not in Benchmark.__annotations__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        evidence: dict[str, dict[str, int]] = {}
        if self.asks_sets:
            maker, sets = self._set_maker, self.worded_sets
            for worded in sets:
                evidence[worded.qid] = dict.fromkeys(sorted(maker.targets(worded.question)), 1)
            super().__init__(
                self.name,
                [Topic(worded.qid, worded.text) for worded in sets],
                {"evidence": evidence},
                qids=self.qids,
                checklists={worded.qid: worded.checklist for worded in sets},
                satisfaction={worded.qid: Satisfaction(maker, worded.question) for worded in sets},
                corpus_share=self.corpus_share,
            )
        else:
            gold: dict[str, dict[str, int]] = {}
            for chained in self.worded_questions:
                path = [docid(self.world.index(entity)) for entity in chained.question.path]
                evidence[chained.qid] = dict.fromkeys(path, 1)
                gold[chained.qid] = {path[-1]: 1}
            super().__init__(
                self.name,
                [Topic(chained.qid, chained.text) for chained in self.worded_questions],
                {"evidence": evidence, "gold": gold},
                {chained.qid: chained.answers for chained in self.worded_questions},
                qids=self.qids,
                needed_facts={
                    chained.qid: needed_facts(self.world, chained.question)
                    for chained in self.worded_questions
                },
                corpus_share=self.corpus_share,
            )
        return getattr(self, name)


def _repetition(values: Sequence[float] | None) -> Repetition | None:
    """The law of `repetition`; `InputError` unless it has three numbers in range."""
    if values is None:
        return None
    if isinstance(values, str) or len(values) != 3:
        raise InputError(
            f"repetition={values!r}", valid="[scale, exponent, deviation], or null for once"
        )
    scale, exponent, deviation = values
    check_number("repetition's scale", scale, gt=0, le=10)
    check_number("repetition's exponent", exponent, le=1)
    check_number("repetition's deviation", deviation, le=2)
    return Repetition(float(scale), float(exponent), float(deviation))


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
