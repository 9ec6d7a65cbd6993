"""The facts of the world: which entities there are, what holds of them, what they are called.

Nothing is stored. An entity's attribute is a digit, a function of (seed, type, attribute, ordinal);
a twin takes its base's digits except on `TWIN_DIFFERENCES` neighbouring attributes. Questions need
whole columns of digits, and only then are those computed, as small integers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from toolkit.benchmarks.fictional.hashing import key, mix
from toolkit.benchmarks.fictional.names import CAPACITY, GIVEN_CAPACITY, Permutation, given, stem
from toolkit.benchmarks.fictional.schema import (
    BY_NAME,
    LEXICONS,
    TYPES,
    Attribute,
    Choice,
    Clueable,
    EntityType,
    Number,
    Quantity,
    Relation,
    Year,
    attribute_of,
)

TWIN_DIFFERENCES = 3
Column = npt.NDArray[Any]  # of `uint64`
Ordinals = TypeVar("Ordinals", int, Column)  # one entity of a type, or many of it


def _slots() -> list[EntityType]:
    """The types of 16 neighbouring entities, alike types apart."""
    layers = max(kind.slots for kind in TYPES)
    return [kind for layer in range(layers) for kind in TYPES if kind.slots > layer]


SLOTS = _slots()
PERIOD = len(SLOTS)
POSITIONS = {
    kind.name: [position for position, slot in enumerate(SLOTS) if slot is kind] for kind in TYPES
}
ORDER = [POSITIONS[slot.name].index(position) for position, slot in enumerate(SLOTS)]


class Entity(NamedTuple):
    """An entity: its type's name and its number within the type, from 0."""

    kind: str
    ordinal: int


class Fact(NamedTuple):
    """What an article tells about its own entity. `subject` is the entity's name; `value` is the
    digits of a number or year, a word of a lexicon, or another entity's name."""

    subject: str
    relation: str
    value: str


