"""What a stage and its bound copies share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Part = TypeVar("Part")


class MadeOnce:
    """Values that a stage and all its bound copies share, each made when it is first asked for."""

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
