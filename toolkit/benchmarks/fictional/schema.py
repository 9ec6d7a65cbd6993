"""What a type of entity is: its attributes, and the sentences that state and ask them.

The types stand in `data/entities.yaml`, their lexicons in `data/lexicons.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from toolkit.benchmarks.fictional.data import load

LEXICONS: Mapping[str, Mapping[str, str]] = load("lexicons")  # word -> its paraphrase


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """An attribute, the sentences in which a page may state it, and the form of a line for it."""

    name: str
    tells: tuple[str, ...]
    line: str


@dataclass(frozen=True, kw_only=True)
class Clueable(Attribute):
    """An attribute with `size` possible digits. `clues` are the plain phrase and a paraphrase."""

    clues: tuple[str, str]
    size: int


@dataclass(frozen=True, kw_only=True)
class Choice(Clueable):
    """A word of a lexicon."""

    lexicon: str


@dataclass(frozen=True, kw_only=True)
class Quantity(Clueable):
    """A number; `ask` asks for it, `polar` whether it lies on one side of a threshold."""

    ask: str
    polar: str


@dataclass(frozen=True, kw_only=True)
class Year(Quantity):
    """A year: `first` plus the digit; after the birth year of the person that `after` names, where
    it names one."""

    first: int
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class Number(Quantity):
    """A count: `low` plus the digit; or, where `octaves` is set, `low` times a power of two below
    2 ** octaves, with 500 steps in each octave (like town populations)."""

    low: int
    octaves: int = 0


@dataclass(frozen=True, kw_only=True)
class Relation(Attribute):
    """Another entity, of type `target`. `links` are the plain phrase and a paraphrase."""

    links: tuple[str, str]
    ask: str
    target: str


@dataclass(frozen=True)
class EntityType:
    """A type of entity. `slots` of every 16 entities are of it. `nouns` are the plain word and the
    paraphrase that a question uses; `forms` make a name from its stem; `headings` are an article's
    sections; `opening` is its first sentence."""

    name: str
    slots: int
    nouns: tuple[str, str]
    forms: tuple[str, ...]
    opening: tuple[str, ...]
    headings: tuple[str, ...]
    attributes: tuple[Attribute, ...]

    def position(self, attribute: str) -> int:
        return [known.name for known in self.attributes].index(attribute)


_CLASSES = {"year": Year, "number": Number, "choice": Choice, "relation": Relation}


def _attribute(name: str, settings: Mapping[str, Any]) -> Attribute:
    fields = _with_tuples(settings)
    if "lexicon" in fields:
        fields["size"] = len(LEXICONS[fields["lexicon"]])
    elif "octaves" in fields:
        fields["size"] = 500 * fields["octaves"]
    return _CLASSES[fields.pop("kind")](name=name, **fields)


def _entity_type(name: str, settings: Mapping[str, Any]) -> EntityType:
    fields = _with_tuples(settings)
    attributes = [_attribute(key, value) for key, value in fields["attributes"].items()]
    return EntityType(**{**fields, "name": name, "attributes": tuple(attributes)})


def _with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(it) if isinstance(it, list) else it for key, it in settings.items()}


TYPES = tuple(_entity_type(name, settings) for name, settings in load("entities").items())
BY_NAME = {kind.name: kind for kind in TYPES}

A = TypeVar("A", bound=Attribute)


@overload
def attribute_of(kind: str, name: str) -> Attribute: ...
@overload
def attribute_of(kind: str, name: str, expected: type[A]) -> A: ...
def attribute_of(kind: str, name: str, expected: type[Attribute] = Attribute) -> Attribute:
    """The attribute `name` of the type `kind`. `TypeError` where it is not of class `expected`."""
    attribute = BY_NAME[kind].attributes[BY_NAME[kind].position(name)]
    if not isinstance(attribute, expected):
        raise TypeError(f"{name} of a {kind} is no {expected.__name__}")
    return attribute
