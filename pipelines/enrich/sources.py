"""Where phrases come from: what every source has, and the source that is a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.arguments import ByArguments
from pipelines.enrich.phrases import Cleaned, Limits, clean
from pipelines.prompt_client import BlockingChatModel
from pipelines.stage import Collection
from toolkit.benchmarks.reading import records
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import file_fingerprint, fingerprint


class Query(NamedTuple):
    """A query to enrich, the question that it belongs to, and what its agent thought last."""

    text: str
    qid: str = ""
    reasoning: str = ""


class PhraseSource(ByArguments, ABC):
    """Proposes phrases for documents or for queries. Thread-safe.

    Options of a configuration: making one is cheap and checks its arguments. `fingerprint` changes
    with whatever changes the phrases; `counts` tells what was out of the ordinary.
    """

    asks_model = False
    """Whether it needs a language model in the collection."""

    limits: Limits

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @property
    def counts(self) -> Mapping[str, float]:
        return {}

    def content(self, collection: Collection) -> str:
        """Of everything that decides which phrases the documents of a collection get: for a source
        that asks the collection's model, that model too."""
        return self.fingerprint

    def provenance(self, collection: Collection) -> Mapping[str, Any]:
        """The same for people to read, as JSON."""
        return {"kind": type(self).__name__, **self._arguments()}

    @abstractmethod
    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """Unit id and phrases of each unit, in their order; no phrase of a unit without any."""

    @abstractmethod
    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        """The phrases of each query."""


def model_of(collection: Collection) -> BlockingChatModel:
    """The language model of a collection; `InputError` where it has none."""
    model: BlockingChatModel | None = collection.model
    if model is None:
        raise InputError(
            "phrases of a language model need one, and the collection has none",
            do="choose llm@enrichment_llm=... (or llm=...)",
        )
    return model


class PhraseFile(PhraseSource):
    """Phrases that somebody has made: `path` holds JSON lines, each with an `id` (a unit's; for
    queries the qid or the query itself) and its `phrases`, a list.

    `InputError` names the line of anything else. An id that comes twice has the phrases of both.
    """

    def __init__(self, *, path: str, phrases: int = 10, words: int = 4) -> None:
        self.path, self.phrases, self.words = path, phrases, words
        self.limits = Limits(phrases, words).checked()
        self._read: dict[str, Cleaned] | None = None

    @property
    def fingerprint(self) -> str:
        if not Path(self.path).is_file():
            raise InputError(f"there is no file '{self.path}'", do="give a file of JSON lines")
        return fingerprint("file", file_fingerprint(Path(self.path)), *self.limits)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        by_id = self._by_id()
        for unit in units:
            yield unit.unit_id, by_id.get(unit.unit_id, ())

    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        by_id = self._by_id()
        return [by_id.get(query.qid) or by_id.get(query.text) or () for query in queries]

    def _by_id(self) -> dict[str, tuple[str, ...]]:
        if self._read is None:
            listed: dict[str, list[Any]] = {}
            for location, record in records(Path(self.path)):
                key, phrases = record.get("id"), record.get("phrases")
                if not isinstance(key, str) or not isinstance(phrases, list):
                    raise InputError(
                        f"{location} has no id with phrases",
                        valid='lines as {"id": "d1", "phrases": ["harbour light"]}',
                    )
                listed.setdefault(key, []).extend(phrases)
            self._read = {key: clean(phrases, self.limits) for key, phrases in listed.items()}
        return {key: cleaned.phrases for key, cleaned in self._read.items()}
