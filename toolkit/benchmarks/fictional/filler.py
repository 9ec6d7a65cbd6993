"""Filler text: sentences whose words follow Zipf's law, with words of a topic and of a document.

A noun comes from the whole vocabulary, from the words of the entity's type or of its region, or
from a few words that the document keeps coming back to (burstiness). Topics and documents take
their words from the same Zipfian law, so that the vocabulary of a collection grows as texts' do
(Heaps) and does not saturate. Every choice is an integer operation on Philox counter bits.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolkit.benchmarks.fictional.data import load
from toolkit.benchmarks.fictional.hashing import key
from toolkit.benchmarks.fictional.words import vocabulary

REGIONS = 48
TOPIC_WORDS = 1 << 12
BITS = 16
SHIFT = 12  # of Zipf-Mandelbrot: flattens the head, as in running text
SHARES = (0.5, 0.7, 0.88)  # nouns: general, then type, then region, then the document's own
FIRST_YEAR, LAST_YEAR = 1700, 1999
LARGEST_COUNT = 400

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]


class Parts(NamedTuple):
    """Sentence parts, flattened: part `p` has the format `formats[p]`, `words[p]` words, and the
    slot codes `slots[starts[p]:starts[p] + counts[p]]`."""

    formats: list[str]
    words: Ids
    slots: Ids
    starts: Ids
    counts: Ids


_SLOT = re.compile(r"\b([NAVYC])\b")
_CODES = {"N": 0, "A": 1, "V": 2, "Y": 3, "C": 4}


def _parts(templates: list[str]) -> Parts:
    codes = [[_CODES[slot] for slot in _SLOT.findall(text)] for text in templates]
    counts = np.array([len(code) for code in codes])
    return Parts(
        formats=[_SLOT.sub("%s", text) for text in templates],
        words=np.array([len(text.split()) for text in templates]),
        slots=np.array([code for part in codes for code in part]),
        starts=np.cumsum(counts) - counts,
        counts=counts,
    )


class Grammar(NamedTuple):
    """Openers, cores and tails in one table, in this order, `sizes` of each; ends; list items."""

    sentences: Parts
    sizes: tuple[int, int, int]
    ends: list[str]
    items: Parts


@lru_cache(maxsize=1)
def _grammar() -> Grammar:
    parts: dict[str, list[str]] = {}
    for name, entries in load("filler").items():
        texts = parts.setdefault(name, [])
        for entry in entries:
            texts += [entry["text"]] * entry["times"] if isinstance(entry, dict) else [entry]
    openers, cores, tails = parts["openers"], parts["cores"], parts["tails"]
    sizes = len(openers), len(cores), len(tails)
    return Grammar(_parts(openers + cores + tails), sizes, parts["ends"], _parts(parts["items"]))


class Zipf(NamedTuple):
    """Zipf-Mandelbrot ranks from uniform bits: 2 ** BITS quantiles, uniform within one."""

    low: npt.NDArray[np.int32]
    span: npt.NDArray[np.int32]

    def draw(self, bits: Bits) -> Ids:
        """Ranks from 32 bits each: the upper half picks the quantile, the lower a rank in it."""
        quantile = (bits >> np.uint64(BITS)).astype(np.int64) & ((1 << BITS) - 1)
        within = bits.astype(np.int64) & ((1 << BITS) - 1)
        return self.low[quantile] + (within * self.span[quantile] >> BITS)  # in 64 bits


@lru_cache(maxsize=64)
def zipf(size: int, shift: int = SHIFT, roots: int = 2) -> Zipf:
    """The law 1 / (rank + shift) ** (1 + 2 ** -roots) over `size` ranks.

    Division, product and square root are exactly rounded everywhere, unlike powers.
    """
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
    return Zipf(low.astype(np.int32), span.astype(np.int32))


def bits(count: int, *parts: object) -> Bits:
    """64-bit words of the Philox stream that the parts name (its raw output never changes)."""
    stream = np.random.Philox(key=np.array([key(*parts), 0], dtype=np.uint64))
    return stream.random_raw(count)


@lru_cache(maxsize=256)
def _topic(seed: int, topic: str) -> Ids:
    """Noun numbers of a topic, commonest first: drawn from a flatter general law."""
    size = vocabulary().sizes[0]
    drawn = zipf(size, 100).draw(bits(2 * TOPIC_WORDS, seed, "topic", topic) >> np.uint64(32))
    fresh = np.unique(drawn)
    order = np.argsort(bits(len(fresh), seed, "order", topic), kind="stable")
    return np.resize(fresh[order], TOPIC_WORDS)


class Filler:
    """The filler of one document: a stream of sentences.

    `kind` and `region` are its topics; `scale` is about the number of words that the document
    will have, to which the number of its own words is proportioned.
    """

    def __init__(self, seed: int, index: int, kind: str, region: int, scale: int) -> None:
        self._seed, self._index = seed, index
        size = vocabulary().sizes[0]
        own = 1 << max(3, (scale // 80).bit_length())  # few sizes, so few tables
        self._own = zipf(size, 600).draw(bits(own, seed, "own", index) >> np.uint64(32))
        self._topics = (_topic(seed, kind), _topic(seed, f"region {region}"))

    def sentences(self, words: int) -> list[str]:
        """Sentences of at least `words` words in all (none for 0), each with its end mark and the
        space or line break after it."""
        grammar = _grammar()
        formats = grammar.sentences.formats
        choices = self._choices(grammar, words)
        texts = [
            formats[opener] + formats[core] + formats[tail] + grammar.ends[end]
            for opener, core, tail, end in choices.tolist()
        ]
        if not texts:
            return []
        values = self._words(grammar.sentences, choices[:, :3].ravel(), "words")
        sentences = ("\0".join(texts) % tuple(values)).split("\0")
        return [text[:1].upper() + text[1:] for text in sentences]

    def items(self, count: int) -> list[str]:
        """Items of a bullet list, without marks."""
        table = _grammar().items
        drawn = bits(count, self._seed, "items", self._index) >> np.uint64(33)
        pieces = drawn.astype(np.int64) % len(table.formats)
        texts = "\0".join([table.formats[piece] for piece in pieces.tolist()])
        return (texts % tuple(self._words(table, pieces, "item words"))).split("\0")

    def _choices(self, grammar: Grammar, words: int) -> Ids:
        """One row a sentence: the numbers of its opener, core and tail in the table, and its end's.
        Each takes 16 of a draw's 64 bits."""
        if words <= 0:
            return np.empty((0, 4), dtype=np.int64)
        drawn = bits(words // 6 + 1, self._seed, "sentences", self._index)
        quarters = [(drawn >> np.uint64(16 * turn) & np.uint64(0xFFFF)) for turn in range(4)]
        openers, cores, tails = grammar.sizes
        sizes = np.array([openers, cores, tails, len(grammar.ends)])
        starts = np.array([0, openers, openers + cores, 0])
        choices = np.stack(quarters, axis=1).astype(np.int64) % sizes + starts
        lengths = np.cumsum(grammar.sentences.words[choices[:, :3]].sum(axis=1))
        return choices[: int(np.searchsorted(lengths, words)) + 1]

    def _words(self, table: Parts, pieces: Ids, purpose: str) -> list[str]:
        """A word for every slot of the parts, in order."""
        counts = table.counts[pieces]
        first = np.cumsum(counts) - counts
        positions = np.arange(int(counts.sum())) - np.repeat(first - table.starts[pieces], counts)
        slots = table.slots[positions]
        drawn = bits(len(slots), self._seed, purpose, self._index)
        words = _words_and_numbers()
        return [words[number] for number in self._numbers(slots, drawn).tolist()]

    def _numbers(self, slots: Ids, drawn: Bits) -> Ids:
        """The number in `_words_and_numbers` of a word for each slot."""
        vocab = vocabulary()
        rank_bits = drawn >> np.uint64(32)
        small = (drawn & np.uint64(0xFFFFFF)).astype(np.int64)
        numbers = np.empty(len(slots), dtype=np.int64)
        nouns = slots == 0
        numbers[nouns] = self._nouns(rank_bits[nouns], drawn[nouns] & np.uint64(0xFFFF))
        for code in (1, 2):  # adjectives, verbs
            chosen = slots == code
            ranks = zipf(vocab.sizes[code], roots=1).draw(rank_bits[chosen])
            numbers[chosen] = vocab.starts[code] + ranks
        start = len(vocab.words)
        for code, size in ((3, LAST_YEAR - FIRST_YEAR + 1), (4, LARGEST_COUNT)):
            chosen = slots == code
            numbers[chosen] = start + small[chosen] % size
            start += size
        return numbers

    def _nouns(self, rank_bits: Bits, source_bits: Bits) -> Ids:
        """Noun numbers: general, of the type, of the region, or of the document."""
        source = source_bits.astype(np.int64)
        edges = [int(share * 65536) for share in SHARES]
        nouns = zipf(vocabulary().sizes[0]).draw(rank_bits)
        for topic, low, high in zip(self._topics, edges[:2], edges[1:], strict=True):
            chosen = (source >= low) & (source < high)
            nouns[chosen] = topic[zipf(len(topic), 4).draw(rank_bits[chosen])]
        chosen = source >= edges[2]
        nouns[chosen] = self._own[zipf(len(self._own), 2).draw(rank_bits[chosen])]
        return nouns


@lru_cache(maxsize=1)
def _words_and_numbers() -> list[str]:
    years = [str(year) for year in range(FIRST_YEAR, LAST_YEAR + 1)]
    return vocabulary().words + years + [str(count + 2) for count in range(LARGEST_COUNT)]
