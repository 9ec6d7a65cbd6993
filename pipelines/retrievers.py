"""Retriever factories: an opened index in, a PyTerrier transformer out.

Plain arguments, one function a kind of retriever; a Hydra option names one of them as a partial.
"""

from __future__ import annotations

import pyterrier as pt

from pipelines.engines.base import Index


def bm25(index: Index, *, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> pt.Transformer:
    """BM25 over any engine's index; defaults are Anserini's.

    `depth` counts retrieved units. With `unit=maxp` these are passages, so that the aggregated
    ranking holds at most `depth` documents, as in the Max-P of the text-ranking study.
    """
    return index.bm25(k1=k1, b=b, depth=depth)
