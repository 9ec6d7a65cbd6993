"""Indexes of vectors, be they of one vector a unit or of many: built, opened, searched."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.engines.engine import RankedList, ranked_lists
from soundingline.pipelines.index_folder import REBUILD, OpenedIndex, read_manifest, write_manifest
from soundingline.pipelines.learned.encoding import TextEncoder, encoded
from soundingline.pipelines.learned.shards import Shards
from soundingline.pipelines.learned.vector_search import (
    DocumentVectors,
    VectorSearch,
    check_search,
    make_search,
    scores_of,
)
from soundingline.pipelines.lexical.storage import Docnos
from soundingline.pipelines.retrieve import Retriever
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, fingerprint


class VectorEncoder(TextEncoder, Protocol):
    """What encodes an index's units and its queries. `settings` are those that change a vector."""

    model: str

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def encode_queries(self, texts: Sequence[str]) -> Sequence[NDArray[np.float32]]:
        """Each query: [dimensions], or of a multi-vector model [tokens, dimensions]."""
        ...


@dataclass(frozen=True)
class VectorEngine:
    """Encodes units into an index of their vectors, and opens it.

    `search`: `numpy` (default; the vectors stay on disk and in the page cache) or `torch` (on the
    encoder's device, in its memory). It changes speed, not the index.
    """

    encoder: Any
    search: str = "numpy"
    name: ClassVar[str]
    offers: ClassVar[frozenset[str]] = frozenset()
    packages: ClassVar[tuple[str, ...]]
    """Whose versions a manifest tells."""

    def __post_init__(self) -> None:
        check_search(self.search)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.encoder.fingerprint)

    @abstractmethod
    def write(self, shards: Shards, folder: Path) -> Mapping[str, Any]:
        """Put the encoded units into `folder`; what its manifest tells of them."""

    @abstractmethod
    def check(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """`ValueError` for an index whose files do not fit together."""

    @abstractmethod
    def load(self, folder: Path) -> tuple[Docnos, DocumentVectors]:
        """The unit ids of an index and its vectors, mapped from disk."""

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Index the `contents` of the units, in their order; goes on where a killed build was.

        `InputError` for an empty corpus and a repeated id. Complete or not at all.
        """
        with (
            encoded(units, self.encoder, path, corpus_fingerprint=corpus_fingerprint) as shards,
            atomic_folder(path) as folder,
        ):
            content = {
                "encoder": self.encoder.fingerprint,
                "model": self.encoder.model,
                "settings": self.encoder.settings,
                "corpus_fingerprint": corpus_fingerprint,
                **self.write(shards, folder),
                "versions": {package: version(package) for package in self.packages},
            }
            write_manifest(folder, self.name, content)

    def open(self, path: Path, *, corpus_fingerprint: str | None = None) -> VectorIndex:
        """`InputError` if there is no complete index of that corpus and encoder. Loads no model."""
        manifest = read_manifest(path, self.name, corpus_fingerprint, self.check)
        if manifest["encoder"] != self.encoder.fingerprint:
            raise InputError(
                f"the {self.name} index at '{path}' was made by another encoder or with other "
                f"settings ({manifest['model']}, {manifest['settings']})",
                valid=f"{self.encoder.model}, {dict(self.encoder.settings)}",
                do=REBUILD,
            )
        return VectorIndex(path, manifest, self)


class VectorIndex(OpenedIndex):
    """An opened index with the encoder of its queries. `docnos`: unit ids; `documents`: their
    vectors, mapped from disk. Equal where folder, corpus and way of searching are."""

    query_columns = ("query_vec", "query")

    def __init__(self, path: Path, manifest: Mapping[str, Any], engine: VectorEngine) -> None:
        super().__init__(path, manifest)
        self.engine, self.encoder = engine, engine.encoder
        self.docnos, self.documents = engine.load(path)
        self._search: VectorSearch | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.docnos)

    def retriever(self, depth: int = 1000) -> Retriever:
        """The best `depth` units of each query; equal scores in the order of the index.

        Products of matrices round by their shape: the last digit of a score may differ between a
        query alone and in a frame of many, and between a ranking and units of a frame.
        """
        return Retriever(depth=depth, index=self)

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """See `soundingline.pipelines.engines.engine.Index`; `query_vec` is an array, of a
        single-vector model [dimensions], of a multi-vector model [tokens, dimensions]."""
        return self.search(self._vectors(queries), depth)

    def score(
        self, queries: Sequence[Any], numbers: Sequence[NDArray[np.int32]], model: Any
    ) -> list[NDArray[np.float32]]:
        """For each query, the scores of the units of these numbers."""
        return self.scores(self._vectors(queries), numbers)

    def _vectors(self, queries: Sequence[Any]) -> Sequence[NDArray[np.float32]]:
        if all(isinstance(query, str) for query in queries):
            return self.encode(queries)
        return [np.asarray(query, dtype=np.float32) for query in queries]

    def encode(self, texts: Sequence[str]) -> Sequence[NDArray[np.float32]]:
        """Texts as queries that `search` takes."""
        return list(self.encoder.encode_queries(texts))

    def search(self, queries: Sequence[NDArray[Any]], depth: int) -> list[RankedList]:
        """The best `depth` units of each query, equal scores in the order of the index.

        A query is [dimensions] and its score a dot product, or of a multi-vector model [tokens,
        dimensions] and its score the MaxSim. `InputError` for a query of another shape.
        """
        self._check_shapes(queries)
        return ranked_lists(self.docnos, self._searching()(queries, depth))

    def scores(
        self, queries: Sequence[NDArray[Any]], numbers: Sequence[NDArray[np.int32]]
    ) -> list[NDArray[np.float32]]:
        """The scores of the units of these numbers for each query, computed on the CPU from their
        vectors alone. `InputError` as of `search`."""
        self._check_shapes(queries)
        pairs = zip(queries, numbers, strict=True)
        return [scores_of(query, self.documents, of_query) for query, of_query in pairs]

    def _searching(self) -> VectorSearch:
        # Made by the first search: a torch search takes the device's memory.
        with self._lock:
            if self._search is None:
                device = self.encoder.device if self.engine.search == "torch" else None
                self._search = make_search(self.engine.search, self.documents, device)
            return self._search

    def _check_shapes(self, queries: Sequence[NDArray[Any]]) -> None:
        dimensions = self.documents.vectors.shape[1]
        many = self.documents.offsets is not None
        for query in queries:
            if query.ndim != 1 + many or query.shape[-1] != dimensions:
                raise InputError(
                    f"a query vector has the shape {list(query.shape)}",
                    valid=f"[{'tokens, ' if many else ''}{dimensions}], as the index",
                    do="encode queries with the model that the index was made with",
                )

    @property
    def _identity(self) -> tuple[str, ...]:
        return *super()._identity, self.engine.search
