"""Dense retrieval: one vector a unit (Karpukhin et al., EMNLP 2020), searched exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from soundingline.pipelines.checkpoint import BODY, Checkpoint, CheckpointKind, own_length
from soundingline.pipelines.device import (
    Placement,
    TokenizedTexts,
    pack_linear_layers,
    pad_rows,
)
from soundingline.pipelines.learned.retriever import continue_in_float32, retriever_of, tokenized
from soundingline.pipelines.learned.vectors import VectorEncoder, VectorEngine
from soundingline.pipelines.stage import Collection, shared
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

# The names of sentence-transformers.
_POOLINGS = {"last": "lasttoken", "mean": "mean", "cls": "cls"}
# Of a checkpoint without modules.json, the library would take the mean, which is seldom right.
_POOLED = CheckpointKind(
    "SentenceTransformer",
    lambda checkpoint: checkpoint.stored_json("modules.json"),
    "does not say how its vectors are pooled: there is no modules.json",
    "pooling: last, mean, cls",
    "set pooling as the model's authors say",
    library="sentence_transformers",
)


class PromptSide(NamedTuple):
    """How a query or a text is read. `prefix` None: the checkpoint's own, or none; `limit` None: as
    many tokens as the checkpoint was made for."""

    role: str
    prefix: str | None
    limit: int | None


@dataclass(kw_only=True, eq=False, repr=False)
class Dense(VectorEncoder):
    """Encodes a text as one vector, whose dot product with that of the query ranks it (dense
    retrieval; Karpukhin et al., EMNLP 2020). Columns, further arguments and errors as in `Encoder`.

    Args:
        base: The checkpoint of which `model` is a LoRA adapter. The default is the one that the
            adapter names.
        query_prefix, document_prefix: What is put in front of a text. The default is that of the
            checkpoint if `pooling` is None, otherwise nothing.
        pooling: Which vector of the last layer is that of the text: the one of the `last` token,
            the `mean`, or the first (`cls`). None: a checkpoint of sentence-transformers, with its
            own pooling.
        append_eos: Whether to end each text with the end-of-sequence token, which is never cut off.
            For a tokenizer that does not do so (Llama's does not, Qwen3-Embedding's does).
        normalise: Whether vectors have length 1, so that their dot product is the cosine.
        document_max_length: Replaces `max_length` where a unit is a whole document.

    Example:
        >>> prefixes = {"query_prefix": "query: ", "document_prefix": "passage: "}
        >>> dense = Dense("intfloat/e5-base-v2", **prefixes)
        >>> VectorEngine(dense).build(units, path)  # doctest: +SKIP
        >>> pipe = dense >> VectorIndex(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    base: str | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    pooling: str | None = None
    append_eos: bool = False
    normalise: bool = True
    document_max_length: int | None = None

    kind = "dense"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling not in (None, *_POOLINGS):
            raise InputError(f"pooling={self.pooling!r}", valid=f"null, {', '.join(_POOLINGS)}")
        if self.pooling is None and (self.base is not None or self.append_eos):
            raise InputError(
                "base or append_eos without pooling",
                valid=f"pooling: {', '.join(_POOLINGS)}",
                do="say which token's vector is the text's; RepLLaMA's is the last",
            )
        self._sides = {
            "query": PromptSide("query", self.query_prefix, self.query_max_length),
            "document": PromptSide("document", self.document_prefix, self.max_length),
        }

    def fingerprint_with(self, **of_index: Any) -> str:
        """`InputError` also for a checkpoint with fewer positions than a length that is set."""
        names = ("max_length", "query_max_length", "document_max_length")
        self._checkpoint.checked(**{name: getattr(self, name) for name in names})
        return fingerprint("dense", self._checkpoint.fingerprint, {**self.settings, **of_index})

    @property
    @shared
    def _checkpoint(self) -> Checkpoint:
        kind = BODY if self.pooling else _POOLED
        return Checkpoint(kind, self.model, self.revision, self.base)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "queries": self._sides["query"],
            "documents": self._sides["document"],
            "pooling": self.pooling,
            "append_eos": self.append_eos,
            "normalise": self.normalise,
            "dtype": self.placement.precision,
        }

    def of(self, collection: Collection) -> Dense:
        return self._of_whole_documents if collection.whole_documents else self

    @property
    @shared
    def _of_whole_documents(self) -> Dense:
        longest = self.document_max_length
        return replace(self, max_length=longest, document_max_length=None) if longest else self

    def tokens_of(self, texts: Sequence[str], role: str) -> TokenizedTexts:
        return self._network.tokenize(texts, self._sides[role])

    def encode_batch(self, features: Mapping[str, Any], role: str) -> tuple[Tensor, ...]:
        """The vector of each text: float32 [dimensions]."""
        vectors = self._network.vectors(features, role)
        normalize = import_optional("torch").nn.functional.normalize
        return (normalize(vectors) if self.normalise else vectors,)

    def read_batch(self, tensors: tuple[Tensor, ...]) -> list[NDArray[Any]]:
        return list(tensors[0].cpu().numpy())

    @property
    @shared
    def _network(self) -> _SentenceModel | _PooledModel:
        if self.pooling is not None:
            return _PooledModel(self._checkpoint, self.placement, self)
        loaded = self._checkpoint.load(self.placement)
        pack_linear_layers(loaded[0])
        continue_in_float32(loaded)
        return _SentenceModel(loaded, self.placement.device)


