"""Postings of an overlay: occurrences of terms in addition to those of an index.

A document whose phrases have a term counts the term as often as text and phrases have it together.
Sums are to the last bit those of an index whose postings hold both (`merged_postings`): terms in
order, frequencies above 255 last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.scoring import BLOCK, Saturation, first_at, large_frequencies
from pipelines.lexical.storage import LARGEST_SMALL, Arrays
from toolkit.jit import compiled

_NO_SHARES = np.empty(0, np.float32)


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
    """A query's terms in an index and in an overlay of it: the number of each, -1 where it is not
    there, and weight times idf."""

    arrays: OverlayArrays
    base_terms: NDArray[np.int64]
    terms: NDArray[np.int64]
    weights: NDArray[np.float32]

    @property
    def in_overlay(self) -> NDArray[np.int64]:
        return self.terms[self.terms >= 0]

    def add(self, saturation: Saturation, base: Arrays, sums: NDArray[np.float32]) -> None:
        """Add every term's part to `sums` (one a document)."""
        own = _ranges(base.offsets, self.base_terms)
        extra = _ranges(self.arrays.offsets, self.terms)
        overlay = (self.arrays.documents, self.arrays.frequencies, self.arrays.base_frequencies)
        before = np.empty(int((extra[1] - extra[0]).max(initial=0)), np.float32)
        shares = _NO_SHARES if saturation.shares is None else saturation.shares
        large = _add(
            *(base.documents, base.frequencies, *own, *overlay, *extra, self.weights),
            *(saturation.norms, shares, base.length_codes, before, sums),
        )
        self._add_large(saturation, base, sums, in_overlay=large > 0)

    def _add_large(
        self, saturation: Saturation, base: Arrays, sums: NDArray[np.float32], *, in_overlay: bool
    ) -> None:
        """Add the parts of frequencies above 255, of the text alone or with the phrases."""
        known = np.flatnonzero(self.base_terms >= 0)
        owners, documents, frequencies = large_frequencies(base, self.base_terms[known])
        owners = known[owners]
        if in_overlay:
            owners, documents, frequencies = self._with_overlay(owners, documents, frequencies)
        if not len(owners):
            return
        rows = documents if saturation.shares is None else base.length_codes[documents]
        parts = self.weights[owners] * (frequencies / (frequencies + saturation.norms[rows]))
        np.add.at(sums, documents, parts)

    def _with_overlay(
        self,
        owners: NDArray[np.int64],
        documents: NDArray[np.uint32],
        frequencies: NDArray[np.float32],
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
        """The large frequencies of the text, those with phrases in their place, term by term."""
        first, last = _ranges(self.arrays.offsets, self.terms)
        for row in np.flatnonzero(last > first).tolist():
            part = slice(int(first[row]), int(last[row]))
            together = self.arrays.frequencies[part] + self.arrays.base_frequencies[part]
            above = together > LARGEST_SMALL
            holders = self.arrays.documents[part][above]
            stays = (owners != row) | ~np.isin(documents, holders)
            owners = np.concatenate([owners[stays], np.full(len(holders), row)])
            documents = np.concatenate([documents[stays], holders])
            added = together[above].astype(np.float32)
            frequencies = np.concatenate([frequencies[stays], added])
        order = np.argsort(owners, kind="stable")
        return owners[order], documents[order], frequencies[order]


def _ranges(
    offsets: NDArray[np.int64], terms: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Where each term's postings begin and end; both 0 for an unknown one."""
    known = terms >= 0
    first = np.where(known, offsets[terms], 0).astype(np.uint64)
    return first, np.where(known, offsets[terms + 1], 0).astype(np.uint64)


@compiled
def _add(
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.uint8],
    own_first: NDArray[np.uint64],
    own_last: NDArray[np.uint64],
    holders: NDArray[np.uint32],
    added: NDArray[np.int32],
    base_frequencies: NDArray[np.int32],
    extra_first: NDArray[np.uint64],
    extra_last: NDArray[np.uint64],
    weights: NDArray[np.float32],
    norms: NDArray[np.float32],
    shares: NDArray[np.float32],
    codes: NDArray[np.uint8],
    before: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> int:
    """`before` keeps the sums of a term's holders in the overlay, which then get the part of both
    frequencies in place of the part of the text's own; none where both make more than 255. Gives
    the number of these."""
    large = 0
    by_code = len(shares) > 0
    own, extra = own_first.copy(), extra_first.copy()
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        for row in range(len(weights)):
            weight = weights[row]
            begin = extra[row]
            end = first_at(holders, begin, extra_last[row], limit)
            for i in range(begin, end):
                before[i - begin] = sums[holders[i]]
            last = first_at(documents, own[row], own_last[row], limit)
            if by_code:
                for i in range(own[row], last):
                    document = documents[i]
                    cell = (np.uint32(frequencies[i]) << np.uint32(8)) | np.uint32(codes[document])
                    sums[document] += weight * shares[cell]
            else:
                for i in range(own[row], last):
                    document = documents[i]
                    frequency = np.float32(frequencies[i])
                    sums[document] += weight * (frequency / (frequency + norms[document]))
            for i in range(begin, end):
                document = holders[i]
                both = base_frequencies[i] + added[i]
                part = np.float32(0)
                if both > LARGEST_SMALL:
                    large += 1
                elif by_code:
                    cell = (np.uint32(both) << np.uint32(8)) | np.uint32(codes[document])
                    part = weight * shares[cell]
                else:
                    frequency = np.float32(both)
                    part = weight * (frequency / (frequency + norms[document]))
                sums[document] = before[i - begin] + part
            own[row], extra[row] = last, end
    return large
