"""What opened indexes of vectors have in common, be they of one vector a unit or of many."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.engines.index_folder import REBUILD, read_manifest, write_manifest
from pipelines.engines.result_frames import RankedList
from pipelines.learned.encoding import TextEncoder, encoded
from pipelines.learned.shards import Shards
from pipelines.learned.vector_retriever import VectorRetriever
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import folder_made_whole

SEARCHES = ("numpy", "torch")


class VectorEncoder(Protocol):
    """The part of an encoder that an index needs: queries to vectors, and what it is."""

    model: str

    @property
    def device(self) -> Any: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def encode_queries(self, texts: Sequence[str]) -> Any: ...


class EncoderOfIndex(TextEncoder, VectorEncoder, Protocol):
    """What encodes an index's units as well as its queries."""


def check_search(name: str) -> None:
    """`InputError` for a way of searching that there is not."""
    if name not in SEARCHES:
        raise InputError(f"search={name!r}", valid=", ".join(SEARCHES))


def checked_manifest(
    path: Path, kind: str, encoder: VectorEncoder, corpus_fingerprint: str | None
) -> dict[str, Any]:
    """The manifest of a whole index of that kind, corpus and encoder, or an `InputError`. Loads no
    model."""
    manifest = read_manifest(path, kind, corpus_fingerprint)
    if manifest["encoder"] != encoder.fingerprint:
        raise InputError(
            f"the {kind} index at '{path}' was made by another encoder or with other settings "
            f"({manifest['model']}, {manifest['settings']})",
            valid=f"{encoder.model}, {dict(encoder.settings)}",
            do=REBUILD,
        )
    return manifest


def build_vectors(
    units: Iterable[Unit],
    encoder: EncoderOfIndex,
    path: Path,
    kind: str,
    *,
    corpus_fingerprint: str,
    write: Callable[[Shards, Path], Mapping[str, Any]],
    packages: Sequence[str],
) -> None:
    """Encode the `contents` of the units, in their order, and put them into a whole folder at
    `path`; goes on where a killed build was. `write` makes an index of that kind of the shards and
    says what its manifest holds beside the encoder, the corpus and the versions of `packages`.

    `InputError` for an empty corpus and a repeated id.
    """
    with (
        encoded(units, encoder, path, corpus_fingerprint=corpus_fingerprint) as shards,
        folder_made_whole(path) as folder,
    ):
        content = {
            "encoder": encoder.fingerprint,
            "model": encoder.model,
            "settings": encoder.settings,
            "corpus_fingerprint": corpus_fingerprint,
            **write(shards, folder),
            "versions": {package: version(package) for package in packages},
        }
        write_manifest(folder, kind, content)


class StoredVectors(ABC):
    """An opened index with the encoder of its queries. Equal where folder, corpus and way of
    searching are."""

    def __init__(
        self, path: Path, manifest: Mapping[str, Any], encoder: VectorEncoder, search: str
    ) -> None:
        self.path, self.manifest, self.encoder = path, manifest, encoder
        self._how = search
        self._search: Any = None
        self._lock = threading.Lock()

    @abstractmethod
    def search(self, queries: Sequence[NDArray[Any]], depth: int) -> list[RankedList]:
        """See `VectorIndex`."""

    @abstractmethod
    def _made_search(self) -> Any:
        """What searches, as `search` of the engine says."""

    def _searching(self) -> Any:
        # Made by the first search: a torch search takes the device's memory.
        with self._lock:
            if self._search is None:
                self._search = self._made_search()
            return self._search

    def retriever(self, depth: int = 1000) -> VectorRetriever:
        """The best `depth` units of each query."""
        return VectorRetriever(self, depth)

    def encode(self, queries: Sequence[str]) -> Sequence[NDArray[np.float32]]:
        """The vectors of queries."""
        return list(self.encoder.encode_queries(queries))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, ...]:
        return str(self.path.absolute()), self.manifest["corpus_fingerprint"], self._how