class _SentenceModel:
    """A checkpoint of sentence-transformers. Not safe for threads."""

    def __init__(self, loaded: Any, device: Any) -> None:
        self._model, self._device = loaded, device
        self._own = own_length(None, loaded.max_seq_length)

    def tokenize(self, texts: Sequence[str], side: PromptSide) -> TokenizedTexts:
        limit = side.limit or self._own
        return tokenized(
            self._model, texts, side.role, self._device, prefix=side.prefix, limit=limit
        )

    def vectors(self, features: Mapping[str, Any], role: str) -> Tensor:
        """One batch: [texts, dimensions]."""
        vectors: Tensor = self._model(features, task=role)["sentence_embedding"]
        return vectors[:, : self._model.truncate_dim].float()


class _PooledModel:
    """A network of transformers whose last layer is pooled. Not safe for threads."""

    def __init__(self, checkpoint: Checkpoint, place: Placement, recipe: Dense) -> None:
        self._tokenizer = checkpoint.tokenizer()
        self._tokenizer.truncation_side = "right"
        self._own = own_length(checkpoint.config, self._tokenizer.model_max_length)
        self._pad, self._device = self._tokenizer.pad_token_id or 0, place.device
        self._end = self._tokenizer.eos_token_id if recipe.append_eos else None
        if recipe.append_eos and self._end is None:
            raise InputError(
                f"append_eos=true and the tokenizer of '{checkpoint.whole}' has no such token",
                do="set append_eos=false",
            )
        # The library's own pooling on top is not used.
        self._network = checkpoint.load(place)
        self._network.config.use_cache = False  # of keys and values, which nothing reads again
        # Of a text that is padded after its end, attention that looks back reads no padding.
        self._needs_mask = recipe.pooling != "last" or not looks_back(self._network)
        pack_linear_layers(self._network)
        modules = import_optional("sentence_transformers.sentence_transformer.modules")
        self._pooling = modules.Pooling(
            self._network.config.hidden_size, _POOLINGS[recipe.pooling or ""]
        )

    def tokenize(self, texts: Sequence[str], side: PromptSide) -> TokenizedTexts:
        prefix = side.prefix or ""
        # The name of a special token in a text is text; in a prefix it is the token.
        has_special = any(token in prefix for token in self._tokenizer.all_special_tokens)
        coded = self._tokenizer(
            [prefix + text for text in texts],
            split_special_tokens=not has_special,
            truncation=True,
            max_length=(side.limit or self._own) - (self._end is not None),
            padding=False,
        )["input_ids"]
        if self._end is not None:
            items = [ids if ids[-1:] == [self._end] else [*ids, self._end] for ids in coded]
        else:
            # A tokenizer without special tokens makes nothing of an empty text.
            items = [ids or [self._pad] for ids in coded]
        features = pad_rows(items, self._pad, self._device.type)
        return TokenizedTexts(features, list(map(len, items)))

    def vectors(self, features: Mapping[str, Any], role: str) -> Tensor:
        """One batch: [texts, dimensions]."""
        mask = {"attention_mask": features["attention_mask"]}
        read = features if self._needs_mask else {"input_ids": features["input_ids"]}
        states = self._network(**read).last_hidden_state.float()
        pooled: Tensor = self._pooling({"token_embeddings": states, **mask})["sentence_embedding"]
        return pooled


def looks_back(network: Any) -> bool:
    """Whether every layer of attention of a network of transformers is causal."""
    causal = [module.is_causal for module in network.modules() if hasattr(module, "is_causal")]
    return bool(causal) and all(causal)


dense_retriever = retriever_of(VectorEngine, Dense)
