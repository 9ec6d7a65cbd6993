"""The grid of settings that are tried: every k1 with every b, and for an enriched query every
weight of its expansion and every limit of its filter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import product

from toolkit.errors import InputError
from toolkit.evaluation.tuning.ranks import GridPoint

NAMES = ("k1", "b", "weight", "tau")
DEFAULT_CELL = (0.9, 0.4)
DEFAULT_ENRICHMENT = (0.5, 0.05)  # weight and tau, as SIRA has them for every data set
_MOST = 100_000
Axis = str | float | Sequence[float]


class Grid:
    """All (k1, b) of two axes, `b` running faster; where there are `weight` and `tau`, all
    (k1, b, weight, tau), in the order of tau, weight, k1, b.

    An axis is a number, a list of them, or `start:stop:step` with both ends (`0:32:1` is 33
    values); steps are decimal, so that `0:1:0.1` holds exactly 0.3. k1 and weight are 0 or more, b
    in 0..1, tau above 0 and at most 1. A weight or tau of None is the enrichment's own (see
    `enriched`). `name` is for tables. `InputError` for an empty axis, a step that is not above 0,
    and values out of range.
    """

    def __init__(
        self,
        k1: Axis,
        b: Axis,
        name: str = "grid",
        weight: Axis | None = None,
        tau: Axis | None = None,
    ) -> None:
        self.name = name
        self.k1 = _values("k1", k1, math.inf)
        self.b = _values("b", b, 1.0)
        self.weight = () if weight is None else _values("weight", weight, math.inf)
        self.tau = () if tau is None else _values("tau", tau, 1.0)
        if 0.0 in self.tau:
            raise InputError("the grid has tau=0", valid="above 0, at most 1 (no limit)")
        if len(self) > _MOST:
            raise InputError(f"the grid has {len(self):,} cells", valid=f"at most {_MOST:,}")

    def enriched(self, weight: float, tau: float) -> Grid:
        """The grid of an enrichment, whose own `weight` and `tau` are the only ones where the grid
        has none."""
        return Grid(self.k1, self.b, self.name, self.weight or [weight], self.tau or [tau])

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers of a cell are."""
        return NAMES if self.weight and self.tau else NAMES[:2]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """All (k1, b)."""
        return list(product(self.k1, self.b))

    @property
    def cells(self) -> list[GridPoint]:
        if not (self.weight and self.tau):
            return list(self.pairs)
        axes = product(self.tau, self.weight, self.k1, self.b)
        return [(k1, b, weight, tau) for tau, weight, k1, b in axes]

    @property
    def planes(self) -> list[GridPoint]:
        """(weight, tau) of each plane of (k1, b), in the order of the cells; empty ones without."""
        return [(weight, tau) for tau, weight in product(self.tau, self.weight)] or [()]

    def __len__(self) -> int:
        return len(self.k1) * len(self.b) * max(1, len(self.weight)) * max(1, len(self.tau))

    def __repr__(self) -> str:
        axes = {name: len(getattr(self, name)) for name in NAMES if getattr(self, name)}
        shown = " x ".join(f"{count} {name}" for name, count in axes.items())
        return f"Grid({self.name!r}, {shown})"


def named(cell: GridPoint) -> dict[str, float]:
    """A cell's numbers by their names."""
    return dict(zip(NAMES, cell, strict=False))


def distance(cell: GridPoint, other: GridPoint = (*DEFAULT_CELL, *DEFAULT_ENRICHMENT)) -> float:
    """How far two settings are apart: the Euclidean distance of (k1 / (1 + k1), b), and of
    (weight / (1 + weight), tau) where both have these.

    k1 / (1 + k1) is the share of its weight that a term of frequency 1 loses in a document of
    average length. It lies in 0..1 as b does, and a step of k1 counts less the higher k1 is.
    """
    return math.dist(_scaled(cell)[: len(other)], _scaled(other)[: len(cell)])


def _scaled(cell: GridPoint) -> list[float]:
    return [
        value / (1 + value) if name in ("k1", "weight") else value
        for name, value in named(cell).items()
    ]


def _values(name: str, axis: Axis, largest: float) -> tuple[float, ...]:
    if isinstance(axis, str):
        values = _range(name, axis)
    else:
        listed = [axis] if isinstance(axis, (int, float)) else axis
        values = [_number(name, value) for value in listed]
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
