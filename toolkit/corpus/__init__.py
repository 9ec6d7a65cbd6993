"""A corpus as raw text by id, and as the units that are indexed. Ranking is elsewhere."""

from soundingline.toolkit.corpus.segmentation import DocumentHead, Passages, WholeDocument
from soundingline.toolkit.corpus.store import SqliteStore

__all__ = ["DocumentHead", "Passages", "SqliteStore", "WholeDocument"]
