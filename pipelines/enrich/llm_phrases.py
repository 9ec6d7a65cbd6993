"""Phrases and texts that a language model proposes.

`ModelPhrases` proposes the phrases of SIRA for documents and queries, and `WeightedPhrases` phrases
with weights and exclusions for queries. `ModelText` writes the passage of HyDE or the answer of a
chain of thought for a query.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from soundingline.pipelines.enrich.phrases import (
    KEY,
    LEFT_OUT,
    PhraseSource,
    WeightedPhrase,
    clean,
    clean_text,
    read_phrases,
)
from soundingline.pipelines.index_folder import batches
from soundingline.pipelines.prompting import (
    PROMPTS,
    TASKS,
    CachedLLM,
    LlmStep,
    PromptTemplate,
    Reply,
    json_answer,
    read_prompt_file,
)
from soundingline.pipelines.rewrite import QueryContext
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int, is_number
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.blocking import identity
from soundingline.toolkit.llm.messages import object_schema
from soundingline.toolkit.llm.prompts import json_values

METHODS: Mapping[str, tuple[str, ...]] = {
    "hyde": ("general", "claim", "argument", "finance"),
    "chain_of_thought": ("general",),
}
_PLACES = {"document": "text", "query": "query"}  # in the prompt of each side
_BATCH = 256
_LIST_OF_TEXTS = {"type": "array", "items": {"type": "string"}}
_EXCLUDE = "exclude"
_LARGEST_WEIGHT = 2.0
_MOST_EXCLUDED = 3
_TERM = {"term": {"type": "string"}, "weight": {"type": "number"}}
_LIST_OF_TERMS = {"type": "array", "items": object_schema(_TERM)}


@dataclass(kw_only=True, eq=False, repr=False)
class LlmSource(LlmStep, PhraseSource):
    """Base of the sources that ask the language model of the collection: one prompt for each text.

    Replies are cached by model, sampling settings and prompt, so that a changed text, prompt or
    model requests what changed, and nothing else. A reply that `is_empty` is requested once more,
    with the next seed.
    """

    def __post_init__(self) -> None:
        self.prepare_llm("enrichment", ["enrichment"], settings=self.settings())

    def settings(self) -> Mapping[str, Any]:
        """Sampling settings of each request, beyond those of the model."""
        return {}

    @abstractmethod
    def query_prompt(self, query: str) -> str:
        """The prompt for a query."""

    @abstractmethod
    def read(self, reply: Reply) -> Sequence[str]:
        """The phrases in a reply, which may be an error."""

    def for_queries(
        self, queries: Sequence[QueryContext], collection: Collection
    ) -> list[Sequence[str]]:
        """Request the phrases of each query, or read them from the cache."""
        prompts = [self.query_prompt(query.text) for query in queries]
        replies = self.ask(prompts, [query.qid for query in queries], collection)
        return list(map(self.read, replies))

    def _bound_llm(self, collection: Collection) -> CachedLLM:
        return self._llm.of(*self.model_and_cache(collection))


@dataclass(kw_only=True, eq=False, repr=False)
class ModelPhrases(LlmSource):
    """Phrases that a language model proposes for documents and queries, as in SIRA.

    The phrases of queries are requested during the search; prompts for queries forbid guessing the
    answer. The phrases of documents are read from the cache, which `soundingline enrich` fills (by
    `ask_documents`). An answer without a list of phrases is requested once more and then counts as
    no phrase.

    The `counts` are `texts`; of these `unreadable`, `refused`, and those with `no_phrase`; phrases
    that were left out (see `LEFT_OUT`); and those of `LlmStep`.

    Args:
        task: Selects the package's prompt, one of `TASKS`: documents and queries of
            `question_answering`, queries of `claim` and `multi_hop` have the rules of the authors'
            prompts in our words (`scripts/configs/enrich/prompts` at 57f9cbb).
        prompt: Path of another prompt. It has the placeholder `{text}` for a document or `{query}`
            for a query, and `{phrases}` and `{words}` for the limits.
        phrases: Most phrases of a text.
        words: Most words of a phrase.
        max_characters: The text of a document is cut after these.
        allow_missing: Whether documents without a cached answer get no phrase.
        structured: Whether to request one JSON object with the list, by `response_format` (vLLM,
            OpenAI's chat completions). Otherwise the last JSON object of the answer is read.

    Raises:
        InputError: For impossible arguments, without a language model, and if documents have no
            cached answer unless `allow_missing`.

    Source: Yang et al., "SuperIntelligent Retrieval Agent", 2026, arXiv 2605.06647.
    """

    counted: ClassVar[tuple[str, ...]] = ("texts", "unreadable", "refused", "no_phrase", *LEFT_OUT)
    task: str = "general"
    prompt: str | None = None
    phrases: int = 10
    words: int = 4
    max_characters: int = 4000
    allow_missing: bool = False
    structured: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task is {self.task!r}", valid=", ".join(TASKS))
        for name in ("phrases", "words", "max_characters"):
            check_int(name, getattr(self, name))
        places = _PLACES
        if self.prompt is not None:  # a file is the prompt for one of the sides
            text = read_prompt_file(Path(self.prompt))
            places = {s: p for s, p in _PLACES.items() if f"{{{p}}}" in text} or {"query": "query"}
        self._templates = {
            side: PromptTemplate(
                self.prompt, f"enrichment/{side}_{self.task}.txt", (place, "phrases", "words")
            )
            for side, place in places.items()
        }
        super().__post_init__()

    def settings(self) -> Mapping[str, Any]:
        """Structured output, if it is chosen."""
        return json_answer("phrases", {KEY: _LIST_OF_TEXTS}) if self.structured else {}

    def is_empty(self, answer: str) -> bool:
        """Whether an answer has no list of phrases."""
        return read_phrases(answer) is None

    @property
    def fingerprint(self) -> str:
        """Hash of the prompts and the limits. The cache keys have the model and its sampling."""
        texts = [template.text for template in self._templates.values()]
        return fingerprint("model", texts, self.phrases, self.words, self.max_characters)

    def content(self, collection: Collection) -> str:
        """Hash of prompts, limits and model; with `allow_missing` also of the documents without a
        cached answer, for which every text is looked up in the cache."""
        missing: list[str] = []
        if self.allow_missing and collection.texts is not None:
            unit_ids = collection.index.docnos.take(np.arange(len(collection.index))).tolist()
            units = chain.from_iterable(map(collection.texts, batches(unit_ids, _BATCH)))
            missing = [u.unit_id for u, answer in self._cached(units, collection) if answer is None]
        model, _ = self.model_and_cache(collection)
        return fingerprint(self.fingerprint, self._llm.key(model), missing)

    def provenance(self, collection: Collection) -> Mapping[str, Any]:
        """See `PhraseSource`; with the model, its settings and a hash of the prompt."""
        model, _ = self.model_and_cache(collection)
        prompt = self._templates["document"].text if "document" in self._templates else ""
        return {
            **super().provenance(collection),
            "model": identity(model),
            "settings": model.settings.as_dict(),
            "document_prompt": fingerprint(prompt),
        }

    def document_prompt(self, unit: Unit) -> str:
        """The prompt for a document."""
        return self._filled("document", unit.contents[: self.max_characters])

    def query_prompt(self, query: str) -> str:
        """The prompt for a query."""
        return self._filled("query", query)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """Unit id and phrases of each unit, from the cache."""
        missing = total = 0
        for unit, answer in self._cached(units, collection):
            total += 1
            missing += answer is None and not self.allow_missing
            yield unit.unit_id, () if answer is None else self.read(Reply(answer))
        if missing:
            raise InputError(
                f"{missing:,} of {total:,} documents have no phrases yet",
                valid="phrases of every document",
                do="run soundingline enrich with the same options, which goes on where it "
                "was; or set enrichment.corpus.allow_missing=true",
            )

    def missing_flags(self, units: Iterable[Unit], count: int, collection: Collection) -> bytearray:
        """A byte for each of `count` units, in their order: 1 if the cache has no answer for it,
        else 0. No unit is read while the cache is empty."""
        if not self._bound_llm(collection).has_cached:
            return bytearray(b"\1") * count
        return bytearray(answer is None for _, answer in self._cached(units, collection))

    def ask_documents(
        self, units: Iterable[Unit], collection: Collection, *, accounts: bool = False
    ) -> Iterator[tuple[Unit, Sequence[str], str]]:
        """Request the phrases of documents and write each answer to the cache before it is used.

        Two batches are under way at once, so that the model is never idle. With `accounts` each
        document has an account of its own in the ledger, which stays in memory. Yields the
        document, its phrases, and the code of the error instead of an answer (or an empty string).
        """

        def ask(batch: list[Unit]) -> list[tuple[Unit, Reply]]:
            owners = [unit.unit_id if accounts else "" for unit in batch]
            replies = self.ask([*map(self.document_prompt, batch)], owners, collection)
            return list(zip(batch, replies, strict=True))

        for answered in _two_at_once(ask, batches(units, _BATCH)):
            for unit, reply in answered:
                yield unit, self.read(reply), reply.error

    def read(self, reply: Reply) -> Sequence[str]:
        """The phrases in a reply, cleaned and counted."""
        listed = None if reply.error else read_phrases(reply.text)
        if listed is None:
            self._counts.add(texts=1, **{"refused" if reply.error else "unreadable": 1})
            return ()
        phrases, left_out = clean(listed, self.phrases, self.words)
        self._counts.add(texts=1, no_phrase=not phrases, **left_out)
        return phrases

    def _cached(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[Unit, str | None]]:
        """Each unit with its cached answer."""
        llm = self._bound_llm(collection)
        for batch in batches(units, _BATCH):
            answers = llm.cached([self.document_prompt(unit) for unit in batch])
            yield from zip(batch, answers, strict=True)

    def _filled(self, side: str, text: str) -> str:
        limits = {"phrases": str(self.phrases), "words": str(self.words)}
        return self._template(side).filled({_PLACES[side]: text, **limits})

    def _template(self, side: str) -> PromptTemplate:
        """The prompt for a `document` or a `query`."""
        if side not in self._templates:
            raise InputError(
                f"the prompt {self.prompt} has no place {{{_PLACES[side]}}} for a {side}",
                do="name another prompt, or null for our own",
            )
        return self._templates[side]


@dataclass(kw_only=True, eq=False, repr=False)
class WeightedPhrases(ModelPhrases):
    """Phrases with weights, and exclusions, that a language model proposes for queries in one call:
    `{"keywords": [{"term": "tide mill", "weight": 1.5}], "exclude": ["wind mill"]}`.

    SIRA's paper mentions weighted keywords and optional exclusions, and its released code has
    neither, so this form is ours. The prompts are those of `ModelPhrases` with another answer
    format. A weight is above 0 and at most 2, and 1 is that of a phrase without weight. A phrase
    with another weight is left out and counted as `bad_weight`. An answer without a list of
    keywords is requested once more and then counts as no phrase and no exclusion. At most 3
    exclusions are read; `exclusions` counts them.

    Args:
        weights: False gives every phrase the weight 1.
        exclusions: What happens to the units with an excluded phrase; see `Excluding`. The same
            replies serve all values of `weights` and `exclusions`.

    The other arguments and the errors are those of `ModelPhrases`.
    """

    counted: ClassVar[tuple[str, ...]] = (*ModelPhrases.counted, "bad_weight", "exclusions")
    weights: bool = True
    exclusions: str = "filter"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is None:
            answer = read_prompt_file(PROMPTS / "enrichment" / "weighted_answer.txt")
            template = self._templates["query"]
            template.text = template.text.rpartition("\n\n")[0] + "\n\n" + answer

    def settings(self) -> Mapping[str, Any]:
        parts = {KEY: _LIST_OF_TERMS, _EXCLUDE: _LIST_OF_TEXTS}
        return json_answer("phrases", parts) if self.structured else {}

    @property
    def fingerprint(self) -> str:
        """Hash of the prompt, the limits and what is read from an answer."""
        text, limits = self._template("query").text, (self.phrases, self.words)
        return fingerprint("weighted", text, *limits, self.weights, self.exclusions)

    def document_prompt(self, unit: Unit) -> str:
        """`InputError`: these phrases are for queries."""
        raise InputError(
            "weighted phrases are for queries, and not for documents",
            do="set enrichment.corpus=null, or ModelPhrases for it",
        )

    def read(self, reply: Reply) -> Sequence[str]:
        """The phrases in a reply, then its exclusions with the weight -1, cleaned and counted."""
        listed = None if reply.error else read_phrases(reply.text)
        if listed is None:
            return super().read(reply)
        weighted = [self._weighted(entry) for entry in listed]
        usable = [entry for entry in weighted if entry is not None]
        phrases, left_out = clean(usable, self.phrases, self.words)
        bad = weighted.count(None)
        self._counts.add(texts=1, no_phrase=not phrases, bad_weight=bad, **left_out)
        return phrases if self.exclusions == "none" else (*phrases, *self._excluded(reply.text))

    def _excluded(self, answer: str) -> list[WeightedPhrase]:
        """The exclusions of the last JSON object of an answer that has keywords, cleaned and
        counted."""
        objects = [v for v in json_values(answer) if isinstance(v, dict) and KEY in v]
        listed = objects[-1].get(_EXCLUDE) if objects else None
        excluded, left_out = clean(
            listed if isinstance(listed, list) else [], _MOST_EXCLUDED, self.words
        )
        self._counts.add(exclusions=len(excluded), **left_out)
        return [WeightedPhrase(text, -1.0) for text in excluded]

    def _weighted(self, entry: Any) -> Any:
        """A `WeightedPhrase`, what is not a phrase as it is, or None for an impossible weight."""
        if not isinstance(entry, dict):
            return entry
        term, weight = entry.get("term"), entry.get("weight", 1.0)
        if not isinstance(term, str):
            return term or ""
        usable = is_number(weight) and 0 < weight <= _LARGEST_WEIGHT
        return WeightedPhrase(term, float(weight) if self.weights else 1.0) if usable else None


def _two_at_once(
    ask: Callable[[list[Unit]], list[tuple[Unit, Reply]]], requests: Iterator[list[Unit]]
) -> Iterator[list[tuple[Unit, Reply]]]:
    """The results of `ask` for each request, in their order, while the next one is under way. If
    one fails, the other one ends first, so that its paid replies are cached."""
    with ThreadPoolExecutor(2) as pool:
        waiting = deque(pool.submit(ask, batch) for batch in islice(requests, 2))
        while waiting:
            answered = waiting.popleft().result()
            waiting.extend(pool.submit(ask, batch) for batch in islice(requests, 1))
            yield answered


@dataclass(kw_only=True, eq=False, repr=False)
class ModelText(LlmSource):
    """One text that a language model writes for a query, as the only phrase of the query.

    Both methods guess the answer by their nature, which the measure `phrases_with_answer` counts.
    An empty reply is requested once more and then counts as no text. Documents have no texts.

    The `counts` are `texts`; of these `empty` and `refused`; and those of `LlmStep`.

    Args:
        method: `hyde`, a passage that answers the query; or `chain_of_thought`, an answer with the
            rationale before it.
        task: Selects the published prompt: for `hyde` `general`, or `claim`, `argument` and
            `finance` (those of SciFact, ArguAna and FiQA); for `chain_of_thought` `general`. The
            other `TASKS` have the general prompt.
        prompt: Path of another prompt with `{query}`.
        max_words: The text is cut after these.

    Raises:
        InputError: For impossible arguments, and without a language model.

    Sources: Gao et al., "Precise Zero-Shot Dense Retrieval without Relevance Labels", ACL 2023,
    arXiv 2212.10496, appendix A.1 (there a dense model reads the passage; BM25 does in SIRA's
    table); Jagerman et al., "Query Expansion by Prompting Large Language Models", 2023, arXiv
    2305.03653, prompt CoT.
    """

    counted: ClassVar[tuple[str, ...]] = ("texts", "empty", "refused")
    method: str = "hyde"
    task: str = "general"
    prompt: str | None = None
    max_words: int = 512

    def __post_init__(self) -> None:
        tasks = METHODS.get(self.method)
        if tasks is None:
            raise InputError(f"method is {self.method!r}", valid=", ".join(METHODS))
        if self.task not in TASKS:
            raise InputError(f"task is {self.task!r}", valid=", ".join(TASKS))
        check_int("max_words", self.max_words)
        task = self.task if self.task in tasks else "general"
        default = f"enrichment/{self.method}_{task}.txt"
        self._prompt = PromptTemplate(self.prompt, default, ("query",))
        super().__post_init__()

    @property
    def fingerprint(self) -> str:
        """Hash of the prompt and the limit. The cache keys have the model and its sampling."""
        return fingerprint("text", self._prompt.text, self.max_words)

    def query_prompt(self, query: str) -> str:
        """The prompt for a query."""
        return self._prompt.filled({"query": query})

    def read(self, reply: Reply) -> Sequence[str]:
        """The text of a reply, cut and counted."""
        text = "" if reply.error else clean_text(reply.text, self.max_words)
        refused = bool(reply.error)
        self._counts.add(texts=1, refused=refused, empty=not text and not refused)
        return (text,) if text else ()
