"""A transformer whose last layer is pooled into one vector: by its last token, the mean of all, or
the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.dense_model import Side
from soundingline.pipelines.models import Checkpoint, own_length
from soundingline.pipelines.neural.token_states import token_states
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    import torch


class PooledModel:
    """A loaded checkpoint; arguments as of `DenseEncoder`. Not safe for threads."""

    def __init__(
        self,
        weights: Checkpoint,
        *,
        pooling: str,
        append_eos: bool,
        normalise: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._tokenizer = weights.tokenizer()
        self._tokenizer.truncation_side = "right"
        self._own = own_length(weights.config, self._tokenizer.model_max_length)
        self._eos: int | None = None
        if append_eos:
            self._eos = self._tokenizer.eos_token_id
            if self._eos is None:
                raise InputError(
                    f"append_eos=true and the tokenizer of '{weights.whole}' has no such token",
                    do="set append_eos=false",
                )
        self._pool, self._normalise = _POOLS[pooling], normalise
        # The library's own pooling on top is not used.
        network, _ = weights.load(device, dtype, absent=("pooler.",))
        self._states = token_states(network, self._tokenizer.pad_token_id or 0, device)

    def read(self, texts: Sequence[str], side: Side) -> tuple[list[list[int]], list[int]]:
        """The token ids of each text and how many they are."""
        room = (side.limit or self._own) - (self._eos is not None)
        prefix = side.prefix or ""
        # An end token that is written in a text is text; one of the prefix is meant.
        meant = any(token in prefix for token in self._tokenizer.all_special_tokens)
        coded = self._tokenizer(
            [prefix + text for text in texts],
            split_special_tokens=not meant,
            truncation=True,
            max_length=room,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        items = [self._ended(ids) for ids in coded]
        return items, [len(ids) for ids in items]

    def vectors(self, items: Sequence[Sequence[int]], side: Side) -> NDArray[np.float32]:
        """One padded batch: [items, dimensions]."""
        torch = import_optional("torch")
        with torch.inference_mode():
            # Pooled and normalised in float32, whatever the network computes in.
            pooled = torch.stack([self._pool(states).float() for states in self._states(items)])
            if self._normalise:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors: NDArray[np.float32] = pooled.cpu().numpy()
        return vectors

    def _ended(self, ids: list[int]) -> list[int]:
        if self._eos is not None:
            return ids if ids and ids[-1] == self._eos else [*ids, self._eos]
        # A tokenizer without special tokens makes nothing of an empty text.
        return ids or [self._tokenizer.pad_token_id or 0]


def _last(states: torch.Tensor) -> torch.Tensor:
    return states[-1]


def _mean(states: torch.Tensor) -> torch.Tensor:
    return states.float().mean(dim=0)


def _first(states: torch.Tensor) -> torch.Tensor:
    return states[0]


_POOLS: dict[str, Callable[[Any], Any]] = {"last": _last, "mean": _mean, "cls": _first}
POOLINGS = tuple(_POOLS)