class World:
    """Entities, attributes and names, as functions of the seed."""

    def __init__(self, size: int, seed: int, twins: float) -> None:
        self.size = size
        self.seed = seed
        self._twin_rate = round(twins * 1000)
        self.counts = {kind.name: self._count(POSITIONS[kind.name]) for kind in TYPES}
        largest = max(count for name, count in self.counts.items() if name != "person")
        stems = min(CAPACITY, max(largest, 100 + size // 6))
        self._stems = {
            kind.name: Permutation(stems, seed, "stem", kind.name, stems) for kind in TYPES
        }
        self._scatter = Permutation(CAPACITY, seed, "scatter")
        persons = self.counts["person"]
        self._givens = min(GIVEN_CAPACITY, 40 + int(persons**0.5) * 3)
        self._families = max(20, persons // self._givens + 1, persons // 8)
        self._person = Permutation(self._givens * self._families, seed, "person")
        self._given = Permutation(GIVEN_CAPACITY, seed, "given")

    def _count(self, positions: list[int]) -> int:
        periods, rest = divmod(self.size, PERIOD)
        return periods * len(positions) + sum(position < rest for position in positions)

    def entity(self, index: int) -> Entity:
        """The entity of document number `index`."""
        period, position = divmod(index, PERIOD)
        kind = SLOTS[position]
        return Entity(kind.name, period * kind.slots + ORDER[position])

    def index(self, entity: Entity) -> int:
        """The document number of an entity."""
        positions = POSITIONS[entity.kind]
        period, number = divmod(entity.ordinal, len(positions))
        return period * PERIOD + positions[number]

    def ordinals(self, kind: str) -> Column:
        """All entities of a type."""
        return np.arange(self.counts[kind], dtype=np.uint64)

    def is_twin(self, ordinals: int | Column) -> Any:
        """Whether each entity is a near copy of the one before it."""
        rate = self._twin_rate
        return (ordinals + 1) * rate // 1000 > ordinals * rate // 1000

    def limit(self, attribute: Attribute) -> int:
        """How many digits an attribute can take."""
        if isinstance(attribute, Relation):
            return self.counts[attribute.target]
        assert isinstance(attribute, Clueable)
        return attribute.size

    def digits(self, kind: str, attribute: Attribute, ordinals: Ordinals) -> Ordinals:
        """The digits of one attribute of entities of a type."""
        limit = self.limit(attribute)
        own, shift, window = _keys(self.seed, kind, attribute.name)
        twin = self.is_twin(ordinals)
        base = mix(own ^ (ordinals - twin)) % limit
        if limit == 1:
            return base
        size = len(BY_NAME[kind].attributes)
        position = (mix(window ^ ordinals) % size + BY_NAME[kind].position(attribute.name)) % size
        differs = twin & (position < TWIN_DIFFERENCES)
        return (base + differs * (1 + mix(shift ^ ordinals) % (limit - 1))) % limit

    def numbers(self, kind: str, attribute: Quantity, ordinals: Ordinals) -> Ordinals:
        """The years or counts that an attribute of entities of a type has."""
        digits = self.digits(kind, attribute, ordinals)
        if isinstance(attribute, Year):
            return self._epoch(kind, attribute, ordinals) + attribute.first + digits
        assert isinstance(attribute, Number)
        if not attribute.octaves:
            return attribute.low + digits
        octave, step = divmod(digits, 500)
        start = attribute.low << octave
        return start + start * step // 500

    def _epoch(self, kind: str, attribute: Year, ordinals: Ordinals) -> Ordinals | int:
        """The birth years of the persons after whose births the attribute counts, or 0."""
        if not attribute.after:
            return 0
        persons = self.digits(kind, attribute_of(kind, attribute.after), ordinals)
        return self.numbers("person", attribute_of("person", "born", Year), persons)

    def number(self, entity: Entity, attribute: Quantity) -> int:
        """The year or count of one entity."""
        return self.numbers(entity.kind, attribute, entity.ordinal)

    def target(self, entity: Entity, attribute: Relation) -> Entity:
        """The entity that a relation points to."""
        return Entity(attribute.target, self.digits(entity.kind, attribute, entity.ordinal))

    def value(self, entity: Entity, attribute: Attribute) -> str:
        """An attribute's value as in `Fact`."""
        if isinstance(attribute, Relation):
            return self.name(self.target(entity, attribute))
        if isinstance(attribute, Choice):
            return WORDS[attribute.lexicon][self.digits(entity.kind, attribute, entity.ordinal)]
        assert isinstance(attribute, Quantity)
        return str(self.number(entity, attribute))

    def facts(self, entity: Entity) -> list[Fact]:
        """What the entity's article tells: its type, and each attribute."""
        name = self.name(entity)
        facts = [
            Fact(name, attribute.name, self.value(entity, attribute))
            for attribute in BY_NAME[entity.kind].attributes
        ]
        return [Fact(name, "type", entity.kind), *facts]

    def name(self, entity: Entity) -> str:
        """The full name, which no other entity has."""
        kind, ordinal = entity
        twin = self.is_twin(ordinal)
        base = ordinal - twin
        if kind == "person":
            return self._person_name(base, twin)
        forms = BY_NAME[kind].forms
        form = forms[mix(_keys(self.seed, kind, "form")[0] ^ base) % len(forms)]
        return form.format(stem(self._scatter(self._stems[kind](base)), twin))

    def _person_name(self, base: int, twin: bool) -> str:
        family, first = divmod(self._person(base), self._givens)
        return f"{given(self._given(first))} {stem(self._scatter(CAPACITY - 1 - family), twin)}"

    def short_name(self, entity: Entity) -> str:
        """The family name of a person, the full name of anything else."""
        name = self.name(entity)
        return name.split(" ")[1] if entity.kind == "person" else name


WORDS = {name: list(words) for name, words in LEXICONS.items()}


@lru_cache(maxsize=4096)
def _keys(seed: int, kind: str, attribute: str) -> tuple[int, int, int]:
    own, shift = key("own", seed, kind, attribute), key("shift", seed, kind, attribute)
    return own, shift, key("window", seed, kind)
