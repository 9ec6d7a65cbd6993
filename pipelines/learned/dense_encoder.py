"""Single-vector encoders: one vector for a query, one for a text."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.dense_model import DenseModel, Side
from soundingline.pipelines.learned.encoding import PlacedEncoder
from soundingline.pipelines.learned.pooled import POOLINGS, PooledModel
from soundingline.pipelines.learned.sentence_model import SentenceModel, check_pooled
from soundingline.pipelines.models import (
    Checkpoint,
    check_length,
    in_batches,
    readable,
    within_memory,
)
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint

_FEWEST = 8  # tokens, below which a prefix leaves no room for a text
Vectors = NDArray[np.float32]


class DenseEncoder(PlacedEncoder):
    """A checkpoint and its recipe.

    - `pooling`: which of the last layer's vectors is the text's: that of the `last` token, the
      `mean`, that of the first (`cls`). None: the checkpoint's own, through sentence-transformers.
    - `query_prefix`, `document_prefix`: put in front. None: those of the checkpoint
      where `pooling` is None, else nothing.
    - `append_eos`: ends each text with the end-of-sequence token, for a tokenizer that does not by
      itself (Llama's does not, Qwen3-Embedding's does). Never cut off.
    - `normalise`: vectors of length 1, so that their dot product is the cosine. True by default.
    - `max_length`, `query_max_length`: tokens of a text and of a query, prefix and special ones
      included. None: what the checkpoint was made for (`max_seq_length` of sentence-transformers;
      with `pooling` see `own_length`), 512 where it does not say.
    - `device`, `dtype`: see `soundingline.pipelines.models`. `batch_tokens`: bound of a
      padded batch; None: 2048 on a CPU, 16,384 on a GPU.

    Padding stands behind the text and is masked, so that in float32 neither the batch nor the order
    of the texts changes a vector by more than rounding. Safe for threads, one at a time. The model
    is loaded by the first text, not before. `InputError` for a setting out of range and a
    checkpoint that cannot be had or that does not fit.
    """

    def __init__(
        self,
        model: str,
        *,
        base: str | None = None,
        revision: str | None = None,
        query_prefix: str | None = None,
        document_prefix: str | None = None,
        pooling: str | None = None,
        append_eos: bool = False,
        normalise: bool = True,
        max_length: int | None = None,
        query_max_length: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if pooling not in (None, *POOLINGS):
            raise InputError(f"pooling={pooling!r}", valid=f"null, {', '.join(POOLINGS)}")
        if pooling is None and (base is not None or append_eos):
            raise InputError(
                "base or append_eos without pooling",
                valid=f"pooling: {', '.join(POOLINGS)}",
                do="say which token's vector is the text's; RepLLaMA's is the last",
            )
        counts = {"max_length": max_length, "query_max_length": query_max_length}
        for name, count in {**counts, "batch_tokens": batch_tokens}.items():
            if count is not None:
                check_int(name, count, ge=_FEWEST)
        self.model, self._weights = model, Checkpoint(model, base, revision)
        self.pooling, self.append_eos, self.normalise = pooling, append_eos, normalise
        self.queries = Side("query", query_prefix, query_max_length)
        self.documents = Side("document", document_prefix, max_length)
        super().__init__(device, dtype, batch_tokens)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.model.rstrip("/").rpartition("/")[2]

    @cached_property
    def fingerprint(self) -> str:
        """Of the checkpoint's content and of every setting that changes a vector. Precision is one
        of them: an index that a GPU made in bfloat16 is searched elsewhere with dtype=bfloat16.
        `InputError` for a checkpoint of another kind, or with fewer positions than are asked for.
        """
        if self.pooling is None:
            check_pooled(self.model, self._weights.revision)
        for setting, side in (("max_length", self.documents), ("query_max_length", self.queries)):
            if side.limit is not None:
                check_length(self._weights.stored_config, self._weights.whole, side.limit, setting)
        return fingerprint("dense", self._weights.fingerprint, self.settings)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "queries": self.queries,
            "documents": self.documents,
            "pooling": self.pooling,
            "append_eos": self.append_eos,
            "normalise": self.normalise,
            "dtype": self.precision,
        }

    def tokenized(self, texts: Sequence[str]) -> tuple[list[Any], list[int]]:
        """See `TextEncoder`."""
        with self._lock:
            return self._model.read([readable(text) for text in texts], self.documents)

    def encode_tokenized(self, items: Sequence[Any]) -> list[NDArray[Any]]:
        """The vector of each document of a batch: float32 [dimensions]."""
        return list(self._vectors(items, self.documents))

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """The vectors of queries: float32 [queries, dimensions]."""
        if not texts:
            return np.empty((0, 0), np.float32)
        with self._lock:
            items, lengths = self._model.read([readable(text) for text in texts], self.queries)
        vectors = partial(self._vectors, side=self.queries)
        return np.stack(in_batches(vectors, items, lengths, self.batch_tokens))

    def _vectors(self, items: Sequence[Any], side: Side) -> Vectors:
        with self._lock, within_memory(self.device, f"a batch of {self.name}"):
            return self._model.vectors(items, side)

    @cached_property
    def _model(self) -> DenseModel:
        if self.pooling is None:
            return SentenceModel(
                self.model,
                self._weights.revision,
                normalise=self.normalise,
                sides=(self.queries, self.documents),
                device=self.device,
                dtype=self.dtype,
            )
        return PooledModel(
            self._weights,
            pooling=self.pooling,
            append_eos=self.append_eos,
            normalise=self.normalise,
            device=self.device,
            dtype=self.dtype,
        )

    def __repr__(self) -> str:
        return f"DenseEncoder({self.model!r})"
