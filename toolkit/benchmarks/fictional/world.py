"""The facts of the world: which entities there are, what holds of them, what they are called.

Nothing is stored. An entity's attribute is a digit, a function of (seed, type, attribute, ordinal);
a twin takes its base's digits except on `TWIN_DIFFERENCES` neighbouring attributes. Questions need
whole columns of digits, and only then are those computed, as small integers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolkit.benchmarks.fictional.events import FESTIVAL, SHIP
from toolkit.benchmarks.fictional.hashing import key, mix, mix_all
from toolkit.benchmarks.fictional.lexicon import LEXICONS
from toolkit.benchmarks.fictional.makers import BOOK, COMPANY
from toolkit.benchmarks.fictional.names import CAPACITY, GIVEN_CAPACITY, Permutation, given, stem
from toolkit.benchmarks.fictional.people import PERSON
from toolkit.benchmarks.fictional.places import RIVER, TOWN
from toolkit.benchmarks.fictional.schema import (
    Attribute,
    Choice,
    EntityType,
    Number,
    Relation,
    Year,
)
from toolkit.benchmarks.fictional.structures import BRIDGE, BUILDING, SCHOOL

TYPES = (PERSON, TOWN, BUILDING, COMPANY, BOOK, RIVER, SHIP, FESTIVAL, SCHOOL, BRIDGE)
BY_NAME = {kind.name: kind for kind in TYPES}
TWIN_DIFFERENCES = 3
Column = npt.NDArray[np.int64]


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
        whole, rest = divmod(self.size, PERIOD)
        return whole * len(positions) + sum(position < rest for position in positions)

    def entity(self, index: int) -> Entity:
        """The entity of document number `index`."""
        block, position = divmod(index, PERIOD)
        kind = SLOTS[position]
        return Entity(kind.name, block * kind.slots + ORDER[position])

    def index(self, entity: Entity) -> int:
        """The document number of an entity."""
        positions = POSITIONS[entity.kind]
        block, place = divmod(entity.ordinal, len(positions))
        return block * PERIOD + positions[place]

    def is_twin(self, ordinal: int) -> bool:
        """Whether the entity is a near copy of the one before it."""
        rate = self._twin_rate
        return (ordinal + 1) * rate // 1000 > ordinal * rate // 1000

    def twins_all(self, ordinals: Column) -> npt.NDArray[np.bool_]:
        """`is_twin` of every element."""
        rate = self._twin_rate
        return (ordinals + 1) * rate // 1000 > ordinals * rate // 1000

    def limit(self, attribute: Attribute) -> int:
        """How many digits an attribute can take."""
        if isinstance(attribute, Relation):
            return self.counts[attribute.target]
        return attribute.size

    def _keys(self, kind: str, attribute: str) -> tuple[int, int, int]:
        return _keys(self.seed, kind, attribute)

    def digit(self, entity: Entity, attribute: Attribute) -> int:
        """The digit of one attribute of one entity."""
        kind, ordinal = entity
        limit = self.limit(attribute)
        own, shift, window = self._keys(kind, attribute.name)
        if not self.is_twin(ordinal):
            return mix(own ^ ordinal) % limit
        base = mix(own ^ (ordinal - 1)) % limit
        attributes = BY_NAME[kind].attributes
        place = (BY_NAME[kind].position(attribute.name) + mix(window ^ ordinal)) % len(attributes)
        if place >= TWIN_DIFFERENCES or limit == 1:
            return base
        return (base + 1 + mix(shift ^ ordinal) % (limit - 1)) % limit

    def digits(self, kind: str, attribute: Attribute) -> Column:
        """`digit` of every entity of a type, by ordinal."""
        ordinals = np.arange(self.counts[kind], dtype=np.int64)
        limit = self.limit(attribute)
        own, shift, window = self._keys(kind, attribute.name)
        twin = self.twins_all(ordinals)
        base = _hashed(own, ordinals - twin, limit)
        if limit == 1:
            return base
        attributes = BY_NAME[kind].attributes
        turn = _hashed(window, ordinals, len(attributes))
        place = (turn + BY_NAME[kind].position(attribute.name)) % len(attributes)
        changed = (base + 1 + _hashed(shift, ordinals, limit - 1)) % limit
        return np.where(twin & (place < TWIN_DIFFERENCES), changed, base)

    def number(self, entity: Entity, attribute: Year | Number) -> int:
        """The year or count that an attribute has."""
        digit = self.digit(entity, attribute)
        if isinstance(attribute, Number):
            return _scaled(attribute, digit)
        return self._epoch(entity, attribute) + attribute.first + digit

    def _epoch(self, entity: Entity, attribute: Year) -> int:
        if not attribute.after:
            return 0
        person = Entity("person", self.digit(entity, _named(entity.kind, attribute.after)))
        return self.number(person, PERSON.attributes[0])  # type: ignore[arg-type]

    def numbers(self, kind: str, attribute: Year | Number) -> Column:
        """`number` of every entity of a type, by ordinal."""
        digits = self.digits(kind, attribute)
        if isinstance(attribute, Number):
            return _scaled_all(attribute, digits)
        epoch: Column | int = 0
        if attribute.after:
            born = self.numbers("person", PERSON.attributes[0])  # type: ignore[arg-type]
            epoch = born[self.digits(kind, _named(kind, attribute.after))]
        return epoch + attribute.first + digits

    def target(self, entity: Entity, attribute: Relation) -> Entity:
        """The entity that a relation points to."""
        return Entity(attribute.target, self.digit(entity, attribute))

    def value(self, entity: Entity, attribute: Attribute) -> str:
        """An attribute's value as in `Fact`."""
        if isinstance(attribute, Relation):
            return self.name(self.target(entity, attribute))
        if isinstance(attribute, Choice):
            return WORDS[attribute.lexicon][self.digit(entity, attribute)]
        return str(self.number(entity, attribute))

    def facts(self, entity: Entity) -> list[Fact]:
        """What the entity's article tells: its type, and each attribute."""
        name = self.name(entity)
        told = [
            Fact(name, attribute.name, self.value(entity, attribute))
            for attribute in BY_NAME[entity.kind].attributes
        ]
        return [Fact(name, "type", entity.kind), *told]

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
    parts = [key(role, seed, kind, attribute) for role in ("own", "shift")]
    return parts[0], parts[1], key("window", seed, kind)


def _named(kind: str, attribute: str) -> Attribute:
    return BY_NAME[kind].attributes[BY_NAME[kind].position(attribute)]


def _hashed(salt: int, ordinals: Column, limit: int) -> Column:
    mixed = mix_all(np.uint64(salt) ^ ordinals.astype(np.uint64))
    return (mixed % np.uint64(limit)).astype(np.int64)


def _scaled(attribute: Number, digit: int) -> int:
    if not attribute.octaves:
        return attribute.low + attribute.step * digit
    octave, part = divmod(digit, 500)
    start = attribute.low << octave
    return start + start * part // 500


def _scaled_all(attribute: Number, digits: Column) -> Column:
    if not attribute.octaves:
        return attribute.low + attribute.step * digits
    octave, part = np.divmod(digits, 500)
    start = attribute.low * np.left_shift(1, octave)
    return start + start * part // 500
