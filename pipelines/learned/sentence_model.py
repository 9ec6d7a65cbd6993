"""Checkpoints that say themselves how they are pooled, through sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.learned.dense_model import LENGTH, Side
from pipelines.neural.checkpoints import NO_CODE, opening, stored_config, stored_file, within_memory
from toolkit.errors import InputError
from toolkit.extras import require

if TYPE_CHECKING:
    import torch


_UNBOUNDED = 1 << 20


class SentenceModel:
    """A loaded sentence-transformers checkpoint; arguments as of `DenseEncoder`. Not safe for
    threads. `InputError` as of `check_pooled`."""

    def __init__(
        self,
        model: str,
        revision: str | None,
        *,
        normalise: bool,
        sides: Sequence[Side],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        library = require("sentence_transformers")
        check_pooled(model, revision)
        with opening(model), within_memory(device, f"the encoder '{model}'"):
            self._model = library.SentenceTransformer(
                model,
                revision=revision,
                device=str(device),
                model_kwargs={"dtype": dtype},
                **NO_CODE,
            )
        self._normalise = normalise
        # A tokenizer that names no length has one beyond all texts.
        own = self._model.max_seq_length
        own = own if own and own < _UNBOUNDED else LENGTH
        self._limits = {side.role: side.limit or own for side in sides}

    def read(self, texts: Sequence[str], side: Side) -> tuple[list[str], list[int]]:
        """The texts, and how many tokens of each are read."""
        prompt = self._prompt(side)
        if not texts:
            return [], []
        coded = self._model.tokenizer(
            [prompt + text for text in texts],
            truncation=True,
            max_length=self._limits[side.role],
        )["input_ids"]
        return list(texts), [len(ids) for ids in coded]

    def vectors(self, items: Sequence[str], side: Side) -> NDArray[np.float32]:
        """One padded batch: [items, dimensions]."""
        self._model.max_seq_length = self._limits[side.role]
        encode = self._model.encode_query if side.role == "query" else self._model.encode_document
        vectors = encode(
            list(items),
            prompt=self._prompt(side),
            batch_size=len(items),
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=self._normalise,
        )
        return np.asarray(vectors, dtype=np.float32)

    def _prompt(self, side: Side) -> str:
        if side.prefix is not None:
            return side.prefix
        prompts: dict[str, Any] = self._model.prompts
        return prompts.get(side.role) or ""


def check_pooled(model: str, revision: str | None) -> None:
    """`InputError` for a checkpoint that does not say how it is pooled: the library would take the
    mean, which is seldom right; and for a multi-vector one."""
    if not stored_file(model, "modules.json", revision):
        stored_config(model, revision)  # tells a missing model from one without pooling
        raise InputError(
            f"'{model}' does not say how its vectors are pooled (no modules.json)",
            valid="pooling: last, mean, cls",
            do="set pooling as the model's authors say",
        )
