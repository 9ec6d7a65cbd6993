"""Prices of tokens, sums of usage by role, and the forecast of a run's total.

Price tables are in `conf/llm/*.yaml`, each with its date and source, and with those of other dates.
An unknown cost or token count is never taken to be zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from statistics import stdev
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import ConfigDict, Field

from soundingline.toolkit.errors import InputError, check_number
from soundingline.toolkit.llm.messages import Usage
from soundingline.toolkit.trajectory import ROLES

_MILLION = 1_000_000
_RATES = ("input", "cached_input", "output", "cache_write", "cache_write_long")
# The highest published rate: Anthropic's for an hour. For five minutes, and at OpenAI for thirty, a
# write costs 1.25 times the input.
_HIGHEST_WRITE = 2.0


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens.

    Rates that are None, except `input` and `output`, are taken to be the highest that is published,
    so that a cost is never too low.

    Args:
        input: Tokens of the input. None: the price is unknown, and so is every cost.
        cached_input: Tokens read from a cache. None: as `input`.
        output: Tokens of the output. None: the price is unknown, and so is every cost.
        cache_write: Tokens written to a cache for the shorter of two lifetimes. None: twice
            `input`. A model that bills no writes has the rate of `input`.
        cache_write_long: Tokens written for the longer lifetime. None: as `cache_write`.
        long_context: The rates of all tokens of a request whose input has more than `above` tokens.
        dated: When the table was read.
        source: Where the table was read.
        lists: Tables of other dates by name, such as `2026-05`, each with some of the arguments
            above. Requests are billed by the table itself, never by one of these.

    Example:
        >>> Price(input=2.0, output=8.0).cost(Usage(input=1_000_000, output=500_000))
        6.0
    """

    input: float | None = None
    cached_input: float | None = None
    output: float | None = None
    cache_write: float | None = None
    cache_write_long: float | None = None
    long_context: Mapping[str, float] | None = None
    dated: str = ""
    source: str = ""
    lists: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _RATES:
            if (rate := getattr(self, name)) is not None:
                do = "give dollars for a million tokens, or null where the price is unknown"
                check_number(f"the price {name}", rate, do=do)
        if self.long_context is not None:
            names = set(self.long_context)
            if names - {"above", *_RATES} or not {"above", "input", "output"} <= names:
                raise InputError(
                    f"long_context has {', '.join(sorted(names)) or 'nothing'}",
                    valid=f"above, input and output, and any of {', '.join(_RATES)}",
                )
            self._long()  # raises for an impossible rate

    @classmethod
    def of_record(cls, table: Mapping[str, Any]) -> Price:
        """That of a manifest's configuration, whose keys for Hydra are left out."""
        return cls(**{name: value for name, value in table.items() if not name.startswith("_")})

    def listed(self, name: str) -> Price:
        """The table of that name in `lists`, or of the month of that name if `dated` is in it.

        Raises:
            InputError: if there is no such table, unless this one has no prices at all.
        """
        if table := self.lists.get(name):
            return Price(**{"dated": name, **table})
        if self.dated.startswith(name) or not self.known:
            return self
        dates = [*sorted(self.lists), *([self.dated] if self.dated else [])]
        raise InputError(
            f"there is no price list {name}",
            valid=", ".join(dates) or "none",
            do="name one of these, or evaluation.prices=null",
        )

    @property
    def known(self) -> bool:
        """Whether costs can be computed."""
        return self.input is not None and self.output is not None

    def cost(self, usage: Usage) -> float | None:
        """Dollars for one request; None if the price or the usage is unknown.

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
        highest_rate = max(_HIGHEST_WRITE * self.input, self.cache_write or 0.0)
        dollars = (
            fresh * self.input
            + cached * _rate(self.cached_input, self.input)
            + (written - written_long) * _rate(self.cache_write, highest_rate)
            + written_long * _rate(self.cache_write_long, highest_rate)
            + usage.output * self.output
        )
        return dollars / _MILLION

    def _long(self) -> Price:
        table = self.long_context or {}
        return Price(**{name: table.get(name) for name in _RATES})  # type: ignore[arg-type]


def _rate(rate: float | None, otherwise: float) -> float:
    return otherwise if rate is None else rate


UNKNOWN = Price()
# By role: the table of the recorded dollars, and the table to use in its place.
PriceTables = Mapping[str, tuple[Price, Price]]


# The roles whose requests answer a question. The others come before or after it.
ANSWERING = ("agent", "rewriter", "enrichment", "reranker", "navigator", "librarian")
# Those of agents themselves, and of nothing that works for them.
AGENTS = ("agent", "navigator")
_TOKENS = ("input_tokens", "cached_tokens", "reasoning_tokens", "output_tokens")


Count = Annotated[int, Field(ge=0, strict=True)]
Amount = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]


@dataclass(frozen=True)
class UsageTotals:
    """What requests used and cost. An attempt has totals too, with one call or one retry.

    Attributes:
        calls: Requests that were begun.
        failed: Requests that brought no reply.
        retries: Attempts beyond the first of each request.
        input_tokens: As the server counted them, like the other tokens; those of attempts that were
            repeated are included.
        seconds: From the concurrency slot to the end, with the waits between attempts.
        dollars: The known part of the cost.
        unreported: Replies without usage, whose tokens are in no sum.
        unpriced: Replies whose cost is unknown.
        replies_with_cached: Replies whose usage has a number of cached tokens. Some servers leave
            it out if it is zero, others always.
        replies_with_reasoning: The same of reasoning tokens.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    calls: Count = 0
    failed: Count = 0
    retries: Count = 0
    input_tokens: Count = 0
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0
    output_tokens: Count = 0
    seconds: Amount = 0.0
    dollars: Amount = 0.0
    unreported: Count = 0
    unpriced: Count = 0
    replies_with_cached: Count = 0
    replies_with_reasoning: Count = 0

    def __add__(self, other: UsageTotals) -> UsageTotals:
        return UsageTotals(*map(add, vars(self).values(), vars(other).values()))

    @property
    def cached_share(self) -> float | None:
        """The share of input tokens that were read from a prefix cache; None if no reply says
        it."""
        known = self.replies_with_cached and self.input_tokens
        return self.cached_tokens / self.input_tokens if known else None

    def flatten(self, prefix: str = "") -> dict[str, float]:
        """Numbers by name. `dollars` is left out if the cost of any reply is unknown, all tokens if
        any reply has no usage, and cached or reasoning tokens if no reply has such a number."""
        hidden = {"replies_with_cached", "replies_with_reasoning"}
        hidden |= {"dollars"} if self.unpriced else set()
        hidden |= set(_TOKENS) if self.unreported else set()
        hidden |= set() if self.replies_with_cached else {"cached_tokens"}
        hidden |= set() if self.replies_with_reasoning else {"reasoning_tokens"}
        return {
            f"{prefix}{name}": value for name, value in vars(self).items() if name not in hidden
        }

    def nonzero(self) -> dict[str, float]:
        """The sums other than zero by name, for a file."""
        return {name: value for name, value in vars(self).items() if value}


