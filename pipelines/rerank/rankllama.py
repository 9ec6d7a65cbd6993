"""RankLLaMA (Ma et al., "Fine-Tuning LLaMA for Multi-Stage Text Retrieval", SIGIR 2024): a Llama
with one output, read at the last token of query and document.

The published checkpoints were trained without `</s>` behind the document, although the paper's
formula has it, and each part has its own `<s>`: `<s> query: ... <s> document: title text`. Both are
arguments, because later checkpoints and the text-ranking study differ.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.neural.adapters import Checkpoint
from pipelines.neural.batches import in_batches
from pipelines.neural.checkpoints import check_kind, check_length, within_memory
from pipelines.neural.devices import Placed
from pipelines.rerank.base import Pair
from pipelines.rerank.rankllama_prompt import RankLlamaPrompts, check_layout
from pipelines.rerank.stage import Reranker
from pipelines.stage import Texts
from toolkit.checks import check_integer
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import fingerprint

if TYPE_CHECKING:
    import torch

PASSAGE = "castorini/rankllama-v1-7b-lora-passage"


class RankLlamaCheckpoint(Checkpoint):
    """The weights: an adapter and its base, or one whole model. Arguments as of `Checkpoint`.

    Making one reads configurations only. `InputError` where one cannot be had, or is no model that
    scores pairs.
    """

    def __init__(self, model: str, base: str | None, revision: str | None) -> None:
        kind = "AutoModelForSequenceClassification"
        super().__init__(model, base, revision, automatic=kind, num_labels=1)
        check_kind(self.config, self.whole, ("llama",), "rankllama")
        if not self.adapted:
            self._check_output(self.config.num_labels == 1)

    def ranker(self, device: torch.device, dtype: torch.dtype) -> Any:
        """The network, ready to score."""
        # The base of an adapter has no such output.
        network, missing = self.load(device, dtype, absent=("score.",))
        self._check_output(bool(network.score.weight.any()) if self.adapted else not missing)
        return network

    def _check_output(self, there: bool) -> None:
        if not there:
            raise InputError(
                f"'{self.model}' has no output that was trained to score pairs",
                valid=f"a RankLLaMA: an adapter such as {PASSAGE}, or one merged into its base, "
                "with one label",
            )


class RankLlamaScorer(Placed):
    """The raw output of RankLLaMA for each pair. Thread-safe.

    `model` is a LoRA adapter (a folder or a name on the hub with an `adapter_config.json`), which
    is merged into `base` (None: the one it names), or a checkpoint with the adapter merged already.
    `device`, `dtype`: as `choose_device` and `choose_dtype`. `max_length` tokens hold a pair: a
    longer document is cut, a query only where it would take more than half. A batch holds
    `batch_tokens` tokens, padding included. `layout`, `end_of_sequence` and the prefixes: as in
    `RankLlamaPrompts`. Making one reads nothing: the checkpoint is read by `fingerprint`, its
    weights by the first call of `score`.

    White space is made single spaces, as it is in the texts of the training data.
    """

    def __init__(
        self,
        model: str = PASSAGE,
        *,
        base: str | None = None,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_length: int = 512,
        batch_tokens: int = 16_384,
        layout: str = "pair",
        end_of_sequence: bool = False,
        query_prefix: str = "query: ",
        document_prefix: str = "document: ",
    ) -> None:
        check_integer("batch_tokens", batch_tokens)
        super().__init__(device, dtype)
        self.model, self.base, self.revision = model, base, revision
        self.max_length, self.batch_tokens = max_length, batch_tokens
        self.layout, self.end_of_sequence = layout, end_of_sequence
        self.query_prefix, self.document_prefix = query_prefix, document_prefix
        check_layout(layout, max_length)
        self._lock = threading.Lock()
        self._network: Any = None
        self._counts = Counts("truncated", "queries_truncated")

    def __repr__(self) -> str:
        return f"RankLlamaScorer({self.model!r})"

    @cached_property
    def fingerprint(self) -> str:
        """See `PairScorer`. Reads configurations and tokenizer, not the weights; `InputError` where
        the model cannot be had or does not score pairs."""
        _ = self._prompt
        settings = (self.max_length, self.layout, self.end_of_sequence)
        prefixes = (self.query_prefix, self.document_prefix)
        parts = (self._checkpoint.fingerprint, str(self.dtype), *settings, *prefixes)
        return fingerprint("rankllama", *parts)

    @property
    def counts(self) -> Mapping[str, int]:
        """Cumulative: pairs of which the document was `truncated`, or the query
        (`queries_truncated`)."""
        return self._counts()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`. `InputError` where the weights or a batch do not fit in memory."""
        prompts = [self._prompt.encode(pair) for pair in pairs]
        ids = [prompt.ids for prompt in prompts]
        scores = in_batches(self._score_batch, ids, list(map(len, ids)), self.batch_tokens)
        self._counts.add(
            truncated=sum(prompt.truncated for prompt in prompts),
            queries_truncated=sum(prompt.query_truncated for prompt in prompts),
        )
        return scores

    def split(self, pair: Pair) -> list[Pair]:
        """The document in windows that each fit whole, cut between words; the pair itself where it
        fits. What of a query is too long is cut in each of them."""
        return [Pair(pair.query, text) for text in self._prompt.windows(pair)]

    def close(self) -> None:
        """See `PairScorer`: it holds no connection."""

    @cached_property
    def _checkpoint(self) -> RankLlamaCheckpoint:
        checkpoint = RankLlamaCheckpoint(self.model, self.base, self.revision)
        check_length(checkpoint.config, checkpoint.whole, self.max_length)
        return checkpoint

    @cached_property
    def _prompt(self) -> RankLlamaPrompts:
        return RankLlamaPrompts(
            self._checkpoint.tokenizer(),
            max_length=self.max_length,
            layout=self.layout,
            end_of_sequence=self.end_of_sequence,
            query_prefix=self.query_prefix,
            document_prefix=self.document_prefix,
        )

    def _score_batch(self, rows: Sequence[Sequence[int]]) -> list[float]:
        torch = require("torch")
        network = self._loaded()
        padded = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
        for number, row in enumerate(rows):
            padded[number, : len(row)] = torch.tensor(row)
        ends = torch.tensor([len(row) - 1 for row in rows])
        with (
            torch.inference_mode(),
            within_memory(self.device, f"a batch of {padded.numel()} tokens"),
        ):
            # Attention looks back only, so that padding behind a pair changes nothing before it,
            # and needs no mask.
            hidden = network.model(padded.to(self.device), use_cache=False).last_hidden_state
            last = hidden[torch.arange(len(rows)), ends.to(self.device)]
            # In float32: bfloat16 would round unlike documents to the same score.
            scores: list[float] = (last.float() @ network.score.weight[0].float()).tolist()
        return scores

    def _loaded(self) -> Any:
        with self._lock:
            if self._network is None:
                self._network = self._checkpoint.ranker(self.device, self.dtype)
            return self._network


class RankLLaMA(Reranker):
    """Re-ranks the best `depth` rows of each query by RankLLaMA (Ma et al., SIGIR 2024). Columns
    and errors as in `Reranker`, of which it takes the arguments too; those of the model, and what
    is refused of a checkpoint, as in `RankLlamaScorer`."""

    def __init__(
        self,
        model: str = PASSAGE,
        *,
        base: str | None = None,
        revision: str | None = None,
        depth: int = 50,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int = 16_384,
        max_length: int = 512,
        layout: str = "pair",
        end_of_sequence: bool = False,
        query_prefix: str = "query: ",
        document_prefix: str = "document: ",
        long_documents: str | None = None,
        max_wait_ms: float = 5.0,
        texts: Texts | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.model, self.base, self.revision = model, base, revision
        self.device, self.dtype = device, dtype
        self.batch_tokens, self.max_length = batch_tokens, max_length
        self.layout, self.end_of_sequence = layout, end_of_sequence
        self.query_prefix, self.document_prefix = query_prefix, document_prefix
        super().__init__(
            self._part(RankLlamaScorer),
            texts=texts,
            depth=depth,
            cache=cache,
            long_documents=long_documents,
            max_wait_ms=max_wait_ms,
        )
