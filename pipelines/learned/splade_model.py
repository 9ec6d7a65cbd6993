"""SPLADE: a masked language model that gives terms of its vocabulary weights for a text.

    weight of term v = max over tokens i of  ln(1 + relu(logit of v at i))

Formal, Lassance, Piwowarski & Clinchant (2021), with max pooling as in SPLADE v2 and v3. Every
token counts, `[CLS]` and `[SEP]` with them, as in the published models; padding does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.learned.encoding import SPARSE, readable
from pipelines.neural.batches import in_batches
from pipelines.neural.checkpoints import (
    DATA_ONLY,
    NO_CODE,
    check_kind,
    check_length,
    check_memory,
    checkpoint_config,
    checkpoint_fingerprint,
    opening,
    weight_bytes,
    within_memory,
)
from pipelines.neural.devices import choose_device, choose_dtype
from toolkit.checks import check_integer
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import fingerprint

if TYPE_CHECKING:
    import torch

# Logits are made for so many (token, term) cells at once: 268 MB in float32.
_CELLS = 1 << 26
_QUERIES_KEPT = 4096


class SpladeEncoder:
    """A SPLADE checkpoint (BERT or DistilBERT with its masked-language-model head), as a
    `TextEncoder` of documents and an encoder of queries.

    - `model`: name on the hub or folder; `revision`: branch, tag or commit on the hub.
    - `device`: `cpu`, `cuda`, ...; default the first GPU, else the CPU. `dtype`: `bfloat16` or
      `float32`; default bfloat16 where the device computes in it.
    - `max_length`: tokens of a text that are read, the special ones with them (512 as published).
    - `batch_tokens`: tokens of a batch, padding included.

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
        batch_tokens: int = 16384,
        max_length: int = 512,
    ) -> None:
        check_integer("batch_tokens", batch_tokens)
        check_integer("max_length", max_length, least=3, do="try 512")
        self.model, self.revision, self.dtype = model, revision, dtype
        self.batch_tokens, self.max_length = batch_tokens, max_length
        self._device = device
        self._loaded: _Loaded | None = None
        self._loading, self._computing = Lock(), Lock()
        self._tokens: dict[str, list[int]] = {}
        self._queries: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._keeping = Lock()

    @property
    def device(self) -> torch.device:
        return choose_device(self._device)

    @property
    def fingerprint(self) -> str:
        """Reads the files of a checkpoint in a folder, but does not load it. `InputError` for one
        of another kind, or with fewer positions than `max_length`."""
        config = _checked_config(self.model, self.revision)
        check_length(config, self.model, self.max_length)
        checkpoint = checkpoint_fingerprint(self.model, self.revision)
        dtype = str(choose_dtype(self.dtype, self.device))
        return fingerprint("splade-max", checkpoint, dtype, self.max_length)

    @property
    def vocabulary(self) -> list[str]:
        """The terms, by number."""
        return self._open().vocabulary

    def lengths(self, texts: Sequence[str]) -> list[int]:
        # Kept for `encode`, which is asked for the same texts next.
        self._tokens = dict(zip(texts, self._tokenized(texts), strict=True))
        return [len(self._tokens[text]) for text in texts]

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The terms of weight above 0 of each text, ascending: arrays of `SPARSE`."""
        known = self._tokens
        if any(text not in known for text in texts):
            known = dict(zip(texts, self._tokenized(texts), strict=True))
        return self._weights([known[text] for text in texts])

    def queries(self, texts: Sequence[str]) -> list[Mapping[str, float]]:
        """Weights by term of each query. The newest ones are kept, so that a query that comes
        again costs nothing."""
        with self._keeping:
            weights_of = {text: self._queries[text] for text in texts if text in self._queries}
        missing = list(dict.fromkeys(text for text in texts if text not in weights_of))
        for text, array in zip(missing, self._encoded(missing), strict=True):
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

    def _encoded(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        tokens = self._tokenized([readable(text) for text in texts])
        return in_batches(self._weights, tokens, list(map(len, tokens)), self.batch_tokens)

    def _weights(self, tokens: Sequence[Sequence[int]]) -> list[NDArray[Any]]:
        if not tokens:
            return []
        loaded = self._open()
        with self._computing, within_memory(self.device, f"SPLADE of {len(tokens)} texts at once"):
            return list(loaded.weights(tokens))

    def _tokenized(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        tokenizer = self._open().tokenizer
        with self._computing:  # a tokenizer is changed by its first call
            coded = tokenizer(
                list(texts),
                truncation=True,
                max_length=self.max_length,
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
                    self.model, self.revision, self.device, self.dtype, self.max_length
                )
        return self._loaded

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "revision": self.revision,
            "device": self._device,
            "dtype": self.dtype,
            "batch_tokens": self.batch_tokens,
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
    head: Callable[[Any], Any]
    vocabulary: list[str]

    def weights(self, tokens: Sequence[Sequence[int]]) -> Iterator[NDArray[Any]]:
        """Of each text, one batch."""
        torch = require("torch")
        longest = max(map(len, tokens))
        ids = np.full((len(tokens), longest), self.tokenizer.pad_token_id)
        mask = np.zeros(ids.shape, np.int64)
        for row, numbers in enumerate(tokens):
            ids[row, : len(numbers)] = numbers
            mask[row, : len(numbers)] = 1
        with torch.inference_mode():
            device = self.model.device
            read = torch.from_numpy(mask).to(device)
            base = self.model.base_model
            hidden = base(torch.from_numpy(ids).to(device), attention_mask=read).last_hidden_state
            # The first token again in place of padding changes no maximum over the tokens.
            hidden = torch.where(read[..., None].bool(), hidden, hidden[:, :1])
            rows = max(1, _CELLS // (longest * len(self.vocabulary)))
            for part in hidden.split(rows):
                # ln(1 + relu(x)) grows with x: the largest logit first, and one logarithm a term.
                yield from _sparse(self.head(part).amax(1).float().relu().log1p())


def _sparse(weights: torch.Tensor) -> Iterator[NDArray[Any]]:
    """What is not 0 in each row; not-a-number stays, for whoever checks."""
    rows, terms = weights.nonzero(as_tuple=True)
    pairs = np.empty(len(rows), SPARSE)
    pairs["weight"] = weights[rows, terms].cpu().numpy()
    pairs["term"] = terms.cpu().numpy()
    counts = np.bincount(rows.cpu().numpy(), minlength=len(weights))
    yield from np.split(pairs, np.cumsum(counts)[:-1])


def _bert_head(model: Any) -> Callable[[Any], Any]:
    head: Callable[[Any], Any] = model.cls
    return head


def _distilbert_head(model: Any) -> Callable[[Any], Any]:
    def head(hidden: Any) -> Any:
        state = model.activation(model.vocab_transform(hidden))
        return model.vocab_projector(model.vocab_layer_norm(state))

    return head


_HEADS = {"bert": _bert_head, "distilbert": _distilbert_head}


def _checked_config(model: str, revision: str | None) -> Any:
    config = checkpoint_config(model, revision)
    check_kind(config, model, tuple(_HEADS), "SPLADE")
    return config


def _load(
    model: str, revision: str | None, device: torch.device, dtype: str | None, max_length: int
) -> _Loaded:
    transformers = require("transformers")
    config = _checked_config(model, revision)
    check_length(config, model, max_length)
    check_memory(weight_bytes(model, revision) or 0, device, f"'{model}'")
    with opening(model):
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, revision=revision, **NO_CODE)
        loaded, report = transformers.AutoModelForMaskedLM.from_pretrained(
            model,
            revision=revision,
            dtype=choose_dtype(dtype, device),
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
    return _Loaded(
        tokenizer,
        loaded,
        _HEADS[config.model_type](loaded),
        vocabulary,
    )
