"""Questions that ask for documents in words, and their checklists.

The question is worded as pages word their facts, or in other words at the rate `obfuscation`; the
checklist always as pages do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toolkit.benchmarks.fictional.articles import capitalised, docid, number_of
from toolkit.benchmarks.fictional.data import load
from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.schema import BY_NAME, Relation, attribute_of
from toolkit.benchmarks.fictional.sets import (
    Requirement,
    SetQuestion,
    SetQuestionMaker,
)
from toolkit.benchmarks.fictional.solving import Clue
from toolkit.benchmarks.fictional.wording import clue_phrase, enumerated

PHRASES = load("phrases")


class SetWording:
    """The wording of one question."""

    def __init__(self, question: SetQuestion, obfuscation: float, draws: Draws) -> None:
        self.question = question
        self.obfuscation = obfuscation
        self.draws = draws

    def text(self) -> str:
        """The whole question."""
        kind = BY_NAME[self.question.kind]
        noun = self._one_of(kind.nouns)
        clues, statements, exclusions = [], [], []
        for requirement in self.question.requirements:
            sort = requirement.sort(kind.name)
            if sort == "exclusion":
                exclusions.append(self._statement(requirement.clue, noun))
            elif sort == "relation":
                statements.append(self._statement(requirement.clue, noun))
            else:
                clues.append(clue_phrase(kind.name, requirement.clue, self._one_of))
        pronoun = "who" if kind.name == "person" else "that"
        article = "an" if noun[0] in "aeiou" else "a"
        description = f"{article} {noun}"
        if clues:
            description += f" {pronoun} {enumerated(clues)}"
        sentences = [self.draws.choice(PHRASES["sets"]).format(x=description)]
        sentences += [f"{capitalised(statement)}." for statement in statements]
        frames = PHRASES["exclusions"]
        sentences += [self.draws.choice(frames).format(s=statement) for statement in exclusions]
        return " ".join(sentences)

    def checklist(self) -> list[str]:
        """One sentence for each requirement, in their order."""
        noun = BY_NAME[self.question.kind].nouns[0]
        return [self._item(requirement, noun) for requirement in self.question.requirements]

    def _item(self, requirement: Requirement, noun: str) -> str:
        statement = _statement(self.question.kind, requirement.clue, noun)
        if requirement.excluded:
            return f"It is not the case that {statement}."
        return f"{capitalised(statement)}."

    def _statement(self, clue: Clue, noun: str) -> str:
        return _statement(self.question.kind, clue, noun, self._one_of)

    def _one_of(self, pair: tuple[str, str]) -> str:
        return pair[self.draws.chance(self.obfuscation)]


def _plain(pair: tuple[str, str]) -> str:
    return pair[0]


def _statement(
    kind: str, clue: Clue, noun: str, one_of: Callable[[tuple[str, str]], str] = _plain
) -> str:
    """The clue as a sentence about `the <noun>`, without its full stop."""
    attribute = attribute_of(kind, clue.relation)
    if isinstance(attribute, Relation):
        return one_of(attribute.links).format(a=f"the {noun}", b=clue.value)
    return f"the {noun} {clue_phrase(kind, clue, one_of)}"


class WordedSetQuestion(NamedTuple):
    """A question with its id, its wording and its checklist."""

    qid: str
    text: str
    checklist: Sequence[str]
    question: SetQuestion


class WordedSets:
    """The questions of a world that ask for documents, with their targets; `Satisfaction` tells
    which requirements each document meets."""

    def __init__(self, maker: SetQuestionMaker, count: int, obfuscation: float) -> None:
        self.maker = maker
        self.questions = [
            self._worded(number, question, obfuscation)
            for number, question in enumerate(maker.questions(count), start=1)
        ]

    def _worded(self, number: int, question: SetQuestion, obfuscation: float) -> WordedSetQuestion:
        draws = Draws("set wording", self.maker.world.seed, number)
        wording = SetWording(question, obfuscation, draws)
        return WordedSetQuestion(f"s{number:04d}", wording.text(), wording.checklist(), question)

    def targets(self, question: SetQuestion) -> frozenset[str]:
        """The docids of all documents that meet every requirement."""
        world = self.maker.world
        return frozenset(docid(world.index(entity)) for entity in self.maker.targets(question))


class Satisfaction(Mapping[str, Sequence[bool]]):
    """Which requirements of a question each document of the world meets, computed when it is asked
    for. A page about an entity of another type meets none."""

    def __init__(self, maker: SetQuestionMaker, question: SetQuestion) -> None:
        self._maker = maker
        self._question = question

    def __getitem__(self, name: str) -> Sequence[bool]:
        world = self._maker.world
        entity = world.entity(number_of(name, world.size))
        return self._maker.meets(self._question, entity)

    def __iter__(self) -> Iterator[str]:
        return map(docid, range(self._maker.world.size))

    def __len__(self) -> int:
        return self._maker.world.size
