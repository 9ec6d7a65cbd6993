"""Questions that ask for documents: all pages about entities that meet 2 to 6 requirements.

A document meets a requirement if its own facts do. Two conditions hold for each question:

- its targets are all documents that meet every requirement, `FEWEST` to `MOST` of them;
- for each requirement there is a near miss, a document that meets all others and not this one (so
  none is superfluous).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.schema import (
    TYPES,
    Attribute,
    Choice,
    EntityType,
    Number,
    Quantity,
    Relation,
    attribute_of,
)
from toolkit.benchmarks.fictional.solving import Clue, Columns, Mask
from toolkit.benchmarks.fictional.world import WORDS, Entity, World

FEWEST, MOST = 2, 50  # targets
FEWEST_REQUIREMENTS, MOST_REQUIREMENTS = 2, 6
ATTEMPTS = 120  # tries for a question with so many requirements
EXCLUDED = 0.25  # share of requirements that are drawn as exclusions
RELATED = 0.4  # share of questions that require a relation to another entity
NARROWEST, WIDEST = 20, 60  # percent of the entities of a type that a range holds


class Requirement(NamedTuple):
    """A condition on the entity of a page: that it meets `clue`, or, where `excluded`, that it does
    not. A clue on a relation names the other entity in `value`, and its number in its type in `low`
    and `high`."""

    clue: Clue
    excluded: bool = False

    def sort(self, kind: str) -> str:
        """`attribute`, `relation`, `number`, `years` or `exclusion`, for the type `kind`."""
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
    """A question in its formal shape: the type of the entities, and what they must meet."""

    kind: str
    requirements: tuple[Requirement, ...]


class SetQuestionMaker:
    """Makes the questions of a world one after another, none twice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.columns = Columns(world)

    def questions(self, count: int) -> Iterator[SetQuestion]:
        """Up to `count` questions, fewer only if the world is too small. The numbers of
        requirements take turns; one that cannot be had gives way to the next lower one."""
        earlier: set[SetQuestion] = set()
        for number in range(count):
            question = self._question(number, earlier)
            if question is None:
                return
            earlier.add(question)
            yield question

    def _question(self, number: int, earlier: Collection[SetQuestion]) -> SetQuestion | None:
        related = Draws("set form", self.world.seed, number).chance(RELATED)
        most = FEWEST_REQUIREMENTS + number % (MOST_REQUIREMENTS - FEWEST_REQUIREMENTS + 1)
        for requirements in range(most, FEWEST_REQUIREMENTS - 1, -1):
            for attempt in range(ATTEMPTS):
                draws = Draws("set question", self.world.seed, number, requirements, attempt)
                question = self._attempt(requirements, related, draws)
                if question is not None and question not in earlier:
                    return question
        return None

    def targets(self, question: SetQuestion) -> list[Entity]:
        """All entities that meet every requirement, by ordinal."""
        masks = self._masks(question.kind, question.requirements)
        ordinals = np.flatnonzero(np.logical_and.reduce(masks))
        return [Entity(question.kind, int(ordinal)) for ordinal in ordinals]

    def meets(self, question: SetQuestion, entity: Entity) -> tuple[bool, ...]:
        """Whether the entity meets each requirement; none is met by one of another type."""
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

    def _attempt(self, count: int, related: bool, draws: Draws) -> SetQuestion | None:
        """Requirements that one drawn entity meets, added while each has a near miss. Where
        `related`, the first is a relation to another entity."""
        kind = draws.choice(TYPES)
        ordinal = draws.below(self.world.counts[kind.name])
        requirements: list[Requirement] = []
        if related and not self._shared(kind, ordinal, requirements, draws):
            return None
        attributes = draws.shuffled(kind.attributes)
        for position, attribute in enumerate(attributes):
            if len(requirements) + len(attributes) - position < count:
                return None
            if any(attribute.name == earlier.clue.relation for earlier in requirements):
                continue
            exclusions = sum(earlier.excluded for earlier in requirements)
            option = self._requirement(kind, ordinal, attribute, requirements, draws)
            if option and option.excluded and exclusions == count // 2:
                continue
            if option and self._sharp(kind.name, [*requirements, option], FEWEST):
                requirements.append(option)
            if len(requirements) == count:
                break
        if len(requirements) < count or not self._sharp(kind.name, requirements, FEWEST, MOST):
            return None
        order = ("attribute", "number", "years", "relation", "exclusion")
        requirements.sort(key=lambda requirement: order.index(requirement.sort(kind.name)))
        return SetQuestion(kind.name, tuple(requirements))

    def _shared(
        self, kind: EntityType, ordinal: int, requirements: list[Requirement], draws: Draws
    ) -> bool:
        """Add a relation of the entity that enough others of its type have to the same one; False
        where there is none."""
        for attribute in draws.shuffled(kind.attributes):
            values = self.columns.values(kind.name, attribute.name)
            shared = int((values == values[ordinal]).sum()) > FEWEST
            if isinstance(attribute, Relation) and shared:
                clue = self._clue(kind.name, ordinal, attribute, draws)
                requirements.append(Requirement(clue))
                return True
        return False

    def _sharp(
        self, kind: str, requirements: Sequence[Requirement], fewest: int, most: int | None = None
    ) -> bool:
        """Whether there are so many targets, and a near miss for each requirement."""
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
        draws: Draws,
    ) -> Requirement | None:
        """One on this attribute that the entity meets; an exclusion takes the value of another
        entity that meets the requirements so far. None where all of those have the same value."""
        if not draws.chance(EXCLUDED):
            return Requirement(self._clue(kind.name, ordinal, attribute, draws))
        values = self.columns.values(kind.name, attribute.name)
        rivals = np.flatnonzero(
            np.logical_and.reduce([values != values[ordinal], *self._masks(kind.name, others)])
        )
        if not len(rivals):
            return None
        rival = int(rivals[draws.below(len(rivals))])
        clue = self._clue(kind.name, rival, attribute, draws)
        outside = not clue.low <= int(values[ordinal]) <= clue.high
        return Requirement(clue, excluded=True) if outside else None

    def _clue(self, kind: str, ordinal: int, attribute: Attribute, draws: Draws) -> Clue:
        """A clue that the entity meets: its word, its entity, or a range around it."""
        values = self.columns.values(kind, attribute.name)
        value = int(values[ordinal])
        if isinstance(attribute, Choice):
            return Clue(0, attribute.name, value, value, WORDS[attribute.lexicon][value])
        if isinstance(attribute, Relation):
            name = self.world.name(Entity(attribute.target, value))
            return Clue(0, attribute.name, value, value, name)
        assert isinstance(attribute, Quantity)
        ordered = np.sort(values)
        width = max(1, len(ordered) * draws.between(NARROWEST, WIDEST) // 100)
        start = int(np.searchsorted(ordered, value)) - draws.below(width)
        start = min(max(0, start), len(ordered) - width)
        low, high = int(ordered[start]), max(value, int(ordered[start + width - 1]))
        if isinstance(attribute, Number):
            step = next(size for size in (1000, 100, 10, 5) if size <= max(5, value // 10))
            low, high = max(1, low // step * step), -(-high // step) * step
        return Clue(0, attribute.name, low, high)
