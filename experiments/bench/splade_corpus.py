"""Passages and queries that look like SPLADE's, drawn from a seed: no model is needed.

Terms and weights have the statistics that the speed of search depends on; what they mean does not
come into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.encoding import SPARSE, Shards, encode_corpus
from soundingline.toolkit.data import Unit

VOCABULARY = 30_522  # BERT's
SHARD, QUERIES = 2048, 100
SIZES = (20, 40, 100)
Query = Mapping[str, float]


def term(number: int) -> str:
    return f"t{number}"


class Drawn:
    """An encoder that draws the passages of a shard from the seed and the number of its first."""

    model = "the draw"

    def __init__(self, seed: int) -> None:
        self.seed, self.fingerprint = seed, f"drawn-{seed}"

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        first = int(texts[0] or 0)
        return drawn_passages(len(texts), (self.seed, first // SHARD))


def encoding(folder: Path, documents: int, seed: int) -> Shards:
    """The drawn corpus as an encoder would have left it, in `folder`; drawn if it is not there."""
    units = [Unit(f"d{number}", "", str(number)) for number in range(documents)]
    return encode_corpus(
        units, Drawn(seed), folder, corpus_fingerprint=f"seed-{seed}", shard_units=SHARD
    )


def drawn_passages(units: int, seed: Sequence[int]) -> list[NDArray[Any]]:
    """Passages of about 200 distinct terms (standard deviation 40), drawn by `popularity`."""
    chance = np.random.default_rng(seed)
    sizes = np.clip(chance.normal(206, 40, units), 20, None).astype(int)
    numbers = np.searchsorted(popularity(), chance.random(sizes.sum()), side="right")
    # A term counts once, so that a passage has some fewer than were drawn.
    cells = np.unique(np.repeat(np.arange(units), sizes) * VOCABULARY + numbers)
    values = np.empty(len(cells), SPARSE)
    values["term"] = cells % VOCABULARY
    values["weight"] = _weights(chance, len(cells))
    return np.split(values, np.searchsorted(cells // VOCABULARY, np.arange(1, units)))


def popularity() -> NDArray[np.float64]:
    """Cumulative chances of the terms: Zipf-Mandelbrot, 1 / (rank + 50). The most frequent term is
    then in about 45 % of the passages: SPLADE is trained to keep frequent terms rare."""
    chances = 1 / (np.arange(1, VOCABULARY + 1) + 50.0)
    sums: NDArray[np.float64] = np.cumsum(chances)
    return sums / sums[-1]


def draw_queries(encoded: Shards, seed: int) -> dict[int, list[Query]]:
    """Queries of weights x 100, by number of terms. Those of a query come from one passage, the
    heavier the likelier: a query is about something, and holds frequent terms too."""
    chance = np.random.default_rng((seed, 0, 1))
    arrays = [array for array in next(iter(encoded)).arrays() if len(array) > max(SIZES)]
    queries: dict[int, list[Query]] = {}
    for size in SIZES:
        queries[size] = []
        for number in chance.integers(0, len(arrays), QUERIES):
            array = arrays[number]
            share = array["weight"] / array["weight"].sum(dtype=np.float64)
            terms = chance.choice(array["term"], size, replace=False, p=share)
            weights = np.rint(100 * _weights(chance, size)) + 1
            queries[size].append(
                dict(zip(map(term, terms.tolist()), weights.tolist(), strict=True))
            )
    return queries


def _weights(chance: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Gamma of mean 0.6: about one in 200 is above 2.55, which one byte does not hold."""
    return chance.gamma(1.5, 0.4, count).astype(np.float32)
