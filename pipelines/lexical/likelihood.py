"""Query likelihood with Dirichlet smoothing over mapped postings: what each document gains.

Lucene's formula (`LMDirichletSimilarity`; Zhai & Lafferty 2004, less what no ranking depends on):

    score(d)  = sum over terms t in d of  qtf * max(0, part(t, d))
    part(t,d) = ln(1 + tf / (mu * p(t))) + ln(mu / (length + mu))
    p(t)      = (collection frequency of t + 1) / (tokens of the collection + 1)

A part below 0, which a long document may get from a frequent term, counts as 0. A document with a
query term is a hit even where all its parts are cut, and has the score 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.bm25 import LARGE
from soundingline.pipelines.lexical.storage import DECODED_LENGTHS, Arrays, Postings
from soundingline.toolkit.jit import compiled

# The sum of a hit without any gain: so small that it vanishes in every other sum.
_HIT = np.finfo(np.float32).tiny


class Dirichlet(NamedTuple):
    """`norms` (float32, 256) is ln(mu / (length + mu)) for each length code."""

    mu: float
    norms: NDArray[np.float32]

    @classmethod
    def of(cls, mu: float) -> Dirichlet:
        return cls(mu, (-np.log1p(DECODED_LENGTHS / mu)).astype(np.float32))

    def add(
        self,
        arrays: Arrays,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        probabilities: NDArray[np.float64],
        sums: NDArray[np.float32],
    ) -> None:
        """Add every term's part to `sums` (one a document). `probabilities`: p(t)."""
        rates = 1 / (self.mu * probabilities)
        gains = (weights[:, None] * np.log1p(rates[:, None] * np.arange(256))).astype(np.float32)
        _add(arrays, terms, weights, rates, gains, self.norms, sums)

    @staticmethod
    def scores(sums: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores of these sums: that of a hit without any gain is 0."""
        return np.where(sums > _HIT, sums, np.float32(0))


@compiled
def _add(
    arrays: Arrays,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    rates: NDArray[np.float64],
    gains: NDArray[np.float32],
    norms: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    offsets, documents = arrays.offsets, arrays.documents
    frequencies, codes = arrays.frequencies, arrays.length_codes
    nothing = np.float32(0)
    for row in range(len(terms)):
        weight = weights[row]
        for i in range(np.uint64(offsets[terms[row]]), np.uint64(offsets[terms[row] + 1])):
            document = documents[i]
            frequency = np.uint32(frequencies[i])
            if frequency < LARGE:
                gain = gains[row, frequency]
            else:
                gain = np.float32(weight * np.log1p(rates[row] * frequency))
            part = gain + weight * norms[codes[document]]
            sums[document] = max(sums[document] + max(part, nothing), _HIT)


def collection_frequency(postings: Postings, term: int) -> int:
    """How often a term occurs in all documents."""
    first, last = postings.offsets[term : term + 2].tolist()
    return int(postings.frequencies[first:last].sum(dtype=np.int64))
