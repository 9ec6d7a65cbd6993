"""Phrases that enrich texts: limits, cleaning, the base class of their sources, and phrases from a
file."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from soundingline.pipelines.rewrite import QueryContext
from soundingline.pipelines.stage import ByArguments, Collection, Counts, LazyValues, shared
from soundingline.toolkit.benchmarks.formats import rows
from soundingline.toolkit.console import notify
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import file_hash, fingerprint
from soundingline.toolkit.llm.prompts import json_values

KEY = "keywords"
# Why phrases are left out: repeated, too long (in words or characters), beyond the number allowed,
# or empty (or no text).
LEFT_OUT = ("repeated", "too_long", "beyond", "empty")
_LONGEST_CHARACTERS = 200
_CONTROL = ("Cc", "Cf", "Cs", "Co", "Cn")


class WeightedPhrase(str):
    """A phrase whose terms count `weight` times in the expansion of a query. A weight below 0 makes
    it an exclusion, which is not a part of the expansion."""

    weight: float

    def __new__(cls, text: str, weight: float) -> WeightedPhrase:
        phrase = super().__new__(cls, text)
        phrase.weight = weight
        return phrase


def weight_of(phrase: str) -> float:
    """The weight of a phrase; 1 without one."""
    return phrase.weight if isinstance(phrase, WeightedPhrase) else 1.0


def clean(phrases: Iterable[Any], most: int, words: int) -> tuple[tuple[str, ...], dict[str, int]]:
    """At most `most` phrases with single spaces and without control or format characters, without
    repetitions (regardless of case), each of at most `words` words. A `WeightedPhrase` keeps its
    weight. The second value is the number of phrases that were left out, by reason (`LEFT_OUT`)."""
    usable: dict[str, str] = {}
    left_out = dict.fromkeys(LEFT_OUT, 0)
    for phrase in phrases:
        # A longer text is too long, even if most of it is white space.
        text = _visible(phrase[: 10 * _LONGEST_CHARACTERS]) if isinstance(phrase, str) else ""
        length = len(text.split())
        if not length:
            left_out["empty"] += 1
        elif length > words or len(text) > _LONGEST_CHARACTERS:
            left_out["too_long"] += 1
        elif text.casefold() in usable:
            left_out["repeated"] += 1
        elif len(usable) == most:
            left_out["beyond"] += 1
        else:
            weighted = isinstance(phrase, WeightedPhrase)
            usable[text.casefold()] = WeightedPhrase(text, phrase.weight) if weighted else text
    return tuple(usable.values()), left_out


def clean_text(text: str, words: int) -> str:
    """The first `words` words of a text, with single spaces and without control or format
    characters."""
    return " ".join(_visible(text).split()[:words])


def read_phrases(answer: str, keys: Sequence[str] = (KEY,)) -> list[Any] | None:
    """The phrases in a model's answer: the list under one of `keys` of its last JSON object, else
    its last JSON list; None if it has neither. The elements are not checked."""
    values = list(json_values(answer))
    named = [value.get(key) for value in values if isinstance(value, dict) for key in keys]
    lists = [value for value in (*values, *named) if isinstance(value, list)]
    return lists[-1] if lists else None


def _visible(text: str) -> str:
    visible = (
        character
        for character in text
        if character.isspace() or unicodedata.category(character) not in _CONTROL
    )
    return " ".join("".join(visible).split())


@dataclass(kw_only=True, eq=False, repr=False)
class PhraseSource(ByArguments, ABC):
    """Proposes phrases for documents or for queries. Thread-safe.

    Making one is cheap and checks its arguments. A subclass declares its arguments as fields of a
    dataclass with the same decorator.
    """

    needs_llm: ClassVar[bool] = False
    """Whether it needs a language model in the collection."""

    exclusions = "none"
    """What happens to the units with an exclusion, one of `EXCLUSIONS` of
    `soundingline.pipelines.enrich.enrichment`; `none` for sources that exclude nothing."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of everything in the source that decides which phrases a text gets."""

    @property
    def counts(self) -> Mapping[str, float]:
        """Cumulative counts of texts and of phrases that were left out."""
        return {}

    def content(self, collection: Collection) -> str:
        """Hash of everything that decides which phrases the documents of a collection get. For a
        source that asks the model of the collection, this includes the model."""
        return self.fingerprint

    def provenance(self, collection: Collection) -> Mapping[str, Any]:
        """The origin of the phrases for readers, as JSON."""
        return {"kind": type(self).__name__, **self._arguments()}

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """Unit id and phrases of each unit, in the order of the units. `InputError` unless a
        subclass has them."""
        raise InputError(
            f"{type(self).__name__} gives phrases for queries, and not for documents",
            do="set enrichment.corpus=null, or another source for it",
        )

    def for_queries(
        self, queries: Sequence[QueryContext], collection: Collection
    ) -> list[Sequence[str]]:
        """The phrases of each query; a `WeightedPhrase` carries a weight. `InputError` unless a
        subclass has them."""
        raise InputError(
            f"{type(self).__name__} gives phrases for documents, and not for queries",
            do="set enrichment.query=null, or another source for it",
        )


