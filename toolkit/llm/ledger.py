"""The ledger of a run: what every request cost, by question and role, and the caps on that cost."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from soundingline.toolkit.errors import InputError, check_number, parse
from soundingline.toolkit.json_lines import JsonLinesLog, read_json_lines, set_aside_unfinished
from soundingline.toolkit.llm import prices
from soundingline.toolkit.llm.client import RequestObserver, observed_by
from soundingline.toolkit.llm.errors import LedgerFailed, ModelError, OutOfMoney
from soundingline.toolkit.llm.messages import ChatModel, Message, SamplingParams, Tools, Turn
from soundingline.toolkit.llm.prices import ANSWERING, UNKNOWN, Amount, Price, UsageTotals
from soundingline.toolkit.trajectory import ROLES


def _new_books() -> dict[str, UsageTotals]:
    """Sums by role, to which attempts are added."""
    return defaultdict(UsageTotals)


class PendingRequest:
    """A request in flight, whose attempts are recorded one by one.

    Attributes:
        turn: Its reply, once it is recorded.
        reserved: The dollars that the attempt in flight is expected to cost.
    """

    def __init__(self, ledger: Ledger, role: str, qid: str, price: Price) -> None:
        self.role, self.qid, self.price = role, qid, price
        self.reserved = 0.0
        self.turn: Turn | None = None
        self._ledger = ledger
        ledger._admit(self)
        self._under_way, self._over = True, False
        self._entered = False  # whether an attempt is on the ledger
        self._began = ledger._clock()

    def reply(self, turn: Turn) -> None:
        """Record the reply of the last attempt; it is on the ledger when this returns."""
        self.turn = turn
        self._enter(turn)

    def again(self, error: ModelError) -> None:
        """Record an attempt that ended with this error and is followed by another one, and check
        the caps as before the first one.

        Raises:
            OutOfMoney, LedgerFailed: If the request must not be sent again.
        """
        self._enter(error)
        self._ledger._admit(self)
        self._under_way = True

    def end(self, error: BaseException | None = None) -> None:
        """Record that the request is over, with this error if there is one."""
        if self._over:
            return
        self._over = True
        if self._under_way:
            self._enter(error, failed=True)
        elif self.turn is None:
            # Its attempts are entered, and another one was refused.
            self._ledger._enter(self, UsageTotals(failed=1))

    def waited(self, seconds: float) -> None:
        """Leave out the seconds that the attempt in flight waited for a concurrency slot."""
        self._began += seconds

    def _enter(self, outcome: Turn | BaseException | None, *, failed: bool = False) -> None:
        """Record an attempt that ended with `outcome`, a turn or an error."""
        turn = outcome.turn if isinstance(outcome, ModelError) else outcome
        usage = turn.usage if isinstance(turn, Turn) else None
        dollars = self.price.cost(usage) if usage else None
        now = self._ledger._clock()
        account = replace(
            prices.of_attempt(usage, dollars, seconds=now - self._began),
            calls=int(not self._entered),
            failed=int(failed),
            retries=int(self._entered),
        )
        self._began, self._under_way, self._entered = now, False, True
        self._ledger._enter(self, account)


class Ledger:
    """The cost of all requests of a run, by question and role, and the caps on it. Thread-safe.

    Requests are recorded attempt by attempt, and the caps are checked before each attempt. An
    attempt is refused with `OutOfMoney` when the sum of what is spent, what is in flight and one
    more attempt as expensive as the most expensive so far of its role could exceed a cap. Nothing
    is known before the first reply of a role, so all requests that begin together at the start are
    let through. A cap needs a known price (`InputError`), and a reply without usage refuses all
    further requests until the run is resumed. After that it counts as the most expensive attempt of
    its role; if no cost of that role is known, all requests of the role are refused.

    Args:
        cap: Dollars for the run, all roles together. None: no cap.
        question_cap: Dollars for one question and the roles that answer it (`prices.ANSWERING`).
            The judge and requests without a question (an empty `qid`) do not count. None: no cap.
        earlier: Usage of earlier starts of the run, by role. It counts towards `cap`.
        highest_cost: Dollars of the most expensive attempt of earlier starts, by role.
        record: Called with the role, the question and the usage of each attempt that has ended,
            before its reply is passed on. If it raises `OSError` or `InputError`, this request and
            all later ones are refused with `LedgerFailed`.
        clock: Returns seconds.

    Attributes:
        unpriced: Replies of unknown cost because of which a request was refused; 0 if none was.

    Raises:
        InputError: If a cap is not above 0.
    """

    def __init__(
        self,
        *,
        cap: float | None = None,
        question_cap: float | None = None,
        earlier: Mapping[str, UsageTotals] | None = None,
        highest_cost: Mapping[str, float] | None = None,
        record: Callable[[str, str, UsageTotals], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("cap", cap), ("question_cap", question_cap)):
            if value is not None:
                check_number(name, value, gt=0, do="give dollars, or null for none")
        self.cap = cap
        self.question_cap = question_cap
        self.unpriced = 0
        self._earlier = dict(earlier or {})
        self._clock = clock
        self._lock = threading.Lock()
        self._questions: dict[str, dict[str, UsageTotals]] = defaultdict(_new_books)
        self._run = _new_books()
        self._open: set[PendingRequest] = set()
        self._highest_cost = dict(highest_cost or {})
        self._record = record
        self._failure = ""

    @contextmanager
    def request(self, role: str, qid: str, price: Price = UNKNOWN) -> Iterator[PendingRequest]:
        """The block of one request, which calls `reply(turn)` and, for each attempt that another
        one follows, `again(error)`. An exception with a turn, as a `ModelError` may have, is
        recorded with the usage of that turn, any other one as a failed call."""
        entry = PendingRequest(self, role, qid, price)
        try:
            yield entry
        except BaseException as error:
            entry.end(error)
            raise
        else:
            entry.end()
        finally:
            with self._lock:
                self._open.discard(entry)

    def usage(self, qid: str) -> dict[str, float]:
        """What a question used as flat numbers, for its trajectory."""
        with self._lock:
            return prices.flatten(self._questions.get(qid, {}))

    def add_prior_usage(self, qid: str, books: Mapping[str, UsageTotals]) -> None:
        """Add what a question that is resumed in this start has spent before, by role. It counts in
        the question's `usage` and towards its cap, but not again towards the cap of the run."""
        with self._lock:
            for role, spent in books.items():
                self._questions[qid][role] += spent

    def by_role(self, qid: str | None = None) -> dict[str, UsageTotals]:
        """Usage by role, of one question or (None) of the run."""
        with self._lock:
            return dict(self._run if qid is None else self._questions.get(qid, {}))

    @property
    def total(self) -> UsageTotals:
        """Usage of this start of the run, all roles together."""
        return prices.total(self.by_role().values())

    @property
    def spent_before(self) -> float:
        """Dollars that earlier starts of the run have spent, as far as they are known."""
        return _dollars(self._earlier, ROLES)

    @property
    def unpriced_before(self) -> int:
        """Replies of earlier starts whose cost is unknown."""
        return sum(usage.unpriced for usage in self._earlier.values())

    def check_price(
        self, role: str, price: Price, settings: str = "the price of that model"
    ) -> None:
        """`InputError` if a cap bounds the role and the price of its model is unknown; `settings`
        says where the price is set."""
        capped = self.cap is not None or (self.question_cap is not None and role in ANSWERING)
        if capped and not price.known:
            raise InputError(
                f"there is a cap on money, and the price of the {role}'s model is unknown",
                valid="dollars for a million tokens; 0 where nothing is paid for them",
                do=f"set {settings}, or remove the cap",
            )

    def _admit(self, entry: PendingRequest) -> None:
        if entry.role not in ROLES:
            raise InputError(f"the ledger has no role {entry.role!r}", valid=", ".join(ROLES))
        self.check_price(entry.role, entry.price)
        with self._lock:
            if self._failure:
                raise LedgerFailed(self._failure)
            expected = self._highest_cost.get(entry.role, 0.0)
            self._refuse_if_full(entry.role, entry.qid, expected)
            entry.reserved = expected
            self._open.add(entry)

    def _refuse_if_full(self, role: str, qid: str, expected: float) -> None:
        caps = []
        if self.cap is not None:
            spent = self.spent_before + self._estimate_before() + _dollars(self._run, ROLES)
            reserved = math.fsum(entry.reserved for entry in self._open)
            caps.append(("run", self.cap, spent, reserved))
        if self.question_cap is not None and qid and role in ANSWERING:
            spent = _dollars(self._questions.get(qid, {}), ANSWERING)
            reserved = math.fsum(entry.reserved for entry in self._open if entry.qid == qid)
            caps.append(("question", self.question_cap, spent, reserved))
        if caps and (unpriced := self._unpriced(role)):
            self.unpriced = unpriced
            raise OutOfMoney(
                f"the server reported no usage for {unpriced} replies, so the cap cannot be "
                "enforced"
            )
        for scope, cap, spent, under_way in caps:
            # Before the first reply nothing is expected, and what is spent still counts.
            if spent >= cap or spent + under_way + expected > cap:
                raise OutOfMoney(
                    f"the {scope}'s cap is ${cap:.4f}: ${spent:.4f} is spent, ${under_way:.4f} is"
                    f" under way, and the next request may take ${expected:.4f}",
                    scope=scope,
                )

    def _unpriced(self, role: str) -> int:
        """Replies without usage because of which no cap bounds a request of the role."""
        roles = ANSWERING if self.cap is None else ROLES
        now = sum(usage.unpriced for name, usage in self._run.items() if name in roles)
        before = self._earlier.get(role, UsageTotals()).unreported
        return now + (0 if self._highest_cost.get(role) else before)

    def _estimate_before(self) -> float:
        """Dollars for the replies of earlier starts whose cost is unknown."""
        return math.fsum(
            usage.unpriced * self._highest_cost.get(role, 0.0)
            for role, usage in self._earlier.items()
        )

    def _enter(self, entry: PendingRequest, account: UsageTotals) -> None:
        with self._lock:
            entry.reserved = 0.0
            role, qid = entry.role, entry.qid
            self._highest_cost[role] = max(self._highest_cost.get(role, 0.0), account.dollars)
            self._run[role] += account
            self._questions[qid][role] += account
        if self._record is None:
            return
        try:
            self._record(role, qid, account)
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            self._failure = f"the run's ledger cannot be written: {reason}"
            raise LedgerFailed(self._failure) from error


