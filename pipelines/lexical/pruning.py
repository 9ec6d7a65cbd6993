"""BM25 that looks at frequent terms only where they can matter, with results equal to the last bit.

A term that a third of the documents hold has little weight and many postings. Its frequencies
are kept a second time, as a row of one byte a document, so that the frequency in one document is
one load. A search, in the way of MaxScore (Turtle & Flood 1995), is then

1. add up the rare terms; every document has a sum that is at most its score;
2. take the `depth` best of these sums and look up their frequent terms: the lowest score among
   them is a threshold that the ranking's last document reaches;
3. a document whose sum and the bounds of all frequent terms together stay below the threshold
   cannot be in the ranking; the others are the candidates;
4. score the candidates afresh, all terms in the order of the index, as any search does.

For example, depth 1, and bounds (weight times largest share) of 4 for `tide`, 1 for `water` and 0.5
for `day`. Of `tide`, d1 gets 3.0, d2 2.6 and d3 1.2. Looked up, d1 has 0.7 of `water` and 0.2 of
`day`, 3.9 in all, which is the threshold. d3 could reach 1.2 + 1.5 = 2.7: out, as are all documents
without `tide`, whose frequent postings nobody reads. d2 could reach 4.1: it is scored in full.

Sums are rounded in another order than scores, so the threshold is lowered by what that may do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.scoring import (
    BLOCK,
    RUN,
    Numbered,
    Saturation,
    first_at,
    key,
    ranked,
    run_maxima,
    runs_reaching,
    share_cell,
    threshold,
)
from pipelines.lexical.storage import Arrays, FrequentTerms
from toolkit.jit import compiled

_PAYS = 1 << 17  # postings of frequent terms, beside one a document: fewer are soon added
_REACH = 0.8  # of the threshold, which bounds may sum to: with more, too much is a candidate
_WORTH = 0.4  # of all postings, which may be added before candidates are scored
_ROUNDING = 2.0**-21  # of a sum, for each term: more than float32 sums in two orders differ by
_PATIENCE = 8  # searches in vain beyond those that paid, after which few more are tried


class PrunedSearch:
    """Searches with one setting of k1 and b, of which `saturation` holds the shares by length code.

    Safe for many threads: bounds are found at their first use, and come out the same in each.
    """

    def __init__(self, arrays: Arrays, frequent: FrequentTerms, saturation: Saturation) -> None:
        if saturation.shares is None:
            raise ValueError("rows are looked up by length code; these lengths are exact")
        self.arrays, self.frequent, self.saturation = arrays, frequent, saturation
        self.shares = saturation.shares
        self._largest = np.full(len(frequent.numbers) + 1, np.nan, np.float32)
        self._largest[-1] = np.inf  # of terms without a row, whose number is -1
        self._balance = 0
        self._skipped = 0

    def search(
        self,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        sums: NDArray[np.float32],
        depth: int,
    ) -> Numbered | None:
        """As `best` over the sums of all terms, which are zero before and after. None where adding
        all postings takes no longer."""
        rows = self.frequent.rows_of(terms)
        sizes = self.arrays.offsets[terms + 1] - self.arrays.offsets[terms]
        if sizes[rows >= 0].sum() < _PAYS + len(sums) or not self._worth_trying():
            return None
        query = _Query(self, terms, weights, rows, weights * self._largest_shares(rows), sums)
        least = query.threshold(depth, sizes)
        self._balance = min(self._balance + 1, _PATIENCE) if least else self._balance - 1
        if not least:
            sums[:] = 0
            return None
        return query.ranking(least, depth)

    def _worth_trying(self) -> bool:
        """Not where too many searches were in vain: with large k1, bounds are far above what most
        documents get. One of sixteen is tried still, because other queries may come."""
        if self._balance > -_PATIENCE:
            return True
        self._skipped += 1
        return self._skipped % 16 == 0

    def _largest_shares(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The largest share of each row's term in any document."""
        largest = self._largest[rows]
        if np.isnan(largest).any():
            for position in np.flatnonzero(np.isnan(largest)).tolist():
                largest[position] = self._largest[rows[position]] = self._largest_share(
                    rows[position]
                )
        return largest

    def _largest_share(self, row: int) -> float:
        arrays, term = self.arrays, self.frequent.numbers[row]
        first, end = np.searchsorted(arrays.large_positions, arrays.offsets[term : term + 2])
        if first < end:
            return 1.0  # some frequency is above 255
        return float(_largest(self.frequent.rows[row], self.shares, arrays.length_codes))


