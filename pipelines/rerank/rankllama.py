"""RankLLaMA (Ma et al., "Fine-Tuning LLaMA for Multi-Stage Text Retrieval", SIGIR 2024): a Llama
with one output, read at the last token of query and document.

The published checkpoints were trained without `</s>` behind the document, although the paper's
formula has it, and each part has its own `<s>`: `<s> query: ... <s> document: title text`. Both are
arguments, because later checkpoints and the text-ranking study differ.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.neural.batches import in_batches
from pipelines.neural.checkpoints import check_length, within_memory
from pipelines.neural.devices import choose_device, choose_dtype
from pipelines.neural.extras import require
from pipelines.rerank.base import Pair
from pipelines.rerank.rankllama_checkpoint import PASSAGE, RankLlamaCheckpoint
from pipelines.rerank.rankllama_prompt import PairPrompt
from pipelines.rerank.stage import Reranker, Texts, treatment_of_long
from toolkit.errors import InputError
from toolkit.files import fingerprint


class RankLlamaScorer:
    """The raw output of RankLLaMA for each pair. Thread-safe.

    `model` is a LoRA adapter (a folder or a name on the hub with an `adapter_config.json`), which
    is merged into `base` (None: the one it names), or a checkpoint with the adapter merged already.
    `device`, `dtype`: as `choose_device` and `choose_dtype`. `max_length` tokens hold a pair: a
    longer document is cut, a query only where it would take more than half. A batch holds
    `batch_tokens` tokens, padding included. `layout`, `end_of_sequence` and the prefixes: as in
    `PairPrompt`. The weights are loaded by the first call of `score`; everything else is checked at
    once.

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
        if batch_tokens < 1:
            raise InputError(f"batch_tokens is {batch_tokens}", valid="1 or more tokens a batch")
        self.model = model
        self._checkpoint = RankLlamaCheckpoint(model, base, revision)
        check_length(self._checkpoint.config, self._checkpoint.whole, max_length)
        self._device = choose_device(device)
        self._dtype = choose_dtype(dtype, self._device)
        self._batch_tokens = batch_tokens
        self._prompt = PairPrompt(
            self._checkpoint.tokenizer(),
            max_length=max_length,
            layout=layout,
            end_of_sequence=end_of_sequence,
            query_prefix=query_prefix,
            document_prefix=document_prefix,
        )
        settings = (max_length, layout, end_of_sequence, query_prefix, document_prefix)
        parts = (self._checkpoint.fingerprint, str(self._dtype), *settings)
        self._fingerprint = fingerprint("rankllama", *parts)
        self._lock = threading.Lock()
        self._network: Any = None
        self._counts = Counter(truncated=0, queries_truncated=0)

    def __repr__(self) -> str:
        return f"RankLlamaScorer({self.model!r})"

    @property
    def fingerprint(self) -> str:
        """See `PairScorer`."""
        return self._fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        """Cumulative: pairs of which the document was `truncated`, or the query
        (`queries_truncated`)."""
        with self._lock:
            return dict(self._counts)

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`. `InputError` where the weights or a batch do not fit in memory."""
        prompts = [self._prompt.encode(pair) for pair in pairs]
        ids = [prompt.ids for prompt in prompts]
        scores = in_batches(self._score_batch, ids, list(map(len, ids)), self._batch_tokens)
        with self._lock:
            self._counts["truncated"] += sum(prompt.truncated for prompt in prompts)
            self._counts["queries_truncated"] += sum(prompt.query_truncated for prompt in prompts)
        return scores

    def split(self, pair: Pair) -> list[Pair]:
        """The document in windows that each fit whole, cut between words; the pair itself where it
        fits. What of a query is too long is cut in each of them."""
        return [Pair(pair.query, text) for text in self._prompt.windows(pair)]

    def _score_batch(self, rows: Sequence[Sequence[int]]) -> list[float]:
        torch = require("torch")
        network = self._loaded()
        padded = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
        for number, row in enumerate(rows):
            padded[number, : len(row)] = torch.tensor(row)
        ends = torch.tensor([len(row) - 1 for row in rows])
        with (
            torch.inference_mode(),
            within_memory(self._device, f"a batch of {padded.numel()} tokens"),
        ):
            # Attention looks back only, so that padding behind a pair changes nothing before it,
            # and needs no mask.
            hidden = network.model(padded.to(self._device), use_cache=False).last_hidden_state
            last = hidden[torch.arange(len(rows)), ends.to(self._device)]
            # In float32: bfloat16 would round unlike documents to the same score.
            scores: list[float] = (last.float() @ network.score.weight[0].float()).tolist()
        return scores

    def _loaded(self) -> Any:
        with self._lock:
            if self._network is None:
                self._network = self._checkpoint.ranker(self._device, self._dtype)
            return self._network


def rankllama(
    texts: Texts,
    unit: str,
    caches: Path | None,
    *,
    model: str = PASSAGE,
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
    gather_ms: float = 5.0,
) -> Reranker:
    """Re-ranks the best `depth` by RankLLaMA; arguments as in `RankLlamaScorer` and `Reranker`.

    `long_documents` None: `max_passage` where the unit is a whole document, else `truncate`.
    """
    scorer = RankLlamaScorer(
        model,
        base=base,
        revision=revision,
        device=device,
        dtype=dtype,
        max_length=max_length,
        batch_tokens=batch_tokens,
        layout=layout,
        end_of_sequence=end_of_sequence,
        query_prefix=query_prefix,
        document_prefix=document_prefix,
    )
    return Reranker(
        scorer,
        texts=texts,
        depth=depth,
        cache=caches,
        long_documents=treatment_of_long(unit, long_documents),
        gather_ms=gather_ms,
    )