def _dollars(books: Mapping[str, UsageTotals], roles: Iterable[str]) -> float:
    return math.fsum(books[role].dollars for role in roles if role in books)


class MeteredModel:
    """A `ChatModel` whose requests are recorded on a ledger, for one role and question.

    Args:
        model: The model that is asked.
        ledger: The ledger that records its requests.
        role: The role of the requests, one of `soundingline.toolkit.trajectory.ROLES`.
        qid: The question that the requests belong to.
        price: What the tokens cost.
        arrived: Called with each reply before it is recorded. A cache that stores the reply here
            has it whenever the ledger has, so that a kill between the two never makes anybody pay
            for it again. The clients of this package call it as soon as the reply has been read,
            before any other task runs.
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
        self, messages: Sequence[Message], tools: Tools = (), settings: SamplingParams | None = None
    ) -> Turn:
        """As the model's; `OutOfMoney` if a cap would be exceeded."""
        with self._ledger.request(self._role, self._qid, self._price) as entry:

            def replied(model: ChatModel, turn: Turn) -> None:
                # What lies between `self._model` and a client below it may change the reply.
                if model is not self._model:
                    return
                try:
                    if self._arrived is not None:
                        self._arrived(turn)
                finally:
                    entry.reply(turn)

            with observed_by(RequestObserver(entry.waited, entry.again, replied, entry.end)):
                turn = await self._model.respond(messages, tools, settings)
            if entry.turn is None:
                replied(self._model, turn)
        return turn

    async def close(self) -> None:
        """Nothing: the model is shared and closed by its owner."""


