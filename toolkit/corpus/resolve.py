"""From what others say of documents (titles, urls, identifiers) to documents of the corpus.

Nothing is invented: a finding is a document of the corpus, or it is refused with a reason.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from toolkit.checks import check_number
from toolkit.contracts import Document
from toolkit.corpus.similar_titles import SimilarTitles
from toolkit.files import dump_json

# Of a resolver's folder: ours, and Unicode's, by which titles are compared.
FORMAT = f"1, Unicode {unicodedata.unidata_version}"
_RECORD = "headings.json"
LONGEST_FINDING = 2000  # characters that are looked at
_WORD = re.compile(r"\w+")
_URL = re.compile(r"https?://[^\s<>\"'\])}]+", re.IGNORECASE)
# DOIs (doi.org/the-identifier/resources/handbook, section 2) and arXiv's identifiers since 2007.
_IDENTIFIER = re.compile(r"10\.\d{4,9}/[^\s<>\"'\])}]+|(?<![\d.])\d{4}\.\d{4,5}(?=v\d|\D|$)")
_LABELLED = re.compile(r"(?:\b(?:docid|doc|id)\s*[=:]\s*|[\[【])([^\s\]】,;]+)", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“«‘]([^\"”»’]{3,300})[\"”»’]")
_TRAILING = ".,;:!?"
# Beginnings of ids that stand in a list for a line of which no document can be told.
UNRESOLVED, AMBIGUOUS = "unresolved:", "ambiguous:"
_FEWEST_WORDS = 2  # of a title that is found inside a longer text
_TABLES = ("_urls", "_identifiers", "_titles")


class Heading(NamedTuple):
    """What a document is recognised by."""

    docid: str
    title: str = ""
    url: str = ""


class Resolution(NamedTuple):
    """What became of a finding. `docid` is a document of the corpus, and empty where the finding is
    refused; `how` is `id`, `url`, `identifier`, `title` or `similar title`, and of a refused one
    `unknown` or `ambiguous`, with all the `candidates` that it could be."""

    finding: str
    docid: str
    how: str
    candidates: Sequence[str] = ()


class Resolver:
    """Maps findings to documents: by exact id, then by url, then by a DOI or an arXiv identifier of
    a document's id or url, then by title.

    Titles are compared without case, accents, punctuation and white space: the whole finding, what
    it quotes, the titles of two words or more that it contains (the longest counts), and at last
    titles that are nearly it. The similarity is Dice's coefficient over sets of three neighbouring
    characters; `threshold` (0 to 1) is the least, and another title within `margin` of the best
    makes the finding ambiguous. So does any step at which two documents are meant.
    """

    def __init__(
        self, headings: Iterable[Heading | Document], threshold: float = 0.8, margin: float = 0.05
    ) -> None:
        check_number("threshold", threshold, most=1, above=True)
        check_number("margin", margin, most=1)
        self.threshold, self.margin = threshold, margin
        self._docids: set[str] = set()
        # Lists, as JSON has them, so that a resolver is opened without a set for each title.
        self._urls: dict[str, list[str]] = {}
        self._identifiers: dict[str, list[str]] = {}
        self._titles: dict[str, list[str]] = {}
        for heading in headings:
            self._add(Heading(heading.docid, heading.title, heading.url))
        self._similar = SimilarTitles(list(self._titles))

    @classmethod
    def open(cls, folder: Path, threshold: float = 0.8, margin: float = 0.05) -> Resolver:
        """The resolver that `write` has left in a folder. `OSError`, `ValueError` or `KeyError`
        where there is none, or one that is damaged."""
        resolver = cls((), threshold, margin)
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        resolver._docids = set(record["docids"])
        for name in _TABLES:
            setattr(resolver, name, dict(record[name]))
        resolver._similar = SimilarTitles.open(folder, list(resolver._titles))
        return resolver

    def write(self, folder: Path) -> None:
        """Leave the resolver in a folder, for `open`; threshold and margin are not kept."""
        tables = {name: getattr(self, name) for name in _TABLES}
        record = {"docids": sorted(self._docids), **tables}
        (folder / _RECORD).write_text(dump_json(record, indent=None), encoding="utf-8")
        self._similar.write(folder)

    @cached_property
    def _longest(self) -> int:
        """Words of the longest title."""
        return max((title.count(" ") + 1 for title in self._titles), default=0)

    def _add(self, heading: Heading) -> None:
        docid = heading.docid
        self._docids.add(docid)
        if heading.url:
            self._urls.setdefault(_plain_url(heading.url), []).append(docid)
        for identifier in _identifiers(f"{docid} {heading.url}"):
            self._identifiers.setdefault(identifier, []).append(docid)
        if title := plain_title(heading.title):
            self._titles.setdefault(title, []).append(docid)

    def resolve(self, finding: str) -> Resolution:
        """The document that a finding means. Only its first `LONGEST_FINDING` characters count."""
        text = finding[:LONGEST_FINDING].strip()
        for how, docids in self._steps(text):
            if len(docids) == 1:
                return Resolution(finding, next(iter(docids)), how)
            if docids:
                return Resolution(finding, "", "ambiguous", sorted(docids))
        return Resolution(finding, "", "unknown")

    def resolve_lines(self, text: str) -> list[Resolution]:
        """One for each line that holds anything, list marks left out."""
        lines = (re.sub(r"^\s*(?:[-*•]|\d+[.)])\s+", "", line) for line in text.splitlines())
        return [self.resolve(line) for line in lines if line.strip()]

    def _steps(self, text: str) -> Iterator[tuple[str, set[str]]]:
        """What each way of recognising finds, the surest first."""
        named = {text, *_LABELLED.findall(text)} & self._docids
        yield "id", named
        urls = (_plain_url(url.rstrip(_TRAILING)) for url in _URL.findall(text))
        yield "url", _all(self._urls.get(url) for url in urls)
        yield "identifier", _all(self._identifiers.get(name) for name in _identifiers(text))
        without_urls = _URL.sub(" ", text)
        title = plain_title(without_urls)
        yield "title", set(self._titles.get(title, ()))
        quoted = map(plain_title, _QUOTED.findall(without_urls))
        yield "title", _all(self._titles.get(one) for one in quoted)
        yield "title", self._contained(title.split(" "))
        yield "similar title", self._nearly(title)

    def _contained(self, words: Sequence[str]) -> set[str]:
        """Of the longest titles inside the text."""
        for length in range(min(self._longest, len(words)), _FEWEST_WORDS - 1, -1):
            starts = range(len(words) - length + 1)
            pieces = (" ".join(words[start : start + length]) for start in starts)
            if docids := _all(self._titles.get(piece) for piece in pieces):
                return docids
        return set()

    def _nearly(self, title: str) -> set[str]:
        ranked = self._similar.best(title)
        if not ranked or ranked[0][1] < self.threshold:
            return set()
        level = [other for other, score in ranked if score >= ranked[0][1] - self.margin]
        return _all(self._titles[other] for other in level)


def plain_title(title: str) -> str:
    """Words in lower case, without accents and punctuation, one space between them."""
    letters = unicodedata.normalize("NFKD", title.casefold())
    kept_letters = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", kept_letters)))


def _identifiers(text: str) -> list[str]:
    return [name.rstrip(_TRAILING).casefold() for name in _IDENTIFIER.findall(text)]


def _plain_url(url: str) -> str:
    """Without scheme, `www.`, fragment and final slash; the host in lower case."""
    rest = re.sub(r"^https?://", "", url.partition("#")[0], flags=re.IGNORECASE)
    host, slash, path = rest.partition("/")
    return f"{host.casefold().removeprefix('www.')}{slash}{path}".rstrip("/")


def _all(parts: Iterable[Iterable[str] | None]) -> set[str]:
    return {docid for part in parts if part for docid in part}


def refusals(resolutions: Iterable[Resolution]) -> dict[str, int]:
    """How many findings were refused, by reason."""
    return dict(Counter(one.how for one in resolutions if not one.docid))
