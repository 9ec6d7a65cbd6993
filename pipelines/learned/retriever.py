"""Encoders, the engines of their indexes, and the retriever that composes both."""

from __future__ import annotations

import copy
import inspect
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray
from typing_extensions import Self

from soundingline.pipelines.device import (
    Placement,
    Result,
    TokenizedTexts,
    gpu_by_turns,
    in_batches,
    padded_width,
    within_memory,
)
from soundingline.pipelines.index_folder import Documents, Shard, as_units, check_target
from soundingline.pipelines.learned.encoding import (
    BLOCK_CHARACTERS,
    Blocks,
    encode_shard,
    encoded,
    merged_shards,
    missing_shards,
)
from soundingline.pipelines.retrieve import Retriever, checked_texts
from soundingline.pipelines.stage import ByArguments, Collection, LazyValues, Stage, shared
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, Runtime, check_int
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

# The names of sentence-transformers.
_PROMPTS = {"query": ["query"], "document": ["document", "passage", "corpus"]}
FEWEST = 8
"""Tokens of the smallest `max_length`: markers and prefixes leave room for a text."""


@dataclass(kw_only=True, eq=False, repr=False)
class Encoder(Stage):
    """Encodes queries and documents by a model.

    As a transformer, it adds `query_vec` to a frame with the column `query`, and `doc_vec` to one
    with `docno` and `text`, in front of which stands the `title` if there is one. These are the
    columns of pyterrier_dr. Encoders that give terms weights add `query_toks` and `toks`, dicts of
    terms to weights, as pyterrier_pisa reads them.

    The model is loaded by the first text and shared by all copies; one thread at a time computes. A
    vector or a weight depends on the other texts of its batch by rounding alone.

    `InputError` for arguments out of range, and for a checkpoint that cannot be loaded, is of
    another kind, or does not fit into memory.

    Args:
        model: A name on the Hugging Face hub, or a folder.
        revision: A branch, tag or commit on the hub.
        max_length: Tokens that hold a text. The default is the length for which the checkpoint was
            made.
        device, dtype: See `soundingline.pipelines.device.choose_device` and `choose_dtype`.
        batch_tokens: Tokens of a batch, padding included. The default depends on the device and
            the size of the network; see `soundingline.pipelines.device.Placement`.
    """

    model: str = field(kw_only=False)
    revision: str | None = None
    max_length: int | None = None
    device: Runtime[str | None] = None
    dtype: str | None = None
    batch_tokens: Runtime[int | None] = None

    extra = "learned"
    kind: ClassVar[str]
    """Of model; the name of its engine."""
    query_column: ClassVar[str] = "query_vec"
    document_column: ClassVar[str] = "doc_vec"

    def __post_init__(self) -> None:
        if self.max_length is not None:
            check_int("max_length", self.max_length, ge=FEWEST)
        self.placement = Placement(self.device, self.dtype, self.batch_tokens)
        self._shared = LazyValues()

    @property
    @shared
    def fingerprint(self) -> str:
        """Hash of the checkpoint's content and of every argument that changes what is encoded. The
        precision is one of them: an index that a GPU made in bfloat16 is searched elsewhere with
        dtype=bfloat16."""
        return self.fingerprint_with()

    @abstractmethod
    def fingerprint_with(self, **of_index: Any) -> str:
        """The same with arguments of an index of what is encoded."""

    def tokenize(self, texts: Sequence[str], role: str = "document") -> TokenizedTexts:
        """One text or more as the network reads them in a role, `document` or `query`, by one call
        of the tokenizer. Another thread may encode meanwhile."""
        with self._tokenizing:
            return self.tokens_of(texts, role)

    @abstractmethod
    def tokens_of(self, texts: Sequence[str], role: str) -> TokenizedTexts:
        """The same of texts without lone surrogates, for one thread at a time."""

    @abstractmethod
    def encode_batch(self, features: Mapping[str, Any], role: str) -> tuple[Tensor, ...]:
        """What the network gives for a batch of `TokenizedTexts`, on its device."""

    @abstractmethod
    def read_batch(self, tensors: tuple[Tensor, ...]) -> list[NDArray[Any]]:
        """The array of each text of what `encode_batch` has returned, all of one type, in which
        they are stored: [dimensions] of a single-vector model, [tokens, dimensions] of a
        multi-vector model, [terms] of `SPARSE` by ascending term for a learned sparse model."""

    def encode(self, texts: Sequence[str], role: str = "document") -> list[NDArray[Any]]:
        """The array of each text; see `read_batch`."""
        return self.encode_tokens(self.tokenize(texts, role), role) if texts else []

    def encode_tokens(self, tokens: TokenizedTexts, role: str = "document") -> list[NDArray[Any]]:
        """The same of texts that `tokenize` has read, in batches of similar length."""
        return self.map_batches(tokens, lambda _, of: self.encode_batch(of, role), self.read_batch)

    def map_batches(
        self,
        tokens: TokenizedTexts,
        compute: Callable[[list[int], Mapping[str, Any]], tuple[Tensor, ...]],
        read: Callable[[tuple[Tensor, ...]], Iterable[Result]],
    ) -> list[Result]:
        """What `read` makes of each text. `compute` gets the numbers of the texts of a batch, and
        their features on the device; see `in_batches`."""
        device, size = self.placement.device, self.placement.batch_tokens

        def compute_rows(rows: list[int]) -> tuple[Tensor, ...]:
            with self._computing, fits(), import_optional("torch").inference_mode():
                return compute(rows, tokens.batch(rows, device))

        fits = partial(within_memory, device, f"a batch of '{self.model}'")
        with fits():
            return in_batches(compute_rows, range(len(tokens.lengths)), tokens.lengths, size, read)

    def encode_queries(self, texts: Sequence[str]) -> Sequence[Any]:
        """Each query: float32 [dimensions], of a multi-vector model [tokens, dimensions], of a
        learned sparse model a dict of terms to weights."""
        return self.encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Sequence[Any]:
        """Each text as a value of `document_column`."""
        return self.encode(texts)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp) as valid:
            valid.query_frame(extra_columns=["query"])
            valid.document_frame(extra_columns=["text"])
            valid.columns(includes=["query"])
            valid.columns(includes=["docno", "text"])
        added = {}
        if "query" in inp.columns:
            added[self.query_column] = self.encode_queries(checked_texts(inp["query"]))
        if {"docno", "text"} <= set(inp.columns):
            texts = [unit.contents for unit in as_units(inp)]
            added[self.document_column] = self.encode_documents(texts)
        columns = {
            name: pd.Series(list(values), inp.index, object) for name, values in added.items()
        }
        return inp.assign(**columns)

    def of(self, collection: Collection) -> Encoder:
        """The encoder of the units of a collection."""
        return self

    @property
    @shared
    def _computing(self) -> threading.Lock:
        return threading.Lock()

    @property
    @shared
    def _tokenizing(self) -> threading.Lock:
        # A tokenizer keeps the length and the padding of its last call.
        return threading.Lock()


