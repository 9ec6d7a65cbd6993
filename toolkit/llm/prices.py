"""What tokens cost. Tables live in `conf/llm/*.yaml`, each with its date and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from toolkit.errors import InputError
from toolkit.llm.protocol import Usage

_MILLION = 1_000_000
_RATES = ("input", "cached_input", "output", "cache_write", "cache_write_long")
# The dearest published one: Anthropic's for an hour. For five minutes, and at OpenAI for thirty, a
# write costs 1.25 times the input.
_DEAREST_WRITE = 2.0


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens. None for `input` or `output`: the price is not known, and
    neither is any cost.

    Rates that are None are taken to be the dearest that is published, so that a cost is never too
    little: `cached_input` (read from a cache) what `input` costs; `cache_write` (written to a
    cache for the shorter of two lifetimes) and `cache_write_long` (for the longer one) twice the
    `input`. A model that bills no writes has `cache_write` equal to `input`.

    `long_context` (`above` tokens of input, and its own rates) is what the whole request costs once
    its input is longer than that. `dated` and `source` tell when and where the table was read.
    """

    input: float | None = None
    cached_input: float | None = None
    output: float | None = None
    cache_write: float | None = None
    cache_write_long: float | None = None
    long_context: Mapping[str, float] | None = None
    dated: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name in _RATES:
            rate = getattr(self, name)
            if rate is not None and (isinstance(rate, bool) or not rate >= 0):
                raise InputError(
                    f"the price {name} is {rate!r}",
                    valid="dollars for a million tokens, 0 or more, or null where it is unknown",
                )
        if self.long_context is not None:
            self._check_long_context(self.long_context)

    @property
    def known(self) -> bool:
        """Whether costs can be computed."""
        return self.input is not None and self.output is not None

    def cost(self, usage: Usage) -> float | None:
        """Dollars for one request; None where the price or the usage is unknown.

        Reasoning is part of the output and is billed as such, as all three APIs do.
        """
        if self.long_context and (usage.input or 0) > self.long_context["above"]:
            return self._long().cost(usage)
        if self.input is None or self.output is None:
            return None
        if usage.input is None or usage.output is None:
            return None
        cached, written = usage.cached or 0, usage.cache_write or 0
        written_long = min(written, usage.cache_write_long or 0)
        fresh = max(0, usage.input - cached - written)
        dearest = max(_DEAREST_WRITE * self.input, self.cache_write or 0.0)
        dollars = (
            fresh * self.input
            + cached * _rate(self.cached_input, self.input)
            + (written - written_long) * _rate(self.cache_write, dearest)
            + written_long * _rate(self.cache_write_long, dearest)
            + usage.output * self.output
        )
        return dollars / _MILLION

    def _long(self) -> Price:
        table = self.long_context or {}
        rates: dict[str, Any] = {name: table.get(name) for name in _RATES}
        return Price(**rates)

    def _check_long_context(self, table: Mapping[str, float]) -> None:
        unknown = set(table) - {"above", *_RATES}
        if unknown or not {"above", "input", "output"} <= set(table):
            raise InputError(
                f"long_context has {', '.join(sorted(table)) or 'nothing'}",
                valid=f"above, input and output, and any of {', '.join(_RATES)}",
            )
        self._long()

    def record(self) -> dict[str, object]:
        """The table for a manifest."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _rate(rate: float | None, otherwise: float) -> float:
    return otherwise if rate is None else rate


UNKNOWN = Price()
