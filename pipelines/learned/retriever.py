"""The base class of retrievers whose model encodes units and queries."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from soundingline.pipelines.device import (
    Placement,
    in_batches,
)
from soundingline.pipelines.engines.engine import Engine
from soundingline.pipelines.index_folder import Documents, Shard, as_units, check_target
from soundingline.pipelines.learned.encoding import (
    BLOCK_CHARACTERS,
    Blocks,
    encode_shard,
    encoded,
    merged,
    missing_shards,
)
from soundingline.pipelines.retrieve import Retriever
from soundingline.pipelines.stage import Collection, MadeOnce, shared_property
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int

FEWEST = 8
"""Tokens of the smallest `max_length`: markers and prefixes leave room for a text."""


@dataclass(kw_only=True, eq=False, repr=False)
class LearnedRetriever(Retriever):
    """Ranks an index of its own, which its collection opens, or builds if it is missing.

    The retriever is the `Engine` of that index, and encodes the units and the queries. The run's
    engine does not matter. Columns and errors as in `Retriever`; `query_toks` is not searched.

    The model is loaded by the first text and shared by all bound copies; one thread at a time
    computes. A vector or a weight depends on the other texts of its batch by rounding alone.

    `InputError` for arguments out of range, and for a checkpoint that cannot be loaded, is of
    another kind, or does not fit into memory.

    Args:
        model: A name on the Hugging Face hub, or a folder.
        revision: A branch, tag or commit on the hub.
        max_length: Tokens that hold a text. The default is the length for which the checkpoint was
            made.
        device, dtype: See `soundingline.pipelines.device.choose_device` and `choose_dtype`.
        batch_tokens: Tokens of a batch, padding included: 2048 on a CPU and 16,384 on a GPU.
    """

    model: str = field(kw_only=False)
    revision: str | None = None
    max_length: int | None = None
    device: str | None = None
    dtype: str | None = None
    batch_tokens: int | None = None

    extra = "learned"
    supports: ClassVar[frozenset[str]] = frozenset()
    takes_weights: ClassVar[bool] = False
    searches_enriched: ClassVar[bool] = False
    matching: ClassVar[str] = "learned"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            check_int("max_length", self.max_length, ge=FEWEST)
        self.placement = Placement(self.device, self.dtype, self.batch_tokens)
        self._shared = MadeOnce()

    def _lasting(self, argument: str) -> tuple[str, ...]:
        # The model does not depend on the arguments that all retrievers have.
        return ("_shared",) if argument in Retriever.__dataclass_fields__ else ()

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the checkpoint's content and of every argument that changes the index. The
        precision is one of them: an index that a GPU made in bfloat16 is searched elsewhere with
        dtype=bfloat16."""

    @abstractmethod
    def read(self, texts: Sequence[str]) -> tuple[Sequence[Any], list[int]]:
        """What `encode_batch` takes for each text, and how many tokens of it the model reads,
        special ones included."""

    @abstractmethod
    def encode_batch(self, items: Sequence[Any]) -> list[NDArray[Any]]:
        """The array of each text of one batch, all of one type, in which they are stored:
        [dimensions] of a single-vector model, [tokens, dimensions] of a multi-vector model, [terms]
        of `SPARSE` by ascending term for a learned sparse model."""

    @property
    @abstractmethod
    def index_kind(self) -> str:
        """The kind of the index in its manifest."""

    @abstractmethod
    def write_index(self, blocks: Blocks, path: Path, corpus_fingerprint: str) -> None:
        """Make the index of an encoded corpus at `path`, a folder that appears when it is complete
        and replaces an older index."""

    @abstractmethod
    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> Any:
        """The index at `path`. `InputError` if there is no complete one of that corpus and of this
        model. Loads no model."""

    def build(
        self,
        units: Documents,
        path: str | Path,
        *,
        overwrite: bool = False,
        corpus_fingerprint: str = "",
        shards: int = 1,
    ) -> None:
        """Encode and index the `contents` of the units, in their order. Units and path are those of
        `LexicalIndex.build`. After a kill, the same call continues with the first block that is
        missing (see `encode_corpus`). If `shards` is above 1, nothing is encoded: the index is made
        of what `build_shard` has encoded. `InputError` for a path that holds anything, except an
        older index with `overwrite`, an empty corpus, a repeated id, and missing shards."""
        path, units = Path(path), as_units(units)
        check_target(path, self.index_kind, overwrite=overwrite)
        blocks: AbstractContextManager[Blocks]
        if shards > 1:
            blocks = merged(units, self, path, shards, corpus_fingerprint=corpus_fingerprint)
        else:
            self.check_disk(units, path)
            blocks = encoded(units, self, path, **self._encoding(corpus_fingerprint))
        with blocks as content:
            self.write_index(content, path, corpus_fingerprint)

    def build_shard(
        self, units: Documents, path: str | Path, shard: Shard, *, corpus_fingerprint: str = ""
    ) -> None:
        """Encode those of all `units` that belong to a shard, for an index at `path` that `build`
        makes of all shards; another process may encode another. Kills and errors as for `build`."""
        path, units = Path(path), as_units(units)
        self.check_disk(units, path)
        encode_shard(units, self, path, shard, **self._encoding(corpus_fingerprint))

    def missing_shards(
        self, path: str | Path, count: int, corpus_fingerprint: str = ""
    ) -> list[int]:
        """The numbers of the shards that `build` would lack."""
        return missing_shards(self, Path(path), count, corpus_fingerprint)

    def check_disk(self, units: Iterable[Unit], path: Path) -> None:
        """`InputError` for a disk that would not hold the index at `path` while it is made, where
        that can be estimated."""

    def _encoding(self, corpus_fingerprint: str) -> dict[str, Any]:
        characters = BLOCK_CHARACTERS[self.placement.device.type]
        return {"corpus_fingerprint": corpus_fingerprint, "block_characters": characters}

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The array of each text, computed in batches of similar length; see `encode_batch`."""
        if not texts:
            return []
        items, lengths = self.read(texts)
        return in_batches(self.encode_batch, items, lengths, self.placement.batch_tokens)

    def validate(self, engine: Engine) -> None:
        """`InputError` for a checkpoint that cannot be loaded."""
        _ = self.fingerprint

    def index_in(self, collection: Collection) -> Any:
        """`InputError` for a collection that opens no index."""
        if collection.open_index is None:
            raise InputError(
                f"the collection of {type(self).__name__} opens no index of its model",
                do="give Collection(open_index=...), or search an index that you have opened",
            )
        return collection.open_index(self)

    @shared_property
    def _computing(self) -> threading.Lock:
        return threading.Lock()


def continue_in_float32(model: Any) -> None:
    """Let what follows the network of a model compute in float32: pooling in bfloat16 would make
    the largest error of all."""

    def in_float32(network: Any, inputs: Any, features: Mapping[str, Any]) -> Mapping[str, Any]:
        states = features.get("token_embeddings")
        return features if states is None else {**features, "token_embeddings": states.float()}

    model[0].register_forward_hook(in_float32)
    for module in list(model)[1:]:
        module.float()
