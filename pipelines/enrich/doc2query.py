"""Doc2Query: questions that a document answers, written by a T5."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from soundingline.pipelines.cache import ResultCache
from soundingline.pipelines.checkpoint import T5, Checkpoint, t5_tokenizer
from soundingline.pipelines.device import Placement, within_memory
from soundingline.pipelines.enrich.phrases import PhraseSource, clean_text
from soundingline.pipelines.index_folder import batches
from soundingline.pipelines.stage import Collection, Counts, LazyValues
from soundingline.toolkit.console import track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import Runtime, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

MODEL = "castorini/doc2query-t5-base-msmarco"
_BATCH = 64  # documents of one lookup in the cache
# Characters of a text that are cleaned for each token that is read; English has 4 or 5.
_CHARACTERS = 12


@dataclass(kw_only=True, eq=False, repr=False)
class Doc2Query(PhraseSource):
    """Questions that a T5, trained on MS MARCO, writes for each document.

    Questions are sampled by top-k sampling, as published. Repeated questions are kept, as in the
    published collections, so that their terms count more often. Questions are cached by checkpoint,
    settings and text as soon as they are written. Queries have no questions.

    The `counts` are `texts`, of these `empty` ones (without questions), and with a folder of caches
    `cache_hits` and `cache_misses`.

    Args:
        model, revision, tokenizer: A T5 checkpoint, as in `MonoT5`. SIRA's paper uses
            `doc2query/msmarco-t5-base-v1`.
        phrases: Questions of a document.
        top_k: Tokens from which each next token is sampled.
        max_length: Tokens of a text; the rest is cut.
        question_length: Most tokens of a question.
        seed: Seeds the sampling of each document, together with its text, so that the questions do
            not depend on other documents and their order. They may depend on device and precision.
        device, dtype: See `choose_device` and `choose_dtype`.

    Raises:
        InputError: For impossible arguments, and for a checkpoint that cannot be loaded or is not a
            T5.

    Sources: Nogueira and Lin, "From doc2query to docTTTTTquery", 2019; Nogueira et al., "Document
    Expansion by Query Prediction", 2019, arXiv 1904.08375.
    """

    model: str = MODEL
    revision: str | None = None
    tokenizer: str | None = None
    phrases: int = 40
    top_k: int = 10
    max_length: int = 512
    question_length: int = 64
    seed: int = 42
    device: Runtime[str | None] = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("phrases", "top_k", "max_length", "question_length"):
            check_int(name, getattr(self, name))
        check_int("seed", self.seed, ge=0)
        self._placed = Placement(self.device, self.dtype)
        self._counts = Counts("texts", "empty")
        self._caches = LazyValues()
        self._computing = threading.Lock()

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the checkpoint, the tokenizer, the precision and the settings."""
        return fingerprint(
            "doc2query",
            self._checkpoint.fingerprint,
            self._tokenizer.backend_tokenizer.to_str(),
            self._placed.precision,
            [self.phrases, self.top_k, self.max_length, self.question_length, self.seed],
        )

    @property
    def counts(self) -> Mapping[str, float]:
        return self._counts()

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """Unit id and questions of each unit, written now or from the cache."""
        folder = collection.caches
        path = folder / f"doc2query-{self.fingerprint}.sqlite" if folder else None
        cache: ResultCache = self._caches.get(path, lambda: ResultCache(path, self._counts))
        tracked = track(units, "Writing questions", total=len(collection.index))
        longest = self.max_length * _CHARACTERS
        for batch in batches(tracked, _BATCH):
            texts = [clean_text(unit.contents[:longest], self.max_length) for unit in batch]
            known = cache.get([(text,) for text in texts])
            for unit, text, questions in zip(batch, texts, known, strict=True):
                self._counts.add(texts=1, empty=not text)
                if questions is None and text:
                    questions = self._questions(text)
                    cache.put([((text,), questions)])
                yield unit.unit_id, tuple(questions or ())

    def _questions(self, text: str) -> list[str]:
        torch, device = import_optional("torch"), self._placed.device
        coded = self._tokenizer(
            text, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(device)
        seed = int(fingerprint(self.seed, text), 16)
        devices = [device] if device.type == "cuda" else []
        what = f"{self.phrases} questions for a text of {coded.input_ids.shape[1]} tokens"
        # One at a time, because the random numbers of torch belong to the process.
        with self._computing, torch.random.fork_rng(devices), within_memory(device, what):
            torch.manual_seed(seed)
            with torch.inference_mode():
                written = self._network.generate(
                    input_ids=coded.input_ids,
                    attention_mask=coded.attention_mask,
                    do_sample=True,
                    top_k=self.top_k,
                    top_p=1.0,
                    temperature=1.0,
                    num_beams=1,
                    num_return_sequences=self.phrases,
                    max_new_tokens=self.question_length,
                )
        decoded = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        questions = [clean_text(question, self.question_length) for question in decoded]
        return [question for question in questions if question]

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(T5, self.model, self.revision).checked()

    @cached_property
    def _tokenizer(self) -> Any:
        return t5_tokenizer(self._checkpoint, self.tokenizer)

    @cached_property
    def _network(self) -> Any:
        return self._checkpoint.load(self._placed)
