"""An inverted index of impacts: what learned sparse models give terms instead of frequencies.

    score(d) = sum over terms t of  weight of t in the query * impact of t in d

The postings are kept and searched as those of `pipelines.lexical`: impacts stand where frequencies
do. The folder holds, beside the manifest, `offsets, documents, frequencies, large_positions,
large_values` as `pipelines.lexical.storage` tells (`frequencies` are float32 where impacts are not
small whole numbers), and the vocabulary and the unit ids as tables of strings.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.index_folder import OpenedIndex, read_manifest, write_manifest
from pipelines.index_retriever import IndexRetriever, RankedList, named
from pipelines.learned.impact_scoring import add_impacts, check_scale, scaled
from pipelines.learned.shards import Shard
from pipelines.lexical.invert import DocumentPostings, invert
from pipelines.lexical.storage import TERMS, TYPES, UNITS, load_array
from pipelines.lexical.strings import Names, StringTable, StringWriter, to_bytes
from pipelines.lexical.top_documents import ScoreSums
from toolkit.checks import check_integer, check_weights
from toolkit.errors import InputError
from toolkit.files import folder_made_whole

KIND = "impacts"
_FINEST = 100.0  # up to this scale nearly every impact fits in one byte
_MB = 1 << 20


class Impacts(NamedTuple):
    """The arrays of an index; see `pipelines.lexical.storage`."""

    offsets: NDArray[np.int64]
    documents: NDArray[np.uint32]
    frequencies: NDArray[Any]
    large_positions: NDArray[np.int64]
    large_values: NDArray[np.int32]


class ImpactIndex(OpenedIndex):
    """Postings of (document, impact) by term, mapped from disk.

    Make one with `ImpactIndex.build` or `ImpactIndex.open`. A document's number is its position in
    the input. Safe for many threads and processes; pickled, it travels as its path.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        super().__init__(path, manifest)
        self.scale: float | None = manifest["scale"]
        self.docnos = Names(StringTable(path / UNITS))
        self.vocabulary = list(StringTable(path / TERMS))
        self._numbers = {term: number for number, term in enumerate(self.vocabulary)}
        kinds = {name: TYPES[name] for name in Impacts._fields} | {"frequencies": manifest["type"]}
        self._arrays = Impacts(**{name: load_array(path, name, kinds[name]) for name in kinds})
        self._sums = ScoreSums(self._arrays, len(self.docnos))

    @classmethod
    def build(
        cls,
        shards: Iterable[Shard],
        vocabulary: Sequence[str],
        path: str | Path,
        *,
        scale: float | None = 100.0,
        corpus_fingerprint: str = "",
        memory_mb: int = 1024,
    ) -> ImpactIndex:
        """Index shards of (term number, weight) rows, which are read several times, and open it.

        An impact is round(weight x `scale`), and gone where that is 0; with `scale=None` it is the
        weight itself in float32. `vocabulary` names the terms by number. `path` is a folder that
        appears when it is whole. `memory_mb` bounds what the build keeps beside one shard.
        """
        check_scale(scale)
        kind = "|u1" if scale is not None and scale <= _FINEST else "<f4"
        path = Path(path)
        with folder_made_whole(path) as folder:
            documents = _write_names(shards, vocabulary, folder)
            read = partial(_read, shards, scale)
            postings, large = invert(
                read, len(vocabulary), folder, memory_mb * _MB, np.dtype(kind).type
            )
            counts = {"documents": documents, "postings": postings, "large_impacts": large}
            content = {
                "corpus_fingerprint": corpus_fingerprint,
                "scale": scale,
                "type": kind,
                "counts": counts,
                "versions": {"python": platform.python_version(), "numpy": np.__version__},
            }
            write_manifest(folder, KIND, content)
        return cls.open(path, corpus_fingerprint=corpus_fingerprint)

    @classmethod
    def open(cls, path: str | Path, *, corpus_fingerprint: str | None = None) -> ImpactIndex:
        """Map an index. `InputError` if there is none, if it is not whole, of another version, or
        not of the corpus `corpus_fingerprint`."""
        path = Path(path)
        return cls(path, read_manifest(path, KIND, corpus_fingerprint))

    def __len__(self) -> int:
        return len(self.docnos)

    def document_frequency(self, term: str) -> int:
        """In how many documents a term has an impact (0 if it is unknown)."""
        number = self._numbers.get(term)
        if number is None:
            return 0
        first, last = self._arrays.offsets[number : number + 2].tolist()
        return int(last - first)

    def postings(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The numbers of the documents in which a term has an impact, ascending, and these."""
        arrays, number = self._arrays, self._numbers.get(term)
        if number is None:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        first, last = arrays.offsets[number : number + 2].tolist()
        impacts = arrays.frequencies[first:last].astype(np.float32)
        large = slice(*np.searchsorted(arrays.large_positions, [first, last]).tolist())
        impacts[arrays.large_positions[large] - first] = arrays.large_values[large]
        return arrays.documents[first:last].astype(np.int32), impacts

    def search(
        self, query: Mapping[str, float], depth: int = 1000
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Numbers of the documents with a score above 0, `depth` at most, and their scores:
        highest first, equal scores in the order of the documents.

        `query`: weights by term, as they are (never scaled); unknown terms count nothing. Scores
        are float32 sums by ascending term number: exact for whole numbers below 2^24.
        """
        check_integer("depth", depth)
        known = sorted(self._known(query))
        if not known:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        terms = np.array([number for number, _ in known], dtype=np.int64)
        weights = np.array([weight for _, weight in known], dtype=np.float32)
        return self._sums.best(terms, partial(add_impacts, self._arrays, terms, weights), depth)

    def retriever(self, encoder: QueryEncoder | None = None, depth: int = 1000) -> ImpactRetriever:
        """A PyTerrier transformer over this index; see `ImpactRetriever`."""
        return ImpactRetriever(self, encoder=encoder, depth=depth)

    def _known(self, query: Mapping[str, float]) -> Iterator[tuple[int, float]]:
        check_weights(query)
        for term, weight in query.items():
            number = self._numbers.get(term)
            if number is not None and weight > 0:
                yield number, weight


class QueryEncoder(Protocol):
    """Gives queries weights by term; safe for many threads."""

    def queries(self, texts: Sequence[str]) -> Sequence[Mapping[str, float]]: ...


class ImpactRetriever(IndexRetriever):
    """Ranks by the sum of query weight times impact (see `IndexRetriever` for the frames).

    `query` is encoded by `encoder`, all queries of a frame at once, and its weights are scaled and
    rounded as the index's impacts are. `query_toks` (term -> weight) is taken as it is. Without an
    encoder only `query_toks` can be searched. Bad settings, or a missing encoder: `InputError`.
    """

    def __init__(
        self, index: ImpactIndex, *, encoder: QueryEncoder | None = None, depth: int = 1000
    ) -> None:
        check_integer("depth", depth)
        self.index, self.encoder, self.depth = index, encoder, depth

    def analysed(self, texts: Sequence[str]) -> Sequence[Mapping[str, float]]:
        if self.encoder is None:
            raise InputError(
                "there is no encoder for the queries",
                valid="query_toks (a dict of terms to weights)",
                do="give retriever(encoder=...)",
            )
        return [self._scaled(weights) for weights in self.encoder.queries(texts)]

    def rank(self, queries: Sequence[Mapping[str, float]]) -> Sequence[RankedList]:
        rankings = [self.index.search(query, self.depth) for query in queries]
        return named(self.index.docnos, rankings)

    def _scaled(self, weights: Mapping[str, float]) -> Mapping[str, float]:
        values = np.fromiter(weights.values(), np.float32, len(weights))
        return dict(zip(weights, scaled(values, self.index.scale).tolist(), strict=True))


def _write_names(shards: Iterable[Shard], vocabulary: Sequence[str], folder: Path) -> int:
    """Tables of terms and unit ids; the number of units."""
    terms = StringWriter(folder / TERMS)
    terms.extend(to_bytes(term) for term in vocabulary)
    terms.close()
    units = StringWriter(folder / UNITS)
    documents = 0
    for shard in shards:
        units.extend(to_bytes(name) for name in shard.unit_ids)
        documents += len(shard.unit_ids)
    units.close()
    return documents


def _read(shards: Iterable[Shard], scale: float | None) -> Iterator[DocumentPostings]:
    """The impacts above 0 of every document."""
    first = 0
    for shard in shards:
        impacts = scaled(shard.values["weight"], scale)
        positive = impacts > 0
        before = np.concatenate([[0], np.cumsum(positive)])[shard.offsets]
        yield DocumentPostings(
            first, np.diff(before), shard.values["term"][positive], impacts[positive]
        )
        first += len(shard.unit_ids)
