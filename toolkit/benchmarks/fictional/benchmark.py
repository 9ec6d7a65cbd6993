"""The fictional world as a benchmark: documents, questions, judgements, answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from toolkit.benchmarks.fictional.articles import (
    LINK_RATE,
    LINK_SEED,
    Articles,
    docid,
    links,
    number_of,
)
from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.questions import Question, QuestionMaker
from toolkit.benchmarks.fictional.set_wording import (
    Satisfaction,
    WordedSetQuestion,
    WordedSets,
)
from toolkit.benchmarks.fictional.sets import SetQuestionMaker
from toolkit.benchmarks.fictional.wording import Wording, answers
from toolkit.benchmarks.fictional.world import PERIOD, Fact, World
from toolkit.checks import check_integer, check_number
from toolkit.contracts import Document, Link, Topic
from toolkit.errors import InputError
from toolkit.files import fingerprint

VERSION = 1  # of the generator: raised whenever the same settings give another world
SETS_VERSION = 1  # of the questions that ask for documents, likewise
SETS, SET_QUESTIONS = "sets", 100
SPLITS = ("dev", "test")
FEWEST, MOST = 4 * PERIOD, 5_000_000


class WordedQuestion(NamedTuple):
    """A question with its id, its wording and its accepted answers."""

    qid: str
    text: str
    answers: Sequence[str]
    question: Question


class FictionalWorld:
    """A world that exists nowhere, one web page an entity, and chained questions about it.

    Everything is a function of the arguments: the same ones give the same bytes in every process,
    on every platform. Nothing of a document is kept once it has been yielded.

    - `documents`: how many entities, and pages; `questions`: how many before `split` selects, or
      `sets` for 100 questions that ask for documents (`sets:50`: 50 of them), in which `hops` and
      `clues` play no part.
    - `hops`: documents that each question chains, 1 to 4.
    - `median_words`, `p90_words`: of the log-normal lengths.
    - `twins`: share of entities that are near copies of another one, 0 to 0.5.
    - `clues`: most clues on one entity of a question, 1 to 5.
    - `obfuscation`: share of clue phrases and values that are put in other words than the pages'.
    - `split`: `dev` or `test` for half of the questions each, None for all. No entity that is asked
      about or that is an answer occurs in both.

    `judgements["evidence"]` are all documents of a question's path, `judgements["gold"]` the one
    that tells the answer; each has grade 1. Raises `InputError` for arguments out of range, and
    when the questions are first asked for, if the world is too small to hold so many.
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
        name: str = "fictional",
        split: str | None = None,
    ) -> None:
        check_integer("documents", documents, least=FEWEST, most=MOST)
        self.asks_sets, count = _asked(questions)
        check_integer("questions", count, most=max(1, documents // 2))
        check_integer("hops", hops, most=4)
        check_integer("clues", clues, most=5)
        check_integer("seed", seed, least=0, most=2**63 - 1)
        check_integer("median_words", median_words, least=20, most=50_000)
        check_integer("p90_words", p90_words, least=median_words + 1, most=100_000)
        check_number("twins", twins, most=0.5)
        check_number("obfuscation", obfuscation, most=1)
        if split is not None and split not in SPLITS:
            raise InputError(
                f"split={split!r}", valid=f"{', '.join(SPLITS)}, or null for all questions"
            )
        self.size, self.count, self.hops, self.clues = documents, count, hops, clues
        self.seed, self.median_words, self.p90_words = seed, median_words, p90_words
        self.twins, self.obfuscation = float(twins), float(obfuscation)
        self.name = name
        self.split = split
        self.world = World(self.size, self.seed, self.twins)
        self._articles = Articles(self.world, self.median_words, self.p90_words)

    @property
    def corpus_fingerprint(self) -> str:
        """Hash of the settings that the documents depend on."""
        lengths = (self.median_words, self.p90_words)
        return fingerprint("fictional", VERSION, self.size, self.seed, self.twins, lengths)

    @property
    def fingerprint(self) -> str:
        """Hash of all settings that documents, questions and judgements depend on."""
        settings: tuple[object, ...] = (self.count, self.hops, self.clues)
        if self.asks_sets:
            settings = ("sets", SETS_VERSION, self.count)
        settings = (*settings, self.obfuscation, self.split)
        return fingerprint(self.corpus_fingerprint, settings)

    def documents(self, start: int = 0, stop: int | None = None) -> Iterator[Document]:
        """Documents number `start` (from 0) up to `stop` (not included; None for all), in order.
        Ranges are independent of each other, so processes may share the work."""
        for index in range(start, self.size if stop is None else min(stop, self.size)):
            yield self._articles.document(index)

    def statistics(self, sample: int = 500) -> dict[str, float]:
        """Counts and lengths of `sample` documents spread over the corpus (all, if it has fewer).

        `words` are runs of letters and digits; `mean`, `median`, `p90`, `max` are of words a
        document; `distinct` and `singletons` count the sample's different words and those that
        occur once; `expected_words` scales the mean to the whole corpus.
        """
        check_integer("sample", sample)
        return self._articles.statistics(min(sample, self.size))

    def words(self, docid: str) -> int:
        """The length that a document aims at; short pages are longer, by what their facts need."""
        return self._articles.words(self._index(docid))

    def facts(self, docid: str) -> list[Fact]:
        """All that a document tells about its entity. `KeyError` for an unknown docid."""
        return self.world.facts(self.world.entity(self._index(docid)))

    def has_document(self, docid: str) -> bool:
        """Whether there is a document of this id."""
        try:
            return self._index(docid) >= 0
        except KeyError:
            return False

    def links(self) -> Iterator[Link]:
        """Who names whom, thinned; see `links` of `toolkit.benchmarks.fictional.articles`."""
        return links(self._articles)

    @property
    def links_fingerprint(self) -> str:
        """Hash of all that the links depend on."""
        return fingerprint(self.corpus_fingerprint, LINK_RATE, LINK_SEED)

    def _index(self, name: str) -> int:
        return number_of(name, self.size)

    @cached_property
    def worded_questions(self) -> Sequence[WordedQuestion]:
        """The chained questions of the split, with their formal shapes. Made when first used."""
        maker = QuestionMaker(self.world, self.hops, self.clues)
        questions = list(maker.questions(self.count))
        if len(questions) < self.count:
            raise InputError(
                f"{self.size} documents hold only {len(questions)} of {self.count} questions of"
                f" {self.hops} hops",
                do="Ask for fewer questions, more documents, or more clues",
            )
        worded = [self._worded(number, shape) for number, shape in enumerate(questions, start=1)]
        return worded if self.split is None else worded[SPLITS.index(self.split) :: 2]

    def _worded(self, number: int, question: Question) -> WordedQuestion:
        draws = Draws("wording", self.seed, self.hops, number)
        text = Wording(question, self.obfuscation, draws).text()
        return WordedQuestion(f"q{number:04d}", text, answers(self.world, question), question)

    @cached_property
    def _sets(self) -> WordedSets:
        return WordedSets(SetQuestionMaker(self.world), self.count, self.obfuscation)

    @cached_property
    def worded_sets(self) -> Sequence[WordedSetQuestion]:
        """The questions of the split that ask for documents; none where questions are chained."""
        worded = self._sets.questions if self.asks_sets else []
        if self.asks_sets and len(worded) < self.count:
            raise InputError(
                f"{self.size} documents hold only {len(worded)} of {self.count} questions that ask"
                " for documents",
                do="Ask for fewer questions, or more documents",
            )
        return worded if self.split is None else worded[SPLITS.index(self.split) :: 2]

    @cached_property
    def targets(self) -> Mapping[str, frozenset[str]]:
        """The documents that each question asks for; see `contracts.DocumentSets`."""
        return {worded.qid: self._sets.targets(worded.question) for worded in self.worded_sets}

    @cached_property
    def checklists(self) -> Mapping[str, Sequence[str]]:
        """The requirements of each question that asks for documents."""
        return {worded.qid: worded.checklist for worded in self.worded_sets}

    @cached_property
    def satisfaction(self) -> Mapping[str, Satisfaction]:
        """Which requirements each document meets."""
        maker = self._sets.maker if self.asks_sets else None
        return {
            worded.qid: Satisfaction(maker, worded.question) for worded in self.worded_sets if maker
        }

    @cached_property
    def topics(self) -> Sequence[Topic]:
        """The questions of the split."""
        if self.asks_sets:
            return [Topic(worded.qid, worded.text) for worded in self.worded_sets]
        return [Topic(worded.qid, worded.text) for worded in self.worded_questions]

    @cached_property
    def answers(self) -> Mapping[str, Sequence[str]]:
        """Accepted short answers: a name, a number, a year, or yes/no. None where questions ask for
        documents."""
        if self.asks_sets:
            return {}
        return {worded.qid: worded.answers for worded in self.worded_questions}

    @cached_property
    def judgements(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """The tiers `evidence` and `gold`; where questions ask for documents, `evidence` alone."""
        if self.asks_sets:
            return {
                "evidence": {
                    qid: dict.fromkeys(sorted(ids), 1) for qid, ids in self.targets.items()
                }
            }
        evidence: dict[str, dict[str, int]] = {}
        gold: dict[str, dict[str, int]] = {}
        for worded in self.worded_questions:
            path = [docid(self.world.index(entity)) for entity in worded.question.path]
            evidence[worded.qid] = dict.fromkeys(path, 1)
            gold[worded.qid] = {path[-1]: 1}
        return {"evidence": evidence, "gold": gold}


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
