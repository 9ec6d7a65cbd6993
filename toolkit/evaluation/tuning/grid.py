"""The grid of settings that are tried: every k1 with every b."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import product

from toolkit.errors import InputError

DEFAULT_CELL = (0.9, 0.4)
_MOST = 100_000
Axis = str | Sequence[float]


class Grid:
    """All (k1, b) of two axes, `b` running faster.

    An axis is a list of numbers, or `start:stop:step` with both ends (`0:32:1` is 33 values); steps
    are decimal, so that `0:1:0.1` holds exactly 0.3. k1 is 0 or more, b in 0..1. `name` is for
    tables. `InputError` for an empty axis, a step that is not above 0, and values out of range.
    """

    def __init__(self, k1: Axis, b: Axis, name: str = "grid") -> None:
        self.name = name
        self.k1 = _values("k1", k1, math.inf)
        self.b = _values("b", b, 1.0)
        if len(self) > _MOST:
            raise InputError(f"the grid has {len(self):,} cells", valid=f"at most {_MOST:,}")

    @property
    def cells(self) -> list[tuple[float, float]]:
        return list(product(self.k1, self.b))

    def __len__(self) -> int:
        return len(self.k1) * len(self.b)

    def __repr__(self) -> str:
        return f"Grid({self.name!r}, {len(self.k1)} k1 x {len(self.b)} b)"


def distance(cell: tuple[float, float], other: tuple[float, float] = DEFAULT_CELL) -> float:
    """How far two settings are apart: the Euclidean distance of (k1 / (1 + k1), b).

    k1 / (1 + k1) is the share of its weight that a term of frequency 1 loses in a document of
    average length. It lies in 0..1 as b does, and a step of k1 counts less the higher k1 is.
    """
    return math.hypot(cell[0] / (1 + cell[0]) - other[0] / (1 + other[0]), cell[1] - other[1])


def _values(name: str, axis: Axis, largest: float) -> tuple[float, ...]:
    values = _range(name, axis) if isinstance(axis, str) else [_number(name, x) for x in axis]
    if not values:
        raise InputError(f"the grid's {name} is empty", valid="one value or more")
    for value in values:
        if not 0 <= value <= largest or math.isinf(value):
            valid = "0 or more" if math.isinf(largest) else f"0 to {largest:g}"
            raise InputError(f"the grid has {name}={value:g}", valid=valid)
    return tuple(sorted(set(values)))


def _range(name: str, text: str) -> list[float]:
    try:
        start, stop, step = map(Decimal, text.split(":"))
        valid = all(part.is_finite() for part in (start, stop, step))
    except (ValueError, InvalidOperation):
        valid = False
    if not valid:
        raise InputError(
            f"the grid's {name} is {text!r}", valid="start:stop:step such as 0:32:1, or [0.9,1.2]"
        )
    if step <= 0:
        raise InputError(f"the grid's {name} has step {step}", valid="a step above 0")
    count = int((stop - start) / step) + 1 if stop >= start else 0
    if count > _MOST:
        raise InputError(f"the grid's {name} has {count:,} values", valid=f"at most {_MOST:,}")
    return [float(start + step * number) for number in range(count)]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"the grid's {name} holds {value!r}", valid="numbers")
    return float(value)
