"""Engines behind one face: `build(units, path)`, `open(path)`; what they open ranks.

An engine is a frozen set of build settings with a `name` and a `fingerprint`; an opened index has
`.bm25(k1, b, depth)`, a PyTerrier transformer, and `.document_frequency(terms)`.
"""

from pipelines.engines.base import Engine, word_frequency
from pipelines.engines.lexical import LexicalEngine

__all__ = ["Engine", "LexicalEngine", "word_frequency"]
