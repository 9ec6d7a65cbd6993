"""The lexical engine: analyzer, inverted index, retrievers, feedback. Tuning is elsewhere.

`LexicalIndex.build(units, path)` writes an index and `LexicalIndex.open(path)` maps it;
`index.bm25(k1, b, depth)` and `index.ql(mu, depth)` are PyTerrier transformers over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soundingline.pipelines.lexical.analyzers import Analyzer, make_analyzer
    from soundingline.pipelines.lexical.index import LexicalIndex

__all__ = ["Analyzer", "LexicalIndex", "make_analyzer"]

_HOMES = {
    "LexicalIndex": "index",
    "Analyzer": "analyzers",
    "make_analyzer": "analyzers",
}


def __getattr__(name: str) -> Any:
    # Lazy, because a process that only analyses text must not wait for PyTerrier and numba.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
