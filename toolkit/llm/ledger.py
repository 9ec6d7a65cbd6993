"""One ledger of all requests of a run, by question and role, and the caps that stop it in time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from toolkit.errors import InputError
from toolkit.llm import accounts
from toolkit.llm.accounts import ROLES, Account
from toolkit.llm.errors import ModelError, OutOfMoney
from toolkit.llm.prices import UNKNOWN, Price
from toolkit.llm.protocol import ChatModel, Message, Settings, Turn


class Entry:
    """One request under way."""

    def __init__(self, reserved: float) -> None:
        self.reserved = reserved
        self.turn: Turn | None = None

    def reply(self, turn: Turn) -> None:
        """What came of it."""
        self.turn = turn


class Ledger:
    """Safe for many threads and tasks.

    `cap` and `question_cap` are dollars for the run and for one question. A request is refused with
    `OutOfMoney` before it is sent when what is spent, what is under way and one more request as
    dear as the dearest so far of its role could pass a cap. Before a role's first reply nothing is
    known, so requests begun together at the start are all let through. `spent_before` counts
    towards `cap` (a resumed run). With a cap, a price must be known (`InputError`), and a reply
    without usage closes the ledger. `clock` gives seconds.
    """

    def __init__(
        self,
        *,
        cap: float | None = None,
        question_cap: float | None = None,
        spent_before: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("cap", cap), ("question_cap", question_cap)):
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value!r}", valid="dollars above 0, or null for none")
        self.cap = cap
        self.question_cap = question_cap
        self.spent_before = spent_before
        self._clock = clock
        self._lock = threading.Lock()
        self._questions: dict[str, dict[str, Account]] = {}
        self._run: dict[str, Account] = {}
        self._open: dict[str, set[Entry]] = {}
        self._dearest: dict[str, float] = {}

    @contextmanager
    def request(self, role: str, qid: str, price: Price = UNKNOWN) -> Iterator[Entry]:
        """Around one request; `entry.reply(turn)` inside. A `ModelError` that carries a turn is
        entered with that turn's usage, any other exception as a failed call."""
        entry = self._admit(role, qid, price)
        began = self._clock()
        account: Account | None = None
        attempts = 1
        try:
            yield entry
        except ModelError as error:
            entry.turn, attempts = error.turn or entry.turn, error.attempts
            account = accounts.failed(self._account(entry, price, began, attempts))
            raise
        finally:
            if account is None:
                account = self._account(entry, price, began, attempts)
            self._enter(role, qid, entry, account)

    def usage(self, qid: str) -> dict[str, float]:
        """A question's flat numbers, for its trajectory."""
        with self._lock:
            return accounts.flat(self._questions.get(qid, {}))

    def by_role(self, qid: str | None = None) -> dict[str, Account]:
        """Accounts by role: of one question, or of the run."""
        with self._lock:
            return dict(self._run if qid is None else self._questions.get(qid, {}))

    @property
    def total(self) -> Account:
        """The run's account, all roles together, without what was spent before."""
        return accounts.total(self.by_role().values())

    def record(self) -> dict[str, Any]:
        """The run's ledger for its folder."""
        with self._lock:
            return {
                "cap": self.cap,
                "question_cap": self.question_cap,
                "spent_before": self.spent_before,
                "run": accounts.flat(self._run),
                "questions": {
                    qid: accounts.flat(self._questions[qid]) for qid in sorted(self._questions)
                },
            }

    def _admit(self, role: str, qid: str, price: Price) -> Entry:
        if role not in ROLES:
            raise InputError(f"the ledger has no role {role!r}", valid=", ".join(ROLES))
        capped = self.cap is not None or self.question_cap is not None
        if capped and not price.known:
            raise InputError(
                f"there is a cap on money, and the price of the {role}'s model is unknown",
                do="set its price in llm.price, or remove the cap",
            )
        with self._lock:
            expected = self._dearest.get(role, 0.0)
            if capped:
                self._refuse_if_full(qid, expected)
            entry = Entry(expected)
            self._open.setdefault(qid, set()).add(entry)
        return entry

    def _refuse_if_full(self, qid: str, expected: float) -> None:
        run, question = self._run, self._questions.get(qid, {})
        if unpriced := accounts.total(run.values()).unpriced:
            raise OutOfMoney(
                f"the server told no usage for {unpriced} replies, so that the cap cannot be kept"
            )
        caps = (
            ("run", self.cap, run, self.spent_before, self._reserved(self._open)),
            ("question", self.question_cap, question, 0.0, self._reserved([qid])),
        )
        for scope, cap, books, before, under_way in caps:
            spent = before + accounts.total(books.values()).dollars
            # Without any reply yet nothing is expected, and money that is gone is still gone.
            if cap is not None and (spent >= cap or spent + under_way + expected > cap):
                raise OutOfMoney(
                    f"the {scope}'s cap is ${cap:.4f}: ${spent:.4f} is spent, ${under_way:.4f} is"
                    f" under way, and the next request may take ${expected:.4f}",
                    scope=scope,
                )

    def _reserved(self, qids: Iterable[str]) -> float:
        return math.fsum(entry.reserved for qid in qids for entry in self._open.get(qid, ()))

    def _account(self, entry: Entry, price: Price, began: float, attempts: int) -> Account:
        seconds = self._clock() - began
        if entry.turn is None:
            return accounts.of_failure(seconds, attempts)
        usage = entry.turn.usage
        return accounts.of_reply(
            usage, price.cost(usage), seconds, max(attempts, entry.turn.attempts)
        )

    def _enter(self, role: str, qid: str, entry: Entry, account: Account) -> None:
        with self._lock:
            self._open[qid].discard(entry)
            if not self._open[qid]:
                del self._open[qid]
            self._dearest[role] = max(self._dearest.get(role, 0.0), account.dollars)
            for books in (self._run, self._questions.setdefault(qid, {})):
                books[role] = books.get(role, Account()) + account


class Metered:
    """A model whose every request is on a ledger, for one role and question. A `ChatModel`."""

    def __init__(
        self, model: ChatModel, ledger: Ledger, *, role: str, qid: str, price: Price = UNKNOWN
    ) -> None:
        self.name = model.name
        self._model = model
        self._ledger = ledger
        self._role, self._qid, self._price = role, qid, price

    def ready(self) -> None:
        """As the model's."""
        self._model.ready()

    async def respond(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        settings: Settings | None = None,
    ) -> Turn:
        """As the model's; `OutOfMoney` where a cap would be passed."""
        with self._ledger.request(self._role, self._qid, self._price) as entry:
            turn = await self._model.respond(messages, tools, settings)
            entry.reply(turn)
        return turn

    async def close(self) -> None:
        """Nothing: the model is shared and closed by its owner."""
