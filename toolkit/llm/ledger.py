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
from toolkit.llm.accounts import ANSWERING, ROLES, Account
from toolkit.llm.errors import LedgerFailed, ModelError, OutOfMoney
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

    `cap` is in dollars and for the run, all roles together; `question_cap` is for one question and
    the roles that answer it (`accounts.ANSWERING`), not for its judge, nor for requests that
    belong to no question (`qid` empty). A request is refused with `OutOfMoney` before it is sent
    when what is spent, what is under way and one more request as dear as the dearest so far of its
    role could pass a cap. Before a role's first reply nothing is known, so requests begun together
    at the start are all let through. A resumed run gives what it knows already: `spent_before`
    dollars, which count towards `cap`, `unpriced_before` replies whose money is not in them, and
    the `dearest` request by role. With a cap, a price must be known (`InputError`), and a reply
    without usage closes the ledger until the run is resumed.

    `enter` is called with the role, question and account of each request that has ended, before
    its reply goes on; where it raises `OSError` or `InputError`, this request and all later ones
    are refused with `LedgerFailed`. `clock` gives seconds.
    """

    def __init__(
        self,
        *,
        cap: float | None = None,
        question_cap: float | None = None,
        spent_before: float = 0.0,
        unpriced_before: int = 0,
        dearest: Mapping[str, float] | None = None,
        enter: Callable[[str, str, Account], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("cap", cap), ("question_cap", question_cap)):
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value!r}", valid="dollars above 0, or null for none")
        self.cap = cap
        self.question_cap = question_cap
        self.spent_before = spent_before
        self.unpriced_before = unpriced_before
        self._clock = clock
        self._lock = threading.Lock()
        self._questions: dict[str, dict[str, Account]] = {}
        self._run: dict[str, Account] = {}
        self._open: dict[str, set[Entry]] = {}
        self._dearest = dict(dearest or {})
        self._record = enter
        self._failure = ""

    @contextmanager
    def request(self, role: str, qid: str, price: Price = UNKNOWN) -> Iterator[Entry]:
        """Around one request; `entry.reply(turn)` inside. A `ModelError` that carries a turn is
        entered with that turn's usage, any other exception as a failed call. The seconds leave out
        those that the turn or the exception was `queued`."""
        entry = self._admit(role, qid, price)
        began = self._clock()
        account: Account | None = None
        queued = 0.0
        try:
            yield entry
        except ModelError as error:
            entry.turn = error.turn or entry.turn
            account = self._account(entry, price, began + error.queued, error.attempts)
            account = accounts.failed(account)
            raise
        except BaseException as error:
            queued = getattr(error, "queued", 0.0)
            raise
        finally:
            if account is None:
                queued = entry.turn.queued if entry.turn else queued
                account = self._account(entry, price, began + queued)
            self._enter(role, qid, entry, account)

    def usage(self, qid: str) -> dict[str, float]:
        """A question's flat numbers, for its trajectory."""
        with self._lock:
            return accounts.flat(self._questions.get(qid, {}))

    def restore(self, qid: str, books: Mapping[str, Account]) -> None:
        """A question that goes on in this start has spent what `books` tell by role: they count in
        its `usage` and towards its cap, and not again towards the run's."""
        with self._lock:
            account = self._questions.setdefault(qid, {})
            for role, spent in books.items():
                account[role] = account.get(role, Account()) + spent

    def by_role(self, qid: str | None = None) -> dict[str, Account]:
        """Accounts by role: of one question, or of the run."""
        with self._lock:
            return dict(self._run if qid is None else self._questions.get(qid, {}))

    @property
    def total(self) -> Account:
        """The run's account, all roles together, without what was spent before."""
        return accounts.total(self.by_role().values())

    @property
    def dearest(self) -> dict[str, float]:
        """Dollars of the dearest request so far, by role."""
        with self._lock:
            return dict(self._dearest)

    @property
    def unpriced(self) -> int:
        """Replies whose money is not known and counts towards a cap; above 0 the cap cannot be
        kept."""
        return self._unpriced(self.by_role())

    def check_price(
        self, role: str, price: Price, settings: str = "the price of that model"
    ) -> None:
        """`InputError` where a cap bounds the role and the price of its model is unknown;
        `settings` are where that is set."""
        capped = self.cap is not None or (self.question_cap is not None and role in ANSWERING)
        if capped and not price.known:
            raise InputError(
                f"there is a cap on money, and the price of the {role}'s model is unknown",
                valid="dollars for a million tokens; 0 where nothing is paid for them",
                do=f"set {settings}, or remove the cap",
            )

    def _admit(self, role: str, qid: str, price: Price) -> Entry:
        if role not in ROLES:
            raise InputError(f"the ledger has no role {role!r}", valid=", ".join(ROLES))
        self.check_price(role, price)
        with self._lock:
            if self._failure:
                raise LedgerFailed(self._failure)
            expected = self._dearest.get(role, 0.0)
            self._refuse_if_full(role, qid, expected)
            entry = Entry(expected)
            self._open.setdefault(qid, set()).add(entry)
        return entry

    def _refuse_if_full(self, role: str, qid: str, expected: float) -> None:
        caps = []
        if self.cap is not None:
            spent = self.spent_before + _dollars(self._run, ROLES)
            caps.append(("run", self.cap, spent, self._reserved(self._open)))
        if self.question_cap is not None and qid and role in ANSWERING:
            spent = _dollars(self._questions.get(qid, {}), ANSWERING)
            caps.append(("question", self.question_cap, spent, self._reserved([qid])))
        if caps and (unpriced := self._unpriced(self._run)):
            raise OutOfMoney(
                f"the server reported no usage for {unpriced} replies, so the cap cannot be "
                "enforced"
            )
        for scope, cap, spent, under_way in caps:
            # Without any reply yet nothing is expected, and money that is gone is still gone.
            if spent >= cap or spent + under_way + expected > cap:
                raise OutOfMoney(
                    f"the {scope}'s cap is ${cap:.4f}: ${spent:.4f} is spent, ${under_way:.4f} is"
                    f" under way, and the next request may take ${expected:.4f}",
                    scope=scope,
                )

    def _unpriced(self, books: Mapping[str, Account]) -> int:
        roles = ANSWERING if self.cap is None else ROLES
        return sum(books[role].unpriced for role in roles if role in books)

    def _reserved(self, qids: Iterable[str]) -> float:
        return math.fsum(entry.reserved for qid in qids for entry in self._open.get(qid, ()))

    def _account(self, entry: Entry, price: Price, began: float, attempts: int = 1) -> Account:
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
        if self._record is None:
            return
        try:
            self._record(role, qid, account)
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            self._failure = f"the run's ledger cannot be written: {reason}"
            raise LedgerFailed(self._failure) from error


def _dollars(books: Mapping[str, Account], roles: Iterable[str]) -> float:
    return math.fsum(books[role].dollars for role in roles if role in books)


class LedgeredModel:
    """A model whose every request is on a ledger, for one role and question. A `ChatModel`.

    `arrived` is called with each reply before that is entered: what keeps replies then has it
    whenever the ledger has, so that a kill between the two makes nobody pay for it again.
    """

    def __init__(
        self,
        model: ChatModel,
        ledger: Ledger,
        *,
        role: str,
        qid: str,
        price: Price = UNKNOWN,
        arrived: Callable[[Turn], None] | None = None,
    ) -> None:
        self.name = model.name
        self._model = model
        self._ledger = ledger
        self._role, self._qid, self._price = role, qid, price
        self._arrived = arrived

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
            if self._arrived is not None:
                self._arrived(turn)
        return turn

    async def close(self) -> None:
        """Nothing: the model is shared and closed by its owner."""
