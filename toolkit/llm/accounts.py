"""Sums of what requests took: calls, tokens, seconds, money. Unknown is never zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from toolkit.llm.protocol import Usage

ROLES = ("agent", "rewriter", "reranker", "judge", "enrichment", "navigator", "librarian")
# The roles whose requests answer a question. The others come before or after it.
ANSWERING = ("agent", "rewriter", "enrichment", "reranker", "navigator", "librarian")
# Those of agents themselves, and of nothing that works for them.
AGENTS = ("agent", "navigator")
_TOKENS = ("input_tokens", "cached_tokens", "reasoning_tokens", "output_tokens")


@dataclass(frozen=True)
class Account:
    """`calls` that were begun, of which `failed` brought no reply; `retries` beyond their first
    attempts; tokens as the server counted them; `seconds` from the place in flight to the end, the
    waits between attempts among them; `dollars`.

    `unmetered` counts replies without usage (their tokens are in no sum), `unpriced` replies whose
    money is not known. `told_cached` and `told_reasoning` count the replies whose usage had such a
    number; some servers leave it out where it is zero, others always.
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
    told_cached: int = 0
    told_reasoning: int = 0

    def __add__(self, other: Account) -> Account:
        sums = {
            item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)
        }
        return Account(**sums)

    @property
    def cached_share(self) -> float | None:
        """Share of input tokens that came from a prefix cache; None where no reply told."""
        known = self.told_cached and self.input_tokens
        return self.cached_tokens / self.input_tokens if known else None

    def flat(self, prefix: str = "") -> dict[str, float]:
        """Numbers by name. `dollars` is left out where any reply's money is unknown, all tokens
        where any reply's usage is, and cached or reasoning tokens where no reply told them."""
        hidden = {"told_cached", "told_reasoning"}
        hidden |= {"dollars"} if self.unpriced else set()
        hidden |= {name for name in _TOKENS if self.unmetered}
        hidden |= set() if self.told_cached else {"cached_tokens"}
        hidden |= set() if self.told_reasoning else {"reasoning_tokens"}
        names = (item.name for item in fields(self) if item.name not in hidden)
        return {f"{prefix}{name}": getattr(self, name) for name in names}

    def nonzero(self) -> dict[str, float]:
        """All sums by field, zeros left out: `Account(**account.nonzero())` is the account. Here
        `dollars` is the known part, whatever `unpriced` says."""
        sums = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in sums.items() if value}


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
        told_cached=int(usage.cached is not None),
        told_reasoning=int(usage.reasoning is not None),
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


def known(usage: Mapping[str, float], name: str) -> float | None:
    """The number `name` of a question's usage, as `flat` gives it. Where it is absent: 0 if no
    request was made that could count towards it, else None, for `flat` leaves out the unknown."""
    if name in usage:
        return usage[name]
    role = next((f"{role}_" for role in ROLES if name.startswith(f"{role}_")), "")
    return None if any(item.startswith(role) for item in usage) else 0.0
