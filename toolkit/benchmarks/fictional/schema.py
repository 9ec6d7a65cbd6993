"""What a type of entity is: its attributes, and the sentences that tell and ask them.

In sentences `{s}` is the subject as the article calls it, `{v}` the value. In links `{a}` is the
entity whose article tells the fact and `{b}` the entity that it points to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from toolkit.benchmarks.fictional.lexicon import LEXICONS


@dataclass(frozen=True)
class Year:
    """A year: `first` plus a digit below `span`; after the birth year of the person that `after`
    names, where it names one."""

    name: str
    tells: tuple[str, ...]
    line: str
    clues: tuple[str, str]
    ask: str
    polar: str
    first: int
    span: int
    after: str = ""

    @property
    def size(self) -> int:
        return self.span


@dataclass(frozen=True)
class Number:
    """A count: `low + step * digit`, digits below `size`; or, where `octaves` is set, `low` times
    a power of two below 2 ** octaves, with 500 steps in each octave (like town populations)."""

    name: str
    tells: tuple[str, ...]
    line: str
    clues: tuple[str, str]
    ask: str
    polar: str
    low: int
    step: int = 1
    size: int = 0
    octaves: int = 0

    def __post_init__(self) -> None:
        if self.octaves:
            object.__setattr__(self, "size", 500 * self.octaves)


@dataclass(frozen=True)
class Choice:
    """A word of a lexicon. `clues` have `{v}` for the word or its paraphrase."""

    name: str
    tells: tuple[str, ...]
    line: str
    clues: tuple[str, str]
    lexicon: str

    @property
    def size(self) -> int:
        return len(LEXICONS[self.lexicon])


@dataclass(frozen=True)
class Relation:
    """Another entity, of type `target`."""

    name: str
    tells: tuple[str, ...]
    line: str
    links: tuple[str, str]
    ask: str
    target: str


Attribute: TypeAlias = Year | Number | Choice | Relation


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
