"""Engines behind one face: `build(units, path)`, `open(path)`; what they open ranks.

An engine is a frozen set of build settings with a `name` and a `fingerprint`; an opened index has
`.bm25(k1, b, depth)`, a PyTerrier transformer, and `.document_frequency(terms)`.
"""

from typing import TYPE_CHECKING, Any

from pipelines.engines.base import Engine, word_frequency

if TYPE_CHECKING:
    from pipelines.engines.lexical import LexicalEngine

__all__ = ["Engine", "LexicalEngine", "word_frequency"]


def __getattr__(name: str) -> Any:
    # At its first use, because it imports numba.
    if name == "LexicalEngine":
        from pipelines.engines.lexical import LexicalEngine

        return LexicalEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
