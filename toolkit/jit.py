"""How functions are compiled by numba: without the interpreter lock, kept on disk between runs.
And on how many cores threads can run them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def cores() -> int:
    """Cores that this process may use, where the system tells; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiled(function: F) -> F:
    """Compile at the first call, to run outside the interpreter lock.

    The machine code is kept beside the source, else in the user's cache folder. Where neither can
    be written (read-only checkout and home), every process compiles for itself.
    """
    return _compiled(function)


def compiled_for_sums(function: F) -> F:
    """The same, with float sums in an order that vector instructions can add in."""
    return _compiled(function, fastmath={"reassoc", "contract"})


def _compiled(function: F, **options: Any) -> F:
    try:
        return cast(F, numba.njit(nogil=True, cache=True, **options)(function))
    except RuntimeError:
        return cast(F, numba.njit(nogil=True, **options)(function))
