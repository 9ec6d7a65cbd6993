"""Whole rounds of a question that is under way, on disk, so that none is done twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.journal import Journal, read_journal


class RoundsFile:
    """JSON lines, one a round, in a sealed run sealed. Written by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """The rounds in their order; none where the file is damaged, which is removed then: they
        can be done again."""
        try:
            return read_journal(self.path)
        except ValueError:
            self.path.unlink()
            return []

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a round; it is on disk when this returns."""
        journal = Journal(self.path)
        try:
            journal.append(record)
        finally:
            journal.close()
