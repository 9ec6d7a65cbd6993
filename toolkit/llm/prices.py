"""What tokens cost. Tables live in `conf/llm/*.yaml`, each with its date and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from toolkit.errors import InputError
from toolkit.llm.protocol import Usage

_MILLION = 1_000_000
_RATES = ("input", "cached_input", "output", "cache_write")


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens. None for `input` or `output`: the price is not known, and
    neither is any cost. Without `cached_input` or `cache_write` such tokens cost what `input` does,
    which is never too little.

    `long_context` (`above` tokens of input, and its own rates) is what the whole request costs once
    its input is longer than that. `dated` and `source` tell when and where the table was read.
    """

    input: float | None = None
    cached_input: float | None = None
    output: float | None = None
    cache_write: float | None = None
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
        fresh = max(0, usage.input - cached - written)
        dollars = (
            fresh * self.input
            + cached * (self.input if self.cached_input is None else self.cached_input)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output * self.output
        )
        return dollars / _MILLION

    def _long(self) -> Price:
        table = self.long_context or {}
        return Price(
            input=table.get("input"),
            cached_input=table.get("cached_input"),
            output=table.get("output"),
            cache_write=table.get("cache_write"),
        )

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
        return {each.name: getattr(self, each.name) for each in fields(self)}


UNKNOWN = Price()