@dataclass(frozen=True, kw_only=True)
class _Attempt(UsageTotals):
    role: Literal[ROLES]  # type: ignore[valid-type]
    qid: Annotated[str, Field(strict=True)]


@dataclass
class LedgerStart:
    """One start of a run in its ledger file.

    Attributes:
        started: The time in ISO 8601.
        cap: The cap in dollars under which it ran. None: it had none.
        by_role: What its requests used, by role.
        highest_cost: The dollars of its most expensive attempt, by role.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    started: Annotated[str, Field(strict=True)]
    cap: Amount | None
    by_role: dict[str, UsageTotals] = field(default_factory=_new_books, init=False)
    highest_cost: dict[str, float] = field(default_factory=dict, init=False)

    def add(self, role: str, usage: UsageTotals) -> None:
        """Add an attempt."""
        self.by_role[role] += usage
        self.highest_cost[role] = max(self.highest_cost.get(role, 0.0), usage.dollars)


@contextmanager
def open_ledger(
    path: Path, *, cap: float | None = None, question_cap: float | None = None
) -> Iterator[Ledger]:
    """The ledger of one start of a run, which appends to the file of all its starts.

    A start that makes requests writes a line with its time and its cap, and a line for each
    attempt when that ends. kill -9 therefore loses only attempts whose replies had not been read.
    The caller holds the lock of the run.

    Args:
        path: The file, `ledger.jsonl` in a run folder.
        cap: As in `Ledger`. What earlier starts have spent counts towards it.
        question_cap: As in `Ledger`.

    Raises:
        InputError: If the file cannot be read.
    """
    starts = read_starts(path)
    set_aside_unfinished(path)
    earlier = {
        role: prices.total(start.by_role[role] for start in starts if role in start.by_role)
        for role in ROLES
    }
    highest_cost: Counter[str] = Counter()
    for start in starts:
        highest_cost |= Counter(start.highest_cost)  # the larger of each
    log = JsonLinesLog(path)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    head: list[Mapping[str, Any]] = [{"started": started, "cap": cap}]
    lock = threading.Lock()

    def record(role: str, qid: str, usage: UsageTotals) -> None:
        with lock:
            while head:
                log.append(head[0])
                head.pop()
            log.append({"role": role, "qid": qid, **usage.nonzero()})

    try:
        yield Ledger(
            cap=cap,
            question_cap=question_cap,
            earlier=earlier,
            highest_cost=highest_cost,
            record=record,
        )
    finally:
        log.close()


def read_starts(path: Path) -> list[LedgerStart]:
    """The starts of a run that made requests, oldest first; empty if there is no file.

    Raises:
        InputError: If the file cannot be read or has an impossible line.
    """
    starts: list[LedgerStart] = []
    do = "restore it from a copy; or, if its money must not count, move it away"
    try:
        rows = read_json_lines(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the ledger {path}: {reason}", do=do) from error
    for number, row in enumerate(rows, start=1):
        where = f"{path}, line {number}"
        if not starts or "started" in row:
            starts.append(parse(LedgerStart, row, where=where, do=do))
        else:
            attempt = parse(_Attempt, row, where=where, do=do)
            starts[-1].add(attempt.role, attempt)
    return [start for start in starts if start.by_role]


def last_cap(path: Path, otherwise: float | None = None) -> float | None:
    """The cap in dollars of a run's newest start, None if it had none; `otherwise` if no start made
    requests. `InputError` as `read_starts`."""
    starts = read_starts(path)
    return starts[-1].cap if starts else otherwise


def recorded_usage(path: Path) -> dict[str, float]:
    """What all starts of a run used together, as `UsageTotals.flatten`; empty if none made
    requests."""
    usages = [usage for start in read_starts(path) for usage in start.by_role.values()]
    return prices.total(usages).flatten() if usages else {}
