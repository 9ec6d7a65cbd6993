"""SPLADE: a masked language model that gives terms of its vocabulary weights for a text.

    weight of term v = max over tokens i of  ln(1 + relu(logit of v at i))

Formal, Lassance, Piwowarski & Clinchant (2021), with max pooling as in SPLADE v2 and v3. Every
token counts, `[CLS]` and `[SEP]` with them, as in the published models; padding does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.encoding import SPARSE, PlacedEncoder
from soundingline.pipelines.models import (
    DATA_ONLY,
    NO_CODE,
    check_kind,
    check_length,
    check_memory,
    checkpoint_config,
    checkpoint_fingerprint,
    linear,
    opening,
    own_length,
    readable,
    stored_config,
    tokenizer_length,
    weight_bytes,
    within_memory,
)
from soundingline.pipelines.neural.token_states import TokenStates, token_states
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    import torch

# Logits are made for so many (token, term) cells at once: 268 MB in float32; on a CPU, 16 MB in
# bfloat16, which its caches hold until the largest are found.
_CELLS = 1 << 26
_CELLS_ON_CPU = 1 << 23
_QUERIES_KEPT = 4096


class SpladeEncoder(PlacedEncoder):
    """A SPLADE checkpoint (BERT or DistilBERT with its masked-language-model head), as a
    `TextEncoder` of documents and an encoder of queries.

    - `model`: name on the hub or folder; `revision`: branch, tag or commit on the hub.
    - `device`: `cpu`, `cuda`, ...; default the first GPU, else the CPU. `dtype`: `bfloat16` or
      `float32`; default see `choose_dtype`.
    - `max_length`: tokens of a text that are read, the special ones with them; None: those that the
      checkpoint was made to read (`own_length`; 512 for SPLADE-v3).
    - `batch_tokens`: tokens of a batch, padding included; default 2048 on a CPU, 16,384 on a GPU.

    Weights differ with the batch that a text is in by rounding alone: at the seventh digit in
    float32, at the third in bfloat16.

    The model is loaded at its first use, once; safe for many threads, of which one computes at a
    time. `InputError` for a checkpoint that is not there, of another kind, or without the head.
    """

    name = "splade"

    def __init__(
        self,
        model: str = "naver/splade-v3",
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(device, dtype, batch_tokens)
        if max_length is not None:
            check_int("max_length", max_length, ge=3, do="leave it out")
        self.model, self.revision, self.max_length = model, revision, max_length
        self._loaded: _Loaded | None = None
        self._loading, self._computing = Lock(), Lock()
        self._queries: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._keeping = Lock()

    @property
    def fingerprint(self) -> str:
        """Reads the files of a checkpoint in a folder, but does not load it. `InputError` for one
        of another kind, or with fewer positions than `max_length`."""
        config = stored_config(self.model, self.revision)
        check_kind(config, self.model, tuple(_HEADS), "SPLADE")
        if self.max_length is not None:
            check_length(config, self.model, self.max_length)
        checkpoint = checkpoint_fingerprint(self.model, self.revision)
        dtype = f"torch.{self.precision}"
        return fingerprint("splade-max", checkpoint, dtype, self._limit)

    @property
    def vocabulary(self) -> list[str]:
        """The terms, by number."""
        return self._open().vocabulary

    def tokenized(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        """See `TextEncoder`."""
        ids = self._tokenized([readable(text) for text in texts])
        return ids, list(map(len, ids))

    def encode_tokenized(self, items: Sequence[Sequence[int]]) -> list[NDArray[Any]]:
        """The terms of weight above 0 of each text, ascending: arrays of `SPARSE`."""
        loaded = self._open()
        with self._computing, within_memory(self.device, f"SPLADE of {len(items)} texts at once"):
            return list(loaded.weights(items))

    def queries(self, texts: Sequence[str]) -> list[Mapping[str, float]]:
        """Weights by term of each query. The newest ones are kept, so that a query that comes
        again costs nothing."""
        with self._keeping:
            weights_of = {text: self._queries[text] for text in texts if text in self._queries}
        missing = list(dict.fromkeys(text for text in texts if text not in weights_of))
        for text, array in zip(missing, self.encode(missing), strict=True):
            terms = self.vocabulary
            pairs = zip(array["term"].tolist(), array["weight"].tolist(), strict=True)
            weights_of[text] = {terms[term]: weight for term, weight in pairs}
        with self._keeping:
            for text in texts:
                self._queries[text] = weights_of[text]
                self._queries.move_to_end(text)
            while len(self._queries) > _QUERIES_KEPT:
                self._queries.popitem(last=False)
        return [weights_of[text] for text in texts]

    def _tokenized(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        tokenizer = self._open().tokenizer
        with self._computing:  # a tokenizer is changed by its first call
            coded = tokenizer(
                list(texts),
                truncation=True,
                max_length=self._limit,
                split_special_tokens=True,  # `[MASK]` in a text is text
                return_attention_mask=False,
                return_token_type_ids=False,
            )
        ids: list[list[int]] = coded["input_ids"]
        return ids

    def _open(self) -> _Loaded:
        with self._loading:
            if self._loaded is None:
                self._loaded = _load(
                    self.model, self.revision, self.device, self.dtype, self._limit
                )
        return self._loaded

    @cached_property
    def _limit(self) -> int:
        if self.max_length is not None:
            return self.max_length
        told = tokenizer_length(self.model, self.revision)
        return own_length(stored_config(self.model, self.revision), told)

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "revision": self.revision,
            "device": self._device,
            "dtype": self._dtype,
            "batch_tokens": self._batch_tokens,
            "max_length": self.max_length,
        }

    def __repr__(self) -> str:
        return f"SpladeEncoder({self.model!r}, max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpladeEncoder) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(tuple(self._settings.values()))

    def __getstate__(self) -> dict[str, Any]:
        return self._settings

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class _Loaded(NamedTuple):
    tokenizer: Any
    model: Any
    states: TokenStates
    transform: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    vocabulary: list[str]

    def weights(self, tokens: Sequence[Sequence[int]]) -> Iterator[NDArray[Any]]:
        """Of each text, one batch."""
        torch = import_optional("torch")
        with torch.inference_mode():
            states = self.states(tokens)
            lengths = [len(text) for text in tokens]
            cells = _CELLS_ON_CPU if self.model.device.type == "cpu" else _CELLS
            most = max(1, cells // len(self.vocabulary))
            for part in _parts(lengths, most):
                hidden = self.transform(torch.cat(states[part]).to(self.model.dtype))
                logits = self.decode(hidden)
                # Of numbers above 0, the larger has the larger bits, and integers are compared
                # faster. Not-a-number would count as below 0 where its sign is set.
                if not hidden.isnan().any():
                    logits = logits.view(torch.int32 if logits.itemsize == 4 else torch.int16)
                # ln(1 + relu(x)) grows with x: the largest logit first, and one logarithm a term.
                rows = [text.amax(0) for text in logits.split(lengths[part])]
                largest = torch.stack(rows).view(self.model.dtype)
                yield from _sparse(largest.float().relu().log1p())


def _parts(lengths: Sequence[int], most: int) -> Iterator[slice]:
    """Consecutive texts of at most `most` tokens together, or one that is longer."""
    first, tokens = 0, 0
    for number, length in enumerate(lengths):
        if tokens and tokens + length > most:
            yield slice(first, number)
            first, tokens = number, 0
        tokens += length
    yield slice(first, len(lengths))


def _sparse(weights: torch.Tensor) -> Iterator[NDArray[Any]]:
    """What is not 0 in each row; not-a-number stays, for whoever checks."""
    rows, terms = weights.nonzero(as_tuple=True)
    pairs = np.empty(len(rows), SPARSE)
    pairs["weight"] = weights[rows, terms].cpu().numpy()
    pairs["term"] = terms.cpu().numpy()
    counts = np.bincount(rows.cpu().numpy(), minlength=len(weights))
    yield from np.split(pairs, np.cumsum(counts)[:-1])


def _bert_head(model: Any) -> tuple[Callable[[Any], Any], Any]:
    return model.cls.predictions.transform, model.cls.predictions.decoder


def _distilbert_head(model: Any) -> tuple[Callable[[Any], Any], Any]:
    def transform(hidden: Any) -> Any:
        return model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))

    return transform, model.vocab_projector


# What is done to a hidden state, and the linear layer that makes logits of it.
_HEADS = {"bert": _bert_head, "distilbert": _distilbert_head}


def _load(
    model: str, revision: str | None, device: torch.device, dtype: torch.dtype, max_length: int
) -> _Loaded:
    transformers = import_optional("transformers")
    config = checkpoint_config(model, revision)
    check_kind(config, model, tuple(_HEADS), "SPLADE")
    check_length(config, model, max_length)
    check_memory(weight_bytes(model, revision) or 0, device, f"'{model}'")
    with opening(model):
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, revision=revision, **NO_CODE)
        loaded, report = transformers.AutoModelForMaskedLM.from_pretrained(
            model,
            revision=revision,
            dtype=dtype,
            output_loading_info=True,
            **DATA_ONLY,
        )
    if report["missing_keys"]:
        # Without this, transformers would go on with random weights in their place.
        raise InputError(
            f"'{model}' has no weights for {', '.join(sorted(report['missing_keys'])[:3])}",
            valid="a checkpoint with the masked-language-model head, as SPLADE's have",
            do="choose a checkpoint that was trained for SPLADE",
        )
    loaded = loaded.eval().to(device)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    more = (f"#{number}" for number in range(len(tokens), config.vocab_size))
    vocabulary = [*tokens, *more][: config.vocab_size]
    transform, decoder = _HEADS[config.model_type](loaded)
    return _Loaded(
        tokenizer,
        loaded,
        token_states(loaded.base_model, tokenizer.pad_token_id or 0, device),
        transform,
        linear(decoder.weight, decoder.bias),
        vocabulary,
    )
