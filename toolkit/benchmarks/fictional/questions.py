"""Chained questions over the world, and the proofs that they need to be chained.

A question walks a path of entities. Clues describe them without naming them, links connect them,
and something is asked about the last one. Two conditions hold for each question:

- over all facts of the world, exactly one path satisfies it (so the evidence is complete);
- for `hops` > 1, what all documents but one tell leaves at least two different answers, whichever
  document is left out (so no document answers it alone, and none is superfluous).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.schema import (
    BY_NAME,
    TYPES,
    Attribute,
    Number,
    Quantity,
    Relation,
    Year,
    attribute_of,
)
from toolkit.benchmarks.fictional.solving import Clue, Columns, Link, clue, single, solutions
from toolkit.benchmarks.fictional.world import Entity, World

ANSWER_KINDS: dict[str, type[Attribute]] = {
    "name": Relation,
    "number": Number,
    "year": Year,
    "yes/no": Quantity,
}
ATTEMPTS = 60  # tries for each question before giving up
TWIN_SHARE = 0.5  # paths started at one of two near-twins


@dataclass(frozen=True)
class Question:
    """A question in its formal shape. `path` holds the entities from the first described to the one
    asked about; `kind` is one of `ANSWER_KINDS`; `threshold` belongs to yes/no questions: is the
    year before it, or the number above it?"""

    path: tuple[Entity, ...]
    clues: tuple[Clue, ...]
    links: tuple[Link, ...]
    relation: str
    kind: str
    threshold: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(entity.kind for entity in self.path)


class QuestionMaker:
    """Makes the questions of a world one after another; answers' entities are never used twice."""

    def __init__(self, world: World, hops: int, clues: int) -> None:
        self.world = world
        self.hops = hops
        self.most_clues = clues
        self._columns = Columns(world)
        self._used: set[Entity] = set()

    def questions(self, count: int) -> Iterator[Question]:
        """Up to `count` questions: fewer only if the world is too small."""
        remaining = count
        for attempt in range(count * ATTEMPTS):
            if not remaining:
                return
            question = self._attempt(Draws("question", self.world.seed, self.hops, attempt))
            if question is not None:
                self._used |= answering(self.world, question)
                remaining -= 1
                yield question

    def _attempt(self, draws: Draws) -> Question | None:
        path, links = self._path(draws)
        if len(path) < self.hops or path[-1] in self._used:
            return None
        target = self._target(path, links, draws)
        if target is None:
            return None
        bare = Question(tuple(path), (), tuple(links), *target)
        if answering(self.world, bare) & self._used:
            return None
        return self._described(bare, draws)

    def _path(self, draws: Draws) -> tuple[list[Entity], list[Link]]:
        """Entities from the first to the asked one; drawn from the asked one backwards."""
        entity = self._start(draws)
        backwards, edges = [entity], []
        while len(backwards) < self.hops:
            neighbour = self._neighbour(entity, backwards, draws)
            if neighbour is None:
                break
            entity, relation, told_by_new = neighbour
            backwards.append(entity)
            edges.append((relation, told_by_new))
        last = len(backwards) - 1
        links = []
        for step, (relation, told_by_new) in enumerate(edges):
            old, new = last - step, last - step - 1
            subject, target = (new, old) if told_by_new else (old, new)
            links.append(Link(subject, relation, target))
        return backwards[::-1], links[::-1]

    def _start(self, draws: Draws) -> Entity:
        kind = draws.choice(TYPES).name
        ordinal = draws.below(self.world.counts[kind])
        if draws.chance(TWIN_SHARE):
            twins = np.flatnonzero(self.world.is_twin(self.world.ordinals(kind)))
            if len(twins):
                ordinal = int(twins[draws.below(len(twins))]) - draws.below(2)
        return Entity(kind, ordinal)

    def _neighbour(
        self, entity: Entity, path: list[Entity], draws: Draws
    ) -> tuple[Entity, str, bool] | None:
        """A new neighbour of `entity`, the relation, and whether the neighbour's page tells it."""
        outward = [
            (relation.target, relation.name, False)
            for relation in BY_NAME[entity.kind].attributes
            if isinstance(relation, Relation)
        ]
        inward = [
            (kind.name, relation.name, True)
            for kind in TYPES
            for relation in kind.attributes
            if isinstance(relation, Relation) and relation.target == entity.kind
        ]
        edges = outward + inward
        for kind, relation, told_by_new in draws.shuffled(edges):
            new = self._follow(entity, kind, relation, told_by_new, draws)
            if new is not None and new not in path:
                return new, relation, told_by_new
        return None

    def _follow(
        self, entity: Entity, kind: str, relation: str, told_by_new: bool, draws: Draws
    ) -> Entity | None:
        if not told_by_new:
            digits = self._columns.values(entity.kind, relation)
            return Entity(kind, int(digits[entity.ordinal]))
        targets = self._columns.values(kind, relation)
        pointing = np.flatnonzero(targets == entity.ordinal)
        return Entity(kind, int(pointing[draws.below(len(pointing))])) if len(pointing) else None

    def _target(
        self, path: list[Entity], links: list[Link], draws: Draws
    ) -> tuple[str, str, int] | None:
        """What is asked of the last entity: relation, kind of answer, threshold."""
        entity, last = path[-1], len(path) - 1
        used = {link.relation for link in links if link.subject == last}
        kind = draws.choice(list(ANSWER_KINDS))
        free = [
            attribute
            for attribute in BY_NAME[entity.kind].attributes
            if attribute.name not in used and isinstance(attribute, ANSWER_KINDS[kind])
        ]
        if not free:
            return None
        attribute = draws.choice(free)
        if isinstance(attribute, Relation) and self.world.target(entity, attribute) in path:
            return None
        threshold = 0
        if kind == "yes/no" and isinstance(attribute, Quantity):
            threshold = self._threshold(entity, attribute, draws)
        return attribute.name, kind, threshold

    def _threshold(self, entity: Entity, attribute: Quantity, draws: Draws) -> int:
        """A figure on either side of the truth with equal chance, never the truth itself."""
        value = self.world.number(entity, attribute)
        spread = 24 if isinstance(attribute, Year) else max(3, value // 4)
        distance = draws.between(1, spread)
        return value + distance if draws.chance(0.5) else value - distance

    def _described(self, bare: Question, draws: Draws) -> Question | None:
        """The question with clues added one by one until it has one solution; None if that cannot
        be had without making a document superfluous."""
        question = bare
        for option in self._options(bare, draws):
            if len(question.clues) > len(bare.path) and self._unique(question):
                break
            if sum(known.position == option.position for known in question.clues) < self.most_clues:
                longer = replace(question, clues=(*question.clues, option))
                question = longer if self._chained(longer) else question
        return question if self._unique(question) and self._chained(question) else None

    def _options(self, bare: Question, draws: Draws) -> list[Clue]:
        """Possible clues: one for each entity, then a second one for each, and so on."""
        options: list[list[Clue]] = []
        for position, entity in enumerate(bare.path):
            used = {link.relation for link in bare.links if link.subject == position}
            if position == len(bare.path) - 1:
                used.add(bare.relation)
            free = [
                attribute
                for attribute in BY_NAME[entity.kind].attributes
                if not isinstance(attribute, Relation) and attribute.name not in used
            ]
            options.append(
                [
                    clue(self.world, position, entity, attribute, draws)
                    for attribute in draws.shuffled(free)
                ]
            )
        rounds = zip_longest(*options)
        return [option for turn in rounds for option in turn if option is not None]

    def _unique(self, question: Question) -> bool:
        masks = solutions(self._columns, question.kinds, question.clues, question.links)
        return all(single(mask) for mask in masks)

    def _chained(self, question: Question) -> bool:
        """Whether leaving out any one document leaves two answers open. More clues elsewhere can
        only take answers away, so a question that fails stays failed."""
        return all(self._open(question, position) for position in range(len(question.path) - 1))

    def _open(self, question: Question, without: int) -> bool:
        masks = solutions(self._columns, question.kinds, question.clues, question.links, without)
        values = self._columns.values(question.kinds[-1], question.relation)[masks[-1]]
        if question.kind == "yes/no":
            values = holds(question, values)
        return len(np.unique(values)) > 1


def holds(question: Question, values: Any) -> Any:
    """Whether the answer to a yes/no question is yes: before the year, or above the number."""
    if isinstance(attribute_of(question.kinds[-1], question.relation), Year):
        return values < question.threshold
    return values > question.threshold


def answering(world: World, question: Question) -> set[Entity]:
    """The entities that an answer is about: the asked one, and the one that the answer names."""
    entity = question.path[-1]
    attribute = attribute_of(entity.kind, question.relation)
    named = {world.target(entity, attribute)} if isinstance(attribute, Relation) else set()
    return {entity} | named
