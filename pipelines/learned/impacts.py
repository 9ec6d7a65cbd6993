"""An inverted index of impacts: what learned sparse models give terms instead of frequencies.

    score(d) = sum over terms t of  weight of t in the query * impact of t in d

The postings are stored and searched as those of `soundingline.pipelines.lexical`, with impacts in
the place of frequencies. The folder holds the manifest, `offsets`, `documents` and `frequencies` as
`soundingline.pipelines.lexical.storage` describes them (`frequencies` are float32 where impacts are
no small whole numbers), and the vocabulary and the unit ids as tables of strings.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.engines.engine import RankedList, ranked_lists
from soundingline.pipelines.index_folder import OpenedIndex, read_manifest, write_manifest
from soundingline.pipelines.learned.encoding import Block
from soundingline.pipelines.lexical.bm25 import BLOCK, ScoreBuffers, first_at
from soundingline.pipelines.lexical.invert import DocumentPostings, invert
from soundingline.pipelines.lexical.storage import (
    TERMS,
    UNITS,
    Docnos,
    StringTable,
    StringWriter,
    check_postings,
    check_table,
    load_postings,
    to_bytes,
)
from soundingline.pipelines.retrieve import Retriever
from soundingline.toolkit.errors import InputError, check_int, check_number, check_weights
from soundingline.toolkit.files import atomic_folder
from soundingline.toolkit.jit import compiled

KIND = "impacts"
_LARGEST_SCALE = 100_000  # beyond, float32 would round more than the scale does
_FINEST = 100.0  # up to this scale nearly every impact fits into 16 bits
_MB = 1 << 20


class ImpactIndex(OpenedIndex):
    """Postings of (document, impact) by term, mapped from disk.

    A document's number is its position in the input. Safe for many threads and processes; pickled,
    it travels as its path.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        super().__init__(path, manifest)
        self.scale: float | None = manifest["scale"]
        self.docnos = Docnos(StringTable(path / UNITS))
        self.vocabulary = list(StringTable(path / TERMS))
        self._numbers = {term: number for number, term in enumerate(self.vocabulary)}
        self._arrays = load_postings(path, manifest)
        self._sums = ScoreBuffers(self._arrays, len(self.docnos))

    @classmethod
    def build(
        cls,
        blocks: Iterable[Block],
        vocabulary: Sequence[str],
        path: str | Path,
        *,
        scale: float | None = 100.0,
        corpus_fingerprint: str = "",
        memory_mb: int = 1024,
    ) -> ImpactIndex:
        """Index blocks of (term number, weight) rows, which are read several times, and open it.

        An impact is round(weight x `scale`), and gone where that is 0; with `scale=None` it is the
        weight itself in float32. `vocabulary` names the terms by number. `path` is a folder that
        appears when it is complete. `memory_mb` bounds the memory of the build besides one block.
        """
        check_scale(scale)
        exact = scale is None or scale > _FINEST
        path = Path(path)
        with atomic_folder(path) as folder:
            documents = 0
            with closing(StringWriter(folder / TERMS)) as terms:
                terms.extend(map(to_bytes, vocabulary))
            with closing(StringWriter(folder / UNITS)) as units:
                for block in blocks:
                    units.extend(map(to_bytes, block.unit_ids))
                    documents += len(block.unit_ids)
            read = partial(_read, blocks, scale)
            postings, kind = invert(
                read, len(vocabulary), folder, memory_mb * _MB, "<f4" if exact else None
            )
            content = {
                "corpus_fingerprint": corpus_fingerprint,
                "scale": scale,
                "type": kind,
                "counts": {
                    "documents": documents,
                    "postings": postings,
                    "terms": len(vocabulary),
                },
                "versions": {"python": platform.python_version(), "numpy": np.__version__},
            }
            write_manifest(folder, KIND, content)
        return cls.open(path, corpus_fingerprint=corpus_fingerprint)

    @classmethod
    def open(cls, path: str | Path, *, corpus_fingerprint: str | None = None) -> ImpactIndex:
        """Map an index. `InputError` if there is none, if it is damaged, of another version, or
        not of the corpus `corpus_fingerprint`."""
        path = Path(path)
        return cls(path, read_manifest(path, KIND, corpus_fingerprint, _check))

    def __len__(self) -> int:
        return len(self.docnos)

    def document_frequency(self, term: str) -> int:
        """In how many documents a term has an impact (0 if it is unknown)."""
        return len(self.postings(term)[0])

    def postings(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The numbers of the documents in which a term has an impact, ascending, and these."""
        arrays, number = self._arrays, self._numbers.get(term)
        part = slice(0) if number is None else slice(*arrays.offsets[number : number + 2].tolist())
        return arrays.documents[part].astype(np.int32), arrays.frequencies[part].astype(np.float32)

    def search(
        self, query: Mapping[str, float], depth: int = 1000
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Numbers of the documents with a score above 0, `depth` at most, and their scores:
        highest first, equal scores in the order of the documents.

        `query`: weights by term, as they are (never scaled); unknown terms count nothing. Scores
        are float32 sums by ascending term number: exact for whole numbers below 2^24.
        """
        check_int("depth", depth)
        terms, weights = self._weighted(query)
        return self._sums.best(terms, partial(_add_impacts, *self._arrays, terms, weights), depth)

    def retriever(self, encoder: Any = None, depth: int = 1000) -> ImpactRetriever:
        """A PyTerrier transformer over this index; see `ImpactRetriever`."""
        return ImpactRetriever(depth=depth, index=self, encoder=encoder)

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """See `soundingline.pipelines.engines.engine.Index`; `model.encoder` encodes texts."""
        encoded = self._encoded(queries, model.encoder)
        return ranked_lists(self.docnos, [self.search(query, depth) for query in encoded])

    def score(
        self, queries: Sequence[Any], numbers: Sequence[NDArray[np.int32]], model: Any
    ) -> Sequence[NDArray[Any]]:
        """For each query, the scores that `search` gives the documents of these numbers, at
        whatever depth; 0 for one without a term of the query."""
        scores = []
        for query, of_query in zip(self._encoded(queries, model.encoder), numbers, strict=True):
            terms, weights = self._weighted(query)
            add = partial(_add_impacts, *self._arrays, terms, weights)
            scores.append(self._sums.of(of_query, terms, add))
        return scores

    def _encoded(self, queries: Sequence[Any], encoder: Any) -> Sequence[Mapping[str, float]]:
        if not all(isinstance(query, str) for query in queries):
            return queries
        if encoder is None:
            raise InputError(
                "there is no encoder for the queries",
                valid="query_toks (a dict of terms to weights)",
                do="give retriever(encoder=...)",
            )
        encoded = encoder.queries(queries)
        values = [scaled(np.array([*each.values()], np.float32), self.scale) for each in encoded]
        pairs = zip(encoded, values, strict=True)
        return [dict(zip(terms, of_terms.tolist(), strict=True)) for terms, of_terms in pairs]

    def _weighted(
        self, query: Mapping[str, float]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Numbers of the known terms of weight above 0, ascending, and the weights."""
        check_weights(query)
        known = sorted(
            (self._numbers[term], weight)
            for term, weight in query.items()
            if term in self._numbers and weight > 0
        )
        pairs = np.array(known, dtype=[("term", np.int64), ("weight", np.float32)])
        return pairs["term"].copy(), pairs["weight"].copy()


@dataclass(kw_only=True, eq=False, repr=False)
class ImpactRetriever(Retriever):
    """Ranks by the sum of query weight times impact.

    `query` is encoded by `encoder`, all queries of a frame at once, and its weights are scaled and
    rounded as the index's impacts are. `query_toks` (term -> weight) is taken as it is, without an
    encoder. Bad settings, or a missing encoder: `InputError`.

    Args:
        encoder: An object whose method `queries` returns the weights by term of each of some texts,
            in any thread, such as `Splade`.
    """

    encoder: Any = None


def _check(folder: Path, manifest: Mapping[str, Any]) -> None:
    """`ValueError` for an index whose files do not fit together."""
    counts = manifest["counts"]
    documents, terms = counts["documents"], counts["terms"]
    check_postings(load_postings(folder, manifest), documents, terms, counts["postings"])
    check_table(folder / UNITS, documents)
    check_table(folder / TERMS, terms)


def _read(blocks: Iterable[Block], scale: float | None) -> Iterator[DocumentPostings]:
    """The impacts above 0 of every document."""
    first = 0
    for block in blocks:
        impacts = scaled(block.values["weight"], scale)
        positive = impacts > 0
        before = np.concatenate([[0], np.cumsum(positive)])[block.offsets]
        yield DocumentPostings(
            first, np.diff(before), block.values["term"][positive], impacts[positive]
        )
        first += len(block.unit_ids)


def check_scale(scale: float | None) -> None:
    """`InputError` for a scale that impacts cannot have."""
    if scale is not None:
        do = "set scale=null for exact weights"
        check_number("scale", scale, le=_LARGEST_SCALE, gt=0, do=do)


def scaled(weights: NDArray[np.float32], scale: float | None) -> NDArray[Any]:
    """round(weight x scale) as int32, in float64 so that no product is rounded twice; the weights
    themselves without a scale."""
    if scale is None:
        return weights
    return np.rint(weights.astype(np.float64) * scale).astype(np.int32)


@compiled
def _add_impacts(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    impacts: NDArray[Any],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    first = offsets[terms].astype(np.uint64)
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        for row in range(len(terms)):
            weight = weights[row]
            last = first_at(documents, first[row], np.uint64(offsets[terms[row] + 1]), limit)
            for i in range(first[row], last):
                sums[documents[i]] += weight * np.float32(impacts[i])
            first[row] = last
