"""Phrases that a language model proposes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipelines.enrich.phrases import KEY, LEFT_OUT, Limits, clean, read_phrases
from pipelines.enrich.sources import PhraseSource, Query, model_of
from pipelines.prompt_client import (
    PromptClient,
    PromptClients,
    Reply,
    json_answer,
)
from pipelines.prompt_template import PromptTemplate
from pipelines.stage import Collection
from toolkit.checks import check_integer
from toolkit.contracts import Unit
from toolkit.counts import Counts, MadeOnce
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.llm.blocking import identity

PROMPTS = Path(__file__).resolve().parent / "prompts"
TASKS = (
    *("general", "question_answering", "multi_hop", "claim"),
    *("argument", "duplicate_question", "finance", "citation"),
)
_COUNTS = (
    *("texts", "unreadable", "refused", "no_phrase"),
    *LEFT_OUT,
    *("asked", "retried", "shared"),
)
_BATCH = 256
_LIST_OF_TEXTS = {"type": "array", "items": {"type": "string"}}


class StoredTexts(Protocol):
    """Units that can be read again and again, and whose number is known."""

    def __iter__(self) -> Iterator[Unit]: ...

    def __len__(self) -> int: ...


class ModelPhrases(PhraseSource):
    """Phrases of the collection's language model, at most `phrases` of 1 to `words` words a text.

    `task` names one of our prompts (`TASKS`), `prompt` the path of one's own: `{text}` stands for a
    document or `{query}` for a query, `{phrases}` and `{words}` for the limits. A document's text
    is cut after `max_characters`. Prompts for queries forbid guessing the answer.

    Answers are cached under the model, how it samples, the prompt and the text, so that a changed
    text, prompt or model asks again for what changed, and nothing else. An answer without a list of
    phrases is asked for once more, with the next seed, and is then taken for no phrase
    (`unreadable`).

    `structured`: the server is asked for one JSON object with the list and nothing else, where it
    knows `response_format` (vLLM, OpenAI's chat completions); else the last one of the answer.

    Queries are asked for as they come. Documents are read from the cache: `ask_documents`, that is
    `python -m experiments.enrich`, fills it. `InputError` where documents are missing there, unless
    `allow_missing`: then they get no phrase.
    """

    asks_model = True

    def __init__(
        self,
        *,
        task: str = "general",
        prompt: str | None = None,
        phrases: int = 10,
        words: int = 4,
        max_characters: int = 4000,
        allow_missing: bool = False,
        structured: bool = False,
    ) -> None:
        if task not in TASKS:
            raise InputError(f"task is {task!r}", valid=", ".join(TASKS))
        check_integer("max_characters", max_characters)
        self.task, self.prompt = task, prompt
        self.phrases, self.words, self.max_characters = phrases, words, max_characters
        self.allow_missing, self.structured = allow_missing, structured
        self.limits = Limits(phrases, words).checked()
        self._counts = Counts(*_COUNTS)
        self._clients = PromptClients(
            "enrichment",
            ["enrichment"],
            lambda answer: read_phrases(answer) is None,
            self._counts,
            json_answer("phrases", {KEY: _LIST_OF_TEXTS}) if structured else None,
        )
        self._templates = MadeOnce()

    @property
    def fingerprint(self) -> str:
        """Of the prompts and the limits. The model and how it samples are in the cache's keys."""
        sides = ("document", "query")
        texts = [self._template(side).text for side in sides if self._has(side)]
        return fingerprint("model", texts, *self.limits, self.max_characters)

    def content(self, collection: Collection) -> str:
        """Of prompts, limits and model, and of which documents have no phrases where that is
        allowed, for which every text is looked up in the cache."""
        missing = [unit.unit_id for unit in self._allowed_missing(collection)]
        return fingerprint(self.fingerprint, self._clients.key(model_of(collection)), missing)

    def provenance(self, collection: Collection) -> Mapping[str, Any]:
        model = model_of(collection)
        prompt = self._template("document").text if self._has("document") else ""
        return {
            **super().provenance(collection),
            "model": identity(model),
            "settings": model.settings.given(),
            "document_prompt": fingerprint(prompt),
        }

    @property
    def counts(self) -> Mapping[str, float]:
        return {**self._counts(), **self._clients.lookups}

    def document_prompt(self, unit: Unit) -> str:
        """What the model is asked for a document."""
        text = unit.contents[: self.max_characters]
        return self._template("document").filled({"text": text, **self._numbers()})

    def query_prompt(self, query: str) -> str:
        """What the model is asked for a query."""
        return self._template("query").filled({"query": query, **self._numbers()})

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        missing = total = 0
        for batch in _batches(units):
            for unit, answer in zip(batch, self._known(batch, collection), strict=True):
                total += 1
                missing += answer is None
                if answer is not None:
                    yield unit.unit_id, self._read(Reply(answer))
                elif self.allow_missing:
                    yield unit.unit_id, ()
        if missing and not self.allow_missing:
            raise InputError(
                f"{missing:,} of {total:,} documents have no phrases yet",
                valid="phrases of every document",
                do="run python -m experiments.enrich with the same options, which goes on where it "
                "was; or set enrichment.corpus.allow_missing=true",
            )

    def missing(self, units: Iterable[Unit], collection: Collection) -> Iterator[Unit]:
        """The units that the cache has no answer for."""
        for batch in _batches(units):
            answers = self._known(batch, collection)
            yield from (u for u, answer in zip(batch, answers, strict=True) if answer is None)

    def lacking(self, units: StoredTexts, collection: Collection) -> bytearray:
        """A byte for each unit, in their order: 1 where the cache has no answer for it, else 0. No
        unit is read while the cache is empty."""
        if not self._client(collection).keeps_any:
            return bytearray(b"\1") * len(units)
        flags = bytearray()
        for batch in _batches(units):
            flags.extend(answer is None for answer in self._known(batch, collection))
        return flags

    def ask_documents(
        self, units: Iterable[Unit], collection: Collection, *, accounts: bool = False
    ) -> Iterator[tuple[Unit, Sequence[str], str]]:
        """Ask for the phrases of units, and keep every answer before it is given: unit, phrases,
        and the code of the error that came instead (empty: none).

        Two batches are under way at once, so that the model is never without work. `accounts`:
        each unit has its own account on the ledger, which keeps it in memory.
        """
        client = self._client(collection)

        def ask(batch: list[Unit]) -> list[tuple[Unit, Reply]]:
            prompts = [self.document_prompt(unit) for unit in batch]
            owners = [unit.unit_id if accounts else "" for unit in batch]
            replies = client.replies(dict(zip(prompts, owners, strict=True)))
            return [(unit, replies[prompt]) for unit, prompt in zip(batch, prompts, strict=True)]

        for answered in _two_at_once(ask, _batches(units)):
            for unit, reply in answered:
                yield unit, self._read(reply), reply.error

    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        prompts = [self.query_prompt(query.text) for query in queries]
        accounts = {prompt: query.qid for prompt, query in zip(prompts, queries, strict=True)}
        replies = self._client(collection).replies(accounts) if prompts else {}
        return [self._read(replies[prompt]) for prompt in prompts]

    def _read(self, reply: Reply) -> Sequence[str]:
        self._counts.add(texts=1)
        if reply.error:
            self._counts.add(refused=1)
            return ()
        listed = read_phrases(reply.text)
        if listed is None:
            self._counts.add(unreadable=1)
            return ()
        cleaned = clean(listed, self.limits)
        self._counts.add(no_phrase=not cleaned.phrases, **cleaned.left_out)
        return cleaned.phrases

    def _known(self, units: Sequence[Unit], collection: Collection) -> list[str | None]:
        """The cached answer for each unit."""
        return self._client(collection).known([self.document_prompt(unit) for unit in units])

    def _numbers(self) -> dict[str, str]:
        return {"phrases": str(self.phrases), "words": str(self.words)}

    def _has(self, side: str) -> bool:
        """Whether there is a prompt for the side; one's own is for one of them."""
        if self.prompt is None:
            return True
        return ("{text}" if side == "document" else "{query}") in self._own_prompt()

    def _own_prompt(self) -> str:
        try:
            return Path(self.prompt or "").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read the prompt {self.prompt}: {error}",
                valid="a text file, or null for one of ours",
            ) from error

    def _template(self, side: str) -> PromptTemplate:
        """The prompt for a `document` or a `query`."""
        places = ("text" if side == "document" else "query", "phrases", "words")
        ours = PROMPTS / f"{side}_{self.task}.txt"
        template: PromptTemplate = self._templates.get(
            side, lambda: PromptTemplate(self.prompt, ours, places)
        )
        return template

    def _allowed_missing(self, collection: Collection) -> Iterator[Unit]:
        if not self.allow_missing or collection.texts is None:
            return
        unit_ids = iter(collection.index.docnos.take(np.arange(len(collection.index))).tolist())
        while batch := list(islice(unit_ids, _BATCH)):
            yield from self.missing(collection.texts(batch), collection)

    def _client(self, collection: Collection) -> PromptClient:
        return self._clients.of(model_of(collection), collection.caches)


def _two_at_once(
    ask: Callable[[list[Unit]], list[tuple[Unit, Reply]]], batches: Iterator[list[Unit]]
) -> Iterator[list[tuple[Unit, Reply]]]:
    """What `ask` gives for each batch, in their order, the next batch under way meanwhile. Where
    one fails, the other one ends first: what it has paid for is kept."""
    with ThreadPoolExecutor(2) as pool:
        waiting = deque(pool.submit(ask, batch) for batch in islice(batches, 2))
        while waiting:
            answered = waiting.popleft().result()
            waiting.extend(pool.submit(ask, batch) for batch in islice(batches, 1))
            yield answered


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    iterator = iter(units)
    while batch := list(islice(iterator, _BATCH)):
        yield batch
