"""What an agent's model had taken up to a point of its trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.contracts import Trajectory
from toolkit.errors import InputError
from toolkit.llm.prices import Price
from toolkit.llm.protocol import Usage

_COUNTS = ("input", "cached", "output")


class Spending:
    """Sums over the replies so far, in the order in which they are told with `replied`.

    A trajectory records tokens with each reply, and money for the question alone. The money of the
    question (`agent_dollars`) is therefore shared out among the replies by what `price` makes of
    their tokens, which leaves cache writes and failed requests out of the shares and not out of the
    sum. Without a price or a record there is no money so far.
    """

    def __init__(self, trajectory: Trajectory, price: Price) -> None:
        self._price = price
        self._tokens = dict.fromkeys(_COUNTS, 0)
        self._counted = False
        self._cost = 0.0
        replies = [m for m in trajectory.messages if m.get("role") == "assistant"]
        costs = [price.cost(_usage(message)) for message in replies if message.get("usage")]
        total = sum(cost for cost in costs if cost is not None)
        dollars = trajectory.usage.get("agent_dollars")
        known = None not in costs and total > 0 and dollars is not None
        self._scale = dollars / total if known and dollars is not None else None

    def replied(self, message: Mapping[str, Any]) -> None:
        """One reply of the model."""
        usage = _usage(message)
        for name in _COUNTS:
            count = getattr(usage, name)
            self._tokens[name] += count or 0
            self._counted = self._counted or count is not None
        self._cost += self._price.cost(usage) or 0.0

    @property
    def so_far(self) -> dict[str, Any]:
        """`model`: input, cached and output tokens, where any reply told them; `dollars`, where
        they are known."""
        tokens = {"model": [self._tokens[name] for name in _COUNTS]} if self._counted else {}
        money = {} if self._scale is None else {"dollars": self._cost * self._scale}
        return {**tokens, **money}


def _usage(message: Mapping[str, Any]) -> Usage:
    counts = message.get("usage")
    counts = counts if isinstance(counts, Mapping) else {}
    recorded = {name: counts.get(name) for name in _COUNTS}
    return Usage(**{name: value for name, value in recorded.items() if isinstance(value, int)})


def recorded_price(manifest: Mapping[str, Any]) -> Price:
    """The price of the agent's model in a run's manifest; an unknown one where it holds none that
    can be read."""
    table: Any = manifest
    for name in ("config", "llm", "price"):
        table = table.get(name) if isinstance(table, Mapping) else None
    try:
        return Price(**table) if isinstance(table, Mapping) else Price()
    except (TypeError, ValueError, InputError):
        return Price()
