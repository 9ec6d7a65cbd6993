"""Checks of numbers: a setting out of range is one clear line, whoever takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TypeGuard

from toolkit.errors import InputError


def is_number(value: object) -> TypeGuard[float]:
    """Whether a plain value (of JSON or YAML) is a finite number; `True` is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)


def check_integer(
    name: str, value: object, *, least: int = 1, most: int | None = None, do: str = ""
) -> None:
    """`InputError` unless `value` is a whole number from `least` to `most`, both included.

    NumPy's integers count; `True` and `2.0` do not.
    """
    integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not (integer and least <= value and (most is None or value <= most)):  # type: ignore[operator]
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise InputError(f"{name}={value!r}", valid=f"a whole number, {bounds}", do=do)


def check_number(
    name: str,
    value: object,
    *,
    least: float = 0,
    most: float = math.inf,
    above: bool = False,
    do: str = "",
) -> None:
    """`InputError` unless `value` is a finite number from `least` to `most`, both included; with
    `above`, it must be greater than `least`. NumPy's numbers count; `True` does not."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    inside = real and _is_finite(value) and least <= value <= most  # type: ignore[arg-type,operator]
    if not inside or (above and value == least):
        lower = f"above {least}" if above else f"{least} or more"
        upper = "finite" if most == math.inf else f"at most {most}"
        raise InputError(f"{name}={value!r}", valid=f"{lower}, {upper}", do=do)


def check_weights(weights: Mapping[str, float]) -> None:
    """`InputError` unless the weight of each term is 0 or more, and finite."""
    for term, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise InputError(f"weight {weight} of term '{term}'", valid="0 or more, finite")


def _is_finite(value: Real | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