@dataclass(kw_only=True, eq=False, repr=False)
class LearnedEngine(ByArguments):
    """Builds and opens the index of an encoder, as an `Engine`.

    `InputError` for a checkpoint that cannot be loaded.
    """

    encoder: Encoder = field(kw_only=False)

    supports: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        return self.encoder.kind

    @property
    def placement(self) -> Placement:
        """Where the encoder computes."""
        return self.encoder.placement

    @property
    def fingerprint(self) -> str:
        """Hash of the encoder and of every argument that changes the index."""
        return self.encoder.fingerprint

    @property
    def index_kind(self) -> str:
        """The kind of the index in its manifest."""
        return self.name

    @abstractmethod
    def write_index(self, blocks: Blocks, path: Path, corpus_fingerprint: str) -> None:
        """Make the index of an encoded corpus at `path`, a folder that appears when it is complete
        and replaces an older index."""

    @abstractmethod
    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> Any:
        """The index at `path`. `InputError` if there is no complete one of that corpus and of this
        engine. Loads no model."""

    def queries(self, texts: Sequence[str], index: Any) -> Sequence[Any]:
        """The texts as queries of an index that this engine has made."""
        return self.encoder.encode_queries(texts)

    def of(self, collection: Collection) -> Self:
        """The engine of the units of a collection."""
        encoder = self.encoder.of(collection)
        return self if encoder is self.encoder else replace(self, encoder=encoder)

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
            blocks = merged_shards(
                units, self.encoder, path, shards, corpus_fingerprint=corpus_fingerprint
            )
        else:
            self.check_disk(units, path)
            blocks = encoded(units, self.encoder, path, **self._encoding(corpus_fingerprint))
        with blocks as content:
            self.write_index(content, path, corpus_fingerprint)

    def build_shard(
        self, units: Documents, path: str | Path, shard: Shard, *, corpus_fingerprint: str = ""
    ) -> None:
        """Encode those of all `units` that belong to a shard, for an index at `path` that `build`
        makes of all shards; another process may encode another. Kills and errors as for `build`.
        Without a `device`, shards take the visible GPUs in turn."""
        if self.encoder.device is None and (gpu := gpu_by_turns(shard.number)):
            on_gpu = replace(self, encoder=replace(self.encoder, device=gpu))
            return on_gpu.build_shard(units, path, shard, corpus_fingerprint=corpus_fingerprint)
        path, units = Path(path), as_units(units)
        self.check_disk(units, path)
        encode_shard(units, self.encoder, path, shard, **self._encoding(corpus_fingerprint))

    def missing_shards(
        self, path: str | Path, count: int, corpus_fingerprint: str = ""
    ) -> list[int]:
        """The numbers of the shards that `build` would miss."""
        return missing_shards(self.encoder, Path(path), count, corpus_fingerprint)

    def check_disk(self, units: Iterable[Unit], path: Path) -> None:
        """`InputError` for a disk that would not hold the index at `path` while it is made, where
        that can be estimated."""

    def _encoding(self, corpus_fingerprint: str) -> dict[str, Any]:
        characters = BLOCK_CHARACTERS[self.placement.device.type]
        return {"corpus_fingerprint": corpus_fingerprint, "block_characters": characters}


