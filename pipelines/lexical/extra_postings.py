"""Postings of an overlay: occurrences of terms in addition to those of an index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.jit import compiled
from pipelines.lexical.scoring import Saturation


class OverlayArrays(NamedTuple):
    """The postings; see `pipelines.lexical.overlay` for each array."""

    offsets: NDArray[np.int64]
    documents: NDArray[np.uint32]
    frequencies: NDArray[np.int32]
    base_frequencies: NDArray[np.int32]

    # An overlay's frequencies are wide enough for every value.
    @property
    def large_positions(self) -> NDArray[np.int64]:
        return np.empty(0, np.int64)

    @property
    def large_values(self) -> NDArray[np.int32]:
        return np.empty(0, np.int32)


class ExtraPostings(NamedTuple):
    """Terms of an overlay in a query. `weights`: weight times idf."""

    arrays: OverlayArrays
    terms: NDArray[np.int64]
    weights: NDArray[np.float32]

    def add(
        self, saturation: Saturation, codes: NDArray[np.uint8], sums: NDArray[np.float32]
    ) -> None:
        """Add to `sums` what the phrases are worth beyond the text of the documents."""
        arrays = self.arrays
        postings = (arrays.offsets, arrays.documents, arrays.frequencies, arrays.base_frequencies)
        by_code = saturation.shares is not None
        _add(*postings, self.terms, self.weights, saturation.norms, codes, by_code, sums)


@compiled
def _add(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.int32],
    base_frequencies: NDArray[np.int32],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    norms: NDArray[np.float32],
    codes: NDArray[np.uint8],
    by_code: bool,
    sums: NDArray[np.float32],
) -> None:
    for row in range(len(terms)):
        weight = weights[row]
        for i in range(offsets[terms[row]], offsets[terms[row] + 1]):
            document = documents[i]
            norm = norms[codes[document]] if by_code else norms[document]
            own = np.float32(base_frequencies[i])
            both = own + np.float32(frequencies[i])
            sums[document] += weight * (both / (both + norm) - own / (own + norm))
