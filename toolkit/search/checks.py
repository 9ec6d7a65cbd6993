"""Checks of constructor arguments."""

from __future__ import annotations

from collections.abc import Collection

from toolkit.errors import InputError


def whole_number(name: str, value: int, *, low: int, high: int | None = None) -> int:
    """`value`, if it is an integer from `low` to `high` (None: no upper end)."""
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < low or (high is not None and value > high):
        upper = "up" if high is None else f"to {high}"
        raise InputError(
            f"{name}={value!r} is not possible",
            valid=f"integers from {low} {upper}",
            do=f"set another {name} for the search tool",
        )
    return value


def one_of(name: str, value: str, valid: Collection[str]) -> str:
    """`value`, if it is one of `valid`."""
    if value not in valid:
        raise InputError(
            f"{name}={value!r} is not possible",
            valid=", ".join(valid),
            do=f"set another {name} for the search tool",
        )
    return value