class PhraseRow(BaseModel):
    """A line of a `PhraseFile`."""

    id: str
    phrases: list[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class PhraseFile(PhraseSource):
    """Phrases that were made elsewhere.

    An id that comes twice has the phrases of both lines. Ids that are not those of a document are
    reported. The `counts` are the phrases of the file that were left out (see `LEFT_OUT`), the
    `texts` that were looked up, and of these those with `no_phrase`.

    Args:
        path: JSON lines, each with an `id` (of a unit; for queries the qid or the query itself)
            and its `phrases`, a list.
        phrases: Most phrases of a text.
        words: Most words of a phrase.

    Raises:
        InputError: For a file with other lines, and if it has phrases for none of the documents.
    """

    path: str
    phrases: int = 10
    words: int = 4

    def __post_init__(self) -> None:
        check_int("phrases", self.phrases)
        check_int("words", self.words)
        self._counts = Counts("texts", "no_phrase", *LEFT_OUT)
        self._shared = LazyValues()

    @property
    def counts(self) -> Mapping[str, float]:
        return self._counts()

    @property
    def fingerprint(self) -> str:
        """Hash of the file and the limits."""
        if not Path(self.path).is_file():
            raise InputError(f"there is no file '{self.path}'", do="give a file of JSON lines")
        return fingerprint("file", file_hash(Path(self.path)), self.phrases, self.words)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        by_id = self._by_id
        matched = 0
        unit_id = ""
        for unit in units:
            unit_id = unit.unit_id
            matched += unit_id in by_id
            yield unit_id, self._counted(by_id.get(unit_id, ()))
        if not matched:
            raise InputError(
                f"'{self.path}' has phrases for none of the documents",
                valid=f'lines with ids of documents, as {{"id": "{unit_id}", "phrases": [...]}}',
            )
        if matched < len(by_id):
            others = f"{len(by_id) - matched:,} of {len(by_id):,} ids of '{self.path}'"
            notify(f"{others} are not in the corpus; their phrases are left out")

    def for_queries(
        self, queries: Sequence[QueryContext], collection: Collection
    ) -> list[Sequence[str]]:
        by_id = self._by_id
        return [self._counted(by_id.get(query.qid, by_id.get(query.text, ()))) for query in queries]

    def _counted(self, phrases: Sequence[str]) -> Sequence[str]:
        self._counts.add(texts=1, no_phrase=not phrases)
        return phrases

    @property
    @shared
    def _by_id(self) -> Mapping[str, Sequence[str]]:
        listed: dict[str, list[Any]] = {}
        for _, row in rows(Path(self.path), PhraseRow):
            listed.setdefault(row.id, []).extend(row.phrases)
        by_id = {}
        for key, phrases in listed.items():
            by_id[key], left_out = clean(phrases, self.phrases, self.words)
            self._counts.add(**left_out)
        return by_id
