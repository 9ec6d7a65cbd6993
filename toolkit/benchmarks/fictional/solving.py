"""Which entities of the world satisfy a question: exact, over columns of digits.

A question's conditions form a path, so passing candidate sets along it once in each direction
leaves exactly the entities that take part in a solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.schema import (
    Attribute,
    Choice,
    Quantity,
    Year,
    attribute_of,
)
from toolkit.benchmarks.fictional.world import WORDS, Entity, World

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Clue:
    """A condition on the entity at `position` of the path: `low <= value <= high` for numbers and
    years, or `value` equal to a word (then `low` and `high` are that word's number in its lexicon).
    """

    position: int
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
        self._columns: dict[tuple[str, str], npt.NDArray[np.int32]] = {}

    def values(self, kind: str, relation: str) -> npt.NDArray[np.int32]:
        """By ordinal: the number or year itself, the word's number, or the target's ordinal."""
        if (kind, relation) not in self._columns:
            attribute, ordinals = attribute_of(kind, relation), self.world.ordinals(kind)
            if isinstance(attribute, Quantity):
                column = self.world.numbers(kind, attribute, ordinals)
            else:
                column = self.world.digits(kind, attribute, ordinals)
            self._columns[kind, relation] = column.astype(np.int32)
        return self._columns[kind, relation]


def solutions(
    columns: Columns,
    kinds: Sequence[str],
    clues: Sequence[Clue],
    links: Sequence[Link],
    without: int = -1,
) -> list[Mask]:
    """For each position of the path, the entities (by ordinal) that occur in some solution.

    `without` leaves out all that the document at that position tells.
    """
    masks = [np.ones(columns.world.counts[kind], dtype=bool) for kind in kinds]
    for clue in clues:
        if clue.position != without:
            values = columns.values(kinds[clue.position], clue.relation)
            masks[clue.position] &= (values >= clue.low) & (values <= clue.high)
    links = [link for link in links if link.subject != without]
    for link in links:
        _pass(columns, kinds, masks, link, source=min(link.subject, link.object))
    for link in reversed(links):
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


def clue(world: World, position: int, entity: Entity, attribute: Attribute, draws: Draws) -> Clue:
    """A clue that the entity at `position` of a path meets, blurred where it is a number."""
    if isinstance(attribute, Choice):
        digit = world.digits(entity.kind, attribute, entity.ordinal)
        return Clue(position, attribute.name, digit, digit, WORDS[attribute.lexicon][digit])
    assert isinstance(attribute, Quantity)
    value = world.number(entity, attribute)
    blur = _years if isinstance(attribute, Year) else _range
    return Clue(position, attribute.name, *blur(value, draws))


def _years(value: int, draws: Draws) -> tuple[int, int]:
    """The decade, or a span of 5 to 12 years around the year."""
    if draws.chance(0.5):
        return value // 10 * 10, value // 10 * 10 + 9
    before, after = draws.between(2, 6), draws.between(2, 6)
    return value - before, value + after


def _range(value: int, draws: Draws) -> tuple[int, int]:
    """Rounded bounds up to a fifth below and above the number."""
    low = value - draws.between(0, value // 5)
    high = value + draws.between(0, value // 5)
    step = next(size for size in (1000, 100, 10, 5) if size <= max(5, value // 10))
    return max(1, low // step * step), -(-(high + 1) // step) * step
