"""The web page of an entity: filler in sections, with each fact at a place of its own.

A fact's place is drawn uniformly over the page's sentences, so that neither a page's head nor any
other region of it is a better place to look.
"""

from __future__ import annotations

import math
import re
from statistics import NormalDist

from toolkit.benchmarks.fictional.filler import REGIONS, Filler
from toolkit.benchmarks.fictional.hashing import Draws, key, mix
from toolkit.benchmarks.fictional.schema import Attribute, Choice, EntityType, Relation, Year
from toolkit.benchmarks.fictional.world import BY_NAME, Entity, World
from toolkit.contracts import Document

MOST_WORDS = 150_000
SECTION_WORDS = 260  # words a section, on average
GAP = SECTION_WORDS // 14  # sentences a section
LIST_SECTIONS = 6  # sections for each bullet list, on average
MOST_LISTS = 100
MENTION_WORDS = 180  # words for each mention of another entity
MOST_MENTIONS = 60
LINE_SHARE = 0.2  # facts told as a line "Launched: 1874"
MENTIONS = (
    "Nothing of the kind is reported of {n}. ",
    "See also the page on {n}. ",
    "The same source devotes a paragraph to {n}. ",
    "Some readers confuse this matter with that of {n}. ",
    "A footnote refers to {n} without further comment. ",
    "The comparison with {n} has often been made and as often rejected. ",
    "{n} is treated elsewhere. ",
    "An exhibition on {n} was shown in the same rooms. ",
)
LISTS = ("See also", "Notes", "Contents of the folder", "Further reading", "Odds and ends")
BOXES = (
    "Page {a} of the register. Last changed {b} days ago.",
    "Entry {a} | checked | {b} readers this month",
    "Home > {kind} > entry {a}",
    "[{kind}] [{a} edits] [{b} watchers]",
)


class Articles:
    """Documents of a world, each a function of its number."""

    def __init__(self, world: World, median_words: int, p90_words: int) -> None:
        self.world = world
        self._mean = math.log(median_words)
        self._deviation = math.log(p90_words / median_words) / NormalDist().inv_cdf(0.9)

    def words(self, index: int) -> int:
        """The length aimed at: log-normal. A page is at least as long as its facts need."""
        quantile = (mix(key("length", self.world.seed) ^ index) >> 12) + 0.5
        normal = NormalDist().inv_cdf(quantile / 2.0**52)
        return min(MOST_WORDS, round(math.exp(self._mean + self._deviation * normal)))

    def document(self, index: int) -> Document:
        """Document number `index`."""
        entity = self.world.entity(index)
        kind, name = BY_NAME[entity.kind], self.world.name(entity)
        draws = Draws("article", self.world.seed, index)
        length = self.words(index)
        region = mix(key("region", self.world.seed) ^ index) % REGIONS
        filler = Filler(self.world.seed, index, entity.kind, region, length)
        told = self._told(entity, kind, draws) + self._mentions(index, length, draws)
        lists = _lists(length, filler, draws)
        spare = length - sum(len(text.split()) for text in told + lists)
        body = _scattered(filler.sentences(max(0, spare)), told, draws)
        opening = draws.choice(kind.opening).format(n=name) + " "
        text = _laid_out([opening, *body], kind, lists, draws)
        slug = re.sub(r"\W+", "-", name.lower())
        site = draws.choice(("gazetteer", "almanac", "register", "chronicle", "lexicon"))
        return Document(docid(index), name, text, f"https://{site}.example/{kind.name}/{slug}")

    def _told(self, entity: Entity, kind: EntityType, draws: Draws) -> list[str]:
        return [self.sentence(entity, attribute, draws) for attribute in kind.attributes]

    def sentence(self, entity: Entity, attribute: Attribute, draws: Draws) -> str:
        """One wording of one fact."""
        value = shown(attribute, self.world.value(entity, attribute))
        if draws.chance(LINE_SHARE):
            return f"\n{attribute.line.format(v=value)}\n"
        subject = self._subject(entity, draws)
        sentence = draws.choice(attribute.tells).format(s=subject, v=value)
        return capitalised(sentence) + " "

    def _subject(self, entity: Entity, draws: Draws) -> str:
        turn = draws.below(10)
        if turn < 5:
            return self.world.name(entity)
        if entity.kind == "person" or turn < 7:
            return self.world.short_name(entity)
        nouns = BY_NAME[entity.kind].nouns
        return f"the {nouns[0] if turn < 9 else nouns[1]}"

    def _mentions(self, index: int, length: int, draws: Draws) -> list[str]:
        """Sentences that name other entities and say nothing about them."""
        count = min(MOST_MENTIONS, length // MENTION_WORDS)
        others = [draws.below(self.world.size) for _ in range(count)]
        names = [self.world.name(self.world.entity(other)) for other in others if other != index]
        return [capitalised(draws.choice(MENTIONS).format(n=name)) for name in names]


def docid(index: int) -> str:
    """The docid of document number `index`."""
    return f"fw{index:07d}"


def shown(attribute: Attribute, value: str) -> str:
    """A fact's value as pages print it: counts with thousands separators, years without."""
    if isinstance(attribute, (Choice, Relation, Year)):
        return value
    return f"{int(value):,}"


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _scattered(filler: list[str], told: list[str], draws: Draws) -> list[str]:
    """The told sentences at places drawn uniformly among all sentences."""
    total = len(filler) + len(told)
    places = set(draws.shuffled(range(total))[: len(told)]) if total < 64 else set()
    while len(places) < len(told):
        places.add(draws.below(total))
    order, rest = iter(draws.shuffled(told)), iter(filler)
    return [next(order) if place in places else next(rest) for place in range(total)]


def _lists(length: int, filler: Filler, draws: Draws) -> list[str]:
    """Bullet lists, about one for every `LIST_SECTIONS` sections."""
    sections = min(length // SECTION_WORDS, MOST_LISTS * LIST_SECTIONS)
    count = sum(draws.below(LIST_SECTIONS) == 0 for _ in range(sections))
    sizes = [draws.between(3, 7) for _ in range(count)]
    items = iter(filler.items(sum(sizes)))
    return [
        f"\n\n{draws.choice(LISTS)}\n" + "".join(f"- {next(items)}\n" for _ in range(size)) + "\n"
        for size in sizes
    ]


def _laid_out(body: list[str], kind: EntityType, lists: list[str], draws: Draws) -> str:
    """Headings, an entry line, lists and paragraph breaks around the sentences."""
    box = draws.choice(BOXES) if draws.chance(0.6) else ""
    label = box.format(kind=kind.name, a=draws.between(100, 9999), b=draws.between(2, 900))
    for bullets in lists:
        body[draws.below(len(body))] += bullets
    _add_headings(body, kind, draws)
    text = "".join([label, "\n\n" if label else "", *body]).replace(" \n", "\n")
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip() + "\n"


def _add_headings(body: list[str], kind: EntityType, draws: Draws) -> None:
    headings = draws.shuffled(kind.headings)
    for turn, place in enumerate(range(draws.between(3, GAP), len(body), GAP)):
        part, number = divmod(turn, len(headings))
        heading = f"{headings[number]}{f' ({part + 1})' if part else ''}"
        body[place] = f"\n\n{heading}\n{body[place]}"
