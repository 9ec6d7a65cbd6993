"""Counts and values that several threads and the bound copies of a stage share.

In a pickled copy counts begin at 0 and values are made again.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

Part = TypeVar("Part")


class Counts:
    """Named counts, 0 at first: `counts.add(hits=2)`, read as a dict by `counts()`. Thread-safe."""

    def __init__(self, *names: str) -> None:
        self._lock = threading.Lock()
        self._counts = Counter(dict.fromkeys(names, 0))

    def __reduce__(self) -> Any:
        return Counts, tuple(self._counts)

    def add(self, **numbers: int) -> None:
        """Add to several counts in one step, so that no reader sees a part of it."""
        with self._lock:
            for name, number in numbers.items():
                self._counts[name] += number

    def raise_to(self, name: str, number: int) -> None:
        """Raise a count to `number` if it is lower."""
        with self._lock:
            self._counts[name] = max(self._counts[name], number)

    def __call__(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class MadeOnce:
    """Values that a stage and all its bound copies share. Each is made when it is first read.
    Thread-safe; making one value may read another."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[Any, Any] = {}

    def __reduce__(self) -> Any:
        return MadeOnce, ()

    def get(self, key: Any, make: Callable[[], Part]) -> Part:
        """The value of `key`, which `make()` makes if there is none yet."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            value: Part = self._values[key]
            return value

    def values(self) -> list[Any]:
        """Those that have been made."""
        with self._lock:
            return list(self._values.values())


class Newest:
    """The values of the newest keys, `most` of them. Thread-safe; a copy in another process is
    empty."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[Any, Any] = OrderedDict()

    def __reduce__(self) -> Any:
        return Newest, (self._most,)

    def get(self, keys: Sequence[Any], make: Callable[[list[Any]], Iterable[Any]]) -> list[Any]:
        """The value of each key. `make` gives those of the keys that are missing, each once."""
        with self._lock:
            known = {key: self._values[key] for key in keys if key in self._values}
        if missing := [key for key in dict.fromkeys(keys) if key not in known]:
            known |= zip(missing, make(missing), strict=True)
        with self._lock:
            for key in keys:
                self._values[key] = known[key]
                self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return [known[key] for key in keys]


def shared_property(make: Callable[[Any], Part]) -> Part:
    """A property that is made when it is first read, once for a stage and all its bound copies: a
    loaded model, for example. The stage keeps it in `self._shared`, a `MadeOnce`."""

    @wraps(make)
    def read(stage: Any) -> Part:
        return stage._shared.get(make, lambda: make(stage))  # type: ignore[no-any-return]

    return property(read)  # type: ignore[return-value]
