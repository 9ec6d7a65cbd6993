"""Guards around native code: nothing printed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class _Silent:
    """In place of the library's logger, whose bars cannot be turned off."""

    def info(self, message: str) -> None: ...

    def pbar(self, items: Iterable[Any], **settings: Any) -> Iterable[Any]:
        return items


@contextmanager
def quiet_logger(pisa: Any) -> Iterator[None]:
    """`pyterrier_pisa` indexes without its own lines and bars; other output stays."""
    logger, pisa.indexers._logger = pisa.indexers._logger, _Silent()
    try:
        yield
    finally:
        pisa.indexers._logger = logger


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing on standard output and error, what C++ prints included."""
    originals = os.dup(1), os.dup(2)
    silence = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        yield
    finally:
        os.dup2(originals[0], 1)
        os.dup2(originals[1], 2)
        for handle in (*originals, silence):
            os.close(handle)
