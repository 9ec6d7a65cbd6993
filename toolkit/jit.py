"""How functions are compiled by numba: without the interpreter lock, kept on disk between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


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
