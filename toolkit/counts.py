"""Counts that several threads add to."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Named counts, 0 at first: `counts.add(hits=2)`, read as a dict by `counts()`. Thread-safe."""

    def __init__(self, *names: str) -> None:
        self._lock = threading.Lock()
        self._counts = Counter(dict.fromkeys(names, 0))

    def add(self, **numbers: int) -> None:
        """Add to several counts at once: no reader sees some of them without the others."""
        with self._lock:
            for name, number in numbers.items():
                self._counts[name] += number

    def raise_to(self, name: str, number: int) -> None:
        """Make the count `number` where it is below."""
        with self._lock:
            self._counts[name] = max(self._counts[name], number)

    def __call__(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
