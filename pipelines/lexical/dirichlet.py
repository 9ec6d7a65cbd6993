"""Query likelihood with Dirichlet smoothing over mapped postings: what each document gains.

Lucene's formula (`LMDirichletSimilarity`; Zhai & Lafferty 2004, less what no ranking depends on):

    score(d)  = sum over terms t in d of  qtf * max(0, part(t, d))
    part(t,d) = ln(1 + tf / (mu * p(t))) + ln(mu / (length + mu))
    p(t)      = (collection frequency of t + 1) / (tokens of the collection + 1)

A part below 0, which a long document may get from a frequent term, counts as 0. A document with a
query term is a hit even where all its parts are cut, and has the score 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical import smallfloat
from pipelines.lexical.scoring import large_frequencies
from pipelines.lexical.storage import Arrays
from toolkit.jit import compiled

# The sum of a hit without any gain: so small that it vanishes in every other sum.
_HIT = np.finfo(np.float32).tiny


class Dirichlet(NamedTuple):
    """mu and lengths turned into a table: `norms` (float32) is ln(mu / (length + mu)), for each of
    the 256 length codes, or for each length up to the largest where lengths are `exact`."""

    mu: float
    exact: NDArray[np.int32] | None
    norms: NDArray[np.float32]

    @classmethod
    def of(cls, mu: float, exact: NDArray[np.int32] | None) -> Dirichlet:
        lengths: NDArray[Any] = smallfloat.DECODED
        if exact is not None:
            lengths = np.arange(int(exact.max(initial=0)) + 1)
        return cls(mu, exact, (-np.log1p(lengths / mu)).astype(np.float32))

    def add(
        self,
        arrays: Arrays,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        probabilities: NDArray[np.float64],
        sums: NDArray[np.float32],
    ) -> None:
        """Add every term's part to `sums` (one a document). `probabilities`: p(t)."""
        rows = arrays.length_codes if self.exact is None else self.exact
        rates = 1 / (self.mu * probabilities)
        gains = (weights[:, None] * np.log1p(rates[:, None] * np.arange(256))).astype(np.float32)
        postings = (arrays.offsets, arrays.documents, arrays.frequencies, terms, weights)
        _add(*postings, gains, self.norms, rows, sums)
        owners, documents, frequency = large_frequencies(arrays, terms)
        parts = np.log1p(rates[owners] * frequency) + self.norms[rows[documents]]
        np.add.at(sums, documents, weights[owners] * np.maximum(parts, 0).astype(np.float32))

    @staticmethod
    def scores(sums: NDArray[np.float32]) -> NDArray[np.float32]:
        """What sums are worth: that of a hit without any gain is 0."""
        return np.where(sums > _HIT, sums, np.float32(0))


@compiled
def _add(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.uint8],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    gains: NDArray[np.float32],
    norms: NDArray[np.float32],
    rows: NDArray[Any],
    sums: NDArray[np.float32],
) -> None:
    nothing = np.float32(0)
    for row in range(len(terms)):
        weight = weights[row]
        for i in range(np.uint64(offsets[terms[row]]), np.uint64(offsets[terms[row] + 1])):
            document = documents[i]
            part = gains[row, frequencies[i]] + weight * norms[rows[document]]
            sums[document] = max(sums[document] + max(part, nothing), _HIT)


def collection_frequency(arrays: Arrays, term: int) -> int:
    """How often a term occurs in all documents."""
    first, last = arrays.offsets[term : term + 2].tolist()
    large = slice(*np.searchsorted(arrays.large_positions, [first, last]).tolist())
    small = arrays.frequencies[first:last].sum(dtype=np.int64)
    return int(small + arrays.large_values[large].sum(dtype=np.int64))
