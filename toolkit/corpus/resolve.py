"""Finding the document of the corpus that a title, URL, DOI or arXiv identifier refers to. A
reference resolves to a document of the corpus or is refused with a reason."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.data import Document
from soundingline.toolkit.files import dump_json

# Names the format of a resolver's folder. Titles are normalised by Python's version of Unicode.
FORMAT = f"1, Unicode {unicodedata.unidata_version}"
LONGEST_FINDING = 2000  # characters of a reference that are read
# Prefixes of placeholder ids in document lists, for lines that resolve to no single document.
UNRESOLVED, AMBIGUOUS = "unresolved:", "ambiguous:"
_TABLES = ("_urls", "_identifiers", "_titles")
_ARRAYS = ("sizes", "offsets", "places")
_WORD = re.compile(r"\w+")
_URL = re.compile(r"https?://[^\s<>\"'\])}]+", re.IGNORECASE)
# DOIs (doi.org/the-identifier/resources/handbook, section 2) and arXiv's identifiers since 2007.
_IDENTIFIER = re.compile(r"10\.\d{4,9}/[^\s<>\"'\])}]+|(?<![\d.])\d{4}\.\d{4,5}(?=v\d|\D|$)")
_LABELLED = re.compile(r"(?:\b(?:docid|doc|id)\s*[=:]\s*|[\[【])([^\s\]】,;]+)", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“«‘]([^\"”»’]{3,300})[\"”»’]")
_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_TRAILING = ".,;:!?"
_FEWEST_WORDS = 2  # of a title that is searched for inside a longer text
_MOST_SIMILAR = 10
# Dice's coefficient over the sets of character trigrams: the least similarity of a title, and the
# distance from the best one within which others count as equal.
_LEAST_SIMILARITY, _MARGIN = 0.8, 0.05


class Resolution(NamedTuple):
    """The result for one reference (`finding`): the docid, and how it was found (`id`, `url`,
    `identifier`, `title` or `similar title`). A refused reference has an empty docid, is `unknown`
    or `ambiguous`, and has the `candidates` in the second case."""

    finding: str
    docid: str
    how: str
    candidates: Sequence[str] = ()


class Resolver:
    """Maps references to documents, by these steps: the docid, the URL, a DOI or arXiv identifier
    in the docid or the URL, the title. Titles are compared without case, accents, punctuation and
    white space: first the complete reference, then quoted parts of it, then titles of at least two
    words that it contains (the longest count), then the most similar titles. A step that yields
    several documents makes the reference ambiguous.

    Args:
        documents: id, title and URL of each document; texts are not used.

    Example:
        >>> resolver = Resolver([Document("p1", "Attention Is All You Need", "")])
        >>> resolver.resolve("Vaswani et al.: 'Attention is all you need' (2017)").docid
        'p1'
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self._docids: set[str] = set()
        # Values are lists, as in JSON, so that opening a resolver makes no set for each title.
        self._urls: dict[str, list[str]] = {}
        self._identifiers: dict[str, list[str]] = {}
        self._titles: dict[str, list[str]] = {}
        for docid, title, _, url in documents:
            self._docids.add(docid)
            if url:
                self._urls.setdefault(_normalise_url(url), []).append(docid)
            for identifier in _identifiers(f"{docid} {url}"):
                self._identifiers.setdefault(identifier, []).append(docid)
            if normalised := _normalise_title(title):
                self._titles.setdefault(normalised, []).append(docid)
        self._trigrams = _TrigramIndex.build(list(self._titles))

    @classmethod
    def open(cls, folder: Path) -> Resolver:
        """Open a folder that `write` filled, whose checksums were verified."""
        resolver = cls(())
        record = json.loads((folder / "headings.json").read_text(encoding="utf-8"))
        resolver._docids = set(record["docids"])
        for name in _TABLES:
            setattr(resolver, name, dict(record[name]))
        grams = json.loads((folder / "grams.json").read_text(encoding="utf-8"))
        arrays = [np.load(folder / f"{name}.npy") for name in _ARRAYS]
        resolver._trigrams = _TrigramIndex(list(resolver._titles), grams, *arrays)
        return resolver

    def write(self, folder: Path) -> None:
        """Write the resolver to an existing folder."""
        tables = {name: getattr(self, name) for name in _TABLES}
        record = {"docids": sorted(self._docids), **tables}
        for name, value in (("headings", record), ("grams", list(self._trigrams.grams))):
            text = dump_json(value, indent=None)
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self._trigrams, name))

    def resolve(self, finding: str) -> Resolution:
        """Resolve one reference. Only its first 2,000 characters are read."""
        text = finding[:LONGEST_FINDING].strip()
        for how, docids in self._steps(text):
            if len(docids) == 1:
                return Resolution(finding, next(iter(docids)), how)
            if docids:
                return Resolution(finding, "", "ambiguous", sorted(docids))
        return Resolution(finding, "", "unknown")

    def resolve_lines(self, text: str) -> list[Resolution]:
        """Resolve each line that is not blank, without bullets and numbers at its beginning."""
        lines = (_LIST_MARK.sub("", line) for line in text.splitlines())
        return [self.resolve(line) for line in lines if line.strip()]

    def _steps(self, text: str) -> Iterator[tuple[str, set[str]]]:
        yield "id", {text, *_LABELLED.findall(text)} & self._docids
        urls = (_normalise_url(url.rstrip(_TRAILING)) for url in _URL.findall(text))
        yield "url", _union(self._urls.get(url) for url in urls)
        yield "identifier", _union(self._identifiers.get(name) for name in _identifiers(text))
        without_urls = _URL.sub(" ", text)
        title = _normalise_title(without_urls)
        yield "title", set(self._titles.get(title, ()))
        quoted = map(_normalise_title, _QUOTED.findall(without_urls))
        yield "title", _union(self._titles.get(quotation) for quotation in quoted)
        words = title.split(" ")
        for length in range(min(self._longest_title, len(words)), _FEWEST_WORDS - 1, -1):
            starts = range(len(words) - length + 1)
            pieces = (" ".join(words[start : start + length]) for start in starts)
            yield "title", _union(self._titles.get(piece) for piece in pieces)
        similar = self._trigrams.most_similar(title)
        if similar and similar[0][1] >= _LEAST_SIMILARITY:
            closest = [match for match, score in similar if score >= similar[0][1] - _MARGIN]
            yield "similar title", _union(self._titles[match] for match in closest)

    @cached_property
    def _longest_title(self) -> int:
        """In words."""
        return max((title.count(" ") + 1 for title in self._titles), default=0)


