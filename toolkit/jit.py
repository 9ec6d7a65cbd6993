"""Compilation of functions by numba, without the interpreter lock and cached on disk, and the
number of cores on which threads can run them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def cores() -> int:
    """The cores that this process may use, or those of the machine if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiled_for_sums(function: F) -> F:
    """As `compiled`, with float sums in an order that vector instructions can add in."""
    return compiled(function, fastmath={"reassoc", "contract"})


def compiled(function: F, **options: Any) -> F:
    """Compile at the first call, to run outside the interpreter lock. The machine code is stored
    next to the source or in the user's cache folder; if neither can be written, every process
    compiles for itself."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True, **options)(function))
    except RuntimeError:
        return cast(F, numba.njit(nogil=True, **options)(function))
