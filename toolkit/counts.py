"""What several threads share: counts that they add to, and values that are made once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

Part = TypeVar("Part")


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


class MadeOnce:
    """Values that a stage and all its bound copies share, each made when it is first asked for.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Any, Any] = {}

    def get(self, key: Any, make: Callable[[], Part]) -> Part:
        """The value of `key`; `make()` where there is none yet."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            value: Part = self._values[key]
            return value

    def values(self) -> list[Any]:
        """Those that have been made."""
        with self._lock:
            return list(self._values.values())