class _Query:
    """One query: `order` are its terms by falling bound, those without a row first. The first
    `added` of them are in the sums; those after them can add `reaches[added]` at most."""

    def __init__(
        self,
        search: PrunedSearch,
        terms: NDArray[np.int64],
        weights: NDArray[np.float32],
        rows: NDArray[np.int64],
        bounds: NDArray[np.float32],
        sums: NDArray[np.float32],
    ) -> None:
        self._arrays, self._saturation = search.arrays, search.saturation
        self._rows, self._shares = search.frequent.rows, search.shares
        self._terms, self._weights, self._row_of, self._sums = terms, weights, rows, sums
        self._order = np.argsort(-bounds, kind="stable")
        self._reaches = np.zeros(len(terms) + 1)
        np.cumsum(bounds[self._order[::-1]], out=self._reaches[-2::-1])
        self._added = 0
        self._maxima = run_maxima(sums[:0])

    def _add(self, count: int) -> None:
        """Add all postings of the next terms, up to `count` of them in all."""
        positions = np.sort(self._order[self._added : count])
        self._saturation.add(
            self._arrays, self._terms[positions], self._weights[positions], self._sums
        )
        self._added = count
        self._maxima = run_maxima(self._sums)

    def threshold(self, depth: int, sizes: NDArray[np.int64]) -> float:
        """A score that at least `depth` documents reach, with so many terms added that the others
        cannot add much to it; 0 where that takes too much. `sizes`: postings of each term."""
        running = np.cumsum(sizes[self._order])
        affordable = int(np.searchsorted(running, _WORTH * running[-1], side="right"))
        count = max(int(np.count_nonzero(self._row_of < 0)), 1)
        while count <= affordable:
            self._add(count)
            leaders = self._at_least(threshold(self._maxima, depth), 2 * depth)
            if len(leaders) >= depth:
                least = self._lowest(leaders, depth)
                enough = int(np.searchsorted(-self._reaches, -_REACH * least))
                if self._added < enough <= affordable:
                    self._add(enough)
                return least if enough <= affordable else 0.0
            count += 1
        return 0.0

    def _lowest(self, leaders: NDArray[np.uint32], depth: int) -> float:
        """The depth-th best score of some documents, less what rounding may do to it."""
        scores = self._sums[leaders]
        positions = self._order[self._added :]
        tables = (self._shares, self._arrays.length_codes)
        rows, weights = self._row_of[positions], self._weights[positions]
        _look_up(self._rows, rows, weights, *tables, leaders, scores)
        lowest = float(np.partition(scores, len(scores) - depth)[len(scores) - depth])
        return lowest * (1 - _ROUNDING * len(self._terms))

    def _at_least(self, bits: np.uint32, most: int) -> NDArray[np.uint32]:
        """The first documents, `most` or somewhat more, whose sums have at least these bits."""
        documents = np.empty(most + RUN, np.uint32)
        return documents[: _collect(self._sums, self._maxima, bits, most, documents)]

    def ranking(self, least: float, depth: int) -> Numbered:
        """The best documents, all of which reach `least`."""
        arrays, sums = self._arrays, self._sums
        cut = np.float32(least - self._reaches[self._added]).view(np.uint32)
        candidates = self._at_least(cut, len(sums))
        self._row_of[self._order[: self._added]] = -1
        postings = (arrays.offsets, arrays.documents, arrays.frequencies)
        query = (self._terms, self._weights, self._row_of)
        tables = (self._rows, self._shares, arrays.length_codes)
        _score(*postings, *query, *tables, candidates, sums)
        self._saturation.add_large(arrays, self._terms, self._weights, sums)
        keys = np.empty(len(candidates) + 1, np.uint64)
        count = _keys(sums, candidates, np.float32(least).view(np.uint32), keys)
        return ranked(keys[:count], depth)


@compiled
def _largest(
    row: NDArray[np.uint8], shares: NDArray[np.float32], codes: NDArray[np.uint8]
) -> np.float32:
    largest = np.float32(0)
    for document in range(len(row)):
        largest = max(largest, shares[share_cell(row[document], codes[document])])
    return largest


@compiled
def _collect(
    sums: NDArray[np.float32],
    maxima: NDArray[np.uint32],
    least: np.uint32,
    most: int,
    documents: NDArray[np.uint32],
) -> int:
    """Documents with at least these bits, run after run, until there are `most`. Each is written
    and then counted or not, as in `runs_reaching`."""
    bits = sums.view(np.uint32)
    count = 0
    for run in runs_reaching(maxima, least):
        if count >= most:
            break
        first = np.int64(run) * RUN
        for document in range(first, min(first + RUN, len(bits))):
            documents[count] = document
            count += bits[document] >= least
    return count


@compiled
def _look_up(
    rows: NDArray[np.uint8],
    numbers: NDArray[np.int64],
    weights: NDArray[np.float32],
    shares: NDArray[np.float32],
    codes: NDArray[np.uint8],
    documents: NDArray[np.uint32],
    scores: NDArray[np.float32],
) -> None:
    for position in range(len(documents)):
        document = documents[position]
        code = codes[document]
        score = scores[position]
        for i in range(len(numbers)):
            cell = share_cell(rows[np.uint64(numbers[i]), document], code)
            score += weights[i] * shares[cell]
        scores[position] = score


@compiled
def _score(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.uint8],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    numbers: NDArray[np.int64],
    rows: NDArray[np.uint8],
    shares: NDArray[np.float32],
    codes: NDArray[np.uint8],
    candidates: NDArray[np.uint32],
    sums: NDArray[np.float32],
) -> None:
    """Sum afresh, terms in order: those with a row (`numbers`) for the candidates, the others'
    postings all. What is no candidate has a part of its score then, below the threshold."""
    first = offsets[terms].astype(np.uint64)
    begin = np.uint64(0)
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        end = first_at(candidates, begin, np.uint64(len(candidates)), limit)
        sums[limit - BLOCK : limit] = 0
        for i in range(len(terms)):
            weight = weights[i]
            if numbers[i] >= 0:
                row = np.uint64(numbers[i])
                for position in range(begin, end):
                    document = candidates[position]
                    cell = share_cell(rows[row, document], codes[document])
                    sums[document] += weight * shares[cell]
                continue
            last = first_at(documents, first[i], np.uint64(offsets[terms[i] + 1]), limit)
            for position in range(first[i], last):
                document = documents[position]
                cell = share_cell(frequencies[position], codes[document])
                sums[document] += weight * shares[cell]
            first[i] = last
        begin = end


@compiled
def _keys(
    sums: NDArray[np.float32],
    candidates: NDArray[np.uint32],
    least: np.uint32,
    keys: NDArray[np.uint64],
) -> int:
    """The keys of the candidates whose sums have at least these bits; clears all sums."""
    bits = sums.view(np.uint32)
    count = 0
    for document in candidates:
        keys[count] = key(bits[document], document)
        count += bits[document] >= least
    sums[:] = 0
    return count
