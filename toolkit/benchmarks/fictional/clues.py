"""One clue: a condition that an entity meets, blurred where it is a number."""

from __future__ import annotations

from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.schema import Attribute, Choice, Year
from toolkit.benchmarks.fictional.solving import Clue, asked_number
from toolkit.benchmarks.fictional.world import WORDS, Entity, World


def clue(world: World, place: int, entity: Entity, attribute: Attribute, draws: Draws) -> Clue:
    """A clue on an attribute of the entity that stands at `place` of a path."""
    if isinstance(attribute, Choice):
        digit = world.digit(entity, attribute)
        return Clue(place, attribute.name, digit, digit, WORDS[attribute.lexicon][digit])
    value = asked_number(world, entity, attribute.name)
    if isinstance(attribute, Year):
        return Clue(place, attribute.name, *_years(value, draws))
    return Clue(place, attribute.name, *_range(value, draws))


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