def of_attempt(usage: Usage | None, dollars: float | None, *, seconds: float) -> UsageTotals:
    """The totals of one attempt without the counts of calls. `usage` None: it brought no reply, and
    no server says what it cost."""
    if usage is None:
        return UsageTotals(seconds=seconds)
    return UsageTotals(
        input_tokens=usage.input or 0,
        cached_tokens=usage.cached or 0,
        reasoning_tokens=usage.reasoning or 0,
        output_tokens=usage.output or 0,
        seconds=seconds,
        dollars=dollars or 0.0,
        unreported=int(usage.input is None or usage.output is None),
        unpriced=int(dollars is None),
        replies_with_cached=int(usage.cached is not None),
        replies_with_reasoning=int(usage.reasoning is not None),
    )


def total(accounts: Iterable[UsageTotals]) -> UsageTotals:
    """The sum of totals."""
    return sum(accounts, UsageTotals())


def flatten(by_role: Mapping[str, UsageTotals]) -> dict[str, float]:
    """Usage by role as flat numbers: the sums of all roles, and `<role>_...` of each."""
    flat = total(by_role.values()).flatten() if by_role else {}
    for role in ROLES:
        if role in by_role:
            flat |= by_role[role].flatten(f"{role}_")
    return flat


def reprice(usage: Mapping[str, float], tables: PriceTables) -> dict[str, float]:
    """The usage of a question (`flatten`) with its dollars by other prices.

    The recorded dollars of a role are multiplied by what its tokens cost by the second table over
    what they cost by the first. This is exact but for requests with a long context and for tokens
    written to a cache, if the two tables have other ratios of these rates to the input's: a usage
    does not tell these tokens apart. Where no dollars are recorded, the second table prices the
    tokens. A role without a table keeps its dollars; dollars are left out where the second table or
    the number of tokens is unknown.

    Args:
        usage: numbers by name.
        tables: empty to change nothing.
    """
    changed = dict(usage)
    roles = [role for role in ROLES if f"{role}_calls" in usage] if tables else []
    for role in roles:
        if role not in tables:
            continue
        counts = {
            name: usage.get(f"{role}_{name}_tokens") for name in ("input", "cached", "output")
        }
        tokens = Usage(**{name: int(count) for name, count in counts.items() if count is not None})
        old, new = (replace(table, long_context=None).cost(tokens) for table in tables[role])
        recorded = changed.pop(f"{role}_dollars", None)
        if new is not None:
            changed[f"{role}_dollars"] = recorded * new / old if recorded and old else new
    known = [changed.get(f"{role}_dollars") for role in roles]
    if roles:
        changed.pop("dollars", None)
        if None not in known:
            changed["dollars"] = math.fsum(value for value in known if value is not None)
    return changed


