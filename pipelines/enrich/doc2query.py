"""Doc2Query: questions that a document answers, written by a T5 that was trained on MS MARCO
(Nogueira and Lin, "From doc2query to docTTTTTquery", 2019; Nogueira et al., arXiv 1904.08375)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from pipelines.caching import ResultCache
from pipelines.enrich.phrases import Limits, clean_text
from pipelines.enrich.sources import PhraseSource, Query
from pipelines.neural.checkpoints import (
    check_kind,
    checkpoint_config,
    checkpoint_fingerprint,
    within_memory,
)
from pipelines.neural.devices import Placed
from pipelines.neural.t5 import t5_model, t5_tokenizer
from pipelines.stage import Collection
from toolkit.checks import check_integer
from toolkit.contracts import Unit
from toolkit.counts import Counts, MadeOnce
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import fingerprint
from toolkit.progress import track

MODEL = "castorini/doc2query-t5-base-msmarco"
_BATCH = 64  # documents that are looked up in the cache together
# Characters of a text that are looked at for each token that is read; English has 4 or 5.
_CHARACTERS = 12


class Doc2Query(PhraseSource):
    """`phrases` questions for each document, sampled as published: top-k sampling with `top_k` 10,
    texts cut after `max_length` 512 tokens, questions of at most `question_length` 64. Repeated
    questions count as often as they come, as in the published collections.

    - `model`, `revision`, `tokenizer`: a T5 checkpoint, as in `MonoT5Scorer`. SIRA's paper took
      `doc2query/msmarco-t5-base-v1`.
    - `device`, `dtype`: see `choose_device` and `choose_dtype`.
    - `seed`: with the text it seeds the sampling, a document at a time, so that neither the order
      of the documents nor the others change what one gets. Another device or precision may.

    Questions are kept in the collection's caches by checkpoint, settings and text, each when it is
    written. `counts`: `texts`, of them `empty` ones (without questions); `cache_hits` and
    `cache_misses`. Queries have no questions.
    """

    def __init__(
        self,
        *,
        model: str = MODEL,
        revision: str | None = None,
        tokenizer: str | None = None,
        phrases: int = 40,
        top_k: int = 10,
        max_length: int = 512,
        question_length: int = 64,
        seed: int = 42,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        lengths = {"max_length": max_length, "question_length": question_length}
        for name, value in {"phrases": phrases, "top_k": top_k, **lengths}.items():
            check_integer(name, value)
        check_integer("seed", seed, least=0)
        self.model, self.revision, self.tokenizer = model, revision, tokenizer
        self.phrases, self.top_k, self.seed = phrases, top_k, seed
        self.max_length, self.question_length = max_length, question_length
        self.device, self.dtype = device, dtype
        self.limits = Limits(phrases, question_length)
        self._placed = Placed(device, dtype)
        self._counts = Counts("texts", "empty")
        self._caches = MadeOnce()
        self._computing = threading.Lock()

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Of the checkpoint, the tokenizer, the precision and the settings. `InputError` where the
        checkpoint cannot be had or is no T5."""
        return fingerprint(
            "doc2query",
            checkpoint_fingerprint(self.model, self.revision),
            self._tokenizer.backend_tokenizer.to_str(),
            self._placed.precision,
            [self.phrases, self.top_k, self.max_length, self.question_length, self.seed],
        )

    @property
    def counts(self) -> Mapping[str, float]:
        lookups = [cache.lookups for cache in self._caches.values() if cache.path]
        return {**self._counts(), **(lookups[-1] if lookups else {})}

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        folder = collection.caches
        path = folder / f"doc2query-{self.fingerprint}.sqlite" if folder else None
        cache: ResultCache = self._caches.get(path, lambda: ResultCache(path))
        tracked = iter(track(units, "Writing questions", total=len(collection.index)))
        while batch := list(islice(tracked, _BATCH)):
            texts = [self._read(unit.contents) for unit in batch]
            known = cache.get([(text,) for text in texts])
            for unit, text, questions in zip(batch, texts, known, strict=True):
                self._counts.add(texts=1, empty=not text)
                if questions is None and text:
                    questions = self._questions(text)
                    cache.put([((text,), questions)])
                yield unit.unit_id, tuple(questions or ())

    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        """`InputError`: what is written here is written for documents."""
        raise InputError(
            "doc2query writes questions for documents, and not for queries",
            do="set enrichment.query=null, or another source for it",
        )

    def _read(self, contents: str) -> str:
        """What the model may see of a text."""
        return clean_text(contents[: self.max_length * _CHARACTERS], self.max_length)

    def _questions(self, text: str) -> list[str]:
        torch, device = require("torch"), self._placed.device
        coded = self._tokenizer(
            text, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(device)
        seed = int(fingerprint(self.seed, text), 16)
        devices = [device] if device.type == "cuda" else []
        what = f"{self.phrases} questions for a text of {coded.input_ids.shape[1]} tokens"
        # One at a time: the random numbers of torch are the process's.
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
    def _config(self) -> Any:
        config = checkpoint_config(self.model, self.revision)
        check_kind(config, self.model, ("t5",), "Doc2Query")
        return config

    @cached_property
    def _tokenizer(self) -> Any:
        return t5_tokenizer(self.model, self.revision, self.tokenizer, self._config.vocab_size)

    @cached_property
    def _network(self) -> Any:
        device, dtype = self._placed.device, self._placed.dtype
        network = t5_model(
            self.model, self.revision, self._config, device=device, dtype=dtype, what="Doc2Query"
        )
        return network.to(device)