@dataclass(kw_only=True, eq=False, repr=False)
class LearnedRetriever(Retriever):
    """Encodes the queries and ranks an index of the same encoder, which its collection opens, or
    builds if it is missing. The run's engine does not matter.

    Columns, further arguments and errors as in `Retriever`. A frame that has the column of encoded
    queries (`Encoder.query_column`) is ranked by these.

    Args:
        engine: What encodes the queries, and builds and opens the index.

    Example:
        >>> engine = VectorEngine(Dense("intfloat/e5-base-v2"))
        >>> engine.build(units, path)  # doctest: +SKIP
        >>> pipe = LearnedRetriever(engine, index=engine.open(path)) >> MaxP()  # doctest: +SKIP
    """

    engine: LearnedEngine = field(kw_only=False)

    supports: ClassVar[frozenset[str]] = frozenset()
    matching: ClassVar[str] = "learned"

    @property
    def fingerprint(self) -> str:
        return self.engine.fingerprint

    @property
    def query_columns(self) -> tuple[str, ...]:
        return *super().query_columns, "query"

    def bind(self, collection: Collection) -> Self:
        own = copy.copy(self)
        own.engine = self.engine.of(collection)
        return super(LearnedRetriever, own).bind(collection)

    def index_in(self, collection: Collection) -> Any:
        """`InputError` for a collection that opens no index."""
        if collection.open_index is None:
            raise InputError(
                f"the collection of {type(self).__name__} opens no index of its model",
                do="give Collection(open_index=...), or search an index that you have opened",
            )
        return collection.open_index(self.engine.of(collection))

    def _text_queries(self, texts: Sequence[str]) -> Sequence[Any]:
        return self.engine.queries(texts, self.index)


def retriever_of(
    engine: type[LearnedEngine], encoder: type[Encoder]
) -> Callable[..., LearnedRetriever]:
    """A function that makes a `LearnedRetriever` from its arguments and those of the engine and the
    encoder, all in one call, as an option of `conf/` lists them."""
    taken = {
        part: {
            name: parameter
            for name, parameter in inspect.signature(part).parameters.items()
            if name not in ("encoder", "engine", "index")
        }
        for part in (encoder, engine, LearnedRetriever)
    }

    def make(*args: Any, **given: Any) -> LearnedRetriever:
        own, of_engine = (
            {name: given.pop(name) for name in taken[part] if name in given}
            for part in (LearnedRetriever, engine)
        )
        return LearnedRetriever(engine(encoder(*args, **given), **of_engine), **own)

    described: Any = make
    described.__signature__ = inspect.Signature(
        [p for each in taken.values() for p in each.values()]
    )
    hints = (get_type_hints(part, include_extras=True) for part in taken)
    described.__annotations__ = {name: hint for each in hints for name, hint in each.items()}
    return make


def tokenized(
    model: Any,
    texts: Sequence[str],
    role: str,
    device: Any,
    *,
    prefix: str | None = None,
    limit: int | None = None,
) -> TokenizedTexts:
    """Texts in a role as a model of sentence-transformers reads them.

    Args:
        prefix: What is put in front of each text. The default is the model's prompt of the role.
        limit: Tokens of a text, special ones included. The default is the model's.
    """
    if prefix is None:
        names = [name for name in _PROMPTS[role] if name in model.prompts]
        prefix = model.prompts.get(names[0] if names else model.default_prompt_name)
    settings: dict[str, Any] = {"max_length": limit} if limit else {}
    expanded = role == "query" and getattr(model[0], "query_expansion", None)
    if not expanded:
        settings["pad_to_multiple_of"] = padded_width(1, device.type)
    features = model.preprocess(
        texts, prompt=prefix, task=role, processing_kwargs={"text": settings}
    )
    mask = features["attention_mask"]
    # What a query is filled up with is read, whatever its mask says.
    lengths = [mask.shape[1]] * len(mask) if expanded else mask.sum(1).tolist()
    return TokenizedTexts(features, lengths, model.tokenizer.padding_side == "left")


def continue_in_float32(model: Any) -> None:
    """Let what follows the network of a model compute in float32: pooling in bfloat16 would make
    the largest error of all."""

    def in_float32(network: Any, inputs: Any, features: Mapping[str, Any]) -> Mapping[str, Any]:
        states = features.get("token_embeddings")
        return features if states is None else {**features, "token_embeddings": states.float()}

    model[0].register_forward_hook(in_float32)
    for module in list(model)[1:]:
        module.float()
