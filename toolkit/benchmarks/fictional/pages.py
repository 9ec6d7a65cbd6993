"""The web page of an entity: filler in sections, with each fact at a place that is drawn uniformly
over its sentences. The words of the filler follow Zipf's law. A noun comes from the complete
vocabulary, from the words of the entity's type or region, or from a few that the document repeats
(burstiness), so that the vocabulary of a collection keeps growing (Heaps' law). A word is a number;
lower numbers are more common. Every choice is an integer operation on Philox counter bits."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from soundingline.toolkit.benchmarks.fictional.world import (
    BY_NAME,
    LEXICONS,
    NUMBER,
    RELATION,
    Attribute,
    Entity,
    EntityType,
    Random,
    World,
    hash64,
    load_data,
    splitmix64,
    word_lists,
)
from soundingline.toolkit.data import Document, StatedFact

# Filler
SCATTER = 14_369  # prime to the number of stems, and far from the multiples of its divisors
REGIONS = 48
TOPIC_WORDS = 1 << 12
BITS = 16
SHIFT = 12  # of Zipf-Mandelbrot: flattens the head, as in running text
SHARES = (0.5, 0.7, 0.88)  # nouns: general, then type, then region, then the document's own
FIRST_YEAR, LAST_YEAR = 1700, 1999
LARGEST_COUNT = 400

# Pages
MOST_WORDS = 150_000
SECTION_WORDS = 260  # words a section, on average
GAP = SECTION_WORDS // 14  # sentences a section
LIST_SECTIONS = 6  # sections for each bullet list, on average
MOST_LISTS = 100
MENTION_WORDS = 180  # words for each mention of another entity
MOST_MENTIONS = 60
LINE_SHARE = 0.2  # facts stated as a line "Launched: 1874"
SITES = ("gazetteer", "almanac", "register", "chronicle", "lexicon")
PHRASES = load_data("phrases")

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

_SLOT = re.compile(r"\b([NAVYC])\b")
_CODES = {"N": 0, "A": 1, "V": 2, "Y": 3, "C": 4}


class PageWords(NamedTuple):
    """All words in one list: nouns, adjectives and verbs, each from common to rare. `starts` and
    `sizes` are those of the three blocks. Behind them are years and counts, from `numbers` on."""

    words: list[str]
    starts: tuple[int, int, int]
    sizes: tuple[int, int, int]
    numbers: int


@lru_cache(maxsize=1)
def vocabulary() -> PageWords:
    """The vocabulary of the filler, made once a process: common English words first, then a long
    tail of invented ones."""
    lists = word_lists()
    stems = [
        onset + vowel + coda
        for onset in lists["stem_onsets"]
        for vowel in lists["stem_vowels"]
        for coda in lists["stem_codas"]
    ]
    # Pages use the words of facts and of their paraphrases for other things too, so that none of
    # these words points to one page by itself.
    lexicons = [LEXICONS[name] for name in sorted(LEXICONS)]
    texts = [value for lexicon in lexicons for value in lexicon]
    texts += [paraphrase for lexicon in lexicons for paraphrase in lexicon.values()]
    words_of_facts = [word for text in texts for word in text.split() if len(word) > 3]
    common_nouns = list(dict.fromkeys(lists["nouns"] + words_of_facts))
    nouns = common_nouns + _invented(stems, lists["noun_endings"], 1 << 19)
    adjectives = list(dict.fromkeys(lists["adjectives"]))
    adjectives += _invented(stems, lists["adjective_endings"], 1 << 17)
    verbs = list(dict.fromkeys(lists["verbs"])) + _invented(stems, lists["verb_endings"], 1 << 15)
    words = nouns + adjectives + [_past_tense(verb) for verb in verbs]
    years = [str(year) for year in range(FIRST_YEAR, LAST_YEAR + 1)]
    return PageWords(
        words=words + years + [str(count + 2) for count in range(LARGEST_COUNT)],
        starts=(0, len(nouns), len(nouns) + len(adjectives)),
        sizes=(len(nouns), len(adjectives), len(verbs)),
        numbers=len(words),
    )


def _invented(stems: list[str], endings: list[str], most: int) -> list[str]:
    """Up to `most` invented words in a scattered order, so that words of neighbouring ranks do not
    look alike. In each turn every stem gets one ending, and another one in the next turn."""
    words: list[str] = []
    for turn in range(min(len(endings), most // len(stems) + 1)):
        for position in range(len(stems)):
            number = (position * SCATTER + turn * 4001) % len(stems)
            words.append(stems[number] + endings[(number + turn) % len(endings)])
    return words[:most]


def _past_tense(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"


class Parts(NamedTuple):
    """Sentence parts, flattened: part `p` has the format `formats[p]`, `words[p]` words, and the
    slot codes `slots[starts[p]:starts[p] + counts[p]]`."""

    formats: list[str]
    words: Ids
    slots: Ids
    starts: Ids
    counts: Ids

    @classmethod
    def of(cls, templates: list[str]) -> Parts:
        codes = [[_CODES[slot] for slot in _SLOT.findall(text)] for text in templates]
        counts = np.array([len(code) for code in codes])
        return cls(
            formats=[_SLOT.sub("%s", text) for text in templates],
            words=np.array([len(text.split()) for text in templates]),
            slots=np.array([code for part in codes for code in part]),
            starts=np.cumsum(counts) - counts,
            counts=counts,
        )


@lru_cache(maxsize=1)
def grammar() -> tuple[Parts, tuple[int, int, int], list[str], Parts]:
    """The grammar in `data/filler.yaml`, where an entry with `times` counts that many times:
    openers, cores and tails in one table, the number of each, ends, and list items."""
    parts: dict[str, list[str]] = {}
    for name, entries in load_data("filler").items():
        texts = parts.setdefault(name, [])
        for entry in entries:
            texts += [entry["text"]] * entry["times"] if isinstance(entry, dict) else [entry]
    openers, cores, tails = parts["openers"], parts["cores"], parts["tails"]
    sizes = len(openers), len(cores), len(tails)
    return Parts.of(openers + cores + tails), sizes, parts["ends"], Parts.of(parts["items"])


def zipf(bits: Bits, size: int, shift: int = SHIFT, roots: int = 2) -> Ids:
    """Ranks below `size` by the Zipf-Mandelbrot law 1 / (rank + shift) ** (1 + 2 ** -roots), from
    32 bits each: the upper half picks one of 2 ** BITS quantiles, the lower a rank in it."""
    low, span = _quantiles(size, shift, roots)
    quantile = (bits >> np.uint64(BITS)).astype(np.int64) & ((1 << BITS) - 1)
    within = bits.astype(np.int64) & ((1 << BITS) - 1)
    return low[quantile] + (within * span[quantile] >> BITS)  # in 64 bits


@lru_cache(maxsize=64)
def _quantiles(size: int, shift: int, roots: int) -> tuple[npt.NDArray[np.int32], ...]:
    # Division, product and square root are rounded exactly on every platform, unlike powers.
    ranks = np.arange(size, dtype=np.float64) + shift
    root = ranks
    for _ in range(roots):
        root = np.sqrt(root)
    weights = (2.0**50 / (ranks * root)).astype(np.int64) + 1
    total = np.cumsum(weights)
    edges = (int(total[-1]) >> BITS) * np.arange((1 << BITS) + 1, dtype=np.int64)
    ranks_at = np.minimum(np.searchsorted(total, edges, side="right"), size - 1)
    low = ranks_at[:-1]
    span = np.maximum(1, ranks_at[1:] - low)
    return low.astype(np.int32), span.astype(np.int32)


def philox_bits(count: int, *parts: object) -> Bits:
    """64-bit words of the Philox stream of this key (its raw output never changes)."""
    stream = np.random.Philox(key=np.array([hash64(*parts), 0], dtype=np.uint64))
    return stream.random_raw(count)


@lru_cache(maxsize=256)
def _topic_nouns(seed: int, topic: str) -> Ids:
    """The numbers of a topic's nouns, the most common first: drawn from a flatter general law."""
    size = vocabulary().sizes[0]
    bits = philox_bits(2 * TOPIC_WORDS, seed, "topic", topic) >> np.uint64(32)
    fresh = np.unique(zipf(bits, size, 100))
    order = np.argsort(philox_bits(len(fresh), seed, "order", topic), kind="stable")
    return np.resize(fresh[order], TOPIC_WORDS)


