"""The nouns that every experiment shares: benchmarks, corpora, the search tool, runs, evaluation.

Nothing here imports a sibling package, PyTerrier or Hydra. `soundingline.toolkit.data` holds
every row and protocol; a room (`benchmarks`, `corpus`, `search`, `runs`, `evaluation`, `report`)
holds what works on them and imports only rooms below it in that order.
"""

from __future__ import annotations

from soundingline.toolkit.optional import lazy_names

__all__ = [
    "benchmarks",
    "corpus",
    "data",
    "errors",
    "evaluation",
    "exchange",
    "llm",
    "report",
    "runs",
    "search",
    "trajectory",
]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, ""))
