"""Questions that ask for documents: all `FEWEST` to `MOST` pages about entities that meet 2 to 6
requirements. Each requirement has a near miss, a document that meets all others and not this one. A
question is worded as pages word their facts or, with the probability `obfuscation`, in other words;
its checklist is always worded as pages do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from soundingline.toolkit.benchmarks.fictional.pages import (
    PHRASES,
    capitalised,
    docid,
    document_number,
)
from soundingline.toolkit.benchmarks.fictional.questions import (
    Clue,
    Columns,
    Mask,
    clue_phrase,
    described,
    rounding_step,
)
from soundingline.toolkit.benchmarks.fictional.world import (
    BY_NAME,
    TYPES,
    WORDS,
    Attribute,
    Choice,
    Entity,
    EntityType,
    Number,
    Quantity,
    Random,
    Relation,
    World,
    attribute_of,
)

FEWEST, MOST = 2, 50  # targets
FEWEST_REQUIREMENTS, MOST_REQUIREMENTS = 2, 6
ATTEMPTS = 120  # attempts for a question with so many requirements
EXCLUDED = 0.25  # share of the requirements that are drawn as exclusions
RELATED = 0.4  # share of the questions that require a relation to another entity
NARROWEST, WIDEST = 20, 60  # percent of the entities of a type that a range contains
SORTS = ("attribute", "number", "years", "relation", "exclusion")


class Requirement(NamedTuple):
    """A condition on the entity of a page: that it meets `clue` or, if `excluded`, that it does
    not. A clue about a relation holds the name of the other entity in `value`, and its ordinal in
    `low` and `high`."""

    clue: Clue
    excluded: bool = False

    def sort(self, kind: str) -> str:
        """One of `SORTS`, for the type `kind`."""
        if self.excluded:
            return "exclusion"
        attribute = attribute_of(kind, self.clue.relation)
        if isinstance(attribute, (Choice, Relation)):
            return "attribute" if isinstance(attribute, Choice) else "relation"
        return "number" if isinstance(attribute, Number) else "years"

    def mask(self, columns: Columns, kind: str) -> Mask:
        """Which entities of the type meet it, by ordinal."""
        values = columns.values(kind, self.clue.relation)
        inside: Mask = (values >= self.clue.low) & (values <= self.clue.high)
        return ~inside if self.excluded else inside


class SetQuestion(NamedTuple):
    """A question in its formal shape: the type of the entities, and the requirements for them."""

    kind: str
    requirements: tuple[Requirement, ...]


class SetQuestionMaker:
    """Makes the questions of a world one after another, none twice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.columns = Columns(world)

    def questions(self, count: int) -> Iterator[SetQuestion]:
        """Up to `count` questions, fewer only if the world is too small. The numbers of
        requirements take turns; where a number is impossible, the next lower one replaces it."""
        earlier: set[SetQuestion] = set()
        for number in range(count):
            new = (question for question in self._attempts(number) if question not in earlier)
            question = next(new, None)
            if question is None:
                return
            earlier.add(question)
            yield question

    def _attempts(self, number: int) -> Iterator[SetQuestion]:
        seed = self.world.seed
        related = Random("set form", seed, number).chance(RELATED)
        most = FEWEST_REQUIREMENTS + number % (MOST_REQUIREMENTS - FEWEST_REQUIREMENTS + 1)
        for requirements in range(most, FEWEST_REQUIREMENTS - 1, -1):
            for attempt in range(ATTEMPTS):
                random = Random("set question", seed, number, requirements, attempt)
                if question := self._attempt(requirements, related, random):
                    yield question

    def targets(self, question: SetQuestion) -> frozenset[str]:
        """The docids of all documents that meet every requirement."""
        met = np.logical_and.reduce(self._masks(question.kind, question.requirements))
        entities = [Entity(question.kind, int(ordinal)) for ordinal in np.flatnonzero(met)]
        return frozenset(docid(self.world.index(entity)) for entity in entities)

    def meets(self, question: SetQuestion, entity: Entity) -> tuple[bool, ...]:
        """Whether the entity meets each requirement; one of another type meets none."""
        if entity.kind != question.kind:
            return (False,) * len(question.requirements)
        values = [
            int(self.columns.values(entity.kind, requirement.clue.relation)[entity.ordinal])
            for requirement in question.requirements
        ]
        return tuple(
            (clue.low <= value <= clue.high) != excluded
            for value, (clue, excluded) in zip(values, question.requirements, strict=True)
        )

    def _attempt(self, count: int, related: bool, random: Random) -> SetQuestion | None:
        """Requirements that one drawn entity meets, added while each has a near miss. If `related`,
        the first one is a relation to another entity."""
        kind = random.choice(TYPES)
        ordinal = random.below(self.world.counts[kind.name])
        requirements: list[Requirement] = []
        if related:
            relation = self._shared_relation(kind, ordinal, random)
            if relation is None:
                return None
            requirements.append(relation)
        attributes = random.shuffled(kind.attributes)
        for position, attribute in enumerate(attributes):
            if len(requirements) + len(attributes) - position < count:
                return None
            if any(attribute.name == earlier.clue.relation for earlier in requirements):
                continue
            exclusions = sum(earlier.excluded for earlier in requirements)
            option = self._requirement(kind, ordinal, attribute, requirements, random)
            if option and option.excluded and exclusions == count // 2:
                continue
            if option and self._sharp(kind.name, [*requirements, option], FEWEST):
                requirements.append(option)
            if len(requirements) == count:
                break
        if len(requirements) < count or not self._sharp(kind.name, requirements, FEWEST, MOST):
            return None
        requirements.sort(key=lambda requirement: SORTS.index(requirement.sort(kind.name)))
        return SetQuestion(kind.name, tuple(requirements))

    def _shared_relation(
        self, kind: EntityType, ordinal: int, random: Random
    ) -> Requirement | None:
        """A relation of the entity that enough others of its type have to the same entity."""
        for attribute in random.shuffled(kind.attributes):
            values = self.columns.values(kind.name, attribute.name)
            shared = int((values == values[ordinal]).sum()) > FEWEST
            if isinstance(attribute, Relation) and shared:
                return Requirement(self._clue(kind.name, ordinal, attribute, random))
        return None

    def _sharp(
        self, kind: str, requirements: Sequence[Requirement], fewest: int, most: int | None = None
    ) -> bool:
        """Whether the number of targets is right and each requirement has a near miss."""
        met = np.array(self._masks(kind, requirements))
        count = met.sum(axis=0)
        targets = int((count == len(met)).sum())
        near = (~met & (count == len(met) - 1)).any(axis=1)
        return fewest <= targets and (most is None or targets <= most) and bool(near.all())

    def _masks(self, kind: str, requirements: Sequence[Requirement]) -> list[Mask]:
        return [requirement.mask(self.columns, kind) for requirement in requirements]

    def _requirement(
        self,
        kind: EntityType,
        ordinal: int,
        attribute: Attribute,
        others: Sequence[Requirement],
        random: Random,
    ) -> Requirement | None:
        """A requirement on this attribute that the entity meets. An exclusion takes the value of
        another entity that meets the requirements so far; None if all of those share one value."""
        if not random.chance(EXCLUDED):
            return Requirement(self._clue(kind.name, ordinal, attribute, random))
        values = self.columns.values(kind.name, attribute.name)
        rivals = np.flatnonzero(
            np.logical_and.reduce([values != values[ordinal], *self._masks(kind.name, others)])
        )
        if not len(rivals):
            return None
        rival = int(rivals[random.below(len(rivals))])
        clue = self._clue(kind.name, rival, attribute, random)
        outside = not clue.low <= int(values[ordinal]) <= clue.high
        return Requirement(clue, excluded=True) if outside else None

    def _clue(self, kind: str, ordinal: int, attribute: Attribute, random: Random) -> Clue:
        """A clue that the entity meets: its word, its entity, or a range around its number."""
        values = self.columns.values(kind, attribute.name)
        value = int(values[ordinal])
        if isinstance(attribute, Choice):
            return Clue(0, attribute.name, value, value, WORDS[attribute.lexicon][value])
        if isinstance(attribute, Relation):
            name = self.world.name(Entity(attribute.target, value))
            return Clue(0, attribute.name, value, value, name)
        assert isinstance(attribute, Quantity)
        ordered = np.sort(values)
        width = max(1, len(ordered) * random.between(NARROWEST, WIDEST) // 100)
        start = int(np.searchsorted(ordered, value)) - random.below(width)
        start = min(max(0, start), len(ordered) - width)
        low, high = int(ordered[start]), max(value, int(ordered[start + width - 1]))
        if isinstance(attribute, Number):
            step = rounding_step(value)
            low, high = max(1, low // step * step), -(-high // step) * step
        return Clue(0, attribute.name, low, high)


def set_wording(question: SetQuestion, obfuscation: float, random: Random) -> str:
    """The question in words."""

    def one_of(pair: tuple[str, str]) -> str:
        return pair[random.chance(obfuscation)]

    kind = BY_NAME[question.kind]
    noun = one_of(kind.nouns)
    clues: list[str] = []
    statements: list[str] = []
    exclusions: list[str] = []
    for requirement in question.requirements:
        sort = requirement.sort(kind.name)
        if sort in ("exclusion", "relation"):
            statement = _statement(kind.name, requirement.clue, noun, one_of)
            (exclusions if sort == "exclusion" else statements).append(statement)
        else:
            clues.append(clue_phrase(kind.name, requirement.clue, one_of))
    description = described(kind.name, noun, clues)
    sentences = [random.choice(PHRASES["sets"]).format(x=description)]
    sentences += [f"{capitalised(statement)}." for statement in statements]
    frames = PHRASES["exclusions"]
    sentences += [random.choice(frames).format(s=statement) for statement in exclusions]
    return " ".join(sentences)


def checklist(question: SetQuestion) -> list[str]:
    """One sentence for each requirement, in their order."""
    noun = BY_NAME[question.kind].nouns[0]
    sentences = []
    for clue, excluded in question.requirements:
        statement = _statement(question.kind, clue, noun, lambda pair: pair[0])
        sentence = f"It is not the case that {statement}" if excluded else capitalised(statement)
        sentences.append(f"{sentence}.")
    return sentences


def _statement(kind: str, clue: Clue, noun: str, one_of: Callable[[tuple[str, str]], str]) -> str:
    """The clue as a sentence about `the <noun>`, without its full stop."""
    attribute = attribute_of(kind, clue.relation)
    if isinstance(attribute, Relation):
        return one_of(attribute.links).format(a=f"the {noun}", b=clue.value)
    return f"the {noun} {clue_phrase(kind, clue, one_of)}"


class Satisfaction(Mapping[str, Sequence[bool]]):
    """Which requirements of a question each document of the world meets, computed on reading. A
    page about an entity of another type meets none."""

    def __init__(self, maker: SetQuestionMaker, question: SetQuestion) -> None:
        self._maker = maker
        self._question = question

    def __getitem__(self, name: str) -> Sequence[bool]:
        world = self._maker.world
        entity = world.entity(document_number(name, world.size))
        return self._maker.meets(self._question, entity)

    def __iter__(self) -> Iterator[str]:
        return map(docid, range(self._maker.world.size))

    def __len__(self) -> int:
        return self._maker.world.size