class Forecast(NamedTuple):
    """The `total` of a quantity over all questions, with the bounds of its prediction interval;
    `low` is never below what the sampled questions used already. The bounds are None for a single
    question, which has no spread."""

    total: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float], questions: int) -> Forecast:
    """The total over `questions` from the `values` of the first of them (dollars, tokens, seconds).

    The textbook prediction interval of a sum at 95 %: with mean m and deviation s of k values, the
    n - k others take (n - k) m, give or take t s sqrt((n - k)^2 / k + (n - k)), t from Student's
    distribution with k - 1 degrees of freedom. It takes questions as exchangeable and their costs
    as roughly normal; costs have long tails, so that few values make it too narrow.
    `InputError` without values, or with more values than questions.
    """
    sampled = len(values)
    if not 1 <= sampled <= questions:
        raise InputError(
            f"{sampled} values are given for {questions} questions",
            valid="at least one value, and no more values than questions",
        )
    spent = math.fsum(values)
    mean, rest = spent / sampled, questions - sampled
    total = spent + rest * mean
    if sampled == 1:
        return Forecast(total, None, None)
    from scipy.special import stdtrit  # here, because a command's start would wait for it

    quantile = float(stdtrit(sampled - 1, 0.975))
    margin = quantile * stdev(values) * math.sqrt(rest**2 / sampled + rest)
    return Forecast(total, max(spent, total - margin), total + margin)


class CostForecast(NamedTuple):
    """What all questions or documents will take: the `amounts` that are known, by name (`dollars`,
    `input_tokens`, `output_tokens`), and `seconds` of the clock."""

    amounts: Mapping[str, Forecast]
    seconds: float

    @property
    def dollars(self) -> float | None:
        """The expected dollars; None if they are unknown."""
        return self.amounts["dollars"].total if "dollars" in self.amounts else None

    def __str__(self) -> str:
        """`$1.20 ($1.00 to $1.40); 300 input tokens`, without amounts that are 0."""
        parts = []
        for name, (total, low, high) in self.amounts.items():
            sign, form = ("$", ",.2f") if name == "dollars" else ("", ",.0f")
            spread = "" if low is None else f" ({sign}{low:{form}} to {sign}{high:{form}})"
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
        for name in ("dollars", "input_tokens", "output_tokens")
        if paid and all(name in cost for cost in paid)
    }
    return CostForecast(amounts, seconds)
