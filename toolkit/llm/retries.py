"""When a request is sent again, and after which wait. The waiting itself is tenacity's.

The SDKs' own retries are off: they also retry an exhausted quota, wait without a clock that a test
can set, and would hold a place in flight while they wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from toolkit.errors import InputError
from toolkit.llm.access import load
from toolkit.llm.errors import ModelError

_FIRST_WAIT = 0.5


class Retries:
    """`attempts` bounds the tries of one request, the first one included; `longest_wait` seconds
    bounds a wait between two, and a server that asks for a longer one is given up. `sleep` and
    `chance` (0 to 1) serve tests."""

    def __init__(
        self,
        *,
        attempts: int,
        longest_wait: float,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        chance: Callable[[], float] | None = None,
    ) -> None:
        if attempts < 1:
            raise InputError(f"attempts is {attempts}", valid="1 or more, the first one included")
        if not longest_wait >= 0:
            raise InputError(f"longest_wait is {longest_wait}", valid="seconds, 0 or more")
        self._attempts = attempts
        self._longest_wait = longest_wait
        self._sleep = sleep
        # Of its own, so that waiting never moves a seeded generator of the experiment.
        self._chance = chance or random.Random().random

    def caller(self) -> Any:
        """A tenacity object for one request: `await caller(function, *arguments)`; afterwards
        `caller.statistics["attempt_number"]` tells the tries."""
        tenacity = load("tenacity")
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._worth_another),
            wait=lambda state: self._pause(state.attempt_number, state.outcome.exception()),
            stop=tenacity.stop_after_attempt(self._attempts),
            sleep=self._sleep,
            reraise=True,
        )

    def _worth_another(self, error: BaseException) -> bool:
        if not isinstance(error, ModelError) or not error.retryable:
            return False
        return error.retry_after is None or error.retry_after <= self._longest_wait

    def _pause(self, attempt: int, error: BaseException | None) -> float:
        """Seconds before the next attempt: what the server asks and up to a tenth more, else a
        random part of 1, 2, 4, ... seconds ("full jitter"), so that many do not return at once."""
        wish = error.retry_after if isinstance(error, ModelError) else None
        if wish is not None:
            return wish * (1 + 0.1 * self._chance())
        return float(min(self._longest_wait, _FIRST_WAIT * 2**attempt) * self._chance())
