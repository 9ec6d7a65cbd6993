"""From rankings of passages to rankings of documents."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from soundingline.pipelines.arguments import ByArguments
from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import check_int


class MaxP(ByArguments, pt.Transformer):
    """Ranks documents by their best passage (Max-P; Dai and Callan, SIGIR 2019).

    In: `qid`, `docno`, `score` and whatever else. Out: the same columns and `passage`.

    A docno `d1%p3` belongs to `d1`; any other docno, `%p` elsewhere included, is its own document.
    Each (qid, document) gives one row: its best passage's, extra columns included, with `docno`
    the document, `passage` the passage's docno and a new `rank`. Equal scores keep the order in
    which they came. Rows come out query by query (queries as first seen), best first.

    `depth`: documents to keep a query, 1 or more (else `InputError`); all by default.
    """

    def __init__(self, depth: int | None = None) -> None:
        if depth is not None:
            check_int("depth of MaxP", depth, do="set it to null for all documents")
        self.depth = depth

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        queries = pd.factorize(inp["qid"])[0]
        documents = [parent(docno) for docno in inp["docno"].tolist()]
        # lexsort is stable: equal scores stay in the order in which they came.
        order = np.lexsort((-inp["score"].to_numpy(dtype=float), queries))
        order = order[_first_of_each(queries[order], documents, order)]
        ranks = np.arange(len(order)) - np.searchsorted(queries[order], queries[order])
        if self.depth is not None:
            order, ranks = order[ranks < self.depth], ranks[ranks < self.depth]
        rows = inp.iloc[order].reset_index(drop=True)
        parents = pd.Series([documents[row] for row in order], dtype=inp["docno"].dtype)
        return rows.assign(passage=rows["docno"], docno=parents, rank=ranks + pt.model.FIRST_RANK)


def _first_of_each(
    queries: NDArray[np.intp], documents: list[str], order: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Which rows, in `order`, are the first of their (query, document)."""
    codes, names = pd.factorize(np.array(documents, dtype=object))
    pairs = queries * len(names) + codes[order]
    return ~pd.Series(pairs).duplicated().to_numpy()
