"""Titles that are nearly a given one, by the characters that both hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from toolkit.files import dump_json


class SimilarTitles:
    """Titles by the sets of three neighbouring characters that they hold.

    `sizes`: how many each title holds. The titles that hold the characters `grams[n]` are numbers
    `offsets[n]` to `offsets[n + 1]` of `places`.
    """

    def __init__(self, titles: Sequence[str]) -> None:
        self.titles = titles
        positions: dict[str, list[int]] = {}
        sizes = []
        for number, title in enumerate(titles):
            grams = _trigrams(title)
            sizes.append(len(grams))
            for gram in grams:
                positions.setdefault(gram, []).append(number)
        self._numbers = {gram: number for number, gram in enumerate(positions)}
        self._sizes = np.array(sizes, np.int64)
        self._offsets = np.cumsum([0, *map(len, positions.values())])
        self._places = np.fromiter(chain.from_iterable(positions.values()), np.int32)

    @classmethod
    def open(cls, folder: Path, titles: Sequence[str]) -> SimilarTitles:
        """Those that `write` has left in a folder; `ValueError` where they are of other titles."""
        similar = cls(())
        similar.titles = titles
        grams = json.loads((folder / "grams.json").read_text(encoding="utf-8"))
        similar._numbers = {gram: number for number, gram in enumerate(grams)}
        similar._sizes = np.load(folder / "sizes.npy")
        similar._offsets = np.load(folder / "offsets.npy")
        similar._places = np.load(folder / "places.npy")
        if len(similar._sizes) != len(titles) or similar._offsets[-1] != len(similar._places):
            raise ValueError(f"{folder} holds other titles")
        return similar

    def write(self, folder: Path) -> None:
        """Leave them in a folder, for `open`."""
        grams = dump_json(list(self._numbers), indent=None)
        (folder / "grams.json").write_text(grams, encoding="utf-8")
        for name, array in (
            ("sizes", self._sizes),
            ("offsets", self._offsets),
            ("places", self._places),
        ):
            np.save(folder / f"{name}.npy", array)

    def best(self, title: str, most: int = 10) -> list[tuple[str, float]]:
        """The most similar titles with Dice's coefficient, the best first."""
        grams = _trigrams(title)
        numbers = [self._numbers[gram] for gram in grams if gram in self._numbers]
        ends = [(self._offsets[number], self._offsets[number + 1]) for number in numbers]
        lists = [self._places[start:end] for start, end in ends]
        if not lists:
            return []
        shared = np.bincount(np.concatenate(lists), minlength=len(self.titles))
        scores = 2 * shared / (self._sizes + len(grams))
        order = np.argsort(-scores, kind="stable")[:most]
        return [(self.titles[number], float(scores[number])) for number in order]


def _trigrams(title: str) -> set[str]:
    padded = f"  {title} "
    return {padded[start : start + 3] for start in range(len(padded) - 2)} if title else set()
