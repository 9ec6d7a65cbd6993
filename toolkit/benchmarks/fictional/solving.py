"""Which entities of the world satisfy a question: exact, over columns of digits.

A question's conditions form a path, so passing candidate sets along it once in each direction
leaves exactly the entities that take part in a solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolkit.benchmarks.fictional.schema import Attribute, Choice, Number, Relation, Year
from toolkit.benchmarks.fictional.world import BY_NAME, Column, Entity, World

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Clue:
    """A condition on one entity of the path: `low <= value <= high` for numbers and years, or
    `value` equal to a word (then `low` and `high` are that word's number in its lexicon)."""

    place: int
    relation: str
    low: int
    high: int
    value: str = ""


@dataclass(frozen=True)
class Link:
    """`relation` of the entity at `subject` is the entity at `object`; the article of `subject`
    tells it. The two are neighbours on the path."""

    subject: int
    relation: str
    object: int


class Columns:
    """Digits and numbers of whole types, computed when first asked for, four bytes each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._known: dict[tuple[str, str], npt.NDArray[np.int32]] = {}

    def values(self, kind: str, relation: str) -> npt.NDArray[np.int32]:
        """By ordinal: the number or year itself, the word's number, or the target's ordinal."""
        if (kind, relation) not in self._known:
            found = self._computed(kind, attribute_of(kind, relation))
            self._known[kind, relation] = found.astype(np.int32)
        return self._known[kind, relation]

    def _computed(self, kind: str, attribute: Attribute) -> Column:
        if isinstance(attribute, (Choice, Relation)):
            return self.world.digits(kind, attribute)
        return self.world.numbers(kind, attribute)


def attribute_of(kind: str, relation: str) -> Attribute:
    """The attribute of a type by its name."""
    known = BY_NAME[kind]
    return known.attributes[known.position(relation)]


def solutions(
    columns: Columns,
    kinds: Sequence[str],
    clues: Sequence[Clue],
    links: Sequence[Link],
    without: int = -1,
) -> list[Mask]:
    """For each place of the path, the entities (by ordinal) that occur in some solution.

    `without` leaves out all that the document at that place tells.
    """
    masks = [np.ones(columns.world.counts[kind], dtype=bool) for kind in kinds]
    for clue in clues:
        if clue.place != without:
            values = columns.values(kinds[clue.place], clue.relation)
            masks[clue.place] &= (values >= clue.low) & (values <= clue.high)
    kept = [link for link in links if link.subject != without]
    for link in kept:
        _pass(columns, kinds, masks, link, source=min(link.subject, link.object))
    for link in reversed(kept):
        _pass(columns, kinds, masks, link, source=max(link.subject, link.object))
    return masks


def _pass(
    columns: Columns, kinds: Sequence[str], masks: list[Mask], link: Link, source: int
) -> None:
    """Narrow the other end of a link to what the end at `source` allows."""
    targets = columns.values(kinds[link.subject], link.relation)
    if source == link.subject:
        reached = np.zeros_like(masks[link.object])
        reached[targets[masks[link.subject]]] = True
        masks[link.object] &= reached
    else:
        masks[link.subject] &= masks[link.object][targets]


def single(mask: Mask) -> bool:
    return int(np.count_nonzero(mask)) == 1


def asked_number(world: World, entity: Entity, relation: str) -> int:
    """The number or year of an entity."""
    attribute = attribute_of(entity.kind, relation)
    if not isinstance(attribute, (Year, Number)):
        raise TypeError(f"{relation} of a {entity.kind} is no number")
    return world.number(entity, attribute)