class Filler:
    """The filler of one document: a stream of sentences. `kind` and `region` are its topics;
    `scale` is about the number of words that the document will have, to which the number of its own
    words is proportional."""

    def __init__(self, seed: int, index: int, kind: str, region: int, scale: int) -> None:
        self._seed, self._index = seed, index
        size = vocabulary().sizes[0]
        own_words = 1 << max(3, (scale // 80).bit_length())  # few sizes, so few tables
        self._own = zipf(philox_bits(own_words, seed, "own", index) >> np.uint64(32), size, 600)
        self._topics = (_topic_nouns(seed, kind), _topic_nouns(seed, f"region {region}"))

    def sentences(self, words: int) -> list[str]:
        """Sentences of at least `words` words in all (none for 0), each with its end mark and the
        space or line break after it."""
        if words <= 0:
            return []
        table, sizes, ends, _ = grammar()
        # Opener, core, tail and end of each sentence take 16 of the 64 bits of a draw.
        drawn = philox_bits(words // 6 + 1, self._seed, "sentences", self._index)
        quarters = [(drawn >> np.uint64(16 * turn) & np.uint64(0xFFFF)) for turn in range(4)]
        starts = np.array([0, sizes[0], sizes[0] + sizes[1], 0])
        choices = np.stack(quarters, axis=1).astype(np.int64) % [*sizes, len(ends)] + starts
        lengths = np.cumsum(table.words[choices[:, :3]].sum(axis=1))
        choices = choices[: int(np.searchsorted(lengths, words)) + 1]
        formats = table.formats
        texts = [
            formats[opener] + formats[core] + formats[tail] + ends[end]
            for opener, core, tail, end in choices.tolist()
        ]
        values = self._words(table, choices[:, :3].ravel(), "words")
        sentences = ("\0".join(texts) % tuple(values)).split("\0")
        return [text[:1].upper() + text[1:] for text in sentences]

    def items(self, count: int) -> list[str]:
        """Items of a bullet list, without marks."""
        table = grammar()[3]
        drawn = philox_bits(count, self._seed, "items", self._index) >> np.uint64(33)
        pieces = drawn.astype(np.int64) % len(table.formats)
        texts = "\0".join([table.formats[piece] for piece in pieces.tolist()])
        return (texts % tuple(self._words(table, pieces, "item words"))).split("\0")

    def _words(self, table: Parts, pieces: Ids, purpose: str) -> list[str]:
        """A word for every slot of the parts, in order."""
        counts = table.counts[pieces]
        first = np.cumsum(counts) - counts
        positions = np.arange(int(counts.sum())) - np.repeat(first - table.starts[pieces], counts)
        slots = table.slots[positions]
        drawn = philox_bits(len(slots), self._seed, purpose, self._index)
        vocab = vocabulary()
        rank_bits = drawn >> np.uint64(32)
        small = (drawn & np.uint64(0xFFFFFF)).astype(np.int64)
        numbers = np.empty(len(slots), dtype=np.int64)
        nouns = slots == 0
        numbers[nouns] = self._nouns(rank_bits[nouns], drawn[nouns] & np.uint64(0xFFFF))
        for code in (1, 2):  # adjectives, verbs
            chosen = slots == code
            ranks = zipf(rank_bits[chosen], vocab.sizes[code], roots=1)
            numbers[chosen] = vocab.starts[code] + ranks
        start = vocab.numbers
        for code, size in ((3, LAST_YEAR - FIRST_YEAR + 1), (4, LARGEST_COUNT)):
            chosen = slots == code
            numbers[chosen] = start + small[chosen] % size
            start += size
        return [vocab.words[number] for number in numbers.tolist()]

    def _nouns(self, rank_bits: Bits, source_bits: Bits) -> Ids:
        """Noun numbers: general, of the type, of the region, or of the document."""
        source = source_bits.astype(np.int64)
        edges = [int(share * 65536) for share in SHARES]
        nouns = zipf(rank_bits, vocabulary().sizes[0])
        for topic, low, high in zip(self._topics, edges[:2], edges[1:], strict=True):
            chosen = (source >= low) & (source < high)
            nouns[chosen] = topic[zipf(rank_bits[chosen], len(topic), 4)]
        chosen = source >= edges[2]
        nouns[chosen] = self._own[zipf(rank_bits[chosen], len(self._own), 2)]
        return nouns


class Articles:
    """Documents of a world, each a function of its number. For `repetition` and `told`
    see `FictionalWorld`."""

    def __init__(
        self,
        world: World,
        median_words: int,
        p90_words: int,
        repetition: tuple[float, ...] | None = None,
        told: tuple[float, ...] | None = None,
    ) -> None:
        self.world = world
        self._repetition, self._told = repetition, told
        self._mean = math.log(median_words)
        self._deviation = math.log(p90_words / median_words) / NormalDist().inv_cdf(0.9)

    def words(self, index: int) -> int:
        """The intended length, from a log-normal law. A page is at least as long as its facts."""
        quantile = (splitmix64(hash64("length", self.world.seed) ^ index) >> 12) + 0.5
        normal = NormalDist().inv_cdf(quantile / 2.0**52)
        return min(MOST_WORDS, round(math.exp(self._mean + self._deviation * normal)))

    def document(self, index: int) -> Document:
        """Document number `index`."""
        entity = self.world.entity(index)
        kind, name = BY_NAME[entity.kind], self.world.name(entity)
        random = Random("article", self.world.seed, index)
        length = self.words(index)
        region = splitmix64(hash64("region", self.world.seed) ^ index) % REGIONS
        filler = Filler(self.world.seed, index, entity.kind, region, length)
        statements = [self.sentence(entity, attribute, random) for attribute in kind.attributes]
        retold = iter(self.told(index))
        for other in self._mentioned(index, length, random):
            other_name = self.world.name(self.world.entity(other))
            mention = capitalised(random.choice(PHRASES["mentions"]).format(n=other_name))
            statements.append(mention + self._retold(index, *next(retold, (other, ()))))
        statements += self._repeated(index, entity, length)
        lists = _lists(length, filler, random)
        spare = length - sum(len(text.split()) for text in statements + lists)
        body = _scattered(filler.sentences(max(0, spare)), statements, random)
        opening = random.choice(kind.opening).format(n=name) + " "
        text = _laid_out([opening, *body], kind, lists, random)
        slug = re.sub(r"\W+", "-", name.lower())
        site = random.choice(SITES)
        return Document(docid(index), name, text, f"https://{site}.example/{kind.name}/{slug}")

    def sentence(self, entity: Entity, attribute: Attribute, random: Random) -> str:
        """One wording of one fact."""
        value = printed(attribute, self.world.value(entity, attribute))
        if random.chance(LINE_SHARE):
            return f"\n{attribute.line.format(v=value)}\n"
        turn, nouns = random.below(10), BY_NAME[entity.kind].nouns
        if turn < 5:
            subject = self.world.name(entity)
        elif entity.kind == "person" or turn < 7:
            subject = self.world.short_name(entity)
        else:
            subject = f"the {nouns[0] if turn < 9 else nouns[1]}"
        sentence = random.choice(attribute.tells).format(s=subject, v=value)
        return capitalised(sentence) + " "

    def _repeated(self, index: int, entity: Entity, length: int) -> list[str]:
        """The statements of the facts after the first of each."""
        if self._repetition is None:
            return []
        scale, exponent, deviation = self._repetition
        random = Random("repetition", self.world.seed, index)
        sentences = []
        for attribute in BY_NAME[entity.kind].attributes:
            normal = NormalDist().inv_cdf((random.below(1 << 52) + 0.5) / 2.0**52)
            count = round(scale * length**exponent * math.exp(deviation * normal))
            sentences += [self.sentence(entity, attribute, random) for _ in range(count - 1)]
        return sentences

    def _mentioned(self, index: int, length: int, random: Random) -> list[int]:
        """The numbers of other entities that the page names without saying anything about them."""
        count = min(MOST_MENTIONS, length // MENTION_WORDS)
        others = [random.below(self.world.size) for _ in range(count)]
        return [other for other in others if other != index]

    def _retold(self, index: int, other: int, attributes: Sequence[Attribute]) -> str:
        """Sentences that state these facts about another entity by its full name."""
        world, entity = self.world, self.world.entity(other)
        random = Random("retold", world.seed, index, other)
        return "".join(
            capitalised(random.choice(stated_fact(world, entity, attribute).named)) + " "
            for attribute in attributes
        )

    def told(self, index: int) -> list[tuple[int, list[Attribute]]]:
        """The numbers of the other entities that the page mentions, each with those of its facts
        that the page states; empty without `told`."""
        if self._told is None:
            return []
        mentions, facts = self._told
        random = Random("told", self.world.seed, index)
        told = []
        for other in self._mentions(index):
            attributes = BY_NAME[self.world.entity(other).kind].attributes
            tells = random.chance(mentions)
            told.append((other, [it for it in attributes if tells and random.chance(facts)]))
        return told

    def _mentions(self, index: int) -> list[int]:
        entity = self.world.entity(index)
        random = Random("article", self.world.seed, index)
        for attribute in BY_NAME[entity.kind].attributes:
            self.sentence(entity, attribute, random)  # draws what precedes the mentions
        return self._mentioned(index, self.words(index), random)

    def named(self, index: int) -> list[int]:
        """The numbers of the documents about entities that document `index` names, each once:
        first those in its facts, then those in its mentions."""
        entity = self.world.entity(index)
        numbers = [
            self.world.index(self.world.target(entity, attribute))
            for attribute in BY_NAME[entity.kind].attributes
            if attribute.kind == RELATION
        ]
        numbers += self._mentions(index)
        return [number for number in dict.fromkeys(numbers) if number != index]


def docid(index: int) -> str:
    """The docid of document number `index`."""
    return f"fw{index:07d}"


def document_number(name: str, size: int) -> int:
    """The number of the document with this docid among `size`; `KeyError` if there is none."""
    match = re.fullmatch(r"fw(\d{7,})", name)
    if not match or int(match[1]) >= size or docid(int(match[1])) != name:
        raise KeyError(name)
    return int(match[1])


def printed(attribute: Attribute, value: str) -> str:
    """The value of a fact as pages print it: counts with thousands separators, years without."""
    return f"{int(value):,}" if attribute.kind == NUMBER else value


def stated_fact(world: World, entity: Entity, attribute: Attribute) -> StatedFact:
    """A fact in all wordings of `Articles.sentence`. A family name and a noun name no person or
    thing without the title of the page."""
    name, tells = world.name(entity), attribute.tells
    value = printed(attribute, world.value(entity, attribute))
    others = [world.short_name(entity), *(f"the {noun}" for noun in BY_NAME[entity.kind].nouns)]
    named = tuple(tell.format(s=name, v=value) for tell in tells)
    short = [tell.format(s=it, v=value) for tell in tells for it in others if it != name]
    return StatedFact(name, named, (*short, attribute.line.format(v=value)))


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _scattered(filler: list[str], statements: list[str], random: Random) -> list[str]:
    """The page's own sentences at positions drawn uniformly among all sentences."""
    total = len(filler) + len(statements)
    positions = set(random.shuffled(range(total))[: len(statements)]) if total < 64 else set()
    while len(positions) < len(statements):
        positions.add(random.below(total))
    placed, others = iter(random.shuffled(statements)), iter(filler)
    return [next(placed if position in positions else others) for position in range(total)]


def _lists(length: int, filler: Filler, random: Random) -> list[str]:
    """Bullet lists, about one for every `LIST_SECTIONS` sections."""
    sections = min(length // SECTION_WORDS, MOST_LISTS * LIST_SECTIONS)
    count = sum(random.below(LIST_SECTIONS) == 0 for _ in range(sections))
    sizes = [random.between(3, 7) for _ in range(count)]
    items = iter(filler.items(sum(sizes)))
    lists = []
    for size in sizes:
        lines = [f"- {next(items)}\n" for _ in range(size)]
        lists.append(f"\n\n{random.choice(PHRASES['lists'])}\n{''.join(lines)}\n")
    return lists


def _laid_out(body: list[str], kind: EntityType, lists: list[str], random: Random) -> str:
    """Headings, an entry line, lists and paragraph breaks around the sentences."""
    box = random.choice(PHRASES["boxes"]) if random.chance(0.6) else ""
    label = box.format(kind=kind.name, a=random.between(100, 9999), b=random.between(2, 900))
    for bullets in lists:
        body[random.below(len(body))] += bullets
    headings = random.shuffled(kind.headings)
    for turn, position in enumerate(range(random.between(3, GAP), len(body), GAP)):
        part, number = divmod(turn, len(headings))
        suffix = f" ({part + 1})" if part else ""
        body[position] = f"\n\n{headings[number]}{suffix}\n{body[position]}"
    text = "".join([label, "\n\n" if label else "", *body]).replace(" \n", "\n")
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip() + "\n"
