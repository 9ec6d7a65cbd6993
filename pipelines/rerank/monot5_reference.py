"""pyterrier_t5's monoT5, to compare with ours. Its scores of a pair change with the batch that the
pair is in, because shorter prompts are padded in front of ` Relevant:`."""

from __future__ import annotations

import threading
from typing import Any

import pandas as pd

from pipelines.neural.checkpoints import (
    check_kind,
    checkpoint_config,
    checkpoint_fingerprint,
    opening,
    within_memory,
)
from pipelines.neural.devices import choose_device
from pipelines.neural.t5 import HOW_TO_GET, T5_TOKENIZER, has_tokenizer
from pipelines.rerank.head_and_tail import rejoin, split_head
from pipelines.rerank.monot5 import MODEL
from pipelines.rerank.monot5_prompt import MonoT5Prompts
from pipelines.rerank.texts import check_columns, texts_for, texts_of
from pipelines.stage import Stage, Texts
from toolkit.checks import check_integer
from toolkit.counts import MadeOnce
from toolkit.errors import InputError
from toolkit.extras import check_installed, require


class MonoT5Reference(Stage):
    """`pyterrier_t5.MonoT5ReRanker` on the best `depth` rows of each query; the other rows stay
    below them, as with `Reranker`, whose input and output columns it has. Float32, on a GPU where
    there is one; documents are cut, whatever their length. One thread at a time computes.

    `model`, `tokenizer`: names on the hub or folders. The checkpoint is read by `fingerprint`, its
    weights by the first ranking.
    """

    def __init__(
        self,
        *,
        texts: Texts | None = None,
        model: str = MODEL,
        tokenizer: str = T5_TOKENIZER,
        depth: int = 50,
        batch_size: int = 4,
    ) -> None:
        check_integer("depth", depth)
        check_integer("batch_size", batch_size)
        check_installed("pyterrier_t5")
        self.texts, self.model, self.tokenizer = texts, model, tokenizer
        self.depth, self.batch_size = depth, batch_size
        self._references = MadeOnce()
        self._computing = threading.Lock()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """See `Reranker.transform`."""
        texts = texts_for(inp, self.texts, self.collection)
        check_columns(inp, texts, self)
        head, tail = split_head(inp, self.depth)
        # A key of our own: docnos may repeat, and the reference puts rows in another order.
        pairs = pd.DataFrame(
            {
                "qid": head["qid"].tolist(),
                "docno": [str(row) for row in range(len(head))],
                "query": head["query"].tolist(),
                "text": texts_of(head, texts),
            }
        )
        device = choose_device()
        reference = self._references.get(None, lambda: self._load(device))
        with self._computing, within_memory(device, f"pyterrier_t5 with {self.batch_size} pairs"):
            scored = reference(pairs).set_index("docno")["score"]
        scores = scored.reindex(pairs["docno"]).to_numpy(dtype=float)
        return rejoin(head.assign(score=scores), tail)

    @property
    def fingerprint(self) -> str:
        """What its checkpoint holds. `InputError` for one that pyterrier_t5 cannot read."""
        config = checkpoint_config(self.model)
        check_kind(config, self.model, ("t5",), "monoT5")
        if not hasattr(config, "n_positions"):
            raise InputError(
                f"the configuration of '{self.model}' lacks n_positions, which pyterrier_t5 reads",
                do='add "n_positions": 512 to its config.json, or set reranker=monot5',
            )
        # Without files, T5's class makes an empty vocabulary, and no error.
        if not has_tokenizer(self.tokenizer):
            raise InputError(f"the tokenizer '{self.tokenizer}' cannot be loaded", do=HOW_TO_GET)
        with opening(self.tokenizer):
            MonoT5Prompts(require("transformers").T5Tokenizer.from_pretrained(self.tokenizer))
        return checkpoint_fingerprint(self.model)

    def _load(self, device: Any) -> Any:
        with opening(self.model), within_memory(device, self.model):
            return require("pyterrier_t5").MonoT5ReRanker(
                tok_model=self.tokenizer,
                model=self.model,
                batch_size=self.batch_size,
                device=str(device),
                verbose=False,
            )
