"""What questions or documents will take: dollars, tokens and hours, by those of some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from soundingline.toolkit.llm.prices import Forecast, estimate

_AMOUNTS = {"dollars": "$", "input_tokens": "", "output_tokens": ""}


class CostForecast(NamedTuple):
    """What all questions or documents will take: the `amounts` that are known, by name (`dollars`,
    `input_tokens`, `output_tokens`), and `seconds` of the clock."""

    amounts: Mapping[str, Forecast]
    seconds: float

    @property
    def dollars(self) -> float | None:
        """The expected dollars; None if they are unknown."""
        amount = self.amounts.get("dollars")
        return None if amount is None else amount.total

    def __str__(self) -> str:
        """`$1.20 ($1.00 to $1.40); 300 input tokens`, without amounts that are 0."""
        parts = []
        for name, (_, _, total, low, high) in self.amounts.items():
            sign = _AMOUNTS[name]
            form = ",.2f" if sign else ",.0f"
            spread = ""
            if low is not None and high is not None:
                spread = f" ({sign}{low:{form}} to {sign}{high:{form}})"
            unit = "" if sign else f" {name.replace('_', ' ')}"
            parts += [f"{sign}{total:{form}}{spread}{unit}"] if total else []
        return "; ".join(parts)

    @property
    def duration(self) -> str:
        """`12.5 minutes`, or `3.0 hours`."""
        long = self.seconds >= 5400
        return f"{self.seconds / 3600:.1f} hours" if long else f"{self.seconds / 60:.1f} minutes"


def forecast(costs: Sequence[Mapping[str, float]], number: int, seconds: float) -> CostForecast:
    """What a `number` of questions or documents will take in these `seconds`, judged by the `costs`
    of the first of them, or of a typical one.

    What a question that has paid something does not name is unknown for all. One that has paid
    nothing has no costs, and counts with 0.
    """
    paid = [cost for cost in costs if cost]
    amounts = {
        name: estimate([cost.get(name, 0.0) for cost in costs], number)
        for name in _AMOUNTS
        if paid and all(name in cost for cost in paid)
    }
    return CostForecast(amounts, seconds)
