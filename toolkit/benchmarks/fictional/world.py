"""The facts of the world: which entities exist, what holds of them, and what they are called. Each
value is a function of the seed and of a key, computed with integer operations only, so that every
platform makes the same world. The types of entities are in `data/entities.yaml`, the words of their
attributes in `data/lexicons.yaml`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import yaml

T = TypeVar("T")
Column = npt.NDArray[Any]  # of `uint64`
Integers = TypeVar("Integers", int, Column)  # one integer, or an array of `uint64`
MASK = (1 << 64) - 1
TWIN_DIFFERENCES = 3  # neighbouring attributes in which a twin may differ from its base


@lru_cache
def load_data(name: str) -> Any:
    """The contents of `data/<name>.yaml`, read once a process."""
    path = Path(__file__).with_name("data") / f"{name}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # faster, where libyaml is installed
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)


def word_lists() -> dict[str, list[str]]:
    """The lists of words and of parts of words in `data/vocabulary.yaml`."""
    return {name: text.split() for name, text in load_data("vocabulary").items()}


def hash64(*parts: Any) -> int:
    """64 bits that stand for the parts (unlike `hash()`, the same in every process)."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def splitmix64(value: Integers) -> Integers:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014) for a 64-bit integer or for each
    element of an array of them."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class Random:
    """A stream of random choices, seeded by the parts of its key."""

    def __init__(self, *parts: Any) -> None:
        self._state = hash64(*parts)

    def below(self, limit: int) -> int:
        """An integer from 0 to `limit - 1`."""
        self._state = (self._state + 1) & MASK
        return splitmix64(self._state ^ 0xD1B54A32D192ED03) * limit >> 64

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability, in steps of a millionth."""
        return self.below(1_000_000) < round(probability * 1_000_000)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A shuffled copy (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


class NumberPermutation:
    """A bijection of 0..size-1 that scatters neighbours."""

    def __init__(self, size: int, *parts: object) -> None:
        self.size = size
        self._shift = hash64("shift", *parts) % size
        self._factor = max(1, size * 618 // 1000 + hash64("factor", *parts) % max(1, size // 8))
        while gcd(self._factor, size) != 1:
            self._factor += 1

    def __call__(self, number: int) -> int:
        return (number * self._factor + self._shift) % self.size


# Names. A stem is a number written in mixed radix with syllables as digits. Every syllable starts
# with a consonant group and ends with a vowel, and the ending closes the word, so that different
# numbers give different stems. A twin's stem is the stem of its base with another ending, which no
# base has.
_LISTS = word_lists()
FINALS = _LISTS["name_finals"]
BASE_RHYMES, TWIN_RHYMES = _LISTS["name_base_rhymes"], _LISTS["name_twin_rhymes"]
GIVEN_ENDINGS = _LISTS["name_given_endings"]
SYLLABLES = [
    onset + nucleus for onset in _LISTS["name_onsets"] for nucleus in _LISTS["name_nuclei"]
]
ENDINGS = [(final, rhyme) for rhyme in range(len(BASE_RHYMES)) for final in FINALS]
CAPACITY = len(SYLLABLES) ** 2 * len(ENDINGS)
GIVEN_CAPACITY = len(SYLLABLES) * len(FINALS) * len(GIVEN_ENDINGS)


def name_stem(number: int, twin: bool = False) -> str:
    """The stem of `number` (below `CAPACITY`), capitalised, or the stem of its twin."""
    number, ending = divmod(number, len(ENDINGS))
    second, first = divmod(number, len(SYLLABLES))
    final, rhyme = ENDINGS[ending]
    middle = SYLLABLES[second] if second else ""
    text = SYLLABLES[first] + middle + final + (TWIN_RHYMES if twin else BASE_RHYMES)[rhyme]
    return text.capitalize()


def given_name(number: int) -> str:
    """The given name of `number` (below `GIVEN_CAPACITY`)."""
    number, ending = divmod(number, len(GIVEN_ENDINGS))
    final, first = divmod(number, len(SYLLABLES))
    return (SYLLABLES[first] + FINALS[final] + GIVEN_ENDINGS[ending]).capitalize()


YEAR, NUMBER, CHOICE, RELATION = "year", "number", "choice", "relation"
OCTAVE_STEPS = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute:
    """An attribute of a type of entities, as `data/entities.yaml` states it.

    Args:
        name: of the attribute.
        kind: `year` or `number`, which are quantities; `choice`, a word of a lexicon; or
            `relation`, another entity.
        tells: the sentences in which a page may state it.
        line: the form of a line for it.
        clues, links: the plain phrase and a paraphrase; `links` of a relation, else `clues`.
        ask: asks for a quantity or for the entity of a relation.
        polar: asks whether a quantity lies on one side of a threshold.
        size: the number of possible digits of a quantity without `octaves`.
        first: a quantity is `first` plus the digit.
        after: the relation to a person whose birth year is added to a year.
        octaves: where it is set, a number is `first` times a power of two below 2 ** octaves, with
            500 steps in each octave (like populations of towns).
        lexicon: of a choice.
        target: the type of the entity that a relation points to.
    """

    name: str
    kind: str
    tells: Sequence[str]
    line: str
    clues: Sequence[str] = ()
    links: Sequence[str] = ()
    ask: str = ""
    polar: str = ""
    size: int = 0
    first: int = 0
    after: str = ""
    octaves: int = 0
    lexicon: str = ""
    target: str = ""

    @property
    def is_quantity(self) -> bool:
        return self.kind in (YEAR, NUMBER)


@dataclass(frozen=True, kw_only=True, eq=False)
class EntityType:
    """A type of entity. `slots` of every 16 entities are of it. `nouns` are the plain word and the
    paraphrase that a question uses; `forms` make a name from its stem; `headings` are the sections
    of an article; `opening` are the variants of its first sentence; `attributes` are given by name,
    with the other fields of each."""

    name: str
    slots: int
    nouns: Sequence[str]
    forms: Sequence[str]
    opening: Sequence[str]
    headings: Sequence[str]
    attributes: Sequence[Attribute]

    def position(self, attribute: str) -> int:
        return [known.name for known in self.attributes].index(attribute)


LEXICONS: Mapping[str, Mapping[str, str]] = load_data("lexicons")  # word -> its paraphrase
WORDS = {name: list(words) for name, words in LEXICONS.items()}


def _entity_type(name: str, settings: Mapping[str, Any]) -> EntityType:
    attributes = [Attribute(name=key, **value) for key, value in settings["attributes"].items()]
    return EntityType(**{**settings, "name": name, "attributes": attributes})


TYPES = tuple(_entity_type(name, settings) for name, settings in load_data("entities").items())
BY_NAME = {kind.name: kind for kind in TYPES}
# The types of 16 neighbouring entities; entities of one type are apart.
SLOTS = [
    kind
    for layer in range(max(kind.slots for kind in TYPES))
    for kind in TYPES
    if kind.slots > layer
]
PERIOD = len(SLOTS)
POSITIONS = {
    kind.name: [position for position, slot in enumerate(SLOTS) if slot is kind] for kind in TYPES
}
ORDER = [POSITIONS[slot.name].index(position) for position, slot in enumerate(SLOTS)]


def attribute_of(kind: str, name: str) -> Attribute:
    """The attribute `name` of the type `kind`."""
    return BY_NAME[kind].attributes[BY_NAME[kind].position(name)]


class Entity(NamedTuple):
    """An entity: the name of its type and its number within the type, from 0."""

    kind: str
    ordinal: int


class Fact(NamedTuple):
    """A statement of an article about its own entity. `subject` is the name of the entity; `value`
    is the digits of a number or year, a word of a lexicon, or the name of another entity."""

    subject: str
    relation: str
    value: str


class World:
    """Entities, attributes and names, as functions of the seed. An attribute of an entity is a
    digit, a function of seed, type, attribute and ordinal. A twin has the digits of its base except
    on `TWIN_DIFFERENCES` neighbouring attributes. Methods take one ordinal or a column of them."""

    def __init__(self, size: int, seed: int, twins: float) -> None:
        self.size = size
        self.seed = seed
        self._twin_rate = round(twins * 1000)
        periods, rest = divmod(size, PERIOD)
        self.counts = {
            name: periods * len(positions) + sum(position < rest for position in positions)
            for name, positions in POSITIONS.items()
        }
        largest = max(count for name, count in self.counts.items() if name != "person")
        stems = min(CAPACITY, max(largest, 100 + size // 6))
        self._stems = {
            kind.name: NumberPermutation(stems, seed, "stem", kind.name, stems) for kind in TYPES
        }
        self._scatter = NumberPermutation(CAPACITY, seed, "scatter")
        persons = self.counts["person"]
        self._givens = min(GIVEN_CAPACITY, 40 + int(persons**0.5) * 3)
        families = max(20, persons // self._givens + 1, persons // 8)
        self._person = NumberPermutation(self._givens * families, seed, "person")
        self._given = NumberPermutation(GIVEN_CAPACITY, seed, "given")

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
        """The ordinals of all entities of a type."""
        return np.arange(self.counts[kind], dtype=np.uint64)

    def is_twin(self, ordinals: int | Column) -> Any:
        """Whether each entity is a near copy of the one before it."""
        rate = self._twin_rate
        return (ordinals + 1) * rate // 1000 > ordinals * rate // 1000

    def digits(self, kind: str, attribute: Attribute, ordinals: Integers) -> Integers:
        """The digits of one attribute of entities of a type."""
        if attribute.kind == RELATION:
            limit = self.counts[attribute.target]
        elif attribute.kind == CHOICE:
            limit = len(WORDS[attribute.lexicon])
        else:
            limit = attribute.size or OCTAVE_STEPS * attribute.octaves
        value_key, shift_key, window_key = _keys(self.seed, kind, attribute.name)
        twin = self.is_twin(ordinals)
        base = splitmix64(value_key ^ (ordinals - twin)) % limit
        if limit == 1:
            return base
        size = len(BY_NAME[kind].attributes)
        first = splitmix64(window_key ^ ordinals) % size
        position = (first + BY_NAME[kind].position(attribute.name)) % size
        differs = twin & (position < TWIN_DIFFERENCES)
        return (base + differs * (1 + splitmix64(shift_key ^ ordinals) % (limit - 1))) % limit

    def numbers(self, kind: str, attribute: Attribute, ordinals: Integers) -> Integers:
        """The years or counts of a quantity of entities of a type."""
        digits = self.digits(kind, attribute, ordinals)
        if attribute.octaves:
            octave, step = divmod(digits, OCTAVE_STEPS)
            start = attribute.first << octave
            return start + start * step // OCTAVE_STEPS
        if attribute.after:
            persons = self.digits(kind, attribute_of(kind, attribute.after), ordinals)
            digits = digits + self.numbers("person", attribute_of("person", "born"), persons)
        return attribute.first + digits

    def number(self, entity: Entity, attribute: Attribute) -> int:
        """The year or count of one entity."""
        return self.numbers(entity.kind, attribute, entity.ordinal)

    def target(self, entity: Entity, attribute: Attribute) -> Entity:
        """The entity that a relation points to."""
        return Entity(attribute.target, self.digits(entity.kind, attribute, entity.ordinal))

    def value(self, entity: Entity, attribute: Attribute) -> str:
        """The value of an attribute as in `Fact`."""
        if attribute.kind == RELATION:
            return self.name(self.target(entity, attribute))
        if attribute.kind == CHOICE:
            return WORDS[attribute.lexicon][self.digits(entity.kind, attribute, entity.ordinal)]
        return str(self.number(entity, attribute))

    def facts(self, entity: Entity) -> list[Fact]:
        """The facts in the article of the entity: its type, and each attribute."""
        values = {it.name: self.value(entity, it) for it in BY_NAME[entity.kind].attributes}
        name = self.name(entity)
        return [Fact(name, key, value) for key, value in ({"type": entity.kind} | values).items()]

    def name(self, entity: Entity) -> str:
        """The full name, which no other entity has."""
        kind, ordinal = entity
        twin = self.is_twin(ordinal)
        base = ordinal - twin
        if kind == "person":
            family, first = divmod(self._person(base), self._givens)
            family_name = name_stem(self._scatter(CAPACITY - 1 - family), twin)
            return f"{given_name(self._given(first))} {family_name}"
        forms = BY_NAME[kind].forms
        form = forms[splitmix64(_keys(self.seed, kind, "form")[0] ^ base) % len(forms)]
        return form.format(name_stem(self._scatter(self._stems[kind](base)), twin))

    def short_name(self, entity: Entity) -> str:
        """The family name of a person, the full name of anything else."""
        name = self.name(entity)
        return name.split(" ")[1] if entity.kind == "person" else name


@lru_cache(maxsize=4096)
def _keys(seed: int, kind: str, attribute: str) -> tuple[int, int, int]:
    value, shift = hash64("own", seed, kind, attribute), hash64("shift", seed, kind, attribute)
    return value, shift, hash64("window", seed, kind)
