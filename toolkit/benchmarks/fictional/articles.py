"""The web page of an entity: filler in sections, with each fact at a place of its own.

A fact's place is drawn uniformly over the page's sentences, so that neither a page's head nor any
other region of it is a better place to look.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from toolkit.benchmarks.fictional.data import load
from toolkit.benchmarks.fictional.filler import REGIONS, Filler
from toolkit.benchmarks.fictional.hashing import Draws, key, mix
from toolkit.benchmarks.fictional.schema import (
    BY_NAME,
    Attribute,
    EntityType,
    Number,
    Relation,
)
from toolkit.benchmarks.fictional.world import Entity, World
from toolkit.contracts import Document, Link

MOST_WORDS = 150_000
LINK_RATE = 0.5  # share of the links that are there
LINK_SEED = 1
SECTION_WORDS = 260  # words a section, on average
GAP = SECTION_WORDS // 14  # sentences a section
LIST_SECTIONS = 6  # sections for each bullet list, on average
MOST_LISTS = 100
MENTION_WORDS = 180  # words for each mention of another entity
MOST_MENTIONS = 60
LINE_SHARE = 0.2  # facts stated as a line "Launched: 1874"
SITES = ("gazetteer", "almanac", "register", "chronicle", "lexicon")
PHRASES = load("phrases")
_WORD = re.compile(r"\w+")


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
        facts = [self.sentence(entity, attribute, draws) for attribute in kind.attributes]
        own = facts + self._mentions(index, length, draws)
        lists = _lists(length, filler, draws)
        spare = length - sum(len(text.split()) for text in own + lists)
        body = _scattered(filler.sentences(max(0, spare)), own, draws)
        opening = draws.choice(kind.opening).format(n=name) + " "
        text = _laid_out([opening, *body], kind, lists, draws)
        slug = re.sub(r"\W+", "-", name.lower())
        site = draws.choice(SITES)
        return Document(docid(index), name, text, f"https://{site}.example/{kind.name}/{slug}")

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
        others = self._mentioned(index, length, draws)
        names = [self.world.name(self.world.entity(other)) for other in others]
        frames = PHRASES["mentions"]
        return [capitalised(draws.choice(frames).format(n=name)) for name in names]

    def _mentioned(self, index: int, length: int, draws: Draws) -> list[int]:
        count = min(MOST_MENTIONS, length // MENTION_WORDS)
        others = [draws.below(self.world.size) for _ in range(count)]
        return [other for other in others if other != index]

    def named(self, index: int) -> list[int]:
        """The numbers of the documents about entities that document `index` names, each once:
        those of its facts, then those of its mentions."""
        entity = self.world.entity(index)
        draws = Draws("article", self.world.seed, index)
        numbers = []
        for attribute in BY_NAME[entity.kind].attributes:
            self.sentence(entity, attribute, draws)  # for the draws, which mentions come after
            if isinstance(attribute, Relation):
                numbers.append(self.world.index(self.world.target(entity, attribute)))
        numbers += self._mentioned(index, self.words(index), draws)
        return [number for number in dict.fromkeys(numbers) if number != index]

    def statistics(self, sample: int) -> dict[str, float]:
        """See `FictionalWorld.statistics`."""
        size = self.world.size
        counts: Counter[str] = Counter()
        lengths = []
        for turn in range(sample):
            words = _WORD.findall(self.document(turn * size // sample).text.lower())
            counts.update(words)
            lengths.append(len(words))
        return {
            "documents": size,
            "sample": sample,
            "mean": float(np.mean(lengths)),
            "median": float(np.median(lengths)),
            "p90": float(np.percentile(lengths, 90)),
            "max": max(lengths),
            "words": sum(lengths),
            "distinct": len(counts),
            "singletons": sum(count == 1 for count in counts.values()),
            "expected_words": round(float(np.mean(lengths)) * size),
        }


def docid(index: int) -> str:
    """The docid of document number `index`."""
    return f"fw{index:07d}"


def links(articles: Articles) -> Iterator[Link]:
    """Who names whom, thinned at random: in the order of the documents, each link once. Whether one
    is there is a function of its two ends and the world's seed.

    All links would solve questions that name an entity, so a part of them is left out. The part was
    fixed before any retrieval was run on the links, and is tuned to nothing.
    """
    size = articles.world.size
    own = key("links", LINK_SEED, articles.world.seed)
    threshold = round(LINK_RATE * (1 << 20))
    for source in range(size):
        for target in articles.named(source):
            if mix(own ^ (source * size + target)) >> 44 < threshold:
                yield Link(docid(source), docid(target))


def number_of(name: str, size: int) -> int:
    """The number of the document with this docid among `size`. `KeyError` where there is none."""
    match = re.fullmatch(r"fw(\d{7,})", name)
    if not match or int(match[1]) >= size or docid(int(match[1])) != name:
        raise KeyError(name)
    return int(match[1])


def shown(attribute: Attribute, value: str) -> str:
    """A fact's value as pages print it: counts with thousands separators, years without."""
    return f"{int(value):,}" if isinstance(attribute, Number) else value


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _scattered(filler: list[str], own: list[str], draws: Draws) -> list[str]:
    """The page's own sentences at positions drawn uniformly among all sentences."""
    total = len(filler) + len(own)
    positions = set(draws.shuffled(range(total))[: len(own)]) if total < 64 else set()
    while len(positions) < len(own):
        positions.add(draws.below(total))
    own_sentences, others = iter(draws.shuffled(own)), iter(filler)
    return [next(own_sentences if position in positions else others) for position in range(total)]


def _lists(length: int, filler: Filler, draws: Draws) -> list[str]:
    """Bullet lists, about one for every `LIST_SECTIONS` sections."""
    sections = min(length // SECTION_WORDS, MOST_LISTS * LIST_SECTIONS)
    count = sum(draws.below(LIST_SECTIONS) == 0 for _ in range(sections))
    sizes = [draws.between(3, 7) for _ in range(count)]
    items = iter(filler.items(sum(sizes)))
    lists = []
    for size in sizes:
        lines = [f"- {next(items)}\n" for _ in range(size)]
        lists.append(f"\n\n{draws.choice(PHRASES['lists'])}\n{''.join(lines)}\n")
    return lists


def _laid_out(body: list[str], kind: EntityType, lists: list[str], draws: Draws) -> str:
    """Headings, an entry line, lists and paragraph breaks around the sentences."""
    box = draws.choice(PHRASES["boxes"]) if draws.chance(0.6) else ""
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
    for turn, position in enumerate(range(draws.between(3, GAP), len(body), GAP)):
        part, number = divmod(turn, len(headings))
        suffix = f" ({part + 1})" if part else ""
        body[position] = f"\n\n{headings[number]}{suffix}\n{body[position]}"
