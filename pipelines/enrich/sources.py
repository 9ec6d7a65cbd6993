"""Where phrases come from: what every source has, and the source that is a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.arguments import ByArguments
from pipelines.enrich.phrases import LEFT_OUT, Cleaned, Limits, clean
from pipelines.prompt_client import BlockingChatModel
from pipelines.stage import Collection
from toolkit.benchmarks.reading import records
from toolkit.console import tell
from toolkit.contracts import Unit
from toolkit.counts import Counts, MadeOnce
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

    `InputError` names the line of anything else, and a file that has phrases for none of the
    documents. Ids that are no document's are told. An id that comes twice has the phrases of both.

    `counts`: phrases of the file that were left out (see `Cleaned`); `texts` that were looked up,
    and of these those with `no_phrase`.
    """

    def __init__(self, *, path: str, phrases: int = 10, words: int = 4) -> None:
        self.path, self.phrases, self.words = path, phrases, words
        self.limits = Limits(phrases, words).checked()
        self._counts = Counts("texts", "no_phrase", *LEFT_OUT)
        self._files = MadeOnce()

    @property
    def counts(self) -> Mapping[str, float]:
        return self._counts()

    @property
    def fingerprint(self) -> str:
        if not Path(self.path).is_file():
            raise InputError(f"there is no file '{self.path}'", do="give a file of JSON lines")
        return fingerprint("file", file_fingerprint(Path(self.path)), *self.limits)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        by_id = self._by_id()
        matched = 0
        unit_id = ""
        for unit in units:
            unit_id = unit.unit_id
            matched += unit_id in by_id
            yield unit_id, self._phrases(by_id.get(unit_id))
        if not matched:
            raise InputError(
                f"'{self.path}' has phrases for none of the documents",
                valid=f'lines with ids of documents, as {{"id": "{unit_id}", "phrases": [...]}}',
            )
        if matched < len(by_id):
            lacking = f"{len(by_id) - matched:,} of {len(by_id):,} ids of '{self.path}'"
            tell(f"{lacking} are no document's; their phrases are left out")

    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        by_id = self._by_id()
        return [self._phrases(by_id.get(query.qid) or by_id.get(query.text)) for query in queries]

    def _phrases(self, cleaned: Cleaned | None) -> Sequence[str]:
        phrases = cleaned.phrases if cleaned else ()
        self._counts.add(texts=1, no_phrase=not phrases)
        return phrases

    def _by_id(self) -> Mapping[str, Cleaned]:
        by_id: Mapping[str, Cleaned] = self._files.get(self.path, self._read)
        return by_id

    def _read(self) -> dict[str, Cleaned]:
        listed: dict[str, list[Any]] = {}
        for location, record in records(Path(self.path)):
            key, phrases = record.get("id"), record.get("phrases")
            if not isinstance(key, str) or not isinstance(phrases, list):
                raise InputError(
                    f"{location} has no id with phrases",
                    valid='lines as {"id": "d1", "phrases": ["harbour light"]}',
                )
            listed.setdefault(key, []).extend(phrases)
        by_id = {key: clean(phrases, self.limits) for key, phrases in listed.items()}
        for cleaned in by_id.values():
            self._counts.add(**cleaned.left_out)
        return by_id
