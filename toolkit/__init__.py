"""The nouns that every experiment shares: benchmarks, corpora, the search tool, runs, evaluation.

Nothing here imports a sibling package, PyTerrier or Hydra. `soundingline.toolkit.data` holds
every row and protocol; a room (`benchmarks`, `corpus`, `search`, `runs`, `evaluation`, `report`)
holds what works on them and imports only rooms below it in that order.
"""
