"""The lexical engine: analyzer, inverted index, retrievers, feedback. Tuning is elsewhere.

`LexicalIndex.build(units, path)` writes an index and `LexicalIndex.open(path)` maps it;
`index.bm25(k1, b, depth)` and `index.ql(mu, depth)` are PyTerrier transformers over it, and either
one's `.rm3()` is the same with feedback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.lexical.analyzer import Analyzer, make_analyzer
    from pipelines.lexical.index import LexicalIndex
    from pipelines.lexical.retriever import BM25, QueryLikelihood
    from pipelines.lexical.rm3 import RM3

__all__ = ["BM25", "RM3", "Analyzer", "LexicalIndex", "QueryLikelihood", "make_analyzer"]

_HOMES = {
    "BM25": "retriever",
    "QueryLikelihood": "retriever",
    "RM3": "rm3",
    "LexicalIndex": "index",
    "Analyzer": "analyzer",
    "make_analyzer": "analyzer",
}


def __getattr__(name: str) -> Any:
    # Lazy, because a process that only analyses text must not wait for PyTerrier and numba.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
