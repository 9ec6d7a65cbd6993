"""The lexical engine: analyzer, inverted index, BM25. Evaluation and tuning are elsewhere.

`LexicalIndex.build(units, path)` writes an index, `LexicalIndex.open(path)` maps it, and
`index.bm25(k1, b, depth)` is a PyTerrier transformer over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.lexical.analyzer import Analyzer, make_analyzer
    from pipelines.lexical.bm25 import BM25
    from pipelines.lexical.index import LexicalIndex

__all__ = ["BM25", "Analyzer", "LexicalIndex", "make_analyzer"]

_HOMES = {
    "BM25": "bm25",
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
