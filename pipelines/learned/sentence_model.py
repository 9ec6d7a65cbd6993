"""Checkpoints that say themselves how they are pooled, through sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.dense_model import Side
from soundingline.pipelines.models import (
    NO_CODE,
    opening,
    own_length,
    stored_config,
    stored_file,
    within_memory,
)
from soundingline.pipelines.neural.token_states import TokenStates, token_states
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    import torch


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
        library = import_optional("sentence_transformers")
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
        own = own_length(None, self._model.max_seq_length)
        self._limits = {side.role: side.limit or own for side in sides}
        self._states: TokenStates | None = None
        if _reads_tokens(self._model):
            body = self._model[0].model
            # To pool in float32 costs nothing, and bfloat16 would be the largest error of all.
            for module in list(self._model)[1:]:
                module.float()
            self._states = token_states(body, self._model.tokenizer.pad_token_id or 0, device)

    def read(self, texts: Sequence[str], side: Side) -> tuple[list[Any], list[int]]:
        """The token ids of each text and how many they are; the texts themselves where only the
        library knows what its model reads."""
        if not texts:
            return [], []
        prompt = self._prompt(side)
        coded = self._model.tokenizer(
            [prompt + text for text in texts],
            truncation=True,
            max_length=self._limits[side.role],
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        return (list(texts) if self._states is None else coded), list(map(len, coded))

    def vectors(self, items: Sequence[Any], side: Side) -> NDArray[np.float32]:
        """One padded batch: [items, dimensions]."""
        if self._states is None:
            return self._by_library(items, side)
        torch = import_optional("torch")
        pad = torch.nn.utils.rnn.pad_sequence
        with torch.inference_mode():
            states = self._states(items)
            masks = [rows.new_ones(len(rows), dtype=torch.long) for rows in states]
            features = {
                "token_embeddings": pad(states, batch_first=True).float(),
                "attention_mask": pad(masks, batch_first=True),
            }
            for module in list(self._model)[1:]:
                features = module(features)
            vectors = features["sentence_embedding"].float()
            if self._normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return np.asarray(vectors.cpu().numpy(), dtype=np.float32)

    def _by_library(self, texts: Sequence[str], side: Side) -> NDArray[np.float32]:
        self._model.max_seq_length = self._limits[side.role]
        encode = self._model.encode_query if side.role == "query" else self._model.encode_document
        vectors = encode(
            list(texts),
            prompt=self._prompt(side),
            batch_size=len(texts),
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


def _reads_tokens(model: Any) -> bool:
    """Whether a checkpoint is a transformer that reads one text as its tokens, and what follows it
    needs nothing else."""
    if not isinstance(model[0], import_optional("sentence_transformers.base.modules").Transformer):
        return False
    kinds = model[0].modality_config
    plain = {"method": "forward", "method_output_name": "last_hidden_state"}
    reads_prompt = all(getattr(module, "include_prompt", True) for module in model)
    return reads_prompt and "message" not in kinds and kinds.get("text") == plain


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
