"""ColBERT (Khattab and Zaharia, SIGIR 2020): a vector for every token, and MaxSim.

An index stores the vectors of all tokens: a passage of 200 tokens takes 51 kB in float16, and 8 kB
if it is compressed. The re-ranker encodes documents when it scores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.checkpoint import Checkpoint, CheckpointKind
from soundingline.pipelines.device import TokenizedTexts, pack_linear_layers
from soundingline.pipelines.learned.retriever import continue_in_float32, retriever_of, tokenized
from soundingline.pipelines.learned.vectors import MultiVectorEngine, VectorEncoder
from soundingline.pipelines.stage import shared
from soundingline.pipelines.windows import split_into_windows
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

_STORAGES = ("float16", "float32")
_UNBOUNDED = 1 << 20
# What only a multi-vector checkpoint's config_sentence_transformers.json has: PyLate's from before
# there was a `model_type`.
_KINDS = ("MultiVectorEncoder", "ColBERT")
_KEYS = ("query_prefix", "document_prefix", "query_length", "skiplist_words")


def _is_multi_vector(checkpoint: Checkpoint) -> bool:
    """The library would give another checkpoint a random projection and say so in its log only."""
    if "HF_ColBERT" in checkpoint.architectures:
        return True
    content = checkpoint.stored_json("config_sentence_transformers.json")
    return content.get("model_type") in _KINDS or any(key in content for key in _KEYS)


_KIND = CheckpointKind(
    "MultiVectorEncoder",
    _is_multi_vector,
    "is not a multi-vector checkpoint",
    "one that sentence-transformers, PyLate or ColBERT has saved, such as colbert-ir/colbertv2.0",
    "choose such a model, or retriever=dense",
    library="sentence_transformers",
)


@dataclass(kw_only=True, eq=False, repr=False)
class ColBERT(VectorEncoder):
    """Encodes a text as a vector for each token, for MaxSim (Khattab and Zaharia, SIGIR 2020).

    It reads checkpoints of sentence-transformers, PyLate and Stanford (`colbert-ir/colbertv2.0`),
    and keeps their markers, expansion of queries by masks, left-out tokens and normalisation.
    Columns, further arguments and errors as in `Encoder`; a value is an array [tokens, dimensions].

    Args:
        storage: The type of the stored vectors: `float16` (half the space; scores differ in the
            fourth digit) or `float32`.

    ColBERTv2's own lengths are 180 for documents and 32 for queries. A query that is expanded has
    `query_max_length` tokens.

    Example:
        >>> colbert = ColBERT("colbert-ir/colbertv2.0", storage="float16")
        >>> MultiVectorEngine(colbert).build(units, path)  # doctest: +SKIP
        >>> pipe = colbert >> VectorIndex(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    storage: str = "float16"

    kind = "colbert"
    many_vectors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage not in _STORAGES:
            raise InputError(f"storage={self.storage!r}", valid=", ".join(_STORAGES))

    def fingerprint_with(self, **of_index: Any) -> str:
        content = self._checkpoint.checked().fingerprint
        return fingerprint("colbert", content, {**self.settings, **of_index})

    @property
    @shared
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(_KIND, self.model, self.revision)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "max_length": self.max_length,
            "query_max_length": self.query_max_length,
            "storage": self.storage,
            "dtype": self.placement.precision,
        }

    def tokens_of(self, texts: Sequence[str], role: str) -> TokenizedTexts:
        """See `Encoder`; markers are counted. A query is expanded."""
        return tokenized(self._network, texts, role, self.placement.device)

    def windows(self, text: str) -> list[str]:
        """A document cut between words into pieces that the model reads to their end."""
        model = self._network
        limit = int(model[0].document_length or model.max_seq_length or _UNBOUNDED)
        room = limit - self.tokenize([""]).lengths[0]
        with self._tokenizing:
            tokenize = partial(self._network.tokenizer, verbose=False)
            return [piece.strip() for piece in split_into_windows(text, max(1, room), tokenize)]

    def encode_batch(self, features: Mapping[str, Any], role: str) -> tuple[Tensor, ...]:
        """The vectors of each text, [tokens, dimensions], documents in the type of `storage` and
        queries in float32; a text of which every token is left out has one vector of zeros."""
        read = self._network(features, task=role)
        states = read["token_embeddings"]
        if role == "document" and self.storage == "float16":
            states = states.half()
        return states, read["attention_mask"].bool()

    def read_batch(self, tensors: tuple[Tensor, ...]) -> list[NDArray[Any]]:
        pairs = zip(*(tensor.cpu().numpy() for tensor in tensors), strict=True)
        arrays = [rows[of_text] for rows, of_text in pairs]
        return [
            rows if len(rows) else np.zeros((1, *rows.shape[1:]), rows.dtype) for rows in arrays
        ]

    @property
    @shared
    def _network(self) -> Any:
        model = self._checkpoint.load(self.placement)
        pack_linear_layers(model[0])
        continue_in_float32(model)
        body = model[0]
        if self.max_length is not None:
            body.document_length = min(self.max_length, model.max_seq_length or self.max_length)
        if self.query_max_length is not None:
            if body.query_expansion:
                body.query_length = None
                body.query_expansion = {**body.query_expansion, "length": self.query_max_length}
            else:
                body.query_length = self.query_max_length
        return model


colbert_retriever = retriever_of(MultiVectorEngine, ColBERT)
