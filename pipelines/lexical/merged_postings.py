"""The postings of an index and an overlay as one, in memory, for some terms: for the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.index import LexicalIndex, weights_of
from pipelines.lexical.overlay import Overlay
from pipelines.lexical.scoring import idf
from pipelines.lexical.storage import LARGEST_SMALL, Arrays, Statistics
from pipelines.lexical.strings import Names


class EnrichedTerm(NamedTuple):
    """A term's number in the base and in the overlay (-1 where it has none), and its document
    frequency, as the enriched index counts it."""

    base: int
    extra: int
    document_frequency: int


class MergedIndex:
    """Some terms of an enriched index. A term's number is its place among them, in the order of
    their bytes. Made by `EnrichedIndex.merged`."""

    def __init__(
        self,
        docnos: Names,
        arrays: Arrays,
        statistics: Statistics,
        terms: Mapping[str, tuple[int, float]],
    ) -> None:
        self.docnos, self.statistics = docnos, statistics
        self._arrays, self._terms = arrays, terms

    @classmethod
    def of(
        cls,
        base: LexicalIndex,
        overlay: Overlay,
        terms: Mapping[str, EnrichedTerm],
        *,
        lengths: Arrays,
        statistics: Statistics,
        documents_with_terms: int,
    ) -> MergedIndex:
        """The postings of `terms`, in the order given. `lengths` and `statistics` are those of a
        search's length norms, `documents_with_terms` is the N of its idf. Takes 5 bytes a posting
        in memory, and 24 while it is made."""
        documents, frequencies = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        for name, term in terms.items():
            holders, counts = _merged(base, overlay, name, term)
            documents.append(holders)
            frequencies.append(counts)
        offsets = np.cumsum([0, *map(len, documents[1:])]).astype(np.int64)
        every = np.concatenate(frequencies)
        large = np.flatnonzero(every > LARGEST_SMALL)
        holders_of_terms = np.concatenate(documents)
        arrays = lengths._replace(
            offsets=offsets,
            documents=holders_of_terms,
            frequencies=np.where(every > LARGEST_SMALL, 0, every).astype(np.uint8),
            large_positions=large,
            large_values=every[large].astype(np.int32),
            large_documents=holders_of_terms[large],
        )
        numbered = {
            name: (number, idf(documents_with_terms, term.document_frequency))
            for number, (name, term) in enumerate(terms.items())
        }
        return cls(base.docnos, arrays, statistics, numbered)

    def __len__(self) -> int:
        return len(self.docnos)

    def _weighted(
        self, query: Mapping[str, float] | Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Numbers of the known terms of weight above 0, ascending, and weight times idf."""
        known = sorted(
            (*self._terms[name], weight)
            for name, weight in weights_of(query).items()
            if name in self._terms
        )
        return (
            np.array([number for number, _, _ in known], dtype=np.int64),
            np.array([weight * rarity for _, rarity, weight in known], dtype=np.float32),
        )


def _merged(
    base: LexicalIndex, overlay: Overlay, name: str, term: EnrichedTerm
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The documents with the term in text or phrases, ascending, and its frequency in both."""
    documents, frequencies = base.postings(name)
    if term.extra < 0:
        return documents.astype(np.uint32), frequencies.astype(np.int64)
    arrays = overlay.arrays
    first, last = arrays.offsets[term.extra : term.extra + 2].tolist()
    every = np.concatenate([documents, arrays.documents[first:last]])
    counts = np.concatenate([frequencies, arrays.frequencies[first:last]])
    holders, positions = np.unique(every, return_inverse=True)
    together = np.bincount(positions, counts, len(holders)).astype(np.int64)
    return holders.astype(np.uint32), together
