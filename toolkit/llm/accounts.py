"""Sums of what requests took: calls, tokens, seconds, money. Unknown is never zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from toolkit.llm.protocol import Usage

ROLES = ("agent", "rewriter", "judge", "enrichment")


@dataclass(frozen=True)
class Account:
    """`calls` that were begun, of which `failed` brought no reply; `retries` beyond their first
    attempts; tokens as the server counted them; `seconds` of waiting; `dollars`.

    `unmetered` counts replies without usage (their tokens are in no sum), `unpriced` replies whose
    money is not known.
    """

    calls: int = 0
    failed: int = 0
    retries: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    dollars: float = 0.0
    unmetered: int = 0
    unpriced: int = 0

    def __add__(self, other: Account) -> Account:
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)
        }
        return Account(**sums)

    @property
    def cached_share(self) -> float | None:
        """Share of input tokens that came from a prefix cache; None without input."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None

    def flat(self, prefix: str = "") -> dict[str, float]:
        """Numbers by name. `dollars` is left out where any reply's money is unknown, and the
        tokens where any reply's usage is."""
        values = {f"{prefix}{each.name}": getattr(self, each.name) for each in fields(self)}
        hidden = {f"{prefix}dollars"} if self.unpriced else set()
        if self.unmetered:
            hidden |= {name for name in values if name.endswith("_tokens")}
        return {name: value for name, value in values.items() if name not in hidden}


def of_reply(usage: Usage, dollars: float | None, seconds: float, attempts: int) -> Account:
    """The account of one request that brought a reply."""
    return Account(
        calls=1,
        retries=attempts - 1,
        input_tokens=usage.input or 0,
        cached_tokens=usage.cached or 0,
        reasoning_tokens=usage.reasoning or 0,
        output_tokens=usage.output or 0,
        seconds=seconds,
        dollars=dollars or 0.0,
        unmetered=int(usage.input is None or usage.output is None),
        unpriced=int(dollars is None),
    )


def of_failure(seconds: float, attempts: int) -> Account:
    """The account of one request without a reply. What it cost, if anything, no server tells."""
    return Account(calls=1, failed=1, retries=attempts - 1, seconds=seconds)


def failed(account: Account) -> Account:
    """A reply's account as that of a failed request whose reply was paid for."""
    return replace(account, failed=1)


def total(accounts: Iterable[Account]) -> Account:
    """The sum of accounts."""
    result = Account()
    for account in accounts:
        result = result + account
    return result


def flat(by_role: Mapping[str, Account]) -> dict[str, float]:
    """A question's or run's usage as flat numbers: the totals, and `<role>_...` of each role."""
    totals = total(by_role.values()).flat() if by_role else {}
    parts = (by_role[role].flat(f"{role}_") for role in ROLES if role in by_role)
    return {**totals, **{name: value for part in parts for name, value in part.items()}}
