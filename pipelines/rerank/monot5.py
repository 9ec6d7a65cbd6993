"""monoT5 (Nogueira, Jiang, Pradeep, Lin, "Document Ranking with a Pretrained Sequence-to-Sequence
Model", Findings of EMNLP 2020): T5 reads a query and a document, and its first output token is
`true` or `false`.

A score is the one that pyterrier_t5 gives a pair by itself. There, a batch changes it: shorter
prompts are padded in front of ` Relevant:`. Here nothing but the pair's own tokens is read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.neural.batches import in_batches
from pipelines.neural.checkpoints import (
    check_kind,
    checkpoint_config,
    checkpoint_fingerprint,
    within_memory,
)
from pipelines.neural.devices import Placed
from pipelines.neural.t5 import t5_model, t5_tokenizer
from pipelines.rerank.base import Pair
from pipelines.rerank.monot5_prompt import MonoT5Prompts
from pipelines.rerank.stage import Reranker
from pipelines.rerank.t5_first_token import T5FirstTokenLogits, padded
from pipelines.stage import Texts
from toolkit.checks import check_integer
from toolkit.counts import Counts
from toolkit.files import fingerprint

if TYPE_CHECKING:
    pass

MODEL = "castorini/monot5-base-msmarco"
# What a device needs to be busy; more makes no more speed.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 32_768}
_LONGEST = 4096


class MonoT5Scorer(Placed):
    """log P(true) of true and false, for each pair. Thread-safe: one thread at a time computes.

    - `model`, `revision`: a T5 checkpoint on the hub (`castorini/monot5-base-msmarco`, `-large-`,
      `-3b-`, ...) or a folder.
    - `tokenizer`: a name or a folder; None: the checkpoint's own `tokenizer.json`, else T5's
      (`t5-base`), as pyterrier_t5.
    - `device`, `dtype`: see `choose_device` and `choose_dtype`.
    - `batch_tokens`: tokens of a batch; None: 2048 on a CPU, 32,768 on a GPU.
    - `max_length`: tokens of a prompt; of a longer one the document's end is cut, and never
      ` Relevant:`. A query that fills the prompt alone is cut too, and leaves the document unread.

    Texts that are None or not a number count as empty. Making one reads nothing: the checkpoint is
    read by `fingerprint`, its weights by the first call of `score`. `InputError` where it cannot be
    had, is no T5, or does not fit into memory.
    """

    def __init__(
        self,
        model: str = MODEL,
        *,
        revision: str | None = None,
        tokenizer: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        max_length: int = 512,
    ) -> None:
        if batch_tokens is not None:
            check_integer("batch_tokens", batch_tokens)
        check_integer("max_length", max_length, most=_LONGEST, do="set 512, as trained")
        super().__init__(device, dtype)
        self.model, self.revision, self.max_length = model, revision, max_length
        self.tokenizer = tokenizer
        self._batch_tokens = batch_tokens
        self._network: T5FirstTokenLogits | None = None
        # Tokenizer and model are one computation: neither gains from a second thread.
        self._computing = threading.RLock()
        self._counts = Counts("pairs", "truncated", "queries_too_long", "empty_texts")

    def __repr__(self) -> str:
        return f"MonoT5Scorer({self.model!r})"

    @cached_property
    def config(self) -> Any:
        """The checkpoint's configuration."""
        config = checkpoint_config(self.model, self.revision)
        check_kind(config, self.model, ("t5",), "monoT5")
        return config

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch."""
        return self._batch_tokens or _BATCH_TOKENS[self.device.type]

    @cached_property
    def fingerprint(self) -> str:
        """See `PairScorer`. Reads configuration and tokenizer, not the weights; `InputError` where
        the model cannot be had or is no T5."""
        _ = self.config, self._prompts
        return fingerprint(
            "monot5",
            checkpoint_fingerprint(self.model, self.revision),
            self._tokenizer.backend_tokenizer.to_str(),
            self.precision,
            self.max_length,
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Cumulative: `pairs` scored, of these with the document `truncated`, with a query that
        left no room to it (`queries_too_long`), with an empty document (`empty_texts`)."""
        return self._counts()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`."""
        plain = [_plain(pair) for pair in pairs]
        with self._computing:
            prompts = self._prompts.encode(plain)
            ids = [prompt.ids for prompt in prompts]
            lengths = [padded(len(tokens)) for tokens in ids]
            scores = in_batches(self._scored, ids, lengths, self.batch_tokens)
        self._counts.add(
            pairs=len(plain),
            truncated=sum(prompt.truncated for prompt in prompts),
            queries_too_long=sum(prompt.no_room for prompt in prompts),
            empty_texts=sum(not pair.text.strip() for pair in plain),
        )
        return scores

    def split(self, pair: Pair) -> list[Pair]:
        """The document in windows that each fit whole beside the query and do not overlap; together
        they are its text. The pair itself where it fits, or where the query leaves less than an
        eighth of `max_length`."""
        pair = _plain(pair)
        with self._computing:
            return [Pair(pair.query, text) for text in self._prompts.windows(pair)]

    def close(self) -> None:
        """See `PairScorer`: it holds no connection."""

    def _scored(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        network = self._loaded()
        what = f"monoT5 on a batch of {sum(map(len, prompts))} tokens"
        with within_memory(self.device, what):
            scores: list[float] = network(prompts).log_softmax(dim=-1)[:, 0].tolist()
        return scores

    def _loaded(self) -> T5FirstTokenLogits:
        if self._network is None:
            model = t5_model(
                self.model,
                self.revision,
                self.config,
                device=self.device,
                dtype=self.dtype,
                what="monoT5",
            )
            with within_memory(self.device, self.model):
                self._network = T5FirstTokenLogits(
                    model,
                    self._prompts.answers,
                    longest=self.max_length,
                    device=self.device,
                    dtype=self.dtype,
                )
        return self._network

    @cached_property
    def _prompts(self) -> MonoT5Prompts:
        return MonoT5Prompts(self._tokenizer, self.max_length)

    @cached_property
    def _tokenizer(self) -> Any:
        return t5_tokenizer(self.model, self.revision, self.tokenizer, self.config.vocab_size)


class MonoT5(Reranker):
    """Re-ranks the best `depth` rows of each query by monoT5 (Nogueira et al., Findings of EMNLP
    2020). Columns and errors as in `Reranker`, of which it takes the arguments too; those of the
    model, and what is refused of a checkpoint, as in `MonoT5Scorer`."""

    def __init__(
        self,
        model: str = MODEL,
        *,
        revision: str | None = None,
        tokenizer: str | None = None,
        depth: int = 50,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        max_length: int = 512,
        long_documents: str | None = None,
        max_wait_ms: float = 5.0,
        texts: Texts | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.model, self.revision, self.tokenizer = model, revision, tokenizer
        self.device, self.dtype = device, dtype
        self.batch_tokens, self.max_length = batch_tokens, max_length
        super().__init__(
            self._part(MonoT5Scorer),
            texts=texts,
            depth=depth,
            cache=cache,
            long_documents=long_documents,
            max_wait_ms=max_wait_ms,
        )


def _plain(pair: Pair) -> Pair:
    """A missing text (None, not a number) as an empty one."""
    return pair if isinstance(pair.text, str) else Pair(pair.query, "")