class _TrigramIndex:
    """Titles by the character trigrams that they contain. `sizes` holds the number of trigrams of
    each title. The titles that contain `grams[n]` are `places[offsets[n]:offsets[n + 1]]`."""

    def __init__(
        self,
        titles: Sequence[str],
        grams: Iterable[str],
        sizes: NDArray[np.int64],
        offsets: NDArray[np.int64],
        places: NDArray[np.int32],
    ) -> None:
        self.titles, self.sizes, self.offsets, self.places = titles, sizes, offsets, places
        self.grams = {gram: number for number, gram in enumerate(grams)}

    @classmethod
    def build(cls, titles: Sequence[str]) -> _TrigramIndex:
        positions: dict[str, list[int]] = {}
        sizes = []
        for number, title in enumerate(titles):
            grams = _trigrams(title)
            sizes.append(len(grams))
            for gram in grams:
                positions.setdefault(gram, []).append(number)
        offsets = np.cumsum([0, *map(len, positions.values())])
        places = np.fromiter(chain.from_iterable(positions.values()), np.int32)
        return cls(titles, positions, np.array(sizes, np.int64), offsets, places)

    def most_similar(self, title: str) -> list[tuple[str, float]]:
        """The most similar titles with Dice's coefficient, best first."""
        grams = _trigrams(title)
        numbers = [self.grams[gram] for gram in grams if gram in self.grams]
        lists = [self.places[self.offsets[n] : self.offsets[n + 1]] for n in numbers]
        if not lists:
            return []
        shared = np.bincount(np.concatenate(lists), minlength=len(self.titles))
        scores = 2 * shared / (self.sizes + len(grams))
        order = np.argsort(-scores, kind="stable")[:_MOST_SIMILAR]
        return [(self.titles[number], float(scores[number])) for number in order]


def _trigrams(title: str) -> list[str]:
    # In the order of the title, not of a set, so that equal titles give equal files.
    padded = f"  {title} " if title else ""
    return list(dict.fromkeys(padded[start : start + 3] for start in range(len(padded) - 2)))


def _normalise_title(title: str) -> str:
    """Words in lower case, without accents and punctuation, with one space between them."""
    letters = unicodedata.normalize("NFKD", title.casefold())
    without_accents = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", without_accents)))


def _normalise_url(url: str) -> str:
    """Without scheme, `www.`, fragment and final slash; the host in lower case."""
    rest = re.sub(r"^https?://", "", url.partition("#")[0], flags=re.IGNORECASE)
    host, slash, path = rest.partition("/")
    return f"{host.casefold().removeprefix('www.')}{slash}{path}".rstrip("/")


def _identifiers(text: str) -> list[str]:
    return [name.rstrip(_TRAILING).casefold() for name in _IDENTIFIER.findall(text)]


def _union(parts: Iterable[Iterable[str] | None]) -> set[str]:
    return {docid for part in parts if part for docid in part}
