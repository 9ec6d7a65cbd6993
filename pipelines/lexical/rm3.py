"""RM3: pseudo-relevance feedback, which rewrites a query from its best documents.

A relevance model after Lavrenko & Croft (2001) mixed with the query (Abdul-Jaleel et al., TREC
2004), step by step as Anserini does it:

1. A document's terms are those of 2 to 20 letters `a-z` and digits that at most a tenth of the
   documents hold; of them its `fb_terms` most frequent ones, divided by the sum of their
   frequencies.
2. A term's weight is the sum, over the `fb_docs` best documents, of that share times the
   document's score. The `fb_terms` heaviest terms remain, and are made to sum to 1.
3. The query's own terms, made to sum to 1, count for `original_weight`; these for the rest.

Equal terms are taken in alphabetical order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from soundingline.pipelines.engines.engine import checked_weights
from soundingline.pipelines.stage import ByArguments, as_pyterrier, topic_columns
from soundingline.toolkit.errors import InputError, check_int, check_number

_TERM = re.compile(r"[a-z0-9]{2,20}")
_LARGEST_SHARE = 0.1


class Feedback(ByArguments, pt.Transformer):
    """Rewrites each query from its ranking: `index.bm25() >> Feedback(index) >> index.bm25()`
    (Abdul-Jaleel et al., TREC 2004).

    The input is rankings by `index` (`qid`, `docno`, `score`, `rank`) with `query` or with
    `query_toks` (index term -> weight), which is read if both are there. The output has a row for
    each query with a result: `query_toks` is the new query, `query` the old one, which `query_0`
    repeats. The other columns of the query (`pt.model.query_columns`) and `reasoning` are copied.

    If phrases enrich the documents of `index`, feedback reads the documents without them. The
    documents of a frame are read in one walk through the postings.

    Args:
        index: the `LexicalIndex` that ranked the documents.
        fb_terms, fb_docs: the numbers of feedback terms and documents, 1 or more.
        original_weight: the weight of the old query, 0 to 1.

    Raises:
        InputError: for other arguments, a docno that the index does not have, a score below 0.
    """

    def __init__(
        self, index: Any, *, fb_terms: int = 10, fb_docs: int = 10, original_weight: float = 0.5
    ) -> None:
        check_feedback(fb_terms, fb_docs, original_weight)
        self.index = index
        self.fb_terms, self.fb_docs, self.original_weight = fb_terms, fb_docs, original_weight

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp) as valid:
            valid.result_frame(extra_columns=["query", "score", "rank"])
            valid.result_frame(extra_columns=["query_toks", "score", "rank"])
        inp = as_pyterrier(inp)
        best = inp.sort_values("rank", kind="stable").groupby("qid", sort=False).head(self.fb_docs)
        vectors = self._vectors(best["docno"].tolist())
        scores = _document_weights(best["score"])
        rows_of = best.reset_index(drop=True).groupby("qid", sort=False).indices
        first = inp.drop_duplicates("qid")
        columns = topic_columns(inp)
        out = first[["qid", *columns]].reset_index(drop=True)
        if "query_toks" in inp.columns:
            queries = list(map(checked_weights, first["query_toks"]))
        else:
            queries = [Counter(self.index.analyzer.terms(text)) for text in first["query"]]
        rewritten = [
            self._rewritten(query, [(vectors[row], scores[row]) for row in rows_of[qid]])
            for qid, query in zip(first["qid"], queries, strict=True)
        ]
        if "query" in columns:
            out = pt.model.push_queries(out, keep_original=True)
        out["query_toks"] = pd.Series(rewritten, dtype=object)
        return out

    def _vectors(self, docnos: list[str]) -> list[dict[str, np.float32]]:
        """The feedback terms of each document and their shares."""
        numbers = self.index.docnos.numbers(docnos)
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            raise InputError(
                f"docno '{docnos[unknown[0]]}' came to RM3",
                valid="units of its index",
                do="put RM3 right after the first retriever, before any aggregation",
            )
        vectors = self.index.base.vectors(numbers, _LARGEST_SHARE)
        return [self._shares(*vector) for vector in vectors]

    def _shares(
        self, terms: NDArray[np.int32], frequencies: NDArray[np.int32]
    ) -> dict[str, np.float32]:
        counts: dict[str, int] = {}
        for position in np.argsort(-frequencies, kind="stable").tolist():
            name = self.index.base.vocabulary[terms[position]]
            if _TERM.fullmatch(name):
                counts[name] = int(frequencies[position])
                if len(counts) == self.fb_terms:
                    break
        total = np.float32(sum(counts.values()))
        return {name: np.float32(count) / total for name, count in counts.items()}

    def _rewritten(
        self, query: Mapping[str, float], documents: list[tuple[dict[str, np.float32], np.float32]]
    ) -> dict[str, float]:
        # In single precision, as Anserini, because which terms are equal depends on it.
        model: dict[str, np.float32] = {}
        for shares, score in documents:
            for name, share in shares.items():
                model[name] = model.get(name, np.float32(0)) + share * score
        heaviest = sorted(model.items(), key=lambda item: (-item[1], item[0]))[: self.fb_terms]
        mixed = {name: self.original_weight * part for name, part in _unit(query).items()}
        for name, part in _unit(dict(heaviest)).items():
            mixed[name] = mixed.get(name, 0.0) + (1 - self.original_weight) * part
        return mixed


def _document_weights(scores: pd.Series) -> NDArray[np.float32]:
    values = scores.to_numpy(np.float32)
    wrong = values[~((values >= 0) & (values < np.inf))]
    if len(wrong):
        raise InputError(
            f"score {wrong[0]} came to RM3, which weighs documents by their scores",
            valid="0 or more, finite",
            do="put RM3 after BM25 or query likelihood",
        )
    return values


def _unit(weights: Mapping[str, Any]) -> dict[str, float]:
    """The weights scaled to sum to 1; none if they sum to 0."""
    total = float(sum(weights.values()))
    return {name: float(weight) / total for name, weight in weights.items()} if total > 0 else {}


def check_feedback(fb_terms: int, fb_docs: int, original_weight: float) -> None:
    """`InputError` for settings of RM3 that have no meaning."""
    check_int("fb_terms", fb_terms, do="try 10")
    check_int("fb_docs", fb_docs, do="try 10")
    check_number("original_weight", original_weight, le=1, do="try 0.5")
