"""A corpus as raw text by id, and as the units that are indexed. Ranking is elsewhere."""

from toolkit.corpus.segmentation import DocumentHead, Passages, WholeDocument
from toolkit.corpus.store import SqliteStore, build_units

__all__ = ["DocumentHead", "Passages", "SqliteStore", "WholeDocument", "build_units"]
