"""Cross-encoders: transformers' sequence classifiers over a query and a text, such as the MS MARCO
MiniLM models (Reimers and Gurevych, 2019), or a student trained on a teacher's judgements."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pipelines.neural.adapters import Checkpoint
from pipelines.neural.batches import in_batches
from pipelines.neural.checkpoints import check_length, within_memory
from pipelines.neural.devices import Placed
from pipelines.rerank.base import Pair
from toolkit.checks import check_integer
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import fingerprint


class CrossEncoderScorer(Placed):
    """The logit of each pair: the output of a classifier with one label; with two, that of the
    second less that of the first. Thread-safe.

    `model` is a folder or a name on the hub; `device`, `dtype`: as `choose_device` and
    `choose_dtype`. `max_length` tokens hold a pair, of which the longer side is cut first. A batch
    holds `batch_tokens` tokens, padding included. Making one reads nothing: configuration and
    tokenizer are read by `fingerprint`, weights by the first call of `score`. `counts`: `truncated`
    pairs.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_length: int = 512,
        batch_tokens: int = 8192,
    ) -> None:
        check_integer("max_length", max_length, least=8)
        check_integer("batch_tokens", batch_tokens)
        super().__init__(device, dtype)
        self.model, self.revision = model, revision
        self.max_length, self.batch_tokens = max_length, batch_tokens
        self._lock = threading.Lock()
        self._network: Any = None
        self._counts = Counts("truncated")

    def __repr__(self) -> str:
        return f"CrossEncoderScorer({self.model!r})"

    @cached_property
    def fingerprint(self) -> str:
        """See `PairScorer`. `InputError` where the model cannot be had or is no such classifier."""
        parts = (self._checkpoint.fingerprint, self.precision, self.max_length)
        return fingerprint("cross_encoder", *parts)

    @property
    def counts(self) -> Mapping[str, int]:
        """See the class."""
        return self._counts()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`. `InputError` where the weights or a batch do not fit in memory."""
        with self._lock:
            # The library's tokenizers are set up for each call, which threads must not share.
            rows = [self._encoded(pair) for pair in pairs]
        lengths = [len(row["input_ids"]) for row in rows]
        return in_batches(self._score_batch, rows, lengths, self.batch_tokens)

    def close(self) -> None:
        """See `PairScorer`: it holds no connection."""

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        kind = "AutoModelForSequenceClassification"
        checkpoint = Checkpoint(self.model, None, self.revision, automatic=kind)
        if checkpoint.config.num_labels not in (1, 2):
            raise InputError(
                f"'{self.model}' is a classifier with {checkpoint.config.num_labels} labels",
                valid="one label (a score), or two (irrelevant, relevant)",
            )
        check_length(checkpoint.config, self.model, self.max_length)
        return checkpoint

    @cached_property
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer()

    def _encoded(self, pair: Pair) -> Mapping[str, list[int]]:
        query, text = pair.query or " ", pair.text or " "
        encoded = self._tokenizer(query, text)
        if len(encoded["input_ids"]) <= self.max_length:
            return dict(encoded)
        self._counts.add(truncated=1)
        return dict(
            self._tokenizer(query, text, truncation="longest_first", max_length=self.max_length)
        )

    def _score_batch(self, rows: Sequence[Mapping[str, list[int]]]) -> list[float]:
        torch = require("torch")
        network = self._loaded()
        batch = self._tokenizer.pad(list(rows), return_tensors="pt").to(self.device)
        tokens = batch["input_ids"].numel()
        with torch.inference_mode(), within_memory(self.device, f"a batch of {tokens} tokens"):
            logits = network(**batch).logits.float()
        scores: list[float] = (
            logits[:, -1] - (logits[:, 0] if logits.shape[1] > 1 else 0)
        ).tolist()
        return scores

    def _loaded(self) -> Any:
        with self._lock:
            if self._network is None:
                self._network, _ = self._checkpoint.load(self.device, self.dtype)
            return self._network
