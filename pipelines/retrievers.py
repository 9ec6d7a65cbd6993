"""Retriever factories: an opened index in, a PyTerrier transformer out.

Plain arguments, one function a kind of retriever; a Hydra option names one of them as a partial.
"""

from __future__ import annotations

from typing import Any

import pyterrier as pt

from pipelines.engines.base import Index
from toolkit.errors import InputError


def bm25(index: Index, *, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> pt.Transformer:
    """BM25 over any engine's index; defaults are Anserini's.

    `depth` counts retrieved units. With `unit=maxp` these are passages, so that the aggregated
    ranking holds at most `depth` documents, as in the Max-P of the text-ranking study.
    """
    return index.bm25(k1=k1, b=b, depth=depth)


def bm25_chosen(
    index: Index, *, path: str, k1: float, b: float, depth: int = 1000
) -> pt.Transformer:
    """BM25 in the cell that a tuning chose. `path` is the `chosen.yaml` that `k1` and `b` were read
    from, which a run's manifest thereby names."""
    return bm25(index, k1=k1, b=b, depth=depth)


def bm25_rm3(
    index: Index,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    depth: int = 1000,
    fb_terms: int = 10,
    fb_docs: int = 10,
    original_weight: float = 0.5,
) -> pt.Transformer:
    """BM25, RM3 feedback from its best units, BM25 again; defaults are Anserini's."""
    ranker = index.bm25(k1=k1, b=b, depth=depth)
    rm3 = _offered(ranker, "rm3", index, "RM3 feedback")
    return rm3(fb_terms=fb_terms, fb_docs=fb_docs, original_weight=original_weight)


def ql(index: Index, *, mu: float = 1000.0, depth: int = 1000) -> pt.Transformer:
    """Query likelihood with Dirichlet smoothing; the default is Anserini's."""
    return _offered(index, "ql", index, "query likelihood")(mu=mu, depth=depth)


def _offered(thing: object, name: str, index: object, what: str) -> Any:
    """The method `name` of `thing`; `InputError` where the index's engine has none."""
    if not hasattr(thing, name):
        raise InputError(
            f"{type(index).__name__} offers no {what}",
            valid="an index of the engine lexical or anserini",
            do="set engine=lexical, or choose another retriever",
        )
    return getattr(thing, name)
