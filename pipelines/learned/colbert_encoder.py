"""Multi-vector encoders (ColBERT; Khattab and Zaharia, SIGIR 2020): a vector for every token."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.encoding import PlacedEncoder
from soundingline.pipelines.models import (
    NO_CODE,
    check_memory,
    checkpoint_fingerprint,
    cut,
    opening,
    readable,
    stored_config,
    stored_file,
    weight_bytes,
    within_memory,
)
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

STORAGES = {"float16": np.float16, "float32": np.float32}
_FEWEST = 8
_UNBOUNDED = 1 << 20
# What only a multi-vector checkpoint's config_sentence_transformers.json has: PyLate's from before
# there was a `model_type`.
_KINDS = ("MultiVectorEncoder", "ColBERT")
_KNOBS = ("query_prefix", "document_prefix", "query_length", "skiplist_words")


class ColbertEncoder(PlacedEncoder):
    """A ColBERT checkpoint through sentence-transformers' `MultiVectorEncoder`: its own, PyLate's
    and Stanford's (`colbert-ir/colbertv2.0`). Markers, the filling of queries with masks, the
    tokens that are left out and the normalisation are the checkpoint's.

    - `model`, `revision`: a name on the hub or a folder.
    - `max_length`, `query_max_length`: tokens of a document and of a query; None: the checkpoint's
      own (ColBERTv2's are 180 and 32). Queries that are filled are filled to that many.
    - `storage`: how documents' vectors are kept: `float16` (default; half the space, scores differ
      in the fourth digit) or `float32`.
    - `device`, `dtype`: see `soundingline.pipelines.models`. `batch_tokens`: bound of a
      padded batch; None: 2048 on a CPU, 16,384 on a GPU.

    Safe for threads, one at a time. The model is loaded by the first text, not before.
    `InputError` for a setting out of range and a checkpoint that cannot be had, that does not fit,
    or that is no multi-vector one.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        max_length: int | None = None,
        query_max_length: int | None = None,
        storage: str = "float16",
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if storage not in STORAGES:
            raise InputError(f"storage={storage!r}", valid=", ".join(STORAGES))
        counts = {"max_length": max_length, "query_max_length": query_max_length}
        for name, count in {**counts, "batch_tokens": batch_tokens}.items():
            if count is not None:
                check_int(name, count, ge=_FEWEST)
        self.model, self.revision = model, revision
        self.storage = storage
        self._limits = counts
        super().__init__(device, dtype, batch_tokens)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.model.rstrip("/").rpartition("/")[2]

    @cached_property
    def fingerprint(self) -> str:
        """Of the checkpoint's content and of every setting that changes a vector. `InputError` for
        a checkpoint of another kind."""
        _check_kind(self.model, self.revision)
        content = checkpoint_fingerprint(self.model, self.revision)
        return fingerprint("colbert", content, self.settings)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {**self._limits, "storage": self.storage, "dtype": self.precision}

    @property
    def dimensions(self) -> int:
        """Of a token's vector. Loads the model."""
        with self._lock:
            return int(self._model.get_embedding_dimension())

    @property
    def limit(self) -> int:
        """Tokens of a document that are read. Loads the model."""
        with self._lock:
            return self._limit

    def whole_lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each document as it is, also of one that is longer than what is read."""
        with self._lock:
            return self._whole_lengths(texts)

    def tokenized(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        """See `TextEncoder`; markers are counted."""
        if not texts:
            return [], []
        with self._lock:
            ids: list[list[int]] = self._model.tokenizer(
                self._prompted(texts), truncation=True, max_length=self._limit, verbose=False
            )["input_ids"]
        return ids, list(map(len, ids))

    def windows(self, text: str) -> list[str]:
        """A document cut between words into pieces that are each read whole."""
        text = readable(text)
        with self._lock:
            room = self._limit - self._whole_lengths([""])[0]
            coded = self._model.tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
        begins = [begin for begin, _ in coded["offset_mapping"]]
        return [piece.strip() for piece in cut(text, begins, max(1, room))]

    def encode_tokenized(self, items: Sequence[Sequence[int]]) -> list[NDArray[Any]]:
        """The vectors of each document of a batch, [tokens, dimensions] in the type of `storage`; a
        document of which every token is left out keeps one vector of zeros."""
        torch, pad = import_optional("torch"), import_optional("torch").nn.utils.rnn.pad_sequence
        rows = [torch.tensor(ids, device=self.device) for ids in items]
        with (
            self._lock,
            within_memory(self.device, f"a batch of {self.name}"),
            torch.inference_mode(),
        ):
            features = self._model(
                {
                    "input_ids": pad(
                        rows,
                        batch_first=True,
                        padding_value=self._model.tokenizer.pad_token_id or 0,
                    ),
                    "attention_mask": pad([torch.ones_like(row) for row in rows], batch_first=True),
                },
                task="document",
            )
            masks = features["attention_mask"].bool()
            states = zip(features["token_embeddings"], masks, strict=True)
            vectors = [rows[mask].float().cpu().numpy() for rows, mask in states]
        filled = (rows if len(rows) else np.zeros((1, rows.shape[1])) for rows in vectors)
        return [rows.astype(STORAGES[self.storage]) for rows in filled]

    def encode_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """The vectors of each query: float32 [tokens, dimensions]."""
        vectors: list[NDArray[np.float32]] = []
        with self._lock, within_memory(self.device, f"a batch of {self.name}"):
            # Queries are short and mostly filled to one length: batches by number.
            size = max(1, self.batch_tokens // (self._query_limit or self._limit))
            for start in range(0, len(texts), size):
                vectors += self._run(self._model.encode_query, texts[start : start + size])
        return vectors

    def _run(self, encode: Any, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        vectors = encode(
            [readable(text) for text in texts],
            batch_size=len(texts),
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return [np.asarray(rows, dtype=np.float32) for rows in vectors]

    def _whole_lengths(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        coded = self._model.tokenizer(self._prompted(texts), verbose=False)
        return [len(ids) for ids in coded["input_ids"]]

    def _prompted(self, texts: Sequence[str]) -> list[str]:
        prompt = self._model.prompts.get("document") or ""
        return [prompt + readable(text) for text in texts]

    @property
    def _limit(self) -> int:
        body = self._model[0]
        return int(body.document_length or self._model.max_seq_length or _UNBOUNDED)

    @property
    def _query_limit(self) -> int | None:
        expansion = self._model[0].query_expansion
        return expansion["length"] if expansion else self._model[0].query_length

    @cached_property
    def _model(self) -> Any:
        library = import_optional("sentence_transformers")
        _check_kind(self.model, self.revision)
        check_memory(weight_bytes(self.model, self.revision) or 0, self.device, self.model)
        with opening(self.model), within_memory(self.device, f"the encoder '{self.model}'"):
            model = library.MultiVectorEncoder(
                self.model, revision=self.revision, device=str(self.device), **NO_CODE
            )
        # The projection is not the body's, and takes no precision from it.
        model.to(self.dtype)
        body = model[0]
        if (length := self._limits["max_length"]) is not None:
            body.document_length = min(length, model.max_seq_length or length)
        if (length := self._limits["query_max_length"]) is not None:
            if body.query_expansion:
                body.query_length = None
                body.query_expansion = {**body.query_expansion, "length": length}
            else:
                body.query_length = length
        return model

    def __repr__(self) -> str:
        return f"ColbertEncoder({self.model!r})"


def _check_kind(model: str, revision: str | None) -> None:
    """`InputError` for another kind of checkpoint: the library would give it a random projection
    and say so in its log only."""
    path = stored_file(model, "config_sentence_transformers.json", revision)
    config = stored_config(model, revision)
    if "HF_ColBERT" in (getattr(config, "architectures", None) or []):
        return
    content = json.loads(path.read_text("utf-8")) if path else {}
    if content.get("model_type") not in _KINDS and not any(knob in content for knob in _KNOBS):
        raise InputError(
            f"'{model}' is no multi-vector checkpoint",
            valid="one that sentence-transformers, PyLate or ColBERT has saved, such as "
            "colbert-ir/colbertv2.0",
            do="choose such a model, or retriever=dense",
        )
